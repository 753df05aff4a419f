"""The client for programs without an event loop: the same locks, kept in an event loop in a thread of its own.

Renewals continue while a thread computes or sleeps. A thread cannot be cancelled from outside. So the program learns of
a lost lock at the next request of a fenced client, at ``check``, or at the end of the block.
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import httpx
from anyio.from_thread import BlockingPortal

from gateway.client import client as asynchronous
from gateway.client import guarded, http
from gateway.client import lock as locks
from gateway.client.client import LIMITS, trusted
from gateway.client.errors import Unavailable
from gateway.client.hold import Hold
from gateway.client.http import Transport
from gateway.client.s3 import Certificate, Credentials, Read
from gateway.client.source import Clock, Mode, Source, now

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from postgrest import SyncPostgrestClient

OnLoss: TypeAlias = Literal["raise", "tell"]

LEAVING = 6.0
"""Seconds to wait for a lock to be given back: a little longer than that is given to it."""


class FencedClient:
    """``gateway.client.FencedClient`` for threads, with the same arguments. It can be shared by them."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        holder: str | None = None,
        region: str = "us-east-1",
        authority: str | None = None,
        certificate: Certificate | None = None,
        timeout: float = 30.0,
        clock: Clock = now,
    ) -> None:
        self._client = asynchronous.FencedClient(
            url, api_key=api_key, access_key_id=access_key_id, secret_access_key=secret_access_key, holder=holder,
            region=region, authority=authority, certificate=certificate, timeout=timeout, clock=clock,
        )  # fmt: skip
        self._make_session = partial(
            httpx.Client, timeout=timeout, limits=LIMITS, verify=trusted(authority, certificate)
        )
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._portal: BlockingPortal | None = None
        self._session: httpx.Client | None = None
        self._entered: set[Lock] = set()
        self._process = os.getpid()

    def lock(
        self,
        resource: str,
        *,
        source: Source | None = None,
        ttl: float = 30.0,
        wait: float | None = None,
        mode: Mode = "exclusive",
        barrier: bool = True,
        on_loss: OnLoss = "raise",
        holder: str | None = None,
    ) -> "Lock":
        """Return a lock to be entered: ``with client.lock("order/5") as lock``. See the asynchronous client's.

        ``on_loss``: "raise" ``LockLost`` at the end of the block in which the lock was lost; or only "tell".
        """
        lost = threading.Event()
        kept = self._client.lock(
            resource, source=source, ttl=ttl, wait=wait, mode=mode, barrier=barrier, on_loss="tell", holder=holder,
            on_lost=lost.set,
        )  # fmt: skip
        return Lock(self, kept, lost, on_loss)

    @property
    def url(self) -> str:
        """The address of the gateway."""
        return self._client.url

    def close(self) -> None:
        """Leave the locks that are still held, and close all connections."""
        self._start_anew_if_forked()
        with self._guard:
            entered = tuple(self._entered)
        # Waiting locks first: a lock that is given back must not go to them.
        for lock in sorted(entered, key=Lock.is_held):
            lock.leave()
        with self._guard:
            portal, self._portal, session, self._session = self._portal, None, self._session, None
            thread, self._thread = self._thread, None
            if portal is not None and thread is not None:
                try:
                    portal.call(self._client.aclose)
                finally:
                    portal.call(portal.stop)
                    thread.join()
            if session is not None:
                session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def portal(self) -> BlockingPortal:
        """Return the event loop that keeps the locks. Its thread starts with the first lock, and does not keep Python
        alive.
        """
        self._start_anew_if_forked()
        with self._guard:
            if self._portal is None:
                # anyio's ``start_blocking_portal`` waits for its thread when it is collected: for ever, after a fork.
                started: Future[BlockingPortal] = Future()
                self._thread = threading.Thread(target=_serve, args=(started,), name="gateway.client", daemon=True)
                self._thread.start()
                self._portal = started.result()
            return self._portal

    def session(self) -> httpx.Client:
        """Return the client that requests of all locks use."""
        self._start_anew_if_forked()
        with self._guard:
            if self._session is None:
                self._session = self._make_session()
            return self._session

    def note(self, lock: "Lock", *, entered: bool) -> None:
        """Count a lock that is being entered, or discount one that was left."""
        with self._guard:
            (self._entered.add if entered else self._entered.discard)(lock)

    def _start_anew_if_forked(self) -> None:
        """Refuse to wait in a fork. A fork lacks the thread of the event loop, so the wait would never end."""
        if self._process != os.getpid():
            self._process, self._guard = os.getpid(), threading.Lock()
            self._thread, self._portal, self._session, self._entered = None, None, None, set()


