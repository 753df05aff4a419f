"""The record over HTTP: who is shown what, pages, one entry with all that belongs to it, exports, hostile names."""

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import psutil
import pytest

from gateway.api.services import MOST_EXPORTS
from gateway.db import export, record
from gateway.db.export import ExportFormat, open_export
from gateway.fencing.decision import Fence
from gateway.fencing.record import Filters, Kind, RecordedEvent
from gateway.fencing.token import Token
from tests.record.conftest import ANN, AUDITOR, BOB, CALLERS, HOSTILE, Watched, refused, unread, watched
from tests.record.entries import everything, flaws, on_record, put, sealed
from tests.running import OPEN
from tests.waiting import PATIENCE

LISTS = ("rejections", "events")


async def all_of(stage: Watched, what: str, key: str = "auditor-key", **parameters: Any) -> list[dict[str, Any]]:
    """All pages of a list, which must fit together."""
    found: list[dict[str, Any]] = []
    while True:
        page = (await stage.get(f"/v1/{what}", key, **parameters)).json()
        found += page[what]
        bound = "after" if parameters.get("order") == "oldest" else "before"
        if page[bound] is None:
            return found
        parameters[bound] = page[bound]


MEMORY = 4 * 1024 * 1024
LARGE = ("/v1/rejections?limit=1000", "/v1/events?limit=1000")
SLOW_BODY = f"PUT /v1/leases HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {AUDITOR}\r\nContent-Length: 1000000\r\n\r\n"


async def test_a_page_of_the_record_takes_of_its_readers_share_of_memory(dsn: str) -> None:
    """The body of another request has the share meanwhile. Other readers have theirs."""
    callers = [*CALLERS, {"name": "other", "api_key": "other-key", "groups": ["auditors"]}]
    async with watched(dsn, callers=callers, server={"memory": MEMORY}) as stage:
        await put(stage.database, 1000, target="/v1/tables/runs?" + "x" * 2000)
        address = urlsplit(stage.origin)
        _, body = await asyncio.open_connection(address.hostname, address.port)
        body.write(SLOW_BODY.encode() + b" " * 200_000)
        for path in LARGE:
            async with asyncio.timeout(PATIENCE):
                while (answer := await stage.get(path)).status_code == 200:
                    await asyncio.sleep(0.05)
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.headers["retry-after"] == "1"
            assert "that auditor may use at one time are in use" in answer.json()["detail"]
            assert (await stage.get(path, "other-key")).status_code == 200
            assert (await stage.get(path.replace("1000", "10"))).status_code == 200, "a small one needs no share"
        async with stage.client(None) as browser:
            await browser.post("/ui/login", data={"api_key": AUDITOR}, headers={"Origin": stage.origin})
            page = await browser.get("/ui/rejections", headers={"Accept": "text/html"})
            assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
        assert (await stage.get("/v1/events.ndjson")).status_code == 200, "an export comes in pieces"
        assert (await stage.get("/v1/openapi.json")).status_code == 200, "all have the same"
        body.close()
        async with asyncio.timeout(PATIENCE):
            while (await stage.get(LARGE[0])).status_code != 200:
                await asyncio.sleep(0.05)


async def test_entries_of_a_kind_that_only_newer_gateways_know_are_shown(stage: Watched) -> None:
    """During an upgrade, gateways of two versions write one record."""
    newer = RecordedEvent(cast(Kind, "dream-dreamt"), resource="job/1", caller="newer")
    identifier, _ = await record.record_event(stage.database, newer)
    (entry,) = await all_of(stage, "events")
    assert (entry["id"], entry["kind"]) == (str(identifier), "dream-dreamt")
    page = await stage.get(f"/v1/events/{identifier}")
    assert page.json()["kind"] == "dream-dreamt"
    exported = (await stage.get("/v1/events.ndjson")).text
    assert json.loads(exported.splitlines()[0])["kind"] == "dream-dreamt"


