"""Those of this process that wait for locks, and when it is worth looking at one again. Timers, no I/O.

The queue itself is in the database; here are only the tasks that sleep until their turn has come. However many wait for
a lock, there is one timer for it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

# A look a moment too early would find nothing, and come again.
_LATE = 0.002


class Asking:
    """A question for a lock, under way, and what was handed over meanwhile: such news may overtake its answer."""

    def __init__(self) -> None:
        self.handed = 0


class Line:
    """Those who wait for one lock, or are asking for it."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.visitors = 0
        self.asking: set[Asking] = set()
        self.places: dict[int, set[asyncio.Future[None]]] = {}
        self.look: asyncio.TimerHandle | None = None


class Queue:
    """All lines of this process. ``look`` is called with the name of a lock when it is time to look at it."""

    def __init__(self, look: Callable[[str], None]) -> None:
        self._look = look
        self._lines: dict[str, Line] = {}
        self.peopled = asyncio.Event()
        """Set as long as anybody waits."""

    @contextmanager
    def line(self, resource: str) -> Iterator[Line]:
        """The line of a lock, for as long as somebody who wants to wait is in it."""
        line = self._lines.get(resource)
        if line is None:
            line = self._lines[resource] = Line(resource)
        line.visitors += 1
        self.peopled.set()
        try:
            yield line
        finally:
            line.visitors -= 1
            if not line.visitors:
                self._close(line)

    @contextmanager
    def asking(self, line: Line) -> Iterator[Asking]:
        """While this lasts, somebody asks for the lock."""
        asking = Asking()
        line.asking.add(asking)
        try:
            yield asking
        finally:
            line.asking.discard(asking)

    def take(self, line: Line, asking: Asking, ticket: int) -> "asyncio.Future[None]":
        """Take the place that was the answer; done when it is time to ask again. To be called while ``asking``."""
        turn = asyncio.get_running_loop().create_future()
        if ticket <= asking.handed:
            turn.set_result(None)
        else:
            line.places.setdefault(ticket, set()).add(turn)
        return turn

    def give_up(self, line: Line, ticket: int, turn: "asyncio.Future[None]") -> bool:
        """Wait no longer; whether nobody else waits with this ticket."""
        others = line.places.get(ticket, set())
        others.discard(turn)
        if not others:
            line.places.pop(ticket, None)
        return not others

    def go_on(self, resource: str, handed: int | None, look_in: float | None) -> None:
        """The queue of a lock has gone on: wake whose turn it is, and look again in so many seconds."""
        line = self._lines.get(resource)
        if line is None:
            return
        if handed is not None:
            for asking in line.asking:
                asking.handed = max(asking.handed, handed)
            for ticket in [ticket for ticket in line.places if ticket <= handed]:
                _wake(line.places.pop(ticket))
        if look_in is not None:
            self._schedule(line, look_in)

    def tickets(self) -> set[int]:
        """All that are waited with here."""
        return {ticket for line in self._lines.values() for ticket in line.places}

    def places(self, tickets: Collection[int]) -> list[tuple[str, int]]:
        """Those of the tickets that are waited with here, with their resources."""
        return [(line.resource, ticket) for line in self._lines.values() for ticket in line.places if ticket in tickets]

    def ask_again(self, tickets: Collection[int]) -> None:
        """These have lost their places: wake them, so that they ask for new ones."""
        for resource, ticket in self.places(tickets):
            _wake(self._lines[resource].places.pop(ticket))

    def quiet(self) -> bool:
        """Whether nobody is asking for a place at the moment."""
        return not any(line.asking for line in self._lines.values())

    def _schedule(self, line: Line, look_in: float) -> None:
        """The earliest look counts: one too many costs a statement, one too late keeps a whole line waiting."""
        loop = asyncio.get_running_loop()
        at = loop.time() + max(look_in, 0.0) + _LATE
        if line.look is not None:
            if line.look.when() <= at:
                return
            line.look.cancel()
        line.look = loop.call_at(at, self._is_due, line)

    def _is_due(self, line: Line) -> None:
        line.look = None
        self._look(line.resource)

    def _close(self, line: Line) -> None:
        if line.look is not None:
            line.look.cancel()
        del self._lines[line.resource]
        if not self._lines:
            self.peopled.clear()


def _wake(turns: Collection["asyncio.Future[None]"]) -> None:
    for turn in turns:
        if not turn.done():
            turn.set_result(None)
