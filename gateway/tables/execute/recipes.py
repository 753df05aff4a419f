"""Recipes: the way from plain requests of one form to a statement, worked out once and kept. Pure.

A *form* is a request without its values: its method, path, dialect headers and filter names, and all other parameters
to the letter. A recipe is learnt from a planned request, and decides nothing of its own. It puts
the values of the next request of that form into the same statement and the same resource name. A request that is not
plain has no form, and is planned each time. Nor has a long one, because forms are kept.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from gateway.bounded import Bounded
from gateway.errors import GatewayError
from gateway.fencing import headers as fencing_headers
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.resource import MAX_BYTES, escape
from gateway.http.body import SMALL
from gateway.http.head import LONGEST, Head
from gateway.observe.events import WriteAccepted
from gateway.tables.dialect.body import Payload
from gateway.tables.dialect.grammar import Condition, Field
from gateway.tables.dialect.query import RESERVED, pins
from gateway.tables.dialect.request import HEADERS, Request
from gateway.tables.dialect.response import Headers as Headings
from gateway.tables.dialect.response import Response
from gateway.tables.naming import canonical_text
from gateway.tables.schema_cache import CachedTable
from gateway.tables.sql.expressions import Statement
from gateway.tables.sql.shape import MOST

MOST_NAMES = 1024
_MOST_IN_ONE = 100
_MOST_BODIES = 64
_MOST_FORMS = 16
_OF_OBJECTS = 8

Headers: TypeAlias = Mapping[bytes, bytes]
_NO_VALUES: Mapping[str, object] = MappingProxyType({})

# The headers that are part of a form. Any other header of the dialect makes a request special.
_IN_FORM = (b"prefer", b"accept", b"content-type", b"accept-profile", b"content-profile")
_FENCING = (b"fencing-token", b"fencing-holder", b"fencing-resource", b"fencing-sequencer")
_VALUES = frozenset((*_FENCING, b"content-length"))
_SPECIAL = (HEADERS | {b"expect"}) - _VALUES - frozenset(_IN_FORM)
_SPECIAL_STARTS = (b"fencing-", b"x-fencing-", b"if-")
# Values that need no decoding and mean themselves everywhere.
_PLAIN_VALUE = rb"[A-Za-z0-9_.:-]{1,200}"
_IS_PLAIN = re.compile(_PLAIN_VALUE).fullmatch
_PLAIN_FILTER = re.compile(rb"([a-z_][a-z0-9_]{0,62})=eq\.(%b)" % _PLAIN_VALUE)
_PARAMETERS = frozenset(name.encode() for name in RESERVED)


class RequestForm(NamedTuple):
    """A plain request without its values. ``parameters`` are names of filters, or other parameters as sent.

    ``acting``: it runs under a role of the database.
    """

    method: str
    path: str
    headers: tuple[bytes | None, ...]
    parameters: tuple[bytes | str, ...]
    acting: bool = False

    @property
    def size(self) -> int:
        """Return the bytes that it takes, roughly, with the objects that it was read to."""
        return _OF_OBJECTS * sum(map(len, (self.path, *filter(None, self.headers), *self.parameters)))


class PlainRequest(NamedTuple):
    """A plain request: its form, the values of its filters in order, and its headers.

    ``fencing``: what the fencing headers say, if they were read already.
    """

    form: RequestForm
    values: list[str]
    headers: Headers
    fencing: FencingHeaders | None = None

    def shown(self) -> FencingHeaders:
        """Return the fencing headers. Raises what ``gateway.fencing.headers.read`` raises."""
        return self.fencing or _fencing_headers(self.headers)


class PlainHead(NamedTuple):
    """The head of a plain request, but for its query.

    ``forms``: those of queries with one filter, by its name. ``acting`` and ``fencing``: as in the whole request.
    """

    method: str
    path: str
    in_form: tuple[bytes | None, ...]
    headers: Headers
    forms: dict[bytes, RequestForm]
    acting: bool = False
    fencing: FencingHeaders | None = None

    def without_secrets(self) -> "PlainHead":
        """Return the same head with those headers only that forms and recipes look at."""
        kept = {name: self.headers[name] for name in (*_IN_FORM, *_FENCING) if name in self.headers}
        return self._replace(headers=kept)

    def with_values(self, changing: Headers) -> "PlainHead":
        """Return the same head with these headers in place of its own."""
        headers = {**self.headers, **changing}
        with suppress(GatewayError):  # each request finds the same error
            return self._replace(headers=headers, fencing=_fencing_headers(headers))
        return self._replace(headers=headers)

    def with_query(self, query_string: bytes) -> PlainRequest | None:
        """Return the whole request as a form and its values. None if the query is not plain."""
        name, _, only = query_string.partition(b"=eq.")
        form = self.forms.get(name)
        if form is not None and _IS_PLAIN(only):
            return PlainRequest(form, [only.decode()], self.headers, self.fencing)
        if len(query_string) > LONGEST:
            return None
        parameters: list[bytes | str] = []
        values: list[str] = []
        for part in query_string.split(b"&") if query_string else ():
            match = _PLAIN_FILTER.fullmatch(part)
            if match and match[1] not in _PARAMETERS:
                parameters.append(match[1].decode())
                values.append(match[2].decode())
            elif part.partition(b"=")[0] in _PARAMETERS:
                # The name of a filter is text and this is bytes, so the two cannot be confused.
                parameters.append(part)
            else:
                return None
        form = RequestForm(self.method, self.path, self.in_form, tuple(parameters), self.acting)
        if len(parameters) == len(values) == 1 and len(self.forms) < _MOST_FORMS:
            self.forms[name] = form
        return PlainRequest(form, values, self.headers, self.fencing)


class FormReader:
    """Tells plain requests from others."""

    def __init__(self) -> None:
        # Clients repeat the same names in the same order.
        self._plain: Bounded[tuple[bytes, ...], bool] = Bounded(MOST_NAMES)

    def head(self, head: Head, *, acting: bool = False) -> PlainHead | None:
        """Return the head of a plain request. None if the request is not plain, whatever its query is."""
        pairs = head.headers
        headers = dict(pairs)
        names = tuple(headers)
        plain = self._plain.get(names)
        if plain is None:
            plain = self._learnt(names)
        if not plain or len(headers) != len(pairs):
            return None
        in_form = tuple(map(headers.get, _IN_FORM))
        if len(head.path) + sum(map(len, filter(None, in_form))) > LONGEST:
            return None
        return PlainHead(head.method, head.path, in_form, headers, {}, acting)

    def read(self, head: Head, *, acting: bool = False) -> PlainRequest | None:
        """Return the request as a form and its values. None if it is not plain."""
        plain = self.head(head, acting=acting)
        return plain and plain.with_query(head.query_string)

    def _learnt(self, names: tuple[bytes, ...]) -> bool:
        if len(names) > _MOST_IN_ONE or sum(map(len, names)) > LONGEST:
            return False
        return self._plain.remember(names, not any(map(_is_special, names)))


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The way from a request of one form to one statement. ``fixed``: the values of it that all of them have.

    ``cached``: the table it was learnt from. ``profile``: headers of the answer that name the schema, if one is to.
    ``in_order``: the values that are fixed, by name, in the order in which the statement takes its own.
    """

    request: Request
    statement: Statement
    fixed: InitVar[Mapping[str, object]]
    cached: CachedTable
    profile: Headings
    in_order: tuple[tuple[str, object], ...] = field(init=False)

    def __post_init__(self, fixed: Mapping[str, object]) -> None:
        object.__setattr__(self, "in_order", tuple((name, fixed.get(name)) for name in self.statement.names))

    def arguments(self, values: Sequence[str], more: Mapping[str, object] = _NO_VALUES) -> list[object]:
        """Return those of the statement. ``values``: of the filters. ``more``: of a write, by their names."""
        found = {**more}
        for number, value in enumerate(values):
            found[f"v{number}"] = value
        return [found.get(name, fixed) for name, fixed in self.in_order]


