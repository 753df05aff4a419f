"""The terms of the dialect's query strings as values, and the reading of names, paths, quoted texts and filters.

Names are letters, digits, ``_``, ``$``, spaces and inner hyphens; anything else needs double quotes. The reader makes
one pass from left to right, so a text costs time in proportion to its length. Limits here bound the depth, and the size
of the statement.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Concatenate, Literal, NoReturn, ParamSpec, TypeAlias, TypeVar, cast

from gateway.errors import DialectError

MAX_DEPTH = 32
"""Levels of ``and=(or(…))`` inside each other."""
MAX_TERMS = 500
"""Terms in one query string: conditions, groups of them, selected columns, embedded tables, orders, JSON steps.

Each is a piece of the statement, which takes the longest to make of all that is done for a request.
"""
MAX_VALUES = 10_000
"""Values in one ``in.(…)``."""
MAX_STEPS = 32
"""Steps of one JSON path."""
LONGEST_KEPT = 500
"""Characters of a text whose reading is kept."""

Read = TypeVar("Read")
Rest = ParamSpec("Rest")

Step: TypeAlias = tuple[Literal["->", "->>"], str | int]


def kept_if_short(read: Callable[Concatenate[str, Rest], Read]) -> Callable[Concatenate[str, Rest], Read]:
    """Clients send the same few texts again and again. Long ones are not kept: memory is not for a caller to fill."""
    cached = cast(Callable[Concatenate[str, Rest], Read], lru_cache(maxsize=512)(read))

    def parse(text: str, /, *rest: Rest.args, **named: Rest.kwargs) -> Read:
        return (cached if len(text) <= LONGEST_KEPT else read)(text, *rest, **named)

    return parse


@dataclass(frozen=True, slots=True)
class Field:
    """A column, or a value inside a JSON column reached by ``path``."""

    name: str
    path: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """``field operator value``. ``value`` is text; a tuple of texts for ``in``; the word for ``is``.

    A quantified operator is an operator of its own, ``eq(any)``: code that looks for ``eq`` must not find it.
    ``language`` is the text search configuration of the ``fts`` family.
    """

    field: Field
    operator: str
    value: str | tuple[str, ...]
    negated: bool = False
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Logic:
    """Conditions tied together by ``and`` or ``or``."""

    operator: str
    children: tuple["Node", ...]
    negated: bool = False


Node: TypeAlias = Condition | Logic


@dataclass(frozen=True, slots=True)
class Selected:
    """One column of the answer. ``field`` None stands for all columns."""

    field: Field | None
    alias: str | None = None
    cast: str | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """Rows of a related table inside each row of the answer: ``alias:name!hint!inner(select)``.

    ``name`` is a table, or the constraint or column of the foreign key that leads to it. ``inner``: rows without any
    related row are left out. Without ``select`` the related rows are not shown; conditions on them hold all the same.
    """

    name: str
    select: tuple[Selected, ...]
    alias: str | None = None
    hint: str | None = None
    inner: bool = False

    @property
    def label(self) -> str:
        """The key in the answer."""
        return self.alias or self.name


@dataclass(frozen=True, slots=True)
class Order:
    """One term of an order; ``nulls`` is None where the database's default holds.

    ``relation``: the field is one of the embedded row of that label.
    """

    field: Field
    descending: bool = False
    nulls: Literal["first", "last"] | None = None
    relation: str | None = None


SIMPLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
EXPECTING_NAME = "expecting field name (* or [a..z0..9_$])"
SPACES = re.compile(r"[ \t]*")
_BARE_NAME = re.compile(r"[\w$ ]+(?:-(?!>)[\w$ ]+)*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ARROW = re.compile(r"->>?")
_INDEX = re.compile(r"-?[0-9]{1,9}(?=->|[:,.)]|$)")
_JSON_KEY = re.compile(r"(?:[^\-:.,>()]|-(?!>))+")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class Cursor:
    """A text and how far it has been read. ``what`` it is goes into errors.

    ``before``: characters that come before the text where PostgREST counts columns.
    """

    __slots__ = ("before", "depth", "position", "reread", "terms", "text", "what")

    def __init__(self, text: str, what: str, before: int = 0) -> None:
        self.text, self.what, self.before = text, what, before
        self.position, self.depth, self.terms = 0, 0, 0
        self.reread = 0

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the text that the pattern matches here, if it does."""
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def go_back(self, start: int) -> None:
        """Read again from ``start`` on. All that is read twice is no longer than the text, so it takes no time."""
        self.reread += self.position - start
        if self.reread > len(self.text):
            self.refuse(f"{len(self.text)} characters of values that begin like arrays and are none")
        self.position = start

    def literal(self, text: str) -> bool:
        """Whether exactly this comes next; then it has been read."""
        if self.text.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.literal(text):
            self.fail(f'expecting "{text}"')

    def finish(self, expecting: str = "expecting end of input") -> None:
        if not self.at_end:
            raise self._error(f"unexpected '{self.next}' {expecting}")

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    @property
    def next(self) -> str:
        return self.text[self.position : self.position + 1]

    def fail(self, expecting: str) -> NoReturn:
        found = "end of input" if self.at_end else f'"{self.next}"'
        raise self._error(f"unexpected {found} {expecting}")

    def count(self) -> None:
        """One term more has been read."""
        self.terms += 1
        if self.terms > MAX_TERMS:
            self.refuse(f"{MAX_TERMS} terms")

    def refuse(self, limit: str) -> NoReturn:
        """Readable, but more than is taken."""
        raise self._error(f"at most {limit} are taken")

    def _error(self, details: str) -> DialectError:
        return parse_error(self.what, self.text, self.before + self.position, details)


