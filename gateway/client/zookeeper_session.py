"""One session with ZooKeeper, awaited from asyncio: kazoo answers in threads of its own.

kazoo keeps a session alive from such a thread, for as long as the process runs.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from gateway.client.errors import Refused, Unavailable

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
        self._kazoo = KazooClient(
            **{"hosts": hosts, "timeout": ttl, "connection_retry": again, "logger": self._log} | options
        )
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
                raise Unavailable("ZooKeeper cannot be reached: no session in time.") from error
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
        """An ephemeral, sequential node: the path it got, and its czxid."""
        made, stat = await self._ask(
            self._kazoo.create_async, path, data, ephemeral=True, sequence=True, makepath=True, include_data=True
        )
        return str(made), int(stat.czxid)

    async def created(self, path: str) -> int | None:
        """The czxid of a node; None where there is none."""
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

        with _translated():
            method(*arguments, **options).rawlink(lambda result: _in(loop, settle, result))
            async with asyncio.timeout(self._timeout):
                return await answered


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
def _translated() -> Iterator[None]:
    """The library's errors as ours."""
    from kazoo import exceptions  # noqa: PLC0415 - an extra: the source has looked whether it is there

    try:
        yield
    except (exceptions.NoNodeError, exceptions.SessionExpiredError) as error:
        raise _Absent from error
    except (exceptions.NoAuthError, exceptions.AuthFailedError, exceptions.InvalidACLError) as error:
        raise Refused("ZooKeeper does not allow this user that.", status=403) from error
    except (exceptions.KazooException, TimeoutError) as error:
        raise Unavailable(f"ZooKeeper cannot be reached: {type(error).__name__}.") from error
