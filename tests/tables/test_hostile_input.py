"""Requests beyond a limit, and those that smuggle SQL into names, get a clear answer at once and do no harm.

docs/tables.md has the limits. Each test has the largest accepted request and the smallest refused one.
"""

import gc
import resource
import tracemalloc
from collections.abc import Iterator
from urllib.parse import quote

import orjson
import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.tables.dialect.body import MAX_ROWS
from gateway.tables.dialect.grammar import MAX_DEPTH, MAX_STEPS, MAX_TERMS, MAX_VALUES
from tests.tables.raw_http import Answer, Headers, Watched, head, watched_gateway
from tests.tiers import first

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance bigint, extra jsonb);
INSERT INTO accounts VALUES (1, 'ann', 10, '{"a": 1}'), (2, 'bob', NULL, NULL);
CREATE TABLE notes (id bigint PRIMARY KEY, owner text);
INSERT INTO notes VALUES (1, 'ann');
CREATE TABLE log (line bigint, text text);
CREATE TABLE amounts (amount numeric(40, 0) PRIMARY KEY);
CREATE TABLE names (name text PRIMARY KEY);
CREATE TABLE secrets (id bigint PRIMARY KEY, word text);
INSERT INTO secrets VALUES (1, 'open sesame');
-- Names that nobody should choose, and that somebody will: each must work as any other name does.
CREATE TABLE "a""b; DROP TABLE secrets;--" (id bigint PRIMARY KEY, "c""d'e%s:y $1" text, "Ünï ☃" text);
CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql IMMUTABLE RETURN n * 2;
"""
TOKEN = (b"fencing-token", b"1")
MERGE = b"resolution=merge-duplicates"
TERMS = f"{MAX_TERMS} terms"
MOST_KEPT = 300 * 1024
"""Bytes that may be left of twelve requests of 60 KB."""


@pytest.fixture(scope="module")
def server(postgres_server: EmbeddedPostgres) -> Iterator[Watched]:
    rules = [{"name": "public.log", "resource": "log"}]
    with watched_gateway(postgres_server, TABLES, tables=rules) as watched:
        yield watched


@pytest.fixture
def gateway(server: Watched) -> Iterator[Watched]:
    """The gateway, which must be as well afterwards as before."""
    backends = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencing-gateway' AND datname = current_database()"
    )
    get(server, "accounts")
    before = set(server.fetch(backends))
    server.events.clear()
    yield server
    assert get(server, "accounts").status == 200
    assert not server.failures()
    assert before <= set(server.fetch(backends)), "a session was lost"


def get(gateway: Watched, target: str, headers: Headers = ()) -> Answer:
    return gateway.client.ask("GET", f"/v1/tables/{target}".encode(), headers)


def post(gateway: Watched, target: str, body: bytes, headers: Headers = ()) -> Answer:
    return gateway.client.ask("POST", f"/v1/tables/{target}".encode(), [TOKEN, *headers], body)


def refused(answer: Answer, status: int, code: str, saying: str = "") -> None:
    assert (answer.status, answer.document["code"]) == (status, code), answer
    assert saying in f"{answer.document['message']} {answer.document['details']}"
    assert len(answer.body) < 2000, "what was too much is not sent back"


def nested(depth: int) -> str:
    return "and(" * (depth - 1) + "id.eq.1" + ")" * (depth - 1)


def repeated(text: str, times: int) -> str:
    return ",".join([text] * times)


class TestQueries:
    @pytest.mark.parametrize(
        ("most", "more", "saying"),
        [
            (f"and=({nested(MAX_DEPTH)})", f"and=({nested(MAX_DEPTH + 1)})", f"{MAX_DEPTH} levels"),
            (f"or=({repeated('id.eq.1', MAX_TERMS - 1)})", f"or=({repeated('id.eq.1', MAX_TERMS)})", TERMS),
            (
                f"id=in.({repeated('1', MAX_VALUES)})",
                f"id=in.({repeated('1', MAX_VALUES + 1)})",
                f"{MAX_VALUES} values",
            ),
            (f"extra{'->a' * MAX_STEPS}=is.null", f"extra{'->a' * (MAX_STEPS + 1)}=is.null", f"{MAX_STEPS} steps"),
        ],
        ids=["depth", "tree", "in", "path"],
    )
    def test_what_a_query_may_hold(self, gateway: Watched, most: str, more: str, saying: str) -> None:
        assert get(gateway, f"accounts?{most}").status == 200
        refused(get(gateway, f"accounts?{more}"), 400, "PGRST100", saying)

    @pytest.mark.parametrize("size", first([70_000, 10_000_000]))
    def test_a_head_of_more_than_64_kib_is_not_even_read(self, gateway: Watched, size: int) -> None:
        assert get(gateway, f"accounts?owner=eq.{'x' * 60_000}").document == []
        answer = get(gateway, f"accounts?owner=eq.{'x' * size}")
        assert (answer.status, answer.headers["connection"]) == (431, "close")

    def test_preferences_of_60_kb(self, gateway: Watched) -> None:
        many = b"x=y," * 15_000
        assert get(gateway, "accounts", [(b"prefer", many)]).status == 200
        refused(get(gateway, "accounts", [(b"prefer", b"handling=strict," + many)]), 400, "PGRST122")

    def test_a_header_of_60_kb(self, gateway: Watched) -> None:
        for name in (b"accept", b"range", b"accept-profile", b"if-none-match", b"x-anything"):
            assert get(gateway, "accounts", [(name, b"x" * 60_000)]).status in (200, 400, 406)

    def test_columns_of_a_body(self, gateway: Watched) -> None:
        columns = ",".join(f"c{number}" for number in range(8_000))
        refused(post(gateway, f"accounts?columns={columns}", b'{"id": 8}'), 400, "PGRST204")

    def test_a_filter_too_deep_for_the_database(self, gateway: Watched) -> None:
        refused(get(gateway, f"accounts?extra=cs.{'[' * 30_000}"), 400, "54001")


LONG = b"x=y," * 15_000
TABLES_PATH = b"/v1/tables/"


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", b"notes?id=eq.1", [(b"prefer", b"%d," + LONG)]),
        ("GET", b"notes?id=eq.1", [(b"accept", b"*/*,%d," + LONG)]),
        ("GET", b"notes?id=eq.1", [(b"accept-profile", b"public"), (b"content-type", b"%d" + b"x" * 60_000)]),
        ("GET", b"notes?id=eq.1", [(b"x%d-" + b"x" * 500 + b"-%d" % one, b"") for one in range(100)]),
        ("GET", b"notes?id=eq.1&select=c%d:id," + b"x" * 60_000 + b":id", []),
        ("GET", b"rpc/twice?n=1&select=" + b"x" * 50_000 + b"%d", []),
        ("PATCH", b"notes?id=eq.1", [(b"fencing-token", b"1"), (b"prefer", b"%d," + LONG)]),
        ("PATCH", b"notes?id=eq.1&select=c%d:id," + b"x" * 60_000 + b":id", [(b"fencing-token", b"1")]),
    ],
    ids=["prefer", "accept", "type", "names", "alias", "call", "write", "alias of a write"],
)
def test_long_requests_leave_nothing_behind(
    gateway: Watched, method: str, target: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Each is learnt from if it is a short one. A long one costs its own time, and no memory afterwards."""
    body = b'{"owner": "ann"}' if method == "PATCH" else b""

    def ask(number: int) -> None:
        counted = b"%d" % number
        own = [(name.replace(b"%d", counted), value.replace(b"%d", counted)) for name, value in headers]
        answer = gateway.client.ask(method, TABLES_PATH + target.replace(b"%d", b"%d" % number), own, body)
        assert answer.status < 500

    ask(0)
    tracemalloc.start()
    try:
        for number in range(1, 13):
            ask(number)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < MOST_KEPT


