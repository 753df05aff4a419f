"""The gateway: it wires the planes together, and dispatches requests between them by host and path. No logic."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import api, web, wiring
from gateway.admission import Admission
from gateway.api import web_identity
from gateway.api.authorisation import Authorisation
from gateway.api.configuration import ConfigurationAccess
from gateway.api.health import CUSTOMARY_PATHS, BucketView, JournalView, MetricsSource
from gateway.api.incidents import Acknowledging
from gateway.api.leases import without_id
from gateway.api.requests import path_as_sent
from gateway.auth.callers import Callers
from gateway.auth.sigv4 import Signers
from gateway.background import background_tasks
from gateway.config import Config, toml
from gateway.config.changes import Change
from gateway.db import intents
from gateway.db.notifications import CATALOG, LEASES, RECORD
from gateway.db.opening import read_opening
from gateway.db.record import record_administration
from gateway.errors import DatabaseClosed, Forbidden, GatewayError, JournalUnusable, Unavailable
from gateway.fencing.decision import Decision, Fence, Presented
from gateway.fencing.record import Attempt
from gateway.guard.watching import GuardWatcher
from gateway.http import origins
from gateway.http.body import BodyReader, Memory, Pace
from gateway.http.connection import Connection
from gateway.http.direct import Prepared
from gateway.http.head import Head, KnownHeads
from gateway.http.middleware import Middleware, answer_problem
from gateway.journal.protocol import Opening
from gateway.leases.service import LeaseService
from gateway.objects.background.bypass_scan import BypassScan
from gateway.objects.background.sweeper import Sweeper, Swept
from gateway.objects.pipeline import ObjectPlane, Settings
from gateway.objects.probe.bucket_profile import Profile
from gateway.objects.probe.probe import Profiles
from gateway.objects.run.runner import Runner
from gateway.objects.s3.addressing import bucket_of_host
from gateway.objects.store.operations import Upstream
from gateway.observe.events import Observe, ServiceUnreachable, Sinks
from gateway.observe.gauges import GaugeReader, Snapshot, StatusGauges
from gateway.observe.logs import log
from gateway.observe.telemetry import Observability
from gateway.record.audit import Audit
from gateway.record.denials import Denials
from gateway.record.flushing import flushing
from gateway.record.following import Follower
from gateway.record.key_uses import KeyUses
from gateway.record.payload_capture import Capture
from gateway.record.sealing import Sealing
from gateway.record.traffic import Traffic
from gateway.reloading import Reload, Reloading, Source, never
from gateway.tables.execute import idempotency
from gateway.tables.pipeline import TablePlane
from gateway.web import incident_report
from gateway.web.incident_report import Report
from gateway.web.rendering import Site
from gateway.webhooks.alarms import AlarmWatch
from gateway.webhooks.outbox import Outbox
from gateway.wiring import alarms, webhooks
from gateway.workers.channel import NoAnswer
from gateway.workers.link import Link

_OF_LEASES = ("/v1/leases", "/v1/withdrawals")


class Gateway:
    """The ASGI app. A first path segment of one or two characters is the gateway's own; every other one is a bucket.

    All paths of a host that names a bucket belong to S3, too. A few paths that people know from other programs are the
    gateway's own for requests that no bucket could serve, because they are not signed.
    """

    def __init__(
        self,
        config: Config,
        telemetry: Observability,
        reload: Reload = never,
        *,
        allow_missing: bool = True,
        link: Link | None = None,
    ) -> None:
        self._link = link
        self._upstream = None if config.s3 is None else Upstream(config.s3, telemetry.observe)
        self._storage = wiring.storage(config, telemetry.observe, self._upstream)
        self._database = self._storage.database
        self._listen = wiring.listening(config, self._database, CATALOG)
        self._profiles = self._build_profiles(config)
        self._retention = config.postgres.idempotency_retention
        self._sweep_interval = 0.0 if config.s3 is None else config.s3.sweep_interval * (link.count if link else 1)
        self._traffic = Traffic()
        self._telemetry = telemetry
        self._observe = observe = Sinks(telemetry.observe, self._traffic)
        self._capture = Capture(config.audit.capture, config.audit.redact)
        pace = Pace(idle=config.server.body_timeout, grace=config.server.body_timeout)
        self._bodies = BodyReader(Memory(config.server.memory), pace)
        self._identified = bool(config.issuers)
        issuers = self._issuers = wiring.issuers(config, _clock, observe)
        keys = self._keys = wiring.callers(config, issuers, _clock)
        self._denials = Denials(self._database, observe)
        policies, signer, self._issuer = (
            wiring.policies(config),
            wiring.signer(config),
            wiring.issuer(config, observe),
        )
        self._admission = Admission(self._database, policies, signer, self._issuer)
        self._objects = self._build_objects(config, keys)
        self._tables = self._build_tables(config, keys, allow_missing=allow_missing)
        self._leases = LeaseService(self._database, observe, listen=wiring.listening(config, self._database, LEASES))
        self._sealing = Sealing(self._database, observe, config.audit.retention)
        self._follower = Follower(self._database, observe, wiring.listening(config, self._database, RECORD))
        self._outbox = Outbox(self._database, webhooks(config), observe)
        self._watch = AlarmWatch(self._database, alarms(config), observe)
        authorisation = Authorisation(self._denials)
        acknowledging = Acknowledging(self._database, authorisation)
        self._api = api.build(
            database=self._database,
            keys=keys,
            bodies=self._bodies,
            barrier=self._barrier,
            admission=self._admission,
            signer=signer,
            audit=Audit(self._database, observe, "api"),
            authorisation=authorisation,
            acknowledging=acknowledging,
            health=self._health,
            journal=self._journal,
            buckets=self._buckets,
            transact=self._tables.transact,
            follower=self._follower,
            make_report=self._report,
            outbox=self._outbox,
            holding=wiring.lease_terms(config, self._leases, signer, policies, observe),
            metrics=MetricsSource(self._scrape, config.telemetry.public_metrics),
            configuration=ConfigurationAccess(toml.document(config), reload),
            documentation=self._document,
        )
        self._vitals = GaugeReader(
            telemetry.standing,
            self._database,
            now=self._set_gauges,
            services=self._probes,
            webhooks=[webhook.name for webhook in config.webhooks],
            alarms=[alarm.name for alarm in config.alarms],
        )
        self._site = Site(
            *(self._database, self._follower, config, self._health, self._journal, self._buckets, self._api),
            acknowledging,
        )
        self._web = web.build(self._site, keys, wiring.logins(config, issuers, keys, observe), _clock, self._bodies)
        self._table_prefixes = wiring.table_prefixes(config)
        self._domains = config.server.domains
        self._cors_origins = config.server.cors_origins
        self.known_heads = KnownHeads(self._prepare, secrets.token_bytes(32))
        self._requests = 0
        self._retired, self._idle = asyncio.Event(), asyncio.Event()

    def enter(self) -> None:
        """Count a request that is under way."""
        self._requests += 1

    def leave(self) -> None:
        """Count a request as answered."""
        self._requests -= 1
        if not self._requests and self._retired.is_set():
            self._idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "begun" not in scope["state"]:
            self.enter()
        try:
            scope["state"]["area"], serve = self._area(scope)
            try:
                self._check_origin(scope, serve)
            except Forbidden as error:
                scope["state"]["code"] = error.code
                await answer_problem(error, send)
                return
            if self._identified and serve is not self._objects:
                await self._keys.meet(Head.of(scope).headers)
            await serve(scope, receive, send)
        finally:
            self.leave()

    def _prepare(self, scope: Scope) -> Prepared | None:
        """Prepare for requests with the head of this one. None if each of them needs a task.

        Raises ``GatewayError`` if such requests are refused. Their tasks say so.
        """
        _, serve = self._area(scope)
        if serve is not self._tables:
            return None
        self._check_origin(scope, serve)
        return self._tables.prepare(Head.of(scope))

    def _check_origin(self, scope: Scope, serve: ASGIApp) -> None:
        """Raise ``Forbidden`` for a request that a page of another origin must not send.

        Requests to buckets are each signed, which no other site can do. The CORS rules of the bucket decide there. The
        object plane checks the requests of anonymous callers itself.
        """
        if serve is not self._objects:
            allowed = self._cors_origins if serve is self._tables else ()
            head = Head.of(scope)
            origins.check(head.method, head.headers, allowed)

    def _area(self, scope: Scope) -> tuple[str, ASGIApp]:
        """Return the area of a request, as metrics name it, and the app that serves it."""
        head = Head.of(scope)
        path = head.path
        if self._domains and self._objects is not None and bucket_of_host(head.headers, self._domains) is not None:
            return "objects", self._objects
        if path.startswith(self._table_prefixes):
            return "tables", self._tables
        if _is_unsigned_read(head):
            if head.raw_path in CUSTOMARY_PATHS:
                return "api", self._api
            if head.raw_path == b"/" and b"text/html" in (head.value(b"accept") or b""):
                return "page", self._web
        if path == "/" and head.method == "POST" and web_identity.is_asked(head):
            return "api", self._api
        first = path[1:].partition("/")[0]
        streams = path.endswith("/stream")
        if first == web.SEGMENT:
            return "streams" if streams else "page", self._web
        if self._objects is None or 1 <= len(first) <= 2:
            if path.startswith(_OF_LEASES):
                scope["state"]["path"] = without_id(head.method, path_as_sent(scope))
                return "leases", self._api
            return "streams" if streams else "api", self._api
        return "objects", self._objects

    async def run(self, started: Callable[[], None]) -> None:
        """Run until it is stopped, or until it is retired and its last request has ended.

        Its tasks wait for Postgres and the store, so neither needs to be up yet.
        """
        async with self._answering():
            async with self._in_background():
                started()
                await self._retired.wait()
            await self._idle.wait()

    def retire(self) -> None:
        """End the work that no request needs, and the streams. No further request comes."""
        self._follower.close()
        self._retired.set()
        if not self._requests:
            self._idle.set()

    def stop(self) -> None:
        """End, whether requests run or not."""
        self._retired.set()
        self._idle.set()

    async def record_reload(self, attempt: Attempt, changed: Sequence[Change]) -> None:
        """Put on record, durably, that a configuration takes effect."""
        changes = [{"setting": one.setting, "was": one.was, "is": one.now} for one in changed]
        await record_administration(self._database, attempt, "ReloadConfiguration", changes=changes)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Run what requests need."""
        try:
            async with self._upstream or nullcontext():
                try:
                    async with (
                        background_tasks(*(servers.watch() for servers in self._storage.servers)),
                        self._storage.journal.running(),
                        flushing(
                            self._database, (self._traffic, KeyUses(self._keys.uses), self._denials), self._observe
                        ),
                        self._tables.running(self._listen),
                        self._leases.running(),
                        self._issuers.running(),
                    ):
                        yield
                finally:
                    await self._storage.close()
        finally:
            if self._issuer is not None:
                await self._issuer.close()
            api.forget()

    @asynccontextmanager
    async def _in_background(self) -> AsyncIterator[None]:
        async with (
            self._sealing.running(),
            self._follower.running(),
            idempotency.cleanup(self._database, self._retention, self._observe),
            GuardWatcher(self._database, self._observe).running(),
            self._outbox.running(),
            self._watch.running(),
            nullcontext() if self._objects is None else self._objects.sweeper.running(self._sweep_interval),
        ):
            yield

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
        """Call the barrier for the table plane, whose own claim then decides about the token."""
        await self._barrier(resource, presented, caller)

    async def _health(self) -> dict[str, str]:
        return {service: await state for service, state in self._probes().items()}

    async def _journal(self) -> JournalView | None:
        try:
            opened = await read_opening(self._database)
        except GatewayError:
            return None
        status = self._storage.journal.status
        view = JournalView(
            mode=opened.mode, state="ok", term=opened.term, opened_at=opened.opened_at, snapshot=opened.snapshot
        )
        if status is not None:
            view.pending, view.lag_seconds = status.pending, status.lag
            view.state = "ok" if status.failure is None else str(status.failure.facts["problem"])
        return view

    def _probes(self) -> dict[str, Awaitable[str]]:
        probes: dict[str, Awaitable[str]] = {"postgres": self._state("postgres", self._database.now())}
        if self._upstream is not None:
            probes["s3"] = self._state("s3", self._reach_store(self._upstream))
        return probes

    async def _report(self, resource: str, since: datetime | None, until: datetime | None) -> Report:
        return await incident_report.make(self._site, resource, since, until)

    async def _document(self, request: Request) -> Response:
        return web.answer_documentation(self._site, request)

    async def _scrape(self, accept: str) -> tuple[bytes, str]:
        if self._link is None:
            await self._vitals.refresh()
            return self._telemetry.metrics.render(accept)
        try:
            gathered = await self._link.gather(self.snapshot())
            counted = await self._vitals.refresh(gathered.counted)
            if counted is not None:
                await self._link.publish(counted)
        except NoAnswer as error:
            raise Unavailable("The parent of the workers has ended, and this worker is about to end.") from error
        self._telemetry.standing.workers.set(gathered.serving)
        return self._telemetry.metrics.render(accept, gathered)

    def snapshot(self) -> Snapshot:
        """Return the present values of this worker's metrics."""
        self._set_gauges(self._telemetry.standing)
        return self._telemetry.metrics.snapshot()

    def _set_gauges(self, standing: StatusGauges) -> None:
        """Set the gauges of this process."""
        use = self._database.use()
        standing.connections.set(Connection.open)
        standing.sessions.values = {
            (pool, state): count
            for pool, one in use.items()
            for state, count in (("in_use", one.in_use), ("idle", one.idle))
        }
        standing.sessions_limit.values = {(pool,): one.limit for pool, one in use.items()}
        standing.sessions_waiting.values = {(pool,): one.waiting for pool, one in use.items()}
        standing.lock_waits.set(self._leases.waiting())
        standing.streams.set(self._follower.followers)
        standing.memory.set(self._bodies.memory.used)
        standing.memory_limit.set(self._bodies.memory.size)
        status = self._storage.journal.status
        standing.journal_pending.set(status.pending if status else 0)
        standing.journal_lag.set(status.lag if status else 0)
        standing.journal_failing.set(status is not None and status.failure is not None)
        standing.journal_snapshot.set(status.snapshot if status else 0)

    def _buckets(self) -> dict[str, BucketView]:
        known = {} if self._profiles is None else self._profiles.known
        return {bucket: _bucket_view(profile) for bucket, profile in known.items()}

    async def _state(self, service: Literal["postgres", "s3"], probe: Awaitable[object]) -> str:
        try:
            await probe
        except GatewayError as error:
            self._observe(ServiceUnreachable(service, error.message))
            return "closed" if isinstance(error, DatabaseClosed | JournalUnusable) else "unreachable"
        return "ok"

    async def _reach_store(self, upstream: Upstream) -> None:
        async with await upstream.send("GET", "/") as response:
            if response.status >= 500:
                raise Unavailable(f"The store answers with {response.status}.")

    def _build_objects(self, config: Config, keys: Callers) -> ObjectPlane | None:
        if config.s3 is None or self._upstream is None or self._profiles is None:
            return None
        return ObjectPlane(
            database=self._database,
            upstream=self._upstream,
            profiles=self._profiles,
            resources=wiring.resources(config),
            signers=Signers(keys.secret_of, _clock, keys.anonymous, keys.by_certificate),
            denials=self._denials,
            admission=self._admission,
            observe=self._observe,
            settings=Settings(
                domains=config.server.domains,
                max_body=config.server.max_body,
                threshold=config.s3.memory_threshold,
                pending_wait=config.s3.pending_wait,
                duplicates=config.s3.duplicates,
                late_after=timedelta(seconds=config.s3.late_after),
                sweep_unconditionally=config.s3.sweep_unconditionally,
                capture=self._capture,
            ),
            bodies=self._bodies,
        )

    def _build_profiles(self, config: Config) -> Profiles | None:
        if config.s3 is None or self._upstream is None:
            return None
        return Profiles(self._upstream, config.s3.distrust)

    def _build_tables(self, config: Config, keys: Callers, *, allow_missing: bool) -> TablePlane:
        return TablePlane(
            self._database,
            wiring.exposure(config, allow_missing=allow_missing),
            authenticate=lambda head: keys.by_bearer(head.headers, head.certificate),
            observe=self._observe,
            denials=self._denials,
            settle=self._settle,
            admission=self._admission,
            capture=self._capture,
            bodies=self._bodies,
        )


