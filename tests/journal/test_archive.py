"""A journal survives crashes in any order, and each way to lose or spoil its objects is told apart."""

import asyncio
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from gateway.errors import JournalUnusable
from gateway.journal.archive import Archive
from gateway.journal.contents import (
    ADVICE,
    Contents,
    Flaw,
    Keeping,
    Problem,
    Segment,
    compact,
    find_gap,
    merge,
    number_of,
    segment_name,
    snapshot_name,
)
from tests.journal.installation import (
    MARKER,
    NOW,
    OURS,
    THEIRS,
    WRITER,
    Broken,
    MemoryStore,
    days,
    entry,
    segment,
    snapshot,
)


def archive(store: MemoryStore, installation: UUID = OURS) -> Archive:
    made = Archive(store)
    made.installation = installation
    return made


def keeping(noted: int = 0, began: int = 0, at: timedelta = timedelta()) -> Keeping:
    return Keeping(NOW + at, days(35), noted, began)


async def contents(store: MemoryStore, noted: int = 0, **how: bool) -> Contents:
    found = await archive(store).read(noted, NOW, **how)
    assert isinstance(found, Contents), found
    return found


async def flaw(store: MemoryStore, noted: int = 0, installation: UUID = OURS, *, salvage: bool = False) -> Flaw:
    found = await archive(store, installation).read(noted, NOW, salvage=salvage)
    assert isinstance(found, Flaw), found
    return found


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def filled(store: MemoryStore) -> MemoryStore:
    """Three segments: two in snapshot 1, of which the first is in no object of its own any more; and snapshot 2."""
    one = archive(store)
    await one.append(segment(1, entry("a", 1)))
    await one.compact(keeping())
    await one.append(segment(2, entry("b", 2), follows=1))
    await one.compact(keeping())
    await one.append(segment(3, entry("c", 3), follows=2))
    assert await store.names("segments/") == [segment_name(WRITER, number) for number in (2, 3)]
    assert await store.names("snapshots/") == [snapshot_name(number) for number in (1, 2)]
    return store


async def test_the_marker_is_created_once_and_then_replaced(store: MemoryStore) -> None:
    one = archive(store)
    assert await one.create_marker(MARKER, "")
    assert not await one.create_marker(MARKER, "")
    found = await one.marker()
    assert found.marker == MARKER
    assert await one.create_marker(MARKER, found.version)
    assert not await one.create_marker(MARKER, found.version)


async def test_a_database_reads_what_it_may_lack(filled: MemoryStore) -> None:
    for noted, lacks in ((0, "abc"), (1, "bc"), (2, "c")):
        found = await contents(filled, noted)
        assert set(lacks) <= found.entries.keys(), noted
        assert (found.number, found.segments) == (2, 2)
    assert set((await contents(filled, 2)).entries) == {"c"}
    assert set((await contents(filled, 2, whole=True)).entries) == set("abc")


async def test_fences_that_are_gone_cost_nothing(filled: MemoryStore) -> None:
    (name,) = await filled.names("fences/000000000002-")
    del filled.objects[name]
    assert set((await contents(filled)).entries) == set("abc")


@pytest.mark.parametrize("damaged", [snapshot_name(2), "fences/000000000002-"])
@pytest.mark.parametrize("cut", [False, True])
async def test_the_newest_snapshot_may_be_spoilt(filled: MemoryStore, damaged: str, *, cut: bool) -> None:
    (name,) = await filled.names(damaged)
    filled.damage(name, cut=cut)
    for noted in range(3):
        found = await contents(filled, noted, whole=True)
        assert set(found.entries) == set("abc")
        assert [one.problem for one in found.damaged] == [Problem.TRUNCATED if cut else Problem.CORRUPT]
    # The next one is made of the one before, and has another number.
    written = await archive(filled).compact(keeping())
    assert written is not None
    assert (written[0].number, set(written[1])) == (3, set("abc"))
    assert set((await contents(filled)).entries) == set("abc")


async def test_both_snapshots_spoilt_close_the_database(filled: MemoryStore) -> None:
    for number in (1, 2):
        filled.damage(snapshot_name(number))
    assert (await flaw(filled)).problem is Problem.CORRUPT
    with pytest.raises(JournalUnusable, match="checksum"):
        await archive(filled).compact(keeping())
    assert set((await contents(filled, salvage=True)).entries) == {"b", "c"}


