"""The events of the gateway, as frozen data. Call sites state an event; sinks decide what to make of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal, NamedTuple, TypeAlias

from gateway.fencing.record import Refusal, Rejection

Plane = Literal["tables", "objects", "api"]
Service = Literal["postgres", "s3", "issuer"]
FoundBy = Literal["write", "sweep"]
Way = Literal["recipe", "statement", "transaction", "store"]
"""How a write was carried out: as one of a form seen before, as one statement, in a transaction, by the store."""
Answer = Literal["granted", "kept", "refused", "renewed", "lost", "released", "withdrawn", "broken"]

# An event of each request, or a frequent one, is a named tuple. It is as frozen as a dataclass, and made in a third of
# the time. By that, the log also knows which events it leaves out.


class RequestAnswered(NamedTuple):
    """A request is over. ``status`` is 0 if its client was gone; ``code`` is that of its error.

    ``area`` is the plane, or ``leases``, ``page`` or ``streams``. ``seconds`` count from the head of the request to the
    end of the answer; ``sent`` is in bytes. ``caller`` is None if no caller was proven, ``client`` is the network
    address, and ``client_request_id`` is the client's own id of the request.
    """

    request_id: str
    area: str
    method: str
    path: str
    status: int
    code: str | None
    seconds: float
    sent: int
    caller: str | None
    client: str | None
    client_request_id: str | None


class WriteAccepted(NamedTuple):
    """A write has taken effect with the consent of its fences. ``rule``: the table or pattern of keys."""

    plane: Plane
    rule: str | None
    way: Way


class RefusalCounted(NamedTuple):
    """A stranger lacked a grant, or its write passed only because its rule observes. It has no entry of its own.

    Strangers have too many entries already.
    """

    plane: Plane
    refusal: Refusal


class StageEntered(NamedTuple):
    """A request, or work in the background, begins a stage: a part that may take time (``gateway.observe.stages``)."""

    area: str
    stage: str


class StageLeft(NamedTuple):
    """A stage is over. ``failure`` is the name of its exception; None if it succeeded."""

    area: str
    stage: str
    seconds: float
    failure: str | None


class BatchBegun(NamedTuple):
    """A batch of statements sets out. ``origins``: the span of the request behind each of them."""

    writes: bool
    origins: tuple[object, ...]


class BatchSent(NamedTuple):
    """A batch of statements is back. ``waited``: seconds for which its first statement had waited to set out."""

    writes: bool
    size: int
    waited: float
    seconds: float


class ServiceAsked(NamedTuple):
    """The gateway sends a request to the object store, or to the issuer of tokens."""

    service: Service
    method: str
    path: str


class ServiceAnswered(NamedTuple):
    """Such a request is over. Without an answer, ``status`` is None, and ``failure`` is the code of the error here."""

    service: Service
    method: str
    status: int | None
    seconds: float
    failure: str | None


class LeaseAnswered(NamedTuple):
    """The answer about a lease. ``granted`` is a new one, ``kept`` one that its holder had already."""

    answer: Answer
    leases: int = 1


@dataclass(frozen=True, slots=True)
class StepReached:
    """A durable step of a write is about to be taken or has been taken, e.g. ``objects.begin.before``.

    The names are listed in docs/verification.md; the crash tests stop and kill the process at each of them.
    """

    name: str


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """A write was refused by its fence (or, where the rule observes, would have been). It is on record already."""

    plane: Plane
    rejection: Rejection


@dataclass(frozen=True, slots=True)
class EntriesLeftOut:
    """So many writes of strangers have passed in a minute, only because their rules observe, and have no entry."""

    plane: Plane
    count: int


@dataclass(frozen=True, slots=True)
class IntentSettled:
    """A pending object write of an older holder was settled: it cannot take effect any more."""

    resource: str
    bucket: str
    key: str
    write_id: str


@dataclass(frozen=True, slots=True)
class OutcomeLost:
    """An S3 write was answered with "unknown"; its intent stays until the next writer settles it."""

    resource: str
    bucket: str
    key: str
    write_id: str


@dataclass(frozen=True, slots=True)
class TombstoneSwept:
    """The sweeper has removed a tombstone. No request can be waiting for the absence of the key any more."""

    resource: str
    bucket: str
    key: str


@dataclass(frozen=True, slots=True)
class UploadSwept:
    """The sweeper has aborted an upload that a gateway had left behind."""

    bucket: str
    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class SweepFailed:
    """Work in the background failed: for a key (``bucket/key``), or for all of a kind. The gateway repeats it.

    The log has it once a minute at most for each ``what`` and ``error``, with the ``count`` of times.
    """

    what: str
    error: str


@dataclass(frozen=True, slots=True)
class Listening:
    """The gateway listens, and is about to answer requests. ``files``: how many each process may have open."""

    url: str
    files: int


@dataclass(frozen=True, slots=True)
class ConnectionsCrowded:
    """So many files are open that each new connection takes the place of another one. Stated once a minute at most.

    ``connections`` are open, and ``limit`` is that of open files. ``closed`` were closed since the event before. They
    waited for their client, or were new ones of a crowd at work. ``network`` has the most that wait for their
    client: an IPv4 address or an IPv6 /64. It is None without connections.
    """

    connections: int
    limit: int
    closed: int
    network: str | None


@dataclass(frozen=True, slots=True)
class ServiceUnreachable:
    """Postgres, the object store, the collector of traces, or an issuer could not be reached, or refuses the gateway.

    The log has it once a minute at most for each cause, ``repeated_as`` or else ``error``, with the ``count`` of times.
    """

    service: Literal["postgres", "s3", "collector", "issuer"]
    error: str
    advice: str | None = None
    repeated_as: str = ""


@dataclass(frozen=True, slots=True)
class RequestNotServed:
    """A request was answered with 503: the gateway, or a service behind it, could not do what it asks for.

    The log has it once a minute at most for each cause, ``repeated_as``, with the ``count`` of requests. ``advice`` is
    for the operator, and so are the ``particulars``: host and port of what cannot be reached, and its own words.
    """

    request_id: str
    area: str
    code: str
    cause: str
    particulars: str
    advice: str
    repeated_as: str


@dataclass(frozen=True, slots=True)
class KeysChanged:
    """An issuer of identity tokens has other keys than before."""

    issuer: str
    keys: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request ended in an error that is the gateway's own fault."""

    request_id: str
    method: str
    path: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class BucketAdministered:
    """A caller has changed a bucket or its settings; ``status`` is the store's answer."""

    caller: str
    operation: str
    bucket: str
    status: int


