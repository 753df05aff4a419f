"""Every error of the gateway: its code, its status, and advice for the caller.

One tree, rendered in three ways: as problem JSON (RFC 9457) on the fencing API, as PostgREST's four keys on tables,
as S3's XML on buckets. A kind of error is a class. Its docstring says when it occurs, and its attributes have the
general words. The reference and the metrics read this tree. A code is never reused for something else.

An error has words for two readers. ``message`` and ``advice`` answer the caller, who may be a stranger. ``ForOperator``
has what the log and the doctor say beyond that.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, Self, TypeAlias

Fact: TypeAlias = str | int | float | bool | None

_SHOWN = 3
_MOST_HEARD = 300


class ForOperator(NamedTuple):
    """Words for an operator, beyond the answer to the caller, who may be a stranger.

    ``remedy`` says what the operator does about it. ``at``: host and port of what cannot be reached. ``heard``: the
    words of the service, or of the system.
    """

    remedy: str = ""
    at: str = ""
    heard: str = ""

    @property
    def particulars(self) -> str:
        """Return the place and the words, on one line."""
        heard = " ".join(self.heard.split())[:_MOST_HEARD]
        return ": ".join(filter(None, (self.at, heard.removesuffix("."))))


class GatewayError(Exception):
    """The base of all answers that are not a success.

    ``message`` says what happened, and ``advice`` what to do next. ``facts`` are the machine-readable particulars.
    ``retry_after`` (seconds) is set only if a retry can help.
    """

    code: str = "internal"
    status: int = 500
    s3_code: str = "InternalError"
    title: ClassVar[str] = "The gateway failed"
    default_advice: ClassVar[str] = "Report the request id to the operator of the gateway."
    retry_after: int | None = None
    state: ClassVar[str] = "unreachable"
    """The state of a service that answers with this, as health names it."""
    is_told: bool = True
    """Whether the log is told of it where the answer is 503: otherwise it has a line about the cause already."""

    def __init__(
        self,
        message: str,
        *,
        advice: str | None = None,
        facts: Mapping[str, Fact] | None = None,
        operator: ForOperator = ForOperator(),  # noqa: B008 - it cannot be changed
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.advice = self.default_advice if advice is None else advice
        self.facts: dict[str, Fact] = dict(facts or {})
        self.operator = operator
        if retry_after is not None:
            self.retry_after = retry_after

    def __copy__(self) -> Self:
        """Let each request of a batch that failed have an error of its own, whatever this kind is made from."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.__cause__ = self.__cause__
        return other

    @property
    def cause(self) -> "GatewayError":
        """Return the first error that led to this one. The database's own refusal is left to its translation."""
        cause = self.__cause__
        return self if not isinstance(cause, GatewayError) or isinstance(cause, SqlError) else cause.cause

    @property
    def told(self) -> str:
        """Return what happened, for an operator: with the cause, its place, and the words that were heard."""
        cause, message = self.cause, self.message
        if cause is not self and cause.message not in message:
            message = f"{message.removesuffix('.')}: {cause.message}"
        particulars = cause.operator.particulars
        return f"{message.removesuffix('.')} ({particulars})." if particulars else message

    @property
    def repeated_as(self) -> str:
        """Return the text by which the log knows the cause again: without words that differ from time to time."""
        return f"{self.cause.message} {self.cause.operator.at}".rstrip()

    @property
    def remedy(self) -> str:
        """Return what the operator does about it."""
        return self.cause.operator.remedy or self.advice

    @property
    def retry_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the header ``Retry-After`` as ASGI takes it; an empty list where a retry cannot help."""
        return [] if self.retry_after is None else [(b"retry-after", str(self.retry_after).encode())]


def kinds(kind: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    """Yield a kind of error, and all kinds of it."""
    yield kind
    for one in kind.__subclasses__():
        yield from kinds(one)


class ConfigurationError(GatewayError):
    """A configuration that cannot be used. The message names the file and the key."""

    code = "configuration"
    title = "The configuration cannot be used"
    default_advice = "Correct the named key and start again."


class ServerNotInstalled(GatewayError):
    """A command of the server was started where only the plain package is installed."""

    code = "server-not-installed"
    title = "The server is not installed"
    default_advice = "Install the extra server."

    def __init__(self, missing: Sequence[str]) -> None:
        shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        super().__init__(
            f"This command needs the server, which is not installed ({shown}).",
            advice="In a clone of the gateway: pip install '.[server]'",
        )


class UnreleasedSchema(ConfigurationError):
    """The fencing schema has a revision from before the first release, from which no migration leads to this one."""

    code = "schema-unreleased"
    title = "The fencing schema is from before the first release"

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"The fencing schema is at {revision}, a revision from before the first release. "
            "It cannot be upgraded, and nothing was changed.",
            advice="Do not drop it: fences would be forgotten, and overtaken holders could write again. "
            "Adopt it as docs/guides/upgrade.md explains ('A schema from before the first release').",
        )


class SchemaTooNew(ConfigurationError):
    """A later release has dropped from the fencing schema what this version of the gateway calls."""

    code = "schema-too-new"
    title = "The fencing schema is too new for this version of the gateway"

    def __init__(self, revision: str, oldest: str, known: str) -> None:
        super().__init__(
            f"The fencing schema is at {revision}, which serves gateways of {oldest} and later. "
            f"This one knows {known}. Nothing was changed.",
            advice="Run a newer version of the gateway: the schema cannot go back (docs/guides/upgrade.md).",
        )


class SchemaLocked(ConfigurationError):
    """Other sessions kept tables of the fencing schema locked, so that a migration could not change them."""

    code = "schema-locked"
    title = "The fencing schema could not be locked"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"Other sessions kept tables of the schema fencing locked for {seconds:g} seconds. Nothing was changed.",
            advice="Run 'gateway migrate' again. If it fails again, look for long transactions in pg_stat_activity "
            "(docs/guides/upgrade.md).",
        )


class TokenRequired(GatewayError):
    code = "token-required"
    status = 428
    s3_code = "FencingTokenRequired"
    title = "A write needs a fencing token"
    default_advice = "Send the token your lock service gave you in the header Fencing-Token."


class TokenMalformed(GatewayError):
    code = "token-malformed"
    status = 400
    s3_code = "FencingTokenMalformed"
    title = "The fencing token cannot be read"
    default_advice = "Send one token, once: digits without sign, space or leading zero, optionally 'epoch.value'."


class ResourceMalformed(GatewayError):
    code = "resource-malformed"
    status = 400
    s3_code = "FencingResourceMalformed"
    title = "The resource name is not in canonical form"
    default_advice = "Use at most 512 bytes of RFC 3986 path characters and percent-encode everything else."


class RequestMalformed(GatewayError):
    code = "request-malformed"
    status = 400
    s3_code = "InvalidRequest"
    title = "The request cannot be read"
    default_advice = "Correct the request; sending it again unchanged cannot succeed."


class ResourceMismatch(GatewayError):
    code = "resource-mismatch"
    status = 422
    s3_code = "FencingResourceMismatch"
    title = "The write touches something its token does not cover"
    default_advice = "Narrow the write to the resource whose lock you hold, or name that resource."


class ResourceUnderivable(GatewayError):
    code = "resource-underivable"
    status = 422
    s3_code = "FencingResourceUnderivable"
    title = "The gateway cannot tell which resource the write belongs to"
    default_advice = "Filter by the whole primary key, send Fencing-Resource, or configure a rule for this target."


class CrossesDatabases(GatewayError):
    """A request about resources of several databases, each of which has fences of its own. Nothing was written."""

    code = "crosses-databases"
    status = 422
    s3_code = "FencingCrossesDatabases"
    title = "The request concerns resources of several databases"
    default_advice = "Nothing was written. Send one request for the resources of each database."


class SideEffectRefused(GatewayError):
    """A foreign key, trigger or rule would change rows whose fences the write does not hold."""

    code = "side-effect-refused"
    status = 422
    s3_code = "FencingSideEffectRefused"
    title = "The write would change rows of other resources"
    default_advice = "Nothing was written. Write the rows of the other resources first, under their own tokens."


class FenceRefusal(GatewayError):
    """A write refused by the fence. Recorded durably before it is answered; retrying is pointless."""

    status = 412
    default_advice = (
        "Stop writing: a newer holder has taken over and retrying cannot succeed. "
        "Acquire the lock again to get a newer token."
    )


class TokenStale(FenceRefusal):
    code = "token-stale"
    s3_code = "StaleFencingToken"
    title = "The fencing token has been overtaken"


class TokenDuplicate(FenceRefusal):
    code = "token-duplicate"
    s3_code = "DuplicateFencingToken"
    title = "Another holder uses the same fencing token"
    default_advice = (
        "Stop writing: two holders were given one token, so the lock service is broken. "
        "Retrying cannot succeed; repair the issuer."
    )


class TokenUsed(FenceRefusal):
    code = "token-used"
    s3_code = "UsedFencingToken"
    title = "The fencing token has already written"
    default_advice = "This resource is strict: each token writes once. Acquire the lock again to get a newer token."


class RowChanged(GatewayError):
    """The row no longer has the ETag that the caller read. ``facts["etag"]`` is its present one; None without a row."""

    code = "row-changed"
    status = 412
    s3_code = "PreconditionFailed"
    title = "The row is not the version the write was meant for"
    default_advice = "Nothing was written. Read the row again, decide again, and send its new ETag."


class ConditionUnsupported(GatewayError):
    code = "condition-unsupported"
    status = 400
    s3_code = "InvalidRequest"
    title = "The condition cannot be checked against one row"
    default_advice = "Name one row by its whole primary key, or leave the condition out."


class IdempotencyMismatch(GatewayError):
    code = "idempotency-mismatch"
    status = 422
    s3_code = "InvalidRequest"
    title = "The idempotency key belongs to another request"
    default_advice = "Use a new key for each operation, and repeat a request only with its own key."


class AnswerTooLarge(GatewayError):
    code = "answer-too-large"
    status = 422
    s3_code = "InvalidRequest"
    title = "The answer is too large to be kept"
    default_advice = (
        "Nothing was written. Ask for a smaller answer with Prefer: return=minimal or a select, or send no key."
    )


class TokenImplausible(GatewayError):
    code = "token-implausible"
    status = 403
    s3_code = "ImplausibleFencingToken"
    title = "The fencing token cannot have been issued"
    default_advice = "Use the token your lock service gave you; ask the operator if its counter was reset."


class SequencerMalformed(GatewayError):
    code = "sequencer-malformed"
    status = 400
    s3_code = "FencingSequencerMalformed"
    title = "The sequencer cannot be read"
    default_advice = "Send the sequencer exactly as the lease service gave it: resource:mode:token:signature."


class LockHeld(GatewayError):
    """Another holder has the lock, or is ahead in its queue."""

    code = "lock-held"
    status = 409
    s3_code = "OperationAborted"
    title = "Another holder has the lock"
    default_advice = 'Retry later, or wait in the queue with "wait".'
    retry_after = 1


class LeaseLost(GatewayError):
    """The lease has lapsed, was released, or was broken. A lease that is lost never comes back."""

    code = "lease-lost"
    status = 410
    s3_code = "InvalidRequest"
    title = "The lease is lost"
    default_advice = "Stop working under its token, and acquire the lock again."


class ExpectedMismatch(GatewayError):
    """A compare-and-set of an administrator met an unexpected token."""

    code = "expected-mismatch"
    status = 409
    s3_code = "OperationAborted"
    title = "The token is not the expected one"
    default_advice = "Nothing was changed. Look at the current token, then decide again."


class ReloadRefused(GatewayError):
    """A configuration is not put in force. The former one stays in force, as a whole."""

    code = "reload-refused"
    status = 409
    title = "The configuration was not reloaded"
    default_advice = "Nothing was changed. Correct the configuration, and reload it again."


class TokensExhausted(GatewayError):
    code = "tokens-exhausted"
    status = 409
    s3_code = "OperationAborted"
    title = "There is no higher token in this epoch"
    default_advice = "Ask an administrator to start a new epoch: POST /v1/fences/{resource}/epoch."


class NotesExhausted(GatewayError):
    """An incident has as many acknowledgements as it may have."""

    code = "notes-exhausted"
    status = 409
    title = "The incident has too many notes"
    default_advice = "Nothing was recorded. Read the notes that are there, and continue in your own tool for incidents."


class Unauthenticated(GatewayError):
    code = "unauthenticated"
    status = 401
    s3_code = "AccessDenied"
    title = "The caller is not known"
    default_advice = "Send a configured API key as 'Authorization: Bearer …'."


class Forbidden(GatewayError):
    code = "forbidden"
    status = 403
    s3_code = "AccessDenied"
    title = "The caller may not do this"
    default_advice = "Ask the operator of the gateway for the right."


class Denied(GatewayError):
    """The caller lacks a grant. The answer is the same whether the table, object or resource exists or not."""

    code = "denied"
    status = 403
    s3_code = "AccessDenied"
    title = "The caller lacks the grant for this"
    default_advice = "Ask the operator of the gateway for the missing grant (docs/grants.md)."


class RightsAtTheStore(GatewayError):
    """An ACL or a bucket policy would give others a right at the store that grants do not give. Nothing was changed."""

    code = "rights-at-the-store"
    status = 403
    s3_code = "AccessDenied"
    title = "The ACL or policy would let others past the gateway"
    default_advice = "Nothing was changed. Ask the operator of the gateway for a grant instead (docs/grants.md)."


class NotFound(GatewayError):
    code = "not-found"
    status = 404
    s3_code = "NoSuchKey"
    title = "There is nothing here"
    default_advice = "Check the path."


class BodyTooLarge(GatewayError):
    code = "body-too-large"
    status = 413
    s3_code = "EntityTooLarge"
    title = "The body is larger than this gateway takes"
    default_advice = "Send less in one request, or ask the operator to raise the limit."


class BodyTooSlow(GatewayError):
    code = "body-too-slow"
    status = 408
    s3_code = "RequestTimeout"
    title = "The body did not arrive in time"
    default_advice = "Repeat the request over a faster connection."


class OutcomeUnknown(GatewayError):
    """The write may or may not have taken effect. After the next acknowledged write, it can take none."""

    code = "outcome-unknown"
    status = 503
    s3_code = "FencingOutcomeUnknown"
    title = "Whether the write took effect is not known"
    default_advice = "Read the current state, then write again with the same token."
    retry_after = 1


class Unavailable(GatewayError):
    """A temporary obstacle: an unreachable service, an older write, or too many requests. Nothing was written."""

    code = "unavailable"
    status = 503
    s3_code = "ServiceUnavailable"
    title = "The request cannot be carried out at the moment"
    default_advice = "Nothing was written. Send the request again."
    retry_after: int | None = 1


class Overloaded(Unavailable):
    """The caller's share of something scarce is in use, or all of it. Nothing was written."""

    default_advice = "Nothing was written. Send the request again later, and send fewer at one time."


