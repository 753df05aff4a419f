"""POST /v1/transaction: its documents, to the letter, and several writes under their tokens, all of them or none."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.db.database import Database
from gateway.errors import RequestMalformed, ResourceMalformed, Unavailable
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.token import Token
from gateway.tables.dialect import transaction_document
from gateway.tables.dialect.response import Response
from gateway.tables.dialect.transaction_document import Entry, of_write
from tests.running import API_KEY, config, running
from tests.tables.asking import change, row, rows
from tests.waiting import PATIENCE, waiting

NOTHING = FencingHeaders()
CHANGE: dict[str, Any] = {"method": "PATCH", "table": "accounts", "query": "id=eq.1", "body": {"note": "x"}}


def read(*writes: object, shown: FencingHeaders = NOTHING) -> tuple[Entry, ...]:
    return transaction_document.parse(json.dumps({"writes": writes}).encode(), shown)


def test_a_write() -> None:
    (one,) = read({**CHANGE, "schema": "s", "prefer": "return=minimal", "if_match": '"a"', "token": "5"})
    assert (one.method, one.table, one.schema, one.query) == ("PATCH", "accounts", "s", b"id=eq.1")
    (other,) = read({**CHANGE, "query": 'name=eq.Zoë x&b="c%20d"'})
    assert other.query == b'name=eq.Zo%C3%AB%20x&b="c%20d"', "a query may hold any letters"
    assert (one.body, one.shown.token) == (b'{"note": "x"}', Token(0, 5))
    assert one.headers == {b"prefer": "return=minimal", b"if-match": '"a"'}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(
    bodies=st.lists(json_values, min_size=1, max_size=4),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
    last=st.booleans(),
)
def test_bodies_are_taken_as_they_stand(bodies: list[Any], indent: int | None, *, ascii_only: bool, last: bool) -> None:
    """Bodies stay unchanged, whatever surrounds them and however they are written."""
    rest = {"method": "POST", "table": 't"]}{[,:'}
    writes = [{**rest, "body": body} if last else {"body": body, **rest} for body in bodies]
    document = json.dumps({"writes": writes}, indent=indent, ensure_ascii=ascii_only)
    for entry, body in zip(transaction_document.parse(document.encode(), NOTHING), bodies, strict=True):
        text = entry.body.decode()
        assert text in document
        assert json.loads(text) == body


class TestLocks:
    DEFAULT = FencingHeaders(Token(0, 7), None, "ann")
    PAIRS = FencingHeaders(holder="ann", pairs=(("a/1", Token(0, 1)),))

    def test_what_a_write_does_not_say_the_headers_do(self, subtests: pytest.Subtests) -> None:
        for own, shown in (
            ({}, self.DEFAULT), ({"holder": "bob"}, FencingHeaders(Token(0, 7), None, "bob")),
            ({"token": "8"}, FencingHeaders(Token(0, 8), None, "ann")),
            ({"token": "8", "resource": "x/1"}, FencingHeaders(Token(0, 8), "x/1", "ann")),
            ({"resource": "x/1"}, FencingHeaders(Token(0, 7), "x/1", "ann")),
            ({"token": "x/1=8"}, FencingHeaders(holder="ann", pairs=(("x/1", Token(0, 8)),))),
        ):  # fmt: skip
            with subtests.test(own=own):
                assert read({**CHANGE, **own}, shown=self.DEFAULT)[0].shown == shown

    def test_pairs_in_the_headers(self) -> None:
        assert read(CHANGE, shown=self.PAIRS)[0].shown == self.PAIRS
        assert read({**CHANGE, "token": "3"}, shown=self.PAIRS)[0].shown == FencingHeaders(Token(0, 3), None, "ann")
        with pytest.raises(ResourceMalformed):
            read({**CHANGE, "resource": "x/1"}, shown=self.PAIRS)

    def test_a_resource_in_the_headers_is_that_of_their_token(self) -> None:
        """Not of a write that has brought a token of its own."""
        default = FencingHeaders(Token(0, 7), "job/1")
        assert read(CHANGE, shown=default)[0].shown == default
        assert read({**CHANGE, "token": "3"}, shown=default)[0].shown == FencingHeaders(Token(0, 3))


def test_a_fingerprint_is_of_everything_but_the_locks() -> None:
    known = transaction_document.fingerprint(read({**CHANGE, "token": "5", "holder": "ann"}))
    again = read({**CHANGE, "token": "6", "resource": "public.accounts/1"}, shown=FencingHeaders(Token(0, 9)))
    assert transaction_document.fingerprint(again) == known
    changes: list[dict[str, Any]] = [
        {"method": "PUT"}, {"table": "others"}, {"schema": "s"}, {"query": "id=eq.2"}, {"body": {"note": "y"}},
        {"prefer": "x"}, {"if_match": '"x"'}, {"if_none_match": '"x"'},
    ]  # fmt: skip
    others = [read({**CHANGE, **other}) for other in changes]
    assert len({known, *map(transaction_document.fingerprint, (*others, read(CHANGE, CHANGE)))}) == len(others) + 2


def test_errors_say_which_write_they_are_about_once() -> None:
    with pytest.raises(Unavailable) as caught, of_write(1), of_write(2):
        raise Unavailable("x")
    assert caught.value.facts == {"write": 2}


def test_answers_are_put_together_as_they_are() -> None:
    first = Response(200, [(b"etag", b'"a"'), (b"content-length", b"12"), (b"content-type", b"x")], b'[{"n":1.00}]')
    answer = transaction_document.combined([first, Response(204, [])])
    assert answer.status == 200
    assert answer.body == (
        b'{"results":[{"status":200,"headers":{"etag":"\\"a\\""},"body":[{"n":1.00}]},'
        b'{"status":204,"headers":{},"body":null}]}'
    )
    assert dict(answer.headers)[b"content-length"] == str(len(answer.body)).encode()


GOOD = json.dumps(CHANGE)
BAD_DOCUMENTS = [
    "", "x", "null", "[]", "1", "{}", '{"writes": null}', '{"writes": {}}', '{"writes": []}', '{"writes": "x"}',
    '{"writes": [null]}', '{"writes": [1]}', '{"writes": [[]]}', '{"writes": [{}]}',
    f'{{"writes": [{GOOD}], "more": 1}}', f'{{"writes": [{GOOD}], "writes": [{GOOD}]}}',
    f'{{"writes": [{GOOD}]', f'{{"writes": [{GOOD},]}}', f'{{"writes": [{",".join([GOOD] * 101)}]}}',
    '{"writes": [{"method": "PATCH"}]}', '{"writes": [{"table": "accounts"}]}',
    '{"writes": [{"method": "GET", "table": "accounts"}]}', '{"writes": [{"method": "patch", "table": "accounts"}]}',
    '{"writes": [{"method": "PATCH", "table": "rpc/f", "body": {}}]}',
    '{"writes": [{"method": "PATCH", "table": "", "query": "id=eq.1", "body": {}}]}',
    '{"writes": [{"method": "DELETE", "method": "DELETE", "table": "accounts", "query": "id=eq.1"}]}',
    '{"writes": [{"method": "POST", "table": "accounts", "body": {"id": 9}, "body": {"id": 10}}]}',
    '{"writes": [{"method": "POST", "table": "accounts", "body": ' + "[" * 5000 + "]" * 5000 + "}]}",
    '{"writes": [{"method": "POST", "table": "accounts", "body": {"note": "\\ud800"}}]}',
    '{"writes": [{"method": "POST", "table": "accounts", "body": {"id": NaN}}]}',
    '\ufeff{"writes": []}',
]  # fmt: skip


@pytest.mark.parametrize("document", BAD_DOCUMENTS)
def test_a_malformed_document_is_refused(document: str) -> None:
    with pytest.raises(RequestMalformed):
        transaction_document.parse(document.encode(), NOTHING)


def test_a_malformed_field_is_refused() -> None:
    """Each field with each wrong type, one that does not exist, and each text far too long. Null is none."""
    texts = ("method", "table", "schema", "query", "token", "resource", "holder", "prefer", "if_match", "if_none_match")
    wrong: tuple[Any, ...] = (1, 1.5, True, [], {}, ["x"], "x" * 100_000)
    for fields in ({"nothing": 1}, *({name: value} for name in texts for value in wrong)):
        with pytest.raises(RequestMalformed) as caught:
            read(CHANGE, {**CHANGE, **fields})
        assert caught.value.facts == {"write": 1}
    assert read({**CHANGE, **dict.fromkeys(texts[2:])}) == read({**CHANGE, "query": ""})


PATH = "/v1/transaction"
RULES = [
    {"name": "public.shipments", "resource": "order/{order_id}"},
    {"name": "public.settings", "resource": "settings"},
    {"name": "public.watched", "mode": "observe"},
    {"name": "public.strict", "equal": "strict"},
]
MORE = """
CREATE TABLE zoned (id bigint PRIMARY KEY, at timestamptz);
INSERT INTO zoned VALUES (1, NULL);
CREATE TABLE moments (at timestamptz PRIMARY KEY, v int);
INSERT INTO moments VALUES ('2024-01-02 03:00:00+00', 0);
CREATE TABLE careless (id bigint PRIMARY KEY);
CREATE FUNCTION care() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN SET LOCAL TimeZone = 'Asia/Tokyo'; RETURN NEW; END$$;
CREATE TRIGGER care AFTER INSERT ON careless FOR EACH ROW EXECUTE FUNCTION care();
"""


@pytest.fixture
async def api(tables: Database, dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    """The gateway over real HTTP, with a caller of its own."""
    await change(tables, MORE)
    served = config(dsn, postgres={"dsn": dsn}, tables=RULES, limits={"table_body": 200_000})
    async with running(served) as origin:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=PATIENCE) as client:
            yield client


def patch(number: int, note: str = "changed", **others: Any) -> dict[str, Any]:
    return {"method": "PATCH", "table": "accounts", "query": f"id=eq.{number}", "body": {"note": note}, **others}


async def send(api: httpx.AsyncClient, *writes: object, token: object = 5, **headers: str) -> httpx.Response:
    named = {"Fencing-Token": str(token), **headers} if token is not None else headers
    return await api.post(PATH, json={"writes": writes}, headers=named)


def refused(answer: httpx.Response, status: int, code: str, write: int | None = None) -> dict[str, Any]:
    """A problem document, about this write of the list."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert (document["code"], document["status"], document.get("write")) == (code, status, write), document
    return document


