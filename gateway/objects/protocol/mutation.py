"""The object protocol: the decisions of a fenced write to S3, without any I/O.

Each operation is a generator. It yields the effects that it wants (``effects.py``), is sent their answers, and returns
the outcome. A process may stop at each ``yield``, for an hour or for ever. A request it asked for may arrive at the
store at any later time. The promise must hold all the same; ``tests/model`` tries all of it. ``settling.py`` makes
certain of the mutations of older holders.

Read ``_fenced`` first: it is the way of every mutation. ``put``, ``complete``, ``delete``, ``amend`` and ``sweep`` hand
it what they send under the announcement.

The rules that carry the promise:

- A mutation is announced in Postgres before it is sent, and conditioned on the ETag the key has.
- A holder with a higher token settles what older holders have under way before it writes or is acknowledged.
- Settling forbids the ETag first and then makes it go away: a late request finds its condition broken. The ETag stays
  forbidden until no such request can take effect any more, by the store's clock.
- A write settles older ones of its own key by itself, if they wait for the same ETag. That is forbidden when the write
  is announced, and gone once the write has taken effect. If the write has no effect, they are as pending as before.
- A mutation without a condition is settled by what else stops it: its upload is aborted, or its signature has expired.
- A key at which a request got lost is written as an upload for a while. If that gets lost too, settling it needs no
  further ETag: small bytes have only two.
- An object that proves the token of a newer holder raises the fence first: the database may have forgotten it.
- A finished request may arrive a second time. While its signature may be valid, the ETag it was conditioned on
  does not come back to the key where that can be helped. Nor does a write leave the ETag that it is conditioned on.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import TypeAlias, assert_never

from gateway.fencing.decision import Enforcement, Presented
from gateway.fencing.intent import (
    ABSENCE,
    Announcement,
    Begun,
    Intent,
    KnownObject,
    MutationKind,
    Raised,
)
from gateway.fencing.record import PROCESS
from gateway.fencing.token import Token
from gateway.objects.protocol.effects import (
    ATTEMPTS,
    Abandon,
    Amend,
    AwaitTurn,
    Barred,
    Begin,
    Bump,
    Candidate,
    Complete,
    ConditionFailed,
    Delete,
    Deleted,
    Entomb,
    FenceRefused,
    Finish,
    InParts,
    Look,
    NotDone,
    Obstacle,
    Pause,
    Put,
    RaiseFence,
    Steps,
    Stored,
    StoreRefused,
    Uncertain,
    Unsettled,
    UploadForm,
    WriteOutcome,
)
from gateway.objects.protocol.settling import settle
from gateway.objects.s3.answers import (
    EXPIRED,
    Applied,
    Found,
    HeadAnswer,
    NotApplied,
    NotSent,
    Rejected,
    Unknown,
    WriteAnswer,
)
from gateway.objects.s3.conditions import WriteCondition

__all__ = ["ATTEMPTS", "Steps", "amend", "barrier", "complete", "delete", "put", "settle", "sweep"]

Mutate: TypeAlias = Callable[[Announcement, Begun, datetime], Steps[WriteOutcome | None]]

NO_SUCH_UPLOAD = "NoSuchUpload"
# Nothing but time ends the others.
_ENDING = (MutationKind.CONDITIONAL, MutationKind.UPLOAD)
TWICE = "a request that is over may reach the store a second time, and wait for every ETag that the object could get"
ALL_FORMS = "a late request may be waiting for every ETag that these bytes can have"
SAME_BYTES = "the same bytes stand at the key, and the store gives them no other ETag"
UNSETTLED = "an earlier write to this resource may still be under way, and could not be settled yet"


# The way of every mutation: announce it, clear its way, send it, conclude from the answer.


def _fenced(
    write: Announcement,
    condition: WriteCondition | None,
    mutate: Mutate,
    *,
    look: bool = False,
    outcomes: tuple[str, ...] | None = None,
    displaces: bool = False,
    as_upload: Callable[[Begun], bool] | None = None,
) -> Steps[WriteOutcome]:
    """Announce, clear the way, mutate; start again where the key turns out to have changed.

    The first attempt goes by what is remembered of the key, unless the caller has a condition on it, or must ``look``.
    ``outcomes``: as of ``Begin``. ``displaces``: the mutation changes the key's ETag, or completes an upload.
    ``as_upload``: whether it can be sent as an upload (``InParts``), where a request of the key got lost.
    """
    looks = look or condition is not None
    over: tuple[Intent, ...] = ()
    calm = as_upload is not None
    first = write.attempt
    for attempt in count(first):
        if attempt >= first + ATTEMPTS and not (yield Pause(attempt - first - ATTEMPTS)):
            break
        write = replace(write, attempt=attempt)
        looked: KnownObject | None = None
        if looks:  # after the first attempt, always
            seen = yield from _look(write)
            if isinstance(seen, NotDone | StoreRefused):
                return seen
            looked = seen
        looks = True
        begun: Begun = yield Begin(write, looked, outcomes, over, calm)
        over = ()
        if begun.signed_at is not None:  # it is announced
            if (outcome := (yield from _mutated(write, condition, mutate, begun, begun.signed_at))) is not None:
                return outcome
        elif begun.pending:  # announced once these are out of the way
            cleared = yield from _clear(write, begun, looked, displaces=displaces)
            if isinstance(cleared, NotDone):
                return cleared
            over = cleared
        elif (ended := _ended(write, begun, as_upload)) is not None:
            return ended
        else:  # no form is left for an upload: announced all the same
            calm = calm and begun.calm
    return NotDone("the object keeps changing")


def _look(write: Announcement) -> Steps[KnownObject | NotDone | StoreRefused]:
    state: HeadAnswer = yield Look(write.bucket, write.key)
    if isinstance(state, Unknown):
        return (
            StoreRefused(state.refusal) if state.refusal else NotDone(f"the object store does not say: {state.reason}")
        )
    if isinstance(state, Found) and (newer := _newer(write, state)) is not None:
        yield RaiseFence(write.resource, Presented(newer), PROCESS)
    return KnownObject(state.etag, state.tombstone) if isinstance(state, Found) else KnownObject(None)


def _newer(write: Announcement, found: Found) -> Token | None:
    """Return the token of a newer holder that has written the object; None if it shows none.

    The fence carries it, unless the database was put back to a state from before.
    """
    shown = write.presented.token if write.presented else None
    proven = found.proven if found.resource == write.resource else None
    return proven if shown is not None and proven is not None and proven > shown else None


def _ended(
    write: Announcement, begun: Begun, as_upload: Callable[[Begun], bool] | None
) -> FenceRefused | InParts | None:
    """Return the outcome of a write that was not announced, with nothing in its way. None: try again."""
    refused = begun.decision is not None and not begun.decision.passes and write.mode is not Enforcement.OBSERVE
    if refused and begun.decision is not None and begun.fence is not None:
        return FenceRefused(begun.decision, begun.fence)
    if not begun.calm and as_upload is not None and as_upload(begun):
        return InParts(write.attempt + 1)
    return None


def _clear(
    write: Announcement, begun: Begun, looked: KnownObject | None, *, displaces: bool
) -> Steps[tuple[Intent, ...] | NotDone]:
    """Remove all mutations that must not take effect after this write. Return those that the write itself settles.

    A write of the same holder gets the time to end by itself. An older holder's is a zombie's: no time is lost on it.
    Housekeeping clears nothing.
    """
    if write.housekeeping:
        return NotDone("a write of the key is under way")
    over: tuple[Intent, ...] = ()
    unsettled: tuple[Unsettled, ...] = ()
    for intent in begun.pending:
        if intent.token >= begun.own and intent.kind in _ENDING and (yield AwaitTurn(intent)):
            continue
        if displaces and _gives_way(intent, write, looked):
            over += (intent,)
        elif blocked := (yield from settle(intent)):
            unsettled += (blocked,)
    return _unsettled(unsettled) if unsettled else over


def _gives_way(intent: Intent, write: Announcement, looked: KnownObject | None) -> bool:
    """Return whether the write makes it impossible for the intent's mutation to take effect afterwards."""
    if (intent.bucket, intent.key) != (write.bucket, write.key):
        return False
    if intent.kind is MutationKind.CONDITIONAL:
        return looked is None or looked.etag == intent.expected
    return intent.kind is MutationKind.UPLOAD and intent.upload_id == write.upload_id


