"""The events of the gateway, as frozen data: one table of what happens, and of what is told about it.

Call sites state an event; sinks decide what to make of it. Each event says by itself which line of the log is about it
(``told``). The log reads this table, and so does the reference: neither has a list of events.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from gateway.fencing.record import Refusal, Rejection

Plane = Literal["tables", "objects", "api"]
Service = Literal["postgres", "s3", "issuer"]
FoundBy = Literal["write", "sweep"]
Way = Literal["recipe", "statement", "transaction", "store"]
"""How a write was carried out: as one of a form seen before, as one statement, in a transaction, by the store."""
Answer = Literal["granted", "kept", "refused", "renewed", "lost", "released", "withdrawn", "broken"]
Level = Literal["info", "warning", "error"]
Kind = TypeVar("Kind", bound=type)


class Line(NamedTuple):
    """A line of the log about an event."""

    level: Level
    words: str
    members: Callable[[Any], dict[str, Any]]
    when: Callable[[Any], object] | None = None
    """Whether the line is about this event; None for each."""
    cause: Callable[[Any], str] | None = None
    """By what the log knows a repeated event: each cause has one line a minute, with the ``count`` of times."""
    rest: str = ""
    """The words about lines that did not fit into their second; empty for an event whose lines all do."""


LINES: dict[type, tuple[Line, ...]] = {}
"""The lines of each kind of event. The first one that is about an event is written."""


def told(
    level: Level,
    words: str,
    members: Callable[[Any], dict[str, Any]] | None = None,
    *,
    when: Callable[[Any], object] | None = None,
    cause: Callable[[Any], str] | None = None,
    rest: str = "",
) -> Callable[[Kind], Kind]:
    """Declare a line of the log about a kind of event. Without ``members``, it has those of the event."""

    def declare(kind: Kind) -> Kind:
        line = Line(level, words, members or _members(kind), when, cause, rest)
        LINES[kind] = (line, *LINES.get(kind, ()))
        return kind

    return declare


def _members(kind: type) -> Callable[[Any], dict[str, Any]]:
    names = [one.name for one in fields(kind)]
    return lambda event: {name: getattr(event, name) for name in names}


@dataclass_transform(frozen_default=True)
class Rare:
    """An event that is not one of each request: a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


# An event of each request, or a frequent one, is a named tuple. It is as frozen as a dataclass, and made in a third of
# the time. By that, the log also knows which events it leaves out.


# The query is left out: it may be what proves the request.
@told(
    "info",
    "request",
    lambda event: {
        "method": event.method,
        "path": event.path,
        "status": event.status or None,
        "code": event.code,
        "duration": round(event.seconds, 6),
        "bytes": event.sent,
        "plane": event.area,
        "caller": event.caller,
        "client": event.client,
        "request_id": event.request_id,
        "client_request_id": event.client_request_id,
    },
)
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


class StepReached(Rare):
    """A durable step of a write is about to be taken or has been taken, e.g. ``objects.begin.before``.

    The names are listed in docs/verification.md; the crash tests stop and kill the process at each of them.
    """

    name: str


def _of_refusal(event: "WriteRefused") -> dict[str, Any]:
    rejection, attempt, missing = event.rejection, event.rejection.attempt, event.rejection.missing
    return {
        "plane": event.plane,
        "resource": rejection.resource,
        "reason": rejection.reason,
        "token": str(attempt.token) if attempt.token else None,
        "fence": str(rejection.fence.token) if rejection.fence else None,
        "caller": attempt.caller,
        "holder": attempt.holder,
        "rejection": str(rejection.id),
        "request_id": attempt.request_id,
        **({"action": missing.action, "on": missing.on} if missing else {}),
    }


@told(
    "warning",
    "write refused",
    _of_refusal,
    when=lambda event: event.rejection.enforced,
    rest="more writes refused, all on record",
)
@told("warning", "write would be refused", _of_refusal, rest="more writes refused, all on record")
class WriteRefused(Rare):
    """A write was refused by its fence (or, where the rule observes, would have been). It is on record already."""

    plane: Plane
    rejection: Rejection


