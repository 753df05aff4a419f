"""A fenced write of one key, whatever its form. The stages, in order:

- ``prepare``: the resource of the key, the token that counts, and the policy of the resource.
- ``refuse_if_stale``: a stale token is refused before a large body is asked for or anything is staged.
- ``profile_for``: a bucket that cannot be fenced is not written to.
- ``run``: the protocol carries the write out. Refusals go on record, and other outcomes become errors.

The SDKs of AWS send a request again by themselves, with one id for all attempts of a call. If the first attempt took
effect and its answer got lost, the second one is refused: the key has changed. The refusal then says what became of the
first. So each object has in its metadata which call has written it.
"""

import asyncio
import hashlib
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias, cast
from uuid import UUID, uuid4

from gateway.budget import Budget, Room
from gateway.db import fences
from gateway.db.database import Database
from gateway.db.uploads import RecordedUpload, UploadKey
from gateway.errors import (
    Denied,
    Fact,
    GatewayError,
    OutcomeUnknown,
    Overloaded,
    ResourceMalformed,
    ResourceMismatch,
    SqlError,
    StoreError,
    StoreUnfit,
    TokenImplausible,
    TokenRequired,
    Unavailable,
)
from gateway.fencing.decision import Decision, Enforcement, Fence, Presented, decide
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.intent import Announcement, Intent, MutationKind
from gateway.fencing.record import Attempt, CapturedPayload, MissingGrant, Refusal
from gateway.fencing.token import MAX_EPOCH, Token
from gateway.objects.exchange import Exchange
from gateway.objects.key_rules import ObjectTarget, Resources
from gateway.objects.protocol import mutation
from gateway.objects.protocol.effects import (
    Barred,
    ConditionFailed,
    Deleted,
    FenceRefused,
    InParts,
    Look,
    NotDone,
    Obstacle,
    Steps,
    Stored,
    StoreRefused,
    Uncertain,
    WriteOutcome,
)
from gateway.objects.protocol.runner import NO_PAYLOAD, OperationPayload, Runner
from gateway.objects.s3.answers import Found, HeadAnswer, Rejected, store_refusal
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import Mark
from gateway.objects.store import bucket_profile
from gateway.objects.store.bucket_profile import KEYS, Profile
from gateway.objects.store.client import Place, TextHeaders, place_of
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.observe.events import Observe, WriteAccepted
from gateway.record.refusals import Audit
from gateway.token_admission import Admission

Authorise: TypeAlias = Callable[["Exchange", str, str], Awaitable[MissingGrant | None]]
"""Raises ``Denied`` if the caller may not write a key of a bucket. In observe mode it may return the missing grant."""
CaptureStart: TypeAlias = Callable[[], Awaitable[CapturedPayload | None]]
"""Returns what the record keeps of a body that is not read, when its write is refused."""


@dataclass(frozen=True, slots=True)
class Objection:
    """The reason of an enforcing rule to refuse a write, as the record has it."""

    reason: str
    missing: MissingGrant | None = None


