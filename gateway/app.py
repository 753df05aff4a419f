"""The gateway: it wires the planes together, and dispatches requests between them by host and path. No logic."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import web, wiring
from gateway.api import credentials
from gateway.api.health_and_metrics import CUSTOMARY_PATHS
from gateway.api.requests import OF_LEASES, shown_path
from gateway.api.services import ConfigurationAccess, MetricsSource
from gateway.auth.issuers import Issuers
from gateway.budget import Budget
from gateway.config import Config, toml
from gateway.config.databases import DatabaseConfig
from gateway.config.reloadable import Change
from gateway.errors import GatewayError, StoreError, Unavailable
from gateway.fencing.ownership import Ownership
from gateway.fencing.record import Attempt
from gateway.guard.watching import GuardWatcher
from gateway.http import origins
from gateway.http.body import BodyReader, Pace
from gateway.http.crowd import CROWD
from gateway.http.direct import Prepared
from gateway.http.head import Head, KnownHeads
from gateway.http.middleware import Middleware, answer_problem
from gateway.journal.opening_table import Wait, wait_in_silence
from gateway.journal.protocol import Opening
from gateway.objects.bypass import BypassScan
from gateway.objects.exchange import ResponseWriter
from gateway.objects.pipeline import Neighbours
from gateway.objects.s3.addressing import bucket_of_host
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.objects.sweeper import Sweeper, Swept
from gateway.observe.events import Observe
from gateway.observe.gauges import Counted, DatabaseGauges, Snapshot
from gateway.observe.logs import log
from gateway.observe.telemetry import Observability
from gateway.part import Part, Shared, clock
from gateway.reloading import Reload, Reloading, Source, never
from gateway.routing import Databases, Routing
from gateway.workers.link import Link, NoAnswer


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
        self._link, self._telemetry, observe = link, telemetry, telemetry.observe
        self._issuers = Issuers(config.issuers, clock, observe)
        self._issuer = wiring.issuer(config, observe)
        self._identified = bool(config.issuers)
        databases = config.parts
        # Requests that wait for one database must not use up the memory of the others.
        shares = len(databases) + 1 if config.databases else 1
        settings, what = config.server, "bytes of memory for requests of this database"
        patience = config.limits.body_timeout
        pace = Pace(idle=patience, grace=patience)
        sizes = [settings.memory // shares] * shares
        waiting = {"share": settings.share, "patience": patience}
        bodies = [BodyReader(Budget(size, what, **waiting), pace) for size in sizes]
        self._bodies = bodies
        stores = {id(one.s3): one.s3 for one in databases if one.s3 is not None}
        upstreams = {key: Upstream(store, observe, config.limits.store_timeout) for key, store in stores.items()}
        profiles = {key: Profiles(upstreams[key], store.distrust) for key, store in stores.items()}
        self._upstreams = list(upstreams.values())
        ownership = Ownership(config.domains) if config.databases else None
        self._parts: dict[str | None, Part] = {}
        neighbours = Neighbours(ownership)
        for one, reader in zip(databases, bodies, strict=False):
            shared = Shared(
                observe=observe,
                issuers=self._issuers,
                issuer=self._issuer,
                bodies=reader,
                health=lambda: self._routing.states(),  # noqa: PLW0108 - it needs the parts
                ready=lambda: self._routing.first_states(),  # noqa: PLW0108
                metrics=MetricsSource(self._scrape, config.telemetry.public_metrics),
                configuration=ConfigurationAccess(toml.document(config), reload),
                journals=[each.journal.prefix for each in databases],
                neighbours=neighbours,
                workers=link.count if link else 1,
                allow_missing=allow_missing,
            )
            store = id(one.s3)
            self._parts[one.name] = Part(one, upstreams.get(store), profiles.get(store), DatabaseGauges(), shared)
        if ownership is None:
            self._routing = Routing(self._parts[None])
        else:
            named = {name: part for name, part in self._parts.items() if name is not None}
            self._routing = Databases(named, ownership, bodies[-1], config.limits.table_body)
        self._first = self._routing.default
        self._has_objects = bool(upstreams)
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
            head = Head.of(scope)
            plane = self._plane(head)
            scope["state"]["area"] = self._area(plane, scope)
            try:
                self._check_origin(head, plane)
                if self._identified and plane != "objects":
                    await self._first.keys.meet(head.headers)
                serve = self._serving(scope, plane)
            except GatewayError as error:
                scope["state"]["error"] = error
                await (ResponseWriter(scope, send).error(error) if plane == "objects" else answer_problem(error, send))
                return
            await serve(scope, receive, send)
        finally:
            self.leave()

    def _prepare(self, scope: Scope) -> Prepared | None:
        """Prepare for requests with the head of this one. None if each of them needs a task.

        Raises ``GatewayError`` if such requests are refused. Their tasks say so.
        """
        head = Head.of(scope)
        plane = self._plane(head)
        if plane not in ("tables", "api"):
            return None
        self._check_origin(head, plane)
        if plane == "tables":
            return self._routing.of_table(head).tables.prepare(head)
        api = self._routing.of_each_name()
        return None if api is None else api.prepare(scope, self._area(plane, scope))

    def _check_origin(self, head: Head, plane: str) -> None:
        """Raise ``Forbidden`` for a request that a page of another origin must not send.

        Requests to buckets are each signed, which no other site can do. The CORS rules of the bucket decide there. The
        object plane checks the requests of anonymous callers itself.
        """
        if plane != "objects":
            origins.check(head.method, head.headers, self._cors_origins if plane == "tables" else ())

    def _plane(self, head: Head) -> str:
        """Return the plane that serves a request: ``tables``, ``objects``, ``api`` or ``page``."""
        path = head.path
        if self._has_objects and self._host_bucket(head) is not None:
            return "objects"
        if path.startswith(self._table_prefixes):
            return "tables"
        if _is_unsigned_read(head):
            if head.raw_path in CUSTOMARY_PATHS:
                return "api"
            if head.raw_path == b"/" and (wanted := _wanted_of_root(head)) is not None:
                return wanted
        if path == "/" and head.method == "POST" and credentials.is_sts_request(head):
            return "api"
        first = path[1:].partition("/")[0]
        if first == web.SEGMENT:
            return "page"
        if not self._has_objects or first == "v1":
            return "api"
        # No bucket has so short a name, but a client of S3 takes its refusal in S3's form.
        return "api" if 1 <= len(first) <= 2 and not _is_signed_for_s3(head) else "objects"

    @staticmethod
    def _area(plane: str, scope: Scope) -> str:
        """Return the area of a request, as metrics name it: its plane, or a part of that."""
        head = Head.of(scope)
        if plane == "api" and head.path.startswith(OF_LEASES):
            scope["state"]["path"] = shown_path(head.method, head.raw_path.decode("utf-8", "replace"))
            return "leases"
        return "streams" if plane in ("api", "page") and head.path.endswith("/stream") else plane

    def _host_bucket(self, head: Head) -> str | None:
        """Return the bucket that the host of a request names; None if it names none."""
        return bucket_of_host(head.headers, self._domains) if self._domains else None

    def _serving(self, scope: Scope, plane: str) -> ASGIApp:
        """Return the app that serves a request to a plane.

        Raises ``GatewayError`` if it is about no database, or if no store can answer it.
        """
        head = Head.of(scope)
        if plane == "tables":
            return self._routing.of_table(head).tables
        if plane == "objects":
            objects = self._routing.of_object(head, self._host_bucket(head)).objects
            if objects is None:
                raise StoreError.known("NoSuchBucket")
            return objects
        return self._routing.of_page(scope) if plane == "page" else self._routing.of_api(scope)

    async def run(self, started: Callable[[], None]) -> None:
        """Run until it is stopped, or until it is retired and its last request has ended.

        Its tasks wait for Postgres and the store, so neither needs to be up yet.
        """
        async with self._answering():
            async with AsyncExitStack() as stack:
                for part in self._parts.values():
                    await stack.enter_async_context(part.in_background())
                started()
                await self._retired.wait()
            await self._idle.wait()

    def retire(self) -> None:
        """End the work that no request needs, and the streams. No further request comes."""
        for part in self._parts.values():
            part.close_streams()
        self._retired.set()
        if not self._requests:
            self._idle.set()

    def stop(self) -> None:
        """End, whether requests run or not."""
        self._retired.set()
        self._idle.set()

    async def record_reload(self, attempt: Attempt, changed: Sequence[Change]) -> None:
        """Put on record, durably, that a configuration takes effect. Raises ``GatewayError``."""
        changes = [{"setting": one.setting, "was": one.was, "is": one.now} for one in changed]
        await self._routing.record_reload(attempt, changes)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Run what requests need."""
        try:
            async with AsyncExitStack() as stack:
                for upstream in self._upstreams:
                    await stack.enter_async_context(upstream)
                for part in self._parts.values():
                    await stack.enter_async_context(part.answering())
                await stack.enter_async_context(self._issuers.running())
                yield
        finally:
            if self._issuer is not None:
                await self._issuer.close()

    async def _scrape(self, accept: str) -> tuple[bytes, str]:
        if self._link is None:
            await self._refresh({})
            return self._telemetry.metrics.render(accept)
        try:
            gathered = await self._link.gather()
            counted = await self._refresh(gathered.counted or {})
            if counted:
                await self._link.publish(counted)
        except NoAnswer as error:
            raise Unavailable("The parent of the workers has ended, and this worker is about to end.") from error
        self._telemetry.standing.workers.set(gathered.serving)
        return self._telemetry.metrics.render(accept, gathered)

    async def _refresh(self, counted: Mapping[str | None, Counted]) -> dict[str | None, Counted]:
        """Bring all gauges up to date, those of all databases side by side."""
        parts = self._parts.values()
        ends = await asyncio.gather(*(part.vitals.refresh(counted.get(part.name)) for part in parts))
        self._set_gauges()
        return {part.name: end for part, end in zip(parts, ends, strict=True) if end is not None}

    def snapshot(self) -> Snapshot:
        """Return the present values of this worker's metrics."""
        for part in self._parts.values():
            part.set_gauges(part.gauges)
        self._set_gauges()
        return self._telemetry.metrics.snapshot()

    def _set_gauges(self) -> None:
        """Set the gauges of this process. After a reload, others have those about its databases."""
        standing = self._telemetry.standing
        standing.databases = {part.name: part.gauges for part in self._parts.values()}
        standing.connections.set(CROWD.open)
        standing.memory.set(sum(one.memory.used for one in self._bodies))
        standing.memory_limit.set(sum(one.memory.size for one in self._bodies))


