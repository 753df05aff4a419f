"""Idempotency-Key: a write that is sent again takes effect once, and its answer is replayed."""

import asyncio
from collections.abc import Iterable
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.db.database import Database, Transaction
from gateway.errors import RequestMalformed
from gateway.fencing.decision import Presented
from gateway.observe.events import Event, StepReached
from gateway.tables.dialect.request import HEADER, digest, fingerprint, parse_key
from gateway.tables.execute import idempotency as kept_answers
from gateway.tables.execute import transaction as slow
from gateway.tables.execute.idempotency import cleanup, delete_old
from gateway.tables.pipeline import Exposure
from tests.callers import ANYBODY, known
from tests.tables.asking import answered, change, client_of, row, rows
from tests.tables.conftest import RULES
from tests.waiting import waiting


def test_keys_are_read(subtests: pytest.Subtests) -> None:
    for header, key in (
        ("k", "k"), ('"k"', "k"), (' "k" ', "k"), ('"a b"', "a b"), (r'"a\"b\\c"', r'a"b\c'),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"), ("x" * 255, "x" * 255),
        (f'"{"x" * 255}"', "x" * 255),
    ):  # fmt: skip
        with subtests.test(header=header):
            assert parse_key({HEADER: header}) == key
            assert parse_key({b"prefer": "x"}) is None


def test_headers_that_are_no_keys(subtests: pytest.Subtests) -> None:
    for header in (
        "", " ", '""', '"', '"a', 'a"b', "a b", "a,b", '"a","b"', "a;b=c", '"a";b', r'"a\b"', '"\t"', '"é"', "é",
        "x" * 256,
    ):  # fmt: skip
        with subtests.test(header=header), pytest.raises(RequestMalformed):
            parse_key({HEADER: header})


HEADERS = {b"prefer": "return=minimal", b"content-type": "application/json"}
REQUEST: dict[str, Any] = {
    "method": "PATCH",
    "path": "/v1/tables/a",
    "schema": "public",
    "query_string": b"id=eq.1&columns=a,b",
    "headers": HEADERS,
    "body": b"{}",
}


def test_the_same_request(subtests: pytest.Subtests) -> None:
    others: tuple[dict[str, Any], ...] = (
        {"query_string": b"columns=a,b&id=eq.1"}, {"query_string": b"columns=b,a&id=eq.1"},
        {"query_string": b"id=eq.1&columns=b%2Ca"}, {"headers": {**HEADERS, b"range": "0-1", b"content-length": "2"}},
    )  # fmt: skip
    for other in others:
        with subtests.test(other=other):
            assert fingerprint(**{**REQUEST, **other}) == fingerprint(**REQUEST)


def test_another_request(subtests: pytest.Subtests) -> None:
    others: tuple[dict[str, Any], ...] = (
        {"method": "PUT"}, {"path": "/v1/tables/b"}, {"schema": "other"}, {"query_string": b"id=eq.2&columns=a,b"},
        {"query_string": b"id=eq.1&columns=a,c"}, {"query_string": b"id=eq.1&columns=a,b&select=b,a"}, {"headers": {}},
        *({"headers": {**HEADERS, name: "x"}} for name in (b"prefer", b"accept", b"if-match", b"if-none-match")),
        {"body": b"{} "},
    )  # fmt: skip
    for other in others:
        with subtests.test(other=other):
            assert fingerprint(**{**REQUEST, **other}) != fingerprint(**REQUEST)


def test_parts_are_kept_apart() -> None:
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
    assert digest([b"a", b""]) != digest([b"a"])
    assert len(digest([])) == 32


ROW = "/accounts?id=eq.1"
PENDING = """
    INSERT INTO fencing.intent (resource, bucket, key, write_id, epoch, value, attempt)
    VALUES ('order/7', 'reports', 'k', gen_random_uuid(), 0, 4, 1)
"""
SHIPMENT = {"order_id": 7, "state": "sent"}


async def post(client: httpx.AsyncClient, key: str = '"k1"', token: int | None = 5, **headers: str) -> httpx.Response:
    """Each time it is carried out there is one shipment more."""
    named = {"Idempotency-Key": key, "Prefer": "return=representation", **headers}
    if token is not None:
        named["Fencing-Token"] = str(token)
    return await client.post("/shipments", json=SHIPMENT, headers=named)


