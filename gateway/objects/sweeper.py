"""Clear away what is left behind: tombstones that may go, uploads of gateways that are gone, old intents. Then run the
bypass scan.

Only room depends on it, and listings that need no second look. Each gateway sweeps. Several may sweep at once: each
tombstone is a fenced delete of its own, and the rest can be done twice.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import uuid4

from gateway.background import at_a_time, background_tasks, repeat
from gateway.db import intents, uploads
from gateway.db.database import Database
from gateway.db.intents import Tombstone
from gateway.db.uploads import RecordedUpload
from gateway.errors import GatewayError, StoreError, Unavailable
from gateway.fencing.decision import Enforcement
from gateway.fencing.intent import Announcement, Duplicates, Intent
from gateway.fencing.record import SWEEPER
from gateway.findings import LEFT_BEHIND
from gateway.objects.bypass import BypassScan
from gateway.objects.protocol import mutation, settling
from gateway.objects.protocol.effects import Deleted, NotDone, StoreRefused, Uncertain
from gateway.objects.protocol.runner import OperationPayload, Runner
from gateway.objects.s3.answers import store_refusal
from gateway.objects.store.client import place_of
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.observe.events import Observe, SweepFailed, TombstoneSwept, UploadSwept

LEFT_ALONE = timedelta(minutes=5)
"""The sweeper looks at mutations that were announced so long ago: the store's clock says whether they are dead."""

_BATCH = 100
_MOST_BATCHES = 10
_CONDITIONS = 5000
_AT_A_TIME = 8
_GRACE = 5.0  # seconds
_UNCONDITIONAL = OperationPayload(method="DELETE")

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Swept:
    """The number of things that one round has cleared away, and of the bypasses it has found."""

    tombstones: int = 0
    uploads: int = 0
    intents: int = 0
    conditions: int = 0
    bypasses: int = 0