def _mutated(
    write: Announcement, condition: WriteCondition | None, mutate: Mutate, begun: Begun, signed_at: datetime
) -> Steps[WriteOutcome | None]:
    """Mutate, if the caller's condition holds, and forget the mutations that this one has settled."""
    if condition is not None and (broken := condition.broken(begun.key.visible)) is not None:
        yield Abandon(write)
        return ConditionFailed(broken)
    outcome = yield from mutate(write, begun, signed_at)
    if isinstance(outcome, Stored | Deleted):
        for intent in begun.over:
            yield Abandon(intent)
    return outcome


def _conclude(
    write: Announcement, begun: Begun, answer: WriteAnswer, *, tombstone: bool = False
) -> Steps[WriteOutcome | None]:
    """Interpret the store's answer. None: the write had no effect because the key had changed; start again."""
    match answer:
        case Applied(etag):
            if etag in begun.forbidden:
                return (yield from _correct(write, begun, etag or ABSENCE))
            return (yield from _finish(write, begun, answer, tombstone=tombstone))
        case NotApplied():
            # A proxy may have sent our request twice. Then this is the answer to the second one.
            if (outcome := (yield from _recognise(write, begun, tombstone=tombstone))) is not None:
                return outcome
            yield Abandon(write, spent=_spent(write, begun))
            if answer.code == NO_SUCH_UPLOAD:
                return StoreRefused(Rejected(answer.status, answer.code, "The specified upload does not exist."))
            return None
        case NotSent(reason):
            yield Abandon(write)
            return NotDone(reason)
        case Rejected():
            yield Abandon(write, spent=_spent(write, begun))
            return StoreRefused(answer)
        case Unknown(reason):
            return (yield from _recognise(write, begun, tombstone=tombstone)) or Uncertain(reason)
        case _:
            assert_never(answer)