async def shipments(tables: Database) -> int:
    count: int = (await row(tables, "SELECT count(*) FROM shipments"))["count"]
    return count


def is_replay_of(again: httpx.Response, first: httpx.Response) -> None:
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert [pair for pair in again.headers.raw if pair[0] != b"idempotency-replayed"] == first.headers.raw


async def test_the_first_answer_is_replayed(client: httpx.AsyncClient, tables: Database) -> None:
    first = await post(client)
    assert first.status_code == 201
    is_replay_of(await post(client), first)
    is_replay_of(await post(client, key="k1"), first)
    assert await shipments(tables) == 4


async def test_other_keys_are_other_writes(client: httpx.AsyncClient, tables: Database) -> None:
    ids = {(await post(client, key)).json()[0]["id"] for key in ('"a"', '"b"', '"A"')}
    assert (len(ids), await shipments(tables)) == (3, 6)
    two = [("Idempotency-Key", '"a"'), ("Idempotency-Key", '"b"'), ("Fencing-Token", "5")]
    answered(await client.post("/shipments", json=SHIPMENT, headers=two), 400, "request-malformed")


async def test_every_write_may_have_a_key(client: httpx.AsyncClient, tables: Database) -> None:
    returned = {"Prefer": "return=representation"}
    writes: list[tuple[str, str, object, dict[str, str]]] = [
        ("PATCH", ROW, {"note": "x"}, {}),
        ("PATCH", ROW, {"note": "x"}, returned),
        ("PUT", "/settings?name=eq.size", {"name": "size", "value": "9"}, {"If-None-Match": "*"}),
        ("DELETE", ROW, None, returned),
        ("POST", "/accounts", {"id": 9}, {"Prefer": "return=headers-only"}),
        ("POST", "/accounts", {"id": 10}, {**returned, "Accept": "text/csv"}),
    ]
    for number, (method, target, content, headers) in enumerate(writes):
        sent = {"Idempotency-Key": f'"{number}"', "Fencing-Token": "5", **headers}
        first = await client.request(method, target, json=content, headers=sent)
        assert first.is_success, first.text
        versions = await rows(tables, "SELECT xmin, * FROM accounts")
        is_replay_of(await client.request(method, target, json=content, headers=sent), first)
        assert await rows(tables, "SELECT xmin, * FROM accounts") == versions