class Sweeper:
    def __init__(
        self,
        database: Database,
        upstream: Upstream,
        profiles: Profiles,
        runner: Runner,
        observe: Observe,
        scan: BypassScan | None = None,
    ) -> None:
        self._database, self._upstream, self._profiles = database, upstream, profiles
        self._runner, self._observe, self._scan = runner, observe, scan
        self._stopping, self._under_way = asyncio.Event(), asyncio.Lock()

    @asynccontextmanager
    async def running(self, interval: float) -> AsyncIterator[None]:
        """Sweep in the background, each ``interval`` seconds; 0: not at all. A failure is an event.

        At the end, work under way gets some seconds to finish: an intent that is cut off would hold up writers.
        """
        if not interval:
            yield
            return
        async with background_tasks(repeat("everything", self._round, self._observe, interval)):
            try:
                yield
            finally:
                self._stopping.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE), self._under_way:
                        pass

    async def _round(self) -> None:
        async with self._under_way:
            await self.sweep()

    async def sweep(self) -> Swept:
        """Run one round. A failure of one part does not keep it from the next."""
        return Swept(
            await self._counted("tombstones", self.sweep_tombstones()),
            await self._counted("uploads", self._sweep_uploads()),
            await self._counted("intents", self._sweep_intents()),
            await self._counted("conditions", self._forget_conditions()),
            0 if self._scan is None else await self._counted("bypasses", self._scan.round()),
        )

    async def sweep_tombstones(self, bucket: str | None = None) -> int:
        """Remove the tombstones that may go, up to a thousand, and return how many. Raises ``GatewayError``.

        ``bucket``: sweep that one only, which is to be deleted.
        """
        waits = self._runner.duplicates is Duplicates.WAIT
        sweep = partial(self._sweep_tombstone, doomed=bucket is not None)
        started, store_time = await self._database.now(), await self._store_time()
        swept = 0
        for _ in range(_MOST_BATCHES):
            graves = await intents.take_tombstones(self._database, _BATCH, store_time, started, bucket, waits=waits)
            swept += await self._sweep_each(graves, sweep, lambda grave: f"{grave.bucket}/{grave.key}")
            if len(graves) < _BATCH:
                break
        return swept

    async def _sweep_tombstone(self, grave: Tombstone, *, doomed: bool) -> bool:
        conditional = await self._deletes_conditionally(grave.bucket)
        if not conditional and (conditional is None or not doomed):
            return False  # only time stops a delete without a condition, if it is late or arrives twice
        write = Announcement(
            grave.resource, grave.bucket, grave.key, uuid4(), presented=None, caller=SWEEPER, mode=Enforcement.OBSERVE
        )
        steps = mutation.sweep(write, conditional_delete=conditional)
        outcome = await self._runner.run(steps, OperationPayload() if conditional else _UNCONDITIONAL)
        match outcome:
            case Deleted(applied=None):  # there was no tombstone
                return False
            case Deleted():
                self._observe(TombstoneSwept(grave.resource, grave.bucket, grave.key))
                return True
            case StoreRefused(rejected):
                raise store_refusal(rejected)
            case Uncertain(reason) | NotDone(reason):
                raise Unavailable(reason)
            case _:
                raise AssertionError(outcome)

    async def _deletes_conditionally(self, bucket: str) -> bool | None:
        """Return whether the bucket's deletes are conditional; None where nothing can be deleted safely."""
        try:
            profile = await self._profiles.of(bucket)
        except StoreError as error:
            if error.s3_code == "NoSuchBucket":  # then there is nothing to delete, only to forget
                return True
            raise
        return profile.delete_condition if profile.writable else None

    async def _sweep_uploads(self) -> int:
        await uploads.forget_completed(self._database)
        left = await uploads.list_left_behind(self._database, LEFT_BEHIND.total_seconds(), _BATCH)
        return await self._sweep_each(
            left, self._sweep_upload, lambda upload: f"{upload.place.bucket}/{upload.place.key}"
        )

    async def _sweep_upload(self, upload: RecordedUpload) -> bool:
        place = upload.place
        gone = await self._upstream.abandon_upload(place_of(place.bucket, place.key), place.upload_id)
        if not gone:
            await uploads.touch(self._database, place)  # the sweeper tries the other uploads before this one again
            raise Unavailable("The store still has the upload, or does not say.")
        await uploads.remove(self._database, place)
        self._observe(UploadSwept(place.bucket, place.key, place.upload_id))
        return True

    async def _sweep_intents(self) -> int:
        now = await self._database.now()
        pending = await intents.list_pending(self._database, _BATCH)
        old = [intent for intent in pending if now - intent.signed_at > LEFT_ALONE]
        return await self._sweep_each(old, self._sweep_intent, lambda intent: f"{intent.bucket}/{intent.key}")

    async def _sweep_intent(self, intent: Intent) -> bool:
        return await self._runner.run(settling.settle_by_the_clock(intent)) is None

    async def _forget_conditions(self) -> int:
        """Forget the conditions of requests whose signatures are dead."""
        store_time = self._upstream.store_time
        forgotten = 0
        while store_time is not None and not self._stopping.is_set():
            batch = await intents.forget_spent(self._database, store_time, _CONDITIONS)
            forgotten += batch
            if batch < _CONDITIONS:
                break
        return forgotten

    async def _store_time(self) -> datetime | None:
        """Return the store's own clock, which decides what may be forgotten."""
        async with await self._upstream.send("GET", "/"):
            pass
        return self._upstream.store_time

    async def _counted(self, what: str, sweeping: Awaitable[int]) -> int:
        try:
            return await sweeping
        except GatewayError as error:
            self._observe(SweepFailed(what, error.message))
            return 0

    async def _sweep_each(
        self, items: Iterable[Item], sweep: Callable[[Item], Awaitable[bool]], name: Callable[[Item], str]
    ) -> int:
        """Sweep each item, and return how many were swept. A failure is an event."""

        async def one(item: Item) -> bool:
            if self._stopping.is_set():
                return False
            try:
                return await sweep(item)
            except GatewayError as error:
                self._observe(SweepFailed(name(item), error.message))
                return False

        return sum(await at_a_time(_AT_A_TIME, one, items))
