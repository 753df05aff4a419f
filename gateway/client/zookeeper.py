"""Tokens from ZooKeeper: the czxid of the holder's own node in the queue of the lock.

The queue is that of kazoo's ``Lock``. Each holder creates an ephemeral node with a sequence number. The lowest one has
the lock, and each waiter watches the node before its own. The czxid is the transaction that created a node, so each
owner's is higher than all earlier owners'. The sequence number itself ends at 2^31 and is no token (docs/sources.md).

Each hold has its own session, and so its own time to live. Closing the session also gives back all that an acquire may
have left. kazoo keeps a session alive from its own thread, for as long as the process runs.
"""

import asyncio
import logging
import math
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from gateway.client.errors import NotAcquired, Refused, Unavailable, needs
from gateway.client.source import Attempt, Clock, Held, LockService, now

# The shortest session that a server grants as it is installed: what counts until a server has named another.
_SHORTEST: Final = 4.0


class Session:
    """A client of kazoo's with one session, of about ``ttl`` seconds. ``timeout``: seconds for one request.

    Raises ``Unavailable`` and ``Refused``.
    """

    def __init__(self, hosts: str, ttl: float, timeout: float, options: dict[str, Any]) -> None:
        from kazoo.client import KazooClient  # noqa: PLC0415 - an extra: the source has looked whether it is there

        self._log = _Log(min(ttl, _SHORTEST))
        # As it comes, kazoo waits for up to a minute before it connects again: longer than any session lasts.
        again = {"max_tries": -1, "delay": 0.05, "max_delay": 1.0}
        handler = _handler(timeout, lambda: self._kazoo.connected)
        self._kazoo = KazooClient(
            **{"hosts": hosts, "timeout": ttl, "connection_retry": again, "logger": self._log, "handler": handler}
            | options
        )
        self._hosts = hosts
        self._timeout = timeout
        self._connected = False

    @property
    def lasts(self) -> float:
        """Seconds from the last word that the server hears to the end of the session."""
        return self._log.negotiated

    async def connect(self) -> None:
        with self._changes() as changed:
            self._kazoo.start_async()
            try:
                async with asyncio.timeout(self._timeout):
                    while not self._kazoo.connected:
                        if self._kazoo.client_state == "AUTH_FAILED":
                            raise Refused("ZooKeeper does not let this user in.", status=401)
                        await changed.wait()
                        changed.clear()
            except TimeoutError as error:
                raise Unavailable(f"ZooKeeper at {self._hosts} cannot be reached: no session in time.") from error
        self._connected = True

    async def heard(self) -> None:
        """Return once the server answers again; at once, where there never was a session or is none any more."""
        while self._connected:
            try:
                await self._ask(self._kazoo.exists_async, "/")
            except _Absent:
                return
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return

    async def create(self, path: str, data: bytes) -> tuple[str, int]:
        """Create an ephemeral, sequential node; return its path and its czxid."""
        made, stat = await self._ask(
            self._kazoo.create_async, path, data, ephemeral=True, sequence=True, makepath=True, include_data=True
        )
        return str(made), int(stat.czxid)

    async def created(self, path: str) -> int | None:
        """Return the czxid of a node; None if there is none."""
        try:
            stat = await self._ask(self._kazoo.exists_async, path)
        except _Absent:
            return None
        return None if stat is None else int(stat.czxid)

    async def children(self, path: str) -> list[str]:
        try:
            return list(await self._ask(self._kazoo.get_children_async, path))
        except _Absent:
            return []

    async def data(self, path: str) -> bytes | None:
        try:
            data, _ = await self._ask(self._kazoo.get_async, path)
        except _Absent:
            return None
        return bytes(data)

    async def catch_up(self, path: str) -> None:
        """Let the server we are connected to see what its leader has seen."""
        with suppress(_Absent):
            await self._ask(self._kazoo.sync_async, path)

    async def delete(self, path: str) -> None:
        with suppress(_Absent):
            await self._ask(self._kazoo.delete_async, path)

    async def until_gone(self, path: str) -> None:
        """Return once the node is gone, or once something has happened to the session: look again then."""
        with self._changes() as changed, suppress(_Absent):
            loop = asyncio.get_running_loop()
            await self._ask(self._kazoo.get_async, path, watch=lambda _: _in(loop, changed.set))
            await changed.wait()

    async def close(self) -> None:
        """End the session, and with it what it has made. Begun is as good as done, also where this is cancelled."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            try:
                self._kazoo.stop()
                self._kazoo.close()
            finally:
                _in(loop, closed.set)

        # A server that is gone is waited for, for ten seconds: not by the end of the program.
        threading.Thread(target=stop, daemon=True).start()
        await closed.wait()

    @contextmanager
    def _changes(self) -> Iterator[asyncio.Event]:
        """Set whenever the connection or the session has come or gone."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object) -> None:
            _in(loop, changed.set)

        self._kazoo.add_listener(wake)
        try:
            yield changed
        finally:
            self._kazoo.remove_listener(wake)

    async def _ask(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any) -> None:
            if not answered.done():
                if result.exception is None:
                    answered.set_result(result.value)
                else:
                    answered.set_exception(result.exception)

        with _translated(self._hosts):
            method(*arguments, **options).rawlink(lambda result: _in(loop, settle, result))
            async with asyncio.timeout(self._timeout):
                return await answered


