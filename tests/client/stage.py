"""A gateway in a thread of its own, a lock service in this very process, and a network that goes down.

Programs with an event loop and programs without one can use the gateway alike. One lock covers a row of ``accounts``
and the objects below ``reports/accounts/{id}/``.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from gateway.client import FencedClient
from gateway.client import blocking as threads
from gateway.client.errors import LockLost, NotAcquired, Unavailable
from gateway.client.source import Held, Mode, Source, now
from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double, serve
from tests.guard.stage import session
from tests.postgres import fresh_database
from tests.processes import free_port
from tests.running import API_KEY, KEYS, config, running

BUCKET = "reports"
SECTIONS: dict[str, Any] = {
    "objects": [{"match": f"{BUCKET}/accounts/{{id}}/**", "resource": "public.accounts/{id}"}],
    # Shorter than the client likes to wait: it has to ask again, and again.
    "server": {"rest_v1": True},
    "limits": {"max_wait": 1},
    "leases": {"signing_keys": ["a key that signs sequencers in tests"]},
    "resources": [{"match": "signed/**", "tokens": "signed"}, {"match": "capped/**", "max_jump": 1000}],
    "callers": [
        {"name": "writer", **KEYS},
        {"name": "operator", "api_key": "operator-key", "groups": ["admins"]},
    ],
}
_numbers = count(1000)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Stage:
    """``origin`` is the gateway's. Past it go ``double``, the store, and ``dsn``, the database's address."""

    origin: str
    double: S3Double
    dsn: str

    def client(self, **settings: Any) -> FencedClient:
        return FencedClient(**{"url": self.origin, **KEYS, **settings})

    def blocking(self, **settings: Any) -> threads.FencedClient:
        return threads.FencedClient(**{"url": self.origin, **KEYS, **settings})

    def account(self) -> int:
        """Return the number of a row that no other test uses; ``public.accounts/{number}`` is its lock."""
        return next(_numbers)

    def api(self) -> httpx.Client:
        # The trusted certificates take long to load, and no server here needs one.
        known = {"Authorization": f"Bearer {API_KEY}"}
        return httpx.Client(base_url=self.origin, headers=known, timeout=20, verify=False)

    def standing(self, resource: str) -> dict[str, Any]:
        """How the lock stands."""
        with self.api() as api:
            view: dict[str, Any] = api.get(f"/v1/leases/{resource}").json()
        return view

    def raised(self, resource: str, token: str, holder: str = "somebody") -> None:
        """Raise the fence past any lock."""
        with self.api() as api:
            answer = api.post(f"/v1/fences/{resource}/barrier", json={"token": token, "holder": holder})
        assert answer.status_code == 200, answer.text

    def ended(self, resource: str) -> None:
        """Break the lock, as an operator does to a holder that hangs."""
        asked = {"expected": self.standing(resource)["token"], "reason": "a test"}
        with self.api() as api:
            answer = api.post(f"/v1/breaks/{resource}", json=asked, headers={"Authorization": "Bearer operator-key"})
        assert answer.is_success, answer.text

    def rejections(self, resource: str) -> list[dict[str, Any]]:
        with self.api() as api:
            found: list[dict[str, Any]] = api.get("/v1/rejections", params={"resource": resource}).json()["rejections"]
        return found

    def owner(self, number: int) -> str | None:
        """Return the owner in the row itself."""

        async def ask() -> str | None:
            async with session(self.dsn) as opened:
                owner: str | None = await opened.fetchval("SELECT owner FROM accounts WHERE id = $1", number)
                return owner

        return _apart(ask)

    def body(self, number: int, name: str = "file") -> bytes | None:
        """Return the content in the store itself."""
        stored = self.double.objects(BUCKET).get(f"accounts/{number}/{name}")
        return None if stored is None else stored.content.body


def _apart(ask: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine function beside whatever event loop there is."""
    answered: Future[Result] = Future()
    thread = threading.Thread(target=lambda: answered.set_result(asyncio.run(ask())), daemon=True)
    thread.start()
    return answered.result(20)


async def accounts(dsn: str) -> None:
    async with session(dsn) as owner:
        await owner.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance bigint)")


@contextmanager
def staged(
    postgres: EmbeddedPostgres,
    prepare: Callable[[str], Coroutine[Any, Any, None]] = accounts,
    sections: dict[str, Any] = SECTIONS,
) -> Iterator[Stage]:
    """The gateway, until the block is left. ``prepare`` makes the tables, given the address of the database."""
    ready: Future[Stage] = Future()
    stop: Future[None] = Future()

    async def play() -> None:
        double = S3Double(buckets=[BUCKET])
        try:
            async with fresh_database(postgres) as dsn, serve(double) as endpoint:
                await prepare(dsn)
                async with running(config(dsn, endpoint, **sections)) as origin:
                    ready.set_result(Stage(origin, double, dsn))
                    await asyncio.wrap_future(stop)
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=lambda: asyncio.run(play()), daemon=True)
    thread.start()
    try:
        yield ready.result(60)
    finally:
        stop.set_result(None)
        thread.join(30)