class TestLists:
    async def test_pages_neither_repeat_nor_miss_while_more_comes_in(self, stage: Watched) -> None:
        await sealed(stage.database, 60)
        there = [str(entry.id) for entry in reversed(await everything(stage.database))]
        found: list[str] = []
        before: dict[str, str] = {}
        while True:
            page = (await stage.get("/v1/events", limit=7, **before)).json()
            found += [one["id"] for one in page["events"]]
            if page["before"] is None:
                break
            before = {"before": page["before"]}
            await sealed(stage.database, 3)
        assert found == there

    async def test_totals_stand_on_the_first_page(self, stage: Watched) -> None:
        await sealed(stage.database, 70)
        first = (await stage.get("/v1/rejections", limit=5)).json()
        assert (first["total"], first["total_exact"]) == (30, True)
        second = (await stage.get("/v1/rejections", limit=5, before=first["before"])).json()
        assert (second["total"], second["total_exact"]) == (None, None)
        few = (await stage.get("/v1/rejections", holder="nobody")).json()
        assert (few["total"], few["total_exact"], few["rejections"]) == (0, True, [])

    async def test_every_filter_narrows(self, stage: Watched) -> None:
        await sealed(stage.database, 70)
        one = next(
            entry
            for entry in reversed(await everything(stage.database))
            if entry.kind == "rejection" and entry.resource
        )
        assert one.resource is not None
        asked: dict[str, Any] = {
            "resource": one.resource,
            "prefix": one.resource[:2],
            "holder": one.holder,
            "caller": one.caller,
            "reason": one.reason,
            "rule": one.rule,
            "token": str(one.token),
            "enforced": str(one.enforced).lower(),
            "since": one.at.isoformat(),
            "until": (one.at + timedelta(days=365)).isoformat(),
            **({"plane": one.plane} if one.plane else {}),
        }
        (found,) = await all_of(stage, "rejections", **asked)
        assert found["id"] == str(one.id)
        for name, other in {
            **dict.fromkeys(asked, "x"),
            "token": "999",
            "reason": "isolation",
            "enforced": "false" if one.enforced else "true",
        }.items():
            if name not in ("since", "until"):
                assert await all_of(stage, "rejections", **{**asked, name: other}) == []
        assert await all_of(stage, "rejections", **{**asked, "since": asked["until"]}) == []
        assert await all_of(stage, "rejections", **{**asked, "until": asked["since"]}) == []

    async def test_what_cannot_be_asked(self, stage: Watched) -> None:
        queries = [
            *("limit=0", "limit=1001", "before=x", "after=-1", "before=01", f"before={10**18}", "order=up", "token=x"),
            *("since=2026-01-01", "since=0001-01-01T00:00:00%2B14:00", "until=9999-12-31T23:59:59-14:00", "x=1"),
            *("since=0.5", "until=1767225600"),
            *("prefix=%00", "rule=%00", "enforced=maybe", f"prefix={'x' * 1025}", "kind=nothing"),
        ]
        for path in (f"/v1/{what}?{query}" for what in LISTS for query in queries):
            answer = await stage.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json"), path
        for path in (
            f"/v1/{what}{form}?{query}"
            for what in LISTS
            for form in (".csv", ".ndjson", "/stream")
            for query in queries[8:]
        ):
            assert (await stage.get(path)).status_code == 400, path


