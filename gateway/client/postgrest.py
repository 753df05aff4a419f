"""Clients of tables that write under a lock: postgrest's own, over a fenced httpx client."""

from typing import TYPE_CHECKING

import httpx

from gateway.client.extras import needs

if TYPE_CHECKING:
    from postgrest import AsyncPostgrestClient, SyncPostgrestClient


def async_client(fenced: httpx.AsyncClient, url: str) -> "AsyncPostgrestClient":
    """Over ``fenced``, which is closed with it."""
    with needs("client"):
        from postgrest import AsyncPostgrestClient  # noqa: PLC0415 - slow to load, and not everybody's

    return AsyncPostgrestClient(f"{url}/v1/tables", headers={}, http_client=fenced)


def sync_client(fenced: httpx.Client, url: str) -> "SyncPostgrestClient":
    """The same for threads."""
    with needs("client"):
        from postgrest import SyncPostgrestClient  # noqa: PLC0415

    return SyncPostgrestClient(f"{url}/v1/tables", headers={}, http_client=fenced)
