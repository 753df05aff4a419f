"""The object plane: S3 requests come in here, path style. Reads pass through, writes go by the protocol."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from gateway.audit import Audit
from gateway.auth import sigv4
from gateway.auth.principal import Principal
from gateway.auth.sigv4 import RequestHead, SecretOf, VerifiedSignature
from gateway.errors import (
    GatewayError,
    OutcomeUnknown,
    SqlError,
    StoreError,
    StoreUnfit,
    TokenRequired,
    Unavailable,
)
from gateway.fencing.intent import Announcement, KnownObject
from gateway.fencing.record import Attempt
from gateway.fencing.rules import Decision, Fence, Mode, Presented, decide
from gateway.objects import bump, protocol
from gateway.objects.answering import Answer, Response
from gateway.objects.answers import Rejected, of_write
from gateway.objects.body import Body, VerifiedBody
from gateway.objects.effects import (
    Barred,
    Candidate,
    ConditionFailed,
    Deleted,
    Form,
    NotDone,
    Outcome,
    Refused,
    Stored,
    StoreRefused,
    Uncertain,
)
from gateway.objects.operations import Operation
from gateway.objects.probe import Profiles
from gateway.objects.profile import Profile
from gateway.objects.request import S3Request, classify
from gateway.objects.resources import Resources, Target
from gateway.objects.runner import Payload, Runner
from gateway.objects.upstream import Upstream
from gateway.observe.events import Observe
from gateway.store import intents
from gateway.store.database import Database

MAX_TARGET = 2048

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


class ClientGone(Exception):
    """The client hung up before its request was complete. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Write:
    """A fenced write on its way: the request, who sends it, what fences it, and how it goes on record."""

    request: S3Request
    signature: VerifiedSignature
    target: Target
    presented: Presented | None
    attempt: Attempt

    def announcement(self) -> Announcement:
        write_id = self.presented.write_id if self.presented else None
        return Announcement(
            self.target.resource,
            self.request.bucket,
            self.request.key,
            write_id or uuid4(),
            self.presented,
            self.attempt.caller,
            self.target.mode,
            self.target.equal,
        )


