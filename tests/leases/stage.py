"""Gateways of one database, below HTTP: their lease services, and the database's time, which tests let pass at will."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from gateway.db.database import Database
from gateway.db.notifications import LEASES, listening
from gateway.db.servers import Servers
from gateway.fencing.lease import Lease, LockMode, LockRequest, LockState, Renewal
from gateway.leases.service import LeaseService, LeaseTimes
from tests.running import Events
from tests.waiting import PATIENCE

QUICK = LeaseTimes(attended=60.0, beat=0.2, look=0.1, collect=PATIENCE, linger=PATIENCE, sweep=60.0)
"""The gateways poll often. Leases and places lapse only when a test lets time pass, however slow the machine is."""
DEAF_TO_TIME = replace(QUICK, beat=120.0, look=120.0, attended=240.0)
"""No beat finds anything out: waiters advance only by announcements and by looks at the right moment."""


@dataclass
class Gateway:
    """One gateway's lease service, what it has announced, and its door to the database, which counts statements."""

    dsn: str
    service: LeaseService
    database: Database
    events: Events
    statements: list[str] = field(default_factory=list)

    async def acquire(self, resource: str, holder: str, *, caller: str = "writer", **wish: Any) -> Lease:
        return (await self.service.acquire(wanted(resource, holder, caller=caller, **wish))).lease

    async def release(self, lease: Lease) -> None:
        await self.service.release(lease.resource, lease.id, lease.caller)

    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        return await self.service.renew(Renewal(lease.resource, lease.id, lease.caller, ttl))

    async def until(self, resource: str, condition: Callable[[LockState], bool]) -> LockState:
        """How the lock stands, once it stands so."""
        async with asyncio.timeout(PATIENCE):
            while not condition(view := await self.service.inspect(resource)):
                await asyncio.sleep(0.005)
        return view

    async def waits(self, resource: str, holder: str, **wish: Any) -> "asyncio.Task[Lease]":
        """Start to wait for a lock, and return the task once it is in the queue."""
        before = (await self.service.inspect(resource)).waiters
        wish = {"wait": PATIENCE, **wish}
        task = asyncio.create_task(self.acquire(resource, holder, **wish))
        await self.until(resource, lambda view: view.waiters > before)
        return task


Pair: TypeAlias = tuple[Gateway, Gateway]


def wanted(
    resource: str, holder: str, *, caller: str = "writer", ttl: float = 30.0, mode: str = "exclusive", **wish: Any
) -> LockRequest:
    return LockRequest(resource, holder, caller, ttl, LockMode(mode), **wish)


@asynccontextmanager
async def gateway(
    dsn: str, times: LeaseTimes = QUICK, *, listens: bool = True, running: bool = True
) -> AsyncIterator[Gateway]:
    """A gateway. One that is not ``running`` answers but hears nothing and is not heard of, as if it were paused."""
    long = 2 * PATIENCE
    database, events = Database(dsn, lock_timeout=long, connect_timeout=long), Events()
    service = LeaseService(
        database, events, listen=partial(listening, Servers(dsn, long), LEASES) if listens else None, times=times
    )
    one = Gateway(dsn, service, database, events)
    _count(database, one.statements)
    async with AsyncExitStack() as stack:
        if running:
            await stack.enter_async_context(service.running())
        if running and listens:
            async with asyncio.timeout(PATIENCE):
                while not service._heartbeat._hears:
                    await asyncio.sleep(0.005)
        yield one
        for lane in (service._acquiring, service._leaving):
            await lane.close(5.0)
    await database.close()


async def rows(one: Gateway, sql: str, *arguments: object) -> list[Any]:
    """Ask the database itself."""
    return await one.database.fetch_write(sql, *arguments)


async def pass_time(one: Gateway, resource: str, seconds: float) -> None:
    """Let the database's time go on, as far as this lock can tell."""
    by = "make_interval(secs => $2)"
    await rows(one, f"UPDATE fencing.lease SET expires_at = expires_at - {by} WHERE resource = $1", resource, seconds)
    await rows(
        one, f"UPDATE fencing.lock SET delayed_until = delayed_until - {by} WHERE resource = $1", resource, seconds
    )
    await rows(one, f"UPDATE fencing.waiter SET until = until - {by} WHERE resource = $1", resource, seconds)


async def recorded(one: Gateway, kind: str, resource: str | None) -> list[dict[str, Any]]:
    """Return the events on record about a lock."""
    found = await rows(
        one,
        "SELECT caller, holder, epoch, value, details::text FROM fencing.event "
        "WHERE kind = $1 AND resource IS NOT DISTINCT FROM $2 ORDER BY at",
        kind,
        resource,
    )
    return [dict(row) for row in found]


async def gone(tasks: "list[asyncio.Task[Lease]]") -> None:
    """These clients hang up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _count(database: Database, statements: list[str]) -> None:
    """Note every trip to the database."""
    alone: Callable[..., Awaitable[Any]] = database._alone

    async def counted(fetch: Any, lost: Any, sql: str, *others: Any) -> Any:
        statements.append(sql)
        return await alone(fetch, lost, sql, *others)

    database._alone = counted  # type: ignore[method-assign, assignment]
