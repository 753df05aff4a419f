"""Requests of all planes without their framing, each with the change that it may make.

A request that writes carries a mark, a number that no other request has. A mark found in a table, in a key or in a
fence says which request took effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from typing import TypeVar
from urllib.parse import quote, urlencode

from botocore.auth import S3SigV4PostAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as PostCredentials
from urllib3.filepost import encode_multipart_formdata

from gateway.auth.sigv4 import RequestHead, StoreCredentials, presign, sign
from tests.fuzz.reading import Fields
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY

HOST = "fuzz.example"
BUCKET = "bucket"
WRONG_KEY, OTHER_KEY, AUDITOR_KEY = "a-key-nobody-has", "mallory-api-key", "auditor-api-key"
ACCOUNTS = range(1, 13)
STALE_ACCOUNT = 99
HELD, NEWEST = 7, 1000
"""The token that writers hold, and the one of the newer holder of what is stale."""
FIRST_MARK = 10_000_000

PROVEN = frozenset(("bearer", "apikey", "auditor", "other"))
"""The ways to show a key by which a caller is known."""

SINGULAR = ("Accept", "application/vnd.pgrst.object+json")
LIMITED = ("Prefer", "handling=strict, max-affected=1")
DRY = ("Prefer", "tx=rollback, handling=strict")
ELSEWHERE = ("Content-Profile", "other")
JSON = ("Content-Type", "application/json")

_NASTY = (
    "", "0", "-1", "1e999", "NaN", "9" * 40, "\0", "a\0b", "ä", "\u202e", "\U0001f600", "\ud800", "%", "%2F", "..", ".",
    "a/b", "a b", "a+b", "'", '"', "';--", "{}", "[]", "null", "true", "$(id)", "<x>", "a,b", "a=b", "x" * 600,
    "x" * 5000, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2026-02-30", "infinity", "\\", "*", "eq.",
    "in.(", "not.",
)  # fmt: skip
_NONSENSE = (
    b"", b"{", b"null", b"[]", b"[" * 5000, b"[[],[]]" * 50, b'{"a": ' * 500 + b"1" + b"}" * 500, b"\xff\xfe", b"\0",
    b'"\\ud800"', b'{"mark": 1e400}', b'{"token": "7", "token": "8"}', b"NaN", b"1" * 5000, b"x=1&y=2", b"id,mark\n1",
    b'{"id": "\\u0000"}', b"{}" * 3, b" " * 3000,
)  # fmt: skip
_IN_TRAILERS = (
    ELSEWHERE, LIMITED, DRY, SINGULAR, ("Authorization", f"Bearer {API_KEY}"), ("apikey", API_KEY),
    ("Fencing-Token", str(HELD)), ("Fencing-Token", str(NEWEST * 2)), ("x-amz-meta-fencing-token", str(HELD)),
    ("Prefer", "return=representation"), ("Content-Length", "5"), ("Transfer-Encoding", "chunked"), ("Host", "other"),
    ("Fencing-Resource", "fz/trailer"), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ("Expect", "100-continue"),
    ("X-Junk", "a" * 30_000), ("Content-Encoding", "gzip"),
)  # fmt: skip
_ITEM = TypeVar("_ITEM")


@dataclass(frozen=True, slots=True)
class Effect:
    """The change that a request would make. ``allowed``: it may, if all of it arrives.

    ``certain``: a success means that it has.

    ``place`` is the table, ``object``, ``fence`` or ``lease``; ``name`` the key or resource; ``rows`` how many at most.
    ``token`` is what a fence may be raised to; None: to any. ``bodiless``: its body means nothing, and is not awaited.
    """

    mark: int
    place: str
    allowed: bool
    certain: bool = False
    name: str = ""
    token: int | None = HELD
    rows: int = 1
    bodiless: bool = False


@dataclass(slots=True)
class Deed:
    """A request without framing. ``known``: its head proves a caller. ``endless``: its answer may have no end."""

    id: str
    method: str
    target: str
    headers: Fields = field(default_factory=list)
    body: bytes = b""
    trailers: Fields = field(default_factory=list)
    known: bool = False
    effect: Effect | None = None
    endless: bool = False


class Choices:
    """Chance, and what is chosen from on every plane.

    ``mark`` makes the next mark; ``cookie`` is a session of the page.
    """

    def __init__(self, random: Random, mark: Callable[[], int], cookie: str) -> None:
        self.random, self.mark, self.cookie = random, mark, cookie

    def one(self, *items: _ITEM) -> _ITEM:
        return self.random.choice(items)

    def often(self, share: float) -> bool:
        return self.random.random() < share

    def key(self) -> str:
        """Choose a way to show an API key, or none."""
        return self.one(*["bearer"] * 4, "apikey", "other", "none", "wrong", "twice", "two callers", "malformed")

    def authorization(self, key: str) -> Fields:
        good = ("Authorization", f"Bearer {API_KEY}")
        malformed = self.one("Bearer", "Basic eDp5", API_KEY, "Bearer  ", self.nasty_header())
        shown: dict[str, Fields] = {
            "bearer": [good],
            "apikey": [("apikey", API_KEY)],
            "auditor": [("Authorization", f"Bearer {AUDITOR_KEY}")],
            "other": [("Authorization", f"Bearer {OTHER_KEY}")],
            "none": [],
            "wrong": [("Authorization", f"Bearer {WRONG_KEY}")],
            "twice": [good, good],
            "two callers": [good, ("apikey", OTHER_KEY)],
            "malformed": [("Authorization", malformed)],
        }
        return list(shown[key])

    def token(self) -> str:
        """Choose a way to show a fencing token, or none. ``stale``: the place has a newer holder."""
        return self.one(*["held"] * 4, "stale", "none", "twice", "alias twice", "malformed")

    def tokens(self, token: str) -> Fields:
        held = ("Fencing-Token", str(HELD))
        shown: dict[str, Fields] = {
            "held": [held],
            "stale": [held],
            "none": [],
            "twice": [held, held],
            "alias twice": [held, ("Fencing_Token", str(NEWEST * 2))],
            "malformed": [("Fencing-Token", "07")],
        }
        return list(shown[token])

    def trailers(self, name: str) -> Fields:
        """Choose fields that would change everything, were they in the head."""
        palette = (*_IN_TRAILERS, ("X-Request-Id", f"{name}-trailer"), ("X-Request-Id", f"{name}-trailer"))
        return self.random.sample(palette, self.one(0, 0, 1, 1, 2, 4))

    def nasty(self) -> str:
        """Choose a text that programs stumble over."""
        return self.one(*_NASTY)

    def nasty_header(self) -> str:
        """Choose the same, as far as it can stand in a header."""
        return self.nasty().replace("\0", "\x80").encode("utf-8", "surrogatepass").decode("latin-1")

    def nasty_segment(self, safe: str = "") -> str:
        """Choose the same, as it stands in a path."""
        return quote(self.nasty(), safe=safe, errors="surrogatepass")

    def nasty_query(self, names: str, least: int = 0) -> str:
        """Choose some of these parameters, separated by spaces, with such values."""
        chosen = [self.one(*names.split()) for _ in range(self.random.randint(least, 4))]
        return urlencode([(name, self.nasty()) for name in chosen], errors="surrogatepass")

    def nonsense(self) -> bytes:
        """Choose a body that hardly means anything."""
        return self.one(*_NONSENSE, self.random.randbytes(50))


# Tables ------------------------------------------------------------------------------------------

_REPRESENTATION = ("Prefer", "return=representation")
_FORMS: dict[str, Fields] = {
    "plain": [],
    "other": [ELSEWHERE],
    "limited": [LIMITED],
    "dry": [DRY],
    "representation": [_REPRESENTATION],
    "singular": [SINGULAR, _REPRESENTATION],
    "minimal": [("Prefer", "return=minimal")],
    "other, representation": [ELSEWHERE, _REPRESENTATION],
}
_UNDONE = ("limited", "dry", "singular")
"""Of two rows, none of these changes any."""
_OF_TABLES = "select order limit offset account_id and or mark entries.id on_conflict columns"
_QUERIES = ("id=eq.1", "mark=gt.5&order=id.desc", "select=id,account_id", "or=(id.eq.1,id.eq.2)", "id=in.(1,2,3)")


def update(name: str, choices: Choices) -> Deed:
    """Update both rows of an account."""
    mark, key, token = choices.mark(), choices.key(), choices.token()
    form = choices.one(*_FORMS)
    headers = [*choices.authorization(key), *choices.tokens(token), *_FORMS[form], JSON]
    allowed = key in PROVEN and token == "held" and form not in _UNDONE
    effect = Effect(mark, f"{_schema(form)}.entries", allowed, certain=allowed, rows=2)
    target = f"/v1/tables/entries?account_id=eq.{_account(token, choices)}"
    body = json.dumps({"mark": mark}).encode()
    return Deed(name, "PATCH", target, headers, body, choices.trailers(name), key in PROVEN, effect)


def insert(name: str, choices: Choices) -> Deed:
    """Insert a new row under a resource of its own: by POST, by PUT of the whole row, or by a function."""
    mark, key, token = choices.mark(), choices.key(), choices.token()
    form = choices.one("plain", "other", "representation", "dry", "minimal")
    schema = _schema(form)
    resource = f"{schema}.accounts/{mark}"
    headers = [*choices.authorization(key), *choices.tokens(token), *_FORMS[form]]
    method, target = choices.one(("POST", "accounts"), ("PUT", f"accounts?id=eq.{mark}"))
    calls = schema == "public" and choices.often(0.3)
    if calls:
        method, target = "POST", "rpc/add_account"
        headers.append(("Fencing-Resource", resource))
    body, kind = json.dumps({"id": mark, "mark": mark}).encode(), JSON
    if target == "accounts" and choices.often(0.3):
        body, kind = f"id,mark\n{mark},{mark}\n".encode(), ("Content-Type", "text/csv")
    # A new row has no newer holder.
    allowed = key in PROVEN and token in ("held", "stale") and form != "dry"
    effect = Effect(mark, f"{schema}.accounts", allowed, certain=allowed and not calls, name=resource)
    trailers = choices.trailers(name)
    return Deed(name, method, f"/v1/tables/{target}", [*headers, kind], body, trailers, key in PROVEN, effect)


def transaction(name: str, choices: Choices) -> Deed:
    """Send a list of one write, or a malformed list."""
    mark, key, token = choices.mark(), choices.key(), choices.token()
    query = f"account_id=eq.{_account(token, choices)}"
    write = {"method": "PATCH", "table": "entries", "query": query, "body": {"mark": mark}}
    document: object = {"writes": [write]}
    if choices.often(0.2):
        other: dict[str, object] = {
            choices.one("query", "table", "token", "schema", "method", "prefer"): choices.nasty()
        }
        document = choices.one({"writes": []}, {"writes": [write] * 101}, [], None, {"writes": [{**write, **other}]})
    headers = [*choices.authorization(key), *choices.tokens(token), JSON]
    # It may be for another account by now, whose fence the token may raise.
    effect = Effect(mark, "public.entries", key in PROVEN and token == "held", rows=2)
    body = json.dumps(document).encode()
    return Deed(name, "POST", "/v1/transaction", headers, body, choices.trailers(name), key in PROVEN, effect)


def read_rows(name: str, choices: Choices) -> Deed:
    key = choices.key()
    table, query = choices.one("entries", "accounts"), choices.one(*_QUERIES)
    further: Fields = [
        choices.one(
            ("Accept-Profile", "other"), SINGULAR, ("Accept", "text/csv"), ("Prefer", "count=exact"), ("Range", "0-1")
        )
    ]
    headers = [*choices.authorization(key), *further[: choices.one(0, 1)]]
    return Deed(name, choices.one("GET", "GET", "HEAD"), f"/v1/tables/{table}?{query}", headers, known=key in PROVEN)


def odd_rows(name: str, choices: Choices) -> Deed:
    """Send odd queries, tables and bodies, and deletes without a token."""
    key = choices.key()
    headers = choices.authorization(key)
    segment = choices.nasty_segment()
    table = choices.one("", "nothing", "rpc/", "rpc/nothing", "rpc/add_account", "pg_class", "a/b", segment)
    method, target = choices.one(
        (choices.one("GET", "HEAD", "POST", "PATCH", "DELETE", "PUT"), f"entries?{choices.nasty_query(_OF_TABLES, 1)}"),
        (choices.one("GET", "POST", "OPTIONS", "PATCH"), table),
        ("DELETE", f"entries?account_id=eq.{choices.one(*ACCOUNTS)}"),
        ("OPTIONS", "entries"),
    )
    if method == "OPTIONS":
        headers += [("Access-Control-Request-Method", "PATCH"), ("Origin", "http://a")]
    elif "account_id=eq" not in target:  # with a token it would delete what others write to
        headers += choices.tokens(choices.token())
    return Deed(
        name, method, f"/v1/tables/{target}", headers, choices.nonsense(), choices.trailers(name), key in PROVEN
    )


def _schema(form: str) -> str:
    return "other" if "other" in form else "public"


def _account(token: str, choices: Choices) -> int:
    return STALE_ACCOUNT if token == "stale" else choices.one(*ACCOUNTS)


# Buckets ------------------------------------------------------------------------------------------

_WRONG_SECRET = "a-secret-nobody-has"
_REGION = "us-east-1"
_GOOD = ("header", "unsigned payload", "presigned")
_SIGNATURES = (*_GOOD, "header", "header", "none", "wrong", "tampered", "other body", "trailer", "expired")
_MARKERS = (
    "list-type=2", "versions", "uploads", "acl", "tagging", "policy", "location", "torrent", "nothing", "delete",
    "cors", "versioning", "object-lock",
)  # fmt: skip
_OF_BUCKETS = "prefix delimiter max-keys continuation-token marker encoding-type start-after versionId fetch-owner"
_DOCUMENTS = (
    b"", b"<a>" * 2000, b"<Delete></Delete>", b"\xff\xfe<\0a\0>\0", b"<Tagging><TagSet/></Tagging>",
    b'<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><Delete>&d;</Delete>',
    b"<Delete>" + b"<Object><Key>fz/a</Key></Object>" * 1200 + b"</Delete>",
    b"<Delete><Object><Key>seed</Key></Object></Delete>",
    b"<CreateBucketConfiguration/>",
)  # fmt: skip
_FURTHER = (
    "range", "if-match", "x-amz-copy-source", "content-md5", "x-amz-checksum-crc32", "x-amz-sdk-checksum-algorithm",
)  # fmt: skip


def write_object(name: str, choices: Choices) -> Deed:
    """Write to a key of its own, or to one that a newer holder has."""
    mark, token = choices.mark(), choices.token()
    key = f"fz/stale/{mark}" if token == "stale" else f"fz/{mark}/x"
    headers = [("host", HOST), *((name.lower(), value) for name, value in choices.tokens(token))]
    kind, query, body = choices.one(
        *[("put", "", choices.random.randbytes(choices.one(0, 1, 100, 20_000)))] * 4,
        ("copy", "", b""),
        ("delete", "", b""),
        ("create", "?uploads=", b""),
        ("part", "?partNumber=1&uploadId=nothing", b"part"),
        ("complete", "?uploadId=nothing", b"<CompleteMultipartUpload/>"),
    )
    if kind == "copy":
        headers.append(("x-amz-copy-source", f"/{BUCKET}/seed"))
    method = {"delete": "DELETE", "create": "POST", "complete": "POST"}.get(kind, "PUT")
    signature = choices.one(*_SIGNATURES)
    # A body that means nothing to its operation is not held against its digest.
    bodiless = kind in ("copy", "delete", "create")
    known = signature in (*_GOOD, "other body")
    allowed = known and token == "held" and (signature != "other body" or bodiless)
    certain = allowed and kind in ("put", "copy")
    effect = Effect(mark, "object", allowed, certain=certain, name=key, bodiless=bodiless)
    deed = Deed(name, method, f"/{BUCKET}/{key}{query}", headers, body, choices.trailers(name), known, effect)
    _sign(deed, signature)
    return deed


def read_object(name: str, choices: Choices) -> Deed:
    """Read, list, delete several or change settings, often with odd documents and values."""
    marker, key = choices.one(*_MARKERS), choices.nasty_segment("/")
    document = choices.one(*_DOCUMENTS, choices.nonsense())
    method, target, body = choices.one(
        (choices.one("GET", "HEAD"), f"/{BUCKET}/seed", b""),
        (
            choices.one("GET", "HEAD", "POST", "OPTIONS"),
            f"/{BUCKET}?{marker}&{choices.nasty_query(_OF_BUCKETS)}",
            document,
        ),
        (choices.one("GET", "HEAD", "POST", "OPTIONS"), f"/{BUCKET}/{key}?{marker}", document),
        ("PUT", f"/{BUCKET}?{marker}", document),
        (choices.one("GET", "HEAD"), f"/{key}", b""),
        ("GET", f"/no-such-bucket/{key}", b""),
        ("GET", "/", b""),
    )
    headers = [("host", HOST)]
    if choices.often(0.3):
        headers.append((choices.one(*_FURTHER, "fencing-token"), choices.nasty_header()))
    signature = choices.one(*_SIGNATURES)
    deed = Deed(name, method, target, headers, body, choices.trailers(name), signature in (*_GOOD, "other body"))
    _sign(deed, signature)
    return deed


def object_form(name: str, choices: Choices) -> Deed:
    """Upload a form, as a browser sends it, or a part of one."""
    mark = choices.mark()
    signature, token = choices.one("good", "good", "wrong", "none"), choices.one("held", "held", "none")
    key = f"fz/{mark}/x"
    fields = {"key": key, "x-amz-meta-fencing-token": str(HELD)} if token == "held" else {"key": key}
    if signature != "none":
        conditions = [{one: value} for one, value in {"bucket": BUCKET, **fields}.items()]
        request = AWSRequest(method="POST", url=f"http://{HOST}/{BUCKET}")
        request.context["s3-presign-post-fields"] = fields
        request.context["s3-presign-post-policy"] = {"expiration": "2999-01-01T00:00:00Z", "conditions": conditions}
        secret = SECRET_KEY if signature == "good" else _WRONG_SECRET
        S3SigV4PostAuth(PostCredentials(ACCESS_KEY, secret), "s3", _REGION).add_auth(request)
    file = ("name", b"x" * choices.one(0, 10, 20_000))
    content, kind = encode_multipart_formdata({**fields, "file": file}, f"b{mark}")
    if choices.often(0.3):
        content = choices.one(content[: choices.random.randrange(len(content))], content.replace(b"\r\n", b"\n"))
    kind = choices.one(kind, kind, "multipart/form-data", f"multipart/form-data; boundary={'x' * 100}")
    effect = Effect(mark, "object", signature == "good" and token == "held", name=key)
    headers = [("Host", HOST), ("Content-Type", kind)]
    return Deed(name, "POST", f"/{BUCKET}", headers, content, choices.trailers(name), signature == "good", effect)


def _sign(deed: Deed, how: str) -> None:
    if how == "none":
        return
    path, _, query = deed.target.partition("?")
    credentials = StoreCredentials(ACCESS_KEY, _WRONG_SECRET if how == "wrong" else SECRET_KEY, _REGION)
    now = datetime.now(UTC) - (timedelta(hours=1) if how == "expired" else timedelta())
    headers = [(name.encode(), value.encode("latin-1")) for name, value in deed.headers]
    head = RequestHead(deed.method, path.encode(), query.encode(), headers)
    if how in ("presigned", "expired"):
        deed.target = f"{path}?{presign(head, credentials, now, timedelta(minutes=10))}"
        return
    payload = sha256(b"other" + deed.body if how == "other body" else deed.body).hexdigest()
    added = dict(sign(head, "UNSIGNED-PAYLOAD" if how == "unsigned payload" else payload, credentials, now))
    if how == "tampered":
        signature = added["authorization"]
        added["authorization"] = signature[:-1] + ("1" if signature.endswith("0") else "0")
    (deed.trailers if how == "trailer" else deed.headers).extend(added.items())


# The fencing API, health and metrics, and the page --------------------------------------------------

_NO_LEASE = "00000000-0000-4000-8000-000000000000"
_FILTERS = (
    "resource prefix holder caller reason plane rule enforced token since until before after limit kind order total"
)
_FIELDS = (
    "token", "holder", "resource", "ttl", "sequencer", "expected", "reason", "wait", "request", "writes", "leases",
)  # fmt: skip
_OF_THE_PAGE = "since until resource prefix span kind token before after enforced next v"


def barrier(name: str, choices: Choices) -> Deed:
    mark, key = choices.mark(), choices.key()
    stale = choices.often(0.2)
    resource = f"account/{STALE_ACCOUNT}" if stale else f"fz/{mark}{choices.one('', '/a', '/c%2Fd', '/%C3%A4', '/a+b')}"
    allowed = key in PROVEN and not stale and "%2F" not in resource
    if choices.often(0.1):
        document = {"token": choices.nasty(), "holder": choices.nasty()}
        effect = Effect(mark, "fence", allowed, name=resource, token=None)
    else:
        document = {"token": str(HELD)}
        effect = Effect(mark, "fence", allowed, certain=allowed, name=resource)
    headers, body = [*choices.authorization(key), JSON], json.dumps(document).encode()
    target = f"/v1/fences/{resource}/barrier"
    return Deed(name, "POST", target, headers, body, choices.trailers(name), key in PROVEN, effect)


def lease(name: str, choices: Choices) -> Deed:
    """Ask for a lock of its own, or for anything else about it."""
    mark, key = choices.mark(), choices.key()
    resource = f"fz/{mark}{choices.one('', '/c%2Fd', '/a+b')}"
    wish = json.dumps({"holder": "fuzz", "ttl": 1.0, "barrier": choices.often(0.5)}).encode()
    many = [{"resource": resource, "lease": _NO_LEASE}] * choices.one(0, 1, 3, 1001)
    acquire = ("POST", f"/v1/leases/{resource}", wish)
    method, target, body = choices.one(
        acquire,
        acquire,
        acquire,
        ("POST", f"/v1/leases/{resource}", choices.nonsense()),
        ("PUT", f"/v1/leases/{resource}/{_NO_LEASE}", b'{"ttl": 5}'),
        ("DELETE", f"/v1/leases/{resource}/{_NO_LEASE}", b""),
        ("POST", f"/v1/withdrawals/{resource}", b'{"holder": "a", "request": "b"}'),
        ("PUT", "/v1/leases", json.dumps({"leases": many}).encode()),
    )
    effect = Effect(mark, "lease", key in PROVEN and "%2F" not in resource, name=resource, token=None)
    headers = [*choices.authorization(key), JSON]
    return Deed(name, method, target, headers, body, choices.trailers(name), key in PROVEN, effect)


def any_route(name: str, choices: Choices) -> Deed:
    """Ask any route, with odd values."""
    key = choices.one("bearer", "bearer", "auditor", "apikey", "none", "wrong", "twice")
    headers = choices.authorization(key)
    one = choices.nasty_segment(choices.one("", "/"))
    if choices.often(0.6):
        path = choices.one(
            "fences", f"fences/{one}", "leases", f"leases/{one}", "rejections", f"rejections/{one}", "events",
            f"events/{one}", "rejections.csv", "events.ndjson", "record/head", f"reports/{one}", "webhooks",
            "openapi.json", "docs", one, "events/stream", "rejections/stream",
        )  # fmt: skip
        target = f"/v1/{path}?{choices.nasty_query(_FILTERS)}"
        return Deed(name, "GET", target, headers, known=key in PROVEN, endless=path.endswith("stream"))
    path = choices.one(
        f"fences/{one}/barrier", f"fences/{one}/epoch", f"breaks/{one}", f"leases/{one}", f"withdrawals/{one}",
        "credentials", "sequencers/check", f"webhooks/{one}/test", "transaction",
    )  # fmt: skip
    values: tuple[object, ...] = (choices.nasty(), 0, 1, -1, 2**63, 1e300, None, True, [], {})
    document = {one: choices.one(*values) for one in choices.random.sample(_FIELDS, 3)}
    body = choices.one(json.dumps(document).encode(), choices.nonsense())
    kind = choices.one("application/json", "text/plain", "x", "application/json; charset=utf-7")
    method = choices.one("POST", "POST", "PUT", "DELETE")
    headers.append(("Content-Type", kind))
    return Deed(name, method, f"/v1/{path}", headers, body, choices.trailers(name), key in PROVEN)


def watching(name: str, choices: Choices) -> Deed:
    """Ask for health or metrics."""
    key = choices.key()
    target = choices.one("/v1/metrics", "/v1/health", "/v1/ready", "/v1/health?x=%00")
    accept = choices.one("*/*", "application/openmetrics-text", choices.nasty_header())
    headers = [*choices.authorization(key), ("Accept", accept)]
    return Deed(name, choices.one("GET", "GET", "HEAD", "POST"), target, headers, known=key in PROVEN)


def page(name: str, choices: Choices) -> Deed:
    """Ask for a page, with a session or without."""
    session = choices.one(choices.cookie, choices.cookie, "", "forged", choices.nasty_header())
    headers = [("Cookie", f"gateway_session={session}")] if session else []
    one = choices.nasty_segment("/")
    path = choices.one(
        "", "login", "rejections", f"rejections/{one}", "events", f"events/{one}", "observing", "resources",
        f"resources/{one}", "static/nothing", f"static/{one}", "live", "live/stream", "report", "rejections.csv",
        "events.ndjson", one,
    )  # fmt: skip
    target = f"/ui/{path}?{choices.nasty_query(_OF_THE_PAGE)}"
    known, endless = session == choices.cookie, path.endswith("stream")
    return Deed(name, choices.one("GET", "GET", "HEAD"), target, headers, known=known, endless=endless)


def page_form(name: str, choices: Choices) -> Deed:
    """Send a form of the page: from it, or from elsewhere."""
    origin = choices.one(f"http://{HOST}", "http://evil.example", "null", "http://[", "")
    key = choices.one(AUDITOR_KEY, API_KEY, WRONG_KEY, choices.nasty())
    filled = urlencode({"api_key": key, "next": choices.nasty()}, errors="surrogatepass").encode()
    headers = [("Origin", origin)] if origin else []
    headers.append(("Content-Type", "application/x-www-form-urlencoded"))
    target = choices.one("/ui/login", "/ui/logout", "/ui/theme", "/ui/", "/ui/rejections")
    return Deed(name, "POST", target, headers, choices.one(filled, choices.nonsense()), choices.trailers(name))
