"""Failovers of a real cluster, under load from tables, objects and the lock service."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import asyncpg
import httpx
import pytest
from botocore.exceptions import ClientError

from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import DatabaseClosed, JournalUnusable, OutcomeUnknown, Unavailable
from tests.doctor.test_doctor import execute
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import connect, in_thread
from tests.patroni import Cluster, patroni
from tests.postgres import Server, as_gateway, install
from tests.running import API_KEY, Events, config, running
from tests.waiting import PATIENCE

NOTHING_WRITTEN = {Unavailable.code, Unavailable.s3_code, DatabaseClosed.code, JournalUnusable.code}
UNKNOWN = {OutcomeUnknown.code, OutcomeUnknown.s3_code}

ACCOUNTS, KEYS, LOCKS = 6, 2, 2

Said: TypeAlias = tuple[int, str, bool]
"""Status, code, and whether the answer says when to retry."""


@dataclass
class Series:
    """The numbers of one writer, by the answer to each."""

    acknowledged: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)

    def told(self, number: int, said: Said) -> None:
        status, code, _ = said
        if status < 300:
            self.acknowledged.append(number)
        elif code in UNKNOWN:
            self.unknown.append(number)

    def lost(self, found: Collection[int]) -> list[int]:
        """Return the acknowledged numbers that are not there."""
        return sorted(set(self.acknowledged) - set(found))

    def denied(self, found: Collection[int]) -> list[int]:
        """Return the numbers that are there, although their writer was told that nothing was written."""
        return sorted(set(found) - set(self.acknowledged) - set(self.unknown))


@dataclass
class Plane:
    """One kind of writers: how often they succeeded, and what they must not have been told."""

    successes: int = 0
    wrong: list[str] = field(default_factory=list)

    def hear(self, said: Said, about: str) -> None:
        status, code, retry = said
        if status < 300:
            self.successes += 1
        elif status != 503 or not (code in UNKNOWN or (code in NOTHING_WRITTEN and retry)):
            self.wrong.append(f"{about}: {said}")


class Load:
    """The writers. Zombies that were let through are in ``stale``."""

    def __init__(self, origins: list[str], keys: int = KEYS) -> None:
        """``origins``: gateways. ``keys``: how many objects are written."""
        self.accounts = {n: Series() for n in range(1, ACCOUNTS + 1)}
        self.objects = {n: Series() for n in range(1, keys + 1)}
        self.tables, self.store, self.locks = Plane(), Plane(), Plane()
        self.planes = [self.tables, self.locks, *([self.store] if keys else [])]
        self.stale: list[str] = []
        self.grants: dict[str, dict[str, set[str]]] = {f"lock/{n}": {} for n in range(1, LOCKS + 1)}
        self._origins = origins
        self._ends = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write until the block ends, and then until each writer has succeeded once more."""
        async with asyncio.timeout(6 * PATIENCE), asyncio.TaskGroup() as group:
            for n, series in self.accounts.items():
                group.create_task(self._write_rows(n, series))
            for n, series in self.objects.items():
                group.create_task(self._write_objects(n, series))
            for lock in self.grants:
                for holder in ("ann", "bob"):
                    group.create_task(self._take_turns(lock, holder))
            yield
            self._ends = True

    async def started(self) -> None:
        """Return once each plane has had its first successes."""
        while not all(plane.successes > 10 for plane in self.planes):
            await asyncio.sleep(0.1)

    async def _write_rows(self, account: int, series: Series) -> None:
        async def write(number: int, token: int) -> Said:
            row = {"account": account, "number": number}
            return await _said(client.post("/v1/tables/entries", json=row, headers={"fencing-token": str(token)}))

        async with self._client(account) as client:
            await self._write(client, write, series, self.tables, f"account/{account}")

    async def _write_objects(self, key: int, series: Series) -> None:
        async def write(number: int, token: int) -> Said:
            store = connect(self._origins[key % len(self._origins)], str(token))
            try:
                await in_thread(store.put_object, Bucket="bucket", Key=f"key-{key}", Body=str(number).encode())
            except ClientError as error:
                failed: Any = error.response
                answer = failed["ResponseMetadata"]
                return answer["HTTPStatusCode"], failed["Error"]["Code"], "retry-after" in answer["HTTPHeaders"]
            finally:
                store.close()
            return 200, "", False

        async with self._client(key) as client:
            await self._write(client, write, series, self.store, f"s3/bucket/key-{key}")

    async def _write(
        self,
        client: httpx.AsyncClient,
        write: Callable[[int, int], Awaitable[Said]],
        series: Series,
        plane: Plane,
        resource: str,
    ) -> None:
        """Count up under a token, and go on to the next token by a barrier. Each barrier overtakes a zombie."""
        number, token, overtaken = 0, 1, 0
        ended = False
        while not ended:
            number += 1
            ends = self._ends
            said = await write(number, token)
            series.told(number, said)
            plane.hear(said, resource)
            if said[0] >= 300:
                await asyncio.sleep(0.05)
                continue
            ended = ends
            if number % 5 == 0:
                raising = client.post(f"/v1/fences/{resource}/barrier", json={"token": str(token + 1)})
                said = await _said(raising)
                plane.hear(said, f"barrier of {resource}")
                if said[0] < 300:
                    overtaken, token = token, token + 1
                elif said[1] in UNKNOWN | NOTHING_WRITTEN:
                    token += 1  # it may have been raised
            if number % 3 == 0 and overtaken:
                zombie = await write(-number, overtaken)
                if zombie[0] < 300:
                    self.stale.append(f"{resource}: {overtaken} below {token}")
                elif zombie[0] != 412:
                    plane.hear(zombie, f"zombie of {resource}")

    async def _take_turns(self, lock: str, holder: str) -> None:
        """Acquire, renew and release a lock. A holder whose release was lost gets its lease again."""
        client = self._client(len(holder))
        async with client:
            ended = False
            while not ended:
                ends = self._ends
                try:
                    answer = await client.post(f"/v1/leases/{lock}", json={"holder": holder, "ttl": 2, "wait": 2})
                except httpx.TransportError as error:
                    self.locks.wrong.append(f"{lock}: {error!r}")
                    continue
                if answer.status_code == 409:  # the other one has it
                    ended = ends
                    continue
                self.locks.hear(_read(answer), f"acquire {lock}")
                if answer.status_code >= 300:
                    await asyncio.sleep(0.05)
                    continue
                lease = answer.json()
                self.grants[lock].setdefault(lease["token"], set()).add(holder)
                path = f"/v1/leases/{lock}/{lease['lease']}"
                for said in (await _said(client.put(path, json={})), await _said(client.delete(path))):
                    # The lease may have ended during the pause.
                    if said[0] not in (404, 409, 410, 412):
                        self.locks.hear(said, f"lease of {lock}")
                ended = ends
                await asyncio.sleep(0.02)

    def _client(self, number: int) -> httpx.AsyncClient:
        origin = self._origins[number % len(self._origins)]
        return httpx.AsyncClient(base_url=origin, headers={"apikey": API_KEY}, timeout=60)