def _recognise(write: Announcement, begun: Begun, *, tombstone: bool) -> Steps[WriteOutcome | None]:
    """Tell by the write-id in the object's metadata whether the write is there. None: it is not."""
    state: HeadAnswer = yield Look(write.bucket, write.key)
    if isinstance(state, Found) and _is_ours(write, state) and state.tombstone is tombstone:
        return (yield from _finish(write, begun, Applied(state.etag), tombstone=tombstone))
    return None


def _finish(
    write: Announcement, begun: Begun, applied: Applied, *, tombstone: bool, corrected: tuple[str, ...] = ()
) -> Steps[WriteOutcome]:
    """Report that the write has taken effect, unless a settler may be about to put back the object from before.

    It may where the write did not change the ETag: then the settler cannot tell that the write has arrived.

    The answer waits for ``Finish``, although most writes stand without it. Else a quick successor would find the
    intent, settle a write that is over, and put that on record.
    """
    done: WriteOutcome
    if tombstone or applied.etag is None:
        done = Deleted(begun.decision, begun.fence, applied)
    else:
        done = Stored(applied, begun.decision, begun.fence)
    if (yield Finish(write, applied.etag, tombstone, (*_spent(write, begun), *corrected))):
        return done
    state: HeadAnswer = yield Look(write.bucket, write.key)
    if isinstance(state, Found) and _is_ours(write, state) and state.etag != begun.key.etag:
        return done
    return Uncertain("another writer settled this write while it was under way")


