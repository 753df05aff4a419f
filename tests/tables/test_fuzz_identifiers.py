"""Attempts to smuggle SQL into every place of a request that names something."""

from collections.abc import Iterator
from urllib.parse import quote

import orjson
import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.tables.raw_http import Headers, Watched, watched_gateway

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, extra jsonb);
INSERT INTO accounts VALUES (1, 'ann', '{"a": 1}'), (2, 'bob', NULL);
CREATE TABLE secrets (id bigint PRIMARY KEY, word text);
INSERT INTO secrets VALUES (1, 'open sesame');
-- Names that nobody should choose, and that somebody will: each must work as any other name does.
CREATE TABLE "a""b; DROP TABLE secrets;--" (id bigint PRIMARY KEY, "c""d'e%s:y $1" text, "Ünï ☃" text);
CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql IMMUTABLE RETURN n * 2;
"""

PAYLOADS = [
    'x"; DROP TABLE secrets; --',
    "x'; DROP TABLE secrets; --",
    'x""; DROP TABLE secrets; --',
    '"x\\"; DROP TABLE secrets; --"',
    '"x""; DROP TABLE secrets; --"',
    "x); DROP TABLE secrets; --",
    "(SELECT word FROM secrets)",
    '"(SELECT word FROM secrets)"',
    "id) FROM secrets; --",
    "id, (SELECT word FROM secrets LIMIT 1) AS x",
    "text) FROM accounts UNION SELECT (word::text",
    "text; COMMIT; DROP TABLE secrets",
    "pg_sleep(30)",
    "$$; DROP TABLE secrets; $$",
    "%(v0)s",
    ":v0",
    "$1",
    "\\'; DROP TABLE secrets; --",
    "accounts.id",
    "fencing.fence",
    "tableoid::regclass",
    "ctid",
    "xmax",
    "*",
    "U&'\\0027'",
]

# The places of a name: the method, the target, and the headers.
PLACES: dict[str, tuple[str, str, Headers]] = {
    "table": ("GET", "{}", ()),
    "function": ("GET", "rpc/{}", ()),
    "function's argument": ("GET", "rpc/twice?{}=1", ()),
    "schema": ("GET", "accounts", ((b"accept-profile", b"{}"),)),
    "select": ("GET", "accounts?select={}", ()),
    "select, quoted": ("GET", 'accounts?select="{}"', ()),
    "alias": ("GET", "accounts?select={}:id", ()),
    "alias, quoted": ("GET", 'accounts?select="{}":id', ()),
    "cast": ("GET", "accounts?select=id::{}", ()),
    "json key": ("GET", "accounts?select=extra->{}", ()),
    "json key, quoted": ("GET", 'accounts?select=extra->>"{}"', ()),
    "filter": ("GET", "accounts?{}=eq.1", ()),
    "filter, quoted": ("GET", 'accounts?"{}"=eq.1', ()),
    "filter's json key": ("GET", "accounts?extra->>{}=eq.1", ()),
    "filter in a tree": ("GET", 'accounts?or=("{}".eq.1,id.eq.1)', ()),
    "value": ("GET", "accounts?owner=eq.{}", ()),
    "value of a number": ("GET", "accounts?id=eq.{}", ()),
    "value in a list": ("GET", 'accounts?owner=in.("{}",x)', ()),
    "value of is": ("GET", "accounts?id=is.{}", ()),
    "operator": ("GET", "accounts?id={}.1", ()),
    "language": ("GET", "accounts?owner=fts({}).x", ()),
    "order": ("GET", "accounts?order={}", ()),
    "order, quoted": ("GET", 'accounts?order="{}".desc', ()),
    "order's direction": ("GET", "accounts?order=id.{}", ()),
    "limit": ("GET", "accounts?limit={}", ()),
    "embedded table": ("GET", 'accounts?select=id,"{}"(*)', ()),
    "embedded table's hint": ("GET", 'accounts?select=id,secrets!"{}"(*)', ()),
    "range": ("GET", "accounts", ((b"range", b"{}"),)),
    "timezone": ("GET", "accounts", ((b"prefer", b"timezone={}"),)),
    "columns": ("POST", "accounts?columns={}", ()),
    "columns, quoted": ("POST", 'accounts?columns="{}"', ()),
    "on_conflict": ("POST", 'accounts?on_conflict="{}"', ((b"prefer", b"resolution=merge-duplicates"),)),
    "returned": ("PATCH", 'accounts?id=eq.1&select="{}"', ((b"prefer", b"return=representation"),)),
    "filter of a write": ("PATCH", 'accounts?id=eq.1&"{}"=eq.1', ()),
    "filter of a deletion": ("DELETE", 'accounts?id=eq.5&"{}"=eq.1', ()),
    "resource": ("PATCH", "accounts?id=eq.1", ((b"fencing-resource", b"{}"),)),
    "holder": ("PATCH", "accounts?id=eq.1", ((b"fencing-holder", b"{}"),)),
    "idempotency key": ("PATCH", "accounts?id=eq.1", ((b"idempotency-key", b'"{}"'),)),
    "etag": ("PATCH", "accounts?id=eq.1", ((b"if-match", b'"{}"'),)),
}

# The codes that the database gives for a statement that the gateway built wrongly.
OUR_MISTAKES = ("42601", "42P02", "42P08", "42P18", "26", "XX", "25")


@pytest.fixture(scope="module")
def gateway(postgres_server: EmbeddedPostgres) -> Iterator[Watched]:
    with watched_gateway(postgres_server, TABLES) as watched:
        yield watched


def unharmed(gateway: Watched) -> None:
    assert gateway.fetch("SELECT word FROM secrets") == [("open sesame",)]
    assert gateway.fetch("SELECT id, owner FROM accounts ORDER BY id") == [(1, "ann"), (2, "bob")]


@pytest.mark.parametrize("place", PLACES)
def test_nothing_that_is_sent_becomes_sql(gateway: Watched, place: str) -> None:
    method, target, headers = PLACES[place]
    gateway.events.clear()
    for payload in PAYLOADS:
        sent = [(b"fencing-token", b"1"), *((name, value.replace(b"{}", payload.encode())) for name, value in headers)]
        path = "/v1/tables/" + target.replace("{}", quote(payload, safe=""))
        body = b"" if method == "GET" else b'{"owner": "ann"}'
        answer = gateway.client.ask(method, path.encode(), sent, body)
        assert answer.status < 500, (payload, answer)
        assert b"open sesame" not in answer.body, (payload, answer)
        if answer.status >= 400:
            assert not answer.document["code"].startswith(OUR_MISTAKES), (payload, answer)
    assert not gateway.failures()
    unharmed(gateway)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_key_of_a_body_becomes_sql(gateway: Watched, payload: str) -> None:
    for body in ({payload: 1}, {"id": 9, payload: 1}, {"extra": {payload: payload}, "id": payload}):
        answer = gateway.client.ask(
            "POST", b"/v1/tables/accounts", [(b"fencing-token", b"1"), (b"prefer", b"tx=rollback")], orjson.dumps(body)
        )
        assert answer.status == 400, answer
        assert not answer.document["code"].startswith(OUR_MISTAKES), answer
    unharmed(gateway)


def test_names_that_nobody_should_choose(gateway: Watched) -> None:
    """They are names all the same: written, filtered by, selected, ordered by and returned."""
    table, column = 'a"b; DROP TABLE secrets;--', "c\"d'e%s:y $1"
    path = f"/v1/tables/{quote(table)}"
    quoted = quote('"' + column.replace('"', '\\"') + '"', safe="")
    headers = [(b"fencing-token", b"1"), (b"prefer", b"return=representation")]
    body = orjson.dumps({"id": 1, column: "x", "Ünï ☃": "y"})
    made = gateway.client.ask("POST", path.encode(), headers, body)
    assert (made.status, made.document) == (201, [{"id": 1, column: "x", "Ünï ☃": "y"}]), made
    changed = gateway.client.ask(
        "PATCH", f"{path}?id=eq.1&{quoted}=eq.x".encode(), headers, orjson.dumps({column: "z"})
    )
    assert (changed.status, changed.document[0][column]) == (200, "z"), changed
    read = gateway.client.ask("GET", f"{path}?select={quoted},{quoted}:id&order={quoted}&{quoted}=eq.z".encode())
    assert read.status == 200, read
    unharmed(gateway)
