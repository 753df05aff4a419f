"""The lease service: locks for users without a lock service, with tokens that only grow.

The database decides (``gateway.db.leases``), by its own clock alone. This process only waits and carries questions.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, TypeVar
from uuid import UUID, uuid4

from gateway.background import Attempts, background_tasks, repeat, unreachable
from gateway.batching import Lane, patiently, shielded
from gateway.bounded import Bounded
from gateway.db import leases
from gateway.db.database import Database
from gateway.db.leases import LockAnswer, LockOutcome, QueueTurn, ReleaseOutcome
from gateway.db.notifications import Listen
from gateway.errors import (
    ExpectedMismatch,
    Forbidden,
    GatewayError,
    LeaseLost,
    LockHeld,
    OutcomeUnknown,
    TokensExhausted,
    Unavailable,
)
from gateway.fencing.lease import Granted, Lease, LockRequest, LockState, Renewal, WaitingPlace
from gateway.fencing.token import Token
from gateway.leases.terms import LeaseTerms
from gateway.leases.wake_ups import WaitQueue, WaitQueues
from gateway.observe.events import Answer, LeaseAnswered, Observe, StageLeft, StepReached
from gateway.observe.stages import staged

QUESTIONS = 32
"""Questions in a batch. A batch keeps all its locks locked until its end. It has to fit into a socket's buffer, or a
paused gateway could hold the locks of the half that has arrived.
"""

Question = TypeVar("Question")
Result = TypeVar("Result")


def lane(
    together: Callable[..., Awaitable[Sequence[Result]]], most: int, order: Callable[[Question], Any]
) -> Lane[Question, Result]:
    """Return a lane of questions, each of which goes alone and with ``patient`` if its batch fails."""
    return Lane(together, patiently(together), most=most, order=order, lone_alone=False)


_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
# Seconds until a look that has failed is tried again.
_AGAIN = 0.5
_SWEPT_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. They do not decide which client holds a lock: the times in the database do."""

    attended: float = 10.0
    """A waiter is skipped once its gateway has sent no heartbeat for so long."""
    beat: float = 3.0
    """The pause between two heartbeats of a gateway with waiters."""
    look: float = 1.0
    """The same pause for a gateway that receives no notifications and has to ask."""
    collect: float = 5.0
    """A lease that is handed over and not collected within this time goes to the next waiter."""
    linger: float = 5.0
    """A waiter that names its request keeps its place for so long after its ``wait``."""
    sweep: float = 10.0
    """The pause between two sweeps of lapsed leases that no client asks for."""


class Heartbeat:
    """Sends heartbeats for the waiters of this process, hears of hand-overs, and looks at locks in time.

    The number of waiters does not matter: a heartbeat is one statement, and an expired lease or delay costs one look.
    """

    def __init__(
        self, database: Database, observe: Observe, attendant: UUID, listen: Listen | None, times: LeaseTimes
    ) -> None:
        self._database, self._observe = database, observe
        self._attendant, self._listen, self._times = attendant, listen, times
        self.queue = WaitQueues(self._is_due)
        self._looking: Lane[str, QueueTurn] = lane(partial(leases.advance, database), QUESTIONS, str)
        self._hears = False
        self._strays: frozenset[int] = frozenset()

    def running(self) -> AbstractAsyncContextManager[None]:
        sweep = repeat("leases that have lapsed", self.sweep, self._observe, self._times.sweep)
        if self._listen is None:
            return background_tasks(self._beat(), sweep)
        return background_tasks(self._beat(), sweep, self._hear(self._listen))

    async def attend(self) -> None:
        """Send one heartbeat, and make up for missed notifications."""
        before, quiet = self.queue.tickets(), self.queue.quiet()
        waiting, due = await leases.send_heartbeat(self._database, self._attendant, self._times.attended)
        # A place that is gone was handed over without a notification that arrived, or it is lost.
        self.queue.ask_again(before - waiting)
        for resource in due:
            self._is_due(resource)
        await self._see_off(waiting - before if quiet else frozenset())

    async def _see_off(self, strangers: frozenset[int]) -> None:
        """Give up places in the queue that had no waiter at two heartbeats in a row."""
        strays, self._strays = strangers & self._strays - self.queue.tickets(), strangers
        if strays:
            places = await leases.read_places(self._database, self._attendant, sorted(strays))
            for turn in await leases.leave(self._database, self._attendant, places, self._times.linger):
                self._go_on(turn)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        last = float("-inf")
        attempts = Attempts(self._observe, partial(unreachable, "postgres", "No heartbeat for waiters"))
        while True:
            await self.queue.peopled.wait()
            await asyncio.sleep(min(self._times.look, self._times.beat))
            if not self._hears or loop.time() - last >= self._times.beat:
                await attempts.make(self.attend)
                last = loop.time()

    def _is_due(self, resource: str) -> None:
        self._looking.ask(resource).add_done_callback(partial(self._looked, resource))

    def _looked(self, resource: str, looking: "asyncio.Future[QueueTurn]") -> None:
        if looking.cancelled() or looking.exception() is not None:
            self.queue.go_on(resource, None, _AGAIN)
        else:
            self._go_on(looking.result())

    async def _hear(self, listen: Listen) -> None:
        failed = partial(unreachable, "postgres", "No notifications of hand-overs")
        attempts = Attempts(self._observe, failed, _FIRST_PAUSE, _LONGEST_PAUSE)

        async def hear() -> None:
            try:
                async with listen() as announced:
                    self._hears = True
                    attempts.succeeded()
                    if self.queue.peopled.is_set():
                        await self.attend()
                    while True:
                        for payload in await announced.next():
                            handed, look_in, resource = payload.split(" ", 2)
                            self.queue.go_on(resource, int(handed), float(look_in))
            finally:
                self._hears = False

        await attempts.repeat(hear)

    async def sweep(self) -> None:
        """Record lapsed leases that no client has asked for, and delete what no client waits for."""
        while names := await leases.list_lapsed(self._database, _SWEPT_AT_ONCE):
            for resource in names:
                (turn,) = await leases.advance(self._database, [resource], patient=True)
                self._go_on(turn)
        await leases.forget(self._database)

    def _go_on(self, turn: QueueTurn) -> None:
        self.queue.go_on(turn.resource, turn.handed, turn.look_in)


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


