"""A gateway whose record one caller with the right to audit reads, and two callers without it; hostile names."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner, Result

from gateway.commands.audit import audit
from gateway.db import record
from gateway.db.database import Database
from gateway.fencing.record import Kind, RecordedEvent
from tests.patience import patient
from tests.record.entries import put
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
    now = await database.now()
    named = ("rule", "holder", "target", "client", "request_id", "fence_holder", "fence_caller")
    names: dict[str, Any] = dict.fromkeys(named, holder)
    await put(
        database,
        sealed=False,
        at=now,
        plane="tables",
        resource=resource,
        caller=caller,
        fence_epoch=2,
        fence_value=34,
        fence_raised_at=now - timedelta(seconds=5),
        details=json.dumps({"name": holder}),
        **names,
    )


async def unread(stage: Watched, path: str) -> socket.socket:
    """A client that has asked, and reads no more than the beginning of the answer."""
    address = urlsplit(stage.origin)
    assert address.hostname is not None
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)  # noqa: FBT003 - the signature is the library's
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (address.hostname, address.port))
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {AUDITOR}\r\n\r\n"
    await loop.sock_sendall(client, head.encode())
    assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 200")
    return client


async def run(*arguments: str | Path) -> Result:
    """``gateway audit``, beside the gateway that it asks."""
    return await asyncio.to_thread(lambda: CliRunner().invoke(audit, [str(one) for one in arguments]))


@pytest.fixture
async def stage(dsn: str) -> AsyncIterator[Watched]:
    async with watched(dsn) as one:
        yield one


@pytest.fixture
def audited(stage: Watched, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """The gateway that commands ask, as an auditor."""
    monkeypatch.setenv("GATEWAY_URL", stage.origin)
    monkeypatch.setenv("GATEWAY_API_KEY", AUDITOR)
    return stage
