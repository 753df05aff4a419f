"""One HTTP request of the dialect as one frozen value, with its media types and preferences (``Prefer``)."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal, TypeAlias

from gateway.errors import DialectError, RequestMalformed
from gateway.tables.dialect.etags import Preconditions, parse_preconditions
from gateway.tables.dialect.grammar import kept_if_short, not_implemented
from gateway.tables.dialect.query import Query, narrowed, parse_query

Form: TypeAlias = Literal["json", "stripped", "csv"]
BodyType: TypeAlias = Literal["json", "csv", "urlencoded", "text", "binary"]


@dataclass(frozen=True, slots=True)
class Media:
    """A form of answers. ``singular``: one object in place of an array; ``form`` stripped: JSON without its nulls."""

    name: str
    form: Form = "json"
    singular: bool = False
    content_type: tuple[bytes, bytes] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "content_type", (b"content-type", f"{self.name}; charset=utf-8".encode()))


JSON = Media("application/json")
CSV = Media("text/csv", "csv")
OBJECT = Media("application/vnd.pgrst.object+json", singular=True)
OBJECT_STRIPPED = Media("application/vnd.pgrst.object+json;nulls=stripped", "stripped", singular=True)
ARRAY_STRIPPED = Media("application/vnd.pgrst.array+json;nulls=stripped", "stripped")
OPENAPI = Media("application/openapi+json")

_ROWS = {
    "application/json": JSON, "application/*": JSON, "*/*": JSON, "text/csv": CSV,
    "application/vnd.pgrst.object+json": OBJECT, "application/vnd.pgrst.object": OBJECT,
    "application/vnd.pgrst.array+json": JSON, "application/vnd.pgrst.array": JSON,
}  # fmt: skip
_STRIPPED = {OBJECT: OBJECT_STRIPPED}
_ARRAYS = frozenset(("application/vnd.pgrst.array+json", "application/vnd.pgrst.array"))
_ROOT = {"application/openapi+json": OPENAPI, "application/json": OPENAPI, "application/*": OPENAPI, "*/*": OPENAPI}
_BODIES: dict[str, BodyType] = {
    "": "json", "application/json": "json", "text/csv": "csv", "application/x-www-form-urlencoded": "urlencoded",
    "text/plain": "text", "application/octet-stream": "binary",
}  # fmt: skip
_QUALITY = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")


@kept_if_short
def accepted(accept: str) -> Media | None:
    """Return the best form of rows that the caller accepts, by its ``q``, then by its order; None if there is none."""
    return JSON if not accept else _best(accept, _ROWS)


@kept_if_short
def root_accepted(accept: str) -> Media | None:
    return OPENAPI if not accept else _best(accept, _ROOT)


def not_acceptable(accept: str) -> DialectError:
    """PGRST107: nothing the caller accepts is served."""
    return DialectError("PGRST107", 406, f"None of these media types are available: {accept[:200]}")


def body_type(headers: Mapping[bytes, str]) -> BodyType:
    """Return the form of the body. Raise PGRST102 for an unsupported one."""
    name = headers.get(b"content-type", "").partition(";")[0].strip().lower()
    if name not in _BODIES:
        raise type_not_acceptable(name)
    return _BODIES[name]


def type_not_acceptable(name: str) -> DialectError:
    """PGRST102: bodies of this type are not read here."""
    return DialectError("PGRST102", 400, f"Content-Type not acceptable: {name[:100]}")


def _best(accept: str, served: Mapping[str, Media]) -> Media | None:
    offers: list[tuple[float, int, Media]] = []
    for position, item in enumerate(accept.split(",")):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        media, quality = served.get(name), _quality(parameters)
        if media is None or not quality:
            continue
        if "nulls=stripped" in parameters:
            media = ARRAY_STRIPPED if name in _ARRAYS else _STRIPPED.get(media, media)
        offers.append((-quality, position, media))
    return min(offers, key=lambda offer: offer[:2])[2] if offers else None


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        match = _QUALITY.fullmatch(parameter)
        if match:
            return float(match[1])
    return 1.0


@dataclass(frozen=True, slots=True)
class Preferences:
    """The ``Prefer`` header, reduced to what is known. ``invalid`` are its other members, as they were sent.

    ``timezone`` is as sent: only the database knows which zones there are. ``tx`` has no effect: writes are committed.
    """

    returns: Literal["minimal", "headers-only", "representation"] | None = None
    resolution: Literal["merge-duplicates", "ignore-duplicates"] | None = None
    missing: Literal["default", "null"] | None = None
    count: Literal["exact", "planned", "estimated"] | None = None
    tx: Literal["commit", "rollback"] | None = None
    strict: bool | None = None
    max_affected: int | None = None
    timezone: str | None = None
    invalid: tuple[str, ...] = ()

    @property
    def need_a_transaction(self) -> bool:
        """Whether a write must have a transaction of its own: to be undone by its result, or to have a setting."""
        return self.max_affected is not None or self.timezone is not None


_CHOICES: dict[str, tuple[str, frozenset[str]]] = {
    "return": ("returns", frozenset(("minimal", "headers-only", "representation"))),
    "resolution": ("resolution", frozenset(("merge-duplicates", "ignore-duplicates"))),
    "missing": ("missing", frozenset(("default", "null"))),
    "count": ("count", frozenset(("exact", "planned", "estimated"))),
    "tx": ("tx", frozenset(("commit", "rollback"))),
    "handling": ("strict", frozenset(("strict", "lenient"))),
}
# Characters of time zone names; any other text is an unknown preference.
_ZONE = re.compile(r"[A-Za-z0-9_+:/-]{1,64}")


@kept_if_short
def parse_preferences(header: str) -> Preferences:
    """Read ``Prefer``; the first of a kind wins. Nothing is refused yet: that is up to ``honoured``."""
    chosen: dict[str, object] = {}
    unknown: list[str] = []
    for item in filter(None, (part.strip() for part in header.split(","))):
        kind, _, value = (part.strip() for part in item.partition("="))
        name, values = _CHOICES.get(kind, ("", frozenset()))
        if value in values:
            chosen.setdefault(name, value == "strict" if name == "strict" else value)
        elif kind == "max-affected" and re.fullmatch(r"[0-9]{1,9}", value):
            chosen.setdefault("max_affected", int(value))
        elif kind == "timezone" and _ZONE.fullmatch(value):
            chosen.setdefault("timezone", value)
        else:
            unknown.append(item)
    if not chosen.get("strict"):
        chosen.pop("max_affected", None)
    return Preferences(**chosen, invalid=tuple(unknown))  # type: ignore[arg-type]  # the table above pairs every name with its values


def honoured(preferences: Preferences, *, zones: Container[str]) -> Preferences:
    """Return the preferences that can be honoured. ``zones`` are the existing time zones.

    Raise PGRST122 if handling is strict and a preference cannot be honoured: a caller that insists on a rollback must
    not get a commit. A caller that insists on a commit gets it in any case.
    """
    exists = preferences.timezone is None or preferences.timezone in zones
    if not preferences.invalid and preferences.tx is None and exists:
        return preferences
    if preferences.strict:
        invalid = [*preferences.invalid]
        invalid += ["tx=rollback"] if preferences.tx == "rollback" else []
        invalid += [] if exists else [f"timezone={preferences.timezone}"]
        if invalid:
            raise DialectError(
                "PGRST122", 400, "Invalid preferences given with handling=strict",
                details=f"Invalid preferences: {', '.join(invalid)[:200]}",
            )  # fmt: skip
    return replace(preferences, tx=None, timezone=preferences.timezone if exists else None)


READS = frozenset(("GET", "HEAD"))
WRITES = frozenset(("POST", "PATCH", "PUT", "DELETE"))

HEADERS = frozenset((
    b"prefer", b"accept", b"accept-profile", b"content-profile", b"content-type", b"content-length", b"range",
    b"if-match", b"if-none-match", b"idempotency-key",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """One request for one table. ``media``: the form of answer that the caller wants."""

    method: str
    query: Query
    preferences: Preferences
    media: Media = JSON
    preconditions: Preconditions | None = None

    @property
    def wants_rows(self) -> bool:
        return self.preferences.returns == "representation"


def headings(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """Return the headers of the dialect by lower-case name; repeatable ones are joined by commas."""
    found: dict[bytes, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.lower()
        if name in HEADERS:
            value = raw_value.decode("latin-1")
            found[name] = f"{found[name]},{value}" if name in found else value
    return found


def profile_of(method: str, headers: Mapping[bytes, str]) -> str | None:
    """Return the schema that the caller names: Content-Profile on writes, Accept-Profile on all other requests."""
    return headers.get(b"content-profile" if method in WRITES else b"accept-profile")


def parse(method: str, query_string: bytes, headers: Mapping[bytes, str]) -> Request:
    """Read one request. Raises ``DialectError`` with PostgREST's code for whatever cannot be read or is not served."""
    query = parse_query(query_string)
    if query.embeds and method not in READS:
        raise not_implemented("Embedding on a write or a call")
    if method == "GET" and b"range" in headers:
        query = narrowed(query, headers[b"range"])
    return Request(
        method=method,
        query=query,
        preferences=parse_preferences(headers.get(b"prefer", "")),
        media=accepted(headers.get(b"accept", "")) or JSON,
        preconditions=parse_preconditions(headers.get(b"if-match"), headers.get(b"if-none-match")),
    )