def _serve(started: "Future[BlockingPortal]") -> None:
    """Run an event loop for other threads, until its portal is stopped."""

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        asyncio.run(serve())
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


class Lock(Hold):
    """``with client.lock("order/5") as lock``, once: ask the client for another one."""

    def __init__(self, client: FencedClient, kept: locks.Lock, lost: threading.Event, on_loss: OnLoss) -> None:
        super().__init__(kept.state)
        self._client = client
        self._lock = kept
        self._lost = lost
        self._on_loss = on_loss
        self._leaving = asyncio.Event()
        self._ended = threading.Event()
        self._holding: Future[None] | None = None
        self._entered: Future[None] = Future()
        self._http: httpx.Client | None = None
        self._postgrest: SyncPostgrestClient | None = None
        self._s3: S3Client | None = None

    @property
    def lost(self) -> threading.Event:
        """Set when the lock is lost: ``lock.lost.is_set()``, ``lock.lost.wait(timeout)``."""
        if self._kept.is_overdue():
            self._lost.set()
        return self._lost

    @property
    def http(self) -> httpx.Client:
        """An httpx client whose base URL is the gateway's. Raises ``Stale`` where the fence has refused a request."""
        if self._http is None:
            self._http = self._make_http()
        return self._http

    @property
    def postgrest(self) -> "SyncPostgrestClient":
        """A postgrest client of the gateway's tables. Needs the extra ``client``."""
        if self._postgrest is None:
            self._postgrest = http.postgrest_client(self._make_http(), self.state.api.url)
        return self._postgrest

    @property
    def s3(self) -> "S3Client":
        """A boto3 client, closed with the lock; ``boto3`` makes one with settings of your own."""
        if self._s3 is None:
            self._s3 = self.boto3()
        return self._s3

    def credentials(self, pattern: str | None = None, ttl: int = 3600, read: Read = "own") -> Credentials:
        """Temporary S3 keys, as the asynchronous lock's."""
        return self._client.portal().call(partial(self._lock.credentials, pattern, ttl, read))

    def environment(
        self,
        *,
        s3: bool = True,
        pattern: str | None = None,
        ttl: int = 3600,
        read: Read = "own",
        inherited: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Return the environment variables for a command, as the asynchronous lock does."""
        ask = partial(self._lock.environment, s3=s3, pattern=pattern, ttl=ttl, read=read, inherited=inherited)
        return self._client.portal().call(ask)

    def __enter__(self) -> Self:
        if self._holding is not None:
            raise RuntimeError("A lock can be entered once: ask the client for another one.")
        self._holding = self._client.portal().start_task_soon(self._hold)
        self._client.note(self, entered=True)
        try:
            self._entered.result()
        except BaseException:
            # Ctrl-C, most of all: what waits for the lock gives its place back.
            self.leave()
            raise
        guarded.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loss = self._kept.loss() if error is None and self._on_loss == "raise" else None
        self.leave()
        if loss is not None:
            raise loss

    def is_held(self) -> bool:
        """Whether it has been acquired; it may have been lost or left since."""
        return self._entered.done()

    def leave(self) -> None:
        """Give the lock back, now."""
        if self.state.keeper is not None and self.state.keeper.is_copy():
            return  # the parent gives back what it holds
        guarded.leave(self)
        self._client.note(self, entered=False)
        if self._s3 is not None:
            self._s3.close()
            self._s3 = None
        holding = self._holding
        if holding is None or holding.done():
            return
        if self._entered.done():
            with suppress(RuntimeError):  # the client has been closed meanwhile
                self._client.portal().call(self._leaving.set)
        else:
            holding.cancel()
        self._ended.wait(LEAVING)

    async def _hold(self) -> None:
        try:
            async with self._lock:
                self._entered.set_result(None)
                await self._leaving.wait()
        except Exception as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)
        finally:
            if not self._entered.done():
                self._entered.set_exception(Unavailable("The wait for the lock was ended.", advice=""))
            self._ended.set()

    def _make_http(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.state.api.url,
            timeout=self._client.session().timeout,
            transport=Transport(self._client.session, self.presenter()),
        )
