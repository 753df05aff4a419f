"""One database of a gateway, with all that stands in it: planes, locks, record, page, and background tasks.

A gateway with one database has one part. Parts share nothing that waits for a database, so one that is down takes no
other one with it (docs/guides/many-databases.md).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gateway import web, wiring
from gateway.api import TABLE
from gateway.api.authorisation import ApiAuthorisation
from gateway.api.health_and_metrics import BucketView, JournalView
from gateway.api.incidents import Acknowledging
from gateway.api.routes import Api
from gateway.api.services import ConfigurationAccess, HealthCheck, MetricsSource, Services
from gateway.auth.issuers import Issuers
from gateway.auth.sigv4 import Signers
from gateway.background import background_tasks
from gateway.budget import Budget
from gateway.config.databases import DatabaseConfig
from gateway.db import intents, rights
from gateway.db.notifications import CATALOG, LEASES, RECORD, listening
from gateway.db.record import record_administration
from gateway.errors import GatewayError, Unavailable
from gateway.fencing.decision import Decision, Fence, Presented
from gateway.fencing.ownership import Owned
from gateway.fencing.record import Attempt
from gateway.findings import asked_by
from gateway.guard.watching import GuardWatcher
from gateway.http.body import BodyReader
from gateway.journal.opening_table import read_opening
from gateway.leases.service import LeaseService
from gateway.objects.pipeline import Neighbours, ObjectPlane, Settings
from gateway.objects.store.bucket_profile import Profile
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.observe.events import Observe, ServiceUnreachable, Sinks
from gateway.observe.gauges import DatabaseGauges, GaugeReader
from gateway.record.flushing import KeyUses, Traffic, flushing
from gateway.record.following import Follower
from gateway.record.payload_capture import Capture
from gateway.record.refusals import Audit, Denials
from gateway.record.sealing import Sealing
from gateway.tables.execute import idempotency
from gateway.tables.execute.authorisation import TableAuthorisation
from gateway.tables.pipeline import TablePlane
from gateway.token_admission import Admission, Issuer
from gateway.web import resource_page
from gateway.web.rendering import Place, Site
from gateway.web.resource_page import Report
from gateway.webhooks.alarms import AlarmWatch
from gateway.webhooks.outbox import Outbox
from gateway.wiring import alarms, webhooks


@dataclass(frozen=True, slots=True)
class Shared:
    """The things that all parts of a gateway have in common. ``issuer`` issues the tokens if this gateway does not.

    ``health``, ``ready``, ``metrics`` and ``configuration`` are those of the whole gateway. ``workers``: how many
    processes serve. ``journals``: the prefixes of keys at which journals are. ``neighbours``: all object planes.
    """

    observe: Observe
    issuers: Issuers
    issuer: Issuer | None
    bodies: BodyReader
    health: HealthCheck
    ready: HealthCheck
    metrics: MetricsSource
    configuration: ConfigurationAccess
    journals: Sequence[str]
    neighbours: Neighbours
    workers: int
    allow_missing: bool


class Part:
    """One database. ``upstream``: the store that has its buckets. ``profiles``: the behaviour of that store."""

    def __init__(
        self,
        config: DatabaseConfig,
        upstream: Upstream | None,
        profiles: Profiles | None,
        gauges: DatabaseGauges,
        shared: Shared,
    ) -> None:
        self.name, self.upstream, self._profiles, self._shared = config.name, upstream, profiles, shared
        owned = self._owned = config.owned
        self._traffic = Traffic()
        self._troubles: dict[str, GatewayError] = {}
        self._observe = observe = Sinks(shared.observe, self._traffic)
        self._storage = wiring.storage(config, shared.observe, upstream)
        self._database = self._storage.database
        self._listen = partial(listening, self._database.servers, CATALOG)
        self._sweep_interval = config.limits.sweep_interval * shared.workers
        self._capture = Capture(config.audit.capture, config.audit.redact)
        self.keys = wiring.callers(config, shared.issuers, clock)
        self._denials = Denials(self._database, observe)
        policies, signer = wiring.policies(config), wiring.signer(config)
        self._spellings = wiring.spellings(config, self._database)
        self._admission = Admission(self._database, policies, signer, shared.issuer)
        self.objects = self._build_objects(config)
        self.tables = self._build_tables(config, owned)
        self._leases = LeaseService(
            self._database,
            observe,
            wiring.lease_terms(config, policies),
            listen=partial(listening, self._database.servers, LEASES),
        )
        self._sealing = Sealing(self._database, observe, config.audit.retention)
        self._follower = Follower(self._database, observe, partial(listening, self._database.servers, RECORD))
        self._outbox = Outbox(self._database, webhooks(config), observe)
        self._watch = AlarmWatch(self._database, alarms(config), observe)
        authorisation = ApiAuthorisation(self._denials.refuse, owned, self._spellings)
        acknowledging = Acknowledging(self._database, authorisation)
        services = Services(
            database=self._database,
            keys=self.keys,
            bodies=shared.bodies,
            barrier=self._barrier,
            admission=self._admission,
            signer=signer,
            audit=Audit(self._database, observe, "api"),
            authorisation=authorisation,
            health=shared.health,
            ready=shared.ready,
            journal=self._journal,
            buckets=self._buckets,
            transact=self.tables.transact,
            follower=self._follower,
            make_report=self._report,
            outbox=self._outbox,
            leases=self._leases,
            observe=observe,
            metrics=shared.metrics,
            configuration=shared.configuration,
            documentation=self._document,
        )
        self.api = Api(TABLE, services)
        self.gauges = gauges
        self.vitals = GaugeReader(
            gauges,
            self._database,
            now=self.set_gauges,
            services=self.probes,
            webhooks=[webhook.name for webhook in config.webhooks],
            alarms=[alarm.name for alarm in config.alarms],
        )
        self.place = Place(
            *(None, self._database, self._follower, config, self.states, self._troubles, self._journal, self._buckets),
            self.api,
            acknowledging,
        )
        self._site = Site(self.place)
        self.logins = wiring.logins(config, shared.issuers, self.keys, observe)
        self.web = web.build(self._site, self.keys, self.logins, clock, shared.bodies)

    @property
    def memory(self) -> Budget:
        return self._shared.bodies.memory

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Run what requests need."""
        try:
            async with (
                background_tasks(*(servers.watch() for servers in self._storage.servers)),
                self._storage.journal.running(),
                flushing(self._database, (self._traffic, KeyUses(self.keys.uses), self._denials), self._observe),
                self.tables.running(self._listen),
                self._leases.running(),
            ):
                yield
        finally:
            await self._storage.close()

    @asynccontextmanager
    async def in_background(self) -> AsyncIterator[None]:
        """Run what no request needs."""
        async with (
            self._sealing.running(),
            self._follower.running(),
            idempotency.cleanup(self._database, idempotency.RETENTION, self._observe),
            GuardWatcher(self._database, self._observe).running(),
            self._outbox.running(),
            self._watch.running(),
            nullcontext() if self.objects is None else self.objects.sweeper.running(self._sweep_interval),
        ):
            yield

    def close_streams(self) -> None:
        self._follower.close()

    async def record_reload(self, attempt: Attempt, changes: Sequence[Mapping[str, str]]) -> None:
        """Put on record, durably, that a configuration takes effect. Raises ``GatewayError``."""
        await record_administration(self._database, attempt, "ReloadConfiguration", changes=changes)

    async def _barrier(self, resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]:
        if self.objects is not None:
            return await self.objects.barrier(resource, presented, caller)
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

    async def states(self) -> dict[str, str]:
        """Return the state of each service behind the part: ``ok``, or the problem."""
        return {service: await state for service, state in self.probes().items()}

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

    def probes(self) -> Mapping[str, Awaitable[str]]:
        looks: dict[str, Callable[[], Awaitable[object]]] = {"postgres": self._reach_database}
        if self.upstream is not None:
            looks["s3"] = self.upstream.look
        return {one.name: self._state(one.name, looks[one.name]()) for one in asked_by("ready") if one.name in looks}

    async def _report(self, resource: str, since: datetime | None, until: datetime | None) -> Report:
        return await resource_page.make_report(self._site, resource, since, until)

    async def _document(self, request: Request) -> Response:
        return web.answer_documentation(self._site, request)

    def set_gauges(self, standing: DatabaseGauges) -> None:
        use = self._database.use()
        standing.sessions.values = {
            (pool, state): count
            for pool, one in use.items()
            for state, count in (("in_use", one.in_use), ("idle", one.idle))
        }
        standing.sessions_limit.values = {(pool,): one.limit for pool, one in use.items()}
        standing.sessions_waiting.values = {(pool,): one.waiting for pool, one in use.items()}
        standing.lock_waits.set(self._leases.waiting())
        standing.streams.set(self._follower.followers)
        status = self._storage.journal.status
        standing.journal_pending.set(status.pending if status else 0)
        standing.journal_lag.set(status.lag if status else 0)
        standing.journal_failing.set(status is not None and status.failure is not None)
        standing.journal_snapshot.set(status.snapshot if status else 0)

    def _buckets(self) -> dict[str, BucketView]:
        known, owned = {} if self._profiles is None else self._profiles.known, self._owned
        mine = [bucket for bucket in known if owned is None or owned.has_keys_in(bucket)]
        return {bucket: _bucket_view(known[bucket]) for bucket in mine}

    async def _state(self, service: str, probe: Awaitable[object]) -> str:
        try:
            await probe
        except GatewayError as error:
            self._troubles[service] = error
            self._observe(ServiceUnreachable(service, error.told, error.remedy, error.repeated_as))
            return error.cause.state
        self._troubles.pop(service, None)
        return "ok"

    async def _reach_database(self) -> None:
        """Raise the error that requests meet. After a full disk or a missing right, writing is tried."""
        await self._database.check_answers()
        if self._database.suspect:
            await rights.try_to_write(self._database)
            self._database.suspect = False

    def _build_objects(self, config: DatabaseConfig) -> ObjectPlane | None:
        if config.s3 is None or self.upstream is None or self._profiles is None:
            return None
        plane = ObjectPlane(
            database=self._database,
            upstream=self.upstream,
            profiles=self._profiles,
            resources=wiring.resources(config, self._shared.journals),
            signers=Signers(self.keys.secret_of, clock, self.keys.anonymous, self.keys.by_certificate),
            denials=self._denials,
            admission=self._admission,
            observe=self._observe,
            settings=Settings(
                domains=config.server.domains,
                max_body=config.server.max_body,
                threshold=config.limits.memory_threshold,
                pending_wait=config.limits.pending_wait,
                duplicates=config.s3.duplicates,
                late_after=timedelta(seconds=config.s3.late_after),
                capture=self._capture,
            ),
            bodies=self._shared.bodies,
            neighbours=self._shared.neighbours,
        )
        self._shared.neighbours.join(self.name, plane)
        return plane

    def _build_tables(self, config: DatabaseConfig, owned: Owned | None) -> TablePlane:
        keys = self.keys
        return TablePlane(
            self._database,
            wiring.exposure(config, allow_missing=self._shared.allow_missing),
            authenticate=lambda head: keys.by_bearer(head.headers, head.certificate),
            observe=self._observe,
            authorisation=TableAuthorisation(self._denials.refuse, owned, self._spellings),
            settle=self._settle,
            admission=self._admission,
            capture=self._capture,
            bodies=self._shared.bodies,
        )


def _bucket_view(profile: Profile) -> BucketView:
    missing = {finding.name: finding.consequence for finding in profile.findings if not finding.passed}
    return BucketView(writable=profile.writable, missing=missing)


def clock() -> datetime:
    """Return the time that ends inbound signatures and sessions. It decides about no write."""
    return datetime.now(UTC)  # noqa: TID251