Ended: TypeAlias = tuple[ReleaseOutcome, QueueTurn]

QUEUE_SHOWN = 100
"""So many waiters are shown by name."""

ACQUIRE_BEFORE, ACQUIRE_AFTER = StepReached("leases.acquire.before"), StepReached("leases.acquire.after")
RENEW_BEFORE, RENEW_AFTER = StepReached("leases.renew.before"), StepReached("leases.renew.after")
RELEASE_BEFORE, RELEASE_AFTER = StepReached("leases.release.before"), StepReached("leases.release.after")
BREAK_BEFORE, BREAK_AFTER = StepReached("leases.break.before"), StepReached("leases.break.after")

_RENEWALS = 256
_MOST_HELD = 4096
_LEAVING = 1000
# Seconds that a gateway waits for its batches when it stops.
_CLOSING_TIMEOUT = 5.0
# Seconds between two attempts of a waiter in the queue while the database is unavailable.
_PAUSE = 0.25


class LeaseService:
    """Locks of one database, as one gateway process serves them. Any number of processes may serve the same."""

    def __init__(
        self,
        database: Database,
        observe: Observe,
        terms: LeaseTerms | None = None,
        *,
        listen: Listen | None = None,
        times: LeaseTimes | None = None,
    ) -> None:
        """``listen`` opens a session that receives notifications of hand-overs; None: it polls."""
        self._database, self._observe, self._terms = database, observe, terms or LeaseTerms()
        self._times = times or LeaseTimes()
        self._place = WaitingPlace(uuid4(), self._times.attended, self._times.collect)
        self._heartbeat = Heartbeat(database, observe, self._place.attendant, listen, self._times)
        self._queue = self._heartbeat.queue
        # Free locks, and leases of locks without waiters, take a fraction of the work. Other lanes have all answers.
        self._granting: Lane[LockRequest, LockAnswer | None] = Lane(
            partial(leases.acquire_free, database), most=QUESTIONS, order=lambda wish: wish.resource
        )
        self._ending: Lane[tuple[str, UUID, str], Ended | None] = Lane(
            partial(leases.release_free, database), most=QUESTIONS, order=lambda lease: lease[:2]
        )
        # Locks that were not free when a client asked last: clients try again, and two questions would cost more.
        self._held: Bounded[str, None] = Bounded(_MOST_HELD)
        self._acquiring: Lane[LockRequest, LockAnswer] = lane(
            partial(leases.acquire, database), QUESTIONS, lambda wish: wish.resource
        )
        self._releasing: Lane[tuple[str, UUID, str], Ended] = lane(
            partial(leases.release, database), QUESTIONS, lambda lease: lease[:2]
        )
        self._renewing: Lane[Renewal, Lease | bool] = lane(partial(leases.renew, database), _RENEWALS, _order)
        self._leaving: Lane[tuple[str, int], None] = lane(self._leave_together, _LEAVING, lambda place: place)

    def waiting(self) -> int:
        return len(self._queue.tickets())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background work while requests are served. It waits by itself for an unavailable database."""
        async with self._heartbeat.running():
            try:
                yield
            finally:
                # A client that is gone by now has left a place that another one may be waiting behind.
                for lane in (self._granting, self._acquiring, self._leaving):
                    await lane.close(_CLOSING_TIMEOUT)

    def ask(self, wanted: LockRequest) -> "asyncio.Future[LockAnswer | None] | None":
        """Ask for a lock that may be free. None if tasks of this process wait for it, or if it was held a moment ago.

        If the answer is not ``granted_now``, ``acquire`` goes on with it. Raise what ``LeaseTerms.agreed`` raises.
        """
        wanted = self._terms.agreed(wanted)
        if self._queue.has(wanted.resource) or wanted.resource in self._held:
            return None
        self._observe(ACQUIRE_BEFORE)
        return self._granting.ask(wanted)

    def granted_now(
        self, wanted: LockRequest, asking: "asyncio.Future[LockAnswer | None]", began: float
    ) -> Lease | None:
        """Return the new lease that a question was answered with, if any. ``began``: when it was asked."""
        asked = asking.result()
        if asked is None:
            return None
        self._note("wait" if wanted.wait > 0 else "acquire", began, "granted", ACQUIRE_AFTER)
        return asked.lease

    async def acquire(self, wanted: LockRequest, asking: "asyncio.Future[LockAnswer | None] | None" = None) -> Granted:
        """Return a lease, at once or after waiting in the queue for at most ``wanted.wait``.

        ``asking``: the question, if it was asked already. Raise what ``LeaseTerms.agreed`` raises, ``LockHeld``,
        ``TokensExhausted`` or ``Unavailable``. If the task is cancelled while it waits, its wait ends as if its time
        were over.
        """
        if asking is None and (asking := self.ask(wanted)) is None:
            self._observe(ACQUIRE_BEFORE)
        wanted = self._terms.agreed(wanted)
        if wanted.wait > 0:
            ends = asyncio.get_running_loop().time() + wanted.wait
            with self._queue.line(wanted.resource) as line, staged(self._observe, "leases", "wait"):
                asked = await self._found(asking) or await self._wait(line, wanted, ends)
        else:
            with staged(self._observe, "leases", "acquire"):
                asked = await self._found(asking) or await self._ask(wanted)
        answer: Answer = "refused" if not _is_granted(asked) else "granted" if asked.fresh else "kept"
        self._observe(LeaseAnswered(answer))
        if answer == "granted":
            self._held.pop(wanted.resource, None)
        else:
            self._held.remember(wanted.resource, None)
        lease = granted(wanted, asked)
        self._observe(ACQUIRE_AFTER)
        return lease

    def ask_to_renew(self, renewal: Renewal) -> "asyncio.Future[Lease | bool]":
        """Ask for a renewal. If it is not ``renewed_now``, ``renew`` goes on with it.

        Raise ``RequestMalformed`` for too long a lease.
        """
        self._terms.check_ttl(renewal.ttl)
        self._observe(RENEW_BEFORE)
        return self._renewing.ask(renewal)

    def renewed_now(self, asked: "asyncio.Future[Lease | bool]", began: float) -> Lease | None:
        """Return the renewed lease. None if it is lost or another caller's. ``began``: when it was asked for."""
        renewed = asked.result()
        if not isinstance(renewed, Lease):
            return None
        self._note("renew", began, "renewed", RENEW_AFTER)
        return renewed

    async def renew(self, renewal: Renewal, asked: "asyncio.Future[Lease | bool] | None" = None) -> Lease:
        """Return the lease, which lasts ``ttl`` from now on, or as long as it did last time.

        ``asked``: the question, if it was asked already. Raise ``LeaseLost`` once it has lapsed, was released or was
        broken, even if the lock is free. Raise ``Forbidden`` if the lease is another caller's, ``RequestMalformed`` for
        too long a lease.
        """
        with staged(self._observe, "leases", "renew"):
            try:
                renewed = await (asked or self.ask_to_renew(renewal))
            except OutcomeUnknown:
                (renewed,) = await leases.renew(self._database, [renewal], patient=True)
        self._observe(LeaseAnswered("renewed" if isinstance(renewed, Lease) else "lost"))
        if isinstance(renewed, Lease):
            self._observe(RENEW_AFTER)
            return renewed
        raise forbidden(renewal.resource) if renewed else lost(renewal.resource)

    async def renew_many(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        """Renew many in one statement. Return the leases in the same order, None for each lost or foreign one.

        Raise ``RequestMalformed`` for too long a lease. None is renewed then.
        """
        for one in renewals:
            self._terms.check_ttl(one.ttl)
        self._observe(RENEW_BEFORE)
        ordered = sorted(set(renewals), key=_order)
        with staged(self._observe, "leases", "renew"):
            try:
                renewed = await leases.renew(self._database, ordered, patient=True)
            except OutcomeUnknown:
                renewed = await leases.renew(self._database, ordered, patient=True)
        kept = sum(isinstance(lease, Lease) for lease in renewed)
        self._observe(LeaseAnswered("renewed", kept))
        self._observe(LeaseAnswered("lost", len(renewed) - kept))
        self._observe(RENEW_AFTER)
        found = dict(zip(ordered, renewed, strict=True))
        return [lease if isinstance(lease := found[renewal], Lease) else None for renewal in renewals]

    def ask_to_release(self, resource: str, lease: UUID, caller: str) -> "asyncio.Future[Ended | None] | None":
        """Ask for the end of a lease. None if tasks of this process wait for its lock.

        If it is not ``released_now``, ``release`` goes on with it.
        """
        if self._queue.has(resource):
            return None
        self._observe(RELEASE_BEFORE)
        return self._ending.ask((resource, lease, caller))

    def released_now(self, asked: "asyncio.Future[Ended | None]", began: float) -> bool:
        """Return whether the lease has ended. ``began``: when that was asked for."""
        if asked.result() is None:
            return False
        self._note("release", began, "released", RELEASE_AFTER)
        return True

    async def release(
        self, resource: str, lease: UUID, caller: str, asked: "asyncio.Future[Ended | None] | None" = None
    ) -> None:
        """End a lease. Raise ``LeaseLost`` if it has ended already, ``Forbidden`` if it is another caller's.

        ``asked``: the question, if it was asked already.
        """
        if asked is None and (asked := self.ask_to_release(resource, lease, caller)) is None:
            self._observe(RELEASE_BEFORE)
        with staged(self._observe, "leases", "release"):
            try:
                found = await self._answered(asked)
                ended, turn = found or await self._releasing.ask((resource, lease, caller))
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
        self._observe(RELEASE_AFTER)

    async def withdraw(self, resource: str, holder: str, caller: str, request: str) -> None:
        """End a wish, whether it still waits or has been granted by now. Without such a wish, nothing happens."""
        self._observe(RELEASE_BEFORE)
        try:
            turn = await leases.withdraw(self._database, resource, holder, caller, request)
        except OutcomeUnknown:
            turn = await leases.withdraw(self._database, resource, holder, caller, request)
        self._go_on(turn)
        self._observe(LeaseAnswered("withdrawn"))
        self._observe(RELEASE_AFTER)

    async def inspect(self, resource: str) -> LockState:
        (view,) = await leases.read_locks(self._database, [resource], QUEUE_SHOWN)
        return view

    async def listed(self, prefix: str, after: str, limit: int) -> list[LockState]:
        """Return at most ``limit`` held locks whose name starts with ``prefix`` and sorts after ``after``."""
        names = await leases.list_held(self._database, prefix, after, limit)
        return await leases.read_locks(self._database, names, QUEUE_SHOWN) if names else []

    async def break_lock(self, resource: str, expected: Token, caller: str, reason: str) -> LockState:
        """End every lease with exactly this token, on record. Raise ``ExpectedMismatch`` if there is none."""
        self._observe(BREAK_BEFORE)
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
        self._observe(BREAK_AFTER)
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
            asked = await self._ask(replace(wanted, place=self._place))
            if asked.ticket is None:
                return asked, None
            return asked, self._queue.take(line, asking, asked.ticket)

    async def _end(self, line: WaitQueue, wanted: LockRequest, ticket: int, turn: "asyncio.Future[None]") -> LockAnswer:
        """Ask once more at the end of the wait: it may be our turn in this moment. If not, give up the place."""
        last = self._queue.give_up(line, ticket, turn)
        asked = None
        try:
            asked = await self._ask(wanted)
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

    def _note(self, stage: str, began: float, answer: Answer, step: StepReached) -> None:
        """Note of a request without a task what its task would have noted."""
        self._observe(StageLeft("leases", stage, perf_counter() - began, None))
        self._observe(LeaseAnswered(answer))
        self._observe(step)

    async def _found(self, asking: "asyncio.Future[LockAnswer | None] | None") -> LockAnswer | None:
        """Return the lease of a lock that was free. None if another question has to be asked, which finds the same."""
        try:
            return await self._answered(asking)
        except OutcomeUnknown:
            return None

    @staticmethod
    async def _answered(asking: "asyncio.Future[Result | None] | None") -> Result | None:
        """Return the answer of a batch. None if it has failed: others of it may be the cause. Nothing is done then."""
        try:
            return None if asking is None else await shielded(asking)
        except OutcomeUnknown:
            raise
        except GatewayError:
            return None

    async def _ask(self, wanted: LockRequest) -> LockAnswer:
        asking = self._acquiring.ask(wanted)
        try:
            # A question that was asked is carried out. A client that goes away meanwhile leaves a place or a lease.
            asked = await shielded(asking)
        except OutcomeUnknown:
            try:
                (asked,) = await leases.acquire(self._database, [wanted], patient=True)
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
