"""Stores what a process has counted and noted in memory: every few seconds, and at its end."""

import asyncio
import secrets
import socket
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Literal, Protocol, TypeAlias

from gateway.auth.callers import KeyUse
from gateway.background import Attempts, background_tasks, repeat, sweep_failed
from gateway.db import traffic as store
from gateway.db.database import Database
from gateway.db.traffic import TrafficKey, WriteCounts
from gateway.errors import Denied
from gateway.fencing.record import Refusal, Rejection
from gateway.observe.events import Observe, RefusalCounted, Sink, WriteAccepted, WriteRefused

INTERVAL = 10.0
"""Seconds between two flushes."""

_GRACE = 3.0  # seconds


class Noted(Protocol):
    """Something that is noted in memory. ``what`` names it in events."""

    @property
    def what(self) -> str: ...

    async def flush(self, database: Database) -> None:
        """Store it. Raise ``GatewayError``: then it is kept for the next flush."""
        ...


@asynccontextmanager
async def flushing(
    database: Database, noted: Sequence[Noted], observe: Observe, interval: float = INTERVAL
) -> AsyncIterator[None]:
    """Flush while this lasts, and once at its end. An error is an event."""

    async def flush() -> None:
        for one in noted:
            await Attempts(observe, partial(sweep_failed, one.what)).make(partial(one.flush, database))

    async with background_tasks(repeat("flushing", flush, observe, interval)):
        yield
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            await flush()


class KeyUses:
    """The uses of all keys of one process, which know until when the database has them."""

    what = "uses of keys"

    def __init__(self, keys: Sequence[KeyUse]) -> None:
        self._keys = keys
        self._stored: dict[KeyUse, float] = {}

    async def flush(self, database: Database) -> None:
        """Store the last use of each key. Raise ``GatewayError``: then it is stored by the next flush."""
        due = {one: last for one in self._keys if (last := one.last) is not None and self._stored.get(one) != last}
        if not due:
            return
        shown = await asyncio.to_thread(lambda: [one.shown() for one in due])
        now = monotonic()
        await store.note_key_uses(
            database,
            [(one.caller, one.kind, name, now - last) for (one, last), name in zip(due.items(), shown, strict=True)],
        )
        self._stored.update(due)


# Flushes (an hour of them) and rows that wait for an unavailable database. Later counts join the newest.
_MOST_WAITING = 360
_MOST_ROWS = 10_000

Outcome: TypeAlias = Literal["accepted", "refused", "observed"]


class Traffic(Sink):
    """The counts of one process: a sink of events, which costs a write one step in a dictionary.

    A write is ``accepted``, ``refused`` or ``observed``: it passed, and would have been refused if its rule were
    enforced. A refusal of the API is not a write. A denial counts nowhere: no fence has seen the request, and its
    caller may have made up the table.
    """

    what = "counts of writes"

    def __init__(self) -> None:
        self._gateway = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        # There are only so many tables and patterns of keys.
        self._counts: defaultdict[tuple[str, str, Outcome], int] = defaultdict(int)
        self._last: tuple[str, str] | None = None
        # Counts that wait for the database, each with the time of the loop's clock at which it was closed.
        self._waiting: deque[tuple[float, dict[tuple[str, str, Outcome], int]]] = deque()
        # This process's whole rows while their minute may not be over. The database replaces rows and does not add to
        # them, so a flush whose answer was lost is simply repeated.
        self._rows: dict[TrafficKey, WriteCounts] = {}
        self.handlers = {
            WriteAccepted: self._accepted,
            WriteRefused: lambda event: self._refused(event.plane, event.rejection),
            RefusalCounted: lambda event: self._refused(event.plane, event.refusal),
        }

    def _accepted(self, event: WriteAccepted) -> None:
        self._counts[event.plane, event.rule or "", "accepted"] += 1

    def _refused(self, plane: str, refused: Refusal | Rejection) -> None:
        """Count a refused write once: each of its refused resources is an event, one after the other."""
        attempt = refused.attempt
        rule = attempt.rule
        if plane == "api" or refused.reason == Denied.code:
            return
        if rule is None or (attempt.request_id, rule) == self._last:
            return
        self._last = (attempt.request_id, rule)
        self._counts[plane, rule, "refused" if refused.enforced else "observed"] += 1

    async def flush(self, database: Database) -> None:
        """Store the counts. Raise ``GatewayError``: then they are kept for the next flush.

        Counts go to the minute of their first flush, by the database's clock.
        """
        loop = asyncio.get_running_loop()
        self._put_away(loop.time())
        if not self._waiting:
            return
        now = await database.now()
        latest = max((place.minute for place in self._rows), default=None)
        while self._waiting:
            at, counts = self._waiting.popleft()
            minute = (now - timedelta(seconds=loop.time() - at)).replace(second=0, microsecond=0)
            # A row that was let go must never be started again, even if the database's clock is set back.
            if latest is None or (minute > latest and len(self._rows) < _MOST_ROWS):
                latest = minute
            for (plane, rule, outcome), number in counts.items():
                self._rows.setdefault(TrafficKey(latest, plane, rule), WriteCounts()).add(outcome, number)
        await store.write(database, self._gateway, self._rows)
        self._rows = {place: row for place, row in self._rows.items() if place.minute == latest}

    def _put_away(self, now: float) -> None:
        if self._counts:
            self._waiting.append((now, dict(self._counts)))
            self._counts.clear()
        if len(self._waiting) > _MOST_WAITING:
            _, oldest = self._waiting.popleft()
            for key, number in oldest.items():
                counts = self._waiting[0][1]
                counts[key] = counts.get(key, 0) + number
