"""The lease service: locks for those who have no lock service, with tokens that only ever grow.

What is contended is decided in the database (``gateway.db.leases``), by its clock alone. This process only waits,
and carries questions.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from uuid import UUID, uuid4

from gateway.db import leases
from gateway.db.database import Database
from gateway.db.leases import Asked, Ended, Outcome, Place, Turn
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
from gateway.fencing.lease import Granted, Lease, LockView, Renewal, Wanted
from gateway.fencing.token import Token
from gateway.leases.heartbeat import Attendance, Times
from gateway.leases.lane import Lane
from gateway.leases.queue import Line
from gateway.observe.events import Answer, LeaseAnswered, Observe
from gateway.observe.stages import staged


def granted(wanted: Wanted, asked: Asked) -> Granted:
    """The answer to a wish, or the error that it is."""
    if asked.outcome is Outcome.GRANTED and asked.lease is not None:
        return Granted(asked.lease, asked.fresh)
    resource, lease = wanted.resource, asked.lease
    if asked.outcome is Outcome.EXHAUSTED:
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
    if asked.outcome is Outcome.UPGRADE:
        message = f"The holder shares {resource}. To wait for it alone would be to wait for itself."
        raise LockHeld(message, facts={**facts, "own": True})
    if lease is not None:
        message = f"{resource} is held by {lease.holder}."
    elif asked.delayed_for is not None:
        message = f"{resource} was lost without being released, and is kept back for {asked.delayed_for:.1f} s."
    else:
        message = f"{resource} is about to go to somebody who has waited for it."
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
"""So many of those who wait are shown by name."""

_RENEWALS = 256
_LEAVING = 1000
# Seconds that a gateway that stops waits for what it has asked.
_PATIENCE = 5.0
# Seconds between two tries to get on while the database is away, for those who are in its queue.
_PAUSE = 0.25


class LeaseService:
    """Locks of one database, as one gateway process serves them. Any number of processes may serve the same."""

    def __init__(
        self, database: Database, observe: Observe, *, listen: Listen | None = None, times: Times | None = None
    ) -> None:
        """``listen``: opens a session that hears of hand-overs; None where that is not possible (poolers)."""
        self._database, self._observe = database, observe
        self._times = times or Times()
        self._place = Place(uuid4(), self._times.attended, self._times.collect)
        self._attendance = Attendance(database, observe, self._place.attendant, listen, self._times)
        self._queue = self._attendance.queue
        self._acquiring: Lane[tuple[Wanted, Place | None], Asked] = Lane(
            partial(leases.acquire, database),
            lambda wish: leases.acquire_alone(database, *wish),
            order=lambda wish: wish[0].resource,
        )
        self._releasing: Lane[tuple[str, UUID, str], tuple[Ended, Turn]] = Lane(
            partial(leases.release, database),
            lambda lease: leases.release_alone(database, *lease),
            order=lambda lease: lease[0],
        )
        self._renewing: Lane[Renewal, Lease | bool] = Lane(
            partial(leases.renew, database, hasty=True), self._renew_alone, order=_order, most=_RENEWALS
        )
        self._leaving: Lane[tuple[str, int], None] = Lane(
            self._leave_together, self._leave_alone, order=lambda place: place, most=_LEAVING
        )

    def waiting(self) -> int:
        """How many wait at this process."""
        return len(self._queue.tickets())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What goes on in the background while requests are served. Waits by itself for a database that is away."""
        async with self._attendance.running():
            try:
                yield
            finally:
                await self._home()

    async def acquire(self, wanted: Wanted) -> Granted:
        """A lease, at once or after waiting in the queue for at most ``wanted.wait``.

        Raises ``LockHeld``, ``TokensExhausted``, ``Unavailable``. A caller that goes away while it waits (its task is
        cancelled) is treated as at the end of its wait.
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
        """The lease, lasting ``ttl`` from now on, or as long as it did last time.

        Raises ``LeaseLost`` once it has lapsed, was released or broken, though nobody else may have the lock;
        ``Forbidden`` where it is another caller's.
        """
        renewal = Renewal(resource, lease, caller, ttl)
        with staged(self._observe, "leases", "renew"):
            try:
                renewed = await self._renewing.ask(renewal)
            except OutcomeUnknown:
                renewed = await self._renew_alone(renewal)
        self._observe(LeaseAnswered("renewed" if isinstance(renewed, Lease) else "lost"))
        if isinstance(renewed, Lease):
            return renewed
        raise forbidden(resource) if renewed else lost(resource)

    async def renew_many(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        """Renew many in one statement. In the same order, each the lease, or None if it is lost or not the caller's."""
        ordered = sorted(set(renewals), key=_order)
        with staged(self._observe, "leases", "renew"):
            try:
                renewed = await leases.renew(self._database, ordered)
            except OutcomeUnknown:
                renewed = await leases.renew(self._database, ordered)
        kept = sum(isinstance(lease, Lease) for lease in renewed)
        self._observe(LeaseAnswered("renewed", kept))
        self._observe(LeaseAnswered("lost", len(renewed) - kept))
        found = dict(zip(ordered, renewed, strict=True))
        return [lease if isinstance(lease := found[renewal], Lease) else None for renewal in renewals]

    async def release(self, resource: str, lease: UUID, caller: str) -> None:
        """End a lease. Raises ``LeaseLost`` where it has ended already, ``Forbidden`` where it is another caller's."""
        with staged(self._observe, "leases", "release"):
            try:
                ended, turn = await self._releasing.ask((resource, lease, caller))
            except OutcomeUnknown:
                ended, turn = await leases.release_alone(self._database, resource, lease, caller)
                if ended is Ended.LOST:
                    # By the first try, for all anybody can tell. It is gone, which is what was wanted.
                    ended = Ended.RELEASED
        self._go_on(turn)
        self._observe(LeaseAnswered("released" if ended is Ended.RELEASED else "lost"))
        if ended is Ended.FORBIDDEN:
            raise forbidden(resource)
        if ended is Ended.LOST:
            raise lost(resource)

    async def withdraw(self, resource: str, holder: str, caller: str, request: str) -> None:
        """End a wish, whether it waits still or has been granted by now. Nothing happens where there is none."""
        try:
            turn = await leases.withdraw(self._database, resource, holder, caller, request)
        except OutcomeUnknown:
            turn = await leases.withdraw(self._database, resource, holder, caller, request)
        self._go_on(turn)
        self._observe(LeaseAnswered("withdrawn"))

    async def inspect(self, resource: str) -> LockView:
        """How a lock stands."""
        (view,) = await leases.views(self._database, [resource], QUEUE_SHOWN)
        return view

    async def listed(self, prefix: str, after: str, limit: int) -> list[LockView]:
        """At most ``limit`` locks that are held, whose name starts with ``prefix`` and sorts after ``after``."""
        names = await leases.held(self._database, prefix, after, limit)
        return await leases.views(self._database, names, QUEUE_SHOWN) if names else []

    async def break_lock(self, resource: str, expected: Token, caller: str, reason: str) -> LockView:
        """End every lease with exactly this token, on record. Raises ``ExpectedMismatch`` where there is none."""
        broken, turn = await leases.break_lock(self._database, resource, expected, caller, reason)
        self._go_on(turn)
        self._observe(LeaseAnswered("broken", broken))
        try:
            view = await self.inspect(resource)
        except Unavailable as error:
            if broken:
                raise OutcomeUnknown("The lock was broken, but how it stands now cannot be read.") from error
            raise
        if not broken:
            held = str(view.holders[0].token) if view.holders else None
            raise ExpectedMismatch(
                f"Nobody holds {resource} with the token {expected}.", facts={"resource": resource, "token": held}
            )
        return view

    async def _wait(self, line: Line, wanted: Wanted, ends: float) -> Asked:
        """Ask, and ask again whenever it may be our turn, until there is an answer or the wait is over."""
        in_queue = False
        while True:
            try:
                asked, turn = await self._ask_for_place(line, wanted)
            except Unavailable:
                # Who has not got a place learns at once that the database is away. All others keep theirs.
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

    async def _ask_for_place(self, line: Line, wanted: Wanted) -> "tuple[Asked, asyncio.Future[None] | None]":
        with self._queue.asking(line) as asking:
            asked = await self._ask(wanted, self._place)
            if asked.ticket is None:
                return asked, None
            return asked, self._queue.take(line, asking, asked.ticket)

    async def _end(self, line: Line, wanted: Wanted, ticket: int, turn: "asyncio.Future[None]") -> Asked:
        """At the end of the wait: it may be our turn in this very moment. If it is not, the place is given up."""
        last = self._queue.give_up(line, ticket, turn)
        asked = None
        try:
            asked = await self._ask(wanted, None)
        finally:
            left = self._leave(line.resource, ticket) if last and not _is_granted(asked) else None
        if left is not None:
            # Who asks again at once must not lose the place that it gets then.
            await asyncio.wait([left])
        return asked

    def _leave(self, resource: str, ticket: int) -> "asyncio.Future[None]":
        """Give a place up. One that cannot be given up for now is found by a later beat (``Attendance``)."""
        left = self._leaving.ask((resource, ticket))
        left.add_done_callback(lambda left: left.cancelled() or left.exception())
        return left

    async def _ask(self, wanted: Wanted, place: Place | None) -> Asked:
        asking = self._acquiring.ask((wanted, place))
        try:
            # What has been asked is carried out. Whoever goes away meanwhile leaves a place behind, or a lease.
            asked = await asyncio.shield(asking)
        except OutcomeUnknown:
            try:
                asked = await leases.acquire_alone(self._database, wanted, place)
            except OutcomeUnknown as error:
                raise Unavailable(
                    error.message, advice="Ask again: if the lock was granted, it will be the same lease and token."
                ) from error
        except asyncio.CancelledError:
            asking.add_done_callback(self._forsake)
            raise
        self._go_on(asked.turn)
        return asked

    def _forsake(self, asking: "asyncio.Future[Asked]") -> None:
        """Nobody waits for this answer any more. A place is given up; a lease lapses, or is asked for again."""
        if asking.cancelled() or asking.exception() is not None:
            return
        asked = asking.result()
        self._go_on(asked.turn)
        if asked.ticket is not None and asked.ticket not in self._queue.tickets():
            self._leave(asked.turn.resource, asked.ticket)

    async def _home(self) -> None:
        """Whoever is gone by now has left a place that somebody else may be waiting behind."""
        for lane in (self._acquiring, self._leaving):
            await lane.home(_PATIENCE)

    async def _leave_together(self, places: Sequence[tuple[str, int]]) -> Sequence[None]:
        for turn in await leases.leave(self._database, self._place.attendant, places, self._times.linger):
            self._go_on(turn)
        return [None] * len(places)

    async def _leave_alone(self, place: tuple[str, int]) -> None:
        await self._leave_together([place])

    async def _renew_alone(self, renewal: Renewal) -> Lease | bool:
        return (await leases.renew(self._database, [renewal]))[0]

    def _go_on(self, turn: Turn) -> None:
        self._queue.go_on(turn.resource, turn.handed, turn.look_in)


def _order(renewal: Renewal) -> tuple[str, UUID]:
    return renewal.resource, renewal.lease


def _is_granted(asked: Asked | None) -> bool:
    return asked is not None and asked.outcome is Outcome.GRANTED