def _correct(write: Announcement, begun: Begun, etag: str) -> Steps[WriteOutcome]:
    """Make a forbidden ETag go away that the store gave the bytes instead of the predicted one."""
    bumped: WriteAnswer = yield _bump(write, begun, etag)
    if isinstance(bumped, Applied):
        return (yield from _finish(write, begun, bumped, tombstone=False, corrected=(etag,)))
    return Uncertain("the write got an ETag that a late request may be waiting for")


# The operations. Each says what to send under the announcement, and what its answer means.


def put(
    write: Announcement,
    candidates: tuple[Candidate, ...],
    condition: WriteCondition | None = None,
    *,
    in_parts: bool = True,
) -> Steps[WriteOutcome]:
    """Write a body that has been read and verified. ``candidates``: its forms, the preferred one first.

    No part of it leaves before its intent is committed: the head of the request needs the ETag that ``Begin`` returns.
    ``in_parts`` False: do not ask for an upload (``InParts``).
    """

    def mutate(write: Announcement, begun: Begun, signed_at: datetime) -> Steps[WriteOutcome | None]:
        form = _best(candidates, begun)
        if form is None:
            yield Abandon(write)
            # A write that waits never leaves the ETag that stands.
            awaited = tuple(etag for etag in etags if not (begun.waits and etag == begun.key.etag))
            return _forbidden(ALL_FORMS if awaited else SAME_BYTES, begun, awaited)
        answer: WriteAnswer = yield Put(write, form, begun.key.etag, signed_at)
        return (yield from _conclude(write, begun, answer))

    etags = tuple(candidate.etag for candidate in candidates)

    def as_upload(begun: Begun) -> bool:
        return in_parts and _can_be_parts(candidates, begun)

    return (yield from _fenced(write, condition, mutate, outcomes=etags, displaces=True, as_upload=as_upload))


def _best(candidates: tuple[Candidate, ...], begun: Begun) -> UploadForm | None:
    """Return the first form whose ETag no request may be waiting for, that of this write included.

    If there is none, return a form that no older holder's request is waiting for. Of several, it is the one whose ETag
    has been spent for longest. The form of the key's own ETag comes last. None where all are forbidden.
    """
    waited_for = {one.etag: (one.token < begun.own, rank) for rank, one in enumerate(begun.spent, 1)}
    if begun.key.etag is not None:
        by_older, _ = waited_for.get(begun.key.etag, (False, 0))
        waited_for[begun.key.etag] = (by_older, len(begun.spent) + 1)
    allowed = [one for one in candidates if one.etag not in begun.forbidden]
    if begun.waits:
        allowed = [one for one in allowed if one.etag not in waited_for]
    best = min(allowed, key=lambda one: waited_for.get(one.etag, (False, 0)), default=None)
    return None if best is None else best.form


def _can_be_parts(candidates: tuple[Candidate, ...], begun: Begun) -> bool:
    return any(one.form is UploadForm.MULTIPART and one.etag not in begun.forbidden for one in candidates)