@told("warning", "writes of strangers would be refused, not on record")
class EntriesLeftOut(Rare):
    """So many writes of strangers have passed in a minute, only because their rules observe, and have no entry."""

    plane: Plane
    count: int


@told("info", "write settled")
class IntentSettled(Rare):
    """A pending object write of an older holder was settled: it cannot take effect any more."""

    resource: str
    bucket: str
    key: str
    write_id: str


@told("warning", "outcome lost")
class OutcomeLost(Rare):
    """An S3 write was answered with "unknown"; its intent stays until the next writer settles it."""

    resource: str
    bucket: str
    key: str
    write_id: str


@told("info", "tombstone swept")
class TombstoneSwept(Rare):
    """The sweeper has removed a tombstone. No request can be waiting for the absence of the key any more."""

    resource: str
    bucket: str
    key: str


@told("info", "upload swept")
class UploadSwept(Rare):
    """The sweeper has aborted an upload that a gateway had left behind."""

    bucket: str
    key: str
    upload_id: str


@told("warning", "sweep failed", cause=lambda event: f"{event.what}: {event.error}")
class SweepFailed(Rare):
    """Work in the background failed: for a key (``bucket/key``), or for all of a kind. The gateway repeats it.

    The log has it once a minute at most for each ``what`` and ``error``, with the ``count`` of times.
    """

    what: str
    error: str


@told("info", "listening")
class Listening(Rare):
    """The gateway listens, and is about to answer requests. ``files``: how many each process may have open."""

    url: str
    files: int


@told("warning", "connections crowded")
class ConnectionsCrowded(Rare):
    """So many files are open that each new connection takes the place of another one. Stated once a minute at most.

    ``connections`` are open, and ``limit`` is that of open files. ``closed`` were closed since the event before. They
    waited for their client, or were new ones of a crowd at work. ``network`` has the most that wait for their
    client: an IPv4 address or an IPv6 /64. It is None without connections.
    """

    connections: int
    limit: int
    closed: int
    network: str | None


@told(
    "error",
    "service unreachable",
    lambda event: {"service": event.service, "error": event.error, "advice": event.advice},
    cause=lambda event: event.repeated_as or event.error,
)
class ServiceUnreachable(Rare):
    """Postgres, the object store, the collector of traces, or an issuer could not be reached, or refuses the gateway.

    The log has it once a minute at most for each cause, ``repeated_as`` or else ``error``, with the ``count`` of times.
    """

    service: Literal["postgres", "s3", "collector", "issuer"]
    error: str
    advice: str | None = None
    repeated_as: str = ""


@told(
    "warning",
    "request not served",
    lambda event: {
        "plane": event.area,
        "code": event.code,
        "cause": event.cause,
        "particulars": event.particulars or None,
        "advice": event.advice,
        "request_id": event.request_id,
    },
    cause=lambda event: event.repeated_as,
)
class RequestNotServed(Rare):
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


@told("info", "keys of an issuer changed")
class KeysChanged(Rare):
    """An issuer of identity tokens has other keys than before."""

    issuer: str
    keys: int


@told(
    "error",
    "request failed",
    lambda event: {
        "request_id": event.request_id,
        "method": event.method,
        "path": event.path,
        "exc_info": event.error,
    },
)
class RequestFailed(Rare):
    """A request ended in an error that is the gateway's own fault."""

    request_id: str
    method: str
    path: str
    error: BaseException


@told("info", "bucket administered")
class BucketAdministered(Rare):
    """A caller has changed a bucket or its settings; ``status`` is the store's answer."""

    caller: str
    operation: str
    bucket: str
    status: int


