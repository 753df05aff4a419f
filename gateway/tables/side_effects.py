"""The reach of writes: which rows foreign keys, triggers and rules change beyond the rows that a write names.

A foreign key with an action (CASCADE, SET NULL, SET DEFAULT) leads from a table to tables that refer to it. Others lead
on from there, also through tables that are not exposed. The text of triggers and rules tells which tables they write,
as far as it can be read.

Writes go by their ``Reach``: ``execute/planning.py`` refuses one beforehand, ``execute/reached_rows.py`` by its rows.
``find_side_effects`` tells the operator, before any write, what writes change beyond their own rows without claiming
the fences of these.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeAlias

from gateway.fencing.decision import Cascades, Enforcement, Equal
from gateway.fencing.resource import Template
from gateway.tables.catalog import (
    CITUS_ADVICE,
    CITUS_PROBLEM,
    DELETED,
    EVENTS,
    Change,
    Graph,
    Reference,
    Relation,
    Snapshot,
    Table,
    Trigger,
)
from gateway.tables.naming import Naming, Rule, naming_if_any
from gateway.tables.sql.expressions import VERSION_TYPES, version_of

RuleOf: TypeAlias = Callable[[str, str], Rule]


@dataclass(frozen=True, slots=True)
class Place:
    """Rows of one relation that all change alike. ``shares``: they always have the resource of a row of the write."""

    oid: int
    change: Change
    # It follows from the relation.
    named: Naming | None = field(compare=False)
    shares: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One foreign key on the way of a write, and the rows that it reaches.

    ``relation``: the table of the rows, or a partition that names them because the table does not. ``named``: how the
    rows are named, if their names have to be checked. ``renames``: the rows get another name, or none. ``strict``: a
    token writes them once. ``observed``: the rule of the rows only observes. ``code``: what a trigger or a rule of the
    table does that no write of it may do. ``place``: where to go on from, None for the end.
    """

    reference: Reference
    relation: Relation
    named: Naming | None
    renames: bool
    strict: bool
    observed: bool
    code: str | None
    place: Place | None

    @property
    def decides(self) -> bool:
        """Whether rows that it reaches can refuse the write."""
        return self.named is not None or self.code is not None


KnownSteps: TypeAlias = dict[tuple[Place, bool], tuple[Step, ...]]