class ObjectPlane:
    """An ASGI app: S3, for the buckets of one store."""

    def __init__(
        self,
        *,
        database: Database,
        upstream: Upstream,
        profiles: Profiles,
        resources: Resources,
        secret_of: SecretOf,
        observe: Observe,
        clock: Callable[[], datetime],
        max_body: int,
        pending_wait: float,
    ) -> None:
        """``clock`` judges the age of signatures. ``max_body`` is in bytes, ``pending_wait`` in seconds."""
        self._database = database
        self._upstream = upstream
        self._profiles = profiles
        self._resources = resources
        self._secret_of = secret_of
        self._clock = clock
        self._max_body = max_body
        self._audit = Audit(database, observe, "objects")
        self._runner = Runner(database, upstream, profiles, observe, pending_wait)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answer(scope, send)
        try:
            await self._serve(scope, receive, answer)
        except GatewayError as error:
            await answer.error(error)
        except ClientGone:
            pass

    async def barrier(self, resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]:
        """Raise the fence of a resource and settle what older holders have under way in the store.

        Returns what the fence says; nothing is recorded here. Raises ``Unavailable`` while something is unsettled.
        """
        outcome = await self._runner.run(protocol.barrier(resource, presented, caller))
        if isinstance(outcome, Barred | Refused):
            return outcome.decision, outcome.fence
        assert isinstance(outcome, NotDone)
        raise Unavailable(f"The barrier does not stand yet: {outcome.reason}.", advice="Call the barrier again.")

    async def _serve(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        head = RequestHead(scope["method"], scope["raw_path"], scope["query_string"], scope["headers"])
        signature = sigv4.verify(head, self._secret_of, self._clock())
        request = classify(head.method, head.raw_path, head.query_string, head.headers)
        if not request.operation.writes:
            await answer.stream(request, await self._read(request))
            return
        write = self._write(scope, request, signature)
        known = await self._refuse_early(write)
        if request.operation is Operation.PUT_OBJECT:
            await self._put(write, known, scope, receive, answer)
        else:
            await self._delete(write, known, answer)

    async def _read(self, request: S3Request) -> Response:
        method = "HEAD" if request.operation in (Operation.HEAD_BUCKET, Operation.HEAD_OBJECT) else "GET"
        response = await self._upstream.send(method, request.raw_path, request.query, request.headers)
        if response.status in (400, 403) or (300 <= response.status < 400 and response.status != 304):
            # These may be about the gateway: its signature, or the address it asks at.
            async with response:
                rejected = of_write(response.status, None, await response.read())
            assert isinstance(rejected, Rejected)
            raise _refusal_of_store(rejected)
        return response

    # Writes -----------------------------------------------------------------------------------------------------

    def _write(self, scope: Scope, request: S3Request, signature: VerifiedSignature) -> Write:
        target = self._resources.target(request.bucket, request.key, request.fencing.resource)
        token, holder = request.fencing.token, request.fencing.holder
        if token is None and target.mode is Mode.ENFORCE:
            raise TokenRequired(f"{request.operation} on {target.resource} carries no fencing token.")
        presented = None if token is None else Presented(token, holder, uuid4())
        return Write(request, signature, target, presented, _attempt(scope, request, signature.principal))

    async def _refuse_early(self, write: Write) -> KnownObject | None:
        """A token that is stale already is refused before the body is asked for. Returns what is known of the key."""
        request, resource = write.request, write.target.resource
        fence, known = await intents.peek(self._database, resource, request.bucket, request.key)
        if fence is None or write.presented is None or write.target.mode is Mode.OBSERVE:
            return known
        decision = decide(fence, write.presented, write.target.equal)
        if not decision.passes:
            raise await self._audit.refused([(decision, fence)], write.attempt)
        return known

    async def _put(
        self, write: Write, known: KnownObject | None, scope: Scope, receive: Receive, answer: Answer
    ) -> None:
        request = write.request
        profile = await self._fit(request.bucket)
        body = await self._take_in(write, scope, receive)
        attempt = replace(write.attempt, payload_size=body.digests.size, payload_sha256=body.digests.sha256)
        write = replace(write, attempt=attempt)
        announcement = write.announcement()
        forms = _forms(profile, body, str(announcement.write_id))
        payload = Payload(body.content, [*request.headers, *body.digests.headers], known)
        outcome = await self._runner.run(protocol.put(announcement, forms, request.condition), payload)
        await self._conclude(write, outcome, answer)

    async def _delete(self, write: Write, known: KnownObject | None, answer: Answer) -> None:
        request = write.request
        profile = await self._fit(request.bucket)
        steps = protocol.delete(write.announcement(), request.condition, conditional_delete=profile.conditional_delete)
        outcome = await self._runner.run(steps, Payload(headers=request.headers, known=known))
        await self._conclude(write, outcome, answer)

    async def _fit(self, bucket: str) -> Profile:
        """What the bucket was seen to do; a store that ignores conditions is not written to."""
        try:
            profile = await self._profiles.of(bucket)
        except StoreError as error:
            raise _refusal_of_store(Rejected(error.status, error.s3_code, error.message)) from error
        if not profile.writable:
            raise StoreUnfit(f"The store of bucket {bucket} cannot be fenced: {profile.reason}.")
        return profile

    async def _take_in(self, write: Write, scope: Scope, receive: Receive) -> VerifiedBody:
        """The whole body, verified. Nothing is written before."""
        body = Body(
            scope["headers"],
            sha256=write.signature.sha256,
            signatures=write.signature.chunks,
            max_size=self._max_body,
        )
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body.feed(message.get("body", b""))
            if not message.get("more_body", False):
                return body.finish()

    async def _conclude(self, write: Write, outcome: Outcome, answer: Answer) -> None:
        """Answer, and put on record what has to be."""
        match outcome:
            case Stored(applied, decision, fence):
                await self._note(write, decision, fence)
                await answer.stored(applied, write.target.resource, fence)
            case Deleted(decision, fence):
                await self._note(write, decision, fence)
                await answer.deleted(write.target.resource, fence)
            case Refused(decision, fence):
                raise await self._audit.refused([(decision, fence)], write.attempt)
            case ConditionFailed(error):
                raise error
            case StoreRefused(rejected):
                raise _refusal_of_store(rejected)
            case Uncertain(reason):
                raise OutcomeUnknown(f"The write may have taken effect: {reason}.")
            case NotDone(reason):
                raise Unavailable(f"Nothing was written: {reason}.")
            case _:
                raise AssertionError(outcome)

    async def _note(self, write: Write, decision: Decision | None, fence: Fence | None) -> None:
        """Observe mode: the write has passed; say on record that it would not have."""
        if decision is None or not decision.passes:
            reason = TokenRequired.code if decision is None else decision
            try:
                noted = await self._audit.noted(self._database, write.target.resource, reason, fence, write.attempt)
            except (Unavailable, SqlError) as error:
                raise OutcomeUnknown("The write has taken effect, but could not be put on record.") from error
            self._audit.tell([noted])


def _forms(profile: Profile, body: VerifiedBody, write_id: str) -> tuple[Candidate, ...]:
    """The forms this body can be sent in to this store."""
    if profile.unique_etags:
        return (Candidate(Form.PLAIN, f"unlike any other: {write_id}"),)
    forms = bump.candidates(body.digests.md5)
    return forms if profile.can_bump else forms[:1]


def _refusal_of_store(rejected: Rejected) -> GatewayError:
    if rejected.code in _ABOUT_US:
        return Unavailable(
            f"The object store refuses the gateway: {rejected.code}.",
            advice="Nothing was written. Ask the operator to run `gateway doctor`.",
        )
    return StoreError(rejected.code, rejected.status, rejected.message)


def _attempt(scope: Scope, request: S3Request, principal: Principal) -> Attempt:
    target = scope["raw_path"].decode("latin-1")
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode("latin-1")
    state = scope["state"]
    return Attempt(
        token=request.fencing.token,
        holder=request.fencing.holder,
        caller=principal.name,
        method=scope["method"],
        target=target[:MAX_TARGET],
        client=state["client"],
        request_id=state["request_id"],
    )