async def state(tables: Database) -> tuple[Any, ...]:
    """Everything a write could change."""
    names = ("accounts", "shipments", "settings", "watched", "strict", "pairs", "fencing.fence", "fencing.idempotency")
    return tuple([await rows(tables, f"SELECT * FROM {name} ORDER BY 1, 2") for name in names])


class TestAllOrNothing:
    async def test_all_writes_take_effect(self, api: httpx.AsyncClient, tables: Database) -> None:
        answer = await send(
            api,
            patch(1, prefer="return=representation"),
            {"method": "POST", "table": "shipments", "body": [{"order_id": 7, "state": "sent"}]},
            {"method": "DELETE", "table": "accounts", "query": "id=eq.2"},
            {
                "method": "PUT",
                "table": "settings",
                "query": "name=eq.colour",
                "body": {"name": "colour", "value": "blue"},
            },
        )
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json; charset=utf-8")
        first, second, third, fourth = answer.json()["results"]
        assert (first["status"], first["body"][0]["note"]) == (200, "changed")
        assert first["headers"]["fencing-token"] == "5"
        assert first["headers"]["fencing-resource"] == "public.accounts/1"
        assert first["headers"]["etag"]
        assert [(one["status"], one["body"]) for one in (second, third, fourth)] == [
            (201, None),
            (204, None),
            (204, None),
        ]
        assert await rows(tables, "SELECT id, note FROM accounts ORDER BY id") == [(1, "changed"), (3, "third")]
        fences = await rows(tables, "SELECT resource, value FROM fencing.fence ORDER BY 1")
        assert fences == [("order/7", 5), ("public.accounts/1", 5), ("public.accounts/2", 5), ("settings", 5)]

    async def test_no_write_takes_effect(self, api: httpx.AsyncClient, tables: Database) -> None:
        before = await state(tables)
        failing: list[tuple[dict[str, Any], int, str]] = [
            ({"method": "POST", "table": "accounts", "body": {"id": 3}}, 409, "23505"),
            (patch(2, if_match='"other"'), 412, "row-changed"),
            ({"method": "POST", "table": "accounts", "body": {"id": "x"}}, 400, "22P02"),
            ({"method": "PATCH", "table": "nothing", "query": "id=eq.1", "body": {"a": 1}}, 404, "PGRST205"),
            (patch(2, resource="public.accounts/3"), 422, "resource-mismatch"),
            ({"method": "DELETE", "table": "accounts", "query": "owner=eq.ann"}, 422, "resource-underivable"),
            (patch(2, prefer="handling=strict, max-affected=0"), 400, "PGRST124"),
        ]
        for last, status, code in failing:
            keyed = {"Idempotency-Key": '"k"'}
            refused(await send(api, patch(1), patch(3), last, **keyed), status, code, 2)
        assert await state(tables) == before, "not even an answer is kept"

    async def test_answers_that_are_too_large_together_undo_all_writes(
        self, api: httpx.AsyncClient, tables: Database
    ) -> None:
        before = await state(tables)
        large = patch(1, "x" * 70_000, prefer="return=representation")
        twice = {**patch(3, prefer="return=representation"), "query": "id=eq.3&select=note,again:note"}
        assert (await send(api, large, twice)).status_code == 200
        large["query"] = "id=eq.1&select=note,again:note"
        twice["body"] = {"note": "y" * 70_000}
        refused(await send(api, large, twice, token=6), 413, "body-too-large", 1)
        assert len(await rows(tables, "SELECT FROM accounts WHERE note = 'changed'")) == 1
        assert before != await state(tables)

    async def test_settings_are_those_of_one_write(self, api: httpx.AsyncClient) -> None:
        """A trigger sets them, too. Else the name of the last row would be another one than it is claimed by."""
        moment = {"method": "PATCH", "table": "zoned", "query": "id=eq.1", "body": {"at": "2024-01-02T03:00:00"}}
        again = {**moment, "prefer": "return=representation"}
        careless = {"method": "POST", "table": "careless", "body": {"id": 1}}
        named = {"method": "PATCH", "table": "moments", "query": "at=eq.2024-01-02 03:00:00%2B00", "body": {"v": 1}}
        answer = await send(api, {**moment, "prefer": "timezone=Asia/Tokyo"}, again, careless, named)
        assert answer.status_code == 200, answer.text
        assert answer.json()["results"][1]["body"][0]["at"] == "2024-01-02T03:00:00+00:00"
        assert answer.json()["results"][3]["headers"]["fencing-resource"] == "public.moments/2024-01-02%2003:00:00+00"