class TestTakeovers:
    async def test_the_next_holder_gets_the_answer_of_the_last(
        self, client: httpx.AsyncClient, tables: Database
    ) -> None:
        """It may rely on what it is told, as on the answer to a write of its own: the older holder is refused."""
        first = await post(client, token=5)
        is_replay_of(await post(client, token=7, **{"Fencing-Holder": "next"}), first)
        assert await shipments(tables) == 4
        fence = await row(tables, "SELECT value, holder, write_id FROM fencing.fence")
        assert tuple(fence) == (7, "next", None)
        answered(await client.post("/shipments", json=SHIPMENT, headers={"Fencing-Token": "6"}), 412, "token-stale")
        taken = await rows(tables, "SELECT kind, value, fence_value FROM fencing.record WHERE kind <> 'rejection'")
        assert taken == [("raised", 7, 5)], "and the takeover is on record"

    async def test_a_replay_settles_mutations_of_the_older_holder(
        self, client: httpx.AsyncClient, tables: Database, exposure: Exposure
    ) -> None:
        """It waits until they are settled."""
        settled: list[tuple[str, str, str]] = []

        async def settle(resource: str, presented: Presented, caller: str) -> None:
            settled.append((resource, str(presented.token), caller))
            await change(tables, "DELETE FROM fencing.intent")

        first = await post(client, token=5)
        await change(tables, PENDING)
        answered(await post(client, token=6), 503, "unavailable")
        async with client_of(tables, exposure, settle=settle) as settling:
            is_replay_of(await post(settling, token=6), first)
        assert settled == [("order/7", "6", "tester")]

    async def test_a_replay_for_an_overtaken_holder_waits_too(self, tables: Database, exposure: Exposure) -> None:
        """A newer holder came between its raise and its settling. Writes older than both are still under way."""

        async def overtaken(resource: str, presented: Presented, caller: str) -> None:
            await change(tables, "UPDATE fencing.fence SET value = 9")

        async with client_of(tables, exposure, settle=overtaken) as client:
            first = await post(client, token=5)
            await change(tables, PENDING)
            answered(await post(client, token=6), 503, "unavailable")
            answered(await post(client, token=5), 503, "unavailable")
            await change(tables, "DELETE FROM fencing.intent")
            is_replay_of(await post(client, token=6), first)

    async def test_an_implausible_token_raises_no_fence(self, client: httpx.AsyncClient, tables: Database) -> None:
        first = await post(client, token=5)
        is_replay_of(await post(client, token=2**63 - 1), first)
        assert tuple(await row(tables, "SELECT value FROM fencing.fence")) == (5,)

    async def test_a_replay_raises_only_fences_a_token_is_shown_for(
        self, client: httpx.AsyncClient, tables: Database
    ) -> None:
        sent = {"Idempotency-Key": '"k"', "Prefer": "return=minimal"}
        both = [{"order_id": 7}, {"order_id": 8}]
        pairs = {**sent, "Fencing-Token": "order/7=5,order/8=3"}
        first = await client.post("/shipments", json=both, headers=pairs)
        assert first.is_success, first.text
        again = {**sent, "Fencing-Token": "order/8=4,order/9=9"}
        is_replay_of(await client.post("/shipments", json=both, headers=again), first)
        fences = await rows(tables, "SELECT resource, value FROM fencing.fence ORDER BY 1")
        assert fences == [("order/7", 5), ("order/8", 4)]

    async def test_the_overtaken_holder_gets_the_answer_too(self, client: httpx.AsyncClient) -> None:
        """It has written once, rightly, and is told so; a write of its own now is refused as ever."""
        first = await post(client, token=5)
        await client.post("/shipments", json=SHIPMENT, headers={"Fencing-Token": "6"})
        is_replay_of(await post(client, token=5), first)
        answered(await post(client, key="other", token=5), 412, "token-stale")
        assert (await post(client, key="other", token=6)).status_code == 201, "a stale write keeps no answer"


class TestMismatches:
    async def test_one_key_for_two_requests(self, client: httpx.AsyncClient, tables: Database) -> None:
        first = await post(client)
        others: list[tuple[str, str, object, dict[str, str]]] = [
            ("POST", "/shipments", {"order_id": 7, "state": "lost"}, {}),
            ("POST", "/shipments?select=id", SHIPMENT, {}),
            ("POST", "/shipments", SHIPMENT, {"Prefer": "return=minimal"}),
            ("PATCH", "/shipments?order_id=eq.7", {"state": "sent"}, {}),
            ("DELETE", "/shipments?order_id=eq.7", None, {}),
            ("POST", "/accounts", {"id": 9}, {}),
        ]
        for method, target, content, headers in others:
            named = {"Idempotency-Key": '"k1"', "Fencing-Token": "5", "Prefer": "return=representation", **headers}
            answered(await client.request(method, target, json=content, headers=named), 422, "idempotency-mismatch")
        assert await shipments(tables) == 4
        is_replay_of(await post(client), first)

    async def test_callers_have_their_own_keys(self, database: Database, tables: Database, exposure: Exposure) -> None:
        callers = [known("ann"), known("bob"), ANYBODY]
        for caller in callers:
            async with client_of(database, exposure, caller=caller) as client:
                assert "idempotency-replayed" not in (await post(client)).headers
        assert await shipments(tables) == 3 + len(callers)


