"""The SQL functions do what a lock in memory does, on random histories. No two holders ever hold at once."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db import leases
from gateway.db.leases import WaitingPlace
from gateway.fencing.lease import LockMode, LockRequest, Renewal
from gateway.fencing.token import Token
from tests.leases.lock_model import COLLECT, LINGER, Lock, Wish
from tests.leases.stage import Gateway, pass_time, rows

pytestmark = pytest.mark.asyncio(loop_scope="module")

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
        *[st.tuples(st.just("acquire"), wishes)] * 4,
        st.tuples(st.just("renew"), holders),
        st.tuples(st.just("release"), holders),
        st.tuples(st.just("release"), holders),
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

    async def _acquire(self, wish: Wish) -> None:
        place = None if wish.attendant is None else WaitingPlace(self.attendants[wish.attendant], 100_000.0, COLLECT)
        wanted = LockRequest(self.resource, wish.holder, "writer", wish.ttl, wish.mode, 0.0, wish.request, wish.delay)
        before = self.model.issued
        asked = await leases.acquire_alone(self.one.database, wanted, place)
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
        (renewed,) = await leases.renew(self.one.database, [Renewal(self.resource, lease, "writer")])
        assert (renewed is not False) == self.model.renew(holder, value)

    async def _release(self, holder: str) -> None:
        lease, value = self.leases.get(holder, (uuid4(), 0))
        ended, _ = await leases.release_alone(self.one.database, self.resource, lease, "writer")
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
        attended = await leases.send_heartbeat(self.one.database, self.attendants[attendant], 100_000.0)
        self.model.alive.add(attendant)
        waits = [one for one in self.model.queue if one.until is None and one.wish.attendant == attendant]
        assert len(attended.waiting) == len(waits)
        before = self.model.view()
        self.model.advance()
        # The gateway that is due to look finds a change to make, unless another one has looked by now.
        if self.model.view()[0] != before[0] and waits:
            assert attended.due == (self.resource,)
        await leases.advance_alone(self.one.database, self.resource)

    async def _advance(self, _: None) -> None:
        await leases.advance_alone(self.one.database, self.resource)
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
