"""Intents: the announcement of an S3 mutation before it is sent, and the fence store's answer to it.

A bucket cannot join a Postgres transaction. So a row announces a mutation that may be under way, and a successor looks
at these rows.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from gateway.fencing.decision import Decision, Enforcement, Equal, Fence, Presented
from gateway.fencing.token import Token

# How absence is written where ETags are forbidden: a key may be forbidden to become absent again.
ABSENCE = ""

# A store refuses a header signature that is older than 15 minutes when it arrives. It refuses a query signature whose
# own lifetime is over. The rest is for a request that arrived just in time and was processed slowly.
HEADER_SIGNED = timedelta(minutes=15)
QUERY_SIGNED = timedelta(minutes=2)
DEAD_AFTER_HEADER_SIGNED = HEADER_SIGNED + timedelta(minutes=15)
DEAD_AFTER_QUERY_SIGNED = QUERY_SIGNED + timedelta(minutes=5)


class Duplicates(StrEnum):
    """Whether a write passes or waits if every ETag it could leave may be the condition of a finished request.

    Such a request can reach the store a second time, if something between gateway and store repeats it.
    """

    TOLERATE = "tolerate"
    """It passes. Nothing between gateway and store repeats requests, as far as the operator knows."""
    WAIT = "wait"
    """It waits until the signature of that request is dead."""


class MutationKind(StrEnum):
    """How a mutation that may be late is made unable to take effect."""

    CONDITIONAL = "conditional"
    """It waits for an ETag, or absence: forbid that, and make it go away."""
    UPLOAD = "upload"
    """It completes an upload without a condition: give the upload up, until the store has none by that id."""
    AMENDMENT = "amendment"
    """It carries no condition, because S3 has none for it: wait until its signature, a short one, is dead."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A mutation of one key to be announced. ``presented`` is None only if the rule observes.

    A write that restarts, because the key had changed, announces itself as its next ``attempt``. A settler of the
    previous attempt must not delete the intent of this one.
    """

    resource: str
    bucket: str
    key: str
    write_id: UUID
    presented: Presented | None
    caller: str
    mode: Enforcement = Enforcement.ENFORCE
    equal: Equal = Equal.ACCEPT
    attempt: int = 1
    kind: MutationKind = MutationKind.CONDITIONAL
    upload_id: str | None = None
    """The upload that it completes; for ``Kind.UPLOAD`` only."""
    dead_after: timedelta = DEAD_AFTER_HEADER_SIGNED
    """So long after it was signed, by the store's clock, it can have no effect any more if it has not had it."""
    mark: UUID | None = None
    """The identity of the write in the object's metadata, if it is not ``write_id``. All requests to complete an upload
    share the upload's. Their intents must not be confused."""
    entombs: bool = False
    """It may leave a tombstone, which listings and the sweeper have to know of beforehand."""
    removes: bool = False
    """It makes its key absent, and leaves a tombstone where a request that is over may be waiting for absence."""


@dataclass(frozen=True, slots=True)
class Intent:
    """An S3 mutation that may be under way. ``expected`` is the ETag its key had (None: absent); ``Kind.CONDITIONAL``
    takes effect only if it still has it.

    ``signed_at``: the database's clock when it was announced; its signature carries that time.
    """

    resource: str
    bucket: str
    key: str
    write_id: UUID
    token: Token
    expected: str | None
    signed_at: datetime
    attempt: int = 1
    kind: MutationKind = MutationKind.CONDITIONAL
    upload_id: str | None = None
    dead_after: timedelta = DEAD_AFTER_HEADER_SIGNED


@dataclass(frozen=True, slots=True)
class KnownObject:
    """The known state of a key: its ETag (None: absent), and whether it has a tombstone.

    To callers a tombstone is absence, to the store it is not.
    """

    etag: str | None
    tombstone: bool = False

    @property
    def visible(self) -> str | None:
        """The ETag as far as callers are concerned."""
        return None if self.tombstone else self.etag


@dataclass(frozen=True, slots=True)
class Spent:
    """An ETag (``ABSENCE`` for absence) that a request was conditioned on which is over, but whose signature may be
    alive. ``token``: the lowest one that such a request had.
    """

    etag: str
    token: Token


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer of the fence store to the announcement of a mutation.

    ``decision`` and ``fence`` are None without a presented token (observe mode). ``signed_at`` is the database's clock
    at the announcement. It is None if the mutation must not be sent: it was refused, or ``pending`` names intents that
    must be settled first. ``forbidden``: ETags (``ABSENCE`` for absence) that must not come back on the key. ``key``:
    the condition of the mutation. ``differs``: the state seen at the key is not the one that the last write through the
    gateway left; it decides nothing. ``spent``: ETags that should not come back either, the longest spent first.
    ``waits``: those are forbidden, too, and a mutation without a condition stays announced.
    """

    decision: Decision | None
    fence: Fence | None
    pending: tuple[Intent, ...] = ()
    signed_at: datetime | None = None
    forbidden: frozenset[str] = frozenset()
    key: KnownObject = KnownObject(None)
    differs: bool = False
    spent: tuple[Spent, ...] = ()
    waits: bool = False

    @property
    def own(self) -> Token:
        """The token that the mutation counts as: the fence's, also where it presents none."""
        return self.fence.token if self.fence else Token(0, 0)

    @property
    def overtakes_absence(self) -> bool:
        """Whether a request of an older holder, one that is over, may still be waiting for absence."""
        return any(spent.etag == ABSENCE and spent.token < self.own for spent in self.spent)

    def under(self, duplicates: Duplicates) -> "Begun":
        """Return the same answer as the protocol is to take it under this setting."""
        if duplicates is Duplicates.TOLERATE:
            return self
        return replace(self, forbidden=self.forbidden | {spent.etag for spent in self.spent}, spent=(), waits=True)


@dataclass(frozen=True, slots=True)
class Raised:
    """The answer of the fence store to a barrier: what the fence says, and what older holders have under way."""

    decision: Decision
    fence: Fence
    pending: tuple[Intent, ...] = ()


@dataclass(frozen=True, slots=True)
class ForbiddenETags:
    """The forbidden ETags of a key after one was added, those that had better not come back, the database's clock."""

    signed_at: datetime
    etags: frozenset[str]
    spent: frozenset[str] = frozenset()

    def under(self, duplicates: Duplicates) -> "ForbiddenETags":
        """Return the same answer as the protocol is to take it under this setting."""
        if duplicates is Duplicates.TOLERATE:
            return self
        return ForbiddenETags(self.signed_at, self.etags | self.spent)