def complete(
    write: Announcement,
    upload_id: str,
    etag: str | None,
    condition: WriteCondition | None = None,
    *,
    conditional: bool,
    tombstone: bool = False,
) -> Steps[WriteOutcome]:
    """Make the parts of an upload the object. ``etag``: the ETag it will have, None where that cannot be predicted.

    ``conditional`` False for stores that ignore the condition of a completion. Some stores that honour it also refuse
    every upload that is older than the object at the key (409). In both cases the upload itself is the condition: its
    id is unique, it can be completed once, and a settler aborts it. So it is where a request of the key got lost.
    ``tombstone``: the upload is a delete, and the object a tombstone.
    """

    def mutate(write: Announcement, begun: Begun, signed_at: datetime) -> Steps[WriteOutcome | None]:
        if etag in begun.forbidden:
            yield Abandon(write)
            reason = "a late request may be waiting for the ETag that the object would have"
            return _forbidden(reason, begun, (etag or ABSENCE,))
        if tombstone and _is_idle(begun):
            return (yield from _confirm_absence(write, begun))
        if begun.waits and etag is not None and etag == begun.key.etag and write.kind is MutationKind.CONDITIONAL:
            return (yield from _displace(write, begun, etag))
        unconditional = write.kind is MutationKind.UPLOAD
        if unconditional and condition is not None and (failed := (yield from _judge(write, condition))):
            return failed
        answer: WriteAnswer = yield Complete(write, upload_id, begun.key.etag, signed_at)
        outcome = yield from _conclude(write, begun, answer, tombstone=tombstone)
        if outcome is None and isinstance(answer, NotApplied) and answer.status == 409:
            return InParts(write.attempt + 1)  # the object is newer than the upload
        return outcome

    if conditional:
        outcome = yield from _fenced(write, condition, mutate, outcomes=(), displaces=True, as_upload=lambda _: True)
        if not isinstance(outcome, InParts):
            return outcome
        write = replace(write, attempt=outcome.attempt)
    write = replace(write, kind=MutationKind.UPLOAD, upload_id=upload_id)
    return (yield from _fenced(write, condition, mutate, outcomes=(), displaces=True))


def _displace(write: Announcement, begun: Begun, etag: str) -> Steps[WriteOutcome]:
    """Make the ETag go away that the key has and that the object would have, so that waiting helps."""
    bumped: WriteAnswer = yield _bump(write, begun, etag)
    if not isinstance(bumped, Unknown):
        yield Abandon(write, spent=(etag,))
    return _forbidden(TWICE, begun, (etag,))


def _judge(write: Announcement, condition: WriteCondition) -> Steps[WriteOutcome | None]:
    """Evaluate the caller's condition, where the mutation carries none. Return None where it holds.

    The object seen before the announcement may have changed until then. Our intent keeps others from announcing, so a
    look now is final.
    """
    key = yield from _look(write)
    outcome: WriteOutcome | None = None
    if isinstance(key, NotDone | StoreRefused):
        outcome = key
    elif (broken := condition.broken(key.visible)) is not None:
        outcome = ConditionFailed(broken)
    if outcome is not None:
        yield Abandon(write)
    return outcome


def delete(
    write: Announcement,
    condition: WriteCondition | None = None,
    *,
    conditional_delete: bool = True,
    in_parts: bool = True,
) -> Steps[WriteOutcome]:
    """Make a key absent. A tombstone stands for it where absence is forbidden, or the store deletes unconditionally.

    So it does where a finished request of an older holder may still be waiting for absence. A finished request of the
    holder's own leaves no tombstone by default: most objects that are deleted soon are deleted by their writer. If the
    delete settles a lost request, a tombstone changes the key even if there was nothing to delete.

    ``in_parts`` False: do not ask for an upload of a tombstone (``InParts``).
    """

    def mutate(write: Announcement, begun: Begun, signed_at: datetime) -> Steps[WriteOutcome | None]:
        if _is_idle(begun):
            return (yield from _confirm_absence(write, begun))
        gone = begun.key.visible
        if gone and conditional_delete and ABSENCE not in begun.forbidden and not begun.overtakes_absence:
            answer: WriteAnswer = yield Delete(write, gone, signed_at)
            return (yield from _conclude(write, begun, answer))
        answer = yield Entomb(write, begun.key.etag, signed_at)
        return (yield from _conclude(write, begun, answer, tombstone=True))

    write = replace(write, entombs=not conditional_delete, removes=True)
    outcomes = (ABSENCE,)
    return (
        yield from _fenced(write, condition, mutate, outcomes=outcomes, displaces=True, as_upload=lambda _: in_parts)
    )


def _is_idle(begun: Begun) -> bool:
    """Return whether a delete has nothing to do: no object, and no lost request that a tombstone has to settle."""
    return begun.key.visible is None and not begun.over