def _is_unsigned_read(head: Head) -> bool:
    """Return whether a request only reads, and no bucket could serve it because it has no signature of S3.

    A signature is in the query or in the header ``Authorization``.
    """
    return (
        head.method in ("GET", "HEAD")
        and not head.query_string
        and not any(name == b"authorization" and value.strip()[:3].upper() == b"AWS" for name, value in head.headers)
    )


def build(
    config: Config,
    observe: Observe = log,
    *,
    source: Source | None = None,
    allow_missing: bool = True,
    link: Link | None = None,
) -> ASGIApp:
    """Build the whole gateway as an ASGI app. Its lifespan opens and closes its resources.

    ``source`` is read again for a reload. Without ``allow_missing`` it serves no table until each table with a rule has
    existed once. ``link``: this process is one of several workers.
    """
    telemetry = Observability(config, observe)

    def gateway(config: Config, reload: Reload) -> Gateway:
        return Gateway(config, telemetry, reload, allow_missing=allow_missing, link=link)

    def switch(config: Config, serving: Gateway) -> None:
        telemetry.announce(config)
        middleware.app = telemetry.around(serving)

    async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await reloading.lifespan(scope, receive, send)
        finally:
            await telemetry.close()

    reloading = Reloading(config, gateway, switch, telemetry.observe, source, link)
    if link is not None:
        link.attach(reloading, lambda: reloading.serving.snapshot())  # noqa: PLW0108 - each reload replaces it
    middleware = Middleware(telemetry.around(reloading.serving), telemetry.observe, lifespan)
    return middleware