class TestOne:
    async def test_a_rejection_with_what_belongs_to_it(self, stage: Watched) -> None:
        await stage.put(kind=Kind.RAISED, token=Token(0, 33), caller="ann")
        takeover = await stage.put(kind=Kind.RAISED, token=Token(0, 34), holder="bob", caller="bob")
        await refused(stage.database, "zombie")
        await refused(stage.database, "other", resource="job/2")
        await refused(stage.database, "not-hers", caller="bob")
        _, other, one = await all_of(stage, "rejections")
        page = (await stage.get(f"/v1/rejections/{one['id']}")).json()
        assert page["takeover"]["id"] == takeover
        assert page["others"] == [other]
        assert {**page["rejection"], "lag_seconds": None} == {**one, "lag_seconds": None}
        # Overtaken when the takeover happened, not when the fence that refused it was raised, five seconds before.
        since = datetime.fromisoformat(one["at"]) - datetime.fromisoformat(page["takeover"]["at"])
        assert page["rejection"]["lag_seconds"] == pytest.approx(since.total_seconds(), abs=0.001)
        assert page["rejection"]["lag_seconds"] != one["lag_seconds"]
        assert round(one["lag_seconds"]) == 5

    async def test_what_is_not_there(self, stage: Watched) -> None:
        event = await stage.put()
        for path in (f"/v1/events/{uuid4()}", f"/v1/rejections/{uuid4()}", f"/v1/rejections/{event}"):
            assert (await stage.get(path)).status_code == 404
        assert (await stage.get("/v1/events/x")).status_code == 400
        for what in LISTS:
            answer = await stage.get(f"/v1/{what}", before=str(uuid4()))
            assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


class TestWhoIsShownWhat:
    @pytest.fixture
    async def stage(self, dsn: str) -> AsyncIterator[Watched]:
        async with watched(dsn) as stage:
            await refused(stage.database, "zombie", caller="ann")
            await refused(stage.database, "zombie", caller="bob")
            fence = Fence("job/1", Token(0, 1), None, "ann", datetime(2026, 1, 1, tzinfo=UTC))
            await stage.put(kind=Kind.RAISED, caller="bob", token=Token(0, 40), fence=fence)
            await record.seal(stage.database)
            yield stage

    @pytest.mark.parametrize(("key", "name"), [(ANN, "ann"), (BOB, "bob")])
    async def test_others_are_shown_their_own(self, stage: Watched, key: str, name: str) -> None:
        everybody = await all_of(stage, "events")
        own = [one for one in everybody if one["caller"] == name]
        assert len(own) < len(everybody) == 3
        assert await all_of(stage, "events", key) == own
        assert {one["caller"] for one in await all_of(stage, "rejections", key)} == {name}
        assert await all_of(stage, "events", key, caller="ann" if name == "bob" else "bob") == []
        assert len((await stage.get("/v1/events.ndjson", key)).text.splitlines()) == len(own)
        assert len((await stage.get("/v1/events.csv", key)).text.splitlines()) == len(own) + 1
        for one in everybody:
            shown = one["caller"] == name
            assert (await stage.get(f"/v1/events/{one['id']}", key)).status_code == (200 if shown else 404)
            assert (await stage.get("/v1/events", key, before=one["id"])).status_code == (200 if shown else 404)

    async def test_a_takeover_of_somebody_elses_is_not_shown(self, stage: Watched) -> None:
        (own,) = await all_of(stage, "rejections", ANN)
        await stage.put(kind=Kind.RAISED, caller="bob", token=Token(0, 50))
        page = (await stage.get(f"/v1/rejections/{own['id']}", ANN)).json()
        assert page["takeover"] is None

    async def test_administrators_and_demos_see_everything(self, dsn: str, stage: Watched) -> None:
        callers = [{"name": "root", "api_key": "root-key", "groups": ["admins"]}]
        async with watched(dsn, callers=callers, grants=OPEN) as open_to_all:
            for key in ("root-key", None):
                assert len(await all_of(open_to_all, "events", key)) == 3  # type: ignore[arg-type]


async def test_the_answer_of_a_gateway_without_database(dsn: str) -> None:
    postgres, limits = {"dsn": "postgresql://nobody@127.0.0.1:9/none"}, {"connect_timeout": 0.5}
    async with watched(dsn, postgres=postgres, limits=limits) as stage:
        for path in ("events", "events.csv", "rejections/stream"):
            answer = await stage.get(f"/v1/{path}")
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