@pytest.mark.parametrize(("cut", "problem"), [(False, Problem.CORRUPT), (True, Problem.TRUNCATED)])
async def test_a_spoilt_segment_closes_the_database(filled: MemoryStore, problem: Problem, *, cut: bool) -> None:
    filled.damage(segment_name(WRITER, 3), cut=cut)
    found = await flaw(filled, 2)
    assert (found.problem, found.name) == (problem, segment_name(WRITER, 3))
    salvaged = await contents(filled, salvage=True, whole=True)
    assert set(salvaged.entries) == {"a", "b"}
    assert salvaged.damaged == (found,)


async def test_a_segment_that_is_gone_closes_the_database(filled: MemoryStore) -> None:
    await archive(filled).append(segment(4, entry("d", 4), follows=3))
    del filled.objects[segment_name(WRITER, 3)]
    found = await flaw(filled)
    assert (found.problem, found.name) == (Problem.MISSING, segment_name(WRITER, 3))
    assert set((await contents(filled, salvage=True)).entries) == set("abd")


async def test_two_installations_in_one_prefix(filled: MemoryStore) -> None:
    assert (await flaw(filled, installation=THEIRS)).problem is Problem.FOREIGN
    await archive(filled, THEIRS).append(Segment(THEIRS, UUID(int=9), 1, 0, 1, 0, NOW, (entry("x", 1),)))
    assert (await flaw(filled)).problem is Problem.FOREIGN
    assert (await flaw(filled, salvage=True)).problem is Problem.FOREIGN


async def test_an_append_that_was_sent_twice_is_one(store: MemoryStore) -> None:
    one = archive(store)
    await one.append(segment(1, entry("a", 1)))
    await one.append(segment(1, entry("a", 1)))
    with pytest.raises(JournalUnusable, match="another process"):
        await one.append(segment(1, entry("a", 2)))


async def test_of_two_compactions_one_writes_the_snapshot(store: MemoryStore) -> None:
    await archive(store).append(segment(1, entry("a", 1)))
    written = await asyncio.gather(*(archive(store).compact(keeping()) for _ in range(3)))
    assert len([one for one in written if one is not None]) == 1
    assert len(await store.names("fences/")) == 1
    assert await archive(store).compact(keeping()) is None, "there is nothing new"


async def test_the_newest_snapshot_is_found_again_where_the_database_has_not_noted_it(filled: MemoryStore) -> None:
    found = await archive(filled).newest(after=1)
    assert found is not None
    assert found[0].number == 2
    assert await archive(filled).newest(after=2) is None


@dataclass
class LaggingStore(MemoryStore):
    """A store that shows an object in its listings only later."""

    async def names(self, prefix: str) -> list[str]:
        return []


@dataclass
class RacyStore(MemoryStore):
    """A store that checks a condition first and writes later: of replacements, or of creations too."""

    creates: bool = True

    async def add(self, name: str, content: bytes) -> bool:
        if not self.creates:
            return await super().add(name, content)
        there = name in self.objects
        await asyncio.sleep(0)
        return not there and self._overwrite(name, content)

    async def replace(self, name: str, content: bytes, version: str) -> bool:
        same = self.objects[name][1] == version
        await asyncio.sleep(0)
        return same and self._overwrite(name, content)

    def _overwrite(self, name: str, content: bytes) -> bool:
        self._write(name, content)
        return True


@pytest.mark.parametrize(
    ("unfit", "detail"),
    [
        (LaggingStore(), "not listed"),
        (RacyStore(), "create one object at the same time"),
        (RacyStore(creates=False), "replace one object at the same time"),
    ],
)
async def test_a_store_that_is_not_linearizable_is_unfit(unfit: MemoryStore, detail: str) -> None:
    found = await archive(unfit).find_unfit()
    assert found is not None
    assert found.problem is Problem.UNFIT
    assert detail in found.detail
    assert not unfit.objects, "the check leaves nothing behind"


# Histories ------------------------------------------------------------------------------------------------------------