def _handler(timeout: float, connected: Callable[[], bool]) -> Any:
    """Return a handler for kazoo that gives up a connection without a session after ``timeout`` seconds.

    A ZooKeeper that starts takes connections whose first request it never answers. kazoo waits for that answer as long
    as a session lasts, and so loses the session.
    """
    from kazoo.handlers.threading import SequentialThreadingHandler  # noqa: PLC0415 - an extra, as above

    class Handler(SequentialThreadingHandler):  # type: ignore[misc]
        def create_connection(self, *arguments: Any, **options: Any) -> Any:
            made = super().create_connection(*arguments, **options)

            def give_up() -> None:
                if not connected():
                    with suppress(OSError):
                        made.shutdown(socket.SHUT_RDWR)

            timer = threading.Timer(timeout, give_up)
            timer.daemon = True
            timer.start()
            return made

    return Handler()


class _Absent(Unavailable):
    """There is no such node; or no such session any more, and so none of the nodes it has made."""

    def __init__(self) -> None:
        super().__init__("The session with ZooKeeper has ended.")


class _Log(logging.LoggerAdapter[logging.Logger]):
    """kazoo's log. It is the only place where kazoo says how long a session the server has granted."""

    def __init__(self, negotiated: float) -> None:
        super().__init__(logging.getLogger(__name__))
        self.negotiated = negotiated

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if "negotiated session timeout" in str(msg) and len(args) > 2 and isinstance(args[2], int):
            self.negotiated = args[2] / 1000
        super().log(level, msg, *args, **kwargs)


