"""A change of ownership beside the gateways of old and new rules, in every interleaving and with every crash.

The explored order of the change is the one of production (``gateway.changes.orders``). Three databases share two
names. A gateway gives each name to one database, by its rules. It opens a session of that database, is let in or not,
and writes with a token of one lock. Two processes change the rules: one to the new rules, and one on to others or back.
Each may be killed at every step and begin again. A database may be down while they plan, or go down at any step. One
may be put back to any earlier moment: its journal restores the fences, and the number of its closings beside them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pytest

from gateway.changes.orders import (
    CarryOver,
    Close,
    EndSessions,
    FindObstacles,
    Open,
    OwnershipEffect,
    OwnershipSteps,
    Reopen,
    change_ownership,
)
from gateway.errors import Unavailable
from tests.model.explorer import BrokenPromise, search

NAMES = ("m", "k")
FAILED = "failed"
"""The answer of a database that went down. The effect may have been committed, or not."""
Rules: TypeAlias = tuple[int, int]
"""The database of each name."""


@dataclass(frozen=True, slots=True)
class Database:
    """``share``: the names it owns; ``rules`` and ``number``: those that it noted. ``fences`` by name.

    ``closings``: how often it was closed, by its row. ``known_closings``: by its fence, which is never lost.
    """

    share: frozenset[str]
    rules: Rules
    number: int = 0
    following: Rules | None = None
    fences: tuple[int, int] = (0, 0)
    closings: int = 0
    known_closings: int = 0

    @property
    def is_put_back(self) -> bool:
        return self.known_closings > self.closings

    @property
    def as_seen(self) -> "Seen":
        return self.share, self.following, self.closings, self.known_closings


Seen: TypeAlias = tuple[frozenset[str], Rules | None, int, int]


@dataclass(frozen=True, slots=True)
class Gateway:
    """One write of one name by a gateway. ``seat``: the database that has let its session in."""

    rules: Rules
    name: str
    token: int
    seat: int | None = None
    stage: str = "idle"


@dataclass(frozen=True, slots=True)
class Changer:
    """A process that changes the rules. ``plan``: the concerned databases, as ``seen``. ``answers``: those so far."""

    rules: Rules
    plan: tuple[int, ...] | None = None
    seen: tuple[Seen, ...] = ()
    number: int = 0
    answers: tuple[bool | str | None, ...] = ()
    runs: int = 2


@dataclass(frozen=True, slots=True)
class World:
    """All databases and processes. ``crashes``: how many may still come. ``rewinds``: whether one may be put back.

    ``backup``: a database, and how it was at a moment.
    """

    databases: tuple[Database, ...]
    gateways: tuple[Gateway, ...]
    changers: tuple[Changer, ...]
    acknowledged: tuple[int, int] = (0, 0)
    crashes: int = 1
    rewinds: bool = False
    backup: tuple[int, Database] | None = None


@dataclass(frozen=True, slots=True)
class Weakness:
    """The parts that are taken away. ``order``: another order of the change.

    ``judges``: a database that is down is left out only if no known rules give it another share. ``minds_others``:
    rules that are being applied count there, and databases are concerned that these give another share. ``compares``:
    a database is closed only if it is as the plan has seen it. ``counts``: a database that was put back lets no session
    in. ``needs_all``: a change of it needs all others. ``cures``: to close it is enough. ``recounts``: a database is
    opened or reopened only if it was not closed again.
    """

    ends: bool = True
    lets_in_while_closed: bool = False
    order: Callable[[Sequence[str | None]], OwnershipSteps] = change_ownership
    judges: bool = True
    minds_others: bool = True
    compares: bool = True
    counts: bool = True
    needs_all: bool = True
    cures: bool = False
    recounts: bool = True


Move: TypeAlias = tuple[str, World]


def open_each_at_once(concerned: Sequence[str | None]) -> OwnershipSteps:
    """The weakened order: each database is opened before the next one is closed."""
    for database in concerned:
        yield Close(database)
        yield EndSessions(database)
        yield CarryOver(database)
        yield Open(database)
    return True


def carry_first(concerned: Sequence[str | None]) -> OwnershipSteps:
    """The weakened order: fences are carried over before sessions end."""
    for database in concerned:
        yield Close(database)
        yield CarryOver(database)
    for database in concerned:
        yield EndSessions(database)
    for database in concerned:
        yield Open(database)
    return True


def reopen_all(concerned: Sequence[str | None]) -> OwnershipSteps:
    """The weakened order: a change that gives up opens also what another one has closed."""
    for database in concerned:
        yield Close(database)
        yield EndSessions(database)
    if (yield FindObstacles()):
        for database in concerned:
            yield Reopen(database)
        return False
    for database in concerned:
        yield CarryOver(database)
    for database in concerned:
        yield Open(database)
    return True


def share(rules: Rules, number: int) -> frozenset[str]:
    return frozenset(name for name, owner in zip(NAMES, rules, strict=True) if owner == number)


def moves(world: World, weak: Weakness) -> Iterator[Move]:
    for number, gateway in enumerate(world.gateways):
        for what, after, changed in gateway_moves(world, gateway, weak):
            gateways = (*changed.gateways[:number], after, *changed.gateways[number + 1 :])
            yield f"{gateway.name}/{gateway.token} by {gateway.rules} {what}", replace(changed, gateways=gateways)
    for number, changer in enumerate(world.changers):
        for what, after_change, changed in changer_moves(world, changer, weak):
            changers = (*changed.changers[:number], after_change, *changed.changers[number + 1 :])
            yield f"change {changer.rules} {what}", replace(changed, changers=changers)
    if world.backup is not None:
        number, row = world.backup
        now = world.databases[number]
        back = replace(row, fences=now.fences, known_closings=now.known_closings)
        after_rewind = put_database(without_sessions(world, number), number, back)
        yield f"{number} is put back", replace(after_rewind, backup=None)
    for number, database in enumerate(world.databases if world.rewinds else ()):
        yield f"{number} is saved", replace(world, backup=(number, database), rewinds=False)


def gateway_moves(world: World, gateway: Gateway, weak: Weakness) -> Iterator[tuple[str, Gateway, World]]:
    index = NAMES.index(gateway.name)
    if gateway.stage == "idle":
        seat = gateway.rules[index]
        database = world.databases[seat]
        agrees = database.share == share(gateway.rules, seat) and not (database.is_put_back and weak.counts)
        if agrees and (database.following is None or weak.lets_in_while_closed):
            yield "is let in", replace(gateway, seat=seat, stage="in"), world
    elif gateway.stage == "in":
        assert gateway.seat is not None
        database = world.databases[gateway.seat]
        if gateway.token < database.fences[index]:
            yield "is stale", replace(gateway, stage="done", seat=None), world
            return
        if gateway.token < world.acknowledged[index]:
            raise BrokenPromise(f"{gateway.name}/{gateway.token} after {world.acknowledged[index]}")
        fences = put(database.fences, index, gateway.token)
        after = put_database(world, gateway.seat, replace(database, fences=fences))
        highest = max(world.acknowledged[index], gateway.token)
        after = replace(after, acknowledged=put(world.acknowledged, index, highest))
        yield "writes", replace(gateway, stage="done", seat=None), after


def changer_moves(world: World, changer: Changer, weak: Weakness) -> Iterator[tuple[str, Changer, World]]:
    if changer.plan is None:
        if changer.runs:
            yield from plans(world, changer, weak)
        return
    effect = effect_at(weak.order, changer.plan, changer.answers)
    if world.crashes:
        yield "is killed", replace(changer, plan=None, seen=(), answers=()), replace(world, crashes=world.crashes - 1)
    if effect is None:
        yield "ends", replace(changer, plan=None, seen=(), answers=()), world
    elif isinstance(effect, FindObstacles):
        # A lease may be found, or none.
        for found in (False, True):
            yield f"finds obstacles: {found}", replace(changer, answers=(*changer.answers, found)), world
    else:
        answer, after = performed(world, changer, effect, weak)
        if answer is Unavailable:
            after = world  # another change has come first
            yield f"{effect} is refused", replace(changer, answers=(*changer.answers, FAILED)), world
        else:
            assert answer is None or isinstance(answer, bool)
            yield str(effect), replace(changer, answers=(*changer.answers, answer)), after
        if world.crashes:
            failed = replace(changer, answers=(*changer.answers, FAILED))
            for left in dict.fromkeys((world, after)):
                yield f"{effect} fails", failed, replace(left, crashes=world.crashes - 1)


def plans(world: World, changer: Changer, weak: Weakness) -> Iterator[tuple[str, Changer, World]]:
    """Plan with all databases, or while one of them is down: see ``Fleet.check_applicable``."""
    for down in (None, *range(len(world.databases))):
        there = {number: one for number, one in enumerate(world.databases) if number != down}
        newest = max(one.number for one in there.values())
        known = [one.rules for one in there.values() if one.number == newest]
        pending = [one.following for one in there.values() if one.following is not None and weak.minds_others]
        known += pending
        put_back = weak.needs_all and any(one.is_put_back for one in there.values())
        if put_back and down is not None:
            continue
        judged = down is not None and weak.judges
        if judged and any(share(rules, down or 0) != share(changer.rules, down or 0) for rules in known):
            continue
        concerned = tuple(
            number
            for number, one in there.items()
            if one.following is not None
            or one.is_put_back
            or put_back
            or any(each != share(changer.rules, number) for each in (one.share, *(share(p, number) for p in pending)))
        )
        if concerned:
            seen = tuple(there[number].as_seen for number in concerned)
            planned = replace(changer, plan=concerned, seen=seen, number=newest + 1, answers=(), runs=changer.runs - 1)
            yield f"plans {concerned}, with {down} down", planned, world


def performed(world: World, changer: Changer, effect: OwnershipEffect, weak: Weakness) -> tuple[object, World]:
    number = int(effect.database or 0)  # type: ignore[union-attr]  # FindObstacles is answered by the caller
    database = world.databases[number]
    seen = changer.seen[(changer.plan or ()).index(number)]
    count = seen[-1] + 1
    same = count == database.known_closings
    match effect:
        case Close():
            if weak.compares and seen != database.as_seen:
                return Unavailable, world
            fresh = database.following is None
            # The row of one that was put back stays behind until the new share is in force.
            counted = database.closings if database.is_put_back and not weak.cures else database.known_closings + 1
            closed = replace(database, following=changer.rules, closings=counted)
            return fresh, put_database(world, number, replace(closed, known_closings=database.known_closings + 1))
        case EndSessions():
            return None, without_sessions(world, number) if weak.ends else world
        case Reopen():
            if database.following == changer.rules and (same or not weak.recounts):
                world = put_database(world, number, replace(database, following=None))
            return None, world
        case CarryOver():
            return None, carried_over(world, changer, number)
        case Open():
            if database.following != changer.rules or (weak.recounts and not same):
                return Unavailable, world
            opened = replace(
                database,
                share=share(changer.rules, number),
                rules=changer.rules,
                number=changer.number,
                following=None,
                closings=count,
            )
            return None, put_database(world, number, opened)
    raise AssertionError(effect)


def without_sessions(world: World, number: int) -> World:
    gateways = (replace(one, stage="idle", seat=None) if one.seat == number else one for one in world.gateways)
    return replace(world, gateways=tuple(gateways))


def carried_over(world: World, changer: Changer, number: int) -> World:
    for index, owner in enumerate(changer.rules):
        if owner != number and owner in (changer.plan or ()):
            to = world.databases[owner]
            highest = max(to.fences[index], world.databases[number].fences[index])
            world = put_database(world, owner, replace(to, fences=put(to.fences, index, highest)))
    return world


def effect_at(
    order: Callable[[Sequence[str | None]], OwnershipSteps],
    plan: tuple[int, ...],
    answers: tuple[bool | str | None, ...],
) -> OwnershipEffect | None:
    """Return what the order wants after these answers; None at its end."""
    steps = order([str(number) for number in plan])
    effect = next(steps)
    for answer in answers:
        try:
            effect = steps.throw(Unavailable(FAILED)) if isinstance(answer, str) else steps.send(answer)
        except (StopIteration, Unavailable):
            return None
    return effect


def put(pair: tuple[int, int], index: int, value: int) -> tuple[int, int]:
    return (value, pair[1]) if index == 0 else (pair[0], value)


def put_database(world: World, number: int, database: Database) -> World:
    return replace(world, databases=(*world.databases[:number], database, *world.databases[number + 1 :]))


def explore(scope: "Scope", weak: Weakness = Weakness()) -> int:
    """Visit every world. Return how many there are."""
    databases = tuple(Database(share(scope.first, number), scope.first) for number in range(3))
    gateways = tuple(Gateway(*one) for one in scope.writes)
    changers = tuple(Changer(rules, runs=scope.runs) for rules in scope.changes)
    first = World(databases, gateways, changers, rewinds=scope.rewinds, crashes=scope.crashes)
    return len(search(first, lambda world: moves(world, weak)))


@dataclass(frozen=True, slots=True)
class Scope:
    """``first``: the rules in force. ``changes``: those that processes apply. ``writes``: rules, name and token.

    ``rewinds``, ``crashes``: as of ``World``.
    """

    first: Rules
    changes: tuple[Rules, ...]
    writes: tuple[tuple[Rules, str, int], ...]
    runs: int = 2
    rewinds: bool = False
    crashes: int = 1


MOVED = Scope((0, 1), ((1, 1),), (((0, 1), "m", 2), ((1, 1), "m", 1), ((0, 1), "m", 1), ((1, 1), "m", 3)))
SWAPPED = Scope((0, 1), ((1, 0),), (((0, 1), "m", 1), ((1, 0), "m", 2), ((0, 1), "k", 1), ((1, 0), "k", 2)))
BACK = Scope((2, 1), ((0, 1), (2, 1)), (((2, 1), "m", 1), ((0, 1), "m", 2)), runs=1)
ON = Scope((0, 1), ((1, 1), (2, 1)), (((1, 1), "m", 2), ((2, 1), "m", 1)), runs=1)
PUT_BACK = Scope((0, 1), ((1, 1),), (((0, 1), "m", 1), ((1, 1), "m", 2)), rewinds=True)
RETURNED = Scope((0, 1), ((1, 1), (0, 1)), (((0, 1), "m", 1), ((1, 1), "m", 2)), runs=1, rewinds=True, crashes=0)
TWICE = Scope((0, 1), ((1, 1), (1, 1)), PUT_BACK.writes, runs=1, rewinds=True, crashes=0)
SCOPES = {
    "moved": MOVED, "swapped": SWAPPED, "back": BACK, "on": ON, "put back": PUT_BACK, "returned": RETURNED,
    "twice": TWICE,
}  # fmt: skip


def tiered(cases: Mapping[str, Any]) -> list[Any]:
    """Return pytest's parameters, thorough where the scope has many states."""
    made = []
    for name, case in cases.items():
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.thorough] if values[-1] in (ON, PUT_BACK, RETURNED, TWICE) else []
        made.append(pytest.param(*values, id=name, marks=marks))
    return made


