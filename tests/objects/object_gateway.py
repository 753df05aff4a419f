"""A gateway for objects over real HTTP, with a database and a store double of its own behind it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote
from uuid import uuid4

import asyncpg
import httpx
import pytest_asyncio
from mypy_boto3_s3 import S3Client
from pydantic import SecretStr

from gateway.config.sections import ObjectStore
from gateway.demo.embedded import EmbeddedPostgres
from gateway.objects.protocol.effects import tombstone_body
from gateway.objects.protocol.runner import Runner
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import PREFIX, Profiles
from gateway.objects.sweeper import Sweeper
from tests.doubles.s3 import ACCESS_KEY as STORE_ACCESS_KEY
from tests.doubles.s3 import SECRET_KEY as STORE_SECRET_KEY
from tests.doubles.s3 import Rule, S3Double, serve
from tests.doubles.s3.app import Exchange
from tests.doubles.s3.signature import TIMESTAMP
from tests.doubles.s3.state import Mutation, Upload
from tests.doubles.s3.wire import Receive, Scope, Send
from tests.objects.clients import connect
from tests.patience import patient
from tests.postgres import fresh_database
from tests.running import API_KEY, KEYS, Events, config, running
from tests.waiting import PATIENCE

Result = TypeVar("Result")
WRITER = {"name": "writer", **KEYS}
ADMIN = {**WRITER, "groups": ["admins"]}


READS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything a test looks at. ``origin`` is the gateway's, ``endpoint`` the store's."""

    origin: str
    endpoint: str
    double: S3Double
    events: Events
    dsn: str

    async def rows(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        """Ask the database itself."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetch(sql, *arguments)
        finally:
            await connection.close()

    async def count(self, table: str, key: str) -> int:
        """How many rows of a table of the fencing schema are about ``key``."""
        return len(await self.rows(f"SELECT FROM fencing.{table} WHERE key = $1", key))

    async def fence(self, resource: str) -> str | None:
        """The token of a fence as the fencing API shows it."""
        async with self.api() as api:
            answer = await api.get(f"/v1/fences/{resource}")
        assert answer.status_code == 200, answer.text
        token: str | None = answer.json()["token"]
        return token

    async def barrier(self, resource: str, token: str, holder: str | None = None) -> httpx.Response:
        """Raise a fence without writing."""
        async with self.api() as api:
            return await api.post(
                f"/v1/fences/{resource}/barrier", json={"token": token} | ({"holder": holder} if holder else {})
            )

    async def issued(self, api_key: str = API_KEY, **wanted: Any) -> dict[str, Any]:
        """Fenced credentials, as settings of a client."""
        async with self.api() as api:
            answer = await api.post("/v1/credentials", json=wanted, headers={"Authorization": f"Bearer {api_key}"})
        assert answer.status_code == 201, answer.text
        given = answer.json()
        return {
            "access_key": given["access_key_id"],
            "secret_key": given["secret_access_key"],
            "aws_session_token": given["session_token"],
        }

    async def rejections(self, **filters: str) -> list[dict[str, Any]]:
        """The record, newest first."""
        async with self.api() as api:
            found: list[dict[str, Any]] = (await api.get("/v1/rejections", params=filters)).json()["rejections"]
        return found

    async def knows(self, table: str) -> None:
        """Return once the gateway has heard of a table that was made after it had started."""
        async with self.api() as api, asyncio.timeout(PATIENCE):
            while (await api.get(f"/v1/tables/{table}")).status_code != 200:
                await asyncio.sleep(0.05)

    async def late(self, sending: Coroutine[Any, Any, Result], **match: Any) -> tuple[Rule, "asyncio.Task[Result]"]:
        """Send a request, and return once the store holds the request that ``match`` names."""
        held = self.double.hold(**match)
        sent = asyncio.create_task(sending)
        await held.arrived.wait()
        return held, sent

    def api(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.origin, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=2 * PATIENCE
        )

    def settings(self) -> ObjectStore:
        """The store, as another gateway would have it in its configuration."""
        keys = {"access_key_id": STORE_ACCESS_KEY, "secret_access_key": SecretStr(STORE_SECRET_KEY)}
        return ObjectStore.model_validate({"endpoint": self.endpoint, **keys})

    def beside(self) -> S3Client:
        """A client of the store itself."""
        return connect(self.endpoint, access_key=STORE_ACCESS_KEY, secret_key=STORE_SECRET_KEY)

    def uploads(self, key: str) -> list[Upload]:
        """The uploads of a key that the store has."""
        running = self.double.store.bucket("bucket").uploads.running(self.double.service.now())
        return [upload for upload in running if upload.key == key]

    def body(self, key: str) -> bytes | None:
        """Return the content of ``key`` in the store itself."""
        stored = self.double.objects("bucket").get(key)
        return None if stored is None else stored.content.body

    def applied(self, after: int) -> list[Mutation]:
        """Return the mutations that took effect in the store since ``after``, without those of the gateway's probe."""
        return [each for each in self.double.applied(after=after) if not _is_probe(each.key)]

    def written(self, since: int) -> list[Exchange]:
        """Requests to the store, from the ``since``th on, that are no reads; the probe's are left out."""
        return [each for each in _own(self.double.requests[since:]) if each.method not in READS]


def _own(exchanges: Iterable[Exchange]) -> list[Exchange]:
    return [each for each in exchanges if not _is_probe(each.key or "")]


def _is_probe(key: str) -> bool:
    """One of the probe's keys has a slash in front."""
    return key.removeprefix("/").startswith(PREFIX)


@asynccontextmanager
async def staged(
    postgres: EmbeddedPostgres, /, double: S3Double | None = None, tls: tuple[Path, Path] | None = None, **sections: Any
) -> AsyncIterator[Stage]:
    """A stage with a configuration of its own. ``s3`` and ``postgres`` hold what differs from the usual sections."""
    double = double or S3Double(buckets=["bucket", "other"])
    events = Events()
    async with (
        fresh_database(postgres) as dsn,
        serve(double) as endpoint,
        running(config(dsn, endpoint, **sections), events, tls) as origin,
    ):
        yield Stage(origin, endpoint, double, events, dsn)


def module_stage(
    double: Callable[[], S3Double] | None = None,
    prepare: Callable[[Stage], Awaitable[object]] | None = None,
    **sections: Any,
) -> Any:
    """A fixture: the stage of one module, where each test keeps to its own keys. ``prepare`` comes before the first."""

    @pytest_asyncio.fixture(scope="module", loop_scope="module")
    async def on_stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
        async with staged(postgres_server, double and double(), **sections) as one:
            if prepare is not None:
                await prepare(one)
            yield one

    return on_stage


def store(*buckets: str, kind: type[S3Double] = S3Double, versioned: Iterable[str] = (), **behaviour: Any) -> S3Double:
    """A double with these buckets, of which some keep versions, that behaves unlike AWS in some ways."""
    double = kind(buckets=buckets or ("bucket", "other"))
    for bucket in versioned:
        double.store.bucket(bucket).versioning = "Enabled"
    double.behave(**behaviour)
    return double


def forgetful(*buckets: str) -> S3Double:
    """A store that ignores the conditions of deletes, so that each delete through the gateway leaves a tombstone."""
    return store(*(buckets or ("bucket",)), ignored_conditions=frozenset({"DeleteObject"}))


async def entomb(stage: Stage, *keys: str, bucket: str = "bucket", forbidden: bool = False) -> None:
    """Put tombstones where they stand after a delete; ``forbidden``: a late request may be waiting for absence."""
    for key in keys:
        resource = f"s3/{bucket}/{key}"
        metadata = {"fencing-tombstone": "true", "fencing-resource": resource, "fencing-token": "1"}
        stage.double.put(bucket, key, tombstone_body(uuid4()), metadata)
        await stage.rows(
            "INSERT INTO fencing.tombstone (resource, bucket, key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            resource, bucket, key,
        )  # fmt: skip
        if forbidden:
            await stage.rows(
                "INSERT INTO fencing.forbidden VALUES ($1, $2, $3, '', now() + interval '1 minute')",
                resource, bucket, key,
            )  # fmt: skip


@asynccontextmanager
async def sweeper(stage: Stage, **settings: Any) -> AsyncIterator[tuple[Sweeper, Events]]:
    """A sweeper like the one of another gateway."""
    events = Events()
    database = patient(stage.dsn)
    try:
        async with Upstream(stage.settings()) as upstream:
            profiles = Profiles(upstream)
            runner = Runner(database, upstream, profiles, events, settings.get("pending_wait", 0.2))
            yield Sweeper(database, upstream, profiles, runner, events), events
    finally:
        await database.close()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: the path decoded, the parameters and the headers (lower-case names) as they came."""

    method: str
    path: str
    parameters: dict[str, str]
    headers: dict[str, str]

    @property
    def lifetime(self) -> int | None:
        """Seconds the signature in the query is good for; None where it is in the headers."""
        if "authorization" in self.headers:
            assert "X-Amz-Signature" not in self.parameters
            return None
        return int(self.parameters["X-Amz-Expires"])

    @property
    def signed_at(self) -> datetime:
        """The time the signature carries, in whole seconds."""
        written = self.parameters.get("X-Amz-Date") or self.headers["x-amz-date"]
        return datetime.strptime(written, TIMESTAMP).replace(tzinfo=UTC)


class RecordingDouble(S3Double):
    """The double, with a log of what came."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"buckets": ["bucket", "other"], **settings})
        self.asked: list[Asked] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parameters = dict(parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True))
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.asked.append(Asked(scope["method"], unquote(scope["raw_path"].decode("ascii")), parameters, headers))
        await super().__call__(scope, receive, send)

    def changing(self, since: int = 0) -> list[Asked]:
        """Return the requests from the ``since``th on that are no reads, without those of the probe."""
        asked = (each for each in self.asked[since:] if each.method not in ("GET", "HEAD"))
        return [each for each in asked if f"/{PREFIX}" not in each.path]


def recorded(stage: Stage) -> RecordingDouble:
    """The store of a stage whose store records."""
    assert isinstance(stage.double, RecordingDouble)
    return stage.double