def _in(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """From one of kazoo's threads into the loop; nowhere, where that has been closed meanwhile."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


@contextmanager
def _translated(hosts: str) -> Iterator[None]:
    from kazoo import exceptions  # noqa: PLC0415 - an extra: the source has looked whether it is there

    try:
        yield
    except (exceptions.NoNodeError, exceptions.SessionExpiredError) as error:
        raise _Absent from error
    except (exceptions.NoAuthError, exceptions.AuthFailedError, exceptions.InvalidACLError) as error:
        raise Refused("ZooKeeper does not allow this user that.", status=403) from error
    except (exceptions.KazooException, TimeoutError) as error:
        raise Unavailable(f"ZooKeeper at {hosts} cannot be reached: {type(error).__name__}.") from error


_CONTENDER: Final = re.compile(r"__r?lock__(-?\d+)$")
# Sequence numbers below this one are as high as they are late.
_ORDERLY: Final = 2**31 - 2**20


@dataclass(slots=True)
class _Place:
    """A hold or a waiter: its session, its node and the node's czxid, and the node before it."""

    session: Session
    parent: str
    path: str = ""
    czxid: int = 0
    before: str | None = None
    is_held: bool = False


class ZooKeeperSource(LockService[_Place]):
    """Locks in ZooKeeper 3.5 or newer, by kazoo.

    ``hosts``: ``host:2181,other:2181``. ``root``: the node below which locks are. ``username`` and ``password``: the
    scheme ``digest``; nodes then belong to that user alone. ``timeout``: seconds for one request, or to connect.
    ``options``: more arguments of ``KazooClient``, such as ``use_ssl``, ``ca``, ``sasl_options``.

    A session lasts between 2 and 20 ticks of the server, 4 to 40 seconds as it is installed, whatever ``ttl`` asks for.
    Each hold and each waiter takes a connection: mind ``maxClientCnxns``, which is 60 for one address.
    """

    service = "ZooKeeper"
    handles = _Place
    queues = True

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
        super().__init__(clock)
        with needs("zookeeper"):
            from kazoo import security  # noqa: PLC0415 - a missing extra is told when the source is made
        self._hosts = hosts
        self._root = root.rstrip("/")
        self._timeout = timeout
        self._options = dict(options)
        if username is not None:
            self._options["auth_data"] = [("digest", f"{username}:{password or ''}")]
            self._options["default_acl"] = security.CREATOR_ALL_ACL
        self._open: set[Session] = set()

    async def _take(self, attempt: Attempt[_Place]) -> Held | NotAcquired:
        place = attempt.handle
        if place is None:
            # One node for each resource: what is in its name must not become a path.
            parent = f"{self._root}/{quote(attempt.resource, safe='').replace('.', '%2E')}"
            session = Session(self._hosts, attempt.ttl, self._timeout, self._options)
            attempt.handle = place = _Place(session, parent)
            self._open.add(session)
            await session.connect()
            # The name is kazoo's, so that its own locks and these exclude each other.
            name = f"{parent}/{uuid.uuid4().hex}__lock__"
            place.path, place.czxid = await session.create(name, attempt.holder.encode())
        asked = self._clock()
        predecessor = await _predecessor(place)
        if predecessor is None:
            place.is_held = True
            return attempt.held(place.czxid, asked + place.session.lasts)
        place.before = predecessor
        over = self._clock() >= attempt.give_up
        return NotAcquired(attempt.resource, holder=await _first(place) if over else None)

    async def _pause(self, attempt: Attempt[_Place], refused: NotAcquired, left: float) -> None:  # noqa: ARG002
        assert attempt.handle is not None
        assert attempt.handle.before is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(None if left == math.inf else left):
                await attempt.handle.session.until_gone(attempt.handle.before)

    async def _keep(self, held: Held, handle: _Place, ttl: float) -> float | None:  # noqa: ARG002
        # Asking keeps the session alive for the time that the server grants it.
        return handle.session.lasts if await handle.session.created(handle.path) == held.value else None

    async def _give_back(self, handle: _Place) -> None:
        try:
            if handle.is_held:
                await handle.session.delete(handle.path)
            else:
                # If the connection is broken, the server learns of the end only through another one.
                await handle.session.heard()
        finally:
            await self._closed(handle.session)

    async def holds(self, held: Held) -> bool:
        handle = self._handle(held)
        await handle.session.catch_up(handle.path)
        return await handle.session.created(handle.path) == held.value

    async def aclose(self) -> None:
        """Close all sessions, and with them all holds: here they do not survive this."""
        for session in tuple(self._open):
            await self._closed(session)

    async def _closed(self, session: Session) -> None:
        self._open.discard(session)
        await session.close()


async def _predecessor(place: _Place) -> str | None:
    """Return the node before ours. Raise ``Unavailable`` if ours is gone: its session has ended while it waited."""
    ages = await _ages(place)
    own = ages.get(place.path.rpartition("/")[2])
    if own is None:
        raise Unavailable("The session of the place in the queue ended while it was waiting.")
    earlier = [name for name, age in ages.items() if age < own]
    return f"{place.parent}/{max(earlier, key=ages.__getitem__)}" if earlier else None


async def _first(place: _Place) -> str | None:
    ages = await _ages(place)
    data = await place.session.data(f"{place.parent}/{min(ages, key=ages.__getitem__)}") if ages else None
    return None if data is None else data.decode(errors="replace")


async def _ages(place: _Place) -> dict[str, int]:
    """Return the contenders, each with a number that grows in the order of their arrival."""
    names = await place.session.children(place.parent)
    numbers = {name: int(found[1]) for name in names if (found := _CONTENDER.search(name))}
    if all(0 <= number < _ORDERLY for number in numbers.values()):
        return numbers
    # At its end the sequence says nothing of the order: ZooKeeper 3.8 gives its last number again and again.
    ages = {name: await place.session.created(f"{place.parent}/{name}") for name in numbers}
    return {name: age for name, age in ages.items() if age is not None}
