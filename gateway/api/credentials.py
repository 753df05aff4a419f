"""Fenced credentials: temporary S3 keys that let any client write under one token, and under no other.

AWS STS for identity tokens gives them, too: ``AssumeRoleWithWebIdentity`` needs no code of ours in a client. The role
is no entity here. If its name is ``lock/`` and a resource, the keys are fenced. They write under the token of the lock
that the caller holds, as the holder that the session is named after.
https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias
from urllib.parse import parse_qsl
from uuid import uuid4
from xml.sax.saxutils import escape

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from gateway import budget
from gateway.api.authorisation import PUBLIC, About, Rule
from gateway.api.description import Subject
from gateway.api.fences import TokenRequest
from gateway.api.requests import attempt, pattern_of
from gateway.api.routes import Call, Routes
from gateway.auth.grants import EVERYTHING, Action
from gateway.auth.principal import FencedScope, Principal
from gateway.db import fences, record
from gateway.errors import BodyTooLarge, CrossesDatabases, Forbidden, GatewayError, RequestMalformed, Unauthenticated
from gateway.fencing.decision import decide
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.lease import LockMode
from gateway.fencing.ownership import Ownership
from gateway.fencing.resource import PATTERN_GRAMMAR, canonical
from gateway.fencing.sequencer import Sequencer
from gateway.http.body import BodyReader, ClientGone
from gateway.http.head import Head

routes = Routes(Subject.WRITES)

Pattern: TypeAlias = Annotated[str, Field(max_length=512, json_schema_extra=pattern_of(PATTERN_GRAMMAR))]
Scope: TypeAlias = Literal["own", "all"] | Annotated[list[Pattern], Field(max_length=16)]


class CredentialsRequest(TokenRequest):
    """The resource, the token and the lifetime of the credentials."""

    resource: Pattern = Field(
        description="A resource. A segment * stands for any one segment, a last ** for all remaining ones.",
        examples=["job/42", "s3/reports/42/**"],
    )
    ttl: Annotated[int, Field(ge=60, le=43200, description="Seconds until they expire.")] = 3600
    read: Scope = Field(
        default="own",
        description="The readable resources: `own` is the resource that they write. A list of patterns adds the "
        "resources that it covers. `all` adds every bucket that the caller reads.",
        examples=["own", ["s3/inputs/**"]],
    )

    @property
    def beside(self) -> tuple[str, ...]:
        """Return the patterns of what may be read beside the resource itself."""
        return {"own": (), "all": (EVERYTHING,)}[self.read] if isinstance(self.read, str) else tuple(self.read)


class CredentialsView(BaseModel):
    """Temporary S3 keys. The gateway shows them once and does not keep them."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    expiration: datetime = Field(description="By the database's clock.")
    resource: str
    token: str
    holder: str | None
    read: Scope


def _owners(ownership: Ownership, body: CredentialsRequest) -> list[str]:
    try:
        return [ownership.of_pattern(body.resource)]
    except CrossesDatabases:
        return []  # the default database refuses it


@routes.add(
    "POST /v1/credentials",
    Rule(About.BODY, (Action.CREDENTIALS,)),
    "Get temporary S3 keys that write with a fencing token",
    description="An S3 client that uses the keys writes with this token, to this resource and to nothing else. "
    "It also reads this resource, and more only if the request asks for it. "
    "The keys expire. They stop working as soon as a newer holder has taken over.",
    owners=_owners,
    status=201,
    answers={
        403: "The caller has no S3 keys, or the policy refuses the token.",
        412: "The token has been overtaken. The refusal is on record.",
        422: "The pattern covers resources of several databases.",
    },
)
async def issue_credentials(call: Call, body: CredentialsRequest) -> CredentialsView:
    principal, lifetime = call.principal, timedelta(seconds=body.ttl)
    services = call.services
    expires = (await services.database.now()).replace(microsecond=0) + lifetime
    presented = body.presented()
    scope = FencedScope(body.resource, presented.token, presented.holder, presented.sequencer, body.beside)
    await services.authorisation.over(call.request, principal, (Action.CREDENTIALS,), scope.pattern)
    await services.authorisation.owns_all(scope.pattern)
    issued = services.keys.issue(principal, expires, scope)
    headers = FencingHeaders(scope.token, scope.pattern, scope.holder)
    # Each write is checked when it arrives. This early check refuses useless credentials at once.
    # A pattern of many resources has no single fence to check.
    if scope.plain and (refused := await services.admission.admit([(scope.pattern, presented)])):
        raise await services.audit.implausible(refused, call.attempt(headers))
    fence = await fences.read(services.database, scope.pattern) if scope.plain else None
    decision = decide(fence, presented)
    if fence is not None and not decision.passes:
        raise await services.audit.refused([(decision, fence)], call.attempt(headers))
    await record.record_administration(
        services.database,
        call.attempt(headers),
        "IssueCredentials",
        scope.pattern if scope.plain else None,
        pattern=scope.pattern,
        access_key_id=issued.access_key_id,
        expiration=expires.isoformat(),
        **({"read": body.read} if scope.read else {}),
    )
    return CredentialsView(
        access_key_id=issued.access_key_id,
        secret_access_key=issued.secret_access_key,
        session_token=issued.session_token,
        expiration=expires,
        resource=scope.pattern,
        token=str(scope.token),
        holder=scope.holder,
        read=body.read,
    )