def parse_error(what: str, text: str, position: int, details: str) -> DialectError:
    """PGRST100, worded like its model: the position in ``message``, the expectation in ``details``."""
    shown = text if len(text) <= 200 else text[:197] + "..."
    return DialectError(
        "PGRST100", 400, f'"failed to parse {what} ({shown})" (line 1, column {position + 1})', details=details
    )


def not_implemented(feature: str, hint: str | None = None) -> DialectError:
    """PGRST127, the code PostgREST reserves for what an implementation leaves out."""
    details = f"{feature} is not served by this gateway."
    return DialectError("PGRST127", 400, "Feature not implemented", details=details, hint=hint)


def read_quoted(cursor: Cursor) -> str | None:
    """Return a text in double quotes without quotes and escapes; None if there is none."""
    quoted = cursor.take(_QUOTED)
    return None if quoted is None else _ESCAPED.sub(r"\1", quoted[1])


def read_name(cursor: Cursor, expecting: str = EXPECTING_NAME) -> str:
    """One name, spaces around it left out. ``expecting`` says in an error what else could stand there."""
    start = cursor.position
    name = read_quoted(cursor)
    if name is None:
        bare = cursor.take(_BARE_NAME)
        name = bare[0].strip(" ") if bare else ""
    if not name or "\0" in name:
        cursor.position = start
        cursor.fail(expecting)
    return name


def read_field(cursor: Cursor, expecting: str = EXPECTING_NAME) -> Field:
    """Read a name and the JSON path behind it."""
    cursor.take(SPACES)
    name = read_name(cursor, expecting)
    return Field(name, read_path(cursor))


def read_path(cursor: Cursor) -> tuple[Step, ...]:
    """``->key->0->>key``; empty where no arrow comes next."""
    path: list[Step] = []
    while (arrow := cursor.take(_ARROW)) is not None:
        if len(path) == MAX_STEPS:
            cursor.refuse(f"{MAX_STEPS} steps of a JSON path")
        cursor.count()
        index = cursor.take(_INDEX)
        path.append(("->>" if arrow[0] == "->>" else "->", int(index[0]) if index else _json_key(cursor)))
    return tuple(path)


def _json_key(cursor: Cursor) -> str:
    quoted = read_quoted(cursor)
    if quoted is not None:
        return quoted
    key = cursor.take(_JSON_KEY)
    if key is None:
        cursor.fail("expecting a JSON key or index")
    return key[0].strip(" ")


QUANTIFIABLE = frozenset(("eq", "gt", "gte", "lt", "lte", "like", "ilike", "match", "imatch"))
PLAIN = frozenset(("neq", "isdistinct", "cs", "cd", "ov", "sl", "sr", "nxr", "nxl", "adj"))
SEARCHES = frozenset(("fts", "plfts", "phfts", "wfts"))
IS_WORDS = {
    "null": "NULL", "not_null": "NOT NULL", "true": "TRUE", "false": "FALSE", "unknown": "UNKNOWN",
}  # fmt: skip

ReadValue: TypeAlias = Callable[[Cursor], str]

_VALUED = QUANTIFIABLE | PLAIN
_QUANTIFIED = frozenset(f"{operator}({quantifier})" for operator in QUANTIFIABLE for quantifier in ("any", "all"))
_OPERATOR = re.compile(r"([a-z]+)(?:\(([\w$ ]+)\))?\.")
_EXPECTED_OPERATOR = 'expecting "not" or operator (eq, gt, ...)'
_EXPECTED_NODE = f"{EXPECTING_NAME}, negation operator (not) or logic operator (and, or)"
_BARE_VALUE = re.compile(r"[^,)]*")
# A literal without an end matches, too, as far as it was read.
_ARRAY_LITERAL = re.compile(r'\{(?:[^{}"]++|"(?:[^"\\]++|\\[\s\S])*+(?:"|\\?\Z))*+(\})?')
_TREE = re.compile(r"(not\.)?(and|or)(?=[ \t]*\()")


