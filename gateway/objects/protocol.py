"""The object protocol: the decisions of a fenced write to S3, without any I/O.

Each operation is a generator. It yields what it wants done (``effects.py``), is sent the answer, and returns what the
operation came to. A process may stop for ever, or for an hour, at each ``yield``, and a request it asked for may
arrive at the store at any later time; the promise must hold all the same. ``tests/model`` tries all of it.

The rules that carry the promise:

- A mutation is announced in Postgres before it is sent, and conditioned on the ETag the key has.
- Whoever has a higher token settles what older holders have under way before it writes or is acknowledged.
- Settling forbids the ETag first and then makes it go away: a late request finds its condition broken for ever.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeAlias, TypeVar, assert_never, cast

from gateway.fencing.intent import ABSENCE, Announcement, Begun, Forbidden, Intent, KnownObject, Raised
from gateway.fencing.rules import Presented
from gateway.fencing.token import Token
from gateway.objects.answers import (
    Applied,
    Found,
    HeadAnswer,
    Missing,
    NotApplied,
    NotSent,
    Rejected,
    Unknown,
    WriteAnswer,
)
from gateway.objects.conditions import Condition
from gateway.objects.effects import (
    Abandon,
    Answer,
    AwaitTurn,
    Barred,
    Begin,
    Bump,
    Candidate,
    ConditionFailed,
    Delete,
    Deleted,
    Effect,
    Entomb,
    Finish,
    Forbid,
    Form,
    Head,
    NotDone,
    Outcome,
    Put,
    RaiseFence,
    Recall,
    Refused,
    Stored,
    StoreRefused,
    Uncertain,
)

Result = TypeVar("Result")
Steps: TypeAlias = Generator[Effect, Answer, Result]

# How often a write starts again because the key had changed under it, and a settler because the store did not answer.
ATTEMPTS = 5

# S3 refuses a header signature that is older than this when it arrives; the margin is for what arrived just in time.
SIGNATURE_LIFETIME = timedelta(minutes=15)
MARGIN = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Key:
    """What stands at a key, as far as callers are concerned: a tombstone is absence to them, not to the store."""

    etag: str | None
    tombstone: bool = False

    @property
    def visible(self) -> str | None:
        return None if self.tombstone else self.etag


Mutate: TypeAlias = Callable[[Announcement, Key, Begun, datetime], Steps[Outcome | None]]


def put(write: Announcement, candidates: tuple[Candidate, ...], condition: Condition | None = None) -> Steps[Outcome]:
    """Write a body that has been taken in and verified. ``candidates``: its forms, the preferred one first."""

    def mutate(write: Announcement, key: Key, begun: Begun, signed_at: datetime) -> Steps[Outcome | None]:
        form = choose(candidates, begun.forbidden)
        if form is None:
            yield Abandon(write)
            return NotDone("every form of these bytes has an ETag that a late request may be waiting for")
        answer = cast(WriteAnswer, (yield Put(write, form, key.etag, begun.fence, signed_at)))
        return (yield from _conclude(write, key, begun, answer))

    return (yield from _fenced(write, condition, mutate))


def delete(
    write: Announcement, condition: Condition | None = None, *, conditional_delete: bool = True
) -> Steps[Outcome]:
    """Make a key absent. A tombstone stands for it where absence is forbidden, or the store deletes unconditionally."""

    def mutate(write: Announcement, key: Key, begun: Begun, signed_at: datetime) -> Steps[Outcome | None]:
        if key.visible is None:
            return (yield from _confirm_absence(write, begun))
        if conditional_delete and ABSENCE not in begun.forbidden:
            answer = cast(WriteAnswer, (yield Delete(write, key.visible, signed_at)))
            return (yield from _conclude(write, key, begun, answer))
        answer = cast(WriteAnswer, (yield Entomb(write, key.etag, signed_at)))
        return (yield from _conclude(write, key, begun, answer, tombstone=True))

    return (yield from _fenced(write, condition, mutate))


def barrier(resource: str, presented: Presented, caller: str) -> Steps[Outcome]:
    """Raise without writing. Once this returns ``Barred``, no lower token's mutation takes effect any more."""
    raised = cast(Raised, (yield RaiseFence(resource, presented, caller)))
    if not raised.decision.passes:
        return Refused(raised.decision, raised.fence)
    for intent in raised.pending:
        if not (yield from settle(intent)):
            return NotDone("a write that is under way on this resource could not be settled")
    return Barred(raised.decision, raised.fence)


