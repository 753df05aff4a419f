"""Sends heartbeats for the waiters of this process, receives hand-over notifications, and runs expiry timers.

The number of waiters does not matter: a heartbeat is one statement, and an expired lease or delay costs one look.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from gateway.background import Attempts, background_tasks, repeat, unreachable
from gateway.batching import Lane
from gateway.db import leases
from gateway.db.database import Database
from gateway.db.leases import QueueTurn
from gateway.db.notifications import Listen
from gateway.leases.local_waiters import WaitQueues
from gateway.observe.events import Observe

QUESTIONS = 32
"""Questions in a batch. A batch keeps all its locks locked until its end. It has to fit into a socket's buffer, or a
paused gateway could hold the locks of the half that has arrived.
"""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def lane(
    together: Callable[..., Awaitable[Sequence[Answer]]], most: int, order: Callable[[Item], Any]
) -> Lane[Item, Answer]:
    """Return a lane of questions, each of which goes alone and with ``patient`` if its batch fails."""

    async def alone(item: Item) -> Answer:
        (answer,) = await together([item], patient=True)
        return answer

    return Lane(together, alone, most=most, order=order, lone_alone=False)


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
    """The background work of the lease service of one process."""

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
        """Return a context in which the background work runs."""
        sweep = repeat("leases that have lapsed", self.sweep, self._observe, self._times.sweep)
        if self._listen is None:
            return background_tasks(self._beat(), sweep)
        return background_tasks(self._beat(), sweep, self._hear(self._listen))

    async def attend(self) -> None:
        """Send one heartbeat, and make up for missed notifications."""
        before, quiet = self.queue.tickets(), self.queue.quiet()
        attended = await leases.send_heartbeat(self._database, self._attendant, self._times.attended)
        # A place that is gone was handed over without a notification that arrived, or it is lost.
        self.queue.ask_again(before - attended.waiting)
        for resource in attended.due:
            self._is_due(resource)
        await self._see_off(attended.waiting - before if quiet else frozenset())

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
