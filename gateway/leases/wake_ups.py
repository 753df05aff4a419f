"""The waiters of this process, and the timers that say when to look at a lock again. No I/O.

The queue itself is in the database. Here are only the tasks that sleep until their turn. A lock has one timer, however
many tasks wait for it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

# A look that is a moment too early would find nothing and have to be repeated.
_LATE = 0.002


class PendingAcquire:
    """A question under way, and the ticket handed over meanwhile: the notification may overtake the answer."""

    def __init__(self) -> None:
        self.handed = 0


class WaitQueue:
    """The tasks that wait for one lock or ask for it."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.visitors = 0
        self.asking: set[PendingAcquire] = set()
        self.places: dict[int, set[asyncio.Future[None]]] = {}
        self.look: asyncio.TimerHandle | None = None


class WaitQueues:
    """All lines of this process. ``look`` is called with the name of a lock when it is time to look at it."""

    def __init__(self, look: Callable[[str], None]) -> None:
        self._look = look
        self._lines: dict[str, WaitQueue] = {}
        self.peopled = asyncio.Event()
        """Set while any task waits."""

    def has(self, resource: str) -> bool:
        """Return whether a task waits for a lock."""
        return resource in self._lines

    @contextmanager
    def line(self, resource: str) -> Iterator[WaitQueue]:
        """Keep the line of a lock while a task is in it."""
        line = self._lines.get(resource)
        if line is None:
            line = self._lines[resource] = WaitQueue(resource)
        line.visitors += 1
        self.peopled.set()
        try:
            yield line
        finally:
            line.visitors -= 1
            if not line.visitors:
                self._close(line)

    @contextmanager
    def asking(self, line: WaitQueue) -> Iterator[PendingAcquire]:
        """Note that a task asks for the lock while this lasts."""
        asking = PendingAcquire()
        line.asking.add(asking)
        try:
            yield asking
        finally:
            line.asking.discard(asking)

    def take(self, line: WaitQueue, asking: PendingAcquire, ticket: int) -> "asyncio.Future[None]":
        """Take the place that was the answer. The future is done when it is time to ask again. Call it while asking."""
        turn = asyncio.get_running_loop().create_future()
        if ticket <= asking.handed:
            turn.set_result(None)
        else:
            line.places.setdefault(ticket, set()).add(turn)
        return turn

    def give_up(self, line: WaitQueue, ticket: int, turn: "asyncio.Future[None]") -> bool:
        """Stop waiting; return whether this was the last task with the ticket."""
        others = line.places.get(ticket, set())
        others.discard(turn)
        if not others:
            line.places.pop(ticket, None)
        return not others

    def go_on(self, resource: str, handed: int | None, look_in: float | None) -> None:
        """Wake the tasks whose tickets were ``handed`` over, and look at the lock again in ``look_in`` seconds."""
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
        return {ticket for line in self._lines.values() for ticket in line.places}

    def places(self, tickets: Collection[int]) -> list[tuple[str, int]]:
        """Return the tickets among these that have a waiter here, with their resources."""
        return [(line.resource, ticket) for line in self._lines.values() for ticket in line.places if ticket in tickets]

    def ask_again(self, tickets: Collection[int]) -> None:
        """Wake the tasks that have lost these places, so that they ask for new ones."""
        for resource, ticket in self.places(tickets):
            _wake(self._lines[resource].places.pop(ticket))

    def quiet(self) -> bool:
        """Return whether no task is asking for a place."""
        return not any(line.asking for line in self._lines.values())

    def _schedule(self, line: WaitQueue, look_in: float) -> None:
        """Keep the earliest look: a look too many costs a statement, a late one keeps a whole line waiting."""
        loop = asyncio.get_running_loop()
        at = loop.time() + max(look_in, 0.0) + _LATE
        if line.look is not None:
            if line.look.when() <= at:
                return
            line.look.cancel()
        line.look = loop.call_at(at, self._is_due, line)

    def _is_due(self, line: WaitQueue) -> None:
        line.look = None
        self._look(line.resource)

    def _close(self, line: WaitQueue) -> None:
        if line.look is not None:
            line.look.cancel()
        del self._lines[line.resource]
        if not self._lines:
            self.peopled.clear()


def _wake(turns: Collection["asyncio.Future[None]"]) -> None:
    for turn in turns:
        if not turn.done():
            turn.set_result(None)