@dataclass(frozen=True, slots=True)
class DatabaseOpened:
    """This gateway has opened the database for a new run of its server.

    ``continues``: it is a restart of the same server. A promoted standby or a restored backup is another one, or on
    another timeline, and may have lost fences. ``restored``: fences that were lost, and are raised again.
    ``waiting``: resources whose object writes wait for lost ones to be dead; None for all.
    """

    term: int
    timeline: int
    started: datetime
    continues: bool
    restored: int = 0
    waiting: int | None = 0


@dataclass(frozen=True, slots=True)
class ConfigurationNoted:
    """The configuration names something that does not exist yet, or that could not be checked."""

    warning: str


@dataclass(frozen=True, slots=True)
class SchemaIsNewer:
    """The fencing schema is newer than this version of the gateway, as it is during an upgrade."""

    notice: str


@dataclass(frozen=True, slots=True)
class ConfigurationReloaded:
    """Another configuration is in force. ``by``: SIGHUP, watch, or the method of a request. ``caller``: its sender."""

    by: str
    caller: str
    changes: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReloadFailed:
    """A configuration was not put in force. The former one stays in force, as a whole."""

    error: str


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker has ended, and another one takes its place after ``wait`` seconds. ``code``: negative for a signal."""

    worker: int
    pid: int
    code: int
    wait: float


@dataclass(frozen=True, slots=True)
class CatalogWarning:
    """A fenced table has a trigger, policy or foreign key with side effects that its fence does not see."""

    table: str
    warning: str


@dataclass(frozen=True, slots=True)
class BypassFound:
    """A change bypassed the gateway. It is on record.

    ``reason`` says what: ``object-changed``, ``row-vanished``, ``guard-disabled`` … ``target`` is the object's path or
    the table; ``resource`` None where nothing tells it. ``count``: of rows, else 1.
    """

    plane: Plane
    reason: str
    resource: str | None
    target: str
    found_by: FoundBy
    count: int = 1


@dataclass(frozen=True, slots=True)
class GuardRefused:
    """The guard of a table has refused writes of sessions beside the gateway. They are on record.

    For those with all particulars there is a ``WriteRefused``, too.

    ``target`` is the table, None where that is not known, and where ``fencing.hold`` was called.
    """

    target: str | None
    reason: str | None
    count: int


class RecordSealed(NamedTuple):
    """So many entries got their places in the record."""

    sealed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HeadNoted:
    """The end of the record: the position and the hash (hex) of its last entry, as a witness outside the database."""

    position: int
    hash: str


@dataclass(frozen=True, slots=True)
class PartitionDropped:
    """A partition of the record, usually a week, was older than its retention and was dropped. This is on record.

    ``last_day``: up to which it went.
    """

    last_day: date


@dataclass(frozen=True, slots=True)
class WebhookDelivered:
    """A receiver has taken a message, after ``failures`` failed attempts. It has all entries up to ``position``."""

    webhook: str
    entries: int
    position: int
    failures: int


@dataclass(frozen=True, slots=True)
class WebhookFailed:
    """A receiver did not take a message, for ``failures`` times in a row. The gateway repeats it in ``wait`` seconds.

    ``wait`` is None where the receiver has said that it is gone: nothing is sent before a test message is accepted.
    """

    webhook: str
    error: str
    failures: int
    wait: float | None


@dataclass(frozen=True, slots=True)
class AlarmRaised:
    """More writes were refused within ``minutes`` than an alarm allows. It is on record."""

    alarm: str
    count: int
    minutes: int


@dataclass(frozen=True, slots=True)
class AlarmCleared:
    """An alarm is over, because refused writes are few again. ``count``: those refused while the alarm was on."""

    alarm: str
    count: int


class TracesSent(NamedTuple):
    """Spans have been handed to the collector, or it could not be reached and they are lost."""

    spans: int
    delivered: bool


Event: TypeAlias = (
    StepReached
    | RequestAnswered
    | WriteAccepted
    | StageEntered
    | StageLeft
    | BatchBegun
    | BatchSent
    | ServiceAsked
    | ServiceAnswered
    | LeaseAnswered
    | RecordSealed
    | HeadNoted
    | PartitionDropped
    | BypassFound
    | GuardRefused
    | TracesSent
    | WebhookDelivered
    | WebhookFailed
    | AlarmRaised
    | AlarmCleared
    | WriteRefused
    | RefusalCounted
    | EntriesLeftOut
    | IntentSettled
    | OutcomeLost
    | TombstoneSwept
    | UploadSwept
    | SweepFailed
    | ServiceUnreachable
    | KeysChanged
    | Listening
    | ConnectionsCrowded
    | RequestFailed
    | RequestNotServed
    | BucketAdministered
    | CatalogWarning
    | ConfigurationNoted
    | SchemaIsNewer
    | DatabaseOpened
    | ConfigurationReloaded
    | ReloadFailed
    | WorkerEnded
)

Observe: TypeAlias = Callable[[Event], None]


def ignore(_: Event) -> None:
    """Ignore an event: the sink of unobserved parts."""


class Sinks:
    """One sink that passes events to many. A sink with ``handlers``, by the kind of event, gets only these kinds."""

    __slots__ = ("_told", "sinks")

    def __init__(self, *sinks: Observe) -> None:
        self.sinks: tuple[Observe, ...] = ()
        for sink in sinks:
            self.sinks += sink.sinks if isinstance(sink, Sinks) else (sink,)
        # The sinks of each kind are found once: not every sink may see the events of each write.
        self._told: dict[type, tuple[Observe, ...]] = {}

    def __call__(self, event: Event) -> None:
        kind = type(event)
        told = self._told.get(kind)
        if told is None:
            handlers = [getattr(sink, "handlers", {kind: sink}).get(kind) for sink in self.sinks]
            told = self._told[kind] = tuple(handler for handler in handlers if handler is not None)
        for sink in told:
            sink(event)