class TestFailures:
    async def test_a_write_that_fails_keeps_nothing(self, client: httpx.AsyncClient, tables: Database) -> None:
        sent = {"Idempotency-Key": '"k"', "Fencing-Token": "5"}
        answered(await client.post("/accounts", json={"id": 1}, headers=sent), 409, "23505")
        assert await rows(tables, "SELECT * FROM fencing.idempotency") == []
        await client.delete(ROW, headers={"Fencing-Token": "5"})
        assert (await client.post("/accounts", json={"id": 1}, headers=sent)).status_code == 201

    async def test_a_key_does_not_stand_in_for_a_token(self, client: httpx.AsyncClient) -> None:
        answered(await post(client, token=None), 428, "token-required")
        await post(client)
        answered(await post(client, token=None), 428, "token-required")

    async def test_an_answer_too_large_to_keep_undoes_the_write(self, database: Database, tables: Database) -> None:
        await change(tables, "CREATE TABLE large (id bigint PRIMARY KEY, body text)")
        await change(tables, "INSERT INTO large VALUES (1, repeat('x', 2 * 1024 * 1024))")
        sent = {"Idempotency-Key": '"k"', "Fencing-Token": "5"}
        whole = {**sent, "Prefer": "return=representation"}
        async with client_of(database, Exposure(rules=RULES)) as client:
            answered(await client.delete("/large?id=eq.1", headers=whole), 422, "answer-too-large")
            assert await rows(tables, "SELECT id FROM large") == [(1,)]
            assert await rows(tables, "SELECT * FROM fencing.fence") == [], "the claim is undone too"
            assert (await client.delete("/large?id=eq.1", headers=sent)).status_code == 204

    async def test_a_lost_connection_is_cured_by_the_key(self, client: httpx.AsyncClient, tables: Database) -> None:
        """The session ends while it commits, so its outcome is unknown. In tests/crash the transaction has committed.

        The function is in the gateway's own schema, so the gateway leaves deferred work to the end of the transaction.
        """
        ending = """
            CREATE FUNCTION fencing.end_it() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
            AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
            CREATE CONSTRAINT TRIGGER ending AFTER INSERT ON shipments DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION fencing.end_it();
        """
        await change(tables, ending)
        answer = await post(client)
        answered(answer, 503, "outcome-unknown")
        assert "same Idempotency-Key" in answer.json()["hint"]
        await change(tables, "DROP TRIGGER ending ON shipments")
        again = await post(client)
        assert (again.status_code, "idempotency-replayed" in again.headers) == (201, False)
        assert await shipments(tables) == 4


