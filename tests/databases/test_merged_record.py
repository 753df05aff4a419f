"""The records of several databases as one: lists, entries, exports and streams, also while a database is down."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import hypothesis
import orjson
import pytest
import pytest_asyncio
from hypothesis import strategies as st
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.db import record
from gateway.db.database import Database
from gateway.db.export import ExportFormat
from gateway.fencing.chain_verification import Verifier
from gateway.http.head import Head, Headers
from gateway.merged import lists
from gateway.merged.asking import Databases
from gateway.merged.exports import split_rows
from tests.databases.fleet import CALLERS, Fleet, databases, fleet, settings
from tests.postgres import Server
from tests.running import GRANTS, Events, running
from tests.waiting import PATIENCE

STRANGER = "a-key-of-the-stranger-0123456789abcdef"
"""The key of a caller that may write, and sees its own entries only."""


@pytest_asyncio.fixture
async def gateway(postgres_server: Server) -> AsyncIterator[Fleet]:
    async with fleet(postgres_server) as one:
        yield one


async def raised(api: httpx.AsyncClient, database: str, name: str) -> str:
    """Put an entry on the record of a database. Return the resource."""
    resource = f"tenant-7/{name}" if database == "south" else f"job/{name}"
    answer = await api.post(f"/v1/fences/{resource}/barrier", json={"token": "8"})
    assert answer.status_code == 200, answer.text
    return resource


async def refused(api: httpx.AsyncClient, database: str, name: str) -> None:
    resource = await raised(api, database, name)
    answer = await api.post(f"/v1/fences/{resource}/barrier", json={"token": "7"})
    assert answer.status_code == 412, answer.text


async def all_raised(api: httpx.AsyncClient, count: int = 7) -> list[str]:
    """Put entries on both records in turn. Return their resources, the oldest first."""
    return [await raised(api, ("north", "south", "south")[number % 3], str(number)) for number in range(count)]


async def listed(api: httpx.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    answer = await api.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_list_without_a_database_has_the_entries_of_all_by_time(api: httpx.AsyncClient) -> None:
    resources = await all_raised(api)
    for order, bound in (("newest", "before"), ("oldest", "after")):
        expected = resources if order == "oldest" else resources[::-1]
        whole = await listed(api, "/v1/events", kind="barrier", order=order)
        assert [one["resource"] for one in whole["events"]] == expected
        assert (whole["total"], whole["total_exact"], whole["missing"]) == (7, True, [])
        assert (whole["before"], whole["after"]) == (None, None)
        assert {one["database"] for one in whole["events"]} == {"north", "south"}
        found: list[str] = []
        query: dict[str, Any] = {}
        while True:
            page = await listed(api, "/v1/events", kind="barrier", order=order, limit=2, **query)
            found += [one["resource"] for one in page["events"]]
            if page[bound] is None:
                break
            query = {bound: page[bound]}
        assert found == expected
    alone = await listed(api, "/v1/events", kind="barrier", database="north")
    assert "database" not in alone["events"][0]
    assert "missing" not in alone
    several = await listed(api, "/v1/events", database=["north", "south"], kind="barrier")
    assert [one["resource"] for one in several["events"]] == resources[::-1]


async def test_fences_locks_incidents_and_heads_are_listed_together(api: httpx.AsyncClient) -> None:
    for name in ("a", "b"):
        for database in ("north", "south"):
            await refused(api, database, name)
            lock = f"tenant-7/lock-{name}" if database == "south" else f"job/lock-{name}"
            assert (await api.post(f"/v1/leases/{lock}", json={"holder": "h"})).status_code == 201
    page = await listed(api, "/v1/fences", limit=3)
    rest = await listed(api, "/v1/fences", after=page["after"])
    names = [(one["resource"], one["database"]) for one in (*page["fences"], *rest["fences"])]
    assert names == [("job/a", "north"), ("job/b", "north"), ("tenant-7/a", "south"), ("tenant-7/b", "south")]
    locks = (await listed(api, "/v1/leases", limit=3))["locks"]
    assert [one["resource"] for one in locks] == ["job/lock-a", "job/lock-b", "tenant-7/lock-a"]
    incidents = await listed(api, "/v1/incidents")
    assert [one["resource"] for one in incidents["incidents"]] == ["tenant-7/b", "job/b", "tenant-7/a", "job/a"]
    assert incidents["complete"]
    assert not (await listed(api, "/v1/incidents", limit=3))["complete"]
    heads = (await listed(api, "/v1/record/head"))["heads"]
    for head in heads:
        alone = await listed(api, "/v1/record/head", database=head["database"])
        assert {**alone, "database": head["database"]} == head


async def test_an_entry_is_found_in_whichever_database_it_is(gateway: Fleet, api: httpx.AsyncClient) -> None:
    for database in ("north", "south"):
        await refused(api, database, "x")
    for one in (await listed(api, "/v1/rejections"))["rejections"]:
        for kind in ("events", "rejections", "incidents"):
            assert (await listed(api, f"/v1/{kind}/{one['id']}"))["database"] == one["database"]
        path = f"/v1/incidents/{one['id']}/acknowledgements"
        noted = await api.post(path, json={"note": "seen"})
        assert noted.status_code == 200, noted.text
        notes = "SELECT count(*) FROM fencing.entry WHERE kind = 'incident-acknowledged'"
        await listed(api, "/v1/events")
        assert await gateway.asked(one["database"], notes) == [1]
    nowhere = "/v1/events/00000000-0000-4000-8000-000000000000"
    assert (await api.get(nowhere)).status_code == 404
    assert (await api.get("/v1/events/no-id")).status_code == 400
    gateway.lines["south"].cut()
    for one in (await listed(api, "/v1/rejections", database="north"))["rejections"]:
        assert (await listed(api, f"/v1/events/{one['id']}"))["database"] == "north"
    # Nothing may say that an entry does not exist, as long as a database has not been asked.
    assert (await api.get(nowhere)).status_code == 503


async def test_a_list_without_a_database_that_is_down_says_so_and_goes_on_with_it(
    gateway: Fleet, api: httpx.AsyncClient
) -> None:
    resources = await all_raised(api)
    first = await listed(api, "/v1/events", kind="barrier", limit=2)
    gateway.lines["south"].cut()
    second = await listed(api, "/v1/events", kind="barrier", before=first["before"])
    assert second["missing"] == ["south"]
    assert {one["database"] for one in second["events"]} == {"north"}
    assert second["before"] is not None
    whole = await listed(api, "/v1/events", kind="barrier")
    assert (whole["missing"], whole["total_exact"]) == (["south"], False)
    for path in ("/v1/fences", "/v1/leases", "/v1/incidents", "/v1/record/head", "/v1/rejections", "/v1/webhooks"):
        assert (await listed(api, path))["missing"] == ["south"]
    export = await api.get("/v1/events.ndjson")
    assert (export.status_code, "south" in export.json()["detail"]) == (503, True), "it does not begin"
    assert "database=north" in export.json()["advice"]
    assert (await api.get("/v1/events.ndjson?database=north")).status_code == 200
    gateway.lines["north"].cut()
    assert (await api.get("/v1/events")).status_code == 503
    gateway.lines["south"].mend()
    gateway.lines["north"].mend()
    third = await until_listed(api, before=second["before"])
    found = [one["resource"] for page in (first, second, third) for one in page["events"]]
    assert sorted(found) == sorted(resources)
    assert third["before"] is None


async def until_listed(api: httpx.AsyncClient, **query: str) -> dict[str, Any]:
    """Return the rest of the list, once both databases answer again."""
    async with asyncio.timeout(30):
        while True:
            answer = await api.get("/v1/events", params={"kind": "barrier", **query})
            if answer.status_code == 200 and not answer.json()["missing"]:
                found: dict[str, Any] = answer.json()
                return found
            await asyncio.sleep(0.1)


async def test_cursors_and_databases_that_do_not_fit_are_refused(api: httpx.AsyncClient) -> None:
    await all_raised(api)
    one = (await listed(api, "/v1/events"))["events"][0]["id"]
    wrong = [
        *("before=4711", f"before={one}", "before=west:1", "before=north:1,north:2", "before=north:-1", "before="),
        *("before=north:1&before=north:2", "limit=1&limit=2", "order=oldest&order=newest", "limit=0", "limit=1001"),
        *("limit=5.0", "limit=%2B5", "database=west", "database=", "database=north&database=west", "nope=1"),
        *("after=north:9999999999999999999", "database=north&before=south:1", "database=north&before=north:1"),
    ]
    for query in wrong:
        answer = await api.get(f"/v1/events?{query}")
        assert answer.status_code == 400, (query, answer.text)
    for path in ("/v1/events.csv?after=1", "/v1/events/stream?after=1", "/v1/events/stream?after=north:999999"):
        assert (await api.get(path)).status_code == 400, path
    headers = {"Last-Event-ID": "south:1,west:4"}
    assert (await api.get("/v1/events/stream", headers=headers)).status_code == 400
    assert (await api.post("/v1/webhooks/x/test")).status_code == 400
    assert (await api.get("/v1/record/nothing")).status_code == 400


async def test_a_caller_without_the_grant_sees_its_own_entries_only(postgres_server: Server) -> None:
    grants = [*GRANTS[:1], {"callers": ["stranger"], "actions": ["barrier"], "resources": ["**"]}]
    callers = [CALLERS[0], {"name": "stranger", "api_key": STRANGER}]
    async with fleet(postgres_server, callers=callers, grants=grants) as gateway, gateway.api() as api:
        await all_raised(api, 3)
        headers = {"Authorization": f"Bearer {STRANGER}"}
        async with httpx.AsyncClient(base_url=gateway.origin, headers=headers, timeout=PATIENCE) as stranger:
            for database in ("north", "south"):
                await raised(stranger, database, "own")
            whole = await listed(stranger, "/v1/events", kind="barrier")
            assert [one["resource"] for one in whole["events"]] == ["tenant-7/own", "job/own"]
            assert whole["total"] == 2
            lines = (await stranger.get("/v1/events.ndjson")).text.splitlines()
            assert {json.loads(line)["caller"] for line in lines} == {"stranger"}
            other = (await listed(api, "/v1/events", resource="job/0"))["events"][0]["id"]
            assert (await stranger.get(f"/v1/events/{other}")).status_code == 404
            for path in ("/v1/record/head", "/v1/webhooks", "/v1/leases"):
                assert (await stranger.get(path)).status_code == 403, path
            # One denied request leaves one denial, not one in each database.
            denials = (await listed(api, "/v1/rejections", reason="denied"))["rejections"]
            assert [one["database"] for one in denials] == ["north"] * 3
        async with httpx.AsyncClient(base_url=gateway.origin, timeout=PATIENCE) as nobody:
            for path in ("/v1/events?database=west", "/v1/events.csv", "/v1/record/head", "/v1/incidents/x"):
                assert (await nobody.get(path)).status_code == 401, path
            assert (await nobody.post("/v1/incidents/x/acknowledgements", json={})).status_code == 401


def verified(lines: list[str]) -> dict[str, Verifier]:
    """Verify the chain of each database in an export."""
    found: dict[str, Verifier] = {}
    for line in lines:
        entry = json.loads(line)
        name = entry["database"]
        own = line.replace(f'"database":"{name}",', "", 1)
        assert found.setdefault(name, Verifier(whole=True)).take(own) == []
    return found


async def test_an_export_has_the_entries_of_all_by_time_and_both_chains(api: httpx.AsyncClient) -> None:
    resources = await all_raised(api, 20)
    exported = await api.get("/v1/events.ndjson")
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    assert 'filename="events.ndjson"' in exported.headers["content-disposition"]
    lines = exported.text.splitlines()
    entries = [json.loads(line) for line in lines]
    assert [one["resource"] for one in entries if one["kind"] == "barrier"] == resources
    assert [one["at"] for one in entries] == sorted(one["at"] for one in entries)
    heads = (await listed(api, "/v1/record/head"))["heads"]
    chains = verified(lines)
    assert {(one["database"], one["position"], one["hash"]) for one in heads} == {
        (name, chain.last, chain.head) for name, chain in chains.items()
    }
    table = list(csv.DictReader(io.StringIO((await api.get("/v1/events.csv")).text)))
    assert [(row["database"], row["hash"]) for row in table] == [(one["database"], one["hash"]) for one in entries]
    middle = entries[len(entries) // 2 :]
    reached: dict[str, int] = {}
    for one in entries[: len(entries) // 2]:
        reached[one["database"]] = one["position"]
    after = ",".join(f"{name}:{position}" for name, position in reached.items())
    rest = (await api.get("/v1/events.ndjson", params={"after": after})).text.splitlines()
    assert [json.loads(line)["hash"] for line in rest] == [one["hash"] for one in middle]


async def export_without_end(gateway: Fleet, api: httpx.AsyncClient) -> None:
    """Read an export while one of its databases is lost."""
    async with api.stream("GET", "/v1/events.ndjson") as answer:
        assert answer.status_code == 200
        pieces = answer.aiter_bytes()
        await anext(pieces)
        gateway.lines["south"].cut()
        async for _ in pieces:
            pass


LONG_RECORD = """
INSERT INTO fencing.intake (id, at, kind, caller, target)
SELECT gen_random_uuid(), clock_timestamp(), 'administration', 'writer', repeat('x', 2000)
FROM generate_series(1, 15000)
"""


@pytest.mark.thorough
async def test_an_export_breaks_off_if_a_database_is_lost_and_gives_back_its_sessions(
    gateway: Fleet, api: httpx.AsyncClient
) -> None:
    await all_raised(api, 3)
    database = Database(gateway.addresses["south"])
    try:
        await database.fetch_write(LONG_RECORD)
        await record.seal(database)
    finally:
        await database.close()
    exports = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY %' AND datname = current_database()"
    for _ in range(6):  # more than may run at one time
        with pytest.raises(httpx.RemoteProtocolError):
            await export_without_end(gateway, api)
        gateway.lines["south"].mend()
        await until_listed(api, limit="1")
    assert await gateway.asked("north", exports) == [0]
    whole = (await api.get("/v1/events.ndjson")).text.splitlines()
    assert verified(whole).keys() == {"north", "south"}
    assert len(whole) >= 15_003


class Reader:
    """A client of a stream: the ids and the entries that it has received."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.last = ""
        self.told: list[tuple[str, str]] = []

    async def entry(self) -> dict[str, Any]:
        """Return the next entry. ``told`` has the events that are none."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(30):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                    continue
                self.last = fields.get("id", self.last)
                if "data" in fields:
                    document: dict[str, Any] = json.loads(fields["data"])
                    if not fields["event"].startswith("database-"):
                        return document
                    self.told.append((fields["event"], document["database"]))
                fields = {}
        raise AssertionError("The stream has ended.")


@asynccontextmanager
async def streaming(api: httpx.AsyncClient, last: str | None = None) -> AsyncIterator[Reader]:
    headers = {} if last is None else {"Last-Event-ID": last}
    async with api.stream("GET", "/v1/events/stream?kind=barrier", headers=headers) as answer:
        assert answer.status_code == 200
        yield Reader(answer)


async def test_a_stream_has_the_new_entries_of_all_and_is_resumed_by_its_cursor(
    gateway: Fleet, api: httpx.AsyncClient
) -> None:
    before = await all_raised(api, 3)
    async with streaming(api) as reader:
        for number in range(4):
            resource = await raised(api, ("south", "north")[number % 2], f"live-{number}")
            entry = await reader.entry()
            while entry["resource"] in before:  # not sealed yet when the stream began
                entry = await reader.entry()
            assert (entry["resource"], entry["database"]) == (resource, ("south", "north")[number % 2])
        last = reader.last
    missed = {await raised(api, ("south", "north")[number % 2], f"missed-{number}") for number in range(5)}
    async with streaming(api, last) as reader:
        assert {(await reader.entry())["resource"] for _ in missed} == missed
        assert reader.told == []


async def test_a_stream_outlives_a_database_that_goes_away_and_loses_nothing(
    gateway: Fleet, api: httpx.AsyncClient
) -> None:
    async with streaming(api) as reader:
        before = await raised(api, "south", "before")
        assert (await reader.entry())["resource"] == before
        gateway.lines["south"].cut()
        number = 0
        while not reader.told:
            number += 1
            resource = await raised(api, "north", f"meanwhile-{number}")
            assert (await reader.entry())["resource"] == resource
            await asyncio.sleep(0.2)
        assert reader.told == [("database-missing", "south")]
        # Another gateway still reaches the database.
        other = settings(databases(gateway.addresses["north"], gateway.addresses["south"]))
        async with (
            running(other, Events()) as origin,
            httpx.AsyncClient(base_url=origin, headers=api.headers, timeout=PATIENCE) as elsewhere,
        ):
            during = await raised(elsewhere, "south", "during")
        gateway.lines["south"].mend()
        assert (await reader.entry())["resource"] == during
        assert reader.told == [("database-missing", "south"), ("database-back", "south")]


@pytest.mark.thorough
async def test_a_stream_begins_without_a_database_that_is_down(gateway: Fleet, api: httpx.AsyncClient) -> None:
    gateway.lines["south"].cut()
    async with streaming(api) as reader:
        resource = await raised(api, "north", "up")
        assert (await reader.entry())["resource"] == resource
        assert reader.told == [("database-missing", "south")]
    gateway.lines["north"].cut()
    assert (await api.get("/v1/events/stream")).status_code == 503


# The parts, without a server ----------------------------------------------------------------------------------------


def asking(path: str, **databases: ASGIApp) -> tuple[Scope, Databases]:
    """A request of a client, and what sends it to each database."""
    of_path = {"path": path, "raw_path": path.encode(), "query_string": b""}
    scope: Scope = {"type": "http", "method": "GET", **of_path, "headers": [(b"apikey", b"own")], "state": {}}
    return scope, Databases(databases, scope, lambda: False, lambda _: next(iter(databases)))


async def answer(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def test_trailers_of_a_request_are_no_headers_of_those_to_its_databases() -> None:
    """The body of a request may end while its databases are asked, and a server adds its trailers to the headers."""
    seen = list[Headers]()

    async def north(scope: Scope, _: Receive, send: Send) -> None:
        seen.append(Head.of(scope).headers)
        await answer(send, 200, b"{}")

    scope, several = asking("/v1/events", north=north)
    Head.of(scope)
    scope["headers"].append((b"sec-fetch-site", b"same-origin"))
    await several.ask("north", [])
    assert seen == [((b"apikey", b"own"),)]


async def test_a_slower_database_is_not_cancelled_once_another_one_has_the_entry() -> None:
    """To cancel a query would end its session."""
    ended, finish = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def fast(_: Scope, __: Receive, send: Send) -> None:
        await answer(send, 200, b'{"id": "x"}')

    async def slow(_: Scope, __: Receive, send: Send) -> None:
        try:
            await finish.wait()
            await answer(send, 404, b"{}")
            ended.set_result("by itself")
        except asyncio.CancelledError:
            ended.set_result("cancelled")
            raise

    _, several = asking("/v1/events/x", slow=slow, fast=fast)
    found = await lists.read(several, [], "/v1/events/x")
    assert orjson.loads(found.body) == {"database": "fast", "id": "x"}
    finish.set()
    assert await ended == "by itself"


FIELDS = st.lists(st.text(alphabet='a,"\n\r{', max_size=6), min_size=1, max_size=4)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(table=st.lists(FIELDS, max_size=6), size=st.integers(1, 9))
def test_rows_of_csv_are_whole_whatever_the_pieces(table: list[list[str]], size: int) -> None:
    written = []
    for row in table:
        line = io.StringIO()
        csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(row)
        written.append(line.getvalue().encode())
    text, rest, found = b"".join(written), b"", list[bytes]()
    for begin in range(0, len(text), size):
        rows, rest = split_rows(rest + text[begin : begin + size], ExportFormat.CSV)
        found += rows
    assert b"".join(found) + rest == text
    assert found == written or (rest == b"" and not text)