@told("error", "database opened", when=lambda event: event.restored)
@told("info", "database opened", when=lambda event: event.continues)
@told("warning", "database opened")
class DatabaseOpened(Rare):
    """This gateway has opened the database for a new run of its server.

    ``continues``: it is a restart of the same server. A promoted standby or a restored backup is another one, or on
    another timeline, and may have lost fences. ``restored``: fences that were lost, and are raised again.
    ``waiting``: resources whose object writes wait for lost ones to be dead.
    """

    term: int
    timeline: int
    started: datetime
    continues: bool
    restored: int = 0
    waiting: int | Literal["all"] = 0


@told("warning", "configuration noted")
class ConfigurationNoted(Rare):
    """The configuration names something that does not exist yet, or that could not be checked."""

    warning: str


@told("info", "schema is newer")
class SchemaIsNewer(Rare):
    """The fencing schema is newer than this version of the gateway, as it is during an upgrade."""

    notice: str


@told("info", "configuration reloaded")
class ConfigurationReloaded(Rare):
    """Another configuration is in force. ``by``: SIGHUP, watch, or the method of a request. ``caller``: its sender."""

    by: str
    caller: str
    changes: Sequence[str]


@told("error", "reload failed")
class ReloadFailed(Rare):
    """A configuration was not put in force. The former one stays in force, as a whole."""

    error: str


@told("error", "worker ended")
class WorkerEnded(Rare):
    """A worker has ended, and another one takes its place after ``wait`` seconds. ``code``: negative for a signal."""

    number: int
    pid: int
    code: int
    wait: float


@told("warning", "catalog warning")
class CatalogWarning(Rare):
    """A fenced table has a trigger, policy or foreign key with side effects that its fence does not see."""

    table: str
    warning: str


@told("warning", "bypass found")
class BypassFound(Rare):
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


@told("warning", "guard refused")
class GuardRefused(Rare):
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


@told("info", "record ends")
class HeadNoted(Rare):
    """The end of the record: the position and the hash (hex) of its last entry, as a witness outside the database."""

    position: int
    hash: str


@told("info", "partition of the record dropped")
class PartitionDropped(Rare):
    """A partition of the record, usually a week, was older than its retention and was dropped. This is on record.

    ``last_day``: up to which it went.
    """

    last_day: date


@told(
    "info",
    "webhook delivers again",
    lambda event: {"webhook": event.webhook, "position": event.position, "failures": event.failures},
    when=lambda event: event.failures,
)
class WebhookDelivered(Rare):
    """A receiver has taken a message, after ``failures`` failed attempts. It has all entries up to ``position``."""

    webhook: str
    entries: int
    position: int
    failures: int


@told(
    "error",
    "webhook paused: its receiver is gone",
    lambda event: {"webhook": event.webhook, "error": event.error, "failures": event.failures},
    when=lambda event: event.wait is None,
)
@told("warning", "webhook failed")
class WebhookFailed(Rare):
    """A receiver did not take a message, for ``failures`` times in a row. The gateway repeats it in ``wait`` seconds.

    ``wait`` is None where the receiver has said that it is gone: nothing is sent before a test message is accepted.
    """

    webhook: str
    error: str
    failures: int
    wait: float | None


@told("warning", "alarm raised")
class AlarmRaised(Rare):
    """More writes were refused within ``minutes`` than an alarm allows. It is on record."""

    alarm: str
    count: int
    minutes: int


@told("info", "alarm cleared")
class AlarmCleared(Rare):
    """An alarm is over, because refused writes are few again. ``count``: those refused while the alarm was on."""

    alarm: str
    count: int


class TracesSent(NamedTuple):
    """Spans have been handed to the collector, or it could not be reached and they are lost."""

    spans: int
    delivered: bool


Event: TypeAlias = (
    Rare
    | RequestAnswered
    | WriteAccepted
    | RefusalCounted
    | StageEntered
    | StageLeft
    | BatchBegun
    | BatchSent
    | ServiceAsked
    | ServiceAnswered
    | LeaseAnswered
    | RecordSealed
    | TracesSent
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