async def sweep(config: Config, observe: Observe = log) -> Swept:
    """Run one round of the sweeper, as each gateway does, and a pass over all rows that guards watch."""
    async with AsyncExitStack() as stack:
        upstream = None
        if config.s3 is not None:
            upstream = await stack.enter_async_context(Upstream(config.s3, observe))
        storage = wiring.storage(config, observe, upstream)
        stack.push_async_callback(storage.close)
        database = storage.database
        rows = await GuardWatcher(database, observe).sweep()
        if config.s3 is None or upstream is None:
            return Swept(bypasses=rows)
        resources = wiring.resources(config)
        profiles = Profiles(upstream, config.s3.distrust)
        runner = Runner(
            *(database, upstream, profiles, observe, config.s3.pending_wait, resources, config.s3.duplicates),
            late_after=timedelta(seconds=config.s3.late_after),
        )
        scan = BypassScan(database, upstream, resources, observe)
        sweeper = Sweeper(
            *(database, upstream, profiles, runner, observe, scan),
            unconditionally=config.s3.sweep_unconditionally,
        )
        swept = await sweeper.sweep()
        return replace(swept, bypasses=swept.bypasses + rows)


async def open_database(config: Config, observe: Observe = log, *, accept_loss: bool = False) -> Opening:
    """Open the database for the present run of its server, as the first gateway that connects does.

    ``accept_loss``: although acknowledged raises may be lost. It may wait for minutes then.
    """
    async with AsyncExitStack() as stack:
        upstream = None
        if config.s3 is not None:
            upstream = await stack.enter_async_context(Upstream(config.s3, observe))
        storage = wiring.storage(config, observe, upstream)
        stack.push_async_callback(storage.close)
        return await storage.journal.open(accept_loss=accept_loss)


def _bucket_view(profile: Profile) -> BucketView:
    missing = {finding.name: finding.consequence for finding in profile.findings if not finding.passed}
    return BucketView(writable=profile.writable, missing=missing)


def _clock() -> datetime:
    """Return the time that ends inbound signatures and sessions. It decides about no write."""
    return datetime.now(UTC)  # noqa: TID251