STS_PATH = "/v1/sts"

_ACTION = "AssumeRoleWithWebIdentity"
_VERSION = "2011-06-15"
_NAMESPACE = f"https://sts.amazonaws.com/doc/{_VERSION}/"
_FORM = b"application/x-www-form-urlencoded"
_LARGEST = 32 * 1024
MOST_FIELDS = 32
_KNOWN = {"Action", "Version", "RoleArn", "RoleSessionName", "WebIdentityToken", "DurationSeconds"}
_SHORTEST, _LONGEST, _USUAL = 900, 43200, 3600
_LOCK = "lock/"


def is_sts_request(head: Head) -> bool:
    """Return whether a request for ``/`` is one for STS: an unsigned form, which S3 does not have there."""
    return (
        head.raw_path == b"/"
        and head.value(b"authorization") is None
        and (head.value(b"content-type") or b"").partition(b";")[0].strip().lower() == _FORM
    )


def _owners_of_form(ownership: Ownership, content: bytes) -> list[str] | None:
    """Return the owner of the lock in the role of a form. Any database gives keys without a lock."""
    try:
        role = dict(parse_qsl(content.decode("latin-1"), max_num_fields=MOST_FIELDS)).get("RoleArn", "")
    except ValueError:
        return []  # of a form with too many fields, which each database refuses
    resource = role.partition(f":role/{_LOCK}")[2]
    return [ownership.of_resource(resource)] if resource else None


