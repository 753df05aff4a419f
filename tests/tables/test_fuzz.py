"""Bad input: whatever is asked, there is a clear answer, and no row changes without a claim of its resource.

``FUZZ_EXAMPLES=20000`` asks so many requests, and other ones each time; without it they are always the same.

Requests are those of the dialect as hypothesis draws them: most are well-formed, some nearly so, some not at all.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote, unquote_to_bytes

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing import headers as fencing_headers
from gateway.fencing.token import Token
from gateway.journal import trust
from tests.tables.raw_http import Answer, Watched, watched_gateway

COLUMNS = {
    "accounts": ("id", "owner", "balance", "note", "extra", "tags", "during"),
    "shipments": ("id", "order_id", "state"),
    "pairs": ("a", "b", "v"),
    "settings": ("name", "value"),
    "rich": ("id", "owner", "balance"),
}

RESOURCES = ("public.accounts/1", "public.accounts/2", "order/7", "order/8", "settings", "public.pairs/x%2Fy/z")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Names and values with a meaning for some layer on the way, or that no layer expects.
_NASTY = (
    *_words("' \" \\ * ( ) , . .. -> ->> :: a->b {} {a,b} [1,2) $$ $1 % %s %(v0)s :v0 \\u0000 null NaN Infinity 1e400"),
    *_words('-0 -1 a-b 1::text now() pg_sleep(1) "";-- ١ é 💥 \x7f \u202e'),
    *("", " ", "x y", "\t", "';DROP TABLE canary;--", "(select 1)", "9" * 40, "a" * 300),
)

_VALUES = (*_words('1 2 7 8 x/y z ann 10 true a* "quoted" first red colour'), *_NASTY)

_OPERATORS = (
    *_words("eq neq gt gte lt lte like ilike match imatch isdistinct is in cs cd ov sl sr nxr nxl adj"),
    *_words("fts plfts phfts wfts(english) eq(any) like(all) nope"),
    "",
)

_CASTS = _words("text int json jsonb nope numeric(10,2) text[] regclass timestamptz")

_ORDERS = ("", *_words(".asc .desc .desc.nullslast .nullsfirst .sideways .asc.desc"))

_TOKENS = (
    *_words("5 4 0 1.2 09 -1 x 9,9 9=9 public.accounts/1=9 order/7=9,order/8=9"),
    *("", "9" * 30, "public.accounts/1=9, public.accounts/2=9", "public.accounts/1=9, public.accounts/2=1"),
)

_PREFERENCES = (
    *_words("return=representation return=minimal return=headers-only resolution=merge-duplicates"),
    *_words("resolution=ignore-duplicates missing=default missing=null count=exact count=planned count=estimated"),
    *_words("handling=strict handling=lenient max-affected=1 max-affected=x tx=commit tx=rollback timezone=UTC"),
    *_words("timezone=Nowhere/At_all nope = , return="),
    *("timezone='; DROP TABLE canary", 'a="b, c"'),
)

_MEDIA = (
    *_words("application/json */* text/csv application/vnd.pgrst.object+json application/openapi+json"),
    *_words("application/vnd.pgrst.array+json;nulls=stripped application/vnd.pgrst.plan+json / ;;;"),
    *_words("text/html;q=0.9,*/*;q=0.1 application/x-www-form-urlencoded application/octet-stream"),
    *("", "multipart/form-data; boundary=x", "application/json; charset=latin-1"),
)

_HEADERS: dict[bytes, tuple[str, ...]] = {
    b"prefer": _PREFERENCES,
    b"accept": _MEDIA,
    b"range": _words("0-0 0- 5-1 -5 0-999999999999999999 items=0-1 x"),
    b"range-unit": ("items", "bytes"),
    b"if-match": ('"x"', "*", 'W/"x"', "", '"a", "b"', "x"),
    b"if-none-match": ("*", '"x"'),
    b"idempotency-key": ("one", '"one"', "", "x" * 300, "a\tb"),
    b"accept-profile": ("public", "nope", "fencing", "pg_catalog", "public; DROP TABLE canary"),
    b"content-profile": ("public", "fencing", "canary"),
    b"fencing-resource": (*RESOURCES, "public.accounts", "A/../b", "%zz", "é"),
    b"fencing-holder": ("me", "you", "", "é", "x" * 500),
    b"x-fencing-token": ("9", "1"),
    b"origin": ("http://elsewhere", "null"),
    b"expect": ("100-continue",),
}

_METHODS = _words("GET GET GET HEAD POST POST POST PATCH PATCH PATCH PUT DELETE DELETE OPTIONS TRACE")

_WRITES = _words("POST POST PATCH PATCH PATCH PUT DELETE")

_TABLES = (*COLUMNS, "accounts", "accounts")

_PLACES = (*_TABLES, *_TABLES, "nope", "rpc/twice", "rpc/nope", "")

_KINDS = _words("filter filter tree select order columns on_conflict limit offset odd")

_ODD = _words("apikey=x id = =eq.1 select a.b=eq.1 a.order=x accounts.id=eq.1 limit.x=1")

# Filters that name a resource, so that many writes get through.
_PINS = {
    "accounts": _words("id=eq.1 id=eq.2 id=in.(1,2) id=eq.3 id=eq.4&balance=gt.1"),
    "shipments": _words("order_id=eq.7 order_id=in.(7,8) order_id=eq.9 id=eq.1"),
    "pairs": _words("a=eq.x/y&b=eq.z a=eq.x&b=in.(y/z,w)"),
    "settings": _words("name=eq.colour value=neq.x"),
    "rich": _words("id=eq.2 id=in.(2,3)"),
}

_ROWS = {
    "accounts": (
        {"id": 4}, {"id": 1, "owner": "new"}, {"note": "x"}, {"id": 2, "balance": 5}, {"balance": 1, "extra": {}},
    ),
    "shipments": ({"order_id": 7}, {"order_id": 8, "state": "x"}, {"state": "sent"}, {"id": 1, "order_id": 8}),
    "pairs": ({"a": "x/y", "b": "z", "v": 3}, {"v": 4}, {"a": "n", "b": "m"}, {"a": "x"}),
    "settings": ({"name": "size", "value": "1"}, {"value": "2"}, {"name": "colour"}),
    "rich": ({"owner": "x"}, {"id": 9, "owner": "x"}),
}  # fmt: skip

_STEPS = ("", "", "", *_words("->a ->>a ->0 ->a->>b ->n->-1 -> ->>'x' ->\"a,b\""))

_SELECTED = _words("{0} {0} * as_{0}:{0} {1}:{0} {0}::{2} count() {0}.sum() accounts(*) ...x(a) {1} x!inner(*)")

_BREAKS = _words("%00 %ff % %e9% && = # %ed%a0%80 %26 ?")

_BODIES = (
    *(b"", b"[]", b"{}", b"[{}]", b"[1]", b"null", b"{", b"\xff", b'"text"', b"[[[[]]]]", b"\xef\xbb\xbf{}", b"id=1"),
    *(b'{"id": 1e999}', b'{"id": 1, "id": 2}', b"id,v\n1,2\n", b'{"note": "\\ud800"}', b'{"note": "\\u0000"}'),
)

_ENTRY = ("token", "resource", "holder", "prefer", "if_match", "if_none_match")

_SCALARS: tuple[object, ...] = (
    *(1, 2, 7, 10**30, -1, 0.5, 1e308, True, None, "1", "x", "\0", "\ud800"),
    *({"a": 1}, [], [[1]], {"\0": 1}),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it goes out."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def entry(self) -> bytes:
        """The same as one write of a transaction."""
        headers = {name.decode().removeprefix("fencing-"): value.decode() for name, value in self.headers}
        named = {name: headers.get(name.replace("_", "-")) for name in _ENTRY}
        path, _, query = self.target.removeprefix(b"/v1/tables/").partition(b"?")
        fields = {"method": self.method, "table": unquote(path), "query": query.decode("latin-1"), **named}
        sent = {name: value for name, value in fields.items() if value is not None}
        return _dumped(sent)[:-1] + b', "body": ' + self.body + b"}"

    def mentions(self, text: str) -> bool:
        """Whether ``text`` came from us, so that hearing it again reveals nothing."""
        sent = b"\n".join((unquote_to_bytes(self.target), self.body, *(value for _, value in self.headers)))
        return text.encode() in sent.lower()


def transactions() -> st.SearchStrategy[Asked]:
    """Some writes in one."""
    writes = st.sampled_from((*_TABLES, *_TABLES, "nope")).flatmap(lambda table: _requests_for(table, _WRITES))
    return st.lists(writes, min_size=1, max_size=3).map(_together)


def _together(asked: list[Asked]) -> Asked:
    writes = b", ".join(one.entry() for one in asked)
    headers = ((b"content-type", b"application/json"), *asked[0].headers)
    return Asked("POST", b"/v1/transaction", headers, b'{"writes": [' + writes + b"]}")


def requests() -> st.SearchStrategy[Asked]:
    """Any request for a table or a function."""
    return st.sampled_from(_PLACES).flatmap(lambda table: _requests_for(table, _METHODS))


@st.composite
def _requests_for(draw: st.DrawFn, table: str, methods: tuple[str, ...]) -> Asked:
    like = table if table in COLUMNS else "accounts"
    columns = st.sampled_from(COLUMNS[like])
    method = draw(st.sampled_from(methods))
    pinned = [draw(st.sampled_from(_PINS[like]))] if draw(_often()) else []
    parameters = [*pinned, *draw(st.lists(_parameter(columns), max_size=1 if pinned else 3))]
    query = "&".join(parameters).encode("utf-8", "surrogatepass")
    target = b"/v1/tables/" + draw(_bruised(table.encode() + b"?" + query))
    return Asked(method, target, draw(_headers()), draw(_body(like, columns)))


@st.composite
def _bruised(draw: st.DrawFn, target: bytes) -> bytes:
    """Percent-encoded as a client would; now and then with something broken in it."""
    encoded = quote_from_bytes(target, safe="/?&=:.,()*\"'{}[]<>|\\^`-_~$!;@+").encode()
    if draw(_often()) or draw(_often()):
        return encoded
    at = draw(st.integers(0, len(encoded)))
    return encoded[:at] + draw(st.sampled_from(_BREAKS)).encode() + encoded[at:]


@st.composite
def _parameter(draw: st.DrawFn, columns: st.SearchStrategy[str]) -> str:
    kind = draw(st.sampled_from(_KINDS))
    if kind == "filter":
        return f"{draw(_field(columns))}={draw(_comparison())}"
    if kind == "tree":
        operator = draw(st.sampled_from(("and", "or", "not.and", "not.or")))
        return f"{operator}=({draw(_several(_node(columns)))})"
    if kind == "select":
        return f"select={draw(_several(_selected(columns)))}"
    if kind == "order":
        return f"order={draw(_several(st.builds('{}{}'.format, _field(columns), st.sampled_from(_ORDERS))))}"
    if kind in ("columns", "on_conflict"):
        return f"{kind}={draw(_several(st.one_of(columns, st.sampled_from(_NASTY))))}"
    if kind == "odd":
        return draw(st.sampled_from(_ODD))
    return f"{kind}={draw(st.sampled_from(('0', '1', '-1', 'x', '99999999999999999999', '')))}"


def _several(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(parts, max_size=3).map(",".join)


def _field(columns: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names = st.one_of(columns, columns.map('"{}"'.format), st.sampled_from(_NASTY))
    return st.one_of(columns, st.builds("{}{}".format, names, st.sampled_from(_STEPS)))


def _comparison() -> st.SearchStrategy[str]:
    values = st.one_of(
        st.sampled_from(_VALUES),
        _several(st.sampled_from(_VALUES)).map("({})".format),
        _several(st.sampled_from(_VALUES)).map("{{{}}}".format),
        st.text(max_size=6),
    )
    negations = st.sampled_from(("", "", "", "not.", "not.not."))
    return st.builds("{}{}.{}".format, negations, st.sampled_from(_OPERATORS), values)


def _node(columns: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.recursive(
        st.builds("{}.{}".format, _field(columns), _comparison()),
        lambda inner: st.builds("{}({})".format, st.sampled_from(("and", "or", "not.and", "nor")), _several(inner)),
        max_leaves=4,
    )


def _selected(columns: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    nasty, casts = st.sampled_from(_NASTY), st.sampled_from(_CASTS)
    return st.builds(str.format, st.sampled_from(_SELECTED), _field(columns), nasty, casts)


@st.composite
def _headers(draw: st.DrawFn) -> tuple[tuple[bytes, bytes], ...]:
    token = "9" if draw(_often()) else draw(st.sampled_from(_TOKENS))
    found = [(b"fencing-token", token)] if draw(_often()) or draw(_often()) else []
    for name in draw(st.lists(st.sampled_from(tuple(_HEADERS)), max_size=1 if draw(_often()) else 3)):
        most = 3 if name == b"prefer" else 1
        values = draw(st.lists(st.sampled_from(_HEADERS[name]), min_size=1, max_size=most))
        found.append((name, ", ".join(values)))
    if not draw(_often()) and not draw(_often()):
        found.append((b"content-type", draw(st.sampled_from(_MEDIA))))
    return tuple((name, value.encode()) for name, value in found)


def _body(table: str, columns: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    good = st.sampled_from(_ROWS[table])
    scalars = st.one_of(st.sampled_from(_SCALARS), st.sampled_from(_VALUES))
    odd = st.dictionaries(st.one_of(columns, columns, columns, st.sampled_from(_NASTY)), scalars, max_size=4)
    return st.one_of(
        good.map(_dumped),
        st.lists(good, min_size=1, max_size=3).map(_dumped),
        odd.map(_dumped),
        st.lists(odd, max_size=3).map(_dumped),
        st.sampled_from(_BODIES),
    )


def _often() -> st.SearchStrategy[bool]:
    """Three times out of four."""
    return st.sampled_from((True, True, True, False))


def _dumped(document: object) -> bytes:
    # The standard library's, which writes lone surrogates.
    return json.dumps(document).encode()


EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance bigint NOT NULL DEFAULT 0, note text, extra jsonb,
    tags text[], during int4range);
CREATE TABLE shipments (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, order_id bigint, state text DEFAULT 'new'
);
CREATE TABLE pairs (a text, b text, v int, PRIMARY KEY (a, b));
CREATE TABLE settings (name text PRIMARY KEY, value text);
CREATE VIEW rich AS SELECT id, owner, balance FROM accounts WHERE balance > 15;
CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql IMMUTABLE RETURN n * 2;

-- Everything a write does, by the name of the resource of the row, before and after. Its function is in the gateway's
-- own schema: what is there is no code of somebody's, on account of which writes would not take the fast path.
CREATE SCHEMA canary;
CREATE TABLE canary.changes (resource text);
CREATE FUNCTION fencing.sing() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        EXECUTE format('INSERT INTO canary.changes SELECT %s FROM (SELECT ($1).*) AS r', TG_ARGV[0]) USING OLD;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        EXECUTE format('INSERT INTO canary.changes SELECT %s FROM (SELECT ($1).*) AS r', TG_ARGV[0]) USING NEW;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER sing AFTER INSERT OR UPDATE OR DELETE ON accounts FOR EACH ROW
    EXECUTE FUNCTION fencing.sing('''public.accounts/'' || id');
CREATE TRIGGER sing AFTER INSERT OR UPDATE OR DELETE ON shipments FOR EACH ROW
    EXECUTE FUNCTION fencing.sing('''order/'' || order_id');
CREATE TRIGGER sing AFTER INSERT OR UPDATE OR DELETE ON pairs FOR EACH ROW
    EXECUTE FUNCTION fencing.sing('''public.pairs/'' || fencing.escape_v1(a) || ''/'' || fencing.escape_v1(b)');
CREATE TRIGGER sing AFTER INSERT OR UPDATE OR DELETE ON settings FOR EACH ROW
    EXECUTE FUNCTION fencing.sing('''settings''');
"""

