"""Budgets: how much of a scarce thing each caller may have, so that a caller that behaves waits for no other one.

Scarce are the memory for bodies and answers, and the sessions with a database. Each has one ``Budget``.
"""

import asyncio
import ipaddress
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

from gateway.bounded import Bounded
from gateway.errors import Overloaded
from gateway.fencing.record import ANONYMOUS

SHARE = 0.25
"""The part of each scarce thing that one caller may have."""
PATIENCE = 10.0
"""Seconds that a request waits for its part."""

_STRANGERS = 2  # all anonymous callers together have at most half of a thing
_KEPT = 4  # the last quarter is kept for callers that have their least or nothing
_LEAST = 64  # the least is a 64th of the whole
_MOST_NETWORKS = 4096
_NETWORK = 64  # bits of an IPv6 address that one customer of a provider has in common


class Caller(NamedTuple):
    """A caller that has a share: by its name, or, if it is anonymous, by its network."""

    name: str
    is_anonymous: bool = False


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""The caller of the request under way. None for the gateway's own work, which no share limits."""


def serve(state: MutableMapping[str, Any], name: str) -> None:
    """Note the proven caller of the request under way. ``state`` is that of its scope."""
    state["caller"] = name
    CALLER.set(Caller(network(state.get("client")), is_anonymous=True) if name == ANONYMOUS else Caller(name))


def network(address: str | None) -> str:
    """Return the network that an address is in: a /64 for IPv6, else the address itself."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return address or ""
    if parsed.version == 4:
        return str(parsed)
    if (mapped := parsed.ipv4_mapped) is not None:
        return str(mapped)
    return str(ipaddress.ip_network((int(parsed), _NETWORK), strict=False))


class Rate:
    """A number of events at once, and so many a second. Times are those of a monotonic clock, passed in."""

    def __init__(self, burst: int, a_second: float) -> None:
        self._burst, self._a_second = burst, a_second
        self._left, self._at = float(burst), float("-inf")

    def left(self, now: float) -> int:
        self._left = min(self._burst, self._left + (now - self._at) * self._a_second)
        self._at = now
        return int(self._left)

    def take(self, most: int, now: float) -> int:
        """Take at most so many; return how many there were."""
        taken = min(most, self.left(now))
        self._left -= taken
        return taken


class NetworkRates:
    """A rate for each network of anonymous callers, and four times as much for all of them together.

    Beyond its least, a 64th of the rate of all, a network takes nothing of the last quarter. There, a network that
    behaves finds its part.
    """

    def __init__(self, burst: int, a_second: float) -> None:
        whole, whole_a_second = burst * _KEPT, a_second * _KEPT
        self._of_one = burst, a_second
        self._least = max(1, whole // _LEAST), whole_a_second / _LEAST
        self._kept = whole // _KEPT
        self._all = Rate(whole, whole_a_second)
        self._rates: Bounded[str, tuple[Rate, Rate]] = Bounded(_MOST_NETWORKS)  # the rate of all still holds

    def take(self, address: str | None, number: int, now: float) -> bool:
        """Take so many events of the network of an address. Return whether there were as many."""
        place = network(address)
        rates = self._rates.get(place)
        rate, least = rates or self._rates.remember(place, (Rate(*self._of_one), Rate(*self._least)))
        left = self._all.left(now)
        if min(rate.left(now), left) < number or (left - number < self._kept and least.left(now) < number):
            return False
        for one in (rate, least, self._all):
            one.take(number, now)
        return True


Room: TypeAlias = tuple[Caller | None, int]
"""A caller, and the amount that ``Budget.take`` has handed out to it. ``Budget.give`` takes it back."""


_Kept: TypeAlias = "list[tuple[Budget, Room]]"
_KEPT_BY: ContextVar["_Kept | None"] = ContextVar("kept", default=None)
"""The amounts that the request under way keeps, each with its budget. None for the gateway's own work."""


async def one_request(answering: Awaitable[None]) -> None:
    """Answer one request, whose caller is not known yet. At its end, budgets get back all that it keeps."""
    CALLER.set(None)
    kept: _Kept = []
    _KEPT_BY.set(kept)
    try:
        await answering
    finally:
        for budget, room in kept:
            budget.give(room)