@dataclass(frozen=True, slots=True)
class FencedWrite:
    """A fenced write of one key: what is announced of it, its fence, and how it goes on record."""

    exchange: Exchange
    target: ObjectTarget
    announced: Announcement
    """With the token that its sender presents, if that counts."""
    attempt: Attempt
    objections: tuple[Objection, ...] = ()
    """Observe mode: why an enforcing rule would refuse the write before it asks the fence. Its token does not count."""
    capture_start: CaptureStart | None = None
    """Set while the body is not read. None where there is no body, or none worth keeping."""
    evidence: str | None = None
    """The mark of an earlier attempt of the same call in the object's metadata; None if no attempt leaves one."""

    @property
    def place(self) -> Place:
        return place_of(self.announced.bucket, self.announced.key)

    @property
    def fenced_by(self) -> Presented | None:
        """The token that the fence decides on; None where the rule observes."""
        return None if self.target.mode is Enforcement.OBSERVE else self.announced.presented

    def upload_key(self, upload_id: str) -> UploadKey:
        return UploadKey(self.target.resource, self.announced.bucket, self.announced.key, upload_id)

    def upload(self, upload_id: str, *, staged: bool) -> RecordedUpload:
        """Return an upload for this write, for the database. ``staged``: the gateway opened it for itself."""
        presented = self.announced.presented
        token, sequencer = (presented.token, presented.sequencer) if presented else (None, None)
        return RecordedUpload(
            self.upload_key(upload_id),
            self.announced.write_id,
            token,
            self.attempt.holder,
            self.attempt.caller,
            staged=staged,
            sequencer=None if staged else sequencer,
        )

    def marks(self, upstream: Upstream, *, tombstone: bool = False) -> TextHeaders:
        """Return the gateway's own metadata for the object: whose write it is, and of which call."""
        mark = str(self.announced.mark)
        token = str(self.announced.presented.token) if self.announced.presented else ""
        own = upstream.own_metadata(self.place, self.target.resource, token, mark, tombstone=tombstone)
        return own if tombstone or self.evidence in (None, mark) else (*own, (Mark.INVOCATION, self.evidence))

    def with_body(self, size: int, sha256: str | None, captured: CapturedPayload | None = None) -> "FencedWrite":
        """Return the write once its body is known: ``size`` in bytes, SHA-256 in hex, what the record keeps of it."""
        attempt = replace(self.attempt, payload_size=size, payload_sha256=sha256, captured=captured)
        return replace(self, attempt=attempt, capture_start=None)

    async def recorded_attempt(self) -> Attempt:
        if self.capture_start is None:
            return self.attempt
        return replace(self.attempt, captured=await self.capture_start())


