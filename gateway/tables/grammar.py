"""The query-string grammar of the dialect: filters, logic trees, selected columns and orders, from text to values.

Names are letters, digits, ``_``, ``$``, spaces and inner hyphens; anything else stands in double quotes.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NoReturn, TypeAlias

from gateway.errors import DialectError

MAX_DEPTH = 32
MAX_NODES = 1000

Step: TypeAlias = tuple[Literal["->", "->>"], str | int]


@dataclass(frozen=True, slots=True)
class Field:
    """A column, or a value inside a JSON column reached by ``path``."""

    name: str
    path: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """``field operator value``. ``value`` is text; a tuple of texts for ``in``; the word for ``is``."""

    field: Field
    operator: str
    value: str | tuple[str, ...]
    negated: bool = False


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
class Order:
    """One term of an order; ``nulls`` is None where the database's default holds."""

    field: Field
    descending: bool = False
    nulls: Literal["first", "last"] | None = None


COMPARISONS = frozenset(("eq", "neq", "gt", "gte", "lt", "lte", "isdistinct"))
PATTERNS = frozenset(("like", "ilike", "match", "imatch"))
CONTAINMENTS = frozenset(("cs", "cd", "ov", "sl", "sr", "nxr", "nxl", "adj"))
_VALUED = COMPARISONS | PATTERNS | CONTAINMENTS
_NOT_YET = frozenset(("fts", "plfts", "phfts", "wfts"))
IS_WORDS = {
    "null": "NULL", "not_null": "NOT NULL", "true": "TRUE", "false": "FALSE", "unknown": "UNKNOWN",
}  # fmt: skip

_SIMPLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BARE_NAME = re.compile(r"[\w$ ]+(?:-(?!>)[\w$ ]+)*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ARROW = re.compile(r"->>?")
_INDEX = re.compile(r"-?[0-9]{1,9}(?=->|[:,.)]|$)")
_JSON_KEY = re.compile(r"(?:[^\-:.,>()\"]|-(?!>))+")
_OPERATOR = re.compile(r"[a-z]+")
_BARE_VALUE = re.compile(r"[^,()]*")
_ARRAY_LITERAL = re.compile(r"\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*\}")
_TREE = re.compile(r"(not\.)?(and|or)(?=\()")
_CAST = re.compile(r"[a-z_][a-z0-9_]*(?: [a-z]+){0,3}(?:\([0-9]{1,4}(?:,[0-9]{1,4})?\))?(?:\[\])?")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class _Cursor:
    """A text and how far it has been read."""

    __slots__ = ("depth", "nodes", "position", "text", "what")

    def __init__(self, text: str, what: str) -> None:
        self.text, self.what, self.position, self.depth, self.nodes = text, what, 0, 0, 0

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def literal(self, text: str) -> bool:
        if self.text.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.literal(text):
            self.fail(f'expecting "{text}"')

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def fail(self, expecting: str) -> NoReturn:
        found = "end of input" if self.at_end else f'"{self.text[self.position]}"'
        raise parse_error(self.what, self.text, self.position, f"unexpected {found} {expecting}")


def parse_error(what: str, text: str, position: int, details: str) -> DialectError:
    """PGRST100, worded like its model: the position in ``message``, the expectation in ``details``."""
    shown = text if len(text) <= 200 else text[:197] + "..."
    return DialectError(
        "PGRST100", 400, f'"failed to parse {what} ({shown})" (line 1, column {position + 1})', details=details
    )


def not_implemented(feature: str) -> DialectError:
    """PGRST127, the code PostgREST reserves for what an implementation leaves out."""
    return DialectError("PGRST127", 400, "Feature not implemented", details=f"{feature} is not served by this gateway.")


def parse_filter(key: str, text: str) -> Condition:
    """A root filter: ``key`` names the column, ``text`` is ``[not.]operator.value``, the value read to the end."""
    field = Field(key) if _SIMPLE_NAME.fullmatch(key) else parse_field(key)
    operator, dot, value = text.partition(".")
    negated = operator == "not"
    if negated:
        operator, dot, value = value.partition(".")
    if dot and operator in _VALUED:
        return Condition(field, operator, value, negated)
    if dot and operator == "is":
        return Condition(field, "is", _is_word(value, text), negated)
    if dot and operator == "in":
        cursor = _Cursor(value, "filter")
        values = _list(cursor)
        if not cursor.at_end:
            cursor.fail("expecting end of input")
        return Condition(field, "in", values, negated)
    raise _unknown_operator(operator, text)


def parse_tree(key: str, text: str) -> Logic:
    """A root logic parameter: ``and``, ``or``, ``not.and`` or ``not.or`` with its parenthesised list."""
    negated = key.startswith("not.")
    cursor = _Cursor(text, "logic tree")
    children = _children(cursor)
    if not cursor.at_end:
        cursor.fail("expecting end of input")
    return Logic(key.removeprefix("not."), children, negated)


@lru_cache(maxsize=512)
def parse_field(text: str) -> Field:
    """A column name with an optional JSON path, and nothing after it."""
    cursor = _Cursor(text, "filter")
    field = _field(cursor)
    if cursor.literal(".") or cursor.literal("("):
        raise not_implemented("Embedding")
    if not cursor.at_end:
        cursor.fail("expecting field name")
    return field


@lru_cache(maxsize=512)
def parse_select(text: str) -> tuple[Selected, ...]:
    """``alias:column->path::cast, …``. Empty for all columns."""
    if text in ("", "*"):
        return ()
    cursor = _Cursor(text, "select parameter")
    selected = [_selected(cursor)]
    while cursor.literal(","):
        selected.append(_selected(cursor))
    if not cursor.at_end:
        cursor.fail('expecting "," or end of input')
    return tuple(selected)


@lru_cache(maxsize=512)
def parse_order(text: str) -> tuple[Order, ...]:
    """``column.desc.nullslast, …``."""
    cursor = _Cursor(text, "order")
    terms = [_order(cursor)]
    while cursor.literal(","):
        terms.append(_order(cursor))
    if not cursor.at_end:
        cursor.fail('expecting "," or end of input')
    return tuple(terms)


@lru_cache(maxsize=512)
def parse_names(text: str, what: str) -> tuple[str, ...]:
    """A comma list of plain column names, sorted: clients send them in random order."""
    cursor = _Cursor(text, what)
    names = [_name(cursor)]
    while cursor.literal(","):
        names.append(_name(cursor))
    if not cursor.at_end:
        cursor.fail('expecting "," or end of input')
    return tuple(sorted(set(names)))


def _name(cursor: _Cursor) -> str:
    quoted = cursor.take(_QUOTED)
    if quoted is not None:
        name = _ESCAPED.sub(r"\1", quoted[1])
    else:
        bare = cursor.take(_BARE_NAME)
        name = bare[0].strip(" ") if bare else ""
    if not name or "\0" in name:
        cursor.fail("expecting field name (* or [a..z0..9_$])")
    return name


def _field(cursor: _Cursor) -> Field:
    name = _name(cursor)
    path: list[Step] = []
    while (arrow := cursor.take(_ARROW)) is not None:
        index = cursor.take(_INDEX)
        path.append(("->>" if arrow[0] == "->>" else "->", int(index[0]) if index else _json_key(cursor)))
    return Field(name, tuple(path))


def _json_key(cursor: _Cursor) -> str:
    quoted = cursor.take(_QUOTED)
    if quoted is not None:
        return _ESCAPED.sub(r"\1", quoted[1])
    key = cursor.take(_JSON_KEY)
    if key is None:
        cursor.fail("expecting a JSON key or index")
    return key[0]


def _is_word(value: str, text: str) -> str:
    word = value.lower()
    if word not in IS_WORDS:
        raise parse_error("filter", text, 0, "expecting null, not_null, true, false or unknown")
    return word


def _unknown_operator(operator: str, text: str) -> DialectError:
    if operator.partition("(")[0] in _VALUED | _NOT_YET:
        return not_implemented(f"The operator {operator.partition('(')[0]} in this form")
    return parse_error("filter", text, 0, "expecting operator (eq, gt, ...)")


def _list(cursor: _Cursor) -> tuple[str, ...]:
    """``(a,"b,c",d)``; ``()`` is the empty list."""
    cursor.expect("(")
    if cursor.literal(")"):
        return ()
    values = [_value(cursor)]
    while cursor.literal(","):
        values.append(_value(cursor))
    cursor.expect(")")
    return tuple(values)


def _value(cursor: _Cursor) -> str:
    quoted = cursor.take(_QUOTED)
    if quoted is not None:
        return _ESCAPED.sub(r"\1", quoted[1])
    literal = cursor.take(_ARRAY_LITERAL)
    if literal is not None:
        return literal[0]
    bare = cursor.take(_BARE_VALUE)
    return bare[0] if bare else ""


def _children(cursor: _Cursor) -> tuple[Node, ...]:
    cursor.depth += 1
    if cursor.depth > MAX_DEPTH:
        raise parse_error(cursor.what, cursor.text, cursor.position, f"at most {MAX_DEPTH} levels may be nested")
    cursor.expect("(")
    children = [_node(cursor)]
    while cursor.literal(","):
        children.append(_node(cursor))
    cursor.expect(")")
    cursor.depth -= 1
    return tuple(children)


def _node(cursor: _Cursor) -> Node:
    cursor.nodes += 1
    if cursor.nodes > MAX_NODES:
        raise parse_error(cursor.what, cursor.text, cursor.position, f"at most {MAX_NODES} conditions are taken")
    cursor.literal(" ")
    tree = cursor.take(_TREE)
    if tree is not None:
        return Logic(tree[2], _children(cursor), negated=tree[1] is not None)
    field = _field(cursor)
    cursor.expect(".")
    negated = cursor.literal("not.")
    operator = cursor.take(_OPERATOR)
    word = operator[0] if operator else ""
    if word not in _VALUED and word not in ("is", "in"):
        raise _unknown_operator(word, cursor.text)
    cursor.expect(".")
    if word == "in":
        return Condition(field, word, _list(cursor), negated)
    value = _value(cursor)
    return Condition(field, word, _is_word(value, cursor.text) if word == "is" else value, negated)


def _selected(cursor: _Cursor) -> Selected:
    if cursor.literal("*"):
        return Selected(None)
    if cursor.literal("..."):
        raise not_implemented("Spreading an embedded table")
    field = _field(cursor)
    alias = None
    if not field.path and not cursor.text.startswith("::", cursor.position) and cursor.literal(":"):
        alias, field = field.name, _field(cursor)
    cast = cursor.take(_CAST) if cursor.literal("::") else None
    if cast is None and cursor.text.endswith("::", 0, cursor.position):
        cursor.fail("expecting a type name")
    if cursor.literal("(") or cursor.literal("!"):
        raise not_implemented("Embedding")
    if cursor.literal("."):
        raise not_implemented("An aggregate")
    return Selected(field, alias, cast[0] if cast else None)


def _order(cursor: _Cursor) -> Order:
    field = _field(cursor)
    if cursor.literal("("):
        raise not_implemented("Ordering by an embedded table")
    descending = False
    if cursor.literal(".desc"):
        descending = True
    else:
        cursor.literal(".asc")
    if cursor.literal(".nullsfirst"):
        return Order(field, descending, "first")
    if cursor.literal(".nullslast"):
        return Order(field, descending, "last")
    return Order(field, descending)
