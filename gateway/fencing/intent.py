"""Intents: what is written down about an S3 mutation before it is sent, and what the fence store says about it.

A bucket cannot join a Postgres transaction, so a mutation that may be under way is announced by a row, and whoever
takes over looks at the rows that are there.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.fencing.rules import Decision, Equal, Fence, Mode, Presented
from gateway.fencing.token import Token

# How absence is written where ETags are forbidden: a key may be forbidden to become absent again.
ABSENCE = ""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A mutation of one key that is to be announced. ``presented`` is None only where the rule observes.

    A write that starts again, because the key had changed under it, announces itself as its next ``attempt``: whoever
    settled the attempt before must not take away the intent of this one.
    """

    resource: str
    bucket: str
    key: str
    write_id: UUID
    presented: Presented | None
    caller: str
    mode: Mode = Mode.ENFORCE
    equal: Equal = Equal.ACCEPT
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Intent:
    """An S3 mutation that may be under way, conditioned on the ETag ``expected`` (None: on absence).

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


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer of the fence store to the announcement of a mutation.

    ``decision`` and ``fence`` are None where no token was presented (observe mode). ``signed_at`` is the database's
    clock at the announcement, None where the mutation must not be sent: it was refused, or ``pending`` names the
    intents that must be gone first. ``forbidden``: ETags (``ABSENCE`` for absence) that must not come back on the key.
    """

    decision: Decision | None
    fence: Fence | None
    pending: tuple[Intent, ...] = ()
    signed_at: datetime | None = None
    forbidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Raised:
    """The answer of the fence store to a barrier: what the fence says, and what older holders have under way."""

    decision: Decision
    fence: Fence
    pending: tuple[Intent, ...] = ()


@dataclass(frozen=True, slots=True)
class Forbidden:
    """The forbidden ETags of a key after one was added, and the database's clock."""

    signed_at: datetime
    etags: frozenset[str]


@dataclass(frozen=True, slots=True)
class KnownObject:
    """What the gateway remembers of a key: its ETag after the last write (None: absent), and if it is a tombstone."""

    etag: str | None
    tombstone: bool