class FencedWrites:
    def __init__(
        self,
        database: Database,
        profiles: Profiles,
        resources: Resources,
        runner: Runner,
        audit: Audit,
        admission: Admission,
        authorise: Authorise,
        observe: Observe,
    ) -> None:
        self._database, self._authorise = database, authorise
        self._observe, self._admission, self._profiles = observe, admission, profiles
        self.resources, self._runner, self._audit = resources, runner, audit
        self._turns = _Turns()

    async def prepare(
        self,
        exchange: Exchange,
        key: str | None = None,
        opened: RecordedUpload | None = None,
        write_id: UUID | None = None,
        capture_start: CaptureStart | None = None,
    ) -> FencedWrite:
        """Return the write that a request asks for, of the key in its path or of another one of the same bucket.

        ``opened``: the upload it belongs to. A request without a token presents the upload's. ``write_id``: that of a
        request with several keys, so that a token that may write once may write them all.

        Raises ``Denied``, ``TokenRequired``, ``TokenImplausible`` (recorded), ``ResourceMismatch``, or ``StoreError``
        AccessDenied for what goes beyond the scope of fenced credentials.
        """
        request = exchange.request
        key = request.key if key is None else key
        authorised = exchange.authorised
        if authorised is None or authorised[0] != key:  # the key of a form, or one of several
            authorised = key, await self._authorise(exchange, request.bucket, key)
        target = self.resources.target(request.bucket, key, request.fencing.resource)
        writer = _writer(exchange, target.resource, opened)
        if writer.token is None and target.mode is Enforcement.ENFORCE:
            raise TokenRequired(f"{request.operation} on {target.resource} carries no fencing token.")
        objections = tuple(_objections(target, writer, authorised[1]))
        write_id = write_id or uuid4()
        presented = None
        if writer.token is not None and not objections:
            presented = Presented(writer.token, writer.holder, write_id, next(iter(writer.sequencers), None))
        mark, caller = opened.write_id if opened else write_id, exchange.principal.name
        announced = Announcement(
            *(target.resource, request.bucket, key, write_id, presented, caller, target.mode, target.equal), mark=mark
        )
        named = key if request.operation in _KEYS_IN_BODY else None
        attempt = replace(exchange.attempt(), token=writer.token, holder=writer.holder, rule=target.rule, key=named)
        evidence = evidence_of(exchange, mark)
        return await self._apply_policy(
            FencedWrite(exchange, target, announced, attempt, objections, capture_start, evidence)
        )

    async def _apply_policy(self, write: FencedWrite) -> FencedWrite:
        """Return the write, if the policy of its resource takes its token. Raises ``TokenImplausible`` (recorded).

        In observe mode a write with such a token goes on as if it had none, so that it does not raise the fence.
        """
        resource, mode, presented = write.target.resource, write.target.mode, write.announced.presented
        if presented is None:
            return write
        enforced = (resource,) if mode is Enforcement.ENFORCE else ()
        refused = await self._admission.admit([(resource, presented)], enforced)
        if not refused:
            return write
        if mode is Enforcement.ENFORCE:
            error = await self._audit.implausible(refused, await write.recorded_attempt())
            raise await self._told(write, error)
        announced = replace(write.announced, presented=None)
        return replace(write, announced=announced, objections=(Objection(TokenImplausible.code),))

    async def refuse_if_stale(self, write: FencedWrite, fence: Fence | None = None) -> None:
        """Raise the refusal (recorded) of a token that is stale already.

        ``fence``: the fence, for callers that have just read it.
        """
        if write.fenced_by is None:
            return
        fence = fence or await fences.read(self._database, write.target.resource)
        if fence is None:
            return
        decision = decide(fence, write.fenced_by, write.target.equal)
        if not decision.passes:
            raise await self._refused(write, decision, fence)

    async def profile_for(self, write: FencedWrite) -> Profile:
        """Return what the bucket of a write does at its key. A key that may be taken for another one is not written.

        Raises what ``writable_profile`` raises, and ``StoreError`` InvalidArgument.
        """
        bucket, key = write.announced.bucket, write.announced.key
        profile = await self.writable_profile(bucket)
        kind = bucket_profile.mistakable(key, profile.confused)
        if kind is not None:
            raise StoreError(
                "InvalidArgument",
                400,
                f"The key {key[:200]!a} cannot be fenced: the store of bucket {bucket} may take it for "
                f"another one ({kind}). Nothing was written: use a key in another spelling. {KEYS[kind]}",
            )
        return profile.at(key)

    async def writable_profile(self, bucket: str) -> Profile:
        """Return what the bucket does. Raises ``StoreUnfit`` for a store that ignores conditions, or ``StoreError``."""
        try:
            profile = await self._profiles.of(bucket)
        except StoreError as error:
            raise store_refusal(Rejected(error.status, error.s3_code, error.message)) from error
        if not profile.writable:
            raise StoreUnfit(f"The store of bucket {bucket} cannot be fenced: {profile.reason}.")
        return profile

    async def run(
        self, write: FencedWrite, steps: Steps[WriteOutcome], payload: OperationPayload = NO_PAYLOAD
    ) -> Stored | Deleted | InParts:
        """Carry a write out, and put its refusal on record. Raises the error to answer with if it is not done.

        ``InParts`` only where the steps may ask for an upload.
        """
        async with self._turns.taken(write.announced):
            if write.target.mode is Enforcement.ENFORCE and self._admission.asks_again(write.target.resource):
                await self._apply_policy(write)  # the policy may have changed while the body arrived
            outcome = await self._runner.run(steps, payload)
        match outcome:
            case Stored(_, decision, fence) | Deleted(decision, fence):
                await self._record_acceptance(write, decision, fence)
                return outcome
            case InParts():
                return outcome
            case FenceRefused(decision, fence):
                raise await self._refused(write, decision, fence)
            case ConditionFailed(error):
                raise await self._told(write, error)
            case StoreRefused(rejected):
                # The store stops an overtaken holder's write without a condition. The stale token is the real reason.
                await self.refuse_if_stale(write)
                raise store_refusal(rejected)
            case Uncertain(reason):
                raise OutcomeUnknown(f"The write may have taken effect: {reason}.")
            case NotDone(reason):
                raise unavailable(outcome, f"Nothing was written: {reason}.", self._runner.now())
            case _:
                raise AssertionError(outcome)

    async def raise_fence(self, write: FencedWrite) -> Fence | None:
        """Raise the fence to the token of a write that has taken effect before, so that its acknowledgement stays true.

        Return the fence, None where the resource does not obey one. Raises the refusal (recorded), and ``Unavailable``
        where an older holder's write cannot be settled.
        """
        if write.fenced_by is None:
            return None
        steps = mutation.barrier(write.target.resource, write.fenced_by, write.attempt.caller)
        outcome = await self._runner.run(steps)
        match outcome:
            case Barred(_, fence):
                return fence
            case FenceRefused(decision, fence):
                raise await self._refused(write, decision, fence)
            case NotDone(reason):
                raise unavailable(outcome, f"This request has written nothing: {reason}.", self._runner.now())
            case _:
                raise AssertionError(outcome)

    async def _refused(self, write: FencedWrite, decision: Decision, fence: Fence) -> GatewayError:
        error = await self._audit.refused([(decision, fence)], await write.recorded_attempt())
        return await self._told(write, error)

    async def _told(self, write: FencedWrite, error: GatewayError) -> GatewayError:
        """Return the error, which says so where an earlier attempt of the same call stands at the key.

        This is about the earlier attempt only: the refused one has written nothing. The gateway does not wait for a
        store that is slow or away.
        """
        if write.evidence is None:
            return error
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(EVIDENCE_TIMEOUT):
                there = await self._runner.run(_look(write.announced.bucket, write.announced.key))
            if isinstance(there, Found) and write.evidence in (there.invocation, there.write_id):
                error.message += (
                    " This request has written nothing, but an earlier attempt of it took effect: it wrote the object "
                    "that stands at the key."
                )
                error.facts["earlier-attempt"] = "took-effect"
        return error

    async def _record_acceptance(self, write: FencedWrite, decision: Decision | None, fence: Fence | None) -> None:
        """Count an accepted write. In observe mode, put on record that the fence would have refused it."""
        if decision is not None and decision.passes:
            self._observe(WriteAccepted("objects", write.attempt.rule, "store"))
        else:
            why = write.objections if decision is None else (Objection(str(decision)),)
            notes = [
                Refusal(write.target.resource, one.reason, write.attempt, fence, enforced=False, missing=one.missing)
                for one in why
            ]
            with after_the_effect("put on record"):
                await self._audit.passed(notes)
            for one in why:
                write.exchange.response.would_refuse(one.reason, fence)