def slow() -> float:
    """Return a clock so slow that a client loses no lock by time, however busy the machine is. Pauses ignore it."""
    return now() / 100


class Counter:
    """``Source``. It counts without epochs, and never lets a hold lapse by itself: tests take it away.

    ``value`` is the last token issued; ``trouble`` is raised by every call; ``silent``: renewals never answer.
    ``renewals``, ``refused`` and ``unanswered`` count.
    """

    def __init__(self, value: int = 0, clock: Callable[[], float] = now) -> None:
        self.value = value
        self.clock = clock
        self.trouble: Exception | None = None
        self.silent = False
        self.renewals = 0
        self.refused = 0
        self.unanswered = 0
        self.closed = 0
        self.holders: dict[str, Held] = {}

    def take_away(self, resource: str) -> None:
        """End the hold without notice to its holder."""
        del self.holders[resource]

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        self._troubled()
        if resource in self.holders:
            raise NotAcquired(resource, holder=self.holders[resource].holder)
        self.value += 1
        held = Held(resource, holder, self.value, self.clock() + ttl, mode=mode)
        self.holders[resource] = held
        return held

    async def renew(self, held: Held, ttl: float) -> Held:
        self._troubled()
        if self.silent:
            self.unanswered += 1
            await asyncio.Event().wait()
        asked = self.clock()
        if not self._has(held):
            raise LockLost("The counter has given it to somebody else.")
        self.renewals += 1
        return replace(held, valid_until=asked + ttl)

    async def release(self, held: Held) -> None:
        self._troubled()
        if self._has(held):
            del self.holders[held.resource]

    async def holds(self, held: Held) -> bool:
        self._troubled()
        return self._has(held)

    async def aclose(self) -> None:
        self.closed += 1

    def _has(self, held: Held) -> bool:
        standing = self.holders.get(held.resource)
        return standing is not None and (standing.value, standing.holder) == (held.value, held.holder)

    def _troubled(self) -> None:
        if self.trouble is not None:
            self.refused += 1
            raise self.trouble


@dataclass
class Asleep:
    """``Source``: another one, as a process sees it that is stopped. Its renewals never leave."""

    awake: Source

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        return await self.awake.acquire(resource, holder=holder, ttl=ttl, wait=wait, mode=mode)

    async def renew(self, held: Held, ttl: float) -> Held:
        await asyncio.Event().wait()
        raise Unavailable("Nobody gets here.")

    async def release(self, held: Held) -> None:
        await self.awake.release(held)

    async def holds(self, held: Held) -> bool:
        return await self.awake.holds(held)

    async def aclose(self) -> None:
        await self.awake.aclose()


class Relay:
    """``origin`` is where clients find the gateway.

    ``decodes``: slashes that were sent percent-encoded arrive as slashes, as behind some proxies.
    ``kept_back``: requests that begin so do not arrive until ``let_go`` is set; ``waiting`` is set by the first.
    """

    def __init__(self, gateway: str) -> None:
        self.decodes = False
        self.kept_back: bytes | None = None
        self.waiting = asyncio.Event()
        self.let_go = asyncio.Event()
        self._gateway = urlsplit(gateway)
        self._server: asyncio.Server | None = None
        self._port = free_port()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def resume(self) -> None:
        """Take connections, at the same address as ever."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self._port)

    async def cut(self) -> None:
        """Break off all connections, and take no more."""
        assert self._server is not None
        self._server.close()
        self.let_go.set()
        for writer in tuple(self._writers):
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0.01)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward = await asyncio.open_connection(self._gateway.hostname, self._gateway.port)
        self._writers |= {writer, onward}
        try:
            await asyncio.gather(self._pass(reader, onward), self._pass(onward_reader, writer))
        finally:
            for one in (writer, onward):
                one.transport.abort()
                self._writers.discard(one)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while some := await reader.read(65536):
                if self.kept_back is not None and some.startswith(self.kept_back):
                    self.waiting.set()
                    await self.let_go.wait()
                writer.write(some.replace(b"%2F", b"/") if self.decodes else some)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def relayed(gateway: str) -> AsyncIterator[Relay]:
    relay = Relay(gateway)
    await relay.resume()
    try:
        yield relay
    finally:
        await relay.cut()
