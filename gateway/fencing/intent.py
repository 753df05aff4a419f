"""Intents: the announcement of an S3 mutation before it is sent, and the fence store's answer to it.

A bucket cannot join a Postgres transaction. So a row announces a mutation that may be under way, and a successor looks
at these rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from gateway.fencing.decision import Decision, Enforcement, Equal, Fence, Presented
from gateway.fencing.token import Token

# How absence is written where ETags are forbidden: a key may be forbidden to become absent again.
ABSENCE = ""

SIGNATURE_LIFETIME = timedelta(seconds=15)
"""The lifetime of a signature: long enough for a request to begin. The store refuses what arrives later."""
LATE_AFTER = timedelta(seconds=90)
"""The default of ``[s3] late_after``: what has begun in time can take effect for so long."""
DEAD_AFTER = SIGNATURE_LIFETIME + LATE_AFTER
"""A mutation has had its effect so long after it was signed, by the store's clock, or never has it."""


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
    LOST = "lost"
    """It stands for object writes that the database has forgotten (docs/journal.md): wait until all are dead."""


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
    mark: UUID | None = None
    """The identity of the write in the object's metadata, if it is not ``write_id``. All requests to complete an upload
    share the upload's. Their intents must not be confused."""
    entombs: bool = False
    """It may leave a tombstone, which listings and the sweeper have to know of beforehand."""
    removes: bool = False
    """It makes its key absent, and leaves a tombstone where a request that is over may be waiting for absence."""
    housekeeping: bool = False
    """It belongs to no holder, and changes nothing that a caller can see. Only a write of its key has to settle it."""


