"""The object store's answers, reduced to what the protocol decides on. ETags stand without quotes."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from gateway.errors import S3_ERRORS, AccessRefused, ForOperator, GatewayError, StoreError, Unavailable
from gateway.fencing.token import Token
from gateway.objects.s3 import xml

RawHeaders: TypeAlias = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The write took effect. ``etag`` is the key's ETag after it, None where the key is gone.

    ``headers``, ``status`` and ``details``, which are elements of its document, are the store's: for what the caller
    may want to see of them.
    """

    etag: str | None
    headers: RawHeaders = ()
    status: int = 200
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The write's condition did not hold (412), it lost a race inside the store (409), or there is no object (404)."""

    status: int
    code: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The store refused the write for a reason that trying again does not change. ``code`` is S3's."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer, if there was one, does not tell whether the request took effect, or what is there.

    ``refusal``: the store takes no request at all for a key of this name.
    """

    reason: str
    refusal: Rejected | None = None


@dataclass(frozen=True, slots=True)
class NotSent:
    """The store could not be reached, so nothing of the request was sent: it can have no effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """The object as it is. The gateway's own metadata is None where another writer wrote the object.

    ``size`` is in bytes; ``token`` stands as it was written, in its wire form.
    """

    etag: str
    write_id: str | None = None
    tombstone: bool = False
    resource: str | None = None
    token: str | None = None
    size: int = 0
    date: datetime | None = None
    """The store's own clock, from its Date header."""
    last_modified: datetime | None = None
    """By the store's clock."""
    invocation: str | None = None
    """The digest of the call that wrote it: see ``fenced_write.py``."""
    proven: Token | None = None
    """The token that wrote it, where a signature of the gateway proves it."""


@dataclass(frozen=True, slots=True)
class Missing:
    date: datetime | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A multipart upload has been opened. ``headers`` are the store's."""

    upload_id: str
    headers: RawHeaders = ()


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A part has been stored; it takes effect with the completion of its upload.

    ``headers`` are the store's; ``document`` is what it says about a part that was copied.
    """

    etag: str
    headers: RawHeaders = ()
    document: bytes = b""


WriteAnswer: TypeAlias = Applied | NotApplied | Rejected | NotSent | Unknown
HeadAnswer: TypeAlias = Found | Missing | Unknown


EXPIRED = "RequestExpired"
"""The code of a request that the store has refused unread, because its signature had expired."""

_CORRECT = "Correct s3.access_key_id, s3.secret_access_key and s3.region."
# Errors of the store about the gateway's own signature. A client would take them for errors about its own.
_GATEWAY_AT_FAULT = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "InvalidAccessKeyId",
        EXPIRED,
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)


def refusing(heard: str, at: str = "") -> AccessRefused:
    """Return the error for a store that refuses the gateway's own key. ``heard``: what it said; ``at``: its address."""
    return AccessRefused("The object store refuses the gateway.", operator=ForOperator(_CORRECT, at, heard))


def store_refusal(rejected: Rejected, at: str = "") -> GatewayError:
    """Return the error to answer with where the store, ``at`` its address, refuses a request."""
    if rejected.code in _GATEWAY_AT_FAULT:
        return refusing(rejected.code, at)
    status, words = S3_ERRORS.get(rejected.code, (rejected.status, ""))
    wordless = rejected.message == _answered(rejected.status) and status == rejected.status
    return StoreError(rejected.code, rejected.status, words if words and wordless else rejected.message)


def step_failure(answer: Rejected | NotSent | Unknown) -> GatewayError:
    """Return the error to answer with where a step failed that writes nothing by itself."""
    if isinstance(answer, Rejected):
        return store_refusal(answer)
    return Unavailable(f"Nothing was written: {answer.reason}.")


def no_such_key() -> StoreError:
    return StoreError.known("NoSuchKey")


# Other conflicts have nothing to do with the write's condition, such as a key where the store has a directory.
_LOST_RACES = frozenset({"", "ConditionalRequestConflict", "OperationAborted"})


_WITHOUT_A_DOCUMENT = {403: "AccessDenied", 405: "MethodNotAllowed", 411: "MissingContentLength"}
"""The codes of refusals of a HEAD, whose answer has no document."""


def _answered(status: int) -> str:
    return f"The store answered with {status}."


def of_write(status: int, etag: str | None, body: bytes, headers: RawHeaders = ()) -> WriteAnswer:
    """Interpret the store's answer to a write. ``etag`` is that header's value, ``body`` the whole answer's.

    Only an answer that is certain to mean "no effect" is read as such.
    """
    error = xml.read_error(body) if body else None
    code = error.code if error else ""
    if status in (200, 204):
        # S3 sends the status of a completion ahead and may still fail: the body has the last word.
        return Unknown(f"200 with the error {code}") if error else Applied(unquoted(etag), headers)
    if status == 412 or (status == 409 and code in _LOST_RACES) or (status == 404 and code != "NoSuchBucket"):
        return NotApplied(status, code)
    message = error.message if error else _answered(status)
    if 300 <= status < 400:
        return Rejected(502, "BadGateway", "The store answered with a redirect: its endpoint or region is wrong.")
    if (400 <= status < 500 and status != 408) or (status, code) == (501, "NotImplemented"):
        return Rejected(status, code or _WITHOUT_A_DOCUMENT.get(status, "InvalidRequest"), message)
    return Unknown(f"{status} {code}".strip())


def unquoted(etag: str | None) -> str | None:
    """Return an ETag without its quotation marks. None for none, and for a weak one, which S3 does not have."""
    bare = (etag or "").removeprefix('"').removesuffix('"')
    return bare if bare and '"' not in bare else None
