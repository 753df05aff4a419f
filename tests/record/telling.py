"""Gateways below HTTP that tell webhooks and watch alarms, and entries for them to tell about."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from gateway.db.database import Database
from gateway.db.record import seal
from gateway.db.webhooks import EntryFilter
from gateway.fencing.record import Kind
from gateway.webhooks import signing
from gateway.webhooks.delivery import Courier, Receiver
from gateway.webhooks.outbox import ConfiguredWebhook, Outbox, OutboxTimes
from tests.patience import patient
from tests.record.receiver import SECRET
from tests.running import Events

QUICK = OutboxTimes(look=0.02)


def webhook(name: str, url: str, *, secret: str = SECRET, **wanted: Any) -> ConfiguredWebhook:
    asked = replace(EntryFilter((Kind.REJECTION,), "", observed=True, alarms=()), **wanted)
    return ConfiguredWebhook(name, Receiver(url, [signing.key_of(secret)]), asked)


@asynccontextmanager
async def telling(
    dsn: str, *webhooks: ConfiguredWebhook, courier: Courier | None = None, times: OutboxTimes = QUICK
) -> AsyncIterator[tuple[Outbox, Events]]:
    """A gateway that delivers, once it has begun to; its webhooks begin at the end of the record."""
    events, database = Events(), patient(dsn)
    outbox = Outbox(database, webhooks, events, courier=courier, times=times, chance=lambda: 0.0)
    try:
        async with outbox.running():
            while len(await outbox.standings()) < len(webhooks):
                outbox.wake()
            yield outbox, events
    finally:
        await database.close()


async def put(database: Database, count: int = 1, *, sealed: bool = True, **columns: Any) -> None:
    """Put refusals on record. ``columns`` are those of the record; ``at`` may be a number of seconds from now."""
    given = {
        "kind": "rejection",
        "resource": "job/nightly",
        "reason": "token-stale",
        "enforced": True,
        "epoch": 0,
        "value": 33,
        "holder": "host-a",
        "caller": "worker",
        "method": "PATCH",
        "target": "/v1/tables/runs?job=eq.nightly",
        "request_id": "r",
        **columns,
    }
    names = ", ".join(given)
    values = [f"${number}" for number in range(2, len(given) + 2)]
    await database.fetch_write(
        f"INSERT INTO fencing.intake ({names}) SELECT {', '.join(values)} FROM generate_series(1, $1::int)",
        count,
        *given.values(),
    )
    if sealed:
        await seal(database)


async def time_passes(database: Database) -> None:
    """As if every wait of a webhook, and every gateway's time with one, were over."""
    await database.fetch_write("UPDATE fencing.webhook SET not_before = now(), owned_until = now()")


async def standing(database: Database, column: str, name: str = "ops") -> Any:
    row = await database.fetchrow(f"SELECT {column} AS it FROM fencing.webhook WHERE name = $1", name)
    assert row is not None
    return row["it"]


async def positions(database: Database, kinds: Sequence[str] = ("rejection",)) -> list[int]:
    """Return the positions of the entries that are to be sent, in order."""
    rows = await database.fetch(
        "SELECT position FROM fencing.entry WHERE kind = ANY ($1::text[]) ORDER BY position", list(kinds)
    )
    return [row["position"] for row in rows]
