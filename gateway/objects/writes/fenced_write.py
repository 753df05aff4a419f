"""What all fenced writes have in common: the resource and the token of a key, early refusal, the end of the story."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeAlias, cast
from uuid import UUID, uuid4

from gateway.admission import Admission
from gateway.db import fences
from gateway.db.database import Database
from gateway.db.uploads import Upload
from gateway.errors import (
    GatewayError,
    OutcomeUnknown,
    SqlError,
    StoreError,
    StoreUnfit,
    TokenImplausible,
    TokenRequired,
    Unavailable,
)
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.intent import (
    DEAD_AFTER_HEADER_SIGNED,
    DEAD_AFTER_QUERY_SIGNED,
    Announcement,
)
from gateway.fencing.policy import Implausible
from gateway.fencing.record import Attempt, Captured, Refusal
from gateway.fencing.rules import Decision, Fence, Mode, Presented, decide
from gateway.objects.exchange import Exchange
from gateway.objects.probe.probe import Profiles
from gateway.objects.protocol import generator
from gateway.objects.protocol.effects import (
    Barred,
    ConditionFailed,
    Deleted,
    FenceRefused,
    Look,
    NotDone,
    Obstacle,
    Steps,
    Stored,
    StoreRefused,
    Uncertain,
    WriteOutcome,
)
from gateway.objects.resource_rules import ObjectTarget, Resources
from gateway.objects.run.runner import NO_PAYLOAD, OperationPayload, Runner
from gateway.objects.s3 import bucket_profile, forwarded_headers
from gateway.objects.s3.answers import Found, HeadAnswer, Rejected
from gateway.objects.s3.bucket_profile import KEYS, Profile
from gateway.objects.s3.operations import Operation
from gateway.objects.store.client import TextHeaders
from gateway.observe.events import Observe, WriteAccepted
from gateway.record.audit import Audit

HEADER = b"amz-sdk-invocation-id"
"""All SDKs of AWS send it, with one value for all attempts of a call."""

_SANE = re.compile(rb"[!-~]{1,128}")


def digest(headers: Iterable[tuple[bytes, bytes]], caller: str, bucket: str, key: str) -> str | None:
    """Return what stands for the call in the metadata of the object it writes; None if the client names no call.

    No caller can name the call of another caller, or of another key. ``headers`` are raw, with names in lower case.
    """
    named = [value for name, value in headers if name == HEADER]
    if len(named) != 1 or not _SANE.fullmatch(named[0]):
        return None
    parts = (named[0], caller.encode(), bucket.encode(), key.encode())
    # A hash of hashes: no two calls have one text.
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


# What the store says about our own signature must not look as if it were about the client's.
_ABOUT_US = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "InvalidAccessKeyId",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)

EVIDENCE_TIMEOUT = 1.0
"""Seconds that a refused writer waits for the store to say whose object stands at its key."""

CaptureStart: TypeAlias = Callable[[], Awaitable[Captured | None]]
"""What is kept of a body that has not been read, when its write is refused."""


@dataclass(frozen=True, slots=True)
class FencedWrite:
    """A fenced write of one key on its way: what fences it, what its sender presents, how it goes on record."""

    bucket: str
    key: str
    target: ObjectTarget
    presented: Presented | None
    attempt: Attempt
    write_id: UUID
    mark: UUID
    """What says in the object's metadata whose write it is; all that belong to one upload have the upload's."""
    implausible: Implausible | None = None
    """Observe mode: why the token that was shown counts as none."""
    beginning: CaptureStart | None = None
    """For as long as its body has not been read; None where it has none, or none that is worth keeping."""
    evidence: str | None = None
    """The mark of an earlier attempt of the same call in the object's metadata; None if no attempt leaves one."""

    def announcement(self, profile: Profile | None = None) -> Announcement:
        """What the protocol is to announce. A store where nothing can be bumped gets signatures that die early."""
        short = profile is not None and not profile.can_bump
        return Announcement(
            self.target.resource,
            self.bucket,
            self.key,
            self.write_id,
            self.presented,
            self.attempt.caller,
            self.target.mode,
            self.target.equal,
            mark=self.mark,
            dead_after=DEAD_AFTER_QUERY_SIGNED if short else DEAD_AFTER_HEADER_SIGNED,
        )

    def marks(self) -> TextHeaders:
        """The metadata of the object it will be that say whose write it is, and of which call."""
        token = str(self.presented.token) if self.presented else ""
        return (*forwarded_headers.own_metadata(self.target.resource, token, str(self.mark)), *self.marks_of_call())

    def marks_of_call(self) -> TextHeaders:
        """The metadata that say of which call it is."""
        return () if self.evidence in (None, str(self.mark)) else ((forwarded_headers.INVOCATION, self.evidence),)

    def with_payload(self, size: int, sha256: str | None) -> "FencedWrite":
        """The same write, now that its body is known: ``size`` in bytes, SHA-256 in hex."""
        attempt = replace(self.attempt, payload_size=size, payload_sha256=sha256)
        return replace(self, attempt=attempt, beginning=None)

    def keeping(self, captured: Captured | None) -> "FencedWrite":
        """The same write, with what is kept of its body, should it be refused."""
        return replace(self, attempt=replace(self.attempt, captured=captured))

    async def on_record(self) -> Attempt:
        """How it goes on record that it was refused."""
        if self.beginning is None:
            return self.attempt
        return replace(self.attempt, captured=await self.beginning())


