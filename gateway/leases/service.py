"""The lease service: locks for users without a lock service, with tokens that only grow.

The database decides (``gateway.db.leases``), by its own clock alone. This process only waits and carries questions.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from uuid import UUID, uuid4

from gateway.batching import Lane
from gateway.db import leases
from gateway.db.database import Database
from gateway.db.leases import LockAnswer, LockOutcome, QueueTurn, ReleaseOutcome, WaitingPlace
from gateway.db.notifications import Listen
from gateway.errors import (
    ExpectedMismatch,
    Forbidden,
    LeaseLost,
    LockHeld,
    OutcomeUnknown,
    TokensExhausted,
    Unavailable,
)
from gateway.fencing.lease import Granted, Lease, LockRequest, LockState, Renewal
from gateway.fencing.token import Token
from gateway.leases.heartbeat import QUESTIONS, Heartbeat, LeaseTimes, lane
from gateway.leases.local_waiters import WaitQueue
from gateway.observe.events import Answer, LeaseAnswered, Observe
from gateway.observe.stages import staged


def granted(wanted: LockRequest, asked: LockAnswer) -> Granted:
    """Return the answer to a wish, or raise the error that it is."""
    if asked.outcome is LockOutcome.GRANTED and asked.lease is not None:
        return Granted(asked.lease, asked.fresh)
    resource, lease = wanted.resource, asked.lease
    if asked.outcome is LockOutcome.EXHAUSTED:
        raise TokensExhausted(
            f"{resource} has used up the tokens of its epoch.",
            advice=f"Ask an administrator to start a new epoch: POST /v1/fences/{resource}/epoch.",
            facts={"resource": resource},
        )
    facts = {
        "resource": resource,
        "mode": lease.mode.value if lease else None,
        "holder": lease.holder if lease else None,
        "token": str(lease.token) if lease else None,
        "expires_in": None if lease is None else round(lease.expires_in, 3),
        "position": asked.place,
        "delayed": asked.delayed_for is not None,
    }
    if asked.outcome is LockOutcome.UPGRADE:
        message = f"The holder shares {resource}. To wait for it alone would be to wait for itself."
        raise LockHeld(message, facts={**facts, "own": True})
    if lease is not None:
        message = f"{resource} is held by {lease.holder}."
    elif asked.delayed_for is not None:
        message = f"{resource} was lost without being released, and is kept back for {asked.delayed_for:.1f} s."
    else:
        message = f"{resource} is about to go to a client that has waited for it."
    raise LockHeld(message, facts=facts)


def lost(resource: str) -> LeaseLost:
    return LeaseLost(f"The lease of {resource} has lapsed, was released, or was broken.", facts={"resource": resource})


def forbidden(resource: str) -> Forbidden:
    return Forbidden(
        f"The lease of {resource} is another caller's.",
        advice="Acquire the lock yourself.",
        facts={"resource": resource},
    )


QUEUE_SHOWN = 100
"""So many waiters are shown by name."""

_RENEWALS = 256
_LEAVING = 1000
# Seconds that a gateway waits for its batches when it stops.
_CLOSING_TIMEOUT = 5.0
# Seconds between two attempts of a waiter in the queue while the database is unavailable.
_PAUSE = 0.25


class LeaseService:
    """Locks of one database, as one gateway process serves them. Any number of processes may serve the same."""

    def __init__(
        self, database: Database, observe: Observe, *, listen: Listen | None = None, times: LeaseTimes | None = None
    ) -> None:
        """``listen`` opens a session that receives notifications of hand-overs; None: it polls."""
        self._database, self._observe = database, observe
        self._times = times or LeaseTimes()
        self._place = WaitingPlace(uuid4(), self._times.attended, self._times.collect)
        self._heartbeat = Heartbeat(database, observe, self._place.attendant, listen, self._times)
        self._queue = self._heartbeat.queue
        self._acquiring: Lane[tuple[LockRequest, WaitingPlace | None], LockAnswer] = lane(
            partial(leases.acquire, database), QUESTIONS, lambda wish: wish[0].resource
        )
        self._releasing: Lane[tuple[str, UUID, str], tuple[ReleaseOutcome, QueueTurn]] = lane(
            partial(leases.release, database), QUESTIONS, lambda lease: lease[0]
        )
        self._renewing: Lane[Renewal, Lease | bool] = lane(partial(leases.renew, database), _RENEWALS, _order)
        self._leaving: Lane[tuple[str, int], None] = lane(self._leave_together, _LEAVING, lambda place: place)

    def waiting(self) -> int:
        """Return the number of waiters at this process."""
        return len(self._queue.tickets())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background work while requests are served. It waits by itself for an unavailable database."""
        async with self._heartbeat.running():
            try:
                yield
            finally:
                # A client that is gone by now has left a place that another one may be waiting behind.
                for lane in (self._acquiring, self._leaving):
                    await lane.close(_CLOSING_TIMEOUT)

    async def acquire(self, wanted: LockRequest) -> Granted:
        """Return a lease, at once or after waiting in the queue for at most ``wanted.wait``.

        Raise ``LockHeld``, ``TokensExhausted`` or ``Unavailable``. If the task is cancelled while it waits, its wait
        ends as if its time were over.
        """
        if wanted.wait > 0:
            ends = asyncio.get_running_loop().time() + wanted.wait
            with self._queue.line(wanted.resource) as line, staged(self._observe, "leases", "wait"):
                asked = await self._wait(line, wanted, ends)
        else:
            with staged(self._observe, "leases", "acquire"):
                asked = await self._ask(wanted, None)
        answer: Answer = "refused" if not _is_granted(asked) else "granted" if asked.fresh else "kept"
        self._observe(LeaseAnswered(answer))
        return granted(wanted, asked)

    async def renew(self, resource: str, lease: UUID, caller: str, ttl: float | None = None) -> Lease:
        """Return the lease, which lasts ``ttl`` from now on, or as long as it did last time.

        Raise ``LeaseLost`` once it has lapsed, was released or was broken, even if the lock is free. Raise
        ``Forbidden`` if the lease is another caller's.
        """
        renewal = Renewal(resource, lease, caller, ttl)
        with staged(self._observe, "leases", "renew"):
            try:
                renewed = await self._renewing.ask(renewal)
            except OutcomeUnknown:
                (renewed,) = await leases.renew(self._database, [renewal], patient=True)
        self._observe(LeaseAnswered("renewed" if isinstance(renewed, Lease) else "lost"))
        if isinstance(renewed, Lease):
            return renewed
        raise forbidden(resource) if renewed else lost(resource)

    async def renew_many(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        """Renew many in one statement. Return the leases in the same order, None for each lost or foreign one."""
        ordered = sorted(set(renewals), key=_order)
        with staged(self._observe, "leases", "renew"):
            try:
                renewed = await leases.renew(self._database, ordered, patient=True)
            except OutcomeUnknown:
                renewed = await leases.renew(self._database, ordered, patient=True)
        kept = sum(isinstance(lease, Lease) for lease in renewed)
        self._observe(LeaseAnswered("renewed", kept))
        self._observe(LeaseAnswered("lost", len(renewed) - kept))
        found = dict(zip(ordered, renewed, strict=True))
        return [lease if isinstance(lease := found[renewal], Lease) else None for renewal in renewals]

    async def release(self, resource: str, lease: UUID, caller: str) -> None:
        """End a lease. Raise ``LeaseLost`` if it has ended already, ``Forbidden`` if it is another caller's."""
        with staged(self._observe, "leases", "release"):
            try:
                ended, turn = await self._releasing.ask((resource, lease, caller))
            except OutcomeUnknown:
                ((ended, turn),) = await leases.release(self._database, [(resource, lease, caller)], patient=True)
                if ended is ReleaseOutcome.LOST:
                    # The first attempt may have ended it. It is gone, as the caller wanted.
                    ended = ReleaseOutcome.RELEASED
        self._go_on(turn)
        self._observe(LeaseAnswered("released" if ended is ReleaseOutcome.RELEASED else "lost"))
        if ended is ReleaseOutcome.FORBIDDEN:
            raise forbidden(resource)
        if ended is ReleaseOutcome.LOST:
            raise lost(resource)

    async def withdraw(self, resource: str, holder: str, caller: str, request: str) -> None:
        """End a wish, whether it still waits or has been granted by now. Without such a wish, nothing happens."""
        try:
            turn = await leases.withdraw(self._database, resource, holder, caller, request)
        except OutcomeUnknown:
            turn = await leases.withdraw(self._database, resource, holder, caller, request)
        self._go_on(turn)
        self._observe(LeaseAnswered("withdrawn"))

    async def inspect(self, resource: str) -> LockState:
        """Return the state of a lock."""
        (view,) = await leases.read_locks(self._database, [resource], QUEUE_SHOWN)
        return view

    async def listed(self, prefix: str, after: str, limit: int) -> list[LockState]:
        """Return at most ``limit`` held locks whose name starts with ``prefix`` and sorts after ``after``."""
        names = await leases.list_held(self._database, prefix, after, limit)
        return await leases.read_locks(self._database, names, QUEUE_SHOWN) if names else []

    async def break_lock(self, resource: str, expected: Token, caller: str, reason: str) -> LockState:
        """End every lease with exactly this token, on record. Raise ``ExpectedMismatch`` if there is none."""
        broken, turn = await leases.break_lock(self._database, resource, expected, caller, reason)
        self._go_on(turn)
        self._observe(LeaseAnswered("broken", broken))
        try:
            view = await self.inspect(resource)
        except Unavailable as error:
            if broken:
                raise OutcomeUnknown("The lock was broken, but its state cannot be read now.") from error
            raise
        if not broken:
            held = str(view.holders[0].token) if view.holders else None
            raise ExpectedMismatch(
                f"No lease of {resource} has the token {expected}.", facts={"resource": resource, "token": held}
            )
        return view

    async def _wait(self, line: WaitQueue, wanted: LockRequest, ends: float) -> LockAnswer:
        """Ask, and repeat it whenever it may be our turn, until there is an answer or the wait is over."""
        in_queue = False
        while True:
            try:
                asked, turn = await self._ask_for_place(line, wanted)
            except Unavailable:
                # A client without a place learns at once that the database is unavailable. Others keep their places.
                if not in_queue or asyncio.get_running_loop().time() + _PAUSE > ends:
                    raise
                await asyncio.sleep(_PAUSE)
                continue
            if turn is None or asked.ticket is None:
                return asked
            in_queue = True
            try:
                async with asyncio.timeout_at(ends):
                    await turn
            except TimeoutError:
                return await self._end(line, wanted, asked.ticket, turn)
            except asyncio.CancelledError:
                if self._queue.give_up(line, asked.ticket, turn):
                    self._leave(line.resource, asked.ticket)
                raise

    async def _ask_for_place(
        self, line: WaitQueue, wanted: LockRequest
    ) -> "tuple[LockAnswer, asyncio.Future[None] | None]":
        with self._queue.asking(line) as asking:
            asked = await self._ask(wanted, self._place)
            if asked.ticket is None:
                return asked, None
            return asked, self._queue.take(line, asking, asked.ticket)

    async def _end(self, line: WaitQueue, wanted: LockRequest, ticket: int, turn: "asyncio.Future[None]") -> LockAnswer:
        """Ask once more at the end of the wait: it may be our turn in this moment. If not, give up the place."""
        last = self._queue.give_up(line, ticket, turn)
        asked = None
        try:
            asked = await self._ask(wanted, None)
        finally:
            left = self._leave(line.resource, ticket) if last and not _is_granted(asked) else None
        if left is not None:
            # A client that asks again at once must not lose its new place.
            await asyncio.wait([left])
        return asked

    def _leave(self, resource: str, ticket: int) -> "asyncio.Future[None]":
        """Give a place up. If that fails, a later heartbeat finds the place."""
        left = self._leaving.ask((resource, ticket))
        left.add_done_callback(lambda left: left.cancelled() or left.exception())
        return left

    async def _ask(self, wanted: LockRequest, place: WaitingPlace | None) -> LockAnswer:
        asking = self._acquiring.ask((wanted, place))
        try:
            # A question that was asked is carried out. A client that goes away meanwhile leaves a place or a lease.
            asked = await asyncio.shield(asking)
        except OutcomeUnknown:
            try:
                (asked,) = await leases.acquire(self._database, [(wanted, place)], patient=True)
            except OutcomeUnknown as error:
                raise Unavailable(
                    error.message, advice="Ask again: if the lock was granted, it will be the same lease and token."
                ) from error
        except asyncio.CancelledError:
            asking.add_done_callback(self._forsake)
            raise
        self._go_on(asked.turn)
        return asked

    def _forsake(self, asking: "asyncio.Future[LockAnswer]") -> None:
        """Handle an answer without a client: give up the place. A lease lapses, or its client asks again."""
        if asking.cancelled() or asking.exception() is not None:
            return
        asked = asking.result()
        self._go_on(asked.turn)
        if asked.ticket is not None and asked.ticket not in self._queue.tickets():
            self._leave(asked.turn.resource, asked.ticket)

    async def _leave_together(self, places: Sequence[tuple[str, int]], **_: bool) -> Sequence[None]:
        for turn in await leases.leave(self._database, self._place.attendant, places, self._times.linger):
            self._go_on(turn)
        return [None] * len(places)

    def _go_on(self, turn: QueueTurn) -> None:
        self._queue.go_on(turn.resource, turn.handed, turn.look_in)


def _order(renewal: Renewal) -> tuple[str, UUID]:
    return renewal.resource, renewal.lease


def _is_granted(asked: LockAnswer | None) -> bool:
    return asked is not None and asked.outcome is LockOutcome.GRANTED
