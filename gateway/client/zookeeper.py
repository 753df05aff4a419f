"""Tokens from ZooKeeper: the czxid of the holder's own node in the queue of the lock.

The queue is that of kazoo's ``Lock``: each holder creates an ephemeral node with a sequence number, the lowest one has
the lock, and each waiter watches the one before it. The transaction that created a node is its czxid, so each owner's
is higher than all earlier owners'; the sequence number itself ends at 2^31 and is no token (docs/sources.md).

Each hold has a session of its own, so that its time to live is its own, and so that closing the session gives back all
that an acquire may have left. kazoo keeps a session alive from a thread of its own, for as long as the process runs.
"""

import asyncio
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import anyio

from gateway.client.clock import Clock, now
from gateway.client.errors import LockLost, NotAcquired, Unavailable
from gateway.client.extras import needs
from gateway.client.source import Held, Mode
from gateway.client.zookeeper_session import Session

# Seconds that giving back may take after a cancelled or failed acquire. The session ends by itself otherwise.
_GRACE: Final = 2.0
_CONTENDER: Final = re.compile(r"__r?lock__(-?\d+)$")
# Sequence numbers below this one are as high as they are late.
_ORDERLY: Final = 2**31 - 2**20


class ZooKeeperSource:
    """Locks in ZooKeeper 3.5 or newer, by kazoo.

    ``hosts``: ``host:2181,other:2181``. ``root``: the node below which locks are. ``username`` and ``password``: the
    scheme ``digest``; nodes then belong to that user alone. ``timeout``: seconds for one request, or to connect.
    ``options``: more arguments of ``KazooClient``, such as ``use_ssl``, ``ca``, ``sasl_options``.

    A session lasts between 2 and 20 ticks of the server, 4 to 40 seconds as it is installed, whatever ``ttl`` asks for.
    Each hold and each waiter takes a connection: mind ``maxClientCnxns``, which is 60 for one address.
    """

    def __init__(
        self,
        hosts: str,
        *,
        root: str = "/fencing",
        username: str | None = None,
        password: str | None = None,
        timeout: float = 5.0,
        clock: Clock = now,
        **options: Any,
    ) -> None:
        with needs("zookeeper"):
            from kazoo import security  # noqa: PLC0415 - a missing extra is told when the source is made
        self._hosts = hosts
        self._root = root.rstrip("/")
        self._timeout = timeout
        self._clock = clock
        self._options = dict(options)
        if username is not None:
            self._options["auth_data"] = [("digest", f"{username}:{password or ''}")]
            self._options["default_acl"] = security.CREATOR_ALL_ACL
        self._open: set[Session] = set()

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        """Get the lock. Each call is a hold of its own, also for the same ``holder``."""
        if mode != "exclusive":
            raise ValueError("A lock in ZooKeeper is exclusive.")
        give_up = None if wait is None else self._clock() + wait
        session = Session(self._hosts, ttl, self._timeout, self._options)
        self._open.add(session)
        try:
            await session.connect()
            # One node for each resource: what is in its name must not become a path.
            parent = f"{self._root}/{quote(resource, safe='').replace('.', '%2E')}"
            return await self._queued(_Queue(session, parent), resource, holder, give_up)
        except BaseException:
            with anyio.move_on_after(_GRACE, shield=True):
                await self._abandoned(session)
            raise

    async def renew(self, held: Held, ttl: float) -> Held:  # noqa: ARG002 - the signature is that of all sources
        """See that the node is there; asking keeps the session alive for the time that the server grants it."""
        node = _node(held)
        before = self._clock()
        if await node.session.created(node.path) != held.value:
            raise LockLost(f"ZooKeeper does not have the lock {held.resource} for this holder any more.")
        return Held(held.resource, held.holder, held.value, before + node.session.lasts, handle=node)

    async def release(self, held: Held) -> None:
        node = _node(held)
        try:
            await node.session.delete(node.path)
        finally:
            await self._closed(node.session)

    async def holds(self, held: Held) -> bool:
        node = _node(held)
        await node.session.catch_up(node.path)
        return await node.session.created(node.path) == held.value

    async def aclose(self) -> None:
        """Close all sessions, and with them all holds: here they do not survive this."""
        for session in tuple(self._open):
            await self._closed(session)

    async def _queued(self, queue: "_Queue", resource: str, holder: str, give_up: float | None) -> Held:
        path, czxid = await queue.join(holder)
        while True:
            before = self._clock()
            predecessor = await queue.predecessor(path)
            if predecessor is None:
                return Held(resource, holder, czxid, before + queue.session.lasts, handle=_Node(queue.session, path))
            left = None if give_up is None else give_up - self._clock()
            if left is not None and left <= 0:
                raise NotAcquired(resource, holder=await queue.holder())
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await queue.session.until_gone(predecessor)

    async def _abandoned(self, session: Session) -> None:
        try:
            # Where the connection is broken, the server hears of the end only through another one.
            await session.heard()
        finally:
            await self._closed(session)

    async def _closed(self, session: Session) -> None:
        self._open.discard(session)
        await session.close()


@dataclass(frozen=True, slots=True)
class _Node:
    session: Session
    path: str


class _Queue:
    """The nodes below one lock's."""

    def __init__(self, session: Session, parent: str) -> None:
        self.session = session
        self._parent = parent

    async def join(self, holder: str) -> tuple[str, int]:
        """Our own node: its path, and its czxid."""
        # The name is kazoo's, so that its own locks and these exclude each other.
        return await self.session.create(f"{self._parent}/{uuid.uuid4().hex}__lock__", holder.encode())

    async def predecessor(self, path: str) -> str | None:
        """The node before ours. Raises ``Unavailable`` where ours is gone: its session has ended while it waited."""
        ages = await self._ages()
        own = ages.get(path.rpartition("/")[2])
        if own is None:
            raise Unavailable("The session of the place in the queue ended while it was waiting.")
        earlier = [name for name, age in ages.items() if age < own]
        return f"{self._parent}/{max(earlier, key=ages.__getitem__)}" if earlier else None

    async def holder(self) -> str | None:
        """Who is first in the queue, where that can be told."""
        ages = await self._ages()
        data = await self.session.data(f"{self._parent}/{min(ages, key=ages.__getitem__)}") if ages else None
        return None if data is None else data.decode(errors="replace")

    async def _ages(self) -> dict[str, int]:
        """The contenders, each with a number that is higher the later it came."""
        names = await self.session.children(self._parent)
        numbers = {name: int(found[1]) for name in names if (found := _CONTENDER.search(name))}
        if all(0 <= number < _ORDERLY for number in numbers.values()):
            return numbers
        # At its end the sequence says nothing of the order: ZooKeeper 3.8 gives its last number again and again.
        ages = {name: await self.session.created(f"{self._parent}/{name}") for name in numbers}
        return {name: age for name, age in ages.items() if age is not None}


def _node(held: Held) -> _Node:
    if not isinstance(held.handle, _Node):
        raise TypeError(f"The hold of {held.resource} is not one of ZooKeeper.")
    return held.handle