class Budget:
    """A scarce thing, of which callers take amounts for a time.

    Each caller has at most its share. Beyond its least it takes nothing of the last quarter, where other callers find
    theirs. Requests of one caller wait in their order, and callers take turns.
    """

    def __init__(self, size: int, what: str, *, share: float = SHARE, patience: float = PATIENCE) -> None:
        """Hand out nothing yet. ``what``: the thing, in the plural. A ``share`` of 1 limits no caller."""
        self.size, self.free = size, size
        self._what, self._patience = what, patience
        self._share = size if share >= 1 else max(1, int(size * share))
        self._shared = share < 1
        self._kept = min(size // _KEPT, size - self._share)
        self._least = max(1, size // _LEAST)
        self._of_strangers = max(1, size // _STRANGERS)
        self._used: dict[Caller, int] = {}
        self._strangers = 0
        self._waiting: dict[Caller | None, deque[tuple[int, asyncio.Future[Room]]]] = {}

    @property
    def used(self) -> int:
        return self.size - self.free

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def most(self) -> int:
        """Return the largest amount that the caller under way can have. A larger thing takes this much."""
        caller = self._caller()
        if caller is None:
            return self.size
        return min(self._share, self._of_strangers) if caller.is_anonymous else self._share

    async def take(self, amount: int) -> Room:
        """Return this amount for the caller under way, once it is there. Raises ``Overloaded`` after ``patience``."""
        caller, amount = self._caller(), min(amount, self.most())
        if amount == 0 or (caller not in self._waiting and self._fits(caller, amount)):
            return self._handed_out(caller, amount)
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Room] = loop.create_future()
        self._waiting.setdefault(caller, deque()).append((amount, turn))
        # asyncio.timeout would do the same, at three times the price.
        limit = loop.call_later(self._patience, self._give_up, caller, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give(turn.result())
            raise
        finally:
            limit.cancel()
            self._forget(caller, turn)

    def take_now(self, amount: int) -> Room:
        """Return this amount at once. Raises ``Overloaded`` if it is not there."""
        caller, amount = self._caller(), min(amount, self.most())
        if amount and (caller in self._waiting or not self._fits(caller, amount)):
            raise self._overloaded(caller)
        return self._handed_out(caller, amount)

    def give(self, room: Room) -> None:
        """Take back what ``take`` has returned."""
        caller, amount = room
        self.free += amount
        if caller is not None:
            left = self._used.get(caller, 0) - amount
            if left:
                self._used[caller] = left
            else:  # a map of all callers of the past would grow
                self._used.pop(caller, None)
            self._strangers -= amount * caller.is_anonymous
        self._wake()

    async def keep(self, amount: int) -> None:
        """Let the request under way have at least this amount until it is answered. Raises what ``take`` raises.

        Its body and its answer are not there at one time, so it keeps no more than the larger one needs.
        """
        kept = _KEPT_BY.get()
        if kept is not None and self._is_more(kept, amount):
            self.release()  # a request that held one part while it waits for another could wait for itself
            kept.append((self, await self.take(amount)))

    def keep_now(self, amount: int) -> None:
        """Do the same without waiting. Raises what ``take_now`` raises."""
        kept = _KEPT_BY.get()
        if kept is not None and self._is_more(kept, amount):
            self.release()
            kept.append((self, self.take_now(amount)))

    def release(self) -> None:
        """Give back what the request under way keeps."""
        kept = _KEPT_BY.get()
        for entry in [one for one in kept or () if one[0] is self]:
            kept.remove(entry)  # type: ignore[union-attr]  # it has entries
            self.give(entry[1])

    def _is_more(self, kept: "_Kept", amount: int) -> bool:
        """Return whether an amount is more than a request keeps."""
        return min(amount, self.most()) > sum(room[1] for budget, room in kept if budget is self)

    @asynccontextmanager
    async def held(self, amount: int) -> AsyncGenerator[None, None]:
        """Hold this amount for the caller under way until the block is left. Raises what ``take`` raises."""
        room = await self.take(amount)
        try:
            yield
        finally:
            self.give(room)

    @contextmanager
    def held_now(self, amount: int) -> Iterator[None]:
        """Hold this amount until the block is left. Raises what ``take_now`` raises."""
        room = self.take_now(amount)
        try:
            yield
        finally:
            self.give(room)

    def _caller(self) -> Caller | None:
        return CALLER.get() if self._shared else None

    def _fits(self, caller: Caller | None, amount: int) -> bool:
        if amount > self.free or caller is None:
            return amount <= self.free
        mine = self._used.get(caller, 0) + amount
        if mine > self._share or (caller.is_anonymous and self._strangers + amount > self._of_strangers):
            return False
        return mine <= self._least or self.free - amount >= self._kept

    def _handed_out(self, caller: Caller | None, amount: int) -> Room:
        self.free -= amount
        if caller is not None:
            self._used[caller] = self._used.get(caller, 0) + amount
            self._strangers += amount * caller.is_anonymous
        return caller, amount

    def _wake(self) -> None:
        """Hand out what is free. A caller whose first request does not fit yet keeps no other one waiting."""
        for caller, queue in list(self._waiting.items()):
            before = len(queue)
            while queue and (queue[0][1].done() or self._fits(caller, queue[0][0])):
                amount, turn = queue.popleft()
                if not turn.done():
                    turn.set_result(self._handed_out(caller, amount))
            if len(queue) < before:
                del self._waiting[caller]
                if queue:  # it has had its turn, and is the last one next time
                    self._waiting[caller] = queue

    def _forget(self, caller: Caller | None, turn: "asyncio.Future[Room]") -> None:
        queue = self._waiting.get(caller)
        if queue is None:
            return
        left = deque(entry for entry in queue if entry[1] is not turn)
        if left:
            self._waiting[caller] = left
        else:
            del self._waiting[caller]
        if len(left) < len(queue):
            self._wake()

    def _give_up(self, caller: Caller | None, turn: "asyncio.Future[Room]") -> None:
        if not turn.done():
            turn.set_exception(self._overloaded(caller))

    def _overloaded(self, caller: Caller | None) -> Overloaded:
        if caller is not None and self._used.get(caller):
            owner = f"all anonymous callers at {caller.name}" if caller.is_anonymous else caller.name
            return Overloaded(f"The {self._what} that {owner} may use at one time are in use.")
        return Overloaded(f"All {self._what} are in use.")
