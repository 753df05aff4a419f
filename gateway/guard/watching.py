"""Looks after guards in the background of each gateway: what they have refused, whether they are still there, the rows
they watch.

All of it is decided in the database, by one gateway at a time; which one does not matter, nor how many there are.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import cast

from gateway.background import background_tasks, repeat
from gateway.db import guards
from gateway.db.database import Database
from gateway.db.guards import GuardFinding
from gateway.errors import Unavailable
from gateway.findings import question
from gateway.observe.events import BypassFound, FoundBy, GuardRefused, Observe, WriteRefused

INTERVAL = 1.0
"""Seconds between two looks at what guards have refused, and two stretches of comparing rows with their stamps."""
_GUARDS_EVERY = round(question("guard").every / INTERVAL)
_LONGEST_PAUSE = 10.0  # seconds, while something goes wrong
BLOCKS, STAMPS = 64, 4_000
"""The size of one comparison, in blocks of rows: half a megabyte."""
_LARGE = 4096
_MOST_STEPS = 100_000
_MOST_PARTS = 16
"""The most parts of what was refused that one look puts on record. In a storm there is always one more."""


class GuardWatcher:
    """The guards of one database."""

    def __init__(self, database: Database, observe: Observe) -> None:
        self._database = database
        self._observe = observe
        self._since: datetime | None = None
        self._blocks = BLOCKS
        self._turns = 0

    def running(self) -> AbstractAsyncContextManager[None]:
        """Look in the background. An error is an event."""
        looking = repeat("guards", self._turn, self._observe, INTERVAL, longest=_LONGEST_PAUSE, at_once=True)
        return background_tasks(looking)

    async def _turn(self) -> None:
        await self.look(with_guards=self._turns % _GUARDS_EVERY == 0)
        await self._step()
        self._turns += 1

    async def look(self, *, with_guards: bool = True) -> int:
        """Put on record what has been refused since the last look and, with ``with_guards``, what is missing of them.

        Returns how many entries that were. Raises ``GatewayError``.
        """
        told = 0
        for _ in range(_MOST_PARTS):
            now = await self._database.now()
            refused, counted = await guards.record_refusals(self._database, self._since)
            self._since = now
            for rejection in refused:
                self._observe(WriteRefused("tables", rejection))
            alike = Counter((one.attempt.rule, one.reason) for one in refused)
            for (target, reason), count in alike.items():
                self._observe(GuardRefused(target, reason, count))
            for one in counted:
                self._observe(GuardRefused(one.target, one.reason, one.count))
            told += len(refused) + len(counted)
            if not refused and not counted:
                break
        return told + (self._told(await guards.check_guards(self._database)) if with_guards else 0)

    async def sweep(self) -> int:
        """Look, and compare all watched rows with their stamps, once; how many entries that made.

        Raises ``GatewayError``.
        """
        found = await self.look()
        for relation in await guards.list_watched(self._database):
            found += await self.passed(relation)
        return found

    async def passed(self, relation: str) -> int:
        """One pass over a table, from where it is to its end; how many entries that made. Raises ``GatewayError``."""
        found, blocks = 0, _LARGE
        for _ in range(_MOST_STEPS):
            try:
                step = await guards.guard_watch_step(self._database, 0, blocks, blocks * STAMPS // BLOCKS, relation)
            except Unavailable:
                if blocks == 1:
                    raise
                blocks //= 4
                continue
            if step is None:  # a gateway has the table in its hands
                await asyncio.sleep(INTERVAL / 10)
                continue
            found += self._told(step.findings)
            if step.passed:
                return found
        raise Unavailable(f"{relation} changes faster than it can be compared.")

    async def _step(self) -> None:
        """Compare a stretch of the table that has waited longest. If writers interfere, the next stretch is shorter."""
        try:
            step = await guards.guard_watch_step(self._database, INTERVAL, self._blocks, STAMPS)
        except Unavailable:
            self._blocks = max(1, self._blocks // 4)
            return
        self._blocks = min(BLOCKS, 2 * self._blocks)
        if step is not None:
            self._told(step.findings)

    def _told(self, findings: Iterable[GuardFinding]) -> int:
        found = list(findings)
        for one in found:
            self._observe(
                BypassFound("tables", one.reason, one.resource, one.target, cast(FoundBy, one.found_by), one.rows)
            )
        return len(found)