class Full(Unavailable):
    """A disk of the database is full. Nothing was written."""

    default_advice = "Nothing was written. Ask the operator to make room on the disk of the database, then try again."
    retry_after: int | None = 5
    state = "full"


class NotReady(Unavailable):
    """A service that the gateway needs does not work. The log has a line about that service."""

    default_advice = "Send requests to another gateway, and ask again."
    is_told = False


class AccessRefused(Unavailable):
    """The database or the store refuses the gateway itself: its credentials, or one more session."""

    default_advice = "Nothing was written. Ask the operator to run `gateway doctor`."
    state = "refused"


class DatabaseClosed(Unavailable):
    """The database was not opened for the present run of its server, so it may lack fences. Nothing was written."""

    code = "database-closed"
    title = "The database is not open"
    default_advice = "Nothing was written. Ask the operator to run 'gateway doctor'."
    retry_after: int | None = 5
    state = "closed"


class NamingChanged(Unavailable):
    """The configuration of this gateway gives rows or keys other names than the ones in force. Nothing was written."""

    code = "naming-changed"
    title = "This gateway's names for the target are not the ones in force"
    default_advice = (
        "Nothing was written. Ask the operator to correct the rule, or to run 'gateway naming plan' and "
        "'gateway naming apply'."
    )
    retry_after: int | None = None

    @classmethod
    def in_progress(cls, target: str, was: str, next_naming: str) -> Self:
        """Return the error while the next naming is being applied. A retry can help."""
        return cls(
            f"The naming of {target} is being changed from {was} to {next_naming}.",
            advice="Nothing was written. Send the request again when the change is complete.",
            facts={"target": target, "in-force": was, "next": next_naming},
            retry_after=2,
        )