class FencedWrites:
    """Fenced writes, whatever their form."""

    def __init__(
        self,
        database: Database,
        profiles: Profiles,
        resources: Resources,
        runner: Runner,
        audit: Audit,
        admission: Admission,
        observe: Observe,
    ) -> None:
        self._database = database
        self._observe = observe
        self._admission = admission
        self._profiles = profiles
        self._resources = resources
        self._runner = runner
        self._audit = audit

    def target(self, bucket: str, key: str, named: str | None = None) -> ObjectTarget:
        """What fences a key. ``named``: what the request says that it is, which can only be the same."""
        return self._resources.target(bucket, key, named)

    async def write(
        self,
        call: Exchange,
        key: str | None = None,
        opened: Upload | None = None,
        write_id: UUID | None = None,
        beginning: CaptureStart | None = None,
    ) -> FencedWrite:
        """The write that a call asks for, of the key in its path or of another one of the same bucket.

        ``opened``: the upload it belongs to; what was presented when that was opened holds for what presents nothing.
        ``write_id``: that of a request with several keys, so that a token that may write once may write them all.
        Raises ``TokenRequired``, ``TokenImplausible`` (recorded), ``ResourceMismatch``, or ``StoreError`` AccessDenied
        for what goes beyond a grant.
        """
        request = call.request
        target = self.target(request.bucket, request.key if key is None else key, request.fencing.resource)
        said = _presented(call, target.resource, opened)
        if said.token is None and target.mode is Mode.ENFORCE:
            raise TokenRequired(f"{request.operation} on {target.resource} carries no fencing token.")
        write_id = write_id or uuid4()
        presented = None
        if said.token is not None:
            presented = Presented(said.token, said.holder, write_id, next(iter(said.sequencers), None))
        attempt = replace(call.attempt(), token=said.token, holder=said.holder, rule=target.rule)
        mark = opened.write_id if opened else write_id
        name = request.key if key is None else key
        evidence = _evidence(call, mark)
        return await self._admitted(
            FencedWrite(
                request.bucket, name, target, presented, attempt, write_id, mark, beginning=beginning, evidence=evidence
            )
        )

    async def _admitted(self, write: FencedWrite) -> FencedWrite:
        """The write, if its policy takes its token. In observe mode it goes on as one that shows none, so that nothing
        is raised by it. Raises ``TokenImplausible`` (recorded).
        """
        if write.presented is None:
            return write
        refused = await self._admission.admit([(write.target.resource, write.presented)])
        if not refused:
            return write
        if write.target.mode is Mode.ENFORCE:
            raise await self._told(write, await self._audit.implausible(refused, await write.on_record()))
        return replace(write, presented=None, implausible=refused[0])

    async def admit(self, write: FencedWrite, fence: Fence | None = None) -> None:
        """Refuse a token that is stale already, before the body is asked for or anything is staged.

        ``fence``: as it has just been read, for callers who have.
        """
        if write.presented is None or write.target.mode is Mode.OBSERVE:
            return
        fence = fence or await fences.read(self._database, write.target.resource)
        if fence is None:
            return
        decision = decide(fence, write.presented, write.target.equal)
        if not decision.passes:
            raise await self.refused(write, decision, fence)

    async def refused(self, write: FencedWrite, decision: Decision, fence: Fence) -> GatewayError:
        """Put a refusal on record; the error to answer with."""
        return await self._told(write, await self._audit.refused([(decision, fence)], await write.on_record()))

    async def _told(self, write: FencedWrite, error: GatewayError) -> GatewayError:
        """The error of a refused write, which says so where an earlier attempt of the same call stands at the key.

        This is about the earlier attempt only: the refused one has written nothing. A store that is slow or away is not
        waited for.
        """
        if write.evidence is None:
            return error
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(EVIDENCE_TIMEOUT):
                there = await self._runner.run(_look(write))
            if isinstance(there, Found) and write.evidence in (there.invocation, there.write_id):
                error.message += (
                    " This request has written nothing, but an earlier attempt of it took effect: it wrote the object "
                    "that stands at the key."
                )
                error.facts["earlier-attempt"] = "took-effect"
        return error

    async def bar(self, write: FencedWrite) -> Fence | None:
        """Before a write is acknowledged that has been done already: raise the fence to its token, so that what its
        sender is told stays true. The fence, None where it is not obeyed.

        Raises the refusal (recorded), and ``Unavailable`` where an older holder's write cannot be settled.
        """
        if write.presented is None or write.target.mode is Mode.OBSERVE:
            return None
        steps = generator.barrier(write.target.resource, write.presented, write.attempt.caller)
        outcome = await self._runner.run(steps)
        match outcome:
            case Barred(_, fence):
                return fence
            case FenceRefused(decision, fence):
                raise await self.refused(write, decision, fence)
            case NotDone(reason):
                raise unavailable(outcome, f"This request has written nothing: {reason}.")
            case _:
                raise AssertionError(outcome)

    async def fit(self, write: FencedWrite) -> Profile:
        """What the bucket of a write was seen to do. A key that its store may take for another is not written.

        Raises what ``writable`` raises, and ``StoreError`` InvalidArgument.
        """
        profile = await self.writable(write.bucket)
        kind = bucket_profile.mistakable(write.key, profile.confused)
        if kind is not None:
            raise StoreError(
                "InvalidArgument",
                400,
                f"The store of bucket {write.bucket} may take the key {write.key[:200]!a} for another one, so it "
                f"cannot be fenced ({kind}). {KEYS[kind]} Nothing was written: use a key in another spelling.",
            )
        return profile

    async def writable(self, bucket: str) -> Profile:
        """What the bucket was seen to do; a store that ignores conditions is not written to."""
        try:
            profile = await self._profiles.of(bucket)
        except StoreError as error:
            raise refusal_of_store(Rejected(error.status, error.s3_code, error.message)) from error
        if not profile.writable:
            raise StoreUnfit(f"The store of bucket {bucket} cannot be fenced: {profile.reason}.")
        return profile

    async def run(
        self, write: FencedWrite, steps: Steps[WriteOutcome], payload: OperationPayload = NO_PAYLOAD
    ) -> Stored | Deleted:
        """Do a write, and put on record what has to be. Raises the error to answer with if it is not done."""
        if write.target.mode is Mode.ENFORCE and self._admission.asks_again(write.target.resource):
            await self._admitted(write)  # its body may have been long in coming
        outcome = await self._runner.run(steps, payload)
        match outcome:
            case Stored(_, decision, fence) | Deleted(decision, fence):
                await self._note(write, decision, fence)
                return outcome
            case FenceRefused(decision, fence):
                raise await self.refused(write, decision, fence)
            case ConditionFailed(error):
                raise await self._told(write, error)
            case StoreRefused(rejected):
                # Of what carries no condition, an overtaken holder's is stopped by the store: that is not the reason.
                await self.admit(write)
                raise refusal_of_store(rejected)
            case Uncertain(reason):
                raise OutcomeUnknown(f"The write may have taken effect: {reason}.")
            case NotDone(reason):
                raise unavailable(outcome, f"Nothing was written: {reason}.")
            case _:
                raise AssertionError(outcome)

    async def _note(self, write: FencedWrite, decision: Decision | None, fence: Fence | None) -> None:
        """Observe mode: the write has passed; say on record that it would not have."""
        if decision is not None and decision.passes:
            self._observe(WriteAccepted("objects", write.attempt.rule, "store"))
        else:
            reason = str(decision) if decision else TokenImplausible.code if write.implausible else TokenRequired.code
            with after_the_effect("put on record"):
                await self._audit.passed(Refusal(write.target.resource, reason, write.attempt, fence, enforced=False))


