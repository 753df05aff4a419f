"""A gateway whose record is read by one caller with the right to audit, and by two callers without it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.db import record
from gateway.db.database import Database
from gateway.fencing.record import Kind, RecordedEvent
from tests.patience import patient
from tests.running import Events, config, running
from tests.waiting import PATIENCE

AUDITOR, ANN, BOB = "auditor-key", "ann-key", "bob-key"
CALLERS = [
    {"name": "auditor", "api_key": AUDITOR, "groups": ["auditors"]},
    {"name": "ann", "api_key": ANN},
    {"name": "bob", "api_key": BOB},
]


@dataclass(frozen=True, slots=True)
class Watched:
    """A gateway: ``events`` is what it observes, ``database`` the same as its own, through other sessions."""

    origin: str
    database: Database
    events: Events

    def client(self, key: str | None = AUDITOR) -> httpx.AsyncClient:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # Of a storm, most requests wait for a connection, and so for all those before them.
        return httpx.AsyncClient(base_url=self.origin, headers=headers, timeout=httpx.Timeout(PATIENCE, pool=None))

    async def get(self, path: str, key: str | None = AUDITOR, **parameters: Any) -> httpx.Response:
        async with self.client(key) as client:
            return await client.get(path, params=parameters or None)

    async def put(self, **fields: Any) -> str:
        """Something on record; its id."""
        happening = RecordedEvent(**{"kind": Kind.LEASE_GRANTED, "caller": "ann", "resource": "job/1", **fields})
        identifier, _ = await record.record_event(self.database, happening)
        return str(identifier)


@asynccontextmanager
async def watched(dsn: str, **sections: Any) -> AsyncIterator[Watched]:
    database = patient(dsn)
    try:
        events = Events()
        async with running(config(dsn, **{"callers": CALLERS, **sections}), events) as origin:
            yield Watched(origin, database, events)
    finally:
        await database.close()


HOSTILE = (
    "<script>alert(1)</script>",
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2",
    "@SUM(A1)",
    "\tx",
    "\rx",
    "\uff1d1+1",
    '"; DROP TABLE',
    "a,b",
    "two\nlines",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe",
    "zero\u200bwidth",
    "\x9b31m",
    "\\.",
    "\u2028\x85",
)
"""Names that act as code somewhere, unless a reader escapes them."""


async def refused(database: Database, holder: str, caller: str = "ann", resource: str = "job/1") -> None:
    """A refusal with names that no plane would let in, as another version of the gateway may have done."""
    await database.fetch_write(
        "INSERT INTO fencing.intake (kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, "
        "method, target, client, request_id, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, "
        "details) VALUES ('rejection', 'tables', $1, $2, 'token-stale', true, 0, 33, $1, $3, 'PATCH', $1, $1, $1, "
        "2, 34, $1, $1, clock_timestamp() - interval '5 s', jsonb_build_object('name', $1::text))",
        holder,
        resource,
        caller,
    )
