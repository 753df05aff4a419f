"""Reads how things stand, for whoever scrapes: this process's own state, and that of the services behind it.

A scrape never waits for long, and never asks a database that is in trouble more than once at a time: what cannot be
told is left out, and that it cannot is what ``gateway_service_up`` says.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from gateway.db import overview as store
from gateway.db.database import Database
from gateway.db.record import Place
from gateway.errors import GatewayError
from gateway.observe.gauges import MOST_COUNTED, Standing

PATIENCE = 3.0
"""Seconds for each service; a scrape has ten, as a rule."""
FRESH = 1.0
"""Seconds for which an answer counts, however many ask."""
MOST_ENTRIES = 200_000
"""Entries of the record that are counted for one scrape; what is beyond, for the next."""

# Each is a gauge of this name, and a field of what is read.
_COUNTED = (
    *("intents", "oldest_intent", "tombstones", "uploads"),
    *("position", "unsealed", "oldest_unsealed"),
    *("held", "waiters"),
)


class Vitals:
    """Fills the gauges of one gateway."""

    def __init__(
        self,
        standing: Standing,
        database: Database,
        *,
        now: Callable[[Standing], None],
        services: Callable[[], Mapping[str, Awaitable[str]]],
        webhooks: Sequence[str] = (),
        alarms: Sequence[str] = (),
    ) -> None:
        """``now`` reads what is at hand; ``services`` are asked for their state, ``ok`` or another one.

        ``webhooks`` and ``alarms`` by their names.
        """
        self._standing, self._database, self._now, self._services = standing, database, now, services
        self._webhooks, self._alarms = webhooks, alarms
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        # Up to where entries of the record have been counted.
        self._counted: Place | None = None

    async def refresh(self) -> None:
        """Bring all gauges up to date. Raises nothing: what cannot be told is left out."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if loop.time() - self._read_at >= FRESH:
                await asyncio.gather(self._ask_services(), self._count())
                self._read_at = loop.time()
        self._now(self._standing)

    async def _ask_services(self) -> None:
        asked = self._services()
        answers = await asyncio.gather(*(_is_up(state) for state in asked.values()))
        self._standing.up.values = {(name,): float(up) for name, up in zip(asked, answers, strict=True)}

    async def _count(self) -> None:
        found = None
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                found = await store.read_backlog(self._database, MOST_COUNTED, self._webhooks, self._alarms)
                await self._count_entries()
        standing = self._standing
        for name in _COUNTED:
            getattr(standing, name).set(None if found is None else getattr(found, name))
        webhooks = {} if found is None else found.webhooks
        standing.webhook_behind.values = {(name,): behind for name, (behind, _) in webhooks.items()}
        standing.webhook_failing.values = {(name,): failing for name, (_, failing) in webhooks.items()}
        standing.alarm.values = {} if found is None else {(name,): float(on) for name, on in found.alarms.items()}

    async def _count_entries(self) -> None:
        if self._counted is None:
            self._counted = await store.record_end(self._database)
            return
        kinds, self._counted = await store.entries_after(self._database, self._counted, MOST_ENTRIES)
        for kind, number in kinds.items():
            self._standing.entries.add(kind, by=number)


async def _is_up(state: Awaitable[str]) -> bool:
    with suppress(GatewayError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            return await state == "ok"
    return False