async def _said(sending: Awaitable[httpx.Response]) -> Said:
    return _read(await sending)


def _read(answer: httpx.Response) -> Said:
    if answer.status_code < 300:
        return answer.status_code, "", False
    assert "json" in answer.headers["content-type"], answer.text
    code = answer.json().get("code", "")
    # Some reasons need an operator, so the answer has no time for a retry. The test's report names them.
    shown = f"{code}: {answer.text}" if code == JournalUnusable.code and "retry-after" not in answer.headers else code
    return answer.status_code, shown, "retry-after" in answer.headers


# The cluster ---------------------------------------------------------------------------------------------------------


pytestmark = pytest.mark.installed

GATEWAYS = 2
ENTRIES = {"name": "public.entries", "resource": "account/{account}"}


@pytest.fixture(params=[True, False], ids=["synchronous", "asynchronous"])
def cluster(request: pytest.FixtureRequest, postgres_server: Server) -> Iterator[Cluster]:
    if not isinstance(postgres_server, EmbeddedPostgres):
        pytest.skip("the nodes use the programs of the embedded server")
    with patroni(postgres_server, synchronous=request.param) as nodes:
        install(nodes.dsn())
        yield nodes


class Site:
    """Gateways before the cluster, and the load on them."""

    def __init__(self, cluster: Cluster, load: Load, double: S3Double) -> None:
        self.cluster, self.load, self._double = cluster, load, double

    async def rows(self, query: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.cluster.dsn())
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    async def entries(self) -> dict[int, list[int]]:
        """The numbers of each account."""
        rows = await self.rows("SELECT account, array_agg(number) AS numbers FROM entries GROUP BY account")
        return {row["account"]: row["numbers"] for row in rows}

    async def openings(self) -> list[dict[str, Any]]:
        """The openings on record, and the fences that they have restored."""
        rows = await self.rows(
            "SELECT details FROM fencing.intake WHERE kind = 'administration' UNION ALL "
            "SELECT details FROM fencing.record WHERE kind = 'administration'"
        )
        return [details for (text,) in rows if (details := json.loads(text))["operation"] == "OpenDatabase"]

    def objects(self) -> dict[int, int]:
        """The number of each object."""
        return {
            int(key.removeprefix("key-")): int(stored.content.body)
            for key, stored in self._double.objects("bucket").items()
            if key.startswith("key-")
        }


