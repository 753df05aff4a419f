"""A change of names beside the writers of two gateways, in every interleaving and with every crash.

The explored order of the change is the one of production (``gateway.changes.orders``). One gateway is configured with
the old name, the other with the new one. Each shows tokens of one lock, so a token that is acknowledged under the old
name must hold under the new one. A row is written in one transaction, with the lock of its table. A key is announced in
a transaction, and its request reaches the store at any later time, unless its intent was settled.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest

from gateway.changes.orders import CarryOver, Close, FindPending, NamingEffect, NamingSteps, Settle, change_naming
from tests.model.explorer import BrokenPromise, search

OLD, NEW = "old", "new"
MOST_STEPS = 40


@dataclass(frozen=True, slots=True)
class Writer:
    """A write by one gateway. ``generation``: what it has read of the registry; ``stage``: how far it is."""

    name: str
    token: int
    generation: int | None = None
    stage: str = "idle"


@dataclass(frozen=True, slots=True)
class World:
    """The database, the store and all processes. ``fences`` of both names; ``crashes``: how many may still come."""

    writers: tuple[Writer, ...]
    naming: str = OLD
    generation: int = 0
    closed: bool = False
    fences: tuple[int, int] = (0, 0)
    intents: frozenset[int] = frozenset()
    acknowledged: int = 0
    changer: int = 0
    found: tuple[int, ...] = ()
    crashes: int = 1


@dataclass(frozen=True, slots=True)
class Weakness:
    """The parts that are taken away. ``order``: another order of the change."""

    checks: bool = True
    check_under_lock: bool = True
    order: Callable[[], NamingSteps] = change_naming


Move: TypeAlias = tuple[str, World]


class Carry(CarryOver):
    """Weakened: carry fences over without putting the next naming in force."""


class Open(CarryOver):
    """Weakened: put the next naming in force with the fences that were carried over before."""


def carry_over_first() -> NamingSteps:
    """The weakened order: carry over before closing."""
    yield Carry()
    yield Close()
    while pending := (yield FindPending()):
        for intent in pending:
            yield Settle(intent)
    yield Open()


def open_without_settling() -> NamingSteps:
    """The weakened order: nothing is waited for."""
    yield Close()
    yield CarryOver()


def fence_of(world: World, name: str) -> int:
    return world.fences[name == NEW]


def raised(world: World, name: str, token: int) -> World:
    old, new = world.fences
    return replace(world, fences=(old, max(new, token)) if name == NEW else (max(old, token), new))


def moves(world: World, kind: str, weak: Weakness) -> Iterator[Move]:
    for number, writer in enumerate(world.writers):
        for what, after, changed in writer_moves(world, number, writer, kind, weak):
            writers = (*changed.writers[:number], after, *changed.writers[number + 1 :])
            yield f"{writer.name}/{writer.token} {what}", replace(changed, writers=writers)
    yield from changer_moves(world, kind, weak)


def writer_moves(
    world: World, number: int, writer: Writer, kind: str, weak: Weakness
) -> Iterator[tuple[str, Writer, World]]:
    if writer.stage == "idle":
        # The gateway reads the registry, and goes on only if its own naming is in force.
        if world.naming == writer.name and not world.closed:
            yield "reads the registry", replace(writer, stage="planned", generation=world.generation), world
        return
    if writer.stage == "planned":
        proven = not weak.checks or writer.generation == world.generation
        if not proven:
            yield "is refused", replace(writer, stage="idle", generation=None), world
        elif not weak.check_under_lock:
            yield "checks", replace(writer, stage="checked"), world
        else:
            yield from begin(world, number, writer, kind)
    elif writer.stage == "checked":
        yield from begin(world, number, writer, kind)
    elif writer.stage == "begun":
        yield from take_effect(world, number, writer, kind)


def begin(world: World, number: int, writer: Writer, kind: str) -> Iterator[tuple[str, Writer, World]]:
    if writer.token < fence_of(world, writer.name):
        yield "is stale", replace(writer, stage="done"), world
        return
    if kind == "keys" and any(one != number and world.writers[one].name == writer.name for one in world.intents):
        return  # it settles or awaits the other write of its own name, which the object protocol's own model explores
    # A row's claim becomes visible with its commit; the lock of the table is held from here on.
    after = raised(world, writer.name, writer.token) if kind == "keys" else world
    yield "begins", replace(writer, stage="begun"), replace(after, intents=world.intents | {number})


def take_effect(world: World, number: int, writer: Writer, kind: str) -> Iterator[tuple[str, Writer, World]]:
    if number not in world.intents:
        # The intent was settled: the condition of the request is broken for ever.
        yield "comes too late", replace(writer, stage="done"), world
        return
    if kind == "rows" and writer.token < fence_of(world, writer.name):
        yield "is stale", replace(writer, stage="done"), replace(world, intents=world.intents - {number})
        return
    if writer.token < world.acknowledged:
        raise BrokenPromise(f"{writer.token} under {writer.name} after {world.acknowledged}")
    after = raised(world, writer.name, writer.token)
    after = replace(after, acknowledged=max(world.acknowledged, writer.token), intents=world.intents - {number})
    yield "takes effect", replace(writer, stage="done"), after
    if world.crashes:
        lost = replace(world, crashes=world.crashes - 1)
        if kind == "rows":  # the database undoes the transaction
            lost = replace(lost, intents=world.intents - {number})
        yield "crashes", replace(writer, stage="lost" if kind == "rows" else "begun"), lost


def changer_moves(world: World, kind: str, weak: Weakness) -> Iterator[Move]:
    effect = effect_at(weak.order, world.changer, world.found)
    if world.changer and world.crashes:
        yield "the change is killed", replace(world, changer=0, found=(), crashes=world.crashes - 1)
    match effect:
        case Close():
            yield "closes", replace(world, closed=True, generation=world.generation + 1, changer=world.changer + 1)
        case FindPending():
            found = tuple(sorted(world.intents)) if kind == "keys" else ()
            yield "looks for intents", replace(world, found=found, changer=world.changer + 1)
        case Settle():
            settled = world.found[0]
            yield (
                "settles",
                replace(world, found=world.found[1:], intents=world.intents - {settled}, changer=world.changer + 1),
            )
        case CarryOver():
            if kind == "rows" and world.intents:
                return  # it waits for the lock of the table
            after = world if isinstance(effect, Open) else raised(world, NEW, world.fences[0])
            if not isinstance(effect, Carry):
                after = replace(after, naming=NEW, closed=False, generation=world.generation + 1)
            yield "carries over and opens", replace(after, changer=world.changer + 1)


def effect_at(order: Callable[[], NamingSteps], position: int, found: tuple[int, ...]) -> NamingEffect | None:
    """Return what the order wants after so many steps. ``found``: the intents that are still to be settled."""
    steps = order()
    effect = next(steps)
    for _ in range(position):
        # Only whether there is something to settle matters to it.
        answer = [object()] if isinstance(effect, FindPending) and found else None
        try:
            effect = steps.send(answer)  # type: ignore[arg-type]  # it looks at no intent
        except StopIteration:
            return None
    return effect


def explore(kind: str, tokens: tuple[tuple[str, int], ...], weak: Weakness = Weakness()) -> int:
    """Visit every world. Return how many there are."""

    def successors(world: World) -> Iterator[Move]:
        return (move for move in moves(world, kind, weak) if move[1].changer < MOST_STEPS)

    return len(search(World(tuple(Writer(name, token) for name, token in tokens)), successors))


SCOPES = (
    ((OLD, 2), (OLD, 1), (NEW, 1)),
    ((OLD, 2), (NEW, 1), (NEW, 3)),
    ((OLD, 1), (OLD, 3), (NEW, 2)),
    ((OLD, 3), (OLD, 2), (NEW, 2), (NEW, 1)),
)
KINDS = ("rows", "keys")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", SCOPES, ids=str)
def test_no_stale_write_takes_effect(kind: str, tokens: tuple[tuple[str, int], ...]) -> None:
    assert explore(kind, tokens) > 100


@pytest.mark.parametrize(
    ("weak", "kinds"),
    [
        (Weakness(checks=False), KINDS),
        (Weakness(check_under_lock=False), KINDS),
        (Weakness(order=carry_over_first), KINDS),
        (Weakness(order=open_without_settling), ("keys",)),
    ],
    ids=["no check of the generation", "a check before the lock", "carried over before closing", "nothing settled"],
)
def test_each_part_is_needed(weak: Weakness, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        assert any(breaks(kind, tokens, weak) for tokens in SCOPES), kind


def breaks(kind: str, tokens: tuple[tuple[str, int], ...], weak: Weakness) -> bool:
    try:
        explore(kind, tokens, weak)
    except BrokenPromise:
        return True
    return False