def test_recipes_keep_no_body_and_not_too_much_together(gateway: Watched) -> None:
    """The forms are just short enough, and the bodies are large."""
    many = b"x=y," * 900
    tracemalloc.start()
    try:
        for number in range(120):
            target = b"/v1/tables/notes?id=eq.1&id=eq.%d" % number
            headers = [TOKEN, (b"prefer", b"%d," % number + many)]
            body = b'{"owner": "%s"}' % (b"x" * 100_000)
            assert gateway.client.ask("PATCH", target, headers, body).status < 300
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 30 * MOST_KEPT


class TestBodies:
    def test_one_gigabyte_that_is_announced_is_not_read(self, gateway: Watched) -> None:
        announced = head("POST", b"/v1/tables/log", [TOKEN, (b"content-length", b"1073741824")])
        refused(gateway.client.send("POST", announced), 413, "body-too-large")
        gateway.client.close()  # or the server would wait for it, as patiently as for any

    @pytest.mark.thorough
    def test_one_gigabyte_that_is_not_announced_is_read_up_to_the_limit(self, gateway: Watched) -> None:
        """The limit is 64 MiB. The gateway does not keep the bytes after it."""
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        start = head("POST", b"/v1/tables/log", [TOKEN, (b"transfer-encoding", b"chunked")])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused(gateway.client.send("POST", start, *[chunk] * 1024), 413, "body-too-large")
        kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert kibibytes < 200 * 1024
        gateway.client.close()  # in the middle of its chunks

    def test_as_many_rows_as_are_taken_and_one_more(self, gateway: Watched) -> None:
        row = b'{"line":1}'
        answer = post(gateway, "log", b"[" + b",".join([row] * MAX_ROWS) + b"]", [(b"prefer", b"count=exact")])
        assert (answer.status, answer.headers["content-range"]) == (201, f"*/{MAX_ROWS}")
        more = b"[" + b",".join([row] * (MAX_ROWS + 1)) + b"]"
        refused(post(gateway, "log", more), 413, "body-too-large", f"{MAX_ROWS} rows")

    @pytest.mark.parametrize("depth", [1_100, 100_000])
    def test_deeply_nested(self, gateway: Watched, depth: int) -> None:
        body = b'{"id": 5, "extra": ' + b"[" * depth + b"]" * depth + b"}"
        refused(post(gateway, "accounts", body), 400, "PGRST102")
        most = b'{"id": 6, "extra": ' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"}"
        assert post(gateway, "accounts?on_conflict=id", most, [(b"prefer", MERGE)]).status in (200, 201)

    def test_more_keys_than_a_table_has_columns(self, gateway: Watched) -> None:
        body = b"{" + b",".join(b'"c%d":1' % number for number in range(10_000)) + b"}"
        refused(post(gateway, "accounts", body), 400, "PGRST204")