class OwnershipDiffers(DatabaseClosed):
    """The rules of this gateway give the database other names than it has, or it is another one. Nothing was written.

    It serves its other databases.
    """

    code = "ownership-differs"
    title = "This gateway's rules for the database are not the ones in force"
    default_advice = (
        "Nothing was written. Ask the operator to correct [[databases]], or to run 'gateway databases plan' and "
        "'gateway databases apply'."
    )
    retry_after: int | None = None

    @classmethod
    def in_progress(cls, database: str | None) -> Self:
        """Return the error while the rules are being changed. A retry can help."""
        return cls(
            f"The rules of ownership of the database{f' {database}' if database else ''} are being changed.",
            advice="Nothing was written. Send the request again. If that does not help, the operator runs 'gateway "
            "databases apply' again.",
            facts={} if database is None else {"database": database},
            retry_after=2,
        )


class SessionsShared(Unavailable):
    """A pooler between gateway and database gives a session to other clients between transactions."""

    code = "sessions-shared"
    title = "The sessions with the database are not the gateway's own"
    default_advice = (
        "Set pool_mode = session for this database in the pooler, or let postgres.dsn name PostgreSQL itself."
    )
    retry_after: int | None = None

    def __init__(self) -> None:
        super().__init__(
            "A pooler gives the gateway's sessions to other clients between transactions, so they lose their settings, "
            "prepared statements and notifications."
        )