def _look(write: FencedWrite) -> Steps[HeadAnswer]:
    return cast(HeadAnswer, (yield Look(write.bucket, write.key)))


def _evidence(call: Exchange, mark: UUID) -> str | None:
    """Return what an earlier attempt of the same call has left at the key, if it has written the object there."""
    request = call.request
    match request.operation:
        case Operation.COMPLETE_MULTIPART_UPLOAD:
            return str(mark)
        case Operation.PUT_OBJECT | Operation.COPY_OBJECT:
            return digest(call.head.headers, call.principal.name, request.bucket, request.key)
        case _:
            return None


def _presented(call: Exchange, resource: str, opened: Upload | None) -> FencingHeaders:
    """The token and holder that count. A grant counts alone: its owner can neither widen nor change it."""
    said, grant = call.request.fencing, call.principal.grant
    if grant is not None:
        if not grant.covers(resource):
            raise _denied(f"These fenced credentials are for {grant.pattern}, not for {resource}.")
        if said.token not in (None, grant.token) or said.holder not in (None, grant.holder):
            raise _denied("The request presents another token or holder than its fenced credentials do.")
        sequencers = said.sequencers if grant.sequencer is None else (grant.sequencer,)
        return FencingHeaders(grant.token, said.resource, grant.holder, sequencers=sequencers)
    if said.token is None and opened is not None and opened.caller == call.principal.name:
        sequencers = () if opened.sequencer is None else (opened.sequencer,)
        return FencingHeaders(opened.token, said.resource, said.holder or opened.holder, sequencers=sequencers)
    return said