def settle(intent: Intent) -> Steps[bool]:
    """Make certain that the mutation has taken effect or never will. False where the store does not cooperate.

    Forbidding comes first and is durable: our own bump may be late as well, and must find its condition broken.
    """
    forbidden = cast(Forbidden, (yield Forbid(intent)))
    for _ in range(ATTEMPTS):
        state = cast(HeadAnswer, (yield Head(intent.bucket, intent.key)))
        if isinstance(state, Unknown):
            continue
        if _etag(state) != intent.expected:
            yield Abandon(intent)
            return True
        answer = cast(WriteAnswer, (yield _displace(intent, forbidden)))
        if isinstance(answer, NotSent | Rejected) and _signature_is_dead(intent, state):
            yield Abandon(intent)
            return True
    return False


def _displace(intent: Intent, forbidden: Forbidden) -> Entomb | Bump:
    """What makes the ETag go away that the late request waits for."""
    if intent.expected is None:
        return Entomb(intent, None, forbidden.signed_at)
    return Bump(intent.bucket, intent.key, intent.expected, forbidden.etags, forbidden.signed_at)


def choose(candidates: tuple[Candidate, ...], forbidden: frozenset[str]) -> Form | None:
    """The first form whose ETag may come (back) on the key."""
    return next((candidate.form for candidate in candidates if candidate.etag not in forbidden), None)


def _fenced(write: Announcement, condition: Condition | None, mutate: Mutate) -> Steps[Outcome]:
    """Announce, clear the way, mutate; start again where the key turns out to have changed."""
    key = None if condition else (yield from _recall(write))
    for attempt in range(1, ATTEMPTS + 1):
        write = replace(write, attempt=attempt)
        if key is None and (key := (yield from _look(write))) is None:
            return NotDone("the object store does not answer")
        begun = cast(Begun, (yield Begin(write, key.etag)))
        if begun.signed_at is not None:
            if condition is not None and (broken := condition.broken(key.visible)) is not None:
                yield Abandon(write)
                return ConditionFailed(broken)
            if (outcome := (yield from mutate(write, key, begun, begun.signed_at))) is not None:
                return outcome
        elif begun.decision is not None and begun.fence is not None and not begun.pending and not begun.decision.passes:
            return Refused(begun.decision, begun.fence)
        elif not (yield from _clear(begun)):
            return NotDone("a write that is under way on this resource could not be settled")
        key = None
    return NotDone("the object keeps changing")


def _recall(write: Announcement) -> Steps[Key | None]:
    known = cast("KnownObject | None", (yield Recall(write)))
    return None if known is None else Key(known.etag, known.tombstone)


def _look(write: Announcement) -> Steps[Key | None]:
    state = cast(HeadAnswer, (yield Head(write.bucket, write.key)))
    if isinstance(state, Unknown):
        return None
    return Key(state.etag, state.tombstone) if isinstance(state, Found) else Key(None)


def _clear(begun: Begun) -> Steps[bool]:
    """Get everything out of the way that must not take effect after this write.

    A write of the same holder gets the time to end by itself. An older holder's is a zombie's: no time is lost on it.
    """
    own = begun.fence.token if begun.fence else Token(0, 0)
    for intent in begun.pending:
        if intent.token >= own and (yield AwaitTurn(intent)):
            continue
        if not (yield from settle(intent)):
            return False
    return True