class JournalUnusable(Unavailable):
    """The journal of raised fences does not let the gateway promise what it is configured to. Nothing was written."""

    code = "journal-unusable"
    title = "The journal of raised fences cannot be used"
    default_advice = "Nothing was written. Ask the operator to run `gateway doctor`."
    retry_after: int | None = None
    state = "closed"


GRANT = "As the owner of the schema: gateway migrate --dsn … --grant-to {}."
"""The remedy for missing rights on the fencing schema, with the gateway's role."""


class RightMissing(GatewayError):
    """The gateway's role in the database lacks a right on the fencing schema."""

    code = "right-missing"
    status = 503
    s3_code = "ServiceUnavailable"
    title = "The gateway may not do this in its database"
    default_advice = "Ask the operator of the gateway to run 'gateway doctor': it names the right and how to grant it."
    state = "right-missing"

    @classmethod
    def of(cls, rights: Sequence[str] = (), heard: str = "") -> Self:
        """Return the error for rights on the fencing schema, such as "INSERT on fencing.fence"."""
        return cls(
            "The gateway's role in the database lacks a right. Nothing more was done.",
            operator=ForOperator(
                GRANT.format("ROLE"), heard=f"the role lacks {first_few(rights)}" if rights else heard
            ),
        )


class TooManyReaders(GatewayError):
    """This process already serves as many exports or streams of the record as it may."""

    code = "too-many-readers"
    status = 503
    s3_code = "SlowDown"
    title = "Too many clients read the record at this time"
    default_advice = "Retry later, or use another gateway."
    retry_after = 5


