"""The services of one database that the endpoints of the API ask. They decide; an endpoint only passes on."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from gateway.api.authorisation import ApiAuthorisation
from gateway.auth.callers import Callers
from gateway.auth.principal import Principal
from gateway.db.database import Database
from gateway.fencing.decision import Decision, Fence, Presented
from gateway.fencing.sequencer import Signer
from gateway.http.body import BodyReader
from gateway.http.direct import Answer
from gateway.http.streaming import SEND_TIMEOUT, ReaderSlots
from gateway.leases.service import LeaseService
from gateway.observe.events import Observe
from gateway.record.following import Follower
from gateway.record.refusals import Audit
from gateway.reloading import Reload
from gateway.token_admission import Admission
from gateway.webhooks.outbox import Outbox

if TYPE_CHECKING:
    from gateway.api.health_and_metrics import BucketView, JournalView


class Barrier(Protocol):
    """Raise a fence, settle the pending writes of older holders, and return the decision of the fence."""

    async def __call__(self, resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]: ...


class Transact(Protocol):
    """Execute the writes in the body of a request, all or none. Raises a ``GatewayError``."""

    def __call__(
        self, scope: MutableMapping[str, Any], receive: Receive, principal: Principal, /
    ) -> Awaitable[Answer]: ...


HealthCheck: TypeAlias = Callable[[], Awaitable[dict[str, str]]]
"""Returns the state of each service behind the gateway: ``ok``, or the problem.

With several databases, a service is ``postgres`` or ``s3``, a dot and the name of the database.
"""

ProbedBuckets: TypeAlias = Callable[[], Mapping[str, "BucketView"]]
"""Returns the probed buckets by name."""

JournalState: TypeAlias = Callable[[], Awaitable["JournalView | None"]]
"""Returns the state of the journal; None without the database."""


class Report(Protocol):
    """An HTML document, and the name of its file."""

    @property
    def content(self) -> str: ...

    @property
    def name(self) -> str: ...


MakeReport: TypeAlias = Callable[[str, datetime | None, datetime | None], Awaitable[Report]]

Scrape: TypeAlias = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Returns the metrics and their media type, given the ``Accept`` header of a request."""


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """The metrics to serve. If ``public``, they are for all callers."""

    scrape: Scrape
    public: bool = False


@dataclass(frozen=True, slots=True)
class ConfigurationAccess:
    """``shown`` is the redacted configuration as TOML."""

    shown: str
    reload: Reload


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The limits of streams, in seconds: ``heartbeat`` between two signs of life, ``timeout`` for a client to read.

    A sign of life carries the position of the record. At most ``most`` streams are served at one time.
    """

    heartbeat: float = 15.0
    timeout: float = SEND_TIMEOUT
    most: int = 200


MOST_EXPORTS = 4
"""Exports that one process serves at one time. Each occupies a session of the database."""


class ReaderLimits:
    """The places for readers of the record: of streams and of exports."""

    def __init__(self) -> None:
        self.of_streams = StreamLimits()
        self.streams = ReaderSlots(self.of_streams.most, "streams")
        self.exports = ReaderSlots(MOST_EXPORTS, "exports")


@dataclass(frozen=True, slots=True)
class Services:
    """``ready`` may leave out slow databases. ``transact`` is the table plane's.

    ``documentation`` answers at ``/v1/docs``. ``health``, ``ready``, ``metrics`` and ``configuration`` are those of the
    whole gateway.
    """

    database: Database
    keys: Callers
    bodies: BodyReader
    barrier: Barrier
    admission: Admission
    signer: Signer
    audit: Audit
    authorisation: ApiAuthorisation
    health: HealthCheck
    ready: HealthCheck
    journal: JournalState
    buckets: ProbedBuckets
    transact: Transact
    leases: LeaseService
    observe: Observe
    follower: Follower
    make_report: MakeReport
    outbox: Outbox
    metrics: MetricsSource
    configuration: ConfigurationAccess
    documentation: Callable[[Request], Awaitable[Response]]
    readers: ReaderLimits = field(default_factory=ReaderLimits)