@dataclass
class Life:
    """Two gateways, a database with fences that can be rewound, and a journal with crashes and damages."""

    chance: random.Random
    store: MemoryStore = field(default_factory=MemoryStore)
    now: datetime = NOW
    fences: dict[str, int] = field(default_factory=dict)
    noted: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    earlier: list[tuple[datetime, int, dict[str, int]]] = field(default_factory=list)
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    retention: timedelta = field(default_factory=lambda: days(10))

    async def step(self) -> None:
        steps = [self.raises, self.raises, self.raises, self.compacts, self.crashes, self.rewinds, self.waits]
        await self.chance.choice(steps)()
        self.earlier.append((self.now, self.noted, dict(self.fences)))

    async def raises(self) -> None:
        """A raise is appended; nearly always it is committed and acknowledged then."""
        gateway = self.chance.randrange(2)
        resource = self.chance.choice("abcd")
        token = max(self.fences.get(resource, 0), self.acknowledged.get(resource, 0)) + 1
        sequence, confirmed = self.sequences.get(gateway, (0, 0))
        made = segment(
            sequence + 1,
            entry(resource, token, at=self.now),
            follows=confirmed,
            writer=UUID(int=100 + gateway),
            at=self.now,
        )
        self.sequences[gateway] = (sequence + 1, confirmed)
        if self.chance.random() < 0.1:
            return  # the request was never sent
        await archive(self.store).append(made)
        self.sequences[gateway] = (sequence + 1, sequence + 1)
        if self.chance.random() < 0.9:
            self.fences[resource] = max(self.fences.get(resource, 0), token)
            self.acknowledged[resource] = token

    async def compacts(self) -> None:
        written = await archive(self.store).compact(self._keeping())
        newest = written or await archive(self.store).newest(after=self.noted)
        if newest is None or self.chance.random() < 0.2:
            return  # the gateway ends before the database has noted it
        index, fences = newest
        self._note(index.number, {name: one.token.value for name, one in fences.items() if one.since > self.noted})

    async def crashes(self) -> None:
        """A compaction ends at any of its requests."""
        self.store.left = self.chance.randrange(30)
        try:
            await archive(self.store).compact(self._keeping())
        except Broken:
            pass
        finally:
            self.store.left = 1_000_000

    async def waits(self) -> None:
        self.now += days(self.chance.random())

    async def rewinds(self) -> None:
        """The database goes back by less than the retention, and is opened; perhaps with a damaged snapshot."""
        states = [one for one in self.earlier if self.now - one[0] < self.retention - days(1)]
        if not states:
            return
        _, self.noted, fences = self.chance.choice(states)
        self.fences = dict(fences)
        spoilt = await self._spoilt()
        found = await archive(self.store).read(self.noted, self.now)
        assert isinstance(found, Contents), found
        assert found.complete_from <= self.noted, "the database counts as too old"
        lacking = {name: one.token.value for name, one in found.entries.items()}
        self._note(found.number if found.whole else self.noted, lacking)
        for resource, token in self.acknowledged.items():
            assert self.fences.get(resource, 0) >= token, (resource, token, self.noted, found)
        self.store.objects.update(spoilt)

    async def _spoilt(self) -> dict[str, tuple[bytes, str]]:
        numbers = await self.store.names("snapshots/")
        if len(numbers) < 2 or self.chance.random() < 0.7:
            return {}
        before = dict(self.store.objects)
        name = numbers[-1] if self.chance.random() < 0.5 else (await self.store.names("fences/"))[-1]
        self.store.damage(name, cut=self.chance.random() < 0.5)
        return before

    def _keeping(self) -> Keeping:
        return Keeping(self.now, self.retention, self.noted)

    def _note(self, number: int, lacking: dict[str, int]) -> None:
        for name, token in lacking.items():
            self.fences[name] = max(self.fences.get(name, 0), token)
        self.noted = max(self.noted, number)


@pytest.mark.parametrize(
    ("steps", "seed"),
    [
        *((120, seed) for seed in range(20)),
        *(pytest.param(400, seed, marks=pytest.mark.thorough) for seed in range(20, 320)),
    ],
)
async def test_no_history_loses_an_acknowledged_raise(steps: int, seed: int) -> None:
    life = Life(random.Random(seed))
    for _ in range(steps):
        await life.step()
    assert life.acknowledged


# Contents -------------------------------------------------------------------------------------------------------------


OTHER = UUID(int=8)


