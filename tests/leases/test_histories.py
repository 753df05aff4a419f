"""The SQL functions do what a lock in memory does, on random histories. No two holders ever hold at once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db import leases
from gateway.fencing.lease import LockMode, LockRequest, Renewal, WaitingPlace
from gateway.fencing.token import Token
from tests.leases.stage import Gateway, pass_time, rows

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
class Place:
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
    queue: list[Place] = field(default_factory=list)
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
                self.queue[position] = Place(wish)
                return "waiting", None, False
        self.queue.append(Place(wish))
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
                    self.queue[position] = Place(replace(one.wish, attendant=None), self.now + LINGER)
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

    def _living(self, one: Place) -> bool:
        return one.wish.attendant in self.alive if one.until is None else one.until > self.now

    def _held_by(self, holder: str) -> Held | None:
        return next((one for one in self.leases if one.wish.holder == holder), None)

    def _drop(self, holder: str, condition: Callable[[Place], bool]) -> None:
        self.queue = [one for one in self.queue if one.wish.holder != holder or not condition(one)]


# The SQL functions do what a lock in memory does, on random histories. No two holders ever hold at once.


holders = st.sampled_from(["ann", "bob", "cid"])
attendants = st.sampled_from(["east", "west"])
# Times are whole minutes, so that what really passes meanwhile, by the database's clock, makes no difference.
wishes = st.builds(
    Wish,
    holder=holders,
    mode=st.sampled_from([LockMode.EXCLUSIVE, LockMode.EXCLUSIVE, LockMode.SHARED]),
    ttl=st.sampled_from([600.0, 1200.0]),
    delay=st.sampled_from([0.0, 0.0, 420.0]),
    request=st.sampled_from([None, "r"]),
    attendant=st.one_of(attendants, st.none()),
)
histories = st.lists(
    st.one_of(
        *[st.tuples(st.just("acquire"), wishes)] * 2,
        *[st.tuples(st.just("acquire_if_free"), wishes)] * 2,
        st.tuples(st.just("renew"), holders),
        st.tuples(st.just("release"), holders),
        st.tuples(st.just("release_if_free"), holders),
        st.tuples(st.just("withdraw"), holders),
        st.tuples(st.just("leave"), st.tuples(holders, attendants)),
        st.tuples(st.just("break"), st.integers(0, 1)),
        st.tuples(st.just("pass"), st.sampled_from([180.0, 480.0, 900.0])),
        st.tuples(st.just("die"), attendants),
        st.tuples(st.just("attend"), attendants),
        st.tuples(st.just("advance"), st.none()),
        st.tuples(st.just("fence"), st.integers(0, 2)),
    ),
    min_size=5,
    max_size=30,
)


@dataclass
class Both:
    """The same lock twice: in the database and in memory."""

    one: Gateway
    resource: str
    model: Lock
    attendants: dict[str, UUID]
    leases: dict[str, tuple[UUID, int]]
    """The latest grant of each holder."""

    async def play(self, deed: str, what: Any) -> None:
        await getattr(self, f"_{deed}")(what)

    async def compare(self) -> None:
        """Both look the same, and as no lock may ever look otherwise."""
        (view,) = await leases.read_locks(self.one.database, [self.resource], 10)
        held = sorted((hold.holder, hold.mode, hold.token.value) for hold in view.holders)
        queue = [(waiter.holder, waiter.mode) for waiter in view.queue]
        last = view.token.value if view.token else 0
        assert (held, queue, view.delayed_for is not None, last) == self.model.view()
        assert len(held) <= 1 or all(mode is LockMode.SHARED for _, mode, _ in held)
        assert len({holder for holder, _, _ in held}) == len(held)

    async def _acquire_if_free(self, wish: Wish) -> None:
        await self._acquire(wish, if_free=True)

    async def _acquire(self, wish: Wish, *, if_free: bool = False) -> None:
        place = None if wish.attendant is None else WaitingPlace(self.attendants[wish.attendant], 100_000.0, COLLECT)
        wanted = LockRequest(
            self.resource, wish.holder, "writer", wish.ttl, wish.mode, 0.0, wish.request, wish.delay, place
        )
        before = self.model.issued
        (found,) = await leases.acquire_free(self.one.database, [wanted]) if if_free else [None]
        asked = found or (await leases.acquire(self.one.database, [wanted], patient=True))[0]
        outcome, value, fresh = self.model.acquire(wish)
        assert (asked.outcome.value, asked.fresh) == (outcome, fresh)
        if outcome == "granted":
            assert asked.lease is not None
            assert asked.lease.token == Token(0, value or 0)
            self.leases[wish.holder] = (asked.lease.id, asked.lease.token.value)
        elif outcome == "held" and asked.place is not None:
            ahead = [one[0] for one in self.model.view()[1]]
            own = ahead.index(wish.holder) if wish.holder in ahead else len(ahead)
            assert asked.place == own + 1
        assert self.model.issued >= before

    async def _renew(self, holder: str) -> None:
        lease, value = self.leases.get(holder, (uuid4(), 0))
        (renewed,) = await leases.renew(self.one.database, [Renewal(self.resource, lease, "writer")], patient=True)
        assert (renewed is not False) == self.model.renew(holder, value)

    async def _release_if_free(self, holder: str) -> None:
        await self._release(holder, if_free=True)

    async def _release(self, holder: str, *, if_free: bool = False) -> None:
        lease, value = self.leases.get(holder, (uuid4(), 0))
        wanted = [(self.resource, lease, "writer")]
        (found,) = await leases.release_free(self.one.database, wanted) if if_free else [None]
        ended, _ = found or (await leases.release(self.one.database, wanted, patient=True))[0]
        assert (ended.value == "released") == self.model.release(holder, value)

    async def _withdraw(self, holder: str) -> None:
        await leases.withdraw(self.one.database, self.resource, holder, "writer", "r")
        self.model.withdraw(holder, "r")

    async def _leave(self, who: tuple[str, str]) -> None:
        holder, attendant = who
        sql = "SELECT ticket FROM fencing.waiter WHERE resource = $1 AND holder = $2"
        places = [(self.resource, row["ticket"]) for row in await rows(self.one, sql, self.resource, holder)]
        if places:
            await leases.leave(self.one.database, self.attendants[attendant], places, LINGER)
            self.model.leave(holder, attendant)

    async def _break(self, behind: int) -> None:
        expected = Token(0, max(self.model.issued - behind, 0))
        broken, _ = await leases.break_lock(self.one.database, self.resource, expected, "operator", "a test")
        assert bool(broken) == self.model.break_lock(expected.value)

    async def _pass(self, seconds: float) -> None:
        await pass_time(self.one, self.resource, seconds)
        self.model.now += seconds

    async def _die(self, attendant: str) -> None:
        sql = "UPDATE fencing.attendant SET until = '-infinity' WHERE id = $1"
        await rows(self.one, sql, self.attendants[attendant])
        self.model.alive.discard(attendant)

    async def _attend(self, attendant: str) -> None:
        waiting, due = await leases.send_heartbeat(self.one.database, self.attendants[attendant], 100_000.0)
        self.model.alive.add(attendant)
        waits = [one for one in self.model.queue if one.until is None and one.wish.attendant == attendant]
        assert len(waiting) == len(waits)
        before = self.model.view()
        self.model.advance()
        # The gateway that is due to look finds a change to make, unless another one has looked by now.
        if self.model.view()[0] != before[0] and waits:
            assert due == [self.resource]
        await leases.advance(self.one.database, [self.resource], patient=True)

    async def _advance(self, _: None) -> None:
        await leases.advance(self.one.database, [self.resource], patient=True)
        self.model.advance()

    async def _fence(self, above: int) -> None:
        value = self.model.issued + above
        sql = (
            "INSERT INTO fencing.fence (resource, epoch, value) VALUES ($1, 0, $2) "
            "ON CONFLICT (resource) DO UPDATE SET value = greatest(fence.value, excluded.value)"
        )
        await rows(self.one, sql, self.resource, value)
        self.model.fence = max(self.model.fence, value)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories)
async def test_model_and_sql_give_the_same_answers(
    pair: tuple[Gateway, Gateway], history: list[tuple[str, Any]]
) -> None:
    both = Both(pair[0], f"job/{uuid4().hex}", Lock(), {"east": uuid4(), "west": uuid4()}, {})
    for deed, what in history:
        await both.play(deed, what)
        await both.compare()
