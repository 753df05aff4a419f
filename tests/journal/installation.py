"""Journals: their objects, a store in memory that can be broken, and a database with a journal and gateways."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
from pydantic import SecretStr

from gateway.config.sections import ObjectStore
from gateway.db import intents
from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.decision import Presented
from gateway.fencing.token import Token
from gateway.journal.archive import Store
from gateway.journal.bucket import BucketStore
from gateway.journal.contents import Entry, Flaw, Segment, Snapshot
from gateway.journal.journal import Journal
from gateway.journal.opening_table import OpeningTable
from gateway.journal.rows import RowStore
from gateway.journal.runner import Runner
from gateway.journal.trust import Marker, Mode, Run
from gateway.objects.store.bucket_profile import Profile
from gateway.objects.store.operations import Upstream
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, S3Double, serve
from tests.patience import patient
from tests.postgres import fresh_database
from tests.running import Events
from tests.waiting import PATIENCE

BUCKET = "journal"
PROBED = Profile(
    put_conditions=True,
    complete_conditions=True,
    delete_condition=True,
    reads_back=True,
    unique_etags=False,
    plain_etags_predicted=True,
    multipart_etags_predicted=True,
    multipart_changes_etag=True,
)


@dataclass(slots=True)
class Gateway:
    """One gateway process: its database, its journal, and its runner."""

    mode: Mode
    database: Database
    side: OpeningTable
    runner: Runner
    kept_by: Journal | None

    @property
    def journal(self) -> Journal:
        assert self.kept_by is not None, "mode off has none"
        return self.kept_by

    async def raised(self, resource: str, token: int, *, objects: bool = False) -> str:
        """The decision about a barrier, once it may be acknowledged."""
        raised = await intents.raise_fence(self.database, resource, Presented(Token(0, token)), "test")
        if objects:
            server = await self.side.ask()
            assert await self.runner.may_send(resource, Token(0, token), server.now, server.opened.term)
        return str(raised.decision)


@dataclass(slots=True)
class Installation:
    """A database that can be rewound, and the store of its journal."""

    server: EmbeddedPostgres
    name: str
    store: Store
    double: S3Double | None = None
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)
    saved: list[str] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def gateway(
        self, mode: Mode = Mode.SYNC, *, checks: bool = False, store: Store | None = None, **settings: Any
    ) -> Gateway:
        """A gateway process. ``checks``: whether it finds out first if the store is fit, which takes its time."""
        behind, events = patient(self.dsn), Events()
        side = OpeningTable(behind)
        journal = None if mode is Mode.OFF else Journal(store or self.store, observe=events, **settings)
        runner = Runner(mode, side, journal, events)
        runner._fit = not checks
        database = patient(self.dsn, openings=runner)
        for one in (database, behind):
            self.opened.push_async_callback(one.close)
        return Gateway(mode, database, side, runner, journal)

    async def fetch(self, sql: str, *, database: str | None = None) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.server.dsn(database or self.name))
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()

    async def tokens(self) -> dict[str, int]:
        return {row["resource"]: row["value"] for row in await self.fetch("SELECT * FROM fencing.fence")}

    async def waiting(self) -> list[str]:
        """Resources whose lost intents are waited for."""
        rows = await self.fetch("SELECT resource FROM fencing.intent WHERE bucket = '' ORDER BY 1")
        return [row["resource"] for row in rows]

    async def restart(self) -> None:
        """As if the server had been started again since."""
        await self.fetch("UPDATE fencing.opening SET started = started - interval '1 hour'")

    async def save(self) -> str:
        """A backup of the database as it is. All gateways are disconnected."""
        await self.opened.aclose()
        name = f"saved_{uuid4().hex}"
        await self.fetch(f"CREATE DATABASE {name} TEMPLATE {self.name} STRATEGY file_copy", database="postgres")
        self.saved.append(name)
        return name

    async def restore(self, backup: str) -> None:
        """Put the database back to a backup."""
        await self.opened.aclose()
        await self.fetch(f"DROP DATABASE {self.name} WITH (FORCE)", database="postgres")
        await self.fetch(f"CREATE DATABASE {self.name} TEMPLATE {backup} STRATEGY file_copy", database="postgres")

    async def close(self) -> None:
        await self.opened.aclose()
        for name in self.saved:
            await self.fetch(f"DROP DATABASE {name} WITH (FORCE)", database="postgres")


@asynccontextmanager
async def in_a_bucket(dsn: str) -> AsyncIterator[tuple[Store, S3Double | None]]:
    """A bucket of the double, which counts as probed."""
    double = S3Double(buckets=(BUCKET,))
    async with serve(double) as endpoint, connected(endpoint) as upstream:
        store = BucketStore(upstream, BUCKET)
        store._profiles._known[BUCKET] = PROBED
        yield store, double


@asynccontextmanager
async def in_rows(dsn: str) -> AsyncIterator[tuple[Store, S3Double | None]]:
    database = patient(dsn)
    try:
        store = RowStore(database)
        await store.install()
        yield store, None
    finally:
        await database.close()


@asynccontextmanager
async def connected(endpoint: str, key: str = ACCESS_KEY, secret: str = SECRET_KEY) -> AsyncIterator[Upstream]:
    config = ObjectStore(endpoint=endpoint, access_key_id=key, secret_access_key=SecretStr(secret))
    async with Upstream(config, timeout=PATIENCE) as upstream:
        yield upstream


@asynccontextmanager
async def installed(
    server: EmbeddedPostgres, store: Store, double: S3Double | None = None
) -> AsyncIterator[Installation]:
    """An installation with a fresh database, and a journal in this store."""
    async with fresh_database(server) as dsn:
        name = dsn.partition("?")[0].rpartition("/")[2]
        one = Installation(server, name, store, double)
        try:
            yield one
        finally:
            await one.close()


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OURS, THEIRS = UUID(int=1), UUID(int=2)
WRITER = UUID(int=7)
RUN = Run("7000000000000000001", 1, NOW, "16384/16390")
MARKER = Marker(OURS, 7, 6, RUN, NOW)


def entry(resource: str, value: int, *, at: datetime = NOW, objects: datetime | None = None, since: int = 0) -> Entry:
    return Entry(resource, Token(0, value), at, objects, since)


def segment(sequence: int, *entries: Entry, follows: int = 0, writer: UUID = WRITER, at: datetime = NOW) -> Segment:
    return Segment(OURS, writer, sequence, follows, 7, 3, at, entries)


def snapshot(number: int, **fields: object) -> Snapshot:
    given = {"complete_from": 0, "position": 0, "at": NOW, "fences": f"fences/{number:012}-x", **fields}
    return Snapshot(OURS, number, **given)  # type: ignore[arg-type]  # the fields of each test


class Broken(Exception):
    """The process ends here."""


@dataclass
class MemoryStore:
    """The objects of a journal in memory. ``left``: how many requests are answered before the process ends."""

    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    left: int = 1_000_000
    versions: int = 0

    async def add(self, name: str, content: bytes) -> bool:
        self._answer()
        if name in self.objects:
            return False
        self._write(name, content)
        return True

    async def replace(self, name: str, content: bytes, version: str) -> bool:
        self._answer()
        if self.objects.get(name, (b"", ""))[1] != version:
            return False
        self._write(name, content)
        return True

    async def read(self, name: str) -> tuple[bytes, str] | None:
        self._answer()
        return self.objects.get(name)

    async def names(self, prefix: str) -> list[str]:
        self._answer()
        return sorted(name for name in self.objects if name.startswith(prefix))

    async def remove(self, name: str) -> None:
        self._answer()
        self.objects.pop(name, None)

    async def find_unfit(self) -> Flaw | None:
        return None

    def damage(self, name: str, *, cut: bool = False) -> None:
        """Change the last byte of an object, or remove it."""
        content, version = self.objects[name]
        self.objects[name] = (content[:-1] if cut else content[:-1] + b"?", version)

    def _write(self, name: str, content: bytes) -> None:
        self.versions += 1
        self.objects[name] = (content, str(self.versions))

    def _answer(self) -> None:
        if self.left == 0:
            raise Broken
        self.left -= 1


def days(number: float) -> timedelta:
    return timedelta(days=number)
