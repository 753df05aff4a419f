"""The time of the event loop: how much of it callers without credentials may take from those with some.

A loop does one thing at a time. While a caller with credentials is served, requests of strangers wait for their turn,
one behind the other. At other times they wait for nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
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
_OTHERS = "other networks"  # so many wait that these share a line

Credentials: TypeAlias = tuple[bytes, ...]
"""The credentials that a request shows, as far as they are the same in each request of their owner."""


class _Line:
    """The requests of one network. ``free``: when its next one may begin. ``last``: what its last one has needed."""

    __slots__ = ("free", "last", "name", "share", "timer", "waiting")

    def __init__(self, name: str, share: float) -> None:
        self.name, self.share, self.free, self.last = name, share, float("-inf"), _FIRST
        self.waiting: deque[tuple[float, Turn, Start]] = deque()
        self.timer: asyncio.TimerHandle | None = None

    def take(self, seconds: float, now: float) -> None:
        """Take so many seconds of the loop. No request makes later ones wait for longer than ``PATIENCE``."""
        self.free = min(max(self.free, now - _AHEAD / self.share) + seconds / self.share, now + PATIENCE)


class Turn:
    """The turn of one request, of a caller that is not known before."""

    __slots__ = ("_credentials", "_is_named", "_line", "_spent", "_taken", "_turns")

    def __init__(self, turns: "Turns", line: _Line, credentials: Credentials) -> None:
        self._turns, self._line, self._credentials = turns, line, credentials
        self._taken = self._spent = 0.0
        self._is_named = False

    def begin(self, now: float) -> None:
        """Take as much time of the loop as the last request of the network has needed."""
        self._taken = self._turns.take(self._line, self._line.last, now)

    def count(self, seconds: float) -> None:
        """Count the seconds of one step of the request."""
        if self._is_named:
            return
        before, self._spent = max(self._spent, self._taken), self._spent + seconds
        if self._spent > before:
            self._turns.take(self._line, self._spent - before, perf_counter())

    def prove(self) -> None:
        """Note that the request has proven the name of its caller, and give back its time."""
        if not self._is_named:
            self._is_named = True
            self._turns.prove(self._line, max(self._spent, self._taken), self._credentials)

    def end(self) -> None:
        """Note that the request is over, or never began."""
        if not self._is_named:
            self._line.last = self._spent or self._line.last
            if self._spent < self._taken:
                self._turns.take(self._line, self._spent - self._taken, perf_counter())
            self._turns.disprove(self._credentials)


Start: TypeAlias = Callable[[Turn, Overloaded | None], None]
"""Starts a request, or its refusal."""


class Turns:
    """The turns of strangers. Times are those of ``perf_counter``."""

    def __init__(self, share: float = SHARE) -> None:
        """``share``: the part of the time that one network may have. 1 limits none."""
        self.share = share
        self.named = float("-inf")
        """When the last request of a caller with credentials began or was proven."""
        self._all = _Line("", _TOGETHER)
        self._lines: dict[str, _Line] = {}
        # Hashes of credentials that have been proven, because a connection may have one request only.
        self._proven: dict[int, None] = {}

    def limit(self, now: float) -> bool:
        """Return whether strangers have no more than their share at the moment."""
        return now - self.named <= LULL and self.share < 1

    def enter(self, address: str | None, credentials: Credentials, start: Start) -> None:
        """Start a request in its turn. One that would wait too long is refused.

        If its credentials were proven before, it waits for nothing.
        """
        now = perf_counter()
        line = self._line(address)
        turn = Turn(self, line, credentials)
        if credentials and hash(credentials) in self._proven:
            start(turn, None)
        elif line.waiting or (self.limit(now) and self._wait(line, now) > 0):
            line.waiting.append((now, turn, start))
            self._watch(line, now)
        else:
            turn.begin(now)
            start(turn, None)

    def take(self, line: _Line, seconds: float, now: float) -> float:
        """Take so many seconds, and return them. At times without a limit nothing is taken."""
        if not self.limit(now):
            return 0.0
        line.take(seconds, now)
        self._all.take(seconds, now)
        return seconds

    def prove(self, line: _Line, taken: float, credentials: Credentials) -> None:
        """Note credentials that have been proven. Give back what was taken of the line meanwhile."""
        now = self.named = perf_counter()
        if credentials:
            if len(self._proven) >= _MOST_PROVEN:
                del self._proven[next(iter(self._proven))]
            self._proven[hash(credentials)] = None
        self.take(line, -taken, now)
        if line.timer is not None:  # the next one need not wait as long
            line.timer.cancel()
            line.timer = None
        self._watch(line, now)

    def disprove(self, credentials: Credentials) -> None:
        """Note credentials that have proven nothing."""
        self._proven.pop(hash(credentials), None)

    def _line(self, address: str | None) -> _Line:
        place = network(address)
        found = self._lines.get(place)
        if found is None:
            if len(self._lines) >= _MOST_NETWORKS:
                # The line of all still holds.
                idle = next((name for name, line in self._lines.items() if not line.waiting), None)
                if idle is None or len(self._lines) > _MOST_NETWORKS:
                    return self._lines.setdefault(_OTHERS, _Line(_OTHERS, min(self.share, _TOGETHER)))
                del self._lines[idle]
            found = self._lines[place] = _Line(place, min(self.share, _TOGETHER))
        return found

    def _wait(self, line: _Line, now: float) -> float:
        return max(line.free, self._all.free) - now

    def _watch(self, line: _Line, now: float) -> None:
        if line.waiting and line.timer is None:
            delay = self._wait(line, now) if self.limit(now) else 0.0
            patience = line.waiting[0][0] + PATIENCE - now
            loop = asyncio.get_running_loop()
            line.timer = loop.call_later(max(0.0, min(delay, patience)), self._go_on, line)

    def _go_on(self, line: _Line) -> None:
        """Start the first request that waits, unless the time for it went to another network."""
        line.timer, now = None, perf_counter()
        since, turn, start = line.waiting[0]
        is_late = now - since >= PATIENCE
        if is_late or not self.limit(now) or self._wait(line, now) <= 0:
            line.waiting.popleft()
            late = None
            if is_late:
                late = Overloaded(f"The time that all anonymous callers at {line.name} may take is in use.")
            turn.begin(now)
            start(turn, late)
        self._watch(line, now)


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
