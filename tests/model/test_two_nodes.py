"""A write whose fence and row live on two nodes, in every interleaving and with every crash.

One transaction locks the fence, writes the row, and commits on both nodes. The session is with one of them, which
commits its own part itself. It commits the other part by messages: by PREPARE and COMMIT PREPARED, or by one COMMIT.
Citus sends the one COMMIT where a single other node has written, and before the own part commits. A newer holder raises
the fence by a barrier, as soon as no transaction has it locked.

The promise is kept only if the newer holder is never acknowledged before the older row becomes visible. This decides
which tables are served (docs/decisions/100).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest

from tests.model.explorer import BrokenPromise, search

OLDER, NEWER = 1, 2
UNENDED = ("open", "prepared")
EFFECTS = {"PREPARE": ("open", "prepared"), "COMMIT": ("open", "done"), "COMMIT PREPARED": ("prepared", "done")}
"""The states of the other part before and after each message."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes of both parts, and how they commit.

    ``session``: the node that the transaction began on, ``fence`` or ``row``. ``prepares``: the other part is committed
    in two phases. ``together``: both parts are on one node. ``waits``: the barrier is acknowledged once no prepared
    transaction of the resource is left on the row's node. ``asks_first``: it asks for them before it raises the fence.
    """

    session: str = "fence"
    prepares: bool = True
    together: bool = False
    waits: bool = False
    asks_first: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """Both nodes and all messages.

    ``fence_part``, ``row_part``: none, open, prepared, done or gone. A fence part that is open or prepared has the
    fence locked, and a row part that is done is visible. ``message``: what is on its way to the other node.
    """

    fence: int = 0
    fence_part: str = "none"
    row_part: str = "none"
    session_lives: bool = True
    sent: bool = False
    message: str | None = None
    clear: bool = False
    acknowledged: int = 0
    crashes: int = 2


Move: TypeAlias = tuple[str, World]


class Explorer:
    """Tries all that may happen with a layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._own, self._other = ("fence_part", "row_part") if layout.session == "fence" else ("row_part", "fence_part")

    def run(self) -> frozenset[World]:
        """Return all worlds. Raises ``BrokenPromise`` with the last step, and those that led there."""
        return frozenset(search(World(), self._successors))

    def _successors(self, world: World) -> Iterator[Move]:
        for label, after in self._moves(world):
            if world.row_part != "done" == after.row_part and world.acknowledged > OLDER:
                raise BrokenPromise(label)
            yield label, after

    def _moves(self, world: World) -> Iterator[Move]:
        yield from self._writer(world)
        yield from self._together(world) if self._layout.together else self._apart(world)
        yield from self._newer_holder(world)

    def _writer(self, world: World) -> Iterator[Move]:
        if world.session_lives and world.fence_part == "none" and world.fence <= OLDER:
            yield "the older holder claims", replace(world, fence=OLDER, fence_part="open")
        if world.session_lives and world.fence_part == "open" and world.row_part == "none":
            yield "it writes the row", replace(world, row_part="open")

    def _together(self, world: World) -> Iterator[Move]:
        if world.row_part == "open":
            yield "both parts commit at once", replace(world, fence_part="done", row_part="done")
        if world.session_lives and world.crashes and world.fence_part in UNENDED:
            yield "the node crashes", self._ended(world, "fence_part", "row_part", session_lives=False)

    def _apart(self, world: World) -> Iterator[Move]:
        own, other = getattr(world, self._own), getattr(world, self._other)
        if world.session_lives and own == "open":
            yield from self._session(world, other)
        if world.message is not None:
            yield from self._delivery(world, world.message, other)
        if not world.session_lives and other == "open" and world.message is None:
            yield "the other node sees that the session is gone", self._part(world, self._other, "gone")
        if not world.session_lives and other == "prepared":
            decided = "done" if own == "done" else "gone"
            yield "recovery ends the prepared part", self._part(world, self._other, decided, message=None)
        if world.crashes:
            yield from self._crashes(world, own, other)

    def _session(self, world: World, other: str) -> Iterator[Move]:
        """Yield the steps of a session whose own part is open."""
        first = "PREPARE" if self._layout.prepares else "COMMIT"
        if world.row_part != "none" and other == "open" and not world.sent:
            yield f"the session sends {first}", replace(world, message=first, sent=True)
        if other == ("prepared" if self._layout.prepares else "done"):
            following = "COMMIT PREPARED" if self._layout.prepares else None
            yield "the session's own part commits", self._part(world, self._own, "done", message=following)
        if other == "gone":
            yield "the session gives up", self._ended(world, self._own, session_lives=False)

    def _delivery(self, world: World, message: str, other: str) -> Iterator[Move]:
        before, after = EFFECTS[message]
        if other == before:
            yield f"{message} is done", self._part(world, self._other, after, message=None)
        if not world.session_lives:
            yield f"{message} is lost", replace(world, message=None)

    def _crashes(self, world: World, own: str, other: str) -> Iterator[Move]:
        crashed = replace(world, crashes=world.crashes - 1)
        if world.session_lives and world.fence_part != "none":
            yield "the session's node crashes", self._ended(replace(crashed, session_lives=False), self._own)
        if other in UNENDED:
            # A session that has committed its own part leaves the other one to the recovery.
            lives = world.session_lives and not (other == "prepared" and own == "done")
            yield (
                "the other node crashes",
                self._ended(replace(crashed, message=None, session_lives=lives), self._other),
            )

    def _newer_holder(self, world: World) -> Iterator[Move]:
        free = world.fence_part not in UNENDED
        if world.fence < NEWER and free and (world.clear or not self._layout.asks_first):
            yield "the newer holder raises the fence", replace(world, fence=NEWER)
        if self._layout.asks_first and not world.clear and world.row_part != "prepared":
            yield "the newer holder finds nothing prepared", replace(world, clear=True)
        waits = self._layout.waits and not self._layout.asks_first and world.row_part == "prepared"
        if world.fence == NEWER and world.acknowledged < NEWER and not waits:
            yield "the newer holder is acknowledged", replace(world, acknowledged=NEWER)

    def _part(self, world: World, name: str, state: str, **changes: object) -> World:
        return replace(world, **{name: state, **changes})  # type: ignore[arg-type]  # names of fields

    def _ended(self, world: World, *names: str, **changes: object) -> World:
        """Return the world after sessions of these parts have ended. A prepared part outlasts them."""
        for name in names:
            if getattr(world, name) == "open":
                world = self._part(world, name, "gone")
        # A raise that was not committed is undone.
        if "fence_part" in names and world.fence_part == "gone" and world.fence == OLDER:
            world = replace(world, fence=0)
        return self._part(world, "sent", world.sent, **changes)  # type: ignore[arg-type]


