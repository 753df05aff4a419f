"""Maintains the record in the background of each gateway: seals entries, adds partitions, drops old ones.

No request waits for it: a reader of the record seals first what is there. A gateway that finds another one sealing
leaves the work to that one. The chain itself is SQL: ``gateway/db/schema/chain.sql``.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from time import perf_counter

from gateway.background import background_tasks, repeat
from gateway.db import record, traffic
from gateway.db.database import Database
from gateway.observe.events import HeadNoted, Observe, PartitionDropped, RecordSealed

_DAYS_AHEAD = 31
_LONGEST_PAUSE = 5.0  # seconds, between two rounds of sealing while they go wrong
_PARTITIONS_AT_ONCE = 1
_ROWS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class SealingPauses:
    """Seconds between two rounds."""

    seal: float = 0.25
    prepare: float = 60.0
    drop: float = 3600.0
    note: float = 24 * 3600.0
    """The end of the record goes to the log. There it is a witness that the database's operator cannot change."""


class Sealing:
    """The maintenance of the record. ``retention``: days for which the record is kept."""

    def __init__(
        self, database: Database, observe: Observe, retention: int, pauses: SealingPauses | None = None
    ) -> None:
        self._database, self._observe, self._retention = database, observe, retention
        self._pauses = pauses or SealingPauses()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the record is maintained. An error is an event, and its work is retried."""
        observe, pauses = self._observe, self._pauses
        return background_tasks(
            repeat("entries that are to be sealed", self.seal, observe, pauses.seal, longest=_LONGEST_PAUSE),
            repeat("partitions of the record to come", self.prepare, observe, pauses.prepare, at_once=True),
            repeat("what is older than the record is to be kept", self.drop, observe, pauses.drop),
            repeat("the end of the record, for the log", self.note, observe, pauses.note, at_once=True),
        )

    async def seal(self) -> None:
        """Seal until nothing is left, or another gateway is sealing."""
        while True:
            began = perf_counter()  # the loop's own clock stands still within a turn
            sealed = await record.seal_some(self._database)
            if sealed:
                self._observe(RecordSealed(sealed, perf_counter() - began))
            if sealed is None or sealed < record.BATCH:
                return

    async def prepare(self) -> None:
        """Add the next missing partition. After some minutes a month ahead is there, without a noticeable pause."""
        await record.prepare_partitions(self._database, _DAYS_AHEAD, _PARTITIONS_AT_ONCE)

    async def drop(self) -> None:
        """Drop the oldest partition beyond the retention, and then the payloads and counts of days that old.

        It drops one partition an hour. Neither a wrong clock nor a ``retention`` with a digit too few
        must drop the record at once.
        """
        last_day = await record.drop_partition(self._database, self._retention)
        if last_day is not None:
            self._observe(PartitionDropped(last_day))
        while await record.drop_payloads(self._database, self._retention, _ROWS_AT_ONCE) == _ROWS_AT_ONCE:
            pass
        while await traffic.forget(self._database, self._retention, _ROWS_AT_ONCE) == _ROWS_AT_ONCE:
            pass

    async def note(self) -> None:
        """Log where the record ends, if it has entries."""
        head = await record.read_head(self._database)
        if head.position:
            self._observe(HeadNoted(head.position, head.hash))