TURN = 2.0
"""Seconds that a write waits for its turn in this process: longer than most writes take."""


class _Turns:
    """The writes of a holder to a key in this process, one after the other: at the store only one of them could win.

    A newer holder has a line of its own, so it waits for no older one. Each write under way has one line at most.
    Others leave a write that hangs behind, with its line.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str, Token | None], Budget] = {}

    @asynccontextmanager
    async def taken(self, write: Announcement) -> AsyncGenerator[None, None]:
        """Take a turn. After a while go on without one: then the protocol waits for the other writes.

        Later writes begin another line then, because the one with the turn may hang.
        """
        name = write.bucket, write.key, write.presented.token if write.presented else None
        if (line := self._lines.get(name)) is None:
            line = self._lines[name] = Budget(1, "turns", share=1, patience=TURN)
        turn: Room | None = None
        try:
            try:
                turn = await line.take(1)
            except Overloaded:
                if self._lines.get(name) is line:
                    del self._lines[name]
            yield
        finally:
            if turn is not None:
                line.give(turn)
            if not line.used and not line.waiting and self._lines.get(name) is line:
                del self._lines[name]


def _writer(exchange: Exchange, resource: str, opened: RecordedUpload | None) -> FencingHeaders:
    """Return the token and holder that count. Their scope counts alone: its owner can neither widen nor change it."""
    given, scope = exchange.request.fencing, exchange.principal.scope
    if scope is not None:
        if not scope.covers(resource):
            raise _denied(f"These fenced credentials are for {scope.pattern}, not for {resource}.")
        if given.token not in (None, scope.token) or given.holder not in (None, scope.holder):
            raise _denied("The request presents another token or holder than its fenced credentials do.")
        sequencers = given.sequencers if scope.sequencer is None else (scope.sequencer,)
        return FencingHeaders(scope.token, given.resource, scope.holder, sequencers=sequencers)
    if given.token is None and opened is not None and opened.caller == exchange.principal.name:
        sequencers = () if opened.sequencer is None else (opened.sequencer,)
        return FencingHeaders(opened.token, given.resource, given.holder or opened.holder, sequencers=sequencers)
    return given


def _objections(target: ObjectTarget, writer: FencingHeaders, missing: MissingGrant | None) -> Iterator[Objection]:
    """Yield why an enforcing rule would refuse a write before it asks the fence."""
    if missing is not None:
        yield Objection(Denied.code, missing)
    if writer.token is None:
        yield Objection(TokenRequired.code)
    if target.too_long:
        yield Objection(ResourceMalformed.code)
    elif writer.resource not in (None, target.resource):
        yield Objection(ResourceMismatch.code)


def _denied(message: str) -> StoreError:
    return StoreError.known("AccessDenied", message)


_ADVICE = {
    Obstacle.PASSING: Unavailable.default_advice,
    Obstacle.UNSETTLED: "Send the request again. `clears_at` is when the earlier write cannot arrive any more.",
    Obstacle.FORBIDDEN: "Write other bytes, or to another key, or send the request again at `clears_at`.",
}
_STORE_AWAY = 5


def unavailable(outcome: NotDone, message: str, now: datetime) -> Unavailable:
    """Return the error for a write that was not done: what it waits for, and until when at most.

    ``now`` is the store's clock, by which that ends.
    """
    facts: dict[str, Fact] = {}
    if outcome.blocked_by:
        facts["blocked_by"] = "; ".join(_described(one.intent) for one in outcome.blocked_by)
    error = Unavailable(message, advice=_ADVICE[outcome.obstacle], facts=facts)
    if outcome.clears_at is not None:
        error.facts["clears_at"] = outcome.clears_at.astimezone(UTC).isoformat(timespec="seconds")
        error.retry_after = max(1, math.ceil((outcome.clears_at - now).total_seconds()) + 1)
    elif outcome.obstacle is Obstacle.FORBIDDEN:
        error.advice = "Write other bytes, or delete the object first."
    elif outcome.obstacle is Obstacle.UNSETTLED:
        error.advice = (
            "Send the request again: the object store does not answer, and only it knows of an earlier write."
        )
        error.retry_after = _STORE_AWAY
    return error


def _described(intent: Intent) -> str:
    if intent.kind is MutationKind.LOST:
        return "writes of this resource that the database has forgotten"
    token = "housekeeping" if intent.token.epoch == MAX_EPOCH else f"token {intent.token}"
    return f"{intent.kind} write of {intent.bucket}/{intent.key}, {token}"


@contextmanager
def after_the_effect(unfinished: str) -> Iterator[None]:
    """Let no failure say that nothing was written, once the store has done what was asked.

    Raises ``OutcomeUnknown``, whose message names what is left to do: ``unfinished``.
    """
    try:
        yield
    except (Unavailable, SqlError) as error:
        raise OutcomeUnknown(f"The request has taken effect, but could not be {unfinished}.") from error


EVIDENCE_TIMEOUT = 1.0
"""Seconds that a refused writer waits for the store to say whose object stands at its key."""

_KEYS_IN_BODY = (Operation.DELETE_OBJECTS, Operation.POST_OBJECT)
_INVOCATION = b"amz-sdk-invocation-id"
_VISIBLE = re.compile(rb"[!-~]{1,128}")


def evidence_of(exchange: Exchange, mark: UUID) -> str | None:
    """Return the mark that an earlier attempt of the same call has left, if it has written the object at the key."""
    request = exchange.request
    match request.operation:
        case Operation.COMPLETE_MULTIPART_UPLOAD:
            return str(mark)
        case Operation.PUT_OBJECT | Operation.COPY_OBJECT:
            return digest(exchange.head.headers, exchange.principal.name, request.bucket, request.key)
        case _:
            return None


def digest(headers: Iterable[tuple[bytes, bytes]], caller: str, bucket: str, key: str) -> str | None:
    """Return the mark of a call in the metadata of the object it writes; None if the client names no call.

    No caller can name the call of another caller, or of another key. ``headers`` are raw, with names in lower case.
    """
    named = [value for name, value in headers if name == _INVOCATION]
    if len(named) != 1 or not _VISIBLE.fullmatch(named[0]):
        return None
    parts = (named[0], caller.encode(), bucket.encode(), key.encode())
    # A hash of hashes: no two calls have one text.
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


def _look(bucket: str, key: str) -> Steps[HeadAnswer]:
    return cast(HeadAnswer, (yield Look(bucket, key)))
