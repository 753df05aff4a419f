"""One lock as it ought to be, in memory and with a clock of its own, for comparison with the SQL functions."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gateway.fencing.lease import LockMode

COLLECT, LINGER = 240.0, 300.0


@dataclass(frozen=True)
class Wish:
    """A request for a lock. ``attendant``: the gateway that the holder waits at; None if it does not wait."""

    holder: str
    mode: LockMode
    ttl: float
    delay: float
    request: str | None
    attendant: str | None


@dataclass(frozen=True)
class Held:
    wish: Wish
    value: int
    expires: float
    confirmed: bool = True


@dataclass(frozen=True)
class Waiting:
    wish: Wish
    until: float | None = None


@dataclass
class Lock:
    """Times are seconds. ``alive``: the gateways that are heard of. The places in the queue are in order."""

    now: float = 0.0
    issued: int = 0
    fence: int = 0
    delayed_until: float = 0.0
    leases: list[Held] = field(default_factory=list)
    queue: list[Waiting] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)

    def view(self) -> tuple[list[tuple[str, LockMode, int]], list[tuple[str, LockMode]], bool, int]:
        """Holders, waiters, whether it is delayed, and the last token."""
        holders = [(one.wish.holder, one.wish.mode, one.value) for one in self.leases if one.expires > self.now]
        waiters = [(one.wish.holder, one.wish.mode) for one in self.queue if self._living(one)]
        return sorted(holders), waiters, self.delayed_until > self.now, self.issued

    def acquire(self, wish: Wish) -> tuple[str, int | None, bool]:
        """Outcome, token, and whether it is fresh."""
        self._lapse()
        if wish.attendant is not None:
            self._drop(wish.holder, lambda one: one.wish.mode is not wish.mode)
        self._hand_over()
        own = self._held_by(wish.holder)
        if own is not None:
            if own.wish.mode is LockMode.SHARED and wish.mode is LockMode.EXCLUSIVE:
                return "upgrade", own.value, False
            ends = self.now + wish.ttl
            kept = replace(
                own,
                wish=replace(wish, mode=own.wish.mode),
                expires=max(own.expires, ends) if own.confirmed else ends,
                confirmed=True,
            )
            self.leases[self.leases.index(own)] = kept
            return "granted", own.value, not own.confirmed
        if not any(map(self._living, self.queue)) and self._free_for(wish.mode):
            self._drop(wish.holder, lambda _: True)
            value = self._issue()
            self.leases.append(Held(wish, value, self.now + wish.ttl))
            return "granted", value, True
        if wish.attendant is None:
            return "held", None, False
        self.alive.add(wish.attendant)
        for position, one in enumerate(self.queue):
            if one.wish.holder == wish.holder:
                self.queue[position] = Waiting(wish)
                return "waiting", None, False
        self.queue.append(Waiting(wish))
        return "waiting", None, False

    def renew(self, holder: str, value: int) -> bool:
        for position, one in enumerate(self.leases):
            if (one.wish.holder, one.value) == (holder, value) and one.confirmed and one.expires > self.now:
                self.leases[position] = replace(one, expires=self.now + one.wish.ttl)
                return True
        return False

    def release(self, holder: str, value: int) -> bool:
        self._lapse()
        before = len(self.leases)
        self.leases = [
            one for one in self.leases if (one.wish.holder, one.value) != (holder, value) or not one.confirmed
        ]
        released = len(self.leases) < before
        self._hand_over()
        return released

    def withdraw(self, holder: str, request: str) -> None:
        self._lapse()
        self._drop(holder, lambda one: one.wish.request == request)
        self.leases = [one for one in self.leases if one.wish.holder != holder or one.wish.request != request]
        self._hand_over()

    def leave(self, holder: str, attendant: str) -> None:
        """The waiter hangs up at this gateway."""
        for position, one in enumerate(self.queue):
            if one.wish.holder == holder and one.wish.attendant == attendant:
                if one.wish.request is None:
                    del self.queue[position]
                else:
                    self.queue[position] = Waiting(replace(one.wish, attendant=None), self.now + LINGER)
                break
        self._lapse()
        self._hand_over()

    def break_lock(self, value: int) -> bool:
        self._lapse()
        ended = [one for one in self.leases if one.value == value]
        self.leases = [one for one in self.leases if one.value != value]
        for one in ended:
            if one.wish.delay and one.confirmed:
                self.delayed_until = max(self.delayed_until, self.now + one.wish.delay)
        self._hand_over()
        return bool(ended)

    def advance(self) -> None:
        self._lapse()
        self._hand_over()

    def _lapse(self) -> None:
        for one in [one for one in self.leases if one.expires <= self.now]:
            self.leases.remove(one)
            if one.confirmed and one.wish.delay:
                self.delayed_until = max(self.delayed_until, one.expires + one.wish.delay)

    def _hand_over(self) -> None:
        while (head := next(filter(self._living, self.queue), None)) and self._free_for(head.wish.mode):
            del self.queue[: self.queue.index(head) + 1]
            ends = self.now + min(head.wish.ttl, COLLECT)
            self.leases.append(Held(head.wish, self._issue(), ends, confirmed=False))

    def _issue(self) -> int:
        """Issue a token to a caller that may have the lock: either the lock is free, or its holders share it."""
        shared = max((one.value for one in self.leases), default=0)
        if shared and shared >= self.fence:
            return shared
        self.issued = max(self.issued, self.fence) + 1
        return self.issued

    def _free_for(self, mode: LockMode) -> bool:
        sharing = mode is LockMode.SHARED and all(one.wish.mode is LockMode.SHARED for one in self.leases)
        return self.delayed_until <= self.now and (not self.leases or sharing)

    def _living(self, one: Waiting) -> bool:
        return one.wish.attendant in self.alive if one.until is None else one.until > self.now

    def _held_by(self, holder: str) -> Held | None:
        return next((one for one in self.leases if one.wish.holder == holder), None)

    def _drop(self, holder: str, condition: Callable[[Waiting], bool]) -> None:
        self.queue = [one for one in self.queue if one.wish.holder != holder or not condition(one)]