def _confirm_absence(write: Announcement, begun: Begun) -> Steps[WriteOutcome | None]:
    """Confirm that there was nothing to delete. Our intent keeps others from announcing, so a look now is final."""
    key = yield from _look(write)
    yield Abandon(write)
    if isinstance(key, NotDone | StoreRefused):
        return key
    return Deleted(begun.decision, begun.fence) if key.visible is None else None


def amend(
    write: Announcement, *, on_version: bool = False, uncovers: bool = False, bumps: bool = True
) -> Steps[WriteOutcome]:
    """Change what belongs to an object: its tags, its ACL, its retention. S3 has no condition for any of it.

    ``on_version``: of the version that the request names, and not of the object at the key. ``uncovers``: remove that
    version, which may bring back the ETag of the one before; not while a late request may be waiting for any ETag.
    ``bumps``: whether objects of this store are bumped. A bump puts back what belonged to the object when it was read.
    It may arrive after the intent that it was to settle is over. It waits for a forbidden ETag, which has to go away
    first.
    """

    def mutate(write: Announcement, begun: Begun, signed_at: datetime) -> Steps[WriteOutcome | None]:
        if uncovers and begun.forbidden:
            yield Abandon(write)
            reason = "a late request may be waiting for the ETag of an older version"
            return NotDone(reason, Obstacle.FORBIDDEN, clears_at=max(begun.until().values()))
        if not on_version and begun.key.tombstone:
            yield Abandon(write)
            return StoreRefused(Rejected(404, "NoSuchKey", "The specified key does not exist."))
        etag = begun.key.etag
        spent: tuple[str, ...] = ()
        if bumps and etag is not None and etag in begun.forbidden:
            spent = (etag,)
            bumped = yield from _bump_first(write, begun, etag)
            if not isinstance(bumped, Applied):
                return bumped
            etag = bumped.etag
        answer: WriteAnswer = yield Amend(write, signed_at)
        if isinstance(answer, Unknown):
            return Uncertain(answer.reason)
        if _is_expired(answer):
            yield Abandon(write, spent=spent)
            return None
        if begun.waits and not isinstance(answer, NotSent):
            return _amended(begun, answer)  # it stays announced: only time stops it if it arrives again
        if isinstance(answer, Applied) and not on_version:
            yield Finish(write, etag, tombstone=False, spent=spent)
        else:
            yield Abandon(write, spent=spent)
        return _amended(begun, answer)

    return (yield from _fenced(_without_condition(write), None, mutate, look=not uncovers))


def _bump_first(write: Announcement, begun: Begun, etag: str) -> Steps[Applied | NotDone | None]:
    """Make a forbidden ETag go away before an amendment. None: the key has changed; start again."""
    bumped: WriteAnswer = yield _bump(write, begun, etag)
    if isinstance(bumped, Applied):
        return bumped
    yield Abandon(write, spent=(etag,))
    if isinstance(bumped, NotApplied):
        return None
    return _forbidden("a late request may be waiting for the object's ETag", begun, (etag,))


def _amended(begun: Begun, answer: Applied | NotApplied | Rejected | NotSent) -> WriteOutcome:
    match answer:
        case Applied():
            return Stored(answer, begun.decision, begun.fence)
        case NotApplied(status, code):
            return StoreRefused(Rejected(status, code, f"The store answered with {status}."))
        case Rejected():
            return StoreRefused(answer)
        case NotSent(reason):
            return NotDone(reason)
        case _:
            assert_never(answer)