@dataclass(frozen=True, slots=True)
class ReadRecipe(_Recipe):
    """The recipe of a read of one row by its key."""


@dataclass(frozen=True, slots=True)
class WriteRecipe(_Recipe):
    """The recipe of a write with a body of these columns, under one fence.

    ``sources`` has two things for each field of the resource's name. One is the position of the filter, or the column
    of the body, that has its value. The other is the pattern of canonical texts. ``may_raise``: a claim may go before
    the statement. ``accepted``: the event of a write that took effect by it. ``answers``: those to writes of so many
    rows, so many of them new, but for the headers of the fence.
    """

    literals: tuple[str, ...]
    sources: tuple[tuple[int | str, "re.Pattern[str]"], ...]
    may_raise: bool
    shows_rows: bool
    accepted: WriteAccepted
    answers: dict[tuple[int, int], Response] = field(default_factory=dict)

    def resource(self, values: Sequence[str], payload: Payload | None) -> str | None:
        """Return the name of the resource. None if only the database can tell it, or the name is an error."""
        name = self.literals[0]
        for (source, canonical), literal in zip(self.sources, self.literals[1:], strict=True):
            value = values[source] if isinstance(source, int) else _body_value(payload, source)
            if value is None or not canonical.fullmatch(value):
                return None
            name += escape(value) + literal
        return name if len(name) <= MAX_BYTES else None


