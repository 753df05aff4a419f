"""What can happen in the gateway, as frozen data. Call sites say what happened; sinks decide what to make of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gateway.fencing.record import Rejection

Plane = Literal["tables", "objects", "api"]


@dataclass(frozen=True, slots=True)
class StepReached:
    """A durable step of a write is about to be taken or has been taken, e.g. ``objects.begin.before``.

    The names are listed in docs/operations.md; the crash tests stop and kill the process at each of them.
    """

    name: str


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """A write was refused by its fence (or, where the rule observes, would have been). It is on record already."""

    plane: Plane
    rejection: Rejection


@dataclass(frozen=True, slots=True)
class IntentSettled:
    """A write that was under way when a newer holder came has been made unable to take effect any more."""

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
    """What stood for a deleted object has been removed: nothing can be waiting for the key's absence any more."""

    resource: str
    bucket: str
    key: str


@dataclass(frozen=True, slots=True)
class UploadSwept:
    """An upload that a gateway had opened for itself and left behind has been given up."""

    bucket: str
    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class SweepFailed:
    """Something could not be cleared away: a key (``bucket/key``), or all of a kind. It is tried again."""

    what: str
    error: str


@dataclass(frozen=True, slots=True)
class ServiceUnreachable:
    """Postgres or the object store could not be reached."""

    service: Literal["postgres", "s3"]
    error: str


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request ended in an error that is the gateway's own fault."""

    request_id: str
    method: str
    path: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class BucketAdministered:
    """Somebody has changed a bucket or its settings; ``status`` is what the store said."""

    caller: str
    operation: str
    bucket: str
    status: int


@dataclass(frozen=True, slots=True)
class CatalogWarning:
    """Something about a fenced table that weakens what the fence can see."""

    table: str
    warning: str


Event: TypeAlias = (
    StepReached
    | WriteRefused
    | IntentSettled
    | OutcomeLost
    | TombstoneSwept
    | UploadSwept
    | SweepFailed
    | ServiceUnreachable
    | RequestFailed
    | BucketAdministered
    | CatalogWarning
)

Observe: TypeAlias = Callable[[Event], None]
