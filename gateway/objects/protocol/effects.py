"""The vocabulary of the object protocol: the effects that it yields, and the outcomes that it returns.

``mutation.py`` yields effects and is sent their answers. ``runner.py`` carries them out with Postgres and S3. The
explorer in ``tests/model`` carries them out in memory, in every possible order.
"""

from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from gateway.errors import StoreError
from gateway.fencing import intent as announcing
from gateway.fencing.decision import Decision, Fence, Presented
from gateway.fencing.intent import Announcement, Begun, ForbiddenETags, Intent, Raised
from gateway.objects.s3.answers import Applied, HeadAnswer, Rejected, WriteAnswer


class UploadForm(StrEnum):
    """How bytes are uploaded. On stores whose ETag is a hash, the same bytes have another ETag in another form."""

    PLAIN = "plain"
    MULTIPART = "multipart"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A form a body can be uploaded in, and the ETag it would have then."""

    form: UploadForm
    etag: str


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the store for the object at the key. Answer: ``HeadAnswer``."""

    bucket: str
    key: str


# Postgres is asked for these two as they are.
Begin: TypeAlias = announcing.Begin
Finish: TypeAlias = announcing.Finish


@dataclass(frozen=True, slots=True)
class Put:
    """Send the body, on condition that the key still has ``expected``. Answer: ``WriteAnswer``. Durable."""

    write: Announcement
    form: UploadForm
    expected: str | None
    signed_at: datetime


@dataclass(frozen=True, slots=True)
class Complete:
    """Make the parts of an upload the object. Answer: ``WriteAnswer``. Durable.

    On condition that the key still has ``expected``; a write of ``Kind.UPLOAD`` goes without.
    """

    write: Announcement
    upload_id: str
    expected: str | None
    signed_at: datetime


@dataclass(frozen=True, slots=True)
class Amend:
    """Change what belongs to an object, or remove one version of it. S3 has no condition for that.

    Answer: ``WriteAnswer``. Durable.
    """

    write: Announcement
    signed_at: datetime


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object, on condition that it still has ``expected``. Answer: ``WriteAnswer``. Durable."""

    write: Announcement
    expected: str
    signed_at: datetime


@dataclass(frozen=True, slots=True)
class Entomb:
    """Put a tombstone, on condition that the key still has ``expected``. Answer: ``WriteAnswer``. Durable.

    A tombstone's bytes are unique, so that its ETag never comes back. A tombstone that settles an intent has a write-id
    of its own too: it is not the write that was announced. Nothing announces it, so ``expected`` is forbidden first,
    for as long as the request can take effect.
    """

    owner: Announcement | Intent
    expected: str | None
    signed_at: datetime | None = None
    """None for one that settles an intent: it is signed when it is sent."""


@dataclass(frozen=True, slots=True)
class Bump:
    """Write the same bytes again in a form whose ETag is none of ``forbidden``, on condition that the key still has
    ``etag``. Answer: ``WriteAnswer``. Durable.

    If there is another form, its ETag is none of ``spent`` either. Nothing announces a bump, so ``etag`` is forbidden
    first, for as long as the request can take effect.
    """

    resource: str
    bucket: str
    key: str
    etag: str
    forbidden: frozenset[str]
    spent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Abort the upload that the intent's mutation completes. Answer: bool, True where the store has none by that id any
    more. Durable.
    """

    intent: Intent