SAFE = {
    "row and fence on one node": Layout(together=True),
    "a raise that waits for prepared transactions": Layout(waits=True),
    "the row's node commits first, and the fence's part is prepared": Layout(session="row"),
}
UNSAFE = {
    "two phases": (Layout(), "COMMIT PREPARED is done"),
    "one phase": (Layout(prepares=False), "COMMIT is done"),
    "a raise that waits, and a row that commits in one phase": (Layout(prepares=False, waits=True), "COMMIT is done"),
    "a raise that asks too early": (Layout(waits=True, asks_first=True), "COMMIT PREPARED is done"),
    "the row's node commits first, and the fence is only locked": (
        Layout(session="row", prepares=False, waits=True),
        "the session's own part commits",
    ),
}


@pytest.mark.parametrize("layout", SAFE.values(), ids=SAFE)
def test_no_older_row_becomes_visible_after_a_newer_holder_was_acknowledged(
    layout: Layout, report_states: Callable[[str, int], None], request: pytest.FixtureRequest
) -> None:
    worlds = Explorer(layout).run()
    assert any(world.row_part == "done" for world in worlds)
    assert any(world.acknowledged == NEWER for world in worlds)
    report_states(f"two nodes: {request.node.callspec.id}", len(worlds))


@pytest.mark.parametrize(("layout", "last"), UNSAFE.values(), ids=UNSAFE)
def test_an_older_row_becomes_visible_too_late(layout: Layout, last: str) -> None:
    with pytest.raises(BrokenPromise) as broken:
        Explorer(layout).run()
    end, *before = str(broken.value).splitlines()
    assert end == last
    assert "the newer holder is acknowledged" in before


def test_a_raise_that_waits_depends_on_every_node() -> None:
    """A prepared part stays until its coordinator is back, so one lost node keeps every newer holder waiting."""
    stuck = World(OLDER, "gone", "prepared", session_lives=False, sent=True, crashes=1)
    worlds = Explorer(Layout(waits=True)).run()
    assert replace(stuck, fence=NEWER) in worlds
