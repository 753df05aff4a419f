"""The time of the event loop: how much of it callers without credentials may take from those with some.

A loop does one thing at a time. While a caller with credentials is served, requests of strangers wait for their turn,
one behind the other. At other times they wait for nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from gateway.budget import PATIENCE, SHARE, network
from gateway.errors import Overloaded

LULL = 0.25
"""Seconds after the last request of a caller with credentials in which strangers have no more than their share.

More than one turn of a busy loop takes: until that is over, nothing is known of the next request of such a caller."""
_TOGETHER = 0.5  # the part of the time for all strangers
_AHEAD = 0.002  # seconds of the loop that a network has at once
_FIRST = 0.001  # seconds of the loop that the first request of a network is thought to take
_MOST_NETWORKS = _MOST_PROVEN = 4096

Start: TypeAlias = Callable[[float, Overloaded | None], None]
"""Starts a request, or its refusal. Its number is for ``leave``."""


class _Line:
    """The requests of one network. ``free``: when its next one may begin. ``last``: what its last one has needed."""

    __slots__ = ("free", "last", "name", "share", "timer", "waiting")

    def __init__(self, name: str, share: float) -> None:
        self.name, self.share, self.free, self.last = name, share, float("-inf"), _FIRST
        self.waiting: deque[tuple[float, Start]] = deque()
        self.timer: asyncio.TimerHandle | None = None

    def take(self, seconds: float, now: float) -> None:
        """Take so many seconds of the loop."""
        self.free = max(self.free, now - _AHEAD / self.share) + seconds / self.share


class Turns:
    """The turns of strangers. Times are those of ``perf_counter``."""

    def __init__(self, share: float = SHARE) -> None:
        """``share``: the part of the time that one network may have. 1 limits none."""
        self.share = share
        self.named = float("-inf")
        """When the last request of a caller with credentials began or ended."""
        self._all = _Line("", _TOGETHER)
        self._lines: dict[str, _Line] = {}
        # Hashes of credentials that have been proven, because a connection may have one request only.
        self._proven: set[int] = set()

    def limit(self, now: float) -> bool:
        """Return whether strangers have no more than their share at the moment."""
        return now - self.named <= LULL and self.share < 1

    def enter(self, address: str | None, start: Start, credentials: Sequence[bytes] = ()) -> None:
        """Start a request of a stranger in its turn. One that would wait too long is refused.

        ``credentials``: of the request. If they were proven before, it waits for nothing.
        """
        now = perf_counter()
        if credentials and hash(tuple(credentials)) in self._proven:
            self.named = now
            start(0.0, None)
            return
        line = self._line(address)
        if line.waiting or (self.limit(now) and self._wait(line, now) > 0):
            line.waiting.append((now, start))
            self._watch(line, now)
        else:
            self._start(line, start, None, now)

    def leave(self, address: str | None, taken: float, seconds: float, credentials: Sequence[bytes] = ()) -> None:
        """Count the seconds of the loop that a request has needed, in place of those that were taken for it.

        ``credentials``: of the request, which has proven nothing by them.
        """
        now, line = perf_counter(), self._line(address)
        line.last = seconds or line.last
        self._take(line, seconds - taken, now)
        self._proven.discard(hash(tuple(credentials)))

    def prove(self, address: str | None, taken: float, credentials: Sequence[bytes]) -> None:
        """Note that a request has proven the name of its caller, and give back what was taken for it."""
        now, line = perf_counter(), self._line(address)
        self.named = now
        if credentials:
            if len(self._proven) >= _MOST_PROVEN:
                self._proven.clear()
            self._proven.add(hash(tuple(credentials)))
        self._take(line, -taken, now)
        if line.timer is not None:  # the next one need not wait as long
            line.timer.cancel()
            line.timer = None
        self._watch(line, now)

    def _line(self, address: str | None) -> _Line:
        place = network(address)
        found = self._lines.get(place)
        if found is None:
            if len(self._lines) >= _MOST_NETWORKS:
                # The line of all still holds.
                self._lines = {name: line for name, line in self._lines.items() if line.waiting}
            found = self._lines[place] = _Line(place, min(self.share, _TOGETHER))
        return found

    def _wait(self, line: _Line, now: float) -> float:
        return max(line.free, self._all.free) - now

    def _watch(self, line: _Line, now: float) -> None:
        if line.waiting and line.timer is None:
            delay = self._wait(line, now) if self.limit(now) else 0.0
            line.timer = asyncio.get_running_loop().call_later(max(0.0, delay), self._go_on, line)

    def _go_on(self, line: _Line) -> None:
        """Start the first request that waits, unless the time for it went to another network."""
        line.timer, now = None, perf_counter()
        if not self.limit(now) or self._wait(line, now) <= 0:
            since, start = line.waiting.popleft()
            late = None
            if now - since > PATIENCE:
                late = Overloaded(f"The time that all anonymous callers at {line.name} may take is in use.")
            self._start(line, start, late, now)
        self._watch(line, now)

    def _start(self, line: _Line, start: Start, late: Overloaded | None, now: float) -> None:
        start(self._take(line, line.last, now), late)

    def _take(self, line: _Line, seconds: float, now: float) -> float:
        """Take so many seconds, and return them. At times without a limit nothing is taken."""
        if not self.limit(now):
            return 0.0
        line.take(seconds, now)
        self._all.take(seconds, now)
        return seconds


class Timed(Generator[Any, Any, None]):
    """Runs a coroutine, and calls ``count`` with the seconds of each of its steps. To be awaited once."""

    def __init__(self, running: Coroutine[Any, Any, None], count: Callable[[float], None]) -> None:
        self._running, self._count = running, count

    def __await__(self) -> Generator[Any, Any, None]:
        return self

    def send(self, value: Any) -> Any:
        began = perf_counter()
        try:
            return self._running.send(value)
        finally:
            self._count(perf_counter() - began)

    def throw(self, *error: Any) -> Any:
        return self._running.throw(*error)