@dataclass(frozen=True, slots=True)
class Intent:
    """An S3 mutation that may be under way. ``expected`` is the ETag its key had (None: absent); ``Kind.CONDITIONAL``
    takes effect only if it still has it.

    ``signed_at``: the store's clock when it was announced; its signature carries that time. ``dead_after``: so long
    after it, by the store's clock, the mutation can have no effect any more if it has not had it.
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
    dead_after: timedelta = DEAD_AFTER

    @property
    def dead_at(self) -> datetime:
        """The last moment, by the store's clock, at which it can take effect."""
        return self.signed_at + self.dead_after


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
class Begin:
    """Claim, and write the intent down. Answer: ``Begun``. Durable.

    ``looked`` is the object that was seen at the key. None: go by what is remembered of it, else take it to be absent.
    ``outcomes``: the ETags that the mutation could leave (``ABSENCE`` for absence); the answer says which of them are
    spent. None: the answer names every spent ETag of the key.

    ``over``: intents of the key that the mutation itself settles. Each waits for the object that was seen, which is
    forbidden from here on, or completes the same upload. If one of them does not, it is among those that are pending.
    ``calm``: write nothing down where a lost request may be waiting for another ETag of the key.

    The protocol leaves the rest to its runner. ``store_time`` is the store's clock as of its last answer: forbidden and
    spent ETags end by it, with the requests that wait for them. ``signed_at`` is that clock as of this call; None takes
    the database's. ``dead_after``: as of ``Intent``. ``naming``: the generation of the bucket's naming to prove;
    without it, none is.
    """

    write: Announcement
    looked: KnownObject | None = None
    outcomes: tuple[str, ...] | None = None
    over: tuple[Intent, ...] = ()
    calm: bool = False
    store_time: datetime | None = None
    signed_at: datetime | None = None
    dead_after: timedelta = DEAD_AFTER
    naming: UUID | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The mutation took effect: forget the intent. Answer: bool, False where another holder settles it. Durable.

    ``spent``: the ETags that its requests were conditioned on, because such a request may arrive again. ``certain`` is
    False if the ETag was seen at the key before the announcement.
    """

    write: Announcement
    etag: str | None
    tombstone: bool
    spent: tuple[str, ...] = ()
    certain: bool = True


@dataclass(frozen=True, slots=True)
class ForbiddenETag:
    """An ETag (``ABSENCE`` for absence) that must not come back on its key, because a late request may wait for it.

    ``until``: the last moment, by the store's clock, at which such a request can take effect.
    """

    etag: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Spent:
    """An ETag (``ABSENCE`` for absence) that a request was conditioned on which is over, but whose signature may be
    alive. ``token``: the lowest one that such a request had. ``until``: as of ``ForbiddenETag``.
    """

    etag: str
    token: Token
    until: datetime


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer of the fence store to the announcement of a mutation.

    ``decision`` and ``fence`` are None without a presented token (observe mode). ``signed_at`` is the store's clock
    at the announcement. It is None if the mutation must not be sent: it was refused, intents are ``pending``, or the
    key is not ``calm``. ``waited``: ETags (``ABSENCE`` for
    absence) that must not come back on the key. ``key``: the condition of the mutation. ``differs``: the state seen at
    the key is not the one that the last write through the gateway left; it decides nothing. ``spent``: ETags that
    should not come back either, the longest spent first. ``waits``: those are forbidden, too, and a mutation without a
    condition stays announced. ``over``: intents of the key that this mutation settles by itself. ``term``: that in
    which the database was opened.
    """

    decision: Decision | None
    fence: Fence | None
    pending: tuple[Intent, ...] = ()
    signed_at: datetime | None = None
    waited: tuple[ForbiddenETag, ...] = ()
    key: KnownObject = KnownObject(None)
    differs: bool = False
    spent: tuple[Spent, ...] = ()
    waits: bool = False
    over: tuple[Intent, ...] = ()
    term: int = 0

    @property
    def own(self) -> Token:
        """The token that the mutation counts as: the fence's, also where it presents none."""
        return self.fence.token if self.fence else Token(0, 0)

    @property
    def lost(self) -> frozenset[str]:
        """ETags that requests may be waiting for which were announced and got lost."""
        return frozenset(one.etag for one in self.waited)

    @property
    def forbidden(self) -> frozenset[str]:
        """ETags that must not come back on the key."""
        return self.lost | {one.etag for one in self.spent} if self.waits else self.lost

    @property
    def calm(self) -> bool:
        """Whether a bump would find a free form of the object, if this mutation got lost too.

        Small bytes have two ETags. A tombstone has as many as are needed, and so has absence.
        """
        return self.key.visible is None or self.lost <= {self.key.visible, ABSENCE}

    @property
    def overtakes_absence(self) -> bool:
        """Whether a request of an older holder, one that is over, may still be waiting for absence."""
        return not self.waits and any(spent.etag == ABSENCE and spent.token < self.own for spent in self.spent)

    def free_at(self, etags: Iterable[str]) -> datetime | None:
        """Return when the first of the ETags may come back, by the store's clock; None if one may already."""
        until = self.until()
        return min((until[etag] for etag in etags), default=None) if until.keys() >= set(etags) else None

    def until(self) -> dict[str, datetime]:
        """Return the forbidden ETags, with the moment until which each of them is, by the store's clock."""
        spent = {one.etag: one.until for one in self.spent} if self.waits else {}
        return spent | {one.etag: one.until for one in self.waited}

    def under(self, duplicates: Duplicates) -> "Begun":
        """Return the same answer as the protocol is to take it under this setting."""
        return self if duplicates is Duplicates.TOLERATE else replace(self, waits=True)


@dataclass(frozen=True, slots=True)
class Raised:
    """The answer of the fence store to a barrier: what the fence says, and what older holders have under way."""

    decision: Decision
    fence: Fence
    pending: tuple[Intent, ...] = ()


@dataclass(frozen=True, slots=True)
class ForbiddenETags:
    """The forbidden ETags of a key after one was added, and those that had better not come back."""

    etags: frozenset[str]
    spent: frozenset[str] = frozenset()

    def under(self, duplicates: Duplicates) -> "ForbiddenETags":
        """Return the same answer as the protocol is to take it under this setting."""
        return self if duplicates is Duplicates.TOLERATE else ForbiddenETags(self.etags | self.spent)