@dataclass(frozen=True, slots=True)
class Abandon:
    """The mutation can have no effect any more: forget the intent. Answer: None. Durable.

    ``seen``: whether it was seen to have had one before, for the record. ``spent``: as of ``Finish``.
    """

    intent: Announcement | Intent
    seen: bool = False
    spent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forbid:
    """Forbid what the intent is conditioned on, and mark it as being settled. Answer: ``Forbidden``. Durable."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class AwaitTurn:
    """Wait, for a while, until another mutation of the same holder is over. Answer: bool, whether it is."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before a write starts again that has lost to others each time. Answer: bool, whether it may start again.

    ``number``: of the pauses of this write, from 0.
    """

    number: int


@dataclass(frozen=True, slots=True)
class RaiseFence:
    """Raise without writing. Answer: ``Raised``. Durable."""

    resource: str
    presented: Presented
    caller: str


Effect: TypeAlias = (
    Look
    | Begin
    | Put
    | Complete
    | Amend
    | Delete
    | Entomb
    | Bump
    | GiveUp
    | Finish
    | Abandon
    | Forbid
    | AwaitTurn
    | Pause
    | RaiseFence
)
EffectAnswer: TypeAlias = HeadAnswer | Begun | WriteAnswer | ForbiddenETags | Raised | bool | None


@dataclass(frozen=True, slots=True)
class Stored:
    """The write is in place and durable. ``decision`` is the fence's (a refusal in observe mode only)."""

    applied: Applied
    decision: Decision | None
    fence: Fence | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """The key is absent, for good as far as older holders are concerned.

    ``applied`` is the store's answer, None where there was nothing to delete.
    """

    decision: Decision | None
    fence: Fence | None
    applied: Applied | None = None


@dataclass(frozen=True, slots=True)
class FenceRefused:
    """The fence refuses. Nothing was written, and nothing will be."""

    decision: Decision
    fence: Fence


@dataclass(frozen=True, slots=True)
class ConditionFailed:
    """The caller's own condition does not hold; ``error`` is what S3 says then. Nothing was written."""

    error: StoreError


@dataclass(frozen=True, slots=True)
class StoreRefused:
    """The store refused the write for good. Nothing was written."""

    answer: Rejected


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The outcome of the write is unknown. It cannot take effect any more after the next acknowledged write."""

    reason: str


class Obstacle(StrEnum):
    """The obstacle of a write that was not done, and how long it may stay."""

    PASSING = "passing"
    """Another writer, or a service that does not answer."""
    UNSETTLED = "unsettled"
    """An older holder's mutation that may still arrive."""
    FORBIDDEN = "forbidden"
    """An ETag that must not come back on the key."""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A mutation that may still arrive. ``clears_at``: when it cannot any more, by the store's clock; None if the store
    does not answer.
    """

    intent: Intent
    clears_at: datetime | None


@dataclass(frozen=True, slots=True)
class NotDone:
    """Nothing was written, and a retry can help.

    ``blocked_by``: what may still arrive. ``clears_at``: when a retry helps at the latest, by the store's clock; None
    if that is not known.
    """

    reason: str
    obstacle: Obstacle = Obstacle.PASSING
    blocked_by: tuple[Unsettled, ...] = ()
    clears_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class InParts:
    """Nothing was written: a lost request may wait for another ETag of the key. Send the same write as an upload.

    If that gets lost too, a newer holder settles it by aborting the upload, and needs no free form of the object.
    ``attempt`` is the number of the next attempt.
    """

    attempt: int


@dataclass(frozen=True, slots=True)
class Barred:
    """The barrier stands: no mutation with a lower token takes effect any more."""

    decision: Decision
    fence: Fence


WriteOutcome: TypeAlias = (
    Stored | Deleted | FenceRefused | ConditionFailed | StoreRefused | Uncertain | NotDone | InParts | Barred
)

Result = TypeVar("Result")
Steps: TypeAlias = Generator[Effect, Any, Result]
"""An operation under way: it yields effects, is sent the answer that each of them names, and returns its outcome."""

# How often a write starts at once because the key has changed, and a settler because the store did not answer. A write
# goes on with pauses.
ATTEMPTS = 5


def tombstone_body(unique: UUID) -> bytes:
    """Return bytes that no other tombstone has, so that no request can ever be waiting for the ETag."""
    return f"deleted {unique}\n".encode()


TOMBSTONE_SIZE = len(tombstone_body(UUID(int=0)))
"""Bytes that every tombstone has: an object of another size is none."""