def parse_filter(field: Field, text: str) -> Condition:
    """Read a filter parameter: ``text`` is ``[not.]operator.value``, the value read to the end."""
    operator, dot, value = text.partition(".")
    negated = operator == "not"
    if negated:
        operator, dot, value = value.partition(".")
    if dot and operator in _VALUED:
        return Condition(field, operator, value, negated)
    cursor = Cursor(text, "filter")
    condition = _condition(cursor, field, _rest)
    cursor.finish()
    return condition


def parse_tree(operator: str, text: str, *, negated: bool) -> Logic:
    """Read a logic parameter: ``operator`` is ``and`` or ``or``, ``text`` its parenthesised list."""
    cursor = Cursor(text, "logic tree", before=len(f"not.{operator}" if negated else operator))
    children = _children(cursor)
    cursor.finish()
    return Logic(operator, children, negated)


def terms(node: Node) -> int:
    """How many terms there are: a condition with its JSON steps, or a group with all that is in it."""
    if isinstance(node, Logic):
        return 1 + sum(terms(child) for child in node.children)
    return 1 + len(node.field.path)


def _condition(cursor: Cursor, field: Field, read_value: ReadValue) -> Condition:
    """``[not.]operator[(modifier)].value``"""
    start = cursor.position
    negated = cursor.literal("not.")
    match = cursor.take(_OPERATOR)
    operator, modifier = (match[1], match[2]) if match else ("", None)
    if operator in _VALUED and modifier is None:
        return Condition(field, operator, read_value(cursor), negated)
    if modifier is not None and f"{operator}({modifier})" in _QUANTIFIED:
        return Condition(field, f"{operator}({modifier})", read_value(cursor), negated)
    if operator in SEARCHES:
        language = modifier.strip(" ") if modifier else None
        return Condition(field, operator, read_value(cursor), negated, language)
    if operator == "is" and modifier is None:
        return Condition(field, operator, _is_word(cursor, read_value), negated)
    if operator != "in" or modifier is not None:
        cursor.position = start
        cursor.fail(_EXPECTED_OPERATOR)
    return Condition(field, operator, _list(cursor), negated)


def _rest(cursor: Cursor) -> str:
    """All that is left: the value of a filter parameter may hold anything."""
    start, cursor.position = cursor.position, len(cursor.text)
    return cursor.text[start:]


def _delimited(cursor: Cursor) -> str:
    """Read a value inside a tree: quoted, an array literal, or the text before the next comma or parenthesis."""
    start = cursor.position
    for read in (read_quoted, _array_literal):
        value = read(cursor)
        if value is not None and cursor.next in ("", ",", ")"):
            return value
        cursor.go_back(start)
    bare = cursor.take(_BARE_VALUE)
    return bare[0] if bare else ""


def _array_literal(cursor: Cursor) -> str | None:
    match = cursor.take(_ARRAY_LITERAL)
    return match[0] if match and match[1] else None


def _element(cursor: Cursor) -> str:
    """Read a value of ``in``: like one inside a tree, but braces mean nothing here."""
    start = cursor.position
    value = read_quoted(cursor)
    if value is not None and cursor.next in ("", ",", ")"):
        return value
    cursor.position = start
    bare = cursor.take(_BARE_VALUE)
    return bare[0] if bare else ""


def _is_word(cursor: Cursor, read_value: ReadValue) -> str:
    start = cursor.position
    word = read_value(cursor).lower()
    if word not in IS_WORDS:
        cursor.position = start
        cursor.fail("expecting isVal: (null, not_null, true, false, unknown)")
    return word


def _list(cursor: Cursor) -> tuple[str, ...]:
    """``(a,"b,c",d)``; ``()`` is the empty list."""
    _open(cursor)
    if cursor.literal(")"):
        return ()
    values = [_element(cursor)]
    while cursor.literal(","):
        if len(values) == MAX_VALUES:
            cursor.refuse(f"{MAX_VALUES} values")
        values.append(_element(cursor))
    _close(cursor)
    return tuple(values)


def _children(cursor: Cursor) -> tuple[Node, ...]:
    cursor.depth += 1
    if cursor.depth > MAX_DEPTH:
        cursor.refuse(f"{MAX_DEPTH} levels of conditions")
    _open(cursor)
    children = [_node(cursor)]
    while cursor.literal(","):
        children.append(_node(cursor))
    _close(cursor)
    cursor.depth -= 1
    return tuple(children)


def _node(cursor: Cursor) -> Node:
    cursor.count()
    cursor.take(SPACES)
    tree = cursor.take(_TREE)
    if tree is not None:
        return Logic(tree[2], _children(cursor), negated=tree[1] is not None)
    field = read_field(cursor, _EXPECTED_NODE)
    cursor.expect(".")
    return _condition(cursor, field, _delimited)


def _open(cursor: Cursor) -> None:
    cursor.take(SPACES)
    cursor.expect("(")
    cursor.take(SPACES)


def _close(cursor: Cursor) -> None:
    cursor.expect(")")
    cursor.take(SPACES)
