"""The events of the gateway, as frozen data: one table of what happens, and of what is told about it.

Call sites state an event; sinks decide what to make of it. Each event says by itself which line of the log is about it
(``Line``), and which metrics it moves (``Metric``). The log and the metrics read this table, and so does the reference:
none of them has a list of events.

No label of a metric has a value that a caller could choose: ``gateway.observe.metrics`` bounds them. Resources, callers
and holders are named in the record only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import product
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, dataclass_transform, get_args

from gateway.errors import OutcomeUnknown, Unavailable
from gateway.fencing.record import Refusal, Rejection

Plane = Literal["tables", "objects", "api"]
Service = Literal["postgres", "s3", "issuer"]
FoundBy = Literal["write", "sweep"]
Way = Literal["recipe", "statement", "transaction", "store"]
"""How a write was carried out: as one of a form seen before, as one statement, in a transaction, by the store."""
Answer = Literal["granted", "kept", "refused", "renewed", "lost", "released", "withdrawn", "broken"]
Level = Literal["info", "warning", "error"]
Kind = TypeVar("Kind", bound=type)


LINES: "dict[type, tuple[Line, ...]]" = {}
"""The lines of the log about each kind of event. The first one that is about an event is written."""


class Line(NamedTuple):
    """A line of the log, as a decorator of the kind of event that it is about."""

    level: Level
    words: str
    members: str | Callable[[Any], dict[str, Any]] = ""
    """The members that it shows, as ``name`` or ``name=member``; all, if it names none."""
    when: Callable[[Any], object] | None = None
    """Whether the line is about this event; None for each."""
    cause: Callable[[Any], str] | None = None
    """By what the log knows a repeated event: each cause has one line a minute, with the ``count`` of times."""
    rest: str = ""
    """The words about lines that did not fit into their second; empty for an event whose lines all do."""

    def __call__(self, kind: Kind) -> Kind:
        LINES[kind] = (self, *LINES.get(kind, ()))
        return kind

    def shown(self, event: object) -> dict[str, Any]:
        """Return the members of the line about an event."""
        if callable(self.members):
            return self.members(event)
        if not self.members:
            return vars(event)
        pairs = (one.partition("=") for one in self.members.split())
        return {name: getattr(event, member or name) for name, _, member in pairs}


Labels: TypeAlias = tuple[str | None, ...]
MOVES: "dict[type, tuple[Metric, ...]]" = {}
"""The metrics that each kind of event moves."""


class Metric(NamedTuple):
    """A metric, as a decorator of a kind of event that moves it. ``known`` labels exist from the beginning."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    known: Iterable[tuple[str, ...]] = ()
    kind: Literal["counter", "seconds", "sizes"] = "counter"
    """It counts times, or how many of which duration or size."""
    by: str | None = None
    """The member with the amount, or with the duration or size; None for one."""
    of: Callable[[Any], Labels | None] | None = None
    """The values of the labels; None for an event that does not count. Else they are members of these names."""

    def __call__(self, kind: Kind) -> Kind:
        MOVES[kind] = (self, *MOVES.get(kind, ()))
        return kind