class StoreUnfit(GatewayError):
    """The object store does not do what fencing needs. Found by the probe, before anything was written."""

    code = "store-unfit"
    status = 501
    s3_code = "NotImplemented"
    title = "The object store cannot be fenced"
    default_advice = "Use a store that honours conditional writes. `gateway doctor` lists what this one does."


class SqlError(GatewayError):
    """The database refused a statement and undid it. ``detail`` and ``hint`` are the database's own words."""

    code = "sql-error"
    title = "The database refused the statement"

    def __init__(self, sqlstate: str, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, advice=hint or "")
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint


class RaiseUnsecured(Exception):
    """A transaction would raise fences that the journal does not have, or on a database opened in an older term.

    ``raises``: what the database names. Nothing was written. It ends at the one door to the database.
    """

    def __init__(self, raises: str) -> None:
        super().__init__(raises)
        self.raises = raises


def first_few(names: Sequence[str]) -> str:
    """Return the first of many names, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def for_callers(error: GatewayError) -> GatewayError:
    """Return the error that callers of the API and of buckets receive.

    These planes use only the gateway's own relations. So the operator has to grant a missing right, and the database's
    words would not help a caller.
    """
    if isinstance(error, SqlError) and error.sqlstate == "42501":
        return RightMissing.of(heard=error.message)
    return error


class DialectError(GatewayError):
    """An error of the table dialect: a PostgREST code or an SQLSTATE, with PostgREST's status for it.

    ``headers`` are further headers of the answer, set by code inside the database.
    """

    title = "The table request was refused"
    s3_code = "InvalidRequest"

    def __init__(
        self,
        code: str,
        status: int,
        message: str,
        *,
        details: str | None = None,
        hint: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message, advice=hint or "")
        self.code = code
        self.status = status
        self.details = details
        self.hint = hint
        self.headers = tuple(headers)


class StoreError(GatewayError):
    """An error in S3's own vocabulary: the store's answer, or a request refused as S3 would refuse it."""

    code = "store-refused"
    title = "The object request was refused"

    def __init__(
        self, s3_code: str, status: int, message: str, *, advice: str = "", facts: Mapping[str, Fact] | None = None
    ) -> None:
        super().__init__(message, advice=advice, facts=facts)
        self.s3_code = s3_code
        self.status = status

    @classmethod
    def known(
        cls, s3_code: str, advice: str = "", *, reason: str = "", facts: Mapping[str, Fact] | None = None
    ) -> Self:
        """Return an error with the status and the words of S3, for a code with a fixed message.

        ``advice`` is the next step, and stands behind them. ``reason`` has particulars, in an element of its own.
        """
        status, message = S3_ERRORS[s3_code]
        told = {"reason": reason} if reason else {}
        return cls(s3_code, status, message, advice=advice, facts={**told, **(facts or {})})


_NOT_WELL_FORMED = "The XML you provided was not well-formed or did not validate against our published schema."
S3_ERRORS: Mapping[str, tuple[int, str]] = {
    "AccessDenied": (403, "Access Denied."),
    "AuthorizationHeaderMalformed": (400, ""),
    "AuthorizationQueryParametersError": (400, ""),
    "BadDigest": (400, ""),
    "BadRequest": (400, ""),
    "BucketAlreadyOwnedByYou": (
        409,
        "Your previous request to create the named bucket succeeded and you already own it.",
    ),
    "BucketNotEmpty": (409, "The bucket you tried to delete is not empty."),
    "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed object size."),
    "EntityTooSmall": (400, "Your proposed upload is smaller than the minimum allowed size"),
    "ExpiredToken": (400, "The provided token has expired."),
    "IncompleteBody": (400, ""),
    "IncorrectNumberOfFilesInPostRequest": (400, "POST requires exactly one file upload per request."),
    "InvalidAccessKeyId": (403, "The AWS Access Key Id you provided does not exist in our records."),
    "InvalidArgument": (400, ""),
    "InvalidBucketName": (400, "The specified bucket is not valid."),
    "InvalidDigest": (400, "The Content-MD5 you specified is not valid."),
    "InvalidPartOrder": (
        400,
        "The list of parts was not in ascending order. Parts must be ordered by part number.",
    ),
    "InvalidPolicyDocument": (400, ""),
    "InvalidRequest": (400, ""),
    "InvalidToken": (400, "The provided token is malformed or otherwise invalid."),
    "InvalidURI": (400, "Couldn't parse the specified URI."),
    "KeyTooLongError": (400, "Your key is too long."),
    "MalformedACLError": (400, _NOT_WELL_FORMED),
    "MalformedPOSTRequest": (400, "The body of your POST request is not well-formed multipart/form-data."),
    "MalformedPolicy": (400, ""),
    "MalformedTrailerError": (
        400,
        "The request contained trailing data that was not well-formed or did not conform to our published schema.",
    ),
    "MalformedXML": (400, _NOT_WELL_FORMED),
    "MaxPostPreDataLengthExceededError": (400, "Your POST request fields preceding the upload file were too large."),
    "MetadataTooLarge": (400, "Your metadata headers exceed the maximum allowed metadata size"),
    "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "NoSuchBucket": (404, "The specified bucket does not exist."),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchUpload": (
        404,
        (
            "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have been "
            "aborted or completed."
        ),
    ),
    "NotImplemented": (501, ""),
    "PreconditionFailed": (412, "At least one of the pre-conditions you specified did not hold"),
    "RequestTimeTooSkewed": (403, "The difference between the request time and the current time is too large."),
    "SignatureDoesNotMatch": (
        403,
        (
            "The request signature we calculated does not match the signature you provided. Check your key and signing "
            "method."
        ),
    ),
    "UnexpectedContent": (400, "This request does not support content"),
    "UserKeyMustBeSpecified": (
        400,
        "The bucket POST must contain the specified field name. If it is specified, check the order of the fields.",
    ),
    "XAmzContentSHA256Mismatch": (
        400,
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    ),
}
"""The codes of S3 that the gateway answers with by itself: status and message. An empty one differs with the cause."""