class TestTokens:
    async def test_each_write_may_show_its_own_token(self, api: httpx.AsyncClient, tables: Database) -> None:
        writes = (patch(1, token="34", holder="ann"), patch(2, token="2.12"), patch(3))
        assert (await send(api, *writes, token=7, **{"Fencing-Holder": "bob"})).status_code == 200
        fences = await rows(tables, "SELECT resource, epoch, value, holder FROM fencing.fence ORDER BY 1")
        assert fences == [
            ("public.accounts/1", 0, 34, "ann"),
            ("public.accounts/2", 2, 12, "bob"),
            ("public.accounts/3", 0, 7, "bob"),
        ]

    async def test_a_write_may_show_pairs_of_resource_and_token(self, api: httpx.AsyncClient, tables: Database) -> None:
        pairs = "public.accounts/1=4, public.accounts/2=6"
        both = {"method": "DELETE", "table": "accounts", "query": "id=in.(1,2)", "token": pairs}
        assert (await send(api, both, token=None)).status_code == 200
        assert (
            await send(api, {"method": "POST", "table": "accounts", "body": {"id": 1}}, token=pairs)
        ).status_code == 200
        fences = await rows(tables, "SELECT resource, value FROM fencing.fence ORDER BY 1")
        assert fences == [("public.accounts/1", 4), ("public.accounts/2", 6)]

    async def test_two_tokens_for_one_resource(self, api: httpx.AsyncClient, tables: Database) -> None:
        before = await state(tables)
        refused(await send(api, patch(1, token="5"), patch(2), patch(1, token="6")), 400, "request-malformed", 2)
        other = patch(1, token="5", holder="bob")
        refused(await send(api, patch(1, token="5", holder="ann"), other), 400, "request-malformed", 1)
        assert await state(tables) == before

    async def test_a_token_is_needed(self, api: httpx.AsyncClient, tables: Database) -> None:
        refused(await send(api, patch(1, token="5"), patch(2), token=None), 428, "token-required", 1)
        assert await rows(tables, "SELECT * FROM fencing.fence") == []

    async def test_one_stale_token_undoes_all_of_them(self, api: httpx.AsyncClient, tables: Database) -> None:
        await send(api, patch(2), patch(3), token=9)
        before = await state(tables)
        document = refused(
            await send(api, patch(1), patch(3, "stale"), patch(2, "stale"), token=8), 412, "token-stale", 1
        )
        assert (document["resource"], document["fence"]) == ("public.accounts/3", "9")
        assert await state(tables) == before
        recorded = await rows(
            tables, "SELECT resource, value, method, target, enforced FROM fencing.rejection ORDER BY 1"
        )
        assert recorded == [
            ("public.accounts/2", 8, "PATCH", "/v1/tables/accounts?id=eq.2", True),
            ("public.accounts/3", 8, "PATCH", "/v1/tables/accounts?id=eq.3", True),
        ]

    async def test_a_stale_token_is_told_before_anything_a_write_does(self, api: httpx.AsyncClient) -> None:
        await send(api, patch(2), token=9)
        duplicate = {"method": "POST", "table": "accounts", "body": {"id": 1}}
        refused(await send(api, duplicate, patch(2, if_match='"x"'), token=8), 412, "token-stale", 1)

    async def test_a_list_is_one_write_to_a_strict_resource(self, api: httpx.AsyncClient) -> None:
        write = {"method": "PATCH", "table": "strict", "query": "id=eq.1", "body": {"v": 2}}
        assert (await send(api, write, patch(1), write)).status_code == 200
        refused(await send(api, patch(2), write), 412, "token-used", 1)

    async def test_observe_mode_holds_for_its_table_alone(self, api: httpx.AsyncClient, tables: Database) -> None:
        watched = {"method": "PATCH", "table": "watched", "query": "id=eq.1", "body": {"v": 9}}
        await send(api, watched, token=9)
        answer = await send(api, watched, patch(1), {**watched, "query": "id=gt.1"}, token=8)
        assert answer.status_code == 200, answer.text
        assert answer.json()["results"][0]["headers"]["fencing-token"] == "9"
        noted = await rows(tables, "SELECT resource, reason, enforced FROM fencing.rejection ORDER BY 1, 2")
        assert noted == [("public.watched", "resource-underivable", False), ("public.watched/1", "token-stale", False)]
        await send(api, patch(1), token=10)
        refused(await send(api, watched, patch(1), token=9), 412, "token-stale", 1)
        assert len(await rows(tables, "SELECT FROM fencing.rejection WHERE NOT enforced")) == 2

    @pytest.mark.thorough
    async def test_writes_side_by_side_neither_deadlock_nor_mix(self, api: httpx.AsyncClient, tables: Database) -> None:
        """The same resources in different orders, under one token and under rising ones."""
        orders = [(1, 2, 3), (3, 2, 1), (2, 3, 1)] * 5

        async def one(number: int, order: tuple[int, ...]) -> httpx.Response:
            return await send(api, *(patch(key, f"w{number}") for key in order), token=5 + number % 2)

        answers = await asyncio.gather(*(one(number, order) for number, order in enumerate(orders)))
        assert {answer.status_code for answer in answers} <= {200, 412}
        assert any(answer.status_code == 200 for answer in answers)
        (notes,) = [{note for (note,) in await rows(tables, "SELECT note FROM accounts")}]
        assert len(notes) == 1, "the last transaction has written all three rows"

    @pytest.mark.thorough
    async def test_a_transaction_runs_alone_after_a_deadlock(
        self, api: httpx.AsyncClient, tables: Database, stranger: asyncpg.Connection
    ) -> None:
        """Writers under one token share its fences. Undone for a deadlock on rows, they would meet there again."""
        assert (await send(api, patch(1), patch(2))).status_code == 200
        await stranger.execute("SET deadlock_timeout = '1min'")  # so that the server undoes the other session
        fences_to_share = "SELECT resource FROM fencing.fence FOR SHARE SKIP LOCKED"
        async with asyncio.TaskGroup() as tasks:
            async with stranger.transaction():
                await stranger.execute("SELECT FROM accounts WHERE id = 1 FOR UPDATE")
                writing = tasks.create_task(send(api, patch(2), patch(1)))
                await waiting(tables)
                assert len(await rows(tables, fences_to_share)) == 2
                await stranger.execute("SELECT FROM accounts WHERE id = 2 FOR UPDATE")
                await waiting(tables)
                assert await rows(tables, fences_to_share) == []
            assert (await writing).status_code == 200