def sweep(write: Announcement, *, conditional_delete: bool) -> Steps[WriteOutcome]:
    """Remove the tombstone at a key, if one stands there and absence may come back. ``write`` presents no token.

    A delete without a condition would remove any object written since the look at the key. The sweeper's intent keeps
    others from announcing. So the object that it sees once the intent is pending is still there when the delete
    arrives. Such a delete blocks writes of its key if it gets lost.

    A sweep settles nothing and waits for nothing. No barrier waits for it: a removal that comes late changes nothing
    that a caller can see.
    """

    def mutate(write: Announcement, begun: Begun, signed_at: datetime) -> Steps[WriteOutcome | None]:
        if not begun.key.tombstone or begun.key.etag is None:
            yield Finish(write, begun.key.etag, tombstone=False)
            return Deleted(begun.decision, begun.fence)
        if ABSENCE in begun.forbidden or begun.overtakes_absence:
            yield Abandon(write)
            return NotDone("a late request may be waiting for absence")
        if conditional_delete:
            answer: WriteAnswer = yield Delete(write, begun.key.etag, signed_at)
            return (yield from _conclude(write, begun, answer))
        still = yield from _look(write)
        if still != begun.key:
            yield Abandon(write)
            return still if isinstance(still, NotDone | StoreRefused) else None
        answer = yield Amend(write, signed_at)
        if begun.waits and isinstance(answer, Applied):
            return Deleted(begun.decision, begun.fence, answer)  # and stays announced, as an amendment does
        return (yield from _conclude(write, begun, answer))

    announced = replace(write if conditional_delete else _without_condition(write), housekeeping=True)
    return (yield from _fenced(announced, None, mutate, look=True, outcomes=(ABSENCE,)))


def barrier(resource: str, presented: Presented, caller: str) -> Steps[WriteOutcome]:
    """Raise without writing. Once this returns ``Barred``, no lower token's mutation takes effect any more."""
    raised: Raised = yield RaiseFence(resource, presented, caller)
    if not raised.decision.passes:
        return FenceRefused(raised.decision, raised.fence)
    unsettled: tuple[Unsettled, ...] = ()
    for intent in raised.pending:
        blocked = yield from settle(intent)
        unsettled += (blocked,) if blocked else ()
    return _unsettled(unsettled) if unsettled else Barred(raised.decision, raised.fence)


# Rules that the operations and their answers share.


def candidates(md5: str) -> tuple[Candidate, ...]:
    """Return the forms of a body with the ETags they have on stores that hash, given its MD5 in hex."""
    of_parts = hashlib.md5(bytes.fromhex(md5), usedforsecurity=False).hexdigest()
    return Candidate(UploadForm.PLAIN, md5), Candidate(UploadForm.MULTIPART, f"{of_parts}-1")


def choose(candidates: tuple[Candidate, ...], forbidden: frozenset[str]) -> UploadForm | None:
    """Return the first form whose ETag may come (back) on the key."""
    return next((candidate.form for candidate in candidates if candidate.etag not in forbidden), None)


def _bump(write: Announcement, begun: Begun, etag: str) -> Bump:
    spent = frozenset(one.etag for one in begun.spent)
    return Bump(write.resource, write.bucket, write.key, etag, begun.forbidden, spent)


def _spent(write: Announcement, begun: Begun) -> tuple[str, ...]:
    """Return what the request of this write was conditioned on."""
    return (begun.key.etag or ABSENCE,) if write.kind is MutationKind.CONDITIONAL else ()


def _is_ours(write: Announcement, state: Found) -> bool:
    return state.write_id == str(write.mark or write.write_id)


def _is_expired(answer: WriteAnswer) -> bool:
    return isinstance(answer, NotApplied) and answer.code == EXPIRED


def _without_condition(write: Announcement) -> Announcement:
    return replace(write, kind=MutationKind.AMENDMENT)


def _forbidden(reason: str, begun: Begun, etags: tuple[str, ...]) -> NotDone:
    return NotDone(reason, Obstacle.FORBIDDEN, clears_at=begun.free_at(etags))


def _unsettled(blocked: tuple[Unsettled, ...]) -> NotDone:
    known = [one.clears_at for one in blocked if one.clears_at is not None]
    clears_at = max(known) if len(known) == len(blocked) else None
    return NotDone(UNSETTLED, Obstacle.UNSETTLED, blocked, clears_at)