AREAS = ("tables", "objects", "leases", "api", "page", "streams")
"""The planes, and other parts of a gateway that answer requests."""
CLASSES = {1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx", 0: "gone"}
"""The classes of statuses; ``gone``: the client had disconnected."""

STAGES: Mapping[str, Mapping[str, str]] = {
    "tables": {
        "queue": "writes that wait for their batch: the longest wait of each batch",
        "statement": "a batch of writes, until its commit",
        "read-queue": "plain reads that wait for their batch",
        "read": "a batch of plain reads",
        "admission": "the token policy, if it needs a lookup or a request to the issuer",
        "transaction": "a write in its own transaction: claim, statements, commit",
        "settle": "settling object writes of an older holder",
        "record": "putting a refusal on record",
    },
    "objects": {
        "begin": "claiming the resource and announcing the write",
        "head": "HEAD of the object",
        "put": "the store receives the object",
        "complete": "the store assembles the object from its parts",
        "amend": "the store changes tags, ACLs and the like",
        "delete": "the store deletes the object",
        "entomb": "a tombstone replaces the object",
        "finish": "removing the intent",
        "abandon": "removing the intent of a write that can have no effect any more",
        "forbid": "settling: forbids the ETag that an older write expects",
        "bump": "settling: the object gets another ETag",
        "give-up": "settling: aborts an upload",
        "raise": "a barrier raises the fence",
        "turn": "waiting for another write of the same holder",
        "record": "putting a refusal on record",
    },
    "api": {"record": "putting a refusal on record"},
    "leases": {
        "acquire": "acquiring a lock without waiting",
        "wait": "acquiring a lock, with its time in the queue",
        "barrier": "the barrier, as part of acquiring",
        "renew": "renewing one lease, or many",
        "release": "releasing a lease",
    },
}
"""Every stage, by its area, and what it is."""


@dataclass_transform(frozen_default=True)
class Rare:
    """An event that is not one of each request: a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


ACCEPTED = Metric(
    "gateway_writes_accepted_total",
    "Writes that have taken effect with the consent of their fences. `way`: a `recipe` (a "
    "known form of request), one `statement`, a `transaction`, or the `store`.",
    ("plane", "rule", "way"),
)
REFUSED = Metric(
    "gateway_writes_refused_total",
    "Refused writes: one for each resource that refused it. Each is on record, except strangers over budget.",
    ("plane", "rule", "reason"),
)
OBSERVED = Metric(
    "gateway_writes_observed_total",
    "Writes that passed only because their rule observes. Each is on record, except strangers over budget.",
    ("plane", "rule", "reason"),
)
STAGE = Metric(
    "gateway_stage_duration_seconds",
    "Duration of each stage of a request, listed below.",
    ("plane", "stage"),
    [(area, stage) for area, stages in STAGES.items() for stage in stages],
    "seconds",
)
MESSAGES = Metric(
    "gateway_webhook_messages_total",
    "Messages `delivered`, and `failed` ones, which are retried.",
    ("webhook", "outcome"),
)
ALARMS = Metric("gateway_alarms_raised_total", "How often refused writes exceeded the limit of the alarm.", ("alarm",))

# An event of each request, or a frequent one, is a named tuple. It is as frozen as a dataclass, and made in a third of
# the time.


# The query is left out: it may be what proves the request.
@Line(
    "info",
    "request",
    "method path status=answered code duration=seconds bytes=sent plane=area caller client request_id "
    "client_request_id",
)
@Metric(
    "gateway_request_duration_seconds",
    "From the head of a request to the end of its answer, so that a slow client counts. `plane`: `tables`, `objects`, "
    "`leases`, `api`, `page`, `streams`. `status`: `2xx` to `5xx`, or `gone` if the client had disconnected.",
    ("plane", "status"),
    list(product(AREAS, ("2xx", "4xx", "5xx"))),
    "seconds",
    by="seconds",
    of=lambda event: (event.area, CLASSES.get(event.status // 100)),
)
@Metric(
    "gateway_request_errors_total",
    "Requests that ended in an error; `other` means a code of PostgREST, the database or S3.",
    ("plane", "code"),
    list(product(AREAS, (Unavailable.code, OutcomeUnknown.code))),
    of=lambda event: None if event.code is None else (event.area, event.code),
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

    @property
    def answered(self) -> int | None:
        """Return the status; None if the client was gone."""
        return self.status or None


@ACCEPTED
class WriteAccepted(NamedTuple):
    """A write has taken effect with the consent of its fences. ``rule``: the table or pattern of keys."""

    plane: Plane
    rule: str | None
    way: Way


@REFUSED._replace(of=lambda event: _refused(event.plane, event.refusal, enforced=True))
@OBSERVED._replace(of=lambda event: _refused(event.plane, event.refusal, enforced=False))
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


@STAGE._replace(of=itemgetter(0, 1), by="seconds")
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


@Metric(
    "gateway_batch_size",
    "Table statements in one round trip: `writes`, `reads`.",
    ("kind",),
    [("writes",), ("reads",)],
    "sizes",
    of=lambda event: ("writes" if event.writes else "reads",),
    by="size",
)
@STAGE._replace(of=lambda event: ("tables", "queue" if event.writes else "read-queue"), by="waited")
@STAGE._replace(of=lambda event: ("tables", "statement" if event.writes else "read"), by="seconds")
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


@Metric(
    "gateway_service_request_duration_seconds",
    "Requests to `s3` and to the `issuer`, until the head of the answer. `outcome`: `2xx` to "
    "`5xx`, `unavailable` (nothing was sent, or a read got no answer), `outcome-unknown` (a "
    "write got no answer).",
    ("service", "method", "outcome"),
    kind="seconds",
    of=lambda event: (
        event.service,
        event.method,
        event.failure if event.status is None else CLASSES.get(event.status // 100),
    ),
    by="seconds",
)
class ServiceAnswered(NamedTuple):
    """Such a request is over. Without an answer, ``status`` is None, and ``failure`` is the code of the error here."""

    service: Service
    method: str
    status: int | None
    seconds: float
    failure: str | None


@Metric(
    "gateway_lease_answers_total",
    "Answers: `granted`, `kept` (its holder had it already), `refused`, `renewed`, `lost`, "
    "`released`, `withdrawn`, `broken`.",
    ("answer",),
    [(answer,) for answer in get_args(Answer)],
    by="leases",
)
class LeaseAnswered(NamedTuple):
    """The answer about a lease. ``granted`` is a new one, ``kept`` one that its holder had already."""

    answer: Answer
    leases: int = 1


class StepReached(Rare):
    """A durable step of a write is about to be taken or has been taken, e.g. ``objects.begin.before``.

    The names are listed in docs/verification.md; the crash tests stop and kill the process at each of them.
    """

    name: str


def _refused(plane: str, refused: Refusal | Rejection, *, enforced: bool) -> Labels | None:
    return (plane, refused.attempt.rule, refused.reason) if refused.enforced is enforced else None


def refusal_facts(event: "WriteRefused") -> dict[str, Any]:
    """Return what log lines and spans tell of a refused write."""
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


@Line(
    "warning",
    "write refused",
    refusal_facts,
    when=lambda event: event.rejection.enforced,
    rest="more writes refused, all on record",
)
@Line("warning", "write would be refused", refusal_facts, rest="more writes refused, all on record")
@REFUSED._replace(of=lambda event: _refused(event.plane, event.rejection, enforced=True))
@OBSERVED._replace(of=lambda event: _refused(event.plane, event.rejection, enforced=False))
class WriteRefused(Rare):
    """A write was refused by its fence (or, where the rule observes, would have been). It is on record already."""

    plane: Plane
    rejection: Rejection


@Line("warning", "writes of strangers would be refused, not on record")
class EntriesLeftOut(Rare):
    """So many writes of strangers have passed in a minute, only because their rules observe, and have no entry."""

    plane: Plane
    count: int


@Line("info", "write settled")
@Metric("gateway_intents_settled_total", "Settled object writes of older holders.")
class IntentSettled(Rare):
    """A pending object write of an older holder was settled: it cannot take effect any more."""

    resource: str
    bucket: str
    key: str
    write_id: str


@Line("warning", "outcome lost")
@Metric("gateway_outcomes_lost_total", "Object writes whose outcome was unknown until a later write settled them.")
class OutcomeLost(Rare):
    """An S3 write was answered with "unknown"; its intent stays until the next writer settles it."""

    resource: str
    bucket: str
    key: str
    write_id: str


@Line("info", "tombstone swept")
@Metric("gateway_tombstones_swept_total", "Removed tombstones.")
class TombstoneSwept(Rare):
    """The sweeper has removed a tombstone. No request can be waiting for the absence of the key any more."""

    resource: str
    bucket: str
    key: str


@Line("info", "upload swept")
@Metric("gateway_uploads_swept_total", "Aborted uploads that were left behind.")
class UploadSwept(Rare):
    """The sweeper has aborted an upload that a gateway had left behind."""

    bucket: str
    key: str
    upload_id: str


@Line("warning", "sweep failed", cause=lambda event: f"{event.what}: {event.error}")
@Metric("gateway_sweep_failures_total", "Failures of background work, each time.")
class SweepFailed(Rare):
    """Work in the background failed: for a key (``bucket/key``), or for all of a kind. The gateway repeats it."""

    what: str
    error: str


@Line("info", "listening")
class Listening(Rare):
    """The gateway listens, and is about to answer requests. ``files``: how many each process may have open."""

    url: str
    files: int


@Line("warning", "connections crowded")
@Metric(
    "gateway_connections_crowded_out_total",
    "Connections that were closed for new ones near the limit of open files, or that were new ones of a crowd "
    "at work. It lags a minute at most.",
    by="closed",
)
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


@Line(
    "error",
    "service unreachable",
    "service error advice",
    cause=lambda event: event.repeated_as or event.error,
)
@Metric(
    "gateway_service_unreachable_total",
    "How often a service was found unreachable.",
    ("service",),
    [("postgres",), ("s3",)],
)
class ServiceUnreachable(Rare):
    """Postgres, the object store, the collector of traces, or an issuer could not be reached, or refuses the gateway.

    ``repeated_as``: by what the log knows it again, if not by its ``error``.
    """

    service: str
    error: str
    advice: str | None = None
    repeated_as: str = ""


@Line(
    "warning",
    "request not served",
    "plane=area code cause particulars advice request_id",
    cause=lambda event: event.repeated_as,
)
class RequestNotServed(Rare):
    """A request was answered with 503: the gateway, or a service behind it, could not do what it asks for.

    ``advice`` is for the operator, and so are the ``particulars``: host and port of what cannot be reached, and its own
    words.
    """

    request_id: str
    area: str
    code: str
    cause: str
    particulars: str | None
    advice: str
    repeated_as: str


@Line("info", "keys of an issuer changed")
class KeysChanged(Rare):
    """An issuer of identity tokens has other keys than before."""

    issuer: str
    keys: int


@Line("error", "request failed", "request_id method path exc_info=error")
@Metric("gateway_failures_total", "Requests that failed by an error in the gateway.")
class RequestFailed(Rare):
    """A request ended in an error that is the gateway's own fault."""

    request_id: str
    method: str
    path: str
    error: BaseException


@Line("info", "bucket administered")
@Metric("gateway_buckets_administered_total", "Changes of buckets and their settings.")
class BucketAdministered(Rare):
    """A caller has changed a bucket or its settings; ``status`` is the store's answer."""

    caller: str
    operation: str
    bucket: str
    status: int


@Line("error", "database opened", when=lambda event: event.restored)
@Line("info", "database opened", when=lambda event: event.continues)
@Line("warning", "database opened")
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


@Line("warning", "configuration noted")
class ConfigurationNoted(Rare):
    """The configuration names something that does not exist yet, or that could not be checked."""

    warning: str


@Line("info", "schema is newer")
class SchemaIsNewer(Rare):
    """The fencing schema is newer than this version of the gateway, as it is during an upgrade."""

    notice: str


@Line("info", "configuration reloaded")
class ConfigurationReloaded(Rare):
    """Another configuration is in force. ``by``: SIGHUP, watch, or the method of a request. ``caller``: its sender."""

    by: str
    caller: str
    changes: Sequence[str]


@Line("error", "reload failed")
class ReloadFailed(Rare):
    """A configuration was not put in force. The former one stays in force, as a whole."""

    error: str


@Line("error", "worker ended")
class WorkerEnded(Rare):
    """A worker has ended, and another one takes its place after ``wait`` seconds. ``code``: negative for a signal."""

    number: int
    pid: int
    code: int
    wait: float


@Line("warning", "catalog warning")
@Metric("gateway_catalog_warnings_total", "Warnings of side effects that the fence of a table does not see.")
class CatalogWarning(Rare):
    """A fenced table has a trigger, policy or foreign key with side effects that its fence does not see."""

    table: str
    warning: str


@Line("warning", "bypass found")
@Metric(
    "gateway_bypasses_found_total", "Changes found that bypassed the gateway.", ("plane",), [("tables",), ("objects",)]
)
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


@Line("warning", "guard refused")
@Metric("gateway_guard_refusals_total", "Direct SQL writes that guards have refused.", by="count")
class GuardRefused(Rare):
    """The guard of a table has refused writes of sessions beside the gateway. They are on record.

    For those with all particulars there is a ``WriteRefused``, too.

    ``target`` is the table, None where that is not known, and where ``fencing.hold`` was called.
    """

    target: str | None
    reason: str | None
    count: int


@Metric(
    "gateway_record_sealed_total",
    "Entries that this gateway has sealed in the background; reads seal entries too.",
    by="sealed",
)
@Metric(
    "gateway_record_seal_duration_seconds",
    "Duration of sealing rounds that found entries.",
    kind="seconds",
    by="seconds",
)
class RecordSealed(NamedTuple):
    """So many entries got their places in the record."""

    sealed: int
    seconds: float


@Line("info", "record ends")
class HeadNoted(Rare):
    """The end of the record: the position and the hash (hex) of its last entry, as a witness outside the database."""

    position: int
    hash: str


@Line("info", "partition of the record dropped")
class PartitionDropped(Rare):
    """A partition of the record, usually a week, was older than its retention and was dropped. This is on record.

    ``last_day``: up to which it went.
    """

    last_day: date


@Line("info", "webhook delivers again", "webhook position failures", when=lambda event: event.failures)
@MESSAGES._replace(of=lambda event: (event.webhook, "delivered"))
class WebhookDelivered(Rare):
    """A receiver has taken a message, after ``failures`` failed attempts. It has all entries up to ``position``."""

    webhook: str
    entries: int
    position: int
    failures: int


@Line(
    "error",
    "webhook paused: its receiver is gone",
    "webhook error failures",
    when=lambda event: event.wait is None,
)
@Line("warning", "webhook failed")
@MESSAGES._replace(of=lambda event: (event.webhook, "failed"))
class WebhookFailed(Rare):
    """A receiver did not take a message, for ``failures`` times in a row. The gateway repeats it in ``wait`` seconds.

    ``wait`` is None where the receiver has said that it is gone: nothing is sent before a test message is accepted.
    """

    webhook: str
    error: str
    failures: int
    wait: float | None


@Line("warning", "alarm raised")
@ALARMS
class AlarmRaised(Rare):
    """More writes were refused within ``minutes`` than an alarm allows. It is on record."""

    alarm: str
    count: int
    minutes: int


@Line("info", "alarm cleared")
class AlarmCleared(Rare):
    """An alarm is over, because refused writes are few again. ``count``: those refused while the alarm was on."""

    alarm: str
    count: int


@Metric(
    "gateway_trace_spans_total",
    "Spans `delivered` to the collector, or `lost`.",
    ("outcome",),
    [("delivered",), ("lost",)],
    of=lambda event: ("delivered" if event.delivered else "lost",),
    by="spans",
)
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


class Sink:
    """A sink of some kinds of events, each with its handler. It is not even asked about others: see ``Sinks``."""

    handlers: Mapping[type, Callable[[Any], None]]

    def __call__(self, event: Event) -> None:
        handler = self.handlers.get(type(event))
        if handler is not None:
            handler(event)


class Sinks:
    """One sink that passes events to many, and to a ``Sink`` only those that it handles."""

    __slots__ = ("_told", "sinks")

    def __init__(self, *sinks: Observe) -> None:
        self.sinks: tuple[Observe, ...] = ()
        for sink in sinks:
            self.sinks += sink.sinks if isinstance(sink, Sinks) else (sink,)
        # The sinks of each kind are found once: not every sink may see the events of each write.
        self._told: dict[type, tuple[Observe, ...]] = {}

    def __call__(self, event: Event) -> None:
        try:
            told = self._told[type(event)]
        except KeyError:
            told = self._told[type(event)] = self._find(type(event))
        for sink in told:
            sink(event)

    def _find(self, kind: type) -> tuple[Observe, ...]:
        handlers = (sink.handlers.get(kind) if isinstance(sink, Sink) else sink for sink in self.sinks)
        return Sinks(*(handler for handler in handlers if handler is not None)).sinks
