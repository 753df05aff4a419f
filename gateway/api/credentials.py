"""Fenced credentials: temporary S3 keys that let any client write under one token, and under no other."""

from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admission import Admission
from gateway.api.authorisation import Authorisation
from gateway.api.fences import SequencerText
from gateway.api.requests import Authenticate, HolderName, TokenText, attempt
from gateway.auth.callers import Callers
from gateway.auth.grants import EVERYTHING, Action
from gateway.auth.principal import FencedScope, Principal
from gateway.db import fences, record
from gateway.db.database import Database
from gateway.fencing.decision import Presented, decide
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token
from gateway.http.problems import Problem
from gateway.record.audit import Audit

Pattern: TypeAlias = Annotated[str, Field(max_length=512)]
Scope: TypeAlias = Literal["own", "all"] | Annotated[list[Pattern], Field(max_length=16)]


class CredentialsRequest(BaseModel):
    """The resource, the token and the lifetime of the credentials."""

    model_config = ConfigDict(extra="forbid")

    resource: Annotated[str, Field(max_length=512, examples=["job/42", "s3/reports/42/**"])] = Field(
        description="A resource. A segment * stands for any one segment, a last ** for all remaining ones."
    )
    token: TokenText
    holder: HolderName | None = None
    sequencer: SequencerText | None = None
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


def routes(
    database: Database,
    keys: Callers,
    admission: Admission,
    audit: Audit,
    authorisation: Authorisation,
    caller: Authenticate,
) -> APIRouter:
    """Build the route ``/v1/credentials``."""
    router = APIRouter()

    @router.post(
        "/v1/credentials",
        summary="Get temporary S3 keys that write with a fencing token",
        description="An S3 client that uses the keys writes with this token, to this resource and to nothing else. "
        "It also reads this resource, and more only if the request asks for it. "
        "The keys expire. They stop working as soon as a newer holder has taken over.",
        status_code=201,
        responses={
            403: {"model": Problem, "description": "The caller has no S3 keys, or the policy refuses the token."},
            412: {"model": Problem, "description": "The token has been overtaken. The refusal is on record."},
        },
    )
    async def issue_credentials(
        body: CredentialsRequest,
        request: Request,
        response: Response,
        principal: Annotated[Principal, Depends(caller)],
    ) -> CredentialsView:
        lifetime = timedelta(seconds=body.ttl)
        expires = (await database.now()).replace(microsecond=0) + lifetime
        sequencer = None if body.sequencer is None else Sequencer.parse(body.sequencer)
        scope = FencedScope(body.resource, Token.parse(body.token), body.holder, expires, sequencer, body.beside)
        await authorisation.over(request, principal, (Action.CREDENTIALS,), scope.pattern)
        await authorisation.owns_all(scope.pattern)
        issued = keys.issue(principal, scope)
        headers = FencingHeaders(scope.token, scope.pattern, scope.holder)
        presented = Presented(scope.token, scope.holder, sequencer=sequencer)
        # Each write is checked when it arrives. This early check refuses useless credentials at once.
        # A pattern of many resources has no single fence to check.
        if scope.plain and (refused := await admission.admit([(scope.pattern, presented)])):
            raise await audit.implausible(refused, attempt(request, principal, headers))
        fence = await fences.read(database, scope.pattern) if scope.plain else None
        decision = decide(fence, presented)
        if fence is not None and not decision.passes:
            raise await audit.refused([(decision, fence)], attempt(request, principal, headers))
        await record.record_administration(
            database,
            attempt(request, principal, headers),
            "IssueCredentials",
            scope.pattern if scope.plain else None,
            pattern=scope.pattern,
            access_key_id=issued.access_key_id,
            expiration=expires.isoformat(),
            **({"read": body.read} if scope.read else {}),
        )
        response.headers["Cache-Control"] = "no-store"
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

    return router
