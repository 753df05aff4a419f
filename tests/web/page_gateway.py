"""The page over HTTP, without a browser: a gateway with an auditor, a writer, an administrator, and a record."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import httpx

from gateway.auth.callers import Callers
from gateway.auth.issuers import Issuers
from gateway.auth.provider_logins import ProviderLogins
from gateway.observe.events import ignore
from tests import running
from tests.waiting import PATIENCE

KEYS = {"auditor": "auditor-api-key", "writer": "writer-api-key", "admin": "admin-api-key"}
CALLERS: list[dict[str, object]] = [
    {"name": "auditor", "api_key": KEYS["auditor"], "groups": ["auditors"]},
    {"name": "writer", "api_key": KEYS["writer"]},
    {"name": "admin", "api_key": KEYS["admin"], "groups": ["admins"]},
]
SECRET = "public.orders/the-resource-nobody-may-see"
"""A text on record, which no answer to an unauthorised reader may contain."""


@asynccontextmanager
async def serving(dsn: str, **sections: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway; it follows no redirects."""
    config = running.config(dsn, **{"callers": CALLERS, **sections})
    async with running.running(config) as address, httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client:
        yield client


def no_logins(keys: Callers) -> ProviderLogins:
    """Return the logins at issuers where there are none."""
    issuers = Issuers([], lambda: datetime.now(UTC), ignore)
    return ProviderLogins([], issuers, keys.admit, (), (), ignore)


async def put_on_record(dsn: str, **columns: Any) -> None:
    """A refused write of ``SECRET``, with other columns where they are given."""
    row = {
        "kind": "rejection",
        "plane": "tables",
        "rule": "public.orders",
        "resource": SECRET,
        "reason": "token-stale",
        "enforced": True,
        "epoch": 0,
        "value": 33,
        "holder": "worker-a",
        "caller": "writer",
        "method": "PATCH",
        "target": "/v1/tables/orders?id=eq.5",
        "request_id": "r-1",
        **columns,
    }
    places = ", ".join(f"${index}" for index in range(1, len(row) + 1))
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"INSERT INTO fencing.intake ({', '.join(row)}) VALUES ({places})", *row.values())
    finally:
        await connection.close()


def origin(client: httpx.AsyncClient) -> dict[str, str]:
    """Return the headers that a browser sends with a form of the gateway."""
    return {"Origin": str(client.base_url).rstrip("/")}


async def log_in(client: httpx.AsyncClient, caller: str = "auditor", **fields: str) -> httpx.Response:
    """Send the login form; a session stays with the client."""
    return await client.post("/ui/login", data={"api_key": KEYS[caller], **fields}, headers=origin(client))
