"""Which values the filters of a request pin its columns to. Resource names are made of them, so nothing is guessed."""

from gateway.tables.grammar import Condition, Field, Node


def pins(filters: tuple[Node, ...]) -> dict[str, tuple[str, ...]]:
    """Columns that root filters pin to values: to one by a plain ``eq``, to several by a plain ``in``.

    The first of a name wins, but an ``eq`` wins over an ``in`` on the same column, because it says more.
    """
    found: dict[str, tuple[str, ...]] = {}
    for node in filters:
        if not isinstance(node, Condition) or node.negated or node.field.path:
            continue
        if node.operator == "eq" and isinstance(node.value, str):
            if len(found.get(node.field.name, ())) != 1:
                found[node.field.name] = (node.value,)
        elif node.operator == "in" and isinstance(node.value, tuple):
            found.setdefault(node.field.name, node.value)
    return found


def pins_exactly(filters: tuple[Node, ...], columns: tuple[str, ...]) -> bool:
    """Whether the filters are one plain ``eq`` for each of ``columns`` and nothing else: what PUT asks for."""
    plain = [
        node.field.name
        for node in filters
        if isinstance(node, Condition)
        and node.operator == "eq"
        and not node.negated
        and node.field == Field(node.field.name)
    ]
    return len(plain) == len(filters) and sorted(plain) == sorted(columns)