def _conclude(
    write: Announcement, key: Key, begun: Begun, answer: WriteAnswer, *, tombstone: bool = False
) -> Steps[Outcome | None]:
    """What the store's answer means. None: it had no effect because the key had changed; start again."""
    match answer:
        case Applied(etag):
            if etag in begun.forbidden:
                return (yield from _correct(write, key, begun, etag or ABSENCE))
            return (yield from _finish(write, key, begun, answer, tombstone=tombstone))
        case NotApplied():
            # Something between us and the store may have sent our request twice: then this is the second one's answer.
            if (outcome := (yield from _recognise(write, key, begun, tombstone=tombstone))) is not None:
                return outcome
            yield Abandon(write)
            return None
        case NotSent(reason):
            yield Abandon(write)
            return NotDone(reason)
        case Rejected():
            yield Abandon(write)
            return StoreRefused(answer)
        case Unknown(reason):
            return (yield from _recognise(write, key, begun, tombstone=tombstone)) or Uncertain(reason)
        case _:
            assert_never(answer)


def _correct(write: Announcement, key: Key, begun: Begun, etag: str) -> Steps[Outcome]:
    """The store gave the bytes another ETag than predicted, and it is a forbidden one: make it go away at once."""
    assert begun.signed_at is not None
    bumped = cast(WriteAnswer, (yield Bump(write.bucket, write.key, etag, begun.forbidden, begun.signed_at)))
    if isinstance(bumped, Applied):
        return (yield from _finish(write, key, begun, bumped, tombstone=False))
    return Uncertain("the write got an ETag that a late request may be waiting for")


def _recognise(write: Announcement, key: Key, begun: Begun, *, tombstone: bool) -> Steps[Outcome | None]:
    """The write-id in the object's metadata tells whose write is there. None: it is not ours."""
    state = cast(HeadAnswer, (yield Head(write.bucket, write.key)))
    if isinstance(state, Found) and _is_ours(write, state) and state.tombstone is tombstone:
        return (yield from _finish(write, key, begun, Applied(state.etag), tombstone=tombstone))
    return None


def _finish(write: Announcement, key: Key, begun: Begun, applied: Applied, *, tombstone: bool) -> Steps[Outcome]:
    """The write has taken effect: say so, unless a settler may be about to put back what was there before.

    It may where the write did not change the ETag: then the settler cannot tell that it has come.
    """
    done: Outcome
    if tombstone or applied.etag is None:
        done = Deleted(begun.decision, begun.fence)
    else:
        done = Stored(applied, begun.decision, begun.fence)
    if (yield Finish(write, applied.etag, tombstone)):
        return done
    state = cast(HeadAnswer, (yield Head(write.bucket, write.key)))
    if isinstance(state, Found) and _is_ours(write, state) and state.etag != key.etag:
        return done
    return Uncertain("another writer settled this write while it was under way")


def _confirm_absence(write: Announcement, begun: Begun) -> Steps[Outcome | None]:
    """There was nothing to delete. Our intent keeps others from announcing, so a look now is final."""
    key = yield from _look(write)
    yield Abandon(write)
    if key is None:
        return NotDone("the object store does not answer")
    return Deleted(begun.decision, begun.fence) if key.visible is None else None


def _etag(state: Found | Missing) -> str | None:
    return state.etag if isinstance(state, Found) else None


def _is_ours(write: Announcement, state: Found) -> bool:
    return state.write_id == str(write.write_id)


def _signature_is_dead(intent: Intent, state: Found | Missing) -> bool:
    """Whether the store itself refuses the mutation by now, if it ever arrives. Judged by the store's clock alone.

    What stores without a condition on CompleteMultipartUpload come down to: their objects cannot be bumped.
    """
    return state.date is not None and state.date - intent.signed_at > SIGNATURE_LIFETIME + MARGIN