ROWS = """
DELETE FROM accounts; DELETE FROM shipments; DELETE FROM pairs; DELETE FROM settings;
INSERT INTO accounts VALUES (1, 'ann', 10, 'first', '{"a": {"b": "x"}, "n": [1, 2]}', '{a,b}', '[1,5)'),
    (2, 'bob', 20, NULL, NULL, NULL, NULL), (3, 'cid', 30, 'third', NULL, '{}', 'empty');
INSERT INTO shipments (id, order_id) VALUES (1, 7), (2, 7), (3, 8);
INSERT INTO pairs VALUES ('x/y', 'z', 1), ('x', 'y/z', 2);
INSERT INTO settings VALUES ('colour', 'red');
DELETE FROM canary.changes; DELETE FROM fencing.fence;
INSERT INTO fencing.fence (resource, epoch, value)
    VALUES ('public.accounts/1', 0, 5), ('order/7', 0, 9), ('settings', 0, 5);
"""

RULES = [
    {"name": "public.shipments", "resource": "order/{order_id}"},
    {"name": "public.settings", "resource": "settings"},
    {"name": "public.rich", "resource": "public.accounts/{id}"},
]

ANY = "any"

# Fragments that the text of an error must not show, unless the request contained them first.
REVEALING = (" from ", "insert into", "returning", "fencing.", "_v1", "json_to_record", "traceback", "asyncpg", ".py")