def _denied(message: str) -> StoreError:
    return StoreError("AccessDenied", 403, message)


_ADVICE = {
    Obstacle.PASSING: (Unavailable.default_advice, Unavailable.retry_after),
    Obstacle.UNSETTLED: (
        "Send the request again: after half an hour the earlier write cannot arrive. `gateway doctor` lists it.",
        5,
    ),
    Obstacle.FORBIDDEN: (
        "Write other bytes, or to another key, or wait: half an hour for a finished request, a day for a lost one.",
        600,
    ),
}


@contextmanager
def after_the_effect(unfinished: str) -> Iterator[None]:
    """Let no failure say that nothing was written, once the store has done what was asked.

    Raises ``OutcomeUnknown``, whose ``message`` says what is left to do: ``unfinished``.
    """
    try:
        yield
    except (Unavailable, SqlError) as error:
        raise OutcomeUnknown(f"The request has taken effect, but could not be {unfinished}.") from error


def unavailable(outcome: NotDone, message: str) -> Unavailable:
    """The error to answer with for what was not done: what to do depends on how long the obstacle may stay."""
    advice, retry_after = _ADVICE[outcome.obstacle]
    error = Unavailable(message, advice=advice)
    error.retry_after = retry_after
    return error


def refusal_of_store(rejected: Rejected) -> GatewayError:
    """The error to answer with for what the store refuses."""
    if rejected.code in _ABOUT_US:
        return Unavailable(
            f"The object store refuses the gateway: {rejected.code}.",
            advice="Nothing was written. Ask the operator to run `gateway doctor`.",
        )
    return StoreError(rejected.code, rejected.status, rejected.message)