class TestRaces:
    async def test_duplicates_at_one_time_wait_for_the_first(self, client: httpx.AsyncClient, tables: Database) -> None:
        answers = await asyncio.gather(*(post(client) for _ in range(10)))
        assert {answer.content for answer in answers} == {answers[0].content}
        assert {answer.status_code for answer in answers} == {201}
        assert sorted("idempotency-replayed" in answer.headers for answer in answers) == [False] + [True] * 9
        assert await shipments(tables) == 4

    async def test_if_the_first_fails_the_second_writes(
        self, client: httpx.AsyncClient, tables: Database, stranger: asyncpg.Connection
    ) -> None:
        """The key is taken by a transaction that is then undone."""
        beside = stranger.transaction()
        await beside.start()
        await stranger.execute(
            "INSERT INTO fencing.idempotency (caller, key, fingerprint) VALUES ('tester', 'k1', '\\x00')"
        )
        ours = asyncio.create_task(post(client))
        await waiting(tables)
        await beside.rollback()
        assert (await ours).status_code == 201
        assert await shipments(tables) == 4

    async def test_a_key_may_be_deleted_during_its_request(self, client: httpx.AsyncClient, tables: Database) -> None:
        """Whenever it goes, a request is carried out or answered again. If it loses each race, nothing is written."""

        async def forget_all() -> None:
            for _ in range(40):
                await change(tables, "DELETE FROM fencing.idempotency")

        answers, _ = await asyncio.gather(asyncio.gather(*(post(client) for _ in range(40))), forget_all())
        done = [answer for answer in answers if answer.status_code == 201]
        assert done
        assert {answer.status_code for answer in answers} <= {201, 503}
        carried_out = sum("idempotency-replayed" not in answer.headers for answer in done)
        assert await shipments(tables) == 3 + carried_out

    async def test_a_lost_race_is_named(self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each time the request finds its key taken, and the answer under it gone."""
        assert (await post(client)).status_code == 201

        real = kept_answers.read_answer

        async def gone(executor: Database | Transaction, key: Any) -> Any:
            return await real(executor, key) if isinstance(executor, Transaction) else None

        monkeypatch.setattr(kept_answers, "read_answer", gone)
        lost = await post(client)
        answered(lost, 503, "unavailable")
        assert "is removed again and again" in lost.json()["message"]


class TestObserveMode:
    async def test_keys_work_without_tokens(self, client: httpx.AsyncClient, tables: Database) -> None:
        sent = {"Idempotency-Key": '"k"'}
        first = await client.patch("/watched?id=eq.1", json={"v": 9}, headers=sent)
        is_replay_of(await client.patch("/watched?id=eq.1", json={"v": 9}, headers=sent), first)
        assert await rows(tables, "SELECT reason FROM fencing.rejection") == [("token-required",)], "noted once"

    async def test_on_a_strict_resource_a_retry_is_no_second_write(self, client: httpx.AsyncClient) -> None:
        """A replay uses no token up either."""

        async def written(token: int, key: str) -> httpx.Response:
            headers = {"Idempotency-Key": key, "Fencing-Token": str(token)}
            return await client.patch("/strict?id=eq.1", json={"v": 9}, headers=headers)

        first = await written(5, "k")
        assert first.status_code == 204
        is_replay_of(await written(5, "k"), first)
        answered(await written(5, "other"), 412, "token-used")
        is_replay_of(await written(6, "k"), first)
        assert (await written(6, "another")).status_code == 204


async def test_function_calls_may_have_keys(database: Database, tables: Database) -> None:
    create = """
        CREATE FUNCTION public.ship(o bigint) RETURNS bigint LANGUAGE sql
        AS 'INSERT INTO shipments (order_id) VALUES (o) RETURNING id'
    """
    await change(tables, create)
    sent = {"Idempotency-Key": '"k"', "Fencing-Token": "5", "Fencing-Resource": "order/7"}
    async with client_of(database, Exposure(functions=frozenset(("public.ship",)))) as client:
        first = await client.post("/rpc/ship", json={"o": 7}, headers=sent)
        assert first.is_success, first.text
        is_replay_of(await client.post("/rpc/ship", json={"o": 7}, headers={**sent, "Fencing-Token": "6"}), first)
        answered(await client.post("/rpc/ship", json={"o": 8}, headers=sent), 422, "idempotency-mismatch")
        conditional = await client.post("/rpc/ship", json={"o": 8}, headers={**sent, "If-Match": "*"})
        answered(conditional, 400, "condition-unsupported")
    assert await shipments(tables) == 4


class TestForgetting:
    async def test_the_cleanup_deletes_old_answers(self, client: httpx.AsyncClient, tables: Database) -> None:
        for number in range(5):
            await post(client, f"k{number}")
        age = "UPDATE fencing.idempotency SET at = clock_timestamp() - interval '2 hours' WHERE key <> 'k4'"
        await change(tables, age)
        assert await delete_old(tables, 3 * 3600) == 0
        assert await delete_old(tables, 3600) == 4
        assert await rows(tables, "SELECT key FROM fencing.idempotency") == [("k4",)]
        assert "idempotency-replayed" not in (await post(client, "k1")).headers

    async def test_the_cleanup_runs_in_the_background(
        self, client: httpx.AsyncClient, tables: Database, events: list[Event]
    ) -> None:
        await post(client)
        async with cleanup(tables, 0.001, events.append, interval=0.01):
            while await rows(tables, "SELECT FROM fencing.idempotency"):
                await asyncio.sleep(0.01)

    async def test_a_failed_cleanup_is_an_event(self, tables: Database, events: list[Event]) -> None:
        await change(tables, "DROP TABLE fencing.idempotency")
        async with cleanup(tables, 1, events.append, interval=0.01):
            while not any("idempotency" in str(event) for event in events):
                await asyncio.sleep(0.01)


async def test_writes_with_a_key_take_the_transaction(client: httpx.AsyncClient, events: list[Event]) -> None:
    for _ in range(2):
        await client.patch(ROW, json={"note": "x"}, headers={"Fencing-Token": "5"})
    events.clear()
    sent = {"Fencing-Token": "5", "Idempotency-Key": "k"}
    first = await client.patch(ROW, json={"note": "y"}, headers=sent)
    assert steps(events) == [slow.CLAIM_AFTER.name, slow.WRITE_AFTER.name, slow.COMMIT_AFTER.name]
    events.clear()
    is_replay_of(await client.patch(ROW, json={"note": "y"}, headers=sent), first)
    assert steps(events) == []


def steps(events: Iterable[Event]) -> list[str]:
    return [event.name for event in events if isinstance(event, StepReached)]
