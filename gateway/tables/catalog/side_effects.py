"""Side effects of writes: what a write of an exposed table changes beyond its own rows, without claiming their fences.

They are found in the catalog, before any write.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.errors import ResourceUnderivable
from gateway.tables.catalog.snapshot import Cascade, Snapshot, Table, Trigger
from gateway.tables.naming.plan import Naming, Rule, naming
from gateway.tables.sql.expressions import VERSION_TYPES, version_of

_ACTIONS = {"c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}


@dataclass(frozen=True, slots=True)
class SideEffect:
    """A warning about one table, ``schema.name``, that is written. ``advice``: what an operator can do about it."""

    table: str
    text: str
    advice: str


def find(snapshot: Snapshot, rule_of: Callable[[str, str], Rule]) -> list[SideEffect]:
    """Return the side effects of all tables, in the order of their names. ``rule_of`` takes a schema and a name."""
    search = _Search(snapshot, rule_of)
    return [found for table in snapshot.tables.values() for found in search.of(table)]


class _Search:
    def __init__(self, snapshot: Snapshot, rule_of: Callable[[str, str], Rule]) -> None:
        self._snapshot, self._rule_of = snapshot, rule_of

    def of(self, table: Table) -> Iterator[SideEffect]:
        name = _name(table)
        version = self._rule_of(table.schema, table.name).version
        if version is not None and version_of(table, version) is None:
            yield SideEffect(
                name,
                f"its version column {version!r} is not there, or not of a type that can be a version, so a digest of "
                "the row is its ETag",
                f"Correct version of [[tables]] {name}: one of {', '.join(sorted(VERSION_TYPES))}.",
            )
        for cascade in table.cascades:
            yield from self._cascade(table, cascade)
        for trigger in table.triggers:
            if _may_reach(trigger):
                yield SideEffect(
                    name,
                    f"the trigger {trigger.name} may change rows of other tables, whose fences are not claimed",
                    "Let it change nothing that is fenced, or give both tables one resource by a template.",
                )
        for rule in table.rules:
            yield SideEffect(
                name,
                f"the rule {rule} may change rows of other tables, whose fences are not claimed",
                "Drop the rule, or do not write this table through the gateway.",
            )
        for child in table.children:
            yield from self._child(table, self._snapshot.tables.get(child))

    def _cascade(self, table: Table, cascade: Cascade) -> Iterator[SideEffect]:
        """Yield the effect of a cascade, if the table it reaches is exposed. Rows of other tables have no fence."""
        reached = self._snapshot.tables.get((cascade.schema, cascade.table))
        if reached is None or self._share_resources(table, cascade, reached):
            return
        actions = [
            f"ON {verb} {_ACTIONS[action]}"
            for verb, action in (("DELETE", cascade.on_delete), ("UPDATE", cascade.on_update))
            if action in _ACTIONS
        ]
        yield SideEffect(
            _name(table),
            f"writes reach rows of {_name(reached)} by {cascade.name} ({', '.join(actions)}), "
            "whose fences are not claimed",
            f"Give both tables one resource by a template over {', '.join(cascade.target_columns)}: [[tables]] "
            f'name = "{_name(reached)}", resource = "…{{{"}/{".join(cascade.columns)}}}". Or accept that an overtaken '
            "holder of those rows is not stopped by such a write.",
        )

    def _child(self, table: Table, child: Table | None) -> Iterator[SideEffect]:
        if child is None:
            return
        own, other = self._naming(table), self._naming(child)
        if own is None or other is None or _same(own, other, dict(zip(other.fields, other.fields, strict=True))):
            return
        yield SideEffect(
            _name(table),
            f"its rows in {_name(child)} can be written by that name too, under other fences",
            f"Give both one resource by a template, or do not expose {_name(child)}.",
        )

    def _share_resources(self, table: Table, cascade: Cascade, reached: Table) -> bool:
        own, other = self._naming(table), self._naming(reached)
        if own is None or other is None or not cascade.direct:
            return False
        return _same(own, other, dict(zip(cascade.columns, cascade.target_columns, strict=True)))

    def _naming(self, table: Table) -> Naming | None:
        try:
            return naming(table, self._rule_of(table.schema, table.name))
        except ResourceUnderivable:
            return None


def _same(own: Naming, other: Naming, referred: dict[str, str]) -> bool:
    """Return whether a row of the other table always has the name of the row it refers to."""
    if own.template.literals != other.template.literals:
        return False
    return all(referred.get(field) == target for field, target in zip(other.fields, own.fields, strict=True))


def _may_reach(trigger: Trigger) -> bool:
    """Return whether a trigger may change other rows. One before each row usually changes only its own row.

    The check of touched rows sees such a change.
    """
    return trigger.writes or not (trigger.each_row and trigger.when == "before")


def _name(table: Table) -> str:
    return f"{table.schema}.{table.name}"