async def answer(call: Call) -> Response:
    request = call.request
    request_id = request.scope["state"]["request_id"]
    try:
        return Response(await _assume(call), headers=_headers(request_id), media_type="text/xml")
    except GatewayError as error:
        status, code = _as_sts(error)
        request.scope["state"]["error"] = error
        text = escape(f"{error.message} {error.advice}".strip())
        body = (
            f'<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>Sender</Type><Code>{code}</Code>'
            f"<Message>{text}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return Response(body, status, _headers(request_id), media_type="text/xml")


async def _assume(call: Call) -> str:
    request, services = call.request, call.services
    keys = services.keys
    asked = await _form(request, services.bodies)
    # Clients send the content of a file, with the newline at its end.
    principal = await keys.identify(asked["WebIdentityToken"].strip())
    budget.serve(request.scope["state"], principal.name)
    expires = (await services.database.now()).replace(microsecond=0) + timedelta(seconds=_duration(asked))
    session, (_, _, role) = asked["RoleSessionName"], asked["RoleArn"].partition(":role/")
    scope = None
    if role.startswith(_LOCK):
        scope = await _scope(call, principal, role.removeprefix(_LOCK), session)
    issued = keys.issue(principal, expires, scope)
    shown = FencingHeaders(scope.token, scope.pattern, scope.holder) if scope else FencingHeaders()
    await record.record_administration(
        services.database,
        attempt(request, principal, shown),
        "IssueCredentials",
        None if scope is None else scope.pattern,
        access_key_id=issued.access_key_id,
        expiration=expires.isoformat(),
    )
    elements = {
        "AccessKeyId": issued.access_key_id,
        "SecretAccessKey": issued.secret_access_key,
        "SessionToken": issued.session_token,
        "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    told = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in elements.items())
    user = f"<Arn>{escape(asked['RoleArn'])}/{escape(session)}</Arn>"
    user += f"<AssumedRoleId>{escape(principal.name)}:{escape(session)}</AssumedRoleId>"
    return (
        f'<{_ACTION}Response xmlns="{_NAMESPACE}"><{_ACTION}Result><Credentials>{told}</Credentials>'
        f"<AssumedRoleUser>{user}</AssumedRoleUser>"
        f"<SubjectFromWebIdentityToken>{escape(principal.name)}</SubjectFromWebIdentityToken></{_ACTION}Result>"
        f"<ResponseMetadata><RequestId>{uuid4()}</RequestId></ResponseMetadata></{_ACTION}Response>"
    )


async def _scope(call: Call, principal: Principal, resource: str, holder: str) -> FencedScope:
    """Return the scope of the lock that the caller holds. Raises ``Forbidden`` if it does not hold it."""
    services, resource = call.services, canonical(resource)
    if "*" in resource:
        # The name of a lock, but in a scope a pattern: of resources whose locks the caller does not hold.
        raise RequestMalformed(
            "Keys for a lock are for one resource, and this name has an asterisk.",
            advice="POST /v1/credentials gives keys for patterns.",
        )
    await services.authorisation.on(call.request, principal, (Action.CREDENTIALS,), resource)
    state = await services.leases.inspect(resource)
    for hold in state.holders:
        if (hold.caller, hold.holder, hold.mode) == (principal.name, holder, LockMode.EXCLUSIVE):
            sealed = services.signer.sign(resource, hold.mode, hold.token)
            sequencer = None if sealed is None else Sequencer.parse(sealed)
            return FencedScope(resource, hold.token, holder, sequencer)
    raise Forbidden(
        f"{principal.name} does not hold the lock {resource} as {holder}.",
        advice="Acquire it first, with the name of the session as the holder.",
    )


for path in (STS_PATH, "/"):
    routes.add(f"POST {path}", PUBLIC, owners=_owners_of_form)(answer)  # the proof of the caller is in the body


async def _form(request: Request, bodies: BodyReader) -> Mapping[str, str]:
    body = bodies.of(request.scope, request.receive)
    try:
        content = await body.whole(_LARGEST)
    except BodyTooLarge:
        raise RequestMalformed("The form is too large.") from None
    except ClientGone:
        raise RequestMalformed("The form did not arrive.") from None
    try:
        pairs = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise RequestMalformed("The form cannot be read.") from error
    asked = dict(pairs)
    if len(asked) < len(pairs):
        raise RequestMalformed("A field of the form is there twice.")
    if asked.get("Action") != _ACTION:
        raise RequestMalformed(f"Only {_ACTION} is served here.")
    if beyond := sorted(asked.keys() - _KNOWN):
        # A policy would limit the keys. To ignore it would give away more than was asked for.
        raise RequestMalformed(f"{beyond[0]} is not supported.", advice="Leave it out. Grants limit the caller.")
    for name in ("RoleArn", "RoleSessionName", "WebIdentityToken"):
        if not asked.get(name):
            raise RequestMalformed(f"The form has no {name}.")
    return asked


def _duration(asked: Mapping[str, str]) -> int:
    text = asked.get("DurationSeconds", str(_USUAL))
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and _SHORTEST <= int(text) <= _LONGEST):
        raise RequestMalformed(f"DurationSeconds must be a number from {_SHORTEST} to {_LONGEST}.")
    return int(text)


def _as_sts(error: GatewayError) -> tuple[int, str]:
    """Return the status and the code that clients of STS know for an error."""
    if isinstance(error, Unauthenticated):
        return 400, "ExpiredTokenException" if "expired" in error.message else "InvalidIdentityToken"
    if error.status == 503:
        return 503, "ServiceUnavailable"
    return (403, "AccessDenied") if error.status == 403 else (400, "ValidationError")


def _headers(request_id: str) -> dict[str, str]:
    return {"Cache-Control": "no-store", "x-amzn-RequestId": request_id}