class TestValues:
    def test_what_no_column_can_hold(self, gateway: Watched, subtests: pytest.Subtests) -> None:
        for body, code in (
            (b'{"id": 7, "balance": 9223372036854775808}', "22003"), (b'{"id": 7, "balance": 1e400}', "PGRST102"),
            (b'{"id": 7, "owner": "\\u0000"}', "22P05"), (b'{"id": 7, "owner": "\\ud800"}', "PGRST102"),
            (b'{"id": 7, "owner": "\xff"}', "PGRST102"), (b'{"id": 7, "owner": "\x00"}', "PGRST102"),
            (b'{"id": 7, "\\u0000": 1}', "PGRST204"), (b'\xff\xfe{\x00}\x00', "PGRST102"),
        ):  # fmt: skip
            with subtests.test(body=body):
                refused(post(gateway, "accounts", body), 400, code)
                assert gateway.fetch("SELECT FROM accounts WHERE id = 7") == []

    def test_what_no_text_can_hold(self, gateway: Watched) -> None:
        for query in ("owner=eq.{}", "{}=eq.1", "extra->{}=eq.1", "select={}", "or=(owner.eq.{})"):
            for broken in ("%00", "%ff", "%ed%a0%80"):
                refused(get(gateway, f"accounts?{query.format(broken)}"), 400, "PGRST100")


class TestEchoes:
    """Nothing that is sent back in a header ends it."""

    def test_a_key_in_location(self, gateway: Watched) -> None:
        prefer = [(b"prefer", b"return=headers-only")]
        answer = post(gateway, "names", b'{"name": "a\\r\\nEvil: 1\\u0085\xe2\x80\xa8&x=y"}', prefer)
        assert answer.status == 201
        assert "evil" not in answer.headers
        assert answer.headers["location"].isascii()
        assert "%0D%0AEvil%3A%201%C2%85%E2%80%A8%26x%3Dy" in answer.headers["location"]
        assert answer.headers["fencing-resource"].isascii()

    def test_a_target_and_a_preference(self, gateway: Watched) -> None:
        for place in ("accounts{}", "accounts?owner=eq.{}", "accounts?select={}", "{}", "rpc/{}"):
            answer = get(gateway, place.format("%0d%0aEvil:%201%0d%0a%0d%0a<b>"))
            assert answer.status < 500
            assert "evil" not in answer.headers
        for preference in (b"timezone=\x85Evil", b"timezone=\xe9", b'return="minimal"', b"timezone=a\tb"):
            answer = get(gateway, "accounts", [(b"prefer", preference)])
            assert answer.status in (200, 400)
            assert answer.headers.get("preference-applied", "").isascii()


