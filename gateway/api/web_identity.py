"""AWS STS for identity tokens: ``AssumeRoleWithWebIdentity`` gives S3 clients temporary keys, without code of theirs.

The role is no entity here. If its name is ``lock/`` and a resource, the keys are fenced. They write under the token of
the lock that the caller holds, as the holder that the session is named after.
https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from urllib.parse import parse_qsl
from uuid import uuid4
from xml.sax.saxutils import escape

from fastapi import APIRouter, Request, Response

from gateway import budget
from gateway.api.authorisation import Authorisation
from gateway.api.leases import LeaseTerms
from gateway.api.requests import attempt
from gateway.auth.callers import Callers
from gateway.auth.grants import Action
from gateway.auth.principal import FencedScope, Principal
from gateway.db import record
from gateway.db.database import Database
from gateway.errors import BodyTooLarge, Forbidden, GatewayError, RequestMalformed, Unauthenticated
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.lease import LockMode
from gateway.fencing.resource import canonical
from gateway.fencing.sequencer import Sequencer
from gateway.http.body import BodyReader, ClientGone
from gateway.http.head import Head

PATH = "/v1/sts"

_ACTION = "AssumeRoleWithWebIdentity"
_VERSION = "2011-06-15"
_NAMESPACE = f"https://sts.amazonaws.com/doc/{_VERSION}/"
_FORM = b"application/x-www-form-urlencoded"
_LARGEST = 32 * 1024
MOST_FIELDS = 32
_KNOWN = {"Action", "Version", "RoleArn", "RoleSessionName", "WebIdentityToken", "DurationSeconds"}
_SHORTEST, _LONGEST, _USUAL = 900, 43200, 3600
_LOCK = "lock/"


def is_asked(head: Head) -> bool:
    """Return whether a request for ``/`` is one for STS: an unsigned form, which S3 does not have there."""
    return (
        head.raw_path == b"/"
        and head.value(b"authorization") is None
        and (head.value(b"content-type") or b"").partition(b";")[0].strip().lower() == _FORM
    )


def routes(
    database: Database, keys: Callers, holding: LeaseTerms, authorisation: Authorisation, bodies: BodyReader
) -> APIRouter:
    """Build the routes of STS. The proof of the caller is in the body."""
    router = APIRouter()

    async def answer(request: Request) -> Response:
        request_id = request.scope["state"]["request_id"]
        try:
            return Response(await _assume(request), headers=_headers(request_id), media_type="text/xml")
        except GatewayError as error:
            status, code = _as_sts(error)
            request.scope["state"]["error"] = error
            text = escape(f"{error.message} {error.advice}".strip())
            body = (
                f'<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>Sender</Type><Code>{code}</Code>'
                f"<Message>{text}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
            )
            return Response(body, status, _headers(request_id), media_type="text/xml")

    async def _assume(request: Request) -> str:
        asked = await _form(request, bodies)
        # Clients send the content of a file, with the newline at its end.
        principal = await keys.identify(asked["WebIdentityToken"].strip())
        budget.serve(request.scope["state"], principal.name)
        expires = (await database.now()).replace(microsecond=0) + timedelta(seconds=_duration(asked))
        session, (_, _, role) = asked["RoleSessionName"], asked["RoleArn"].partition(":role/")
        scope = None
        if role.startswith(_LOCK):
            scope = await _scope(request, principal, role.removeprefix(_LOCK), session, expires)
        issued = keys.issue(principal, scope) if scope else keys.issue_unfenced(principal, expires)
        shown = FencingHeaders(scope.token, scope.pattern, scope.holder) if scope else FencingHeaders()
        await record.record_administration(
            database,
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

    async def _scope(
        request: Request, principal: Principal, resource: str, holder: str, expires: datetime
    ) -> FencedScope:
        """Return the scope of the lock that the caller holds. Raises ``Forbidden`` if it does not hold it."""
        resource = canonical(resource)
        if "*" in resource:
            # The name of a lock, but in a scope a pattern: of resources whose locks the caller does not hold.
            raise RequestMalformed(
                "Keys for a lock are for one resource, and this name has an asterisk.",
                advice="POST /v1/credentials gives keys for patterns.",
            )
        await authorisation.on(request, principal, (Action.CREDENTIALS,), resource)
        state = await holding.service.inspect(resource)
        for hold in state.holders:
            if (hold.caller, hold.holder, hold.mode) == (principal.name, holder, LockMode.EXCLUSIVE):
                sealed = holding.sign(resource, hold.mode, hold.token)
                sequencer = None if sealed is None else Sequencer.parse(sealed)
                return FencedScope(resource, hold.token, holder, expires, sequencer)
        raise Forbidden(
            f"{principal.name} does not hold the lock {resource} as {holder}.",
            advice="Acquire it first, with the name of the session as the holder.",
        )

    for path in (PATH, "/"):
        router.add_api_route(path, answer, methods=["POST"], include_in_schema=False)
    return router


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