def settled(request: Request, headers: Mapping[bytes, str], *, zones: Container[str]) -> Request:
    """Return the request with the preferences that can be honoured. ``zones`` are the existing time zones.

    Raise PGRST122 for preferences that strict handling refuses, PGRST107 if no form of answer is acceptable.
    """
    preferences = honoured(request.preferences, zones=zones)
    accept = headers.get(b"accept", "")
    if accepted(accept) is None:
        raise not_acceptable(accept)
    return request if preferences is request.preferences else replace(request, preferences=preferences)


def unsupported(method: str) -> DialectError:
    """PGRST117: a method that means nothing here."""
    return DialectError("PGRST117", 405, f"Unsupported HTTP method: {method[:20]}")


Kind: TypeAlias = Literal["table", "function", "root"]


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a request, as the client names it. ``shown_schema``: the answer names its schema."""

    schema: str
    name: str
    shown_schema: bool

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"


def name_of(path: str, prefixes: Sequence[str]) -> tuple[Kind, str]:
    """Return the kind of a path (table, function, or root) and its name. Raise PGRST125 for any other path."""
    for prefix in prefixes:
        if path.startswith(prefix):
            rest = path[len(prefix) :]
            if not rest:
                return "root", ""
            rest = rest.removesuffix("/")
            kind: Kind = "function" if rest.startswith("rpc/") else "table"
            name = rest.removeprefix("rpc/")
            if name and "/" not in name and "\0" not in name:
                return kind, name
    raise DialectError("PGRST125", 404, "Invalid path specified in request URL")


def target(name: str, profile: str | None, schemas: Sequence[str]) -> Target:
    """``profile`` None: the first of the exposed ``schemas``. Raises PGRST106 for a schema that is not exposed."""
    if profile is None:
        return Target(schemas[0], name, len(schemas) > 1)
    if profile not in schemas:
        raise DialectError(
            "PGRST106",
            406,
            f"Invalid schema: {profile[:100]}",
            hint=f"Only the following schemas are exposed: {', '.join(schemas)}",
        )
    return Target(profile, name, shown_schema=True)


HEADER = b"idempotency-key"
REPLAYED = (b"idempotency-replayed", b"true")

MOST_OF_KEY = 255
# A string of RFC 8941, or the same without its quotes where nothing in it needs them.
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_BARE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+")
KEY_GRAMMAR = rf"({_QUOTED.pattern.replace('*', '+')}|{_BARE.pattern})"
"""The form of the header, as schemas say it."""

# Headers that decide the effect of a request, or the form of its answer.
_MEANT = (b"content-type", b"prefer", b"accept", b"if-match", b"if-none-match")


def parse_key(headers: Mapping[bytes, str]) -> str | None:
    """Return the key in the header, if there is one. Raise ``RequestMalformed``."""
    if HEADER not in headers:
        return None
    text = headers[HEADER].strip(" \t")
    quoted = _QUOTED.fullmatch(text)
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else text if _BARE.fullmatch(text) else ""
    if not 1 <= len(key) <= MOST_OF_KEY:
        raise RequestMalformed(
            f"Idempotency-Key is not one key of 1 to {MOST_OF_KEY} printable ASCII characters.",
            advice="Send one key in double quotes, such as a new UUID for each thing you want done.",
        )
    return key


def fingerprint(
    method: str, path: str, schema: str, query_string: bytes, headers: Mapping[bytes, str], body: bytes
) -> bytes:
    """Return the fingerprint of this request: 32 bytes. ``headers`` by lower-case name.

    Clients may send the parameters of a query, and the names in ``columns``, in another order the next time.
    """
    parameters = sorted(_columns_sorted(part) for part in query_string.split(b"&"))
    meant = [headers.get(name, "").encode("latin-1", "replace") for name in _MEANT]
    return digest([method.encode(), path.encode(), schema.encode(), b"&".join(parameters), *meant, body])


def digest(parts: Iterable[bytes]) -> bytes:
    """One digest of several parts, each kept apart from the next."""
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()


def _columns_sorted(parameter: bytes) -> bytes:
    name, equals, value = parameter.partition(b"=")
    if name != b"columns":
        return parameter
    return name + equals + b",".join(sorted(value.replace(b"%2C", b",").replace(b"%2c", b",").split(b",")))
