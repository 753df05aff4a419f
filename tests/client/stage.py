"""A gateway in a thread of its own, so that programs with an event loop and programs without one can use it alike.

One lock covers a row of ``accounts`` and the objects below ``reports/accounts/{id}/``.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import asyncpg
import httpx

from gateway.client import FencedClient
from gateway.client import blocking as threads
from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double, serve
from tests.postgres import fresh_database
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY, config, running

BUCKET = "reports"
KEYS = {"api_key": API_KEY, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
SECTIONS: dict[str, Any] = {
    "server": {"rest_v1": True},
    "objects": [{"match": f"{BUCKET}/accounts/{{id}}/**", "resource": "public.accounts/{id}"}],
    # Shorter than the client likes to wait: it has to ask again, and again.
    "leases": {"max_wait": 1, "signing_keys": ["a key that signs sequencers in tests"]},
    "resources": [{"match": "signed/**", "tokens": "signed"}, {"match": "capped/**", "max_jump": 1000}],
    "callers": [
        {"name": "writer", "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "api_key": API_KEY},
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
            connection = await asyncpg.connect(self.dsn)
            try:
                owner: str | None = await connection.fetchval("SELECT owner FROM accounts WHERE id = $1", number)
                return owner
            finally:
                await connection.close()

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
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance bigint)")
    await connection.close()


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