@dataclass(frozen=True, slots=True)
class WriteRecipes:
    """The recipes of one form of writes, by the columns of the body. ``columns``: those the query names, if any."""

    table: str
    columns: tuple[str, ...] | None
    by_body: Bounded[tuple[str, ...], WriteRecipe] = field(default_factory=lambda: Bounded(_MOST_BODIES))


def write_recipe(
    plain: PlainRequest,
    request: Request,
    columns: Sequence[str],
    cached: CachedTable,
    statement: Statement,
    values: Mapping[str, object],
    *,
    profile: Headings,
    may_raise: bool,
) -> WriteRecipe | None:
    """Return the recipe of a planned write that is about to become ``statement`` with these ``values``, if it has one.

    The slots of the filters come first among the values, in the order of the query: a plain filter has exactly one.
    """
    named = cached.named
    assert named is not None
    if not _is_understood(plain, request) or not plain.headers.get(b"content-type", _JSON).startswith(_JSON):
        return None
    if request.method == "PATCH" and set(columns) & set(named.fields):
        return None  # the values decide whether the row moves to another name
    filters = [one for one in plain.form.parameters if isinstance(one, str)]
    sources: list[tuple[int | str, re.Pattern[str]]] = []
    for column in named.columns:
        canonical = canonical_text(column)
        if canonical is None or (request.method in ("PATCH", "DELETE") and column.name not in filters):
            return None
        inserts = request.method in ("POST", "PUT")
        sources.append((column.name if inserts else filters.index(column.name), canonical))
    # The first body of the form may be large, and is nothing that the next one needs.
    return WriteRecipe(
        request,
        statement,
        {**values, "payload": None},
        cached,
        profile,
        literals=named.template.literals,
        sources=tuple(sources),
        may_raise=may_raise,
        shows_rows=request.wants_rows,
        accepted=WriteAccepted("tables", cached.name, "recipe"),
    )


def read_recipe(
    plain: PlainRequest,
    request: Request,
    cached: CachedTable,
    statement: Statement,
    values: Mapping[str, object],
    profile: Headings,
) -> ReadRecipe | None:
    """Return the recipe of a read of one row by its whole key. None for any other: a scan would delay its batch."""
    table = cached.table
    if (
        not _is_understood(plain, request)
        or (table.runs_code_when_read and not plain.form.acting)
        or not table.primary_key
        or request.query.embeds
        or not set(table.primary_key) <= pins(request.query.filters).keys()
    ):
        return None
    # Many share a trip, so a large answer takes one of its own.
    return ReadRecipe(request, statement, {**values, MOST: SMALL}, cached, profile)


_JSON = b"application/json"


def _is_understood(plain: PlainRequest, request: Request) -> bool:
    """Return whether the parsed request has the same filters as the plain one, in the same order."""
    names = [one for one in plain.form.parameters if isinstance(one, str)]
    return request.query.filters == tuple(
        Condition(Field(name), "eq", value) for name, value in zip(names, plain.values, strict=True)
    )


def _fencing_headers(headers: Headers) -> FencingHeaders:
    return _read_fencing(*map(headers.get, _FENCING))


@lru_cache(maxsize=4096)
def _read_fencing(*values: bytes | None) -> FencingHeaders:
    """Read fencing headers. They are cached, because a holder repeats them."""
    return fencing_headers.read(
        [(name, value) for name, value in zip(_FENCING, values, strict=True) if value is not None]
    )


def _is_special(name: bytes) -> bool:
    if name in _VALUES:
        return False
    plain = name.lower().replace(b"_", b"-")
    return plain in _SPECIAL or plain.startswith(_SPECIAL_STARTS)


def _body_value(payload: Payload | None, column: str) -> str | None:
    """Return the value of a column in a body of one row, if its text is what the database reads."""
    assert payload is not None
    value = payload.rows[0].get(column) if payload.rows is not None else payload.column(column)[0]
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else None
