"""Builds the gateway: opens what it needs, wires the planes together, tells them apart by the path. No logic."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import api
from gateway.api.operations import BucketView
from gateway.audit import Audit
from gateway.auth.keys import Keys
from gateway.config import Config
from gateway.errors import ConfigurationError, GatewayError, Unavailable
from gateway.fencing.rules import Decision, Fence, Presented
from gateway.middleware import Middleware
from gateway.objects.addressing import bucket_of_host
from gateway.objects.intake import Limits
from gateway.objects.plane import ObjectPlane, Settings
from gateway.objects.probe import Profiles
from gateway.objects.profile import Profile
from gateway.objects.resources import Resources
from gateway.objects.resources import Rule as ObjectRule
from gateway.objects.runner import Runner
from gateway.objects.sweeper import Sweeper, Swept
from gateway.objects.upstream import Upstream
from gateway.observe.events import Observe, ServiceUnreachable
from gateway.observe.logs import log
from gateway.store import intents
from gateway.store.database import Database
from gateway.store.notifications import Listen, listening
from gateway.table_rules import table_rules
from gateway.tables.forgetting import forgetting
from gateway.tables.plane import Exposure, TablePlane


class Gateway:
    """The ASGI app. A first path segment of one or two characters is the gateway's own, all else is S3; so is all of a
    host that names a bucket.
    """

    def __init__(self, config: Config, observe: Observe) -> None:
        self._database = _database(config)
        self._listen = _listening(config)
        self._upstream = None if config.s3 is None else Upstream(config.s3)
        self._profiles = self._build_profiles(config)
        self._retention = config.postgres.idempotency_retention
        self._sweep_interval = 0.0 if config.s3 is None else config.s3.sweep_interval
        self._observe = observe
        keys = Keys(config.callers, anonymous=config.auth.anonymous)
        self._objects = self._build_objects(config, keys)
        self._tables = self._build_tables(config, keys)
        self._api = api.build(
            database=self._database,
            keys=keys,
            barrier=self._barrier,
            audit=Audit(self._database, observe, "api"),
            health=self._health,
            buckets=self._buckets,
            transact=self._tables.transact,
        )
        self._table_prefixes = _table_prefixes(config)
        self._domains = config.server.domains

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._plane(scope)(scope, receive, send)

    def _plane(self, scope: Scope) -> ASGIApp:
        path: str = scope["path"]
        if self._objects is not None and bucket_of_host(scope["headers"], self._domains) is not None:
            return self._objects
        if path.startswith(self._table_prefixes):
            return self._tables
        first = path[1:].partition("/")[0]
        if self._objects is None or 1 <= len(first) <= 2:
            return self._api
        return self._objects

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self._opened():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        """What works in the background waits by itself: neither Postgres nor the store needs to be there yet."""
        try:
            forgets = forgetting(self._database, self._retention, self._observe)
            async with self._tables.following(self._listen), forgets:
                if self._upstream is None or self._objects is None:
                    yield
                else:
                    async with self._upstream, self._objects.sweeper.at_work(self._sweep_interval):
                        yield
        finally:
            await self._database.close()

    async def _barrier(self, resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]:
        if self._objects is not None:
            return await self._objects.barrier(resource, presented, caller)
        raised = await intents.raise_fence(self._database, resource, presented, caller)
        if raised.pending:
            raise Unavailable(
                "An object write of an older holder is pending, and no object store is configured.",
                advice="Configure [s3] again until everything pending is settled.",
            )
        return raised.decision, raised.fence

    async def _settle(self, resource: str, presented: Presented, caller: str) -> None:
        """For the table plane: what its own claim then says about the token is what counts."""
        await self._barrier(resource, presented, caller)

    async def _health(self) -> dict[str, str]:
        services = {"postgres": await self._state("postgres", self._database.now())}
        if self._upstream is not None:
            services["s3"] = await self._state("s3", self._reach_store(self._upstream))
        return services

    def _buckets(self) -> dict[str, BucketView]:
        known = {} if self._profiles is None else self._profiles.known
        return {bucket: _bucket_view(profile) for bucket, profile in known.items()}

    async def _state(self, service: Literal["postgres", "s3"], probe: Awaitable[object]) -> str:
        try:
            await probe
        except GatewayError as error:
            self._observe(ServiceUnreachable(service, error.message))
            return "unreachable"
        return "ok"

    async def _reach_store(self, upstream: Upstream) -> None:
        async with await upstream.send("GET", "/") as response:
            if response.status >= 500:
                raise Unavailable(f"The store answers with {response.status}.")

    def _build_objects(self, config: Config, keys: Keys) -> ObjectPlane | None:
        if config.s3 is None or self._upstream is None or self._profiles is None:
            return None
        rules = [ObjectRule.compile(rule.match, rule.resource, rule.mode, rule.equal) for rule in config.objects]
        return ObjectPlane(
            database=self._database,
            upstream=self._upstream,
            profiles=self._profiles,
            resources=Resources(rules, mode=config.fencing.mode, equal=config.fencing.equal),
            secret_of=keys.secret_of,
            observe=self._observe,
            clock=_clock,
            settings=Settings(
                domains=config.server.domains,
                max_body=config.server.max_body,
                threshold=config.s3.memory_threshold,
                memory=config.server.memory,
                pending_wait=config.s3.pending_wait,
                limits=Limits(idle=config.server.body_timeout, grace=config.server.body_timeout),
            ),
        )

    def _build_profiles(self, config: Config) -> Profiles | None:
        if config.s3 is None or self._upstream is None:
            return None
        return Profiles(self._upstream, self._database.now, config.s3.distrust)

    def _build_tables(self, config: Config, keys: Keys) -> TablePlane:
        rules, default = table_rules(config)
        postgres = config.postgres
        exposure = Exposure(
            postgres.schemas,
            rules,
            default,
            _table_prefixes(config),
            postgres.max_body,
            max_rows=postgres.max_rows,
            functions=frozenset(postgres.functions),
            tx_override=postgres.tx_override,
            overrides=postgres.overrides,
            verbose_errors=postgres.verbose_errors,
            openapi=postgres.openapi,
            origins=config.server.cors_origins,
        )
        return TablePlane(
            self._database, exposure, authenticate=keys.by_bearer, observe=self._observe, settle=self._settle
        )


def build(config: Config, observe: Observe = log) -> ASGIApp:
    """The whole gateway as an ASGI app. Its lifespan opens and closes what it needs."""
    return Middleware(Gateway(config, observe), observe)


async def sweep(config: Config, observe: Observe = log) -> Swept:
    """One round of the sweeper, as each gateway makes them. Raises ``ConfigurationError`` without an object store."""
    if config.s3 is None:
        raise ConfigurationError("there is nothing to sweep: no object store is configured", advice="Configure [s3].")
    database = _database(config)
    try:
        async with Upstream(config.s3) as upstream:
            profiles = Profiles(upstream, database.now, config.s3.distrust)
            runner = Runner(database, upstream, profiles, observe, config.s3.pending_wait)
            return await Sweeper(database, upstream, profiles, runner, observe).sweep()
    finally:
        await database.close()


def _bucket_view(profile: Profile) -> BucketView:
    missing = {finding.name: finding.consequence for finding in profile.findings if not finding.passed}
    return BucketView(writable=profile.writable, missing=missing)


def _database(config: Config) -> Database:
    postgres = config.postgres
    return Database(
        postgres.dsn.get_secret_value(),
        pool_size=postgres.pool_size,
        statement_timeout=postgres.statement_timeout,
        lock_timeout=postgres.lock_timeout,
        idle_timeout=postgres.idle_timeout,
        connect_timeout=postgres.connect_timeout,
    )


def _listening(config: Config) -> Listen | None:
    postgres = config.postgres
    return partial(listening, postgres.dsn.get_secret_value(), postgres.connect_timeout) if postgres.listen else None


def _table_prefixes(config: Config) -> tuple[str, ...]:
    return ("/v1/tables/", "/rest/v1/") if config.server.rest_v1 else ("/v1/tables/",)


def _clock() -> datetime:
    """Judges the age of inbound signatures, which only ends them; no write is decided by it."""
    return datetime.now(UTC)  # noqa: TID251
