"""The arguments of a call: from a body, or from the query string beside what is asked of the result."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote_plus

import orjson

from gateway.errors import DialectError
from gateway.tables.catalog.functions import Function
from gateway.tables.dialect.body import in_pieces
from gateway.tables.dialect.filters import PLAIN, QUANTIFIABLE, SEARCHES
from gateway.tables.dialect.media import BodyType, type_not_acceptable
from gateway.tables.dialect.query import RESERVED

_TREES = ("and", "or", "not.and", "not.or")
_OPERATORS = "|".join(sorted(QUANTIFIABLE | PLAIN | SEARCHES | {"in", "is", "not"}))
_OPERATOR = re.compile(rf"(?:{_OPERATORS})(?:\([^)]*\))?\.")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call. ``named`` holds the texts of a query or a form, by name, in their order; ``text`` is a
    body as it came. ``names`` None: the body names nothing, and can only be passed as a whole.
    """

    names: frozenset[str] | None
    text: str = ""
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def payload(self, function: Function, *, whole: bool) -> str:
        """Return the one value of the statement: a JSON object by the names of parameters, or the body itself."""
        if whole or not self.named:
            return self.text
        several = {one.name for one in function.parameters if one.variadic}
        return orjson.dumps(
            {name: list(values) if name in several else values[-1] for name, values in self.named.items()}
        ).decode()


def from_body(kind: BodyType, content: bytes, columns: Sequence[str] | None) -> Arguments:
    """``columns``, from the query, narrows the names that are used. Raises PGRST102 for what cannot be read."""
    if kind == "json":
        return _from_json(content or b"{}", columns)
    if kind == "urlencoded":
        pairs = _pairs(content)
        return Arguments(_narrowed(pairs, columns), named=pairs)
    if kind == "binary":
        return Arguments(None, content.hex())
    if kind == "text":
        try:
            return Arguments(None, content.decode())
        except UnicodeDecodeError as error:
            raise DialectError("PGRST102", 400, "The text is not in UTF-8") from error
    raise type_not_acceptable("text/csv")


def from_query(query_string: bytes) -> tuple[Arguments, bytes]:
    """Return the arguments and the rest of the query string: a parameter whose value begins with an operator is a
    filter.
    """
    named: dict[str, list[str]] = {}
    rest = []
    for part in query_string.split(b"&"):
        raw_name, _, raw_value = part.partition(b"=")
        name, value = _decoded(raw_name), _decoded(raw_value)
        if name in RESERVED or name in _TREES or name == "apikey" or _OPERATOR.match(value):
            rest.append(part)
        elif b"=" in part:
            named.setdefault(name, []).append(value)
    return Arguments(frozenset(named), "{}", named), b"&".join(rest)


def _from_json(content: bytes, columns: Sequence[str] | None) -> Arguments:
    try:
        document = in_pieces(content, orjson.loads)
    except orjson.JSONDecodeError as error:
        raise DialectError("PGRST102", 400, "Empty or invalid json") from error
    if not isinstance(document, dict):
        return Arguments(None, content.decode())
    return Arguments(_narrowed(document, columns), content.decode())


def _pairs(content: bytes) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(content.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=10_000)
    except ValueError as error:
        raise DialectError("PGRST102", 400, "Empty or invalid form") from error
    for name, value in pairs:
        named.setdefault(name, []).append(value)
    return named


def _narrowed(names: Mapping[str, object], columns: Sequence[str] | None) -> frozenset[str]:
    return frozenset(names if columns is None else columns)


def _decoded(raw: bytes) -> str:
    return unquote_plus(raw.decode("latin-1"), errors="replace")