def test_the_highest_token_counts_and_the_last_announcement_of_object_writes() -> None:
    later = NOW + days(1)
    merged = merge([entry("r", 5, objects=NOW), entry("r", 7), entry("r", 6, objects=later), entry("s", 1)])
    assert merged == {"r": entry("r", 7, objects=later), "s": entry("s", 1)}


def test_a_token_keeps_the_snapshot_that_it_was_in_first() -> None:
    assert merge([entry("r", 5, since=2), entry("r", 5, since=9)])["r"].since == 2
    assert merge([entry("r", 5, since=2), entry("r", 6, since=9)])["r"].since == 9
    assert merge([entry("r", 5), entry("r", 5, since=9)])["r"].since == 9


def test_a_segment_that_another_one_follows_must_be_there() -> None:
    third = segment(3, follows=2)
    found = find_gap([third], [third.name], {})
    assert found is not None
    assert (found.problem, found.name) == (Problem.MISSING, segment_name(WRITER, 2))
    assert find_gap([third], [third.name, segment_name(WRITER, 2)], {}) is None
    assert find_gap([third], [third.name], {WRITER: 2}) is None
    assert find_gap([third], [third.name], {OTHER: 2}) is not None


def test_a_snapshot_has_the_fences_of_the_one_before_and_of_the_segments() -> None:
    before = snapshot(3, position=4, reached={OTHER: (9, NOW)})
    kept = {"r": entry("r", 5, since=1), "s": entry("s", 1, since=3)}
    index, fences = compact(before, kept, [segment(1, entry("r", 6)), segment(2, entry("t", 2))], keeping(), 4)
    assert fences == {"r": entry("r", 6, since=4), "s": entry("s", 1, since=3), "t": entry("t", 2, since=4)}
    assert (index.number, index.position, index.reached) == (4, 4, {OTHER: (9, NOW), WRITER: (2, NOW)})


@pytest.mark.parametrize(
    ("noted", "at", "kept"),
    [(3, days(36), False), (2, days(36), True), (3, days(34), True)],
    ids=["old and noted", "not noted by the database", "younger than the retention"],
)
def test_a_raise_is_dropped_once_it_is_old_and_the_database_has_noted_it(
    noted: int, at: timedelta, *, kept: bool
) -> None:
    index, fences = compact(snapshot(3), {"r": entry("r", 5, since=3)}, [], keeping(noted, at=at), 4)
    assert ("r" in fences) is kept
    assert index.complete_from == (0 if kept else 3)


def test_a_raise_of_a_resource_with_object_writes_is_kept_as_long_as_their_announcement() -> None:
    kept = {"r": entry("r", 5, since=1, objects=NOW + days(20))}
    assert "r" in compact(snapshot(3), kept, [], keeping(3, at=days(50)), 4)[1]
    assert "r" not in compact(snapshot(3), kept, [], keeping(3, at=days(56)), 4)[1]


def test_nothing_is_dropped_while_a_time_lies_in_the_future() -> None:
    """Then one of the clocks is wrong, and it could be the one that makes raises old."""
    old, ahead = entry("r", 5, since=1), entry("s", 1, at=NOW + days(37))
    index, fences = compact(snapshot(3), {"r": old}, [segment(1, ahead)], keeping(3, at=days(36)), 4)
    assert "r" in fences
    assert index.complete_from == 0


def test_the_term_in_which_the_journal_began_anew_is_kept() -> None:
    assert compact(snapshot(3, began=2), {}, [], keeping(began=4), 4)[0].began == 4
    assert compact(snapshot(3, began=5), {}, [], keeping(began=4), 4)[0].began == 5


def test_writers_are_forgotten_after_the_retention() -> None:
    before = snapshot(3, reached={OTHER: (9, NOW)})
    assert compact(before, {}, [segment(1, at=NOW + days(36))], keeping(at=days(36)), 4)[0].reached.keys() == {WRITER}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("snapshots/000000000012", 12),
        ("fences/000000000012-ab", 12),
        ("snapshots/x", 0),
        ("snapshots/", 0),
        (f"snapshots/{10**20}", 0),
    ],
)
def test_numbers_stand_in_names(name: str, number: int) -> None:
    assert number_of(name) == number


def test_each_problem_has_a_next_step() -> None:
    assert ADVICE.keys() == set(Problem)