def _wanted_of_root(head: Head) -> str | None:
    """Return the plane that answers an unsigned read of ``/``: the page for a browser, links for curl.

    None: a client of S3 asks for the public buckets. Its libraries name no media type, or send headers of their own.
    """
    accepted = head.value(b"accept") or b""
    if b"text/html" in accepted:
        return "page"
    if any(name == b"authorization" or name.startswith(b"x-amz-") for name, _ in head.headers):
        return None
    return "api" if b"application/json" in accepted or accepted.startswith(b"*/*") else None


def _is_unsigned_read(head: Head) -> bool:
    """Return whether a request only reads, and no bucket could serve it because it has no signature of S3.

    A signature is in the query or in the header ``Authorization``.
    """
    return head.method in ("GET", "HEAD") and not head.query_string and not _is_signed_for_s3(head)


def _is_signed_for_s3(head: Head) -> bool:
    return any(name == b"authorization" and value.strip()[:3].upper() == b"AWS" for name, value in head.headers)


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
        middleware.turns.share = config.server.share
        middleware.app = telemetry.around(serving)

    async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await reloading.lifespan(scope, receive, send)
        finally:
            await telemetry.close()
        # The server is told last: it ends the loop then, with all that is still under way.
        await send({"type": "lifespan.shutdown.complete"})

    reloading = Reloading(config, gateway, switch, telemetry.observe, source)
    if link is not None:
        link.attach(reloading.follow, lambda: reloading.serving.snapshot())  # noqa: PLW0108 - each reload replaces it
    middleware = Middleware(telemetry.around(reloading.serving), telemetry.observe, lifespan)
    middleware.turns.share = config.server.share
    return middleware


async def sweep(config: DatabaseConfig, observe: Observe = log) -> Swept:
    """Run one round of the sweeper, as each gateway does, and a pass over all rows that guards watch."""
    async with wiring.opened(config, observe) as storage:
        database, upstream = storage.database, storage.upstream
        rows = await GuardWatcher(database, observe).sweep()
        objects = wiring.object_runner(config, storage, observe)
        if objects is None or upstream is None:
            return Swept(bypasses=rows)
        runner, profiles = objects
        scan = BypassScan(database, upstream, wiring.resources(config), observe)
        swept = await Sweeper(database, upstream, profiles, runner, observe, scan).sweep()
        return replace(swept, bypasses=swept.bypasses + rows)


async def open_database(
    config: DatabaseConfig, observe: Observe = log, *, accept_loss: bool = False, wait: Wait = wait_in_silence
) -> Opening:
    """Open the database for the present run of its server, as the first gateway that connects does.

    ``accept_loss``: although acknowledged raises may be lost. It may wait for minutes then, by ``wait``.
    """
    async with wiring.opened(config, observe, wait=wait) as storage:
        return await storage.journal.open(accept_loss=accept_loss)