class TestNdjson:
    async def test_it_is_the_record_and_proves_it(self, stage: Watched) -> None:
        lines = await on_record(stage.database, 300)
        answer = await stage.get("/v1/events.ndjson")
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["content-disposition"] == 'attachment; filename="events.ndjson"'
        assert answer.text == "".join(f"{line}\n" for line in lines)
        assert flaws(answer.text.splitlines()) == []

    async def test_hostile_names_neither_break_a_line_nor_the_chain(self, stage: Watched) -> None:
        for name in HOSTILE:
            await refused(stage.database, name)
        text = (await stage.get("/v1/events.ndjson")).content.decode()
        lines = text.removesuffix("\n").split("\n")
        assert [json.loads(line)["holder"] for line in lines] == list(HOSTILE)
        assert [json.loads(line)["details"]["name"] for line in lines] == list(HOSTILE)
        assert flaws(lines) == []
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)


class TestCsv:
    async def test_it_is_the_record_row_by_row(self, stage: Watched) -> None:
        await sealed(stage.database, 100)
        answer = await stage.get("/v1/events.csv")
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        lines = (await stage.get("/v1/events.ndjson")).text.splitlines()
        for row, line in zip(rows(answer.text), lines, strict=True):
            entry = {name: _as_csv(value) for name, value in json.loads(line).items()}
            assert row == entry
            assert [*row] == [*entry]

    async def test_nothing_in_it_is_a_formula(self, stage: Watched) -> None:
        assert (await stage.get("/v1/rejections.csv")).text == export.HEADER.decode(), "it is empty"
        for name in HOSTILE:
            await refused(stage.database, name)
        found = rows((await stage.get("/v1/rejections.csv")).content.decode())
        assert len(found) == len(HOSTILE)
        for row, name in zip(found, HOSTILE, strict=True):
            harmless = f"'{name}" if name[0] in "=+-@\t\r\uff1d" else name
            for field in ("rule", "holder", "target", "client", "request_id", "fence_holder", "fence_caller"):
                assert row[field] == harmless
            assert all(not value or value[0] not in "=+-@\t\r\uff1d" for value in row.values())


class TestWhole:
    async def test_it_ends_where_the_record_ended(self, stage: Watched) -> None:
        """Entries that arrive during the export are not in it. Otherwise it would never end."""
        await sealed(stage.database, 50)
        written: list[bytes] = []

        async def write(piece: bytes) -> None:
            written.append(piece)
            await sealed(stage.database, 10)

        async with open_export(stage.database, Filters()) as one:
            await one.write(ExportFormat.NDJSON, write)
        assert len(b"".join(written).splitlines()) == 50

    async def test_one_that_breaks_off_is_seen_to(self, stage: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        await sealed(stage.database, 50)
        real = export.Export.write

        async def broken(self: export.Export, form: ExportFormat, write: export.Write) -> None:
            await real(self, form, write)
            raise OSError("the database went away")

        monkeypatch.setattr(export.Export, "write", broken)
        with pytest.raises(httpx.RemoteProtocolError):
            await stage.get("/v1/events.ndjson")


BIG = 40_000


@pytest.mark.thorough
class TestClientsThatDoNotRead:
    async def test_they_hold_no_memory_and_leave_their_place(self, stage: Watched) -> None:
        await sealed(stage.database, BIG)
        await stage.get("/v1/events.ndjson", kind="epoch")
        memory = psutil.Process().memory_info().rss
        held = [await unread(stage, "/v1/events.ndjson") for _ in range(MOST_EXPORTS)]
        answer = await stage.get("/v1/events.csv")
        assert (answer.status_code, answer.json()["code"]) == (503, "too-many-readers")
        assert "retry-after" in answer.headers
        # If the gateway had buffered the answers, each would have taken some 25 MB.
        assert psutil.Process().memory_info().rss - memory < MOST_EXPORTS * 5_000_000
        for one in held:
            one.close()
        while (await stage.get("/v1/events.ndjson", kind="epoch")).status_code != 200:
            await asyncio.sleep(0.02)
        while await _sessions(stage):
            await asyncio.sleep(0.02)


async def _sessions(stage: Watched) -> int:
    """How many sessions are busy with an export."""
    row = await stage.database.fetchrow(
        "SELECT count(*) AS busy FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY%'"
    )
    assert row is not None
    return int(row["busy"])


def _as_csv(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case dict():
            return json.dumps(value)
    return str(value)
