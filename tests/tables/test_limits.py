"""A request beyond a limit gets a clear answer at once, and leaves the gateway as it was.

docs/tables.md has the limits. Each test has the largest accepted request and the smallest refused one.
"""

import resource
from collections.abc import Iterator

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.tables.dialect.body import MAX_ROWS
from gateway.tables.dialect.grammar import MAX_DEPTH, MAX_STEPS, MAX_TERMS, MAX_VALUES
from gateway.tables.naming.plan import MAX_RESOURCES
from tests.tables.raw_http import Answer, Headers, Watched, head, watched_gateway

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance bigint, extra jsonb);
INSERT INTO accounts VALUES (1, 'ann', 10, '{"a": 1}');
CREATE TABLE log (line bigint, text text);
CREATE TABLE amounts (amount numeric(40, 0) PRIMARY KEY);
CREATE TABLE names (name text PRIMARY KEY);
"""
TOKEN = (b"fencing-token", b"1")
TERMS = f"{MAX_TERMS} terms"


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
            (f"and=({nested(MAX_DEPTH)})", f"and=({nested(5000)})", f"{MAX_DEPTH} levels"),
            (f"or=({repeated('id.eq.1', MAX_TERMS - 1)})", f"or=({repeated('id.eq.1', MAX_TERMS)})", TERMS),
            ("&".join(["id=eq.1"] * MAX_TERMS), "&".join(["id=eq.1"] * (MAX_TERMS + 1)), TERMS),
            (f"select={repeated('id', MAX_TERMS)}", f"select={repeated('id', MAX_TERMS + 1)}", TERMS),
            (f"select={repeated('id', MAX_TERMS)}", f"select={repeated('id', 10_000)}", TERMS),
            (f"order={repeated('id', MAX_TERMS)}", f"order={repeated('id', MAX_TERMS + 1)}", TERMS),
            (
                f"id=in.({repeated('1', MAX_VALUES)})",
                f"id=in.({repeated('1', MAX_VALUES + 1)})",
                f"{MAX_VALUES} values",
            ),
            (f"extra{'->a' * MAX_STEPS}=is.null", f"extra{'->a' * (MAX_STEPS + 1)}=is.null", f"{MAX_STEPS} steps"),
        ],
        ids=["depth", "great depth", "tree", "filters", "select", "wide select", "order", "in", "path"],
    )
    def test_what_a_query_may_hold(self, gateway: Watched, most: str, more: str, saying: str) -> None:
        assert get(gateway, f"accounts?{most}").status == 200
        refused(get(gateway, f"accounts?{more}"), 400, "PGRST100", saying)

    @pytest.mark.parametrize("size", [70_000, 10_000_000])
    def test_a_head_of_more_than_64_kib_is_not_even_read(self, gateway: Watched, size: int) -> None:
        answer = get(gateway, f"accounts?owner=eq.{'x' * size}")
        assert (answer.status, answer.headers["connection"]) == (431, "close")

    def test_a_list_of_100_000_values(self, gateway: Watched) -> None:
        assert get(gateway, f"accounts?id=in.({','.join(map(str, range(100_000)))})").status == 431

    def test_a_head_below_that_is_read(self, gateway: Watched) -> None:
        assert get(gateway, f"accounts?owner=eq.{'x' * 60_000}").document == []

    def test_preferences_of_60_kb(self, gateway: Watched) -> None:
        many = b"x=y," * 15_000
        assert get(gateway, "accounts", [(b"prefer", many)]).status == 200
        refused(get(gateway, "accounts", [(b"prefer", b"handling=strict," + many)]), 400, "PGRST122")

    @pytest.mark.parametrize("name", [b"accept", b"range", b"accept-profile", b"if-none-match", b"x-anything"])
    def test_a_header_of_60_kb(self, gateway: Watched, name: bytes) -> None:
        assert get(gateway, "accounts", [(name, b"x" * 60_000)]).status in (200, 400, 406)

    def test_columns_of_a_body(self, gateway: Watched) -> None:
        columns = ",".join(f"c{number}" for number in range(8_000))
        refused(post(gateway, f"accounts?columns={columns}", b'{"id": 8}'), 400, "PGRST204")

    def test_a_write_of_too_many_resources(self, gateway: Watched) -> None:
        target = f"accounts?id=in.({','.join(map(str, range(MAX_RESOURCES + 1)))})".encode()
        answer = gateway.client.ask("DELETE", b"/v1/tables/" + target, [TOKEN])
        refused(answer, 422, "resource-underivable", f"at most {MAX_RESOURCES}")

    def test_a_filter_too_deep_for_the_database(self, gateway: Watched) -> None:
        refused(get(gateway, f"accounts?extra=cs.{'[' * 30_000}"), 400, "54001")


class TestBodies:
    def test_one_gigabyte_that_is_announced_is_not_read(self, gateway: Watched) -> None:
        announced = head("POST", b"/v1/tables/log", [TOKEN, (b"content-length", b"1073741824")])
        refused(gateway.client.send("POST", announced), 413, "body-too-large")
        gateway.client.close()  # or the server would wait for it, as patiently as for any

    def test_one_gigabyte_that_is_not_announced_is_read_up_to_the_limit(self, gateway: Watched) -> None:
        """The limit is 64 MiB. The gateway does not keep the bytes after it."""
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        start = head("POST", b"/v1/tables/log", [TOKEN, (b"transfer-encoding", b"chunked")])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused(gateway.client.send("POST", start, *[chunk] * 1024), 413, "body-too-large")
        kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert kibibytes < 200 * 1024
        gateway.client.close()  # in the middle of its chunks

    @pytest.mark.parametrize("rows", [MAX_ROWS + 1, 1_000_000])
    def test_too_many_rows(self, gateway: Watched, rows: int) -> None:
        body = b"[" + b",".join([b'{"line":1}'] * rows) + b"]"
        refused(post(gateway, "log", body), 413, "body-too-large", f"{MAX_ROWS} rows")

    def test_many_rows(self, gateway: Watched) -> None:
        body = b"[" + b",".join([b'{"line":1}'] * MAX_ROWS) + b"]"
        answer = post(gateway, "log", body, [(b"prefer", b"count=exact")])
        assert (answer.status, answer.headers["content-range"]) == (201, f"*/{MAX_ROWS}")

    @pytest.mark.parametrize("depth", [1_100, 100_000])
    def test_deeply_nested(self, gateway: Watched, depth: int) -> None:
        body = b'{"id": 5, "extra": ' + b"[" * depth + b"]" * depth + b"}"
        refused(post(gateway, "accounts", body), 400, "PGRST102")

    def test_as_deeply_nested_as_may_be(self, gateway: Watched) -> None:
        body = b'{"id": 6, "extra": ' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"}"
        assert post(gateway, "accounts", body).status == 201

    def test_more_keys_than_a_table_has_columns(self, gateway: Watched) -> None:
        body = b"{" + b",".join(b'"c%d":1' % number for number in range(10_000)) + b"}"
        refused(post(gateway, "accounts", body), 400, "PGRST204")


class TestValues:
    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b'{"id": 7, "balance": 9223372036854775808}', "22003"),
            (b'{"id": 7, "balance": 1e400}', "PGRST102"),
            (b'{"id": 7, "owner": "\\u0000"}', "22P05"),
            (b'{"id": 7, "owner": "\\ud800"}', "PGRST102"),
            (b'{"id": 7, "owner": "\xff"}', "PGRST102"),
            (b'{"id": 7, "owner": "\x00"}', "PGRST102"),
            (b'{"id": 7, "\\u0000": 1}', "PGRST204"),
            (b'\xff\xfe{\x00}\x00', "PGRST102"),
        ],
    )  # fmt: skip
    def test_what_no_column_can_hold(self, gateway: Watched, body: bytes, code: str) -> None:
        refused(post(gateway, "accounts", body), 400, code)
        assert gateway.fetch("SELECT FROM accounts WHERE id = 7") == []

    @pytest.mark.parametrize("query", ["owner=eq.{}", "{}=eq.1", "extra->{}=eq.1", "select={}", "or=(owner.eq.{})"])
    @pytest.mark.parametrize("broken", ["%00", "%ff", "%ed%a0%80"])
    def test_what_no_text_can_hold(self, gateway: Watched, query: str, broken: str) -> None:
        refused(get(gateway, f"accounts?{query.format(broken)}"), 400, "PGRST100")

    @pytest.mark.parametrize("query", ["id=eq." + "9" * 10_000, "id=eq.1e400", "balance=gt.NaN"])
    def test_a_number_that_is_none_of_the_columns(self, gateway: Watched, query: str) -> None:
        assert get(gateway, f"accounts?{query}").document["code"] in ("22003", "22P02")

    def test_a_number_with_more_digits_than_a_float_has(self, gateway: Watched) -> None:
        """The key of a body is read as the database reads it: nothing is rounded on the way."""
        answer = post(gateway, "amounts", b'{"amount": 123456789012345678901234567890}')
        assert answer.status == 201, answer
        assert answer.headers["fencing-resource"] == "public.amounts/123456789012345678901234567890"


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

    @pytest.mark.parametrize("place", ["accounts{}", "accounts?owner=eq.{}", "accounts?select={}", "{}", "rpc/{}"])
    def test_a_target(self, gateway: Watched, place: str) -> None:
        answer = get(gateway, place.format("%0d%0aEvil:%201%0d%0a%0d%0a<b>"))
        assert answer.status < 500
        assert "evil" not in answer.headers

    @pytest.mark.parametrize(
        "preference", [b"timezone=\x85Evil", b"timezone=\xe9", b'return="minimal"', b"timezone=a\tb"]
    )
    def test_a_preference(self, gateway: Watched, preference: bytes) -> None:
        answer = get(gateway, "accounts", [(b"prefer", preference)])
        assert answer.status in (200, 400)
        assert answer.headers.get("preference-applied", "").isascii()
