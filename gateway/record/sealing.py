"""What each gateway does for the record in the background: seal, make partitions, drop old ones.

Nothing waits for it: whoever reads the record seals first what there is. A gateway that finds another one sealing
leaves it to that one.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from time import perf_counter

from gateway.background import background_tasks, repeat
from gateway.db import record, rejections, traffic
from gateway.db.database import Database
from gateway.observe.events import HeadNoted, Observe, PartitionDropped, RecordSealed

_DAYS_AHEAD = 31
_LONGEST_PAUSE = 5.0  # seconds, between two rounds of sealing while they go wrong
_PARTITIONS_AT_ONCE = 1
_ROWS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds between two rounds."""

    seal: float = 0.25
    prepare: float = 60.0
    drop: float = 3600.0
    note: float = 24 * 3600.0
    """How often the end of the record goes to the log, where it is a witness that no one at the database can change."""


class Sealing:
    """``retention``: days for which the record is kept, and what belongs to it."""

    def __init__(self, database: Database, observe: Observe, retention: int, pauses: Pauses | None = None) -> None:
        self._database, self._observe, self._retention = database, observe, retention
        self._pauses = pauses or Pauses()

    def running(self) -> AbstractAsyncContextManager[None]:
        """As long as this lasts. What goes wrong is an event, and is tried again."""
        observe, pauses = self._observe, self._pauses
        return background_tasks(
            repeat("entries that are to be sealed", self.seal, observe, pauses.seal, longest=_LONGEST_PAUSE),
            repeat("partitions of the record to come", self.prepare, observe, pauses.prepare, at_once=True),
            repeat("what is older than the record is to be kept", self.drop, observe, pauses.drop),
            repeat("the end of the record, for the log", self.note, observe, pauses.note, at_once=True),
        )

    async def seal(self) -> None:
        """Seal until there is nothing left, or another gateway is at it."""
        while True:
            began = perf_counter()  # the loop's own clock stands still within a turn
            sealed = await record.seal_some(self._database)
            if sealed:
                self._observe(RecordSealed(sealed, perf_counter() - began))
            if sealed is None or sealed < record.BATCH:
                return

    async def prepare(self) -> None:
        """The next partition there is not yet: after some minutes a month ahead is there, and nobody has felt it."""
        await record.prepare_partitions(self._database, _DAYS_AHEAD, _PARTITIONS_AT_ONCE)

    async def drop(self) -> None:
        """Drop what is older than it is to be kept: the oldest partition, and then what belongs to days that old.

        One partition, an hour apart: the record must not be gone at once where the clock of the database is wrong by
        years, or somebody has written ``retention`` with a digit too few.
        """
        last_day = await record.drop_partition(self._database, self._retention)
        if last_day is not None:
            self._observe(PartitionDropped(last_day))
        while await rejections.drop_payloads(self._database, self._retention, _ROWS_AT_ONCE) == _ROWS_AT_ONCE:
            pass
        while await traffic.forget(self._database, self._retention, _ROWS_AT_ONCE) == _ROWS_AT_ONCE:
            pass

    async def note(self) -> None:
        """Say where the record ends, if there is one."""
        head = await record.head(self._database)
        if head.position:
            self._observe(HeadNoted(head.position, head.hash))
