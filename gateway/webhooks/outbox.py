"""Sends the record to webhooks: each entry at least once, in order, by one gateway at a time.

The outbox of a webhook is a position in the record (``gateway.db.webhooks``). It moves once the entries before it have
been received. The delivering gateway owns the row for some seconds. A gateway that is paused meanwhile may repeat a
message, but cannot move the position any more. Receivers recognise messages by their ids.

No write waits for any of this.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import SystemRandom
from uuid import uuid4

from gateway.background import Attempts, unreachable, wait_until
from gateway.db import webhooks as store
from gateway.db.database import Database
from gateway.db.record import RecordPosition, read_span
from gateway.db.webhooks import EntryFilter, WebhookStatus
from gateway.errors import NotFound
from gateway.fencing.record import Entry
from gateway.observe.events import Observe, WebhookDelivered, WebhookFailed
from gateway.webhooks import delivery, messages
from gateway.webhooks.delivery import TIMEOUT, Courier, Delivery, Receiver

STRETCH = 5_000
"""Entries of the record that are looked at in one statement."""

_GRACE = 5.0  # seconds
_chance = SystemRandom().random


@dataclass(frozen=True, slots=True)
class ConfiguredWebhook:
    name: str
    receiver: Receiver
    selection: EntryFilter


@dataclass(frozen=True, slots=True)
class OutboxTimes:
    """Seconds."""

    look: float = 1.0
    """How often a gateway looks whether there is something to send."""
    owned: float = 2 * TIMEOUT
    """For how long a gateway that delivers is not disturbed by others: for longer than one attempt takes."""


@dataclass(frozen=True, slots=True)
class _Parcel:
    """The next message: its entries, the number of entries dropped before them, and the position after it."""

    entries: Sequence[Entry]
    missed: int
    end: RecordPosition


class Outbox:
    """The webhooks of one configuration, as one gateway process serves them. Any number of processes may do the same.

    ``chance`` returns numbers from 0 to 1, which spread the retries.
    """

    def __init__(
        self,
        database: Database,
        webhooks: Sequence[ConfiguredWebhook],
        observe: Observe,
        *,
        courier: Courier | None = None,
        times: OutboxTimes | None = None,
        chance: Callable[[], float] = _chance,
    ) -> None:
        self._database, self._observe = database, observe
        self._webhooks = {webhook.name: webhook for webhook in webhooks}
        self._courier, self._times, self._chance = courier or Courier(), times or OutboxTimes(), chance
        self._owner = uuid4()
        self._delivering: set[str] = set()
        self._woken, self._stopping = asyncio.Event(), asyncio.Event()

    def wake(self) -> None:
        """Do not wait for the next look."""
        self._woken.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Deliver in the background. At the end, a message under way gets some seconds to finish."""
        try:
            if not self._webhooks:
                yield
                return
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._keep_looking())
                try:
                    yield
                finally:
                    self._stopping.set()
                    self._woken.set()
                    await asyncio.wait([task], timeout=_GRACE)
                    task.cancel()
        finally:
            await self._courier.close()

    async def standings(self) -> list[WebhookStatus]:
        """Return the states of the webhooks. Raise ``GatewayError``."""
        return await store.list_statuses(self._database, list(self._webhooks))

    async def test(self, name: str) -> Delivery:
        """Send a test message now. A receiver that takes it is sent its waiting entries, too.

        Raise ``NotFound`` for a name that is not configured.
        """
        webhook = self._webhooks.get(name)
        if webhook is None:
            raise NotFound(f"There is no webhook {name}.")
        now = await self._database.now()
        answer = await self._courier.post(webhook.receiver, messages.test(name, now), now)
        if answer.error is None:
            await store.resume(self._database, name)
            self.wake()
        return answer

    async def _keep_looking(self) -> None:
        introduced = False

        async def look() -> None:
            nonlocal introduced
            if not introduced:
                await store.introduce(self._database, list(self._webhooks))
                introduced = True
            idle = [name for name in self._webhooks if name not in self._delivering]
            for outbox in await store.take(self._database, idle, self._owner, self._times.owned):
                self._delivering.add(outbox.name)
                group.create_task(self._deliver_and_release(outbox))

        failed = partial(unreachable, "postgres", "Webhooks are not delivered")
        attempts = Attempts(self._observe, failed, self._times.look, 2 * self._times.look)
        async with asyncio.TaskGroup() as group:
            while not self._stopping.is_set():
                self._woken.clear()
                await attempts.make(look)
                await wait_until(self._woken, attempts.pause)

    async def _deliver_and_release(self, outbox: store.ClaimedWebhook) -> None:
        async def deliver() -> None:
            await self._deliver(outbox)
            await store.release(self._database, outbox.name, self._owner)

        failed = partial(unreachable, "postgres", f"The webhook {outbox.name} is held up")
        try:
            await Attempts(self._observe, failed).make(deliver)
        finally:
            self._delivering.discard(outbox.name)

    async def _deliver(self, outbox: store.ClaimedWebhook) -> None:
        """Send one message after the other while they are received and this gateway owns the row."""
        webhook = self._webhooks[outbox.name]
        while not self._stopping.is_set():
            parcel = await self._next(webhook, outbox)
            if parcel.end == outbox.place:
                return
            if parcel.entries or parcel.missed:
                done = await self._send(webhook, outbox, parcel)
            else:
                done = await store.advance(self._database, outbox, self._owner, parcel.end, received=False)
            if not done:
                return
            outbox = replace(outbox, place=parcel.end, sending=None, failures=0)

    async def _next(self, webhook: ConfiguredWebhook, outbox: store.ClaimedWebhook) -> _Parcel:
        """Return the next message. If one may have been sent before, repeat it unchanged while its entries exist."""
        ahead = await read_span(self._database, outbox.place, STRETCH)
        last = ahead.end.position
        found = await self._found(webhook, outbox.place, min(last, outbox.sending)) if outbox.sending else []
        found = found or await self._found(webhook, outbox.place, last)
        entries = messages.batch([entry for entry, _ in found])
        return _Parcel(entries, ahead.dropped, found[len(entries) - 1][1] if entries else ahead.end)

    async def _found(
        self, webhook: ConfiguredWebhook, after: RecordPosition, until: int
    ) -> list[tuple[Entry, RecordPosition]]:
        return await store.read_entries(self._database, after, until, webhook.selection, messages.MOST_ENTRIES)

    async def _send(self, webhook: ConfiguredWebhook, outbox: store.ClaimedWebhook, parcel: _Parcel) -> bool:
        """Send a message; return whether it was received and this gateway may send the next one."""
        last = parcel.end.position if parcel.entries else None
        now = await store.mark_sending(self._database, outbox, self._owner, last, self._times.owned)
        if now is None:
            return False
        message = messages.about(webhook.name, parcel.entries, parcel.missed, now)
        answer = await self._courier.post(webhook.receiver, message, now)
        if answer.error is None:
            ours = await store.advance(self._database, outbox, self._owner, parcel.end, received=True)
            self._observe(WebhookDelivered(webhook.name, len(parcel.entries), parcel.end.position, outbox.failures))
            return ours
        failures = outbox.failures + 1
        wait = max(answer.wait, delivery.retry_pause(failures, self._chance()))
        await store.fail(self._database, outbox, self._owner, answer.error, wait, paused=answer.gone)
        self._observe(WebhookFailed(webhook.name, answer.error, failures, None if answer.gone else wait))
        return False
