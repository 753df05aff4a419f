"""One lock, from its acquisition to its release: barrier, renewal, loss, and the clients that write under it."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import httpx

from gateway.client import guarded, http, s3
from gateway.client.api import Retries, meant, said
from gateway.client.cancellation import Body, finish
from gateway.client.errors import FencingError, IssuerWentBackwards, Stale, Unavailable, needs
from gateway.client.hold import Hold, State
from gateway.client.http import AsyncTransport
from gateway.client.keeper import Keeper
from gateway.client.leases import Leases
from gateway.client.postgres import DatabaseLeases
from gateway.client.s3 import Credentials, Read, aws_environment
from gateway.client.source import Held, Source
from gateway.fencing.token import Token

if TYPE_CHECKING:
    import psycopg
    from postgrest import AsyncPostgrestClient
    from types_aiobotocore_s3.client import S3Client as AsyncS3Client

OnLoss: TypeAlias = Literal["cancel", "tell"]

_LOG = logging.getLogger("gateway.client")

RELEASE = 5.0
"""Seconds that giving the lock back may take."""

LIMIT = 5.0
"""Seconds that ending the sessions of one database may take."""

_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE position(%s IN application_name) > 0 AND pid <> pg_backend_pid()"


class Lock(Hold):
    """``async with client.lock("order/5") as lock``, once: ask the client for another one."""

    def __init__(self, state: State, source: Source, on_loss: OnLoss, on_lost: Callable[[], None] | None) -> None:
        super().__init__(state)
        self._source = source
        self._on_loss = on_loss
        self._on_lost = on_lost
        self._body: Body | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lost = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._http: httpx.AsyncClient | None = None
        self._postgrest: AsyncPostgrestClient | None = None

    @property
    def lost(self) -> asyncio.Event:
        """Set when the lock is lost: ``lock.lost.is_set()``, ``await lock.lost.wait()``."""
        if self._kept.is_overdue():
            # By the clock as it stands: an event loop that was blocked has not looked at it yet.
            self._lost.set()
        return self._lost

    @property
    def http(self) -> httpx.AsyncClient:
        """An httpx client whose base URL is the gateway's. Raises ``Stale`` where the fence has refused a request."""
        if self._http is None:
            self._http = self._client()
        return self._http

    @property
    def postgrest(self) -> "AsyncPostgrestClient":
        """A postgrest client of the gateway's tables. Needs the extra ``client``."""
        if self._postgrest is None:
            self._postgrest = http.async_postgrest_client(self._client(), self.state.api.url)
        return self._postgrest

    def s3(self, **config: Any) -> "AbstractAsyncContextManager[AsyncS3Client]":
        """``async with lock.s3() as s3``: an aiobotocore client; ``config`` is for its Config.

        Needs the extra ``client``. Its type is that of types-aiobotocore, where that is installed.
        """
        return s3.aiobotocore_client(self, self.state.endpoint, config)

    async def credentials(self, pattern: str | None = None, ttl: int = 3600, read: Read = "own") -> Credentials:
        """Return temporary S3 keys that write under this lock, to its resource or to the ones that ``pattern`` covers.

        ``read``: ``"own"`` for the same; patterns of more resources to read; ``"all"`` for every bucket that the caller
        reads. ``ttl``: seconds, 60 to 43,200. The keys outlive the block, until another holder takes over or they
        expire.
        """
        self.check()
        return await s3.issue_credentials(self.state.api, self.headers, pattern, ttl, read)

    async def environment(
        self,
        *,
        s3: bool = True,
        pattern: str | None = None,
        ttl: int = 3600,
        read: Read = "own",
        inherited: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Return the environment variables for a command that is to write under this lock.

        ``s3``: add temporary S3 keys, and the gateway as AWS' endpoint; ``pattern``, ``ttl`` and ``read`` are theirs.
        ``inherited``: the rest of its environment. PGOPTIONS and PGAPPNAME of it are kept, with the lock added.
        """
        keys = await self.credentials(pattern, ttl, read) if s3 else None
        return {
            **aws_environment(self.headers, self.state.endpoint.url, keys),
            **self.postgres_environment(inherited or {}),
        }

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("A lock can be entered once: ask the client for another one.")
        self._loop, self._body = asyncio.get_running_loop(), Body()
        wanted = self.state
        if not isinstance(self._source, (Leases, DatabaseLeases)):
            wanted.epoch = await self._epoch()
        held = await self._source.acquire(
            wanted.resource, holder=wanted.holder, ttl=wanted.ttl, wait=wanted.wait, mode=wanted.mode
        )
        pause = self._source.pause if isinstance(self._source, Leases) else asyncio.sleep
        keeper = Keeper(self._source, held, wanted.ttl, wanted.clock, self._announce, pause)
        wanted.keeper = keeper
        try:
            await keeper.start()
            if wanted.barrier:
                await self._stand(held)
            keeper.check()
        except BaseException as error:
            await self._leave(keeper, error)
            raise
        guarded.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(self._kept, error)

    async def _epoch(self) -> int:
        """Read the fence's epoch for a source without epochs, *before* the lock is acquired.

        Read afterwards, it could be newer than the number: a zombie's token would pass for a token of the new epoch.
        """
        fence = meant(await self.state.api.ask("GET", f"/v1/fences/{self.resource}"), self.resource)
        token = fence["token"]
        return 0 if token is None else Token.parse(token).epoch

    async def _stand(self, held: Held) -> None:
        """Raise the fence: once this has returned, nothing older takes effect. It retries for the time of the lease.

        Raises ``IssuerWentBackwards``; ``Stale`` where the lock is not held any more; ``Unavailable``.
        """
        retries = Retries(self.state.ttl)
        while True:
            try:
                if isinstance(self._source, DatabaseLeases):
                    await self._source.barrier(held, self.token, self.headers.get("Fencing-Holder"))
                    return
                fence = await self.state.api.ask("POST", f"/v1/fences/{self.resource}/barrier", said(self.headers))
            except Stale as refusal:
                raise await self._behind(held, refusal) from refusal
            except Unavailable as error:
                # A write of an older holder that is under way has to land first, or to be given up.
                await retries.pause(error)
            else:
                meant(fence, self.resource)
                return

    async def _behind(self, held: Held, refusal: Stale) -> FencingError:
        """Return the error for a refusal of a token that was just issued."""
        token = Token.parse(self.token)
        if held.epoch is None and refusal.fence is not None and Token.parse(refusal.fence).epoch > token.epoch:
            return Unavailable(f"A new epoch of {self.resource} began while the lock was acquired.")
        try:
            still = await self._source.holds(held)
        except Unavailable:
            still = False
        if not still:
            return refusal
        return IssuerWentBackwards(
            f"The lock service says that {held.holder} holds {self.resource} with the token {token}, "
            f"but the fence is at {refusal.fence} already.",
            code=refusal.code,
            facts=refusal.facts,
        )

    async def _leave(self, keeper: Keeper, error: BaseException | None) -> None:
        """Give everything back. Raise ``LockLost`` in place of our own cancellation, or of an end that looks like
        success.

        The caller raises any other error that left the block, and a cancellation by others.
        """
        assert self._body is not None
        guarded.leave(self)
        unnoticed = error is None and self._on_loss == "cancel"
        loss = keeper.loss() if self._body.left(error) or unnoticed else None
        self._body = None
        if not keeper.is_copy():
            try:
                await keeper.stop()
                if self._ending is not None:
                    await asyncio.wait((self._ending,), timeout=LIMIT)
            finally:
                await finish(self._source.release(keeper.held), RELEASE, f"Releasing {self.resource}")
        if loss is not None:
            raise loss

    def _announce(self) -> None:
        """Note that the lock is lost. May be called from any thread."""
        assert self._loop is not None
        if self._on_lost is not None:
            try:
                self._on_lost()
            except Exception:  # noqa: BLE001 - the program's own trouble must not end the renewals
                _LOG.exception("The on_lost callback of %s has failed", self.resource)
        try:
            within = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            within = False
        if within:
            self._tell()
        else:
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._lost.set()
        if self._ending is None and self.state.databases:
            self._ending = asyncio.ensure_future(self._end_sessions())
        if self._body is not None and self._on_loss == "cancel":
            self._body.cancel()

    async def _end_sessions(self) -> None:
        """Best effort: the guard of a table refuses what they would write."""
        work = (end_sessions(dsn, self.state.tag) for dsn in self.state.databases)
        for failure in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(failure, Exception):
                # The text of a driver's error may repeat a connection string.
                _LOG.warning("Sessions of %s were not ended: %s", self.resource, type(failure).__name__)

    def _client(self) -> httpx.AsyncClient:
        # It holds no connection of its own, so there is nothing to close.
        return httpx.AsyncClient(
            base_url=self.state.api.url,
            timeout=self.state.api.session().timeout,
            transport=AsyncTransport(self.state.api.session, self.presenter()),
        )


async def end_sessions(dsn: str, tag: str) -> int:
    """End the sessions whose ``application_name`` contains the tag; return their number.

    It saves a successor's wait: a session that has written holds its fence until its transaction ends.

    ``dsn`` connects as the sessions do: a role may end its own sessions, and those of roles that it is a member of. All
    others stay. Needs the extra ``postgres``. Raise ``psycopg.Error`` if the database cannot be reached.
    """
    with needs("postgres"):
        import psycopg  # noqa: PLC0415 - an extra
    connection = await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, prepare_threshold=None, connect_timeout=int(LIMIT), options="", application_name="fencing"
    )
    async with connection:
        rows = await (await connection.execute(_SESSIONS, (tag,))).fetchall()
        return sum([await _ended(connection, pid) for (pid,) in rows])


async def _ended(connection: "psycopg.AsyncConnection[tuple[int]]", pid: int) -> bool:
    import psycopg  # noqa: PLC0415 - an extra

    try:
        await connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
    except psycopg.errors.InsufficientPrivilege:
        _LOG.warning("The session %s of a lost lock stays: it is another role's.", pid)
        return False
    return True