class TestConditions:
    async def test_a_condition_sees_the_earlier_writes(self, api: httpx.AsyncClient) -> None:
        read = (await api.get("/v1/tables/accounts?id=eq.1")).headers["etag"]
        refused(await send(api, patch(1, "a", if_match=read), patch(1, "b", if_match=read)), 412, "row-changed", 1)
        answer = await send(api, patch(1, "a", if_match=read), patch(1, "b", if_match="*"))
        now = (await api.get("/v1/tables/accounts?id=eq.1")).headers["etag"]
        assert [one["headers"]["etag"] == now for one in answer.json()["results"]] == [False, True]

    async def test_create_only(self, api: httpx.AsyncClient) -> None:
        put = {"method": "PUT", "table": "accounts", "query": "id=eq.9", "body": {"id": 9}, "if_none_match": "*"}
        assert (await send(api, put)).status_code == 200
        document = refused(await send(api, patch(1), put), 412, "row-changed", 1)
        assert document["etag"] == (await api.get("/v1/tables/accounts?id=eq.9")).headers["etag"]


class TestKeys:
    async def test_a_retry_gets_the_first_answer(self, api: httpx.AsyncClient, tables: Database) -> None:
        writes = ({"method": "POST", "table": "shipments", "body": {"order_id": 7}, "prefer": "return=representation"},)
        first = await send(api, *writes, patch(1), **{"Idempotency-Key": '"k"'})
        assert first.status_code == 200
        before = await state(tables)

        async def again(token: int) -> None:
            answer = await send(api, *writes, patch(1), token=token, **{"Idempotency-Key": '"k"'})
            assert (answer.status_code, answer.content) == (200, first.content)
            assert answer.headers["idempotency-replayed"] == "true"

        for token in (5, 4):
            await again(token)
        assert await state(tables) == before
        await again(6)  # after a takeover, which is complete then
        fences = await rows(tables, "SELECT resource, value FROM fencing.fence ORDER BY resource")
        assert fences == [("order/7", 6), ("public.accounts/1", 6)]
        refused(await send(api, patch(1), token=5), 412, "token-stale", 0)

    async def test_single_writes_share_the_keys(self, api: httpx.AsyncClient) -> None:
        headers = {"Idempotency-Key": '"k"', "Fencing-Token": "5"}
        await send(api, patch(1), **{"Idempotency-Key": '"k"'})
        answer = await api.patch("/v1/tables/accounts?id=eq.1", json={"note": "changed"}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency-mismatch")

    async def test_duplicates_at_one_time(self, api: httpx.AsyncClient, tables: Database) -> None:
        insert = {"method": "POST", "table": "shipments", "body": {"order_id": 7}, "prefer": "return=representation"}
        answers = await asyncio.gather(*(send(api, insert, patch(1), **{"Idempotency-Key": "k"}) for _ in range(8)))
        assert {(answer.status_code, answer.content) for answer in answers} == {(200, answers[0].content)}
        assert (await row(tables, "SELECT count(*) FROM shipments"))["count"] == 4


# Writes that are refused both alone and in a list: method, table, query, body, other headers.
NOT_ALLOWED: list[tuple[str, str, str, Any, dict[str, str]]] = [
    ("PATCH", "accounts", "", {"note": "x"}, {}),
    ("DELETE", "accounts", "", None, {}),
    ("DELETE", "accounts", "id=eq.1&limit=1", None, {}),
    ("PATCH", "accounts", "id=gt.0", {"note": "x"}, {}),
    ("PATCH", "accounts", "id=eq.1", [{"note": "x"}, {"note": "y"}], {}),
    ("PATCH", "accounts", "id=eq.1", {"nothing": "x"}, {}),
    ("PATCH", "accounts", "nothing=eq.1", {"note": "x"}, {}),
    ("PATCH", "accounts", "id=eq.x", {"note": "x"}, {}),
    ("PATCH", "accounts", "id=eq", {"note": "x"}, {}),
    ("PATCH", "accounts", "id=eq.1&select=films(*)", {"note": "x"}, {}),
    ("PATCH", "accounts", "id=eq.1", {"note": "x"}, {"if_match": "x"}),
    ("PATCH", "accounts", "id=in.(1,2)", {"note": "x"}, {"if_match": "*"}),
    ("PATCH", "accounts", "id=eq.1", {"note": "x"}, {"resource": "public.accounts/2"}),
    ("PATCH", "accounts", "id=eq.1", {"note": "x"}, {"resource": "not canonical"}),
    ("PATCH", "accounts", "id=eq.1", {"note": "x"}, {"token": "-1"}),
    ("PATCH", "accounts", "id=eq.1", {"note": "x"}, {"holder": "x" * 201}),
    ("PATCH", "accounts", "id=eq.1", {"note": "x"}, {"prefer": "handling=strict, nothing=x"}),
    ("PATCH", "accounts", "id=eq.1", {"note": "x"}, {"schema": "fencing"}),
    ("PATCH", "fencing.fence", "resource=eq.x", {"value": 9}, {}),
    ("POST", "accounts", "", [{"id": 10}, {"id": 11, "note": "x"}], {}),
    ("POST", "accounts", "", {"note": "x"}, {}),
    ("POST", "keyless", "", {"v": 1}, {}),
    ("POST", "users", "on_conflict=email", {"id": 99, "email": "ann@x"}, {"prefer": "resolution=merge-duplicates"}),
    ("PUT", "accounts", "id=eq.1&owner=eq.x", {"id": 1}, {}),
    ("PUT", "accounts", "id=eq.1&limit=1", {"id": 1}, {}),
    ("PUT", "accounts", "id=eq.1", {"id": 2}, {}),
    ("PATCH", 'accounts"; DROP TABLE accounts; --', "id=eq.1", {"note": "x"}, {}),
    ("PATCH", "accounts", "id=eq.%FF", {"note": "x"}, {}),
    ("PATCH", "accounts", "&".join(["id=eq.1"] * 600), {"note": "x"}, {}),
    ("PATCH", "accounts", "and=(" * 300 + "id.eq.1" + ")" * 300, {"note": "x"}, {}),
]
_HEADERS = {
    "token": "Fencing-Token", "resource": "Fencing-Resource", "holder": "Fencing-Holder", "prefer": "Prefer",
    "if_match": "If-Match", "schema": "Content-Profile",
}  # fmt: skip


async def test_a_list_allows_nothing_that_is_refused_alone(api: httpx.AsyncClient, tables: Database) -> None:
    """Refused both ways, with the same status and code, and nothing is written either way."""
    before = await state(tables)
    for method, table, query, body, others in NOT_ALLOWED:
        url = httpx.URL(f"/v1/tables/{table}").copy_with(query=query.encode())
        headers = {"Fencing-Token": "5", **{_HEADERS[name]: value for name, value in others.items()}}
        sent = None if body is None else json.dumps(body)
        alone = await api.request(method, url, content=sent, headers=headers)
        what = (method, table, query[:80], body, others)
        assert 400 <= alone.status_code < 500, (what, alone.text)
        assert alone.headers["content-type"].startswith("application/json"), (what, alone.text)
        write = {"method": method, "table": table, "query": query, "body": body, **others}
        document = refused(await send(api, patch(3), write), alone.status_code, alone.json()["code"], 1)
        assert document["detail"] == alone.json()["message"], what
    assert await state(tables) == before


async def test_malformed_requests_are_refused(api: httpx.AsyncClient, tables: Database) -> None:
    refused(await send(api, patch(3), {**patch(1), "query": 5}), 400, "request-malformed", 1)
    refused(await send(api, patch(1, prefer="tx=rollback")), 400, "request-malformed", 0)
    refused(await send(api, patch(1, "x" * 300_000)), 413, "body-too-large")
    refused(await send(api, patch(1), **{"If-Match": "*"}), 400, "request-malformed")
    refused(await send(api, patch(1), Authorization="Bearer wrong"), 401, "unauthenticated")
    assert (await api.get(PATH)).status_code == 405
    # A page of another origin can send these without asking.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "text/csv", None):
        headers = {"Fencing-Token": "5"} | ({"Content-Type": kind} if kind else {})
        refused(await api.post(PATH, content=f'{{"writes": [{GOOD}]}}', headers=headers), 400, "request-malformed")
    assert await rows(tables, "SELECT * FROM fencing.fence") == []


async def test_a_list_follows_a_changed_table(api: httpx.AsyncClient, tables: Database) -> None:
    """The gateway's catalog of one table is out of date. The gateway reads it again, and executes the list once."""
    await send(api, patch(1))
    await change(tables, "ALTER TABLE accounts ADD COLUMN extra_note text")
    new = {"method": "PATCH", "table": "accounts", "query": "id=eq.1", "body": {"extra_note": "x"}}
    insert = {"method": "POST", "table": "shipments", "body": {"order_id": 7}}
    assert (await send(api, insert, new)).status_code == 200
    assert (await row(tables, "SELECT count(*) FROM shipments"))["count"] == 4
    await change(tables, "DROP TABLE watched")
    gone = {"method": "PATCH", "table": "watched", "query": "id=eq.1", "body": {"v": 1}}
    refused(await send(api, insert, gone), 404, "PGRST205", 1)
    assert (await row(tables, "SELECT count(*) FROM shipments"))["count"] == 4