@pytest.mark.parametrize("scope", tiered(SCOPES))
def test_no_two_databases_serve_one_name(scope: Scope) -> None:
    assert explore(scope) > 500


WEAKNESSES = {
    "sessions go on": (Weakness(ends=False), MOVED),
    "sessions are let in while it is closed": (Weakness(lets_in_while_closed=True), MOVED),
    "each is opened at once": (Weakness(order=open_each_at_once), SWAPPED),
    "carried over before sessions end": (Weakness(order=carry_first), MOVED),
    "others are reopened": (Weakness(order=reopen_all), SWAPPED),
    "a database that is down is left out": (Weakness(judges=False), MOVED),
    "changes under way are not minded": (Weakness(minds_others=False), BACK),
    "another change may have come first": (Weakness(compares=False, recounts=False), ON),
    "a database that was put back lets sessions in": (Weakness(counts=False), PUT_BACK),
    "a database that was put back needs no others": (Weakness(needs_all=False), RETURNED),
    "a database that was put back is closed and reopened": (Weakness(cures=True), RETURNED),
    "a database is reopened though it was closed again": (Weakness(recounts=False), TWICE),
}


@pytest.mark.parametrize(("weak", "scope"), tiered(WEAKNESSES))
def test_each_part_is_needed(weak: Weakness, scope: Scope) -> None:
    with pytest.raises(BrokenPromise):
        explore(scope, weak)
