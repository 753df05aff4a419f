"""The body of a write, checked and brought into one shape: rows, and the same rows as the text of a JSON array.

The resource of a row is derived from what is read here, and the row is written from what the database reads in the
text. Both take the last of a key that stands twice; where a number has no exact form here, the exact values
have its digits.

The arguments of a call come from a body, too, or from the query string beside what is asked of the result.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote_plus, unquote_to_bytes

import orjson

from gateway.errors import BodyTooLarge, DialectError
from gateway.tables.dialect.grammar import PLAIN, QUANTIFIABLE, SEARCHES
from gateway.tables.dialect.query import RESERVED
from gateway.tables.dialect.request import BodyType, type_not_acceptable
from gateway.tables.functions import Function

MOST_VALUES = 1_000_000
"""In one body. They are read one by one, and other requests wait meanwhile."""

MOST_COLUMNS = 1_664
"""PostgreSQL has no table with more, and no view."""

# One field with its end: a comma, the end of a line, or the end of all. The last group catches any other character.
_FIELD = re.compile(r'(?:"((?:[^"]++|"")*+)"|([^",\r\n]*+))(,|\r\n|\n|\r|\Z)|([\s\S])')
_LINE = re.compile(r"\r\n|\n|\r")


def parse_csv(content: bytes) -> tuple[tuple[str, ...], Iterator[dict[str, str | None]]]:
    """Return the names, and the rows by them. A bare ``NULL`` is null; in quotes it is a text, and nothing is an empty
    text.

    Raise PGRST102 unless the lines are equally long and the names differ: for a line when its row is asked for.
    """
    lines = _lines(_decoded(content))
    first = next(lines, None)
    if not first or not any(first):
        raise _broken("Empty or invalid csv")
    if len(first) > MOST_COLUMNS:
        raise _broken(f"The first line has more than {MOST_COLUMNS} names")
    names = tuple(name or "" for name in first)
    if len(set(names)) != len(names):
        raise _broken("A name stands twice in the first line")
    return names, _rows(names, lines)


def _rows(names: tuple[str, ...], lines: Iterator[list[str | None]]) -> Iterator[dict[str, str | None]]:
    for line in lines:
        # An empty line is a row only where rows have a single field.
        if line == [""] and len(names) > 1:
            continue
        if len(line) != len(names):
            raise _broken("All lines must have same number of fields")
        yield dict(zip(names, line, strict=True))


def _decoded(content: bytes) -> str:
    try:
        # Spreadsheets begin a file with a byte order mark.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _broken("Empty or invalid csv") from error


def _lines(text: str) -> Iterator[list[str | None]]:
    if text.count(",") + text.count("\n") + text.count("\r") > MOST_VALUES:
        raise _broken(f"A body of this type has at most {MOST_VALUES} values")
    return _with_quotes(text) if '"' in text else _without_quotes(text)


_CHARACTERS = 2 * 1024
"""Characters of a text that are split into lines at one time, at least."""


def _without_quotes(text: str) -> Iterator[list[str | None]]:
    start = 0
    while start < len(text):
        middle = start + _CHARACTERS
        cut = _LINE.search(text, middle - (text[middle - 1 : middle + 1] == "\r\n"))
        lines = _LINE.split(text[start : cut.start() if cut else len(text)])
        start = cut.end() if cut else len(text)
        if not cut and not lines[-1]:
            lines.pop()
        for line in lines:
            yield [None if value == "NULL" else value for value in line.split(",")]


def _with_quotes(text: str) -> Iterator[list[str | None]]:
    line: list[str | None] = []
    for match in _FIELD.finditer(text):
        quoted, bare, end, bad = match.groups()
        if bad is not None:
            raise _broken("Empty or invalid csv")
        if not end and match.start() == match.end() and not line:
            break  # nothing follows the end of the last line
        line.append(quoted.replace('""', '"') if quoted is not None else None if bare == "NULL" else bare)
        if end != ",":
            yield line
            line = []
        if not end:
            break


def _broken(message: str) -> DialectError:
    return DialectError("PGRST102", 400, message)


MOST_FIELDS = 10_000
"""Fields of one form."""


def _form(content: bytes) -> Iterator[tuple[str, str]]:
    if content.count(b"&") >= MOST_FIELDS:
        raise _broken("Empty or invalid form")
    try:
        content.decode("ascii")
        for part in filter(None, content.split(b"&")):
            name, _, value = part.partition(b"=")
            yield _field(name), _field(value)
    except ValueError as error:
        raise _broken("Empty or invalid form") from error


def _named(content: bytes) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for name, value in _form(content):
        named.setdefault(name, []).append(value)
        if len(named) > MOST_COLUMNS:
            raise _broken(f"A form has at most {MOST_COLUMNS} names")
    return named


def _field(raw: bytes) -> str:
    """Decode in pieces, each up to a percent sign: the decoder takes 70 times the size of its text."""
    raw, pieces, start = raw.replace(b"+", b" "), [], 0
    while start < len(raw):
        end = raw.find(b"%", start + _CHARACTERS)
        end = len(raw) if end < 0 else end
        pieces.append(unquote_to_bytes(raw[start:end]))
        start = end
    return b"".join(pieces).decode()


PIECE = 64 * 1024
"""Bytes of a piece, at least."""
MAX_VALUES = 250_000
"""Values of one row, or of one object that is a body: a parser reads so many in about 20 ms."""

_TRIES = 8
_SPACE = re.compile(rb"[ \t\r\n]*")
_BETWEEN_ROWS = re.compile(rb"\}[ \t\r\n]*,(?=[ \t\r\n]*\{)")
_STRUCTURE = b"[{,"


def in_pieces(text: bytes, loads: Callable[[bytes], Any]) -> Any:
    """Return what ``loads`` returns for the whole text, but call it for pieces of a long array.

    ``loads`` can return less than a piece has, so that not all of the values are in memory at one time.

    Cutting is safe: if both sides of a cut are arrays of their own, a parser that reads the whole text sees the same
    elements. Raises what ``loads`` raises, and ``BodyTooLarge`` for too many values.
    """
    if len(text) <= PIECE:
        return loads(text)
    start, end = _bounds(text)
    if text[start : start + 1] != b"[" or text[end - 1 : end] != b"]":
        return _whole(text, loads)
    rows: list[Any] = []
    start, end = start + 1, end - 1
    while start < end:
        start, found = _next(text, start, end, loads)
        rows += found
    return rows


def _bounds(text: bytes) -> tuple[int, int]:
    """Return where the document begins and ends, without the white space around it."""
    begins, ends = _SPACE.match(text), len(text)
    while ends and text[ends - 1] in b" \t\r\n":
        ends -= 1
    return (begins.end() if begins else 0), ends


def _next(text: bytes, start: int, end: int, loads: Callable[[bytes], Any]) -> tuple[int, list[Any]]:
    """Return where the piece after this one starts, and the elements of this one."""
    size, tries = PIECE, _TRIES
    while start + size < end:
        for cut, _ in zip(_BETWEEN_ROWS.finditer(text, start + size, end), range(tries), strict=False):
            piece = text[start : cut.end() - 1]
            if len(piece) > 2 * size:
                break
            try:
                return cut.end(), _array(piece, loads)
            except ValueError:
                continue  # the cut is inside a row, or the body is no JSON
        size, tries = 2 * size, 2
    return end, _array(text[start:end], loads)


def _array(piece: bytes, loads: Callable[[bytes], Any]) -> list[Any]:
    found: list[Any] = _whole(b"[" + piece + b"]", loads)
    return found


def _whole(text: bytes, loads: Callable[[bytes], Any]) -> Any:
    if len(text) > 4 * PIECE and _values(text) > MAX_VALUES:
        raise BodyTooLarge(
            f"A row or an object of the body has more than {MAX_VALUES:,} values.",
            advice="Split the write, or send nested values as one string.",
        )
    return loads(text)


def _values(text: bytes) -> int:
    """Return how many values the text has, about: what stands inside strings counts only if little is outside."""
    rough = sum(_structure(text[at : at + PIECE]) for at in range(0, len(text), PIECE))
    return rough if rough <= MAX_VALUES else _exact(text)


def _exact(text: bytes) -> int:
    count, inside, start = 0, False, 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        while end < len(text) and text[end - 1 : end] == b"\\":
            end += 1  # an escape is not cut
        piece = text[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        count += sum(map(_structure, parts[inside::2]))
        inside ^= len(parts) % 2 == 0
        start = end
    return count


def _structure(text: bytes) -> int:
    return len(text) - len(text.translate(None, _STRUCTURE))


MAX_ROWS = 100_000
"""Rows of one body."""


KEPT = 1000
"""Values of a body that stay in memory beside its text. Of a larger one, only the columns of resource names do."""
_SHORT = 4 * 1024  # bytes that can have few more values than that
_SCALARS = frozenset((str, int, float, bool, type(None)))


class Payload(NamedTuple):
    """The rows of a body. ``text`` is the same rows as the text of one JSON array, as the caller sent them.

    ``number``: how many. ``columns`` are the keys that are written, sorted. ``rows`` are there if they are small, else
    ``picked`` has some of their columns.
    """

    text: str
    number: int
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]] | None
    picked: Mapping[str, list[Any]] = MappingProxyType({})

    def column(self, name: str) -> list[Any]:
        """Return the values of a column, one for each row. Arrays and objects may be None."""
        if self.rows is not None:
            return [row.get(name) for row in self.rows]
        return self.picked[name] if name in self.picked else self._read(name, orjson.loads)

    def exact_column(self, name: str) -> list[Any]:
        """Return them with every number as the text that stands in the body, which is what the database reads."""
        return self._read(name, partial(json.loads, parse_int=str, parse_float=str, parse_constant=_no_constant))

    def _read(self, name: str, loads: Callable[[bytes], Any]) -> list[Any]:
        found: list[Any] = _json(self.text.encode(), lambda text: _column(loads(text), name))
        return found


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    found = [row.get(name) for row in rows]
    if _SCALARS.issuperset(map(type, found)):
        return found
    return [value if type(value) in _SCALARS else None for value in found]


def size_as_json(kind: BodyType, content: bytes) -> int:
    """Return how many bytes the rows of a body have as JSON, at most. Each row of a CSV gets the names."""
    if kind == "urlencoded":
        escaped = content.count(b'"') + 3 * content.count(b"%")
        return _size_as_text(content) + escaped + 6 * (content.count(b"&") + 1) + 4
    if kind != "csv":
        return len(content)
    ends = content.count(b"\n") + content.count(b"\r") - content.count(b"\r\n")
    first = _FIRST.match(content)
    names = first[0] if first else b""
    each = _size_as_text(names) + 6 * (names.count(b",") + 1) + 2
    return _size_as_text(content) + (ends + 1) * each + 2


def _size_as_text(part: bytes) -> int:
    return len(part) + 5 * (len(part) - len(part.translate(None, _ESCAPED)))


_FIRST = re.compile(rb'(?:"(?:[^"]|"")*+"|[^"\r\n])*+')
_ESCAPED = bytes(range(0x20)) + b"\\"


def read(kind: BodyType, content: bytes, columns: tuple[str, ...] | None, picked: Collection[str] = ()) -> Payload:
    """Read a body of any type that rows can come in. Raises PGRST102 for what cannot be read.

    ``picked``: columns whose values will be asked for.
    """
    if kind == "json":
        return parse(content, columns, picked)
    if kind == "csv":
        names, rows = parse_csv(content)
        return _made(rows, names if columns is None else columns, picked, len(names))
    if kind == "urlencoded":
        row = {name: values[-1] for name, values in _named(content).items()}
        return _made(iter([row]), tuple(row) if columns is None else columns, picked, len(row))
    raise type_not_acceptable("text/plain" if kind == "text" else "application/octet-stream")


def parse(body: bytes, columns: tuple[str, ...] | None, picked: Collection[str] = ()) -> Payload:
    """Read a JSON body. ``columns`` (from the query) names the keys to use; without it all rows must have the same.

    A scalar stands for no row at all. Raises PGRST102 for what is no JSON, or an array of anything but like objects,
    ``BodyTooLarge`` for too many of them.
    """
    if len(body) <= _SHORT or (len(body) <= PIECE and _structure(body) <= KEPT):
        document = _json(body)
        if isinstance(document, dict):
            return Payload(f"[{body.decode()}]", 1, _sorted(document) if columns is None else columns, (document,))
        looked = _Looked(columns, ())
        looked.at(document)
        rows: Sequence[Mapping[str, Any]] | None = document if looked.is_array else ()
    else:
        looked = _Looked(columns, picked)
        _json(body, lambda text: looked.at(orjson.loads(text)))
        rows = None
    text = body.decode() if looked.is_array else f"[{body.decode()}]" if looked.is_object else "[]"
    return Payload(text, looked.number, looked.columns or (), rows, looked.picked)


class _Looked:
    """The facts about a document, of which one piece at a time is looked at."""

    __slots__ = ("_checks", "_keys", "columns", "is_array", "is_object", "number", "picked")

    def __init__(self, columns: tuple[str, ...] | None, picked: Collection[str]) -> None:
        self.picked = {name: list[Any]() for name in picked}
        self._checks, self.columns = columns is None, columns
        self._keys: frozenset[str] | None = None
        self.number, self.is_array, self.is_object = 0, False, False

    def at(self, document: Any) -> list[Any]:
        """Look at a document, or at the elements of a piece. Return nothing of them."""
        if isinstance(document, dict):
            self.is_object, self.number = True, 1
            if self._checks:
                self.columns = _sorted(document)
            self._pick([document])
        elif isinstance(document, list):
            self.is_array = True
            self.number += len(document)
            _check_count(self.number)
            if not all(isinstance(row, dict) for row in document):
                raise _broken("All object keys must match")
            if self._checks and document:
                self._check(document)
            self._pick(document)
        return []

    def _pick(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for name, values in self.picked.items():
            values.extend(_column(rows, name))

    def _check(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._keys is None:
            self._keys, self.columns = frozenset(rows[0]), _sorted(rows[0])
        keys = self._keys
        if any(row.keys() != keys for row in rows):
            raise _broken("All object keys must match")


def _json(content: bytes, loads: Callable[[bytes], Any] = orjson.loads) -> Any:
    try:
        return in_pieces(content, loads)
    except (ValueError, RecursionError) as error:
        raise _broken("Empty or invalid json") from error


def _made(
    rows: Iterator[Mapping[str, str | None]], columns: Sequence[str], picked: Collection[str], width: int
) -> Payload:
    """Return rows that each have as many values as the ``width`` says."""
    number, texts, found = 0, ["["], {name: list[Any]() for name in picked}
    while some := list(islice(rows, 1 + KEPT // (1 + width))):
        if number:
            texts.append(",")
        number += len(some)
        _check_count(number)
        texts.append(orjson.dumps(some)[1:-1].decode())
        for name, values in found.items():
            values.extend(row.get(name) for row in some)
    texts.append("]")
    return Payload("".join(texts), number, tuple(sorted(columns)), None, found)


def _check_count(count: int) -> None:
    if count > MAX_ROWS:
        raise BodyTooLarge(f"The body has more than {MAX_ROWS} rows.", advice="Split the write.")


def _sorted(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(row)) if len(row) > 1 else tuple(row)


def _no_constant(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


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


def arguments_from_body(kind: BodyType, content: bytes, columns: Sequence[str] | None) -> Arguments:
    """``columns``, from the query, narrows the names that are used. Raises PGRST102 for what cannot be read."""
    if kind == "json":
        return _from_json(content or b"{}", columns)
    if kind == "urlencoded":
        pairs = _named(content)
        return Arguments(_narrowed(pairs, columns), named=pairs)
    if kind == "binary":
        return Arguments(None, content.hex())
    if kind == "text":
        try:
            return Arguments(None, content.decode())
        except UnicodeDecodeError as error:
            raise _broken("The text is not in UTF-8") from error
    raise type_not_acceptable("text/csv")


def arguments_from_query(query_string: bytes) -> tuple[Arguments, bytes]:
    """Return the arguments and the rest of the query string: a parameter whose value begins with an operator is a
    filter.
    """
    named: dict[str, list[str]] = {}
    rest = []
    for part in query_string.split(b"&"):
        raw_name, _, raw_value = part.partition(b"=")
        name, value = _unquoted(raw_name), _unquoted(raw_value)
        if name in RESERVED or name in _TREES or name == "apikey" or _OPERATOR.match(value):
            rest.append(part)
        elif b"=" in part:
            named.setdefault(name, []).append(value)
    return Arguments(frozenset(named), "{}", named), b"&".join(rest)


def _from_json(content: bytes, columns: Sequence[str] | None) -> Arguments:
    document = _json(content)
    if not isinstance(document, dict):
        return Arguments(None, content.decode())
    return Arguments(_narrowed(document, columns), content.decode())


def _narrowed(names: Mapping[str, object], columns: Sequence[str] | None) -> frozenset[str]:
    return frozenset(names if columns is None else columns)


def _unquoted(raw: bytes) -> str:
    return unquote_plus(raw.decode("latin-1"), errors="replace")