# Classes of errors that say we have built a wrong statement, not that the caller has sent a wrong value.
OUR_MISTAKES = ("42601", "42702", "42P02", "42P08", "42P18", "42712", "26", "XX", "25001", "25P02", "08")


@pytest.fixture(scope="module")
def watched(postgres_server: EmbeddedPostgres) -> Iterator[Watched]:
    with (
        pytest.MonkeyPatch.context() as patch,
        watched_gateway(postgres_server, TABLES + ROWS, tables=RULES) as watched,
    ):
        # Each example puts the fences back. A gateway would take that for a restored database, and close it.
        patch.setattr(trust, "contradicts", lambda *_: False)
        yield watched


def fuzzed(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.thorough
@fuzzed(200)
@given(asked=requests())
def test_any_request_gets_a_clear_answer_and_writes_nothing_it_has_not_claimed(watched: Watched, asked: Asked) -> None:
    ask(watched, asked)


@pytest.mark.thorough
@fuzzed(70)
@given(asked=transactions())
def test_so_does_any_transaction(watched: Watched, asked: Asked) -> None:
    ask(watched, asked)


def ask(watched: Watched, asked: Asked) -> None:
    try:
        answer = watched.client.ask(asked.method, asked.target, asked.headers, asked.body)
        check_answer(watched, asked, answer)
        check_changes(watched, asked, answer)
    finally:
        watched.events.clear()
        watched.execute(ROWS)


@pytest.mark.thorough
def test_nothing_else_in_the_database_was_touched(watched: Watched) -> None:
    """After all of it: what identifiers and values might have smuggled in has dropped or made nothing."""
    found = watched.fetch(
        "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE nspname IN ('public', 'canary') AND relkind IN ('r', 'v') ORDER BY 1"
    )
    assert [name for (name,) in found] == ["accounts", "changes", "pairs", "rich", "settings", "shipments"]


def check_answer(watched: Watched, asked: Asked, answer: Answer) -> None:
    assert not watched.failures()
    assert answer.status < 500, answer
    if answer.status < 400 or asked.method == "HEAD":
        return
    if answer.status == 400 and "content-type" not in answer.headers:
        assert answer.body == b"", "what is no HTTP has no answer but its status"
        return
    document = answer.document
    assert not document["code"].startswith(OUR_MISTAKES), answer
    if answer.headers["content-type"] != "application/problem+json":
        assert list(document) == ["code", "message", "details", "hint"], answer
        assert all(value is None or isinstance(value, str) for value in document.values()), answer
    else:
        assert asked.target == b"/v1/transaction" or document["code"] == "forbidden", answer
    text = " ".join(value for value in document.values() if isinstance(value, str)).lower()
    for revealing in REVEALING:
        assert revealing not in text or asked.mentions(revealing), answer


def check_changes(watched: Watched, asked: Asked, answer: Answer) -> None:
    changes = watched.fetch(
        "SELECT DISTINCT c.resource, f.epoch, f.value FROM canary.changes c LEFT JOIN fencing.fence f USING (resource)"
    )
    if not changes:
        return
    assert answer.status < 300, (answer, changes)
    assert asked.method in ("POST", "PATCH", "PUT", "DELETE")
    tokens = presented(asked)
    for resource, epoch, value in changes:
        assert Token(epoch, value) in tokens.get(resource, tokens[ANY]), (changes, tokens)


def presented(asked: Asked) -> dict[str, list[Token]]:
    """The tokens that were sent, by the resource they are for; ``ANY`` has those that name none."""
    sent = [value for name, value in asked.headers if name in (b"fencing-token", b"x-fencing-token")]
    if asked.target == b"/v1/transaction":
        sent += [write["token"].encode() for write in orjson.loads(asked.body)["writes"] if "token" in write]
    tokens: dict[str, list[Token]] = {ANY: []}
    for value in sent:
        shown = fencing_headers.read([(fencing_headers.TOKEN, value)], pairs=True)
        if shown.token is not None:
            tokens[ANY].append(shown.token)
        for resource, token in shown.pairs:
            tokens.setdefault(resource, []).append(token)
    return tokens
