"""Side effects of writes: what a write of an exposed table changes beyond its own rows, without claiming their fences.

They are found in the catalog, before any write, for the operator. Writes themselves go by
``gateway.tables.catalog.reach``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.errors import ResourceUnderivable
from gateway.fencing.decision import Cascades, Enforcement
from gateway.fencing.resource import Template
from gateway.tables.catalog import distribution
from gateway.tables.catalog.reach import KnownSteps, Reach, RuleOf, Step, same_names
from gateway.tables.catalog.snapshot import EVENTS, Snapshot, Table, Trigger
from gateway.tables.naming.plan import Naming, naming
from gateway.tables.sql.expressions import VERSION_TYPES, version_of


@dataclass(frozen=True, slots=True)
class SideEffect:
    """A finding about one table, ``schema.name``, that is written. ``advice``: what an operator can do about it.

    ``refused``: writes that have this effect are refused, so nothing has to be done. ``refusable``: its table's
    rule can refuse them. ``shared`` are tables with templates that would give their rows one resource.
    ``another_name``: its rows have another name, with fences of its own. That is a matter of the configuration, so the
    doctor finds it, and the log does not repeat it at each start.
    """

    table: str
    text: str
    advice: str
    refused: bool = False
    refusable: bool = False
    shared: tuple[tuple[str, str], ...] = ()
    another_name: bool = False


def find(snapshot: Snapshot, rule_of: RuleOf) -> list[SideEffect]:
    """Return the side effects of all tables, in the order of their names. ``rule_of`` takes a schema and a name."""
    search = _Search(snapshot, rule_of)
    return [found for table in snapshot.tables.values() for found in search.of(table)]


class _Search:
    def __init__(self, snapshot: Snapshot, rule_of: RuleOf) -> None:
        self._snapshot, self._rule_of = snapshot, rule_of
        self._known: KnownSteps = {}
        self._below = frozenset(snapshot.graph.below)

    def of(self, table: Table) -> Iterator[SideEffect]:
        name, rule = _name(table), self._rule_of(table.schema, table.name)
        if table.distributed:
            yield SideEffect(name, f"it is not served: {distribution.PROBLEM}", distribution.ADVICE)
            return
        if rule.version is not None and version_of(table, rule.version) is None:
            yield SideEffect(
                name,
                f"its version column {rule.version!r} is not there, or not of a type that can be a version, so a "
                "digest of the row is its ETag",
                f"Correct version of [[tables]] {name}: one of {', '.join(sorted(VERSION_TYPES))}.",
            )
        reach = Reach(self._snapshot, table, self._rule_of, self._known)
        fate = Cascades.ALLOW if rule.mode is Enforcement.OBSERVE else rule.cascades
        # By its text, a step can be reached in two ways.
        yield from dict.fromkeys(
            self._of_step(name, step, fate) for first in reach.all_steps() for step in reach.decisive(first)
        )
        yield from _of_code(table, reach, fate)
        for child in (*map(self._snapshot.tables.get, table.children), *self._views(table)):
            if child is not None:
                yield from self._other_name(table, child)

    def _views(self, table: Table) -> Iterator[Table]:
        """Yield the exposed views that write the rows of a table."""
        for view in self._snapshot.tables.values():
            if view.kind == "v" and (view.oid, table.oid) in self._below:
                yield view

    def _other_name(self, table: Table, child: Table) -> Iterator[SideEffect]:
        """Yield the finding of a partition, child or view of a table that has other fences for its rows."""
        writable = child.insertable or child.changeable or child.deletable
        own, other = self._naming(table), self._naming(child)
        if own is None or other is None or not writable or same_names(own, other):
            return
        known = set(own.fields) <= set(child.columns)  # a view may have other columns
        yield SideEffect(
            _name(table),
            f"its rows in {_name(child)} can be written by that name too, under other fences",
            f"Give both one resource by a template, or do not expose {_name(child)}.",
            shared=((_name(child), own.template.text),) if known else (),
            another_name=True,
        )

    def _of_step(self, table: str, step: Step, fate: Cascades) -> SideEffect:
        key, reached = step.reference, step.relation.title
        ending = {
            Cascades.REFUSE: "so such writes are refused",
            Cascades.CLAIM: "so such writes need the tokens of these rows",
            Cascades.ALLOW: "whose fences are not claimed",
        }[Cascades.ALLOW if step.observed else fate]
        return SideEffect(
            table,
            f"writes reach rows of {reached} by {key.name} ({key.actions}), {ending}",
            f"Give both tables one resource by a template over {', '.join(key.target_columns)}, or set cascades for "
            f"{table}. Or accept that an overtaken holder of those rows is not stopped by such a write.",
            refused=fate is not Cascades.ALLOW and not step.observed,
            refusable=not step.observed,
            shared=self._shared(step),
        )

    def _shared(self, step: Step) -> tuple[tuple[str, str], ...]:
        """Return templates for both ends of a foreign key. They name rows that refer to each other alike."""
        key = step.reference
        column_of = dict(zip(key.target_columns, key.columns, strict=True))
        parent = self._snapshot.tables.get((key.target.schema, key.target.name))
        named = None if parent is None else self._naming(parent)
        if named is not None and set(named.fields) <= set(column_of):
            return ((step.relation.title, _filled(named.template, column_of)),)
        whole = f"{key.target.title}/" + "/".join(f"{{{column}}}" for column in key.target_columns)
        return ((key.target.title, whole), (step.relation.title, _filled(Template.parse(whole), column_of)))

    def _naming(self, table: Table) -> Naming | None:
        try:
            return naming(table, self._rule_of(table.schema, table.name))
        except ResourceUnderivable:
            return None


def _filled(template: Template, column_of: Mapping[str, str]) -> str:
    """Return a template with other columns."""
    fields = [f"{{{column_of[field]}}}" for field in template.fields]
    return "".join(part for pair in zip(template.literals, [*fields, ""], strict=True) for part in pair)


def _of_code(table: Table, reach: Reach, fate: Cascades) -> Iterator[SideEffect]:
    """Yield the effects of triggers and rules: those that their texts show, then those that they may have."""
    name, refused = _name(table), fate is not Cascades.ALLOW
    shown = dict.fromkeys(what for event in EVENTS for what in reach.written_by_code(event))
    for what in shown:
        yield SideEffect(
            name,
            f"{what}, {'so such writes are refused' if refused else 'whose fences are not claimed'}",
            "Let it change nothing that is fenced, or give both tables one resource by a template.",
            refused=refused,
            refusable=True,
        )
    known = {what.partition(" writes ")[0] for what in shown}
    for trigger in table.triggers:
        if _may_reach(trigger) and f"the trigger {trigger.name}" not in known:
            yield SideEffect(
                name,
                f"the trigger {trigger.name} may change rows of other tables, whose fences are not claimed",
                "Let it change nothing that is fenced, or give both tables one resource by a template. A guard of "
                "those tables refuses such changes: gateway guard install.",
            )
    for rule in table.rules:
        if f"the rule {rule.name}" not in known:
            yield SideEffect(
                name,
                f"the rule {rule.name} may change rows of other tables, whose fences are not claimed",
                "Drop the rule, or do not write this table through the gateway.",
            )


def _may_reach(trigger: Trigger) -> bool:
    """Return whether a trigger may change other rows. One before each row usually changes only its own row.

    The check of touched rows sees such a change.
    """
    return trigger.writes or not (trigger.each_row and trigger.when == "before")


def _name(table: Table) -> str:
    return f"{table.schema}.{table.name}"