PAYLOADS = [
    'x"; DROP TABLE secrets; --', "x'; DROP TABLE secrets; --", 'x""; DROP TABLE secrets; --',
    '"x\\"; DROP TABLE secrets; --"', '"x""; DROP TABLE secrets; --"', "x); DROP TABLE secrets; --",
    "(SELECT word FROM secrets)", '"(SELECT word FROM secrets)"', "id) FROM secrets; --",
    "id, (SELECT word FROM secrets LIMIT 1) AS x", "text) FROM accounts UNION SELECT (word::text",
    "text; COMMIT; DROP TABLE secrets", "pg_sleep(30)", "$$; DROP TABLE secrets; $$", "%(v0)s", ":v0", "$1",
    "\\'; DROP TABLE secrets; --", "accounts.id", "fencing.fence", "tableoid::regclass", "ctid", "xmax", "*",
    "U&'\\0027'",
]  # fmt: skip


# The places of a name: targets of reads, headers of reads, and targets and headers of writes.
READS = (
    "{}", "rpc/{}", "rpc/twice?{}=1", "accounts?select={}", 'accounts?select="{}"', "accounts?select={}:id",
    'accounts?select="{}":id', "accounts?select=id::{}", "accounts?select=extra->{}", 'accounts?select=extra->>"{}"',
    "accounts?{}=eq.1", 'accounts?"{}"=eq.1', "accounts?extra->>{}=eq.1", 'accounts?or=("{}".eq.1,id.eq.1)',
    "accounts?owner=eq.{}", "accounts?id=eq.{}", 'accounts?owner=in.("{}",x)', "accounts?id=is.{}", "accounts?id={}.1",
    "accounts?owner=fts({}).x", "accounts?order={}", 'accounts?order="{}".desc', "accounts?order=id.{}",
    "accounts?limit={}", 'accounts?select=id,"{}"(*)', 'accounts?select=id,secrets!"{}"(*)',
)  # fmt: skip
WRITES: tuple[tuple[str, str, bytes, bytes], ...] = (
    ("POST", "accounts?columns={}", b"prefer", b""),
    ("POST", 'accounts?columns="{}"', b"prefer", b""),
    ("POST", 'accounts?on_conflict="{}"', b"prefer", b"resolution=merge-duplicates"),
    ("PATCH", 'accounts?id=eq.1&select="{}"', b"prefer", b"return=representation"),
    ("PATCH", 'accounts?id=eq.1&"{}"=eq.1', b"prefer", b""),
    ("DELETE", 'accounts?id=eq.5&"{}"=eq.1', b"prefer", b""),
    ("PATCH", "accounts?id=eq.1", b"fencing-resource", b"{}"),
    ("PATCH", "accounts?id=eq.1", b"fencing-holder", b"{}"),
    ("PATCH", "accounts?id=eq.1", b"idempotency-key", b'"{}"'),
    ("PATCH", "accounts?id=eq.1", b"if-match", b'"{}"'),
)
PLACES = (
    *(("GET", target, b"accept", b"*/*") for target in READS),
    *(("GET", "accounts", name, value) for name, value in (
        (b"accept-profile", b"{}"), (b"range", b"{}"), (b"prefer", b"timezone={}"),
    )),
    *WRITES,
)  # fmt: skip


# The codes that the database gives for a statement that the gateway built wrongly.
OUR_MISTAKES = ("42601", "42P02", "42P08", "42P18", "26", "XX", "25")


def unharmed(gateway: Watched) -> None:
    assert gateway.fetch("SELECT word FROM secrets") == [("open sesame",)]
    assert gateway.fetch("SELECT id, owner FROM accounts WHERE id < 3 ORDER BY id") == [(1, "ann"), (2, "bob")]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_key_of_a_body_becomes_sql(gateway: Watched, payload: str) -> None:
    for body in ({payload: 1}, {"id": 9, payload: 1}, {"extra": {payload: payload}, "id": payload}):
        answer = post(gateway, "accounts", orjson.dumps(body), [])
        assert answer.status == 400, answer
        assert not answer.document["code"].startswith(OUR_MISTAKES), answer
    unharmed(gateway)


@pytest.mark.parametrize(("method", "target", "name", "value"), PLACES)
def test_nothing_that_is_sent_becomes_sql(
    gateway: Watched, method: str, target: str, name: bytes, value: bytes
) -> None:
    for payload in PAYLOADS:
        sent = [TOKEN, (name, value.replace(b"{}", payload.encode()))]
        path = "/v1/tables/" + target.replace("{}", quote(payload, safe=""))
        body = b"" if method == "GET" else b'{"owner": "ann"}'
        answer = gateway.client.ask(method, path.encode(), sent, body)
        assert answer.status < 500, (payload, answer)
        assert b"open sesame" not in answer.body, (payload, answer)
        if answer.status >= 400:
            assert not answer.document["code"].startswith(OUR_MISTAKES), (payload, answer)
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