@asynccontextmanager
async def site(cluster: Cluster) -> AsyncIterator[Site]:
    table = "CREATE TABLE entries (account bigint, number bigint, PRIMARY KEY (account, number))"
    await execute(cluster.dsn(), table)
    double = S3Double(buckets=["bucket", "journal"])
    # Without a synchronous standby only the journal has what a failover loses.
    journal = {} if cluster.synchronous else {"mode": "sync", "bucket": "journal"}
    async with AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(serve(double))
        dsn = as_gateway(cluster.dsn())
        limits = {"connect_timeout": 5.0, "idle_timeout": 5.0}
        origins = [
            await stack.enter_async_context(
                running(config(dsn, endpoint, tables=[ENTRIES], journal=journal, limits=limits), Events())
            )
            for _ in range(GATEWAYS)
        ]
        # After a loss, object writes wait until requests from before it are dead: longer than a test should take.
        yield Site(cluster, Load(origins, KEYS if cluster.synchronous else 0), double)


async def test_writers_wait_and_nothing_acknowledged_is_lost(cluster: Cluster) -> None:
    async with site(cluster) as one:
        load = one.load
        async with load.running():
            await load.started()
            # A standby from before the first opening could not take over: the journal began with that.
            await asyncio.to_thread(cluster.ready)
            if cluster.synchronous:
                await asyncio.to_thread(cluster.switch_over)
                await asyncio.to_thread(cluster.ready)
                await asyncio.sleep(1)
            former = await asyncio.to_thread(cluster.primary)
            with former.paused():
                await asyncio.to_thread(cluster.primary, former)
                await asyncio.sleep(1)
            # The former primary is back, and takes itself for the primary until its Patroni looks.
            await asyncio.to_thread(cluster.ready)
            await asyncio.sleep(1)
            former = await asyncio.to_thread(cluster.primary)
            await asyncio.to_thread(former.kill)
            await asyncio.to_thread(cluster.primary, former)
            await asyncio.sleep(1)
        entries, objects, openings = await one.entries(), one.objects(), await one.openings()
    lost = {account: series.lost(entries[account]) for account, series in load.accounts.items()}
    assert [wrong for plane in load.planes for wrong in plane.wrong] == []
    assert [
        series.denied(entries[account]) for account, series in load.accounts.items() if series.denied(entries[account])
    ] == []
    for key, series in load.objects.items():
        assert objects[key] in (series.acknowledged[-1], *series.unknown), (key, series)
    assert load.stale == []
    # Each failover is on record as another run, which need not have all that the former one had.
    assert not all(opening["continues"] for opening in openings)
    if cluster.synchronous:
        assert not any(lost.values())
        assert [holders for grants in load.grants.values() for holders in grants.values() if len(holders) > 1] == []
