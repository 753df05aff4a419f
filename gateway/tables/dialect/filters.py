"""Reads filters: one condition on one column, or a tree of conditions."""

import re
from collections.abc import Callable
from typing import TypeAlias

from gateway.tables.dialect.grammar import (
    EXPECTING_NAME,
    MAX_DEPTH,
    MAX_VALUES,
    SPACES,
    Condition,
    Cursor,
    Field,
    Logic,
    Node,
    read_field,
    read_quoted,
)

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