class Reach:
    """All that writes of one table can reach. ``cascades``: the setting of the table."""

    def __init__(self, snapshot: Snapshot, table: Table, rule_of: RuleOf, known: KnownSteps | None = None) -> None:
        """``known``: steps that were found for other tables of the same snapshot. More are added."""
        self._graph, self._rule_of, self._tables = snapshot.graph, rule_of, snapshot.tables
        self.table, rule = table, rule_of(table.schema, table.name)
        self.cascades = rule.cascades
        self._root = naming_if_any(table, rule)
        self._by_oid = {one.oid: one for one in snapshot.tables.values()}
        self._steps: KnownSteps = {} if known is None else known
        self._useful: dict[Place, tuple[Step, ...]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no write of the table can change other rows: no key refers to it, and no code takes its writes."""
        table = self.table
        return not (self.references or table.triggers or table.rules or table.writes_others)

    @cached_property
    def references(self) -> list[Reference]:
        return self._graph.referring_to(self.table.oid)

    @property
    def own_references(self) -> list[int]:
        """The oids of those that refer to the table itself."""
        return [one.oid for one in self._graph.references if one.target.oid == self.table.oid]

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(name for one in self.references for name in one.target_columns)

    def exposed(self, oids: AbstractSet[int]) -> list[Table]:
        return [self._by_oid[oid] for oid in sorted(oids) if oid in self._by_oid]

    def naming(self, table: Table) -> Naming | None:
        """Return how the rows of an exposed table are named. None if nothing names them, or its rule only observes."""
        rule = self._rule_of(table.schema, table.name)
        return None if rule.mode is Enforcement.OBSERVE else naming_if_any(table, rule)

    def concerns(self, method: str, columns: AbstractSet[str]) -> bool:
        """Return whether a write may change rows of other tables by foreign keys. ``columns``: those it sets."""
        change = self._change(method, columns)
        return any(one.passes_on(change, leaves=self._leaves) for one in self.references)

    def steps(self, method: str, columns: AbstractSet[str]) -> tuple[Step, ...]:
        """Return the steps of a write that lead to rows which can refuse it. ``columns``: those it sets."""
        return self.beyond(Place(self.table.oid, self._change(method, columns), self._root, shares=True))

    def beyond(self, place: Place) -> tuple[Step, ...]:
        """Return the next steps that lead to rows which can refuse the write."""
        if place not in self._useful:
            self._useful[place] = tuple(one for one in self._all(place) if any(self.decisive(one)))
        return self._useful[place]

    def relations(self, method: str, columns: AbstractSet[str]) -> frozenset[int]:
        """Return the oids of all relations whose rows the write may change, its own included."""
        start = Place(self.table.oid, self._change(method, columns), self._root, shares=True)
        found = set(self._graph.family(start.oid))
        for place in self._places(start):
            found.update(self._graph.family(place.oid))
        return frozenset(found)

    def as_planned(self, oids: AbstractSet[int]) -> Graph:
        """Return what has to lead away from these relations, so that the plan still holds."""
        return self._graph.part(oids)

    def all_steps(self) -> Iterator[Step]:
        """Yield the first steps of all writes that lead to rows which can refuse one."""
        seen = set()
        for change in (DELETED, self.keys):
            for one in self.beyond(Place(self.table.oid, change, self._root, shares=True)):
                if one.reference.oid not in seen:
                    seen.add(one.reference.oid)
                    yield one

    def decisive(self, step: Step) -> Iterator[Step]:
        """Yield the first steps, from this one on, whose rows can refuse a write."""
        steps, seen = [step], set[Place]()
        for one in steps:
            if one.decides:
                yield one
            elif one.place is not None and one.place not in seen:
                seen.add(one.place)
                steps += self._all(one.place)

    def written_by_code(self, event: str) -> Iterator[str]:
        """Yield what triggers and rules do, at an insert, update or delete of this table, that no claim covers."""
        return _foreign_code(self.table, event, self._tables.values(), self._rule_of)

    @property
    def _leaves(self) -> bool:
        return self.table.kind == "p"

    def _change(self, method: str, columns: AbstractSet[str]) -> Change:
        """Return what a write does to its rows. A column of a view may be called otherwise in its table."""
        if method == "DELETE":
            return DELETED
        return self.keys if self.table.is_view else frozenset(columns)

    def _places(self, start: Place) -> list[Place]:
        found, seen = [start], {start}
        for place in found:
            for one in self._all(place):
                if one.place is not None and one.place not in seen:
                    seen.add(one.place)
                    found.append(one.place)
        return found

    def _all(self, place: Place) -> tuple[Step, ...]:
        leaves = self._leaves and place.oid == self.table.oid
        if (place, leaves) not in self._steps:
            self._steps[place, leaves] = tuple(
                step
                for one in self._graph.referring_to(place.oid)
                if (passed := one.passes_on(place.change, leaves=leaves))
                for step in self._reached(place, one, passed[0])
            )
        return self._steps[place, leaves]

    def _reached(self, place: Place, reference: Reference, change: Change) -> Iterator[Step]:
        """Yield the step to the rows that refer.

        Their table names them, as it does for its own writes. If it does not, its exposed partitions do.
        """
        source = reference.source
        table = self._by_oid.get(source.oid)
        rule = Rule() if table is None else self._rule_of(table.schema, table.name)
        named = None if table is None else naming_if_any(table, rule)
        shares = place.shares and place.named is not None and named is not None and _follows(
            place.named, named, reference, change
        )  # fmt: skip
        onward = Place(source.oid, change, named, shares)
        yield self._step(reference, source, table, None if shares else named, rule, change, onward)
        parts = self.exposed(frozenset(self._graph.family(source.oid)[1:])) if named is None else []
        for part in parts:
            rule = self._rule_of(part.schema, part.name)
            if own := naming_if_any(part, rule):
                relation = Relation(part.oid, part.schema, part.name, part.kind)
                yield self._step(reference, relation, part, own, rule, change, None)

    def _step(
        self,
        reference: Reference,
        relation: Relation,
        table: Table | None,
        named: Naming | None,
        rule: Rule,
        change: Change,
        onward: Place | None,
    ) -> Step:
        event = "delete" if change is None else "update"
        code = None if table is None else next(
            _foreign_code(table, event, self._tables.values(), self._rule_of), None
        )  # fmt: skip
        return Step(
            reference,
            relation,
            named,
            renames=change is not None and named is not None and not change.isdisjoint(named.fields),
            strict=rule.equal is Equal.STRICT,
            observed=rule.mode is Enforcement.OBSERVE,
            code=code,
            place=onward,
        )


def same_names(own: Naming, other: Naming) -> bool:
    return own.template.literals == other.template.literals and own.fields == other.fields


def _follows(own: Naming, other: Naming, reference: Reference, change: Change) -> bool:
    """Return whether a row that refers always has the name of the row it refers to, before and after the change."""
    if own.template.literals != other.template.literals:
        return False
    if change is not None and reference.on_update != "c" and not change.isdisjoint(other.fields):
        return False
    referred = dict(zip(reference.columns, reference.target_columns, strict=True))
    return all(referred.get(field) == target for field, target in zip(other.fields, own.fields, strict=True))


_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_WRITTEN = re.compile(
    r"(?<!\w)(?<!\bfor\s)(?:insert\s+into|update(?:\s+only)?|delete\s+from(?:\s+only)?|merge\s+into(?:\s+only)?"
    rf"|truncate(?:\s+table)?(?:\s+only)?|copy)\s+({_NAME})(?:\s*\.\s*({_NAME}))?",
    re.IGNORECASE,
)


def _foreign_code(table: Table, event: str, tables: Iterable[Table], rule_of: RuleOf) -> Iterator[str]:
    """Yield which triggers and rules of a table write a table whose rows never share a resource with its rows.

    Only a table counts whose fences are enforced. If both templates have the same fixed parts, their rows may share
    resources: the operator has then said so.
    """
    own = naming_if_any(table, rule_of(table.schema, table.name))
    pieces = [("trigger", one.name, one.events, one.source) for one in table.triggers]
    pieces += [("rule", one.name, one.events, one.source) for one in table.rules]
    for kind, name, events, source in pieces:
        written = _tables_written(source) if event in events else frozenset()
        for other in tables if written else ():
            if other.oid == table.oid or other.is_view or not _is_among(other, written):
                continue
            rule = rule_of(other.schema, other.name)
            named = naming_if_any(other, rule)
            if named is None or rule.mode is Enforcement.OBSERVE:
                continue
            if own is None or own.template.literals != named.template.literals:
                yield f"the {kind} {name} writes {other.title}"


@lru_cache(maxsize=1024)
def _tables_written(source: str) -> frozenset[tuple[str | None, str]]:
    """Return the tables that statements in this text write, as schema (None: not said) and name."""
    found = set[tuple[str | None, str]]()
    for match in _WRITTEN.finditer(_COMMENT.sub(" ", source)):
        first, second = _plain(match[1]), match[2] and _plain(match[2])
        found.add((first, second) if second else (None, first))
    return frozenset(found)


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def _is_among(table: Table, written: AbstractSet[tuple[str | None, str]]) -> bool:
    return (table.schema, table.name) in written or (None, table.name) in written


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


def find_side_effects(snapshot: Snapshot, rule_of: RuleOf) -> list[SideEffect]:
    search = _Search(snapshot, rule_of)
    return [found for table in snapshot.tables.values() for found in search.of(table)]


class _Search:
    def __init__(self, snapshot: Snapshot, rule_of: RuleOf) -> None:
        self._snapshot, self._rule_of = snapshot, rule_of
        self._known: KnownSteps = {}
        self._below = frozenset(snapshot.graph.below)

    def of(self, table: Table) -> Iterator[SideEffect]:
        name, rule = table.title, self._rule_of(table.schema, table.name)
        if table.distributed:
            yield SideEffect(name, f"it is not served: {CITUS_PROBLEM}", CITUS_ADVICE)
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
        own, other = (naming_if_any(one, self._rule_of(one.schema, one.name)) for one in (table, child))
        if own is None or other is None or not writable or same_names(own, other):
            return
        known = set(own.fields) <= set(child.columns)  # a view may have other columns
        yield SideEffect(
            table.title,
            f"its rows in {child.title} can be written by that name too, under other fences",
            f"Give both one resource by a template, or do not expose {child.title}.",
            shared=((child.title, own.template.text),) if known else (),
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
        named = None if parent is None else naming_if_any(parent, self._rule_of(parent.schema, parent.name))
        if named is not None and set(named.fields) <= set(column_of):
            return ((step.relation.title, _filled(named.template, column_of)),)
        whole = f"{key.target.title}/" + "/".join(f"{{{column}}}" for column in key.target_columns)
        return ((key.target.title, whole), (step.relation.title, _filled(Template.parse(whole), column_of)))


def _filled(template: Template, column_of: Mapping[str, str]) -> str:
    fields = [f"{{{column_of[field]}}}" for field in template.fields]
    return "".join(part for pair in zip(template.literals, [*fields, ""], strict=True) for part in pair)


def _of_code(table: Table, reach: Reach, fate: Cascades) -> Iterator[SideEffect]:
    """Yield the effects of triggers and rules: those that their texts show, then those that they may have."""
    name, refused = table.title, fate is not Cascades.ALLOW
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
