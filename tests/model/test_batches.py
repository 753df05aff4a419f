"""Batches of writes beside those of newer holders, in every interleaving: one snapshot for all writes of a statement.

A batch is a transaction: a claim, which raises the fences that are free, and one statement. That statement takes its
snapshot first. Then, for each of its writes, it looks at the fence in the snapshot, and locks it. It skips one that is
being raised. A fence that has changed since is judged again in its newest version. Then it writes the row, if its
snapshot has the row. Writes of the first holder make it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest

from tests.model.explorer import BrokenPromise, search

RESOURCES = (0, 1)
Values: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weakness:
    """The parts that are taken away. ``raises_within``: the statement itself raises, after its snapshot."""

    locks: bool = True
    judges_again: bool = True
    raises_within: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """A transaction of one holder, which writes all rows. ``stage``: claim, snapshot, lock, write, commit, done.

    ``fences``, ``rows``: its snapshot. ``raised``, ``held``: resources whose fence it has raised, or locked to write.
    """

    token: int
    stage: str = "claim"
    member: int = 0
    fences: Values = ()
    rows: Values = ()
    raised: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    touched: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class World:
    """The committed state: token of each fence, and of the last write of each row. ``acknowledged``: by resource."""

    batches: tuple[Batch, ...]
    fences: Values = (0, 0)
    rows: Values = (0, 0)
    acknowledged: Values = (0, 0)


def explore(tokens: tuple[int, ...], weak: Weakness = Weakness()) -> int:
    """Visit every world. Return how many there are."""
    start = World(tuple(Batch(token) for token in tokens))
    return len(search(start, lambda world: moves(world, weak)))


def moves(world: World, weak: Weakness) -> Iterator[tuple[str, World]]:
    for number, batch in enumerate(world.batches):
        others = [other for other in world.batches if other is not batch]
        for what, after, changed in steps(world, batch, others, weak):
            batches = (*world.batches[:number], after, *world.batches[number + 1 :])
            yield f"{number}/{batch.token} {what}", replace(changed, batches=batches)
        if batch.stage not in ("claim", "done"):
            undone = replace(batch, stage="done", raised=frozenset(), held=frozenset(), touched=frozenset())
            yield (
                f"{number}/{batch.token} is undone",
                replace(world, batches=(*world.batches[:number], undone, *world.batches[number + 1 :])),
            )


def steps(world: World, batch: Batch, others: list[Batch], weak: Weakness) -> Iterator[tuple[str, Batch, World]]:
    resource = batch.member
    if batch.stage == "claim":
        raised = batch if weak.raises_within else replace(batch, raised=risen(world, batch, others, weak))
        yield "claims", replace(raised, stage="snapshot"), world
    elif batch.stage == "snapshot":
        fences = tuple(batch.token if one in batch.raised else world.fences[one] for one in RESOURCES)
        yield "takes its snapshot", replace(batch, stage="lock", fences=fences, rows=world.rows), world
    elif batch.stage == "lock":
        yield f"locks {resource}", replace(lock(world, batch, others, weak), stage="write"), world
    elif batch.stage == "write":
        if resource not in batch.held:
            yield f"skips {resource}", following(batch), world
        elif not any(resource in other.touched for other in others):  # else it waits for the row
            there = batch.rows[resource] or batch.token == 1
            after = replace(batch, touched=batch.touched | {resource}) if there else batch
            yield f"writes {resource}", following(after), world
    elif batch.stage == "commit":
        yield (
            "commits",
            replace(batch, stage="done", raised=frozenset(), held=frozenset(), touched=frozenset()),
            commit(world, batch),
        )


def following(batch: Batch) -> Batch:
    last = batch.member == len(RESOURCES) - 1
    return replace(batch, stage="commit") if last else replace(batch, stage="lock", member=batch.member + 1)


def free(resource: int, others: list[Batch], weak: Weakness) -> bool:
    return not any(resource in other.raised or (weak.locks and resource in other.held) for other in others)


def risen(world: World, batch: Batch, others: list[Batch], weak: Weakness) -> frozenset[int]:
    lower = (one for one in RESOURCES if world.fences[one] < batch.token)
    return frozenset(one for one in lower if free(one, others, weak))


def lock(world: World, batch: Batch, others: list[Batch], weak: Weakness) -> Batch:
    resource = batch.member
    if weak.raises_within:
        if world.fences[resource] < batch.token and free(resource, others, weak):
            return replace(batch, raised=batch.raised | {resource}, held=batch.held | {resource})
        return batch
    if batch.fences[resource] != batch.token:
        return batch
    if weak.judges_again and resource not in batch.raised and world.fences[resource] != batch.token:
        return batch
    if any(resource in other.raised for other in others):
        return batch
    return replace(batch, held=batch.held | {resource})


def commit(world: World, batch: Batch) -> World:
    fences, rows, acknowledged = list(world.fences), list(world.rows), list(world.acknowledged)
    for one in batch.raised:
        fences[one] = max(fences[one], batch.token)
    for one in batch.held:
        if batch.token < acknowledged[one]:
            raise BrokenPromise(f"{batch.token} takes effect on {one} after {acknowledged[one]}")
        if one not in batch.touched and rows[one]:
            raise BrokenPromise(f"{batch.token} misses the row of {one}, which {rows[one]} had written")
        acknowledged[one] = batch.token
    for one in batch.touched:
        rows[one] = batch.token
    return replace(world, fences=tuple(fences), rows=tuple(rows), acknowledged=tuple(acknowledged))


SCOPES = ((1, 2), (1, 1, 2), (1, 2, 2), (1, 2, 3))


@pytest.mark.parametrize("tokens", SCOPES, ids=str)
def test_no_write_of_an_older_holder_takes_effect_and_none_is_missed(tokens: tuple[int, ...]) -> None:
    assert explore(tokens) > 100


@pytest.mark.parametrize(
    "weak",
    [Weakness(locks=False), Weakness(judges_again=False), Weakness(raises_within=True)],
    ids=["no lock of the fence", "the fence as the snapshot has it", "the raise in the same statement"],
)
def test_each_part_is_needed(weak: Weakness) -> None:
    with pytest.raises(BrokenPromise):
        explore((1, 1, 2), weak)
