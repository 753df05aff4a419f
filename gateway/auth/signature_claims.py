"""The claims of a request about its Signature V4, read but not proven, and the canonical form that is signed.

The claims are in the Authorization header, or in the query.

Every header that can change the meaning of a request must be signed. If the gateway accepted an unsigned ``x-amz-*``
header and signed it anew, an allowed request would become a forbidden one. Conditions may be unsigned, as on S3: they
only narrow what a request does.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote_to_bytes

from gateway.errors import StoreError

ALGORITHM = "AWS4-HMAC-SHA256"
TIMESTAMP_FORMAT = "%Y%m%dT%H%M%SZ"
SHA256_OF_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body: path and query as on the wire, headers as ASGI delivers them."""

    method: str
    raw_path: bytes
    query_string: bytes
    headers: Sequence[tuple[bytes, bytes]]


def canonical_uri(raw_path: bytes) -> str:
    """Return the path with every byte but ``A-Za-z0-9-._~/`` percent-encoded, whatever its spelling on the wire."""
    return quote_from_bytes(unquote_to_bytes(raw_path), safe="/") or "/"


def canonical_query(query_string: bytes) -> str:
    """Return the query sorted, with each name and value encoded once. S3 reads a plus sign as a space."""
    pairs = []
    for part in query_string.split(b"&"):
        if part:
            name, _, value = part.replace(b"+", b" ").partition(b"=")
            pairs.append((quote_from_bytes(unquote_to_bytes(name), safe=""), _encoded(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _encoded(value: bytes) -> str:
    return quote_from_bytes(unquote_to_bytes(value), safe="")


def canonical_request(
    method: str, raw_path: bytes, query: str, headers: Iterable[tuple[str, bytes]], payload: str
) -> tuple[str, str]:
    """Return the SHA-256 (hex) of the canonical request, and its list of signed headers.

    ``query`` is canonical already. ``headers`` are the signed ones, names in lower case, sorted and unique. ``payload``
    is the value of x-amz-content-sha256: a SHA-256 in hex, or the name of a payload mode.
    """
    kept = list(headers)
    names = ";".join(name for name, _ in kept)
    head = f"{method}\n{canonical_uri(raw_path)}\n{query}\n".encode()
    lines = b"".join(name.encode() + b":" + b" ".join(value.split()) + b"\n" for name, value in kept)
    return hashlib.sha256(head + lines + f"\n{names}\n{payload}".encode()).hexdigest(), names


def signature(key: bytes, *lines: str) -> str:
    return hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()


def credential_scope(day: str, region: str) -> str:
    """Return the scope of a signing key: one day (``YYYYMMDD``), one region, S3."""
    return f"{day}/{region}/s3/aws4_request"


@lru_cache(maxsize=512)
def signing_key(secret: str, day: str, region: str, service: str = "s3") -> bytes:
    """Return the key that signs for one day (``YYYYMMDD``), one region and one service."""
    key = f"AWS4{secret}".encode()
    for step in (day, region, service, "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    return key


MAX_LIFETIME = timedelta(days=7)

_CREDENTIAL = re.compile(
    r"(?P<id>[\x21-\x2b\x2d-\x7e]+)/(?P<day>[^/]{1,64})/(?P<region>[A-Za-z0-9-]{1,64})/(?P<service>[^/]{1,64})/(?P<end>[^/]{1,64})"
)
_DAY = re.compile(r"[0-9]{8}")
_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9a-z;-]+")
_HEXADECIMAL = re.compile(r"[0-9a-f]{64}")
_ADVICE = (
    'In the AWS CLI: aws configure set default.s3.signature_version s3v4; in boto3: Config(signature_version="s3v4").'
)


class PayloadMode(StrEnum):
    """The promise of a signature about the body, as in x-amz-content-sha256 (``EXACT``: the SHA-256 itself)."""

    EXACT = "EXACT"
    UNSIGNED = "UNSIGNED-PAYLOAD"
    UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"

    @property
    def chunked(self) -> bool:
        return self not in (PayloadMode.EXACT, PayloadMode.UNSIGNED)


@dataclass(frozen=True, slots=True)
class CredentialScope:
    """An access key id, and the day (``YYYYMMDD``) and region of its signing key."""

    access_key_id: str
    day: str
    region: str

    @property
    def scope(self) -> str:
        return credential_scope(self.day, self.region)


@dataclass(frozen=True, slots=True)
class SignatureClaim:
    """Everything that a signature covers and that its proof needs.

    ``headers`` are the signed ones, sorted, names in lower case. ``payload`` stands for the body in the canonical
    request. ``query_string`` is the signed part of the query. ``lifetime`` is None in the header form.
    """

    credential: CredentialScope
    timestamp: str
    time: datetime
    headers: tuple[tuple[str, bytes], ...]
    signature: str
    mode: PayloadMode
    payload: str
    session_token: str | None
    query_string: bytes
    lifetime: timedelta | None = None


def read(request: RequestHead) -> SignatureClaim:
    """Read the claim of a request, in either form. Raises ``StoreError`` with S3's code if there is no clear one."""
    headers = _by_name(request.headers)
    parameters, covered = _parameters(request.query_string)
    authorization = _one(headers, "authorization")
    if authorization is None and parameters:
        return _from_query(headers, parameters, covered)
    if parameters:
        raise StoreError(
            "InvalidArgument",
            400,
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string "
            "parameter or the Authorization header should be specified",
        )
    if authorization is None:
        raise StoreError.known("AccessDenied", reason="The request is not signed.")
    return _from_header(headers, authorization, request.query_string)


def is_signed(request: RequestHead) -> bool:
    """Return whether a request carries credentials in any form, valid or not. Raises ``StoreError`` for Version 2."""
    names = {name.lower() for name, _ in request.headers}
    parameters, _ = _parameters(request.query_string)
    return b"authorization" in names or b"x-amz-security-token" in names or bool(parameters)


def unsigned_payload(request: RequestHead) -> tuple[PayloadMode, str]:
    """Return how the body of a request without a signature is framed. Raises ``StoreError`` for signed chunks."""
    declared = _one(_by_name(request.headers), "x-amz-content-sha256")
    mode, payload = _payload(PayloadMode.UNSIGNED if declared is None else declared)
    if mode in (PayloadMode.SIGNED_CHUNKS, PayloadMode.SIGNED_CHUNKS_TRAILER):
        raise StoreError.known("AccessDenied", "The chunks are signed, but the request is not.")
    return mode, payload


def credential(text: str, code: str) -> CredentialScope:
    """Read ``id/day/region/s3/aws4_request``. Raises ``StoreError`` with ``code``."""
    match = _CREDENTIAL.fullmatch(text)
    reason = _fault(match)
    if match is None or reason:
        raise StoreError(code, 400, f"{_PLACES.get(code, '')}{reason}")
    return CredentialScope(match["id"], match["day"], match["region"])


def _fault(found: re.Match[str] | None) -> str:
    """Return what S3 says of a wrong credential; nothing for a right one."""
    if found is None or ("/" in found["id"] and not _DAY.fullmatch(found["day"])):
        return 'the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".'
    day, service, end = found["day"], found["service"], found["end"]
    if service != "s3":
        return f'incorrect service "{service}". This endpoint belongs to "s3".'
    if end != "aws4_request":
        return f'incorrect terminal "{end}". This endpoint uses "aws4_request".'
    if not _DAY.fullmatch(day):
        return f'incorrect date format "{day}". This date in the credential must be in the format "yyyyMMdd".'
    return ""


def moment(timestamp: str) -> datetime | None:
    """Return the time of ``20260131T235959Z``, aware; None for text of another form."""
    # strptime accepts a date with missing digits, which would not match the day of a credential.
    return _moment(timestamp) if len(timestamp) == 16 else None


@lru_cache(maxsize=256)  # a caller's requests of one second have the same, and a presigned URL always
def _moment(timestamp: str) -> datetime | None:
    try:
        return datetime.strptime(timestamp, TIMESTAMP_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def _missing(authorization: str) -> str:
    """Return what S3 says of an Authorization header that cannot be read."""
    components = [one.strip() for one in authorization.split(",")]
    if wrong := next((one for one in components if "=" not in one), ""):
        return f'the authorization component "{wrong[:64]}" is malformed.'
    names = [one.partition("=")[0] for one in components]
    missing = [name for name in _COMPONENTS if name not in names]
    if len(components) == len(_COMPONENTS) and missing:
        return f"missing {missing[0]}."
    return "the authorization header requires three components: Credential, SignedHeaders, and Signature."


def _other_day(day: str, timestamp: str) -> str:
    return f'Invalid credential date "{day}". This date is not the same as X-Amz-Date: "{timestamp[:8]}".'


def check_algorithm(name: str, code: str) -> None:
    """Refuse every other algorithm. Raises ``StoreError``, with ``code`` for a name of no algorithm."""
    if name == "AWS":
        raise version_2()
    if name.startswith("AWS4-ECDSA"):
        raise StoreError("NotImplemented", 501, "Signature Version 4A is not supported.", advice=_ADVICE)
    if name != ALGORITHM:
        raise StoreError(code, 400, "Unsupported Authorization Type", facts={"reason": f"It must be {ALGORITHM}."})


def version_2() -> StoreError:
    return StoreError(
        "InvalidRequest",
        400,
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        advice=f"Signature Version 2 is not served. {_ADVICE}",
    )


_PLACES = {
    "AuthorizationHeaderMalformed": "The authorization header is malformed; ",
    "AuthorizationQueryParametersError": "Error parsing the X-Amz-Credential parameter; ",
}
"""The words of S3 in front of what is wrong with a credential."""


# The header form ----------------------------------------------------------------------------------------------------

_HEADER_ERROR = "AuthorizationHeaderMalformed"
_COMPONENTS = ("Credential", "SignedHeaders", "Signature")
_AUTHORIZATION = re.compile(
    r"Credential=(?P<credential>[^, ]+) *, *SignedHeaders=(?P<names>[^, ]+) *, *Signature=(?P<signature>[^, ]+)"
)


def _from_header(headers: Mapping[str, list[bytes]], authorization: str, query_string: bytes) -> SignatureClaim:
    algorithm, _, rest = authorization.partition(" ")
    if not rest:
        message = "Authorization header is invalid -- one and only one ' ' (space) required"
        raise StoreError("InvalidArgument", 400, message)
    check_algorithm(algorithm, "InvalidArgument")
    match = _AUTHORIZATION.fullmatch(rest.strip())
    if match is None or _HEXADECIMAL.fullmatch(match["signature"]) is None:
        raise StoreError(_HEADER_ERROR, 400, f"{_PLACES[_HEADER_ERROR]}{_missing(rest)}")
    signer = credential(match["credential"], _HEADER_ERROR)
    names = _signed_names(match["names"], _HEADER_ERROR)
    timestamp = _one(headers, "x-amz-date")
    time = None if timestamp is None else moment(timestamp)
    if timestamp is None or time is None:
        message = "AWS authentication requires a valid Date or x-amz-date header"
        reason = "x-amz-date must look like 20260131T235959Z."
        raise StoreError("AccessDenied", 403, message, facts={"reason": reason})
    if timestamp[:8] != signer.day:
        raise StoreError(_HEADER_ERROR, 400, f"{_PLACES[_HEADER_ERROR]}{_other_day(signer.day, timestamp)}")
    # SignedHeaders need not name the payload's hash: the canonical request ends with it.
    signed = _everything_signed(headers, names, required=("host", "x-amz-date"), exempt={"x-amz-content-sha256"})
    declared = _one(headers, "x-amz-content-sha256")
    if declared is None:
        raise StoreError("InvalidRequest", 400, "Missing required header for this request: x-amz-content-sha256")
    mode, payload = _payload(declared)
    session_token = _one(headers, "x-amz-security-token")
    return SignatureClaim(
        signer, timestamp, time, signed, match["signature"], mode, payload, session_token, query_string
    )


# The query form -----------------------------------------------------------------------------------------------------

_QUERY_ERROR = "AuthorizationQueryParametersError"
_REQUIRED = (
    "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature",
)  # fmt: skip
_PARAMETERS = {name.lower(): name for name in (*_REQUIRED, "X-Amz-Security-Token", "X-Amz-Content-Sha256")}
_VERSION_2 = frozenset({"awsaccesskeyid", "signature"})
_SECONDS = re.compile(r"[1-9][0-9]{0,5}")
_NEGATIVE = re.compile(r"-[0-9]+")


def _from_query(
    headers: Mapping[str, list[bytes]], parameters: Mapping[str, str], query_string: bytes
) -> SignatureClaim:
    if missing := [name for name in _REQUIRED if name not in parameters]:
        message = (
            "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, "
        )
        message += "X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters."
        raise StoreError(_QUERY_ERROR, 400, message, facts={"reason": f"The query lacks {', '.join(missing)}."})
    check_algorithm(parameters["X-Amz-Algorithm"], _QUERY_ERROR)
    signer = credential(parameters["X-Amz-Credential"], _QUERY_ERROR)
    names = _signed_names(parameters["X-Amz-SignedHeaders"], _QUERY_ERROR)
    timestamp, seconds, signature = (parameters[name] for name in ("X-Amz-Date", "X-Amz-Expires", "X-Amz-Signature"))
    time = moment(timestamp)
    if time is None:
        message = "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\""
        raise StoreError(_QUERY_ERROR, 400, message)
    if timestamp[:8] != signer.day:
        raise StoreError(_QUERY_ERROR, 400, _other_day(signer.day, timestamp))
    lifetime = _lifetime(seconds)
    if _HEXADECIMAL.fullmatch(signature) is None:
        reason = "X-Amz-Signature must be 64 hexadecimal digits in lower case."
        raise StoreError.known("SignatureDoesNotMatch", reason=reason)
    for name in _PARAMETERS.keys() & headers.keys():
        if _PARAMETERS[name] in parameters:
            raise StoreError("InvalidRequest", 400, f"{_PARAMETERS[name]} appears in the query and in the headers.")
    signed = _everything_signed(headers, names, required=("host",))
    declared = parameters.get("X-Amz-Content-Sha256", _one(headers, "x-amz-content-sha256"))
    mode, payload = _payload(PayloadMode.UNSIGNED if declared is None else declared)
    session_token = parameters.get("X-Amz-Security-Token", _one(headers, "x-amz-security-token"))
    return SignatureClaim(
        signer, timestamp, time, signed, signature, mode, payload, session_token, query_string, lifetime
    )


def _lifetime(seconds: str) -> timedelta:
    if _SECONDS.fullmatch(seconds) and timedelta(seconds=int(seconds)) <= MAX_LIFETIME:
        return timedelta(seconds=int(seconds))
    message = "X-Amz-Expires should be a number"
    if _NEGATIVE.fullmatch(seconds):
        message = "X-Amz-Expires must be non-negative"
    elif _SECONDS.match(seconds) and seconds.isdecimal():
        message = (
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than "
            "604800 seconds"
        )
    raise StoreError(_QUERY_ERROR, 400, message, facts={"reason": "It must be from 1 to 604800 seconds."})


def _parameters(query_string: bytes) -> tuple[dict[str, str], bytes]:
    """Return the decoded parameters of a signature in the query, and the query without the signature itself."""
    found: dict[str, str] = {}
    covered = []
    for part in query_string.split(b"&"):
        raw_name, _, raw_value = part.replace(b"+", b" ").partition(b"=")
        name = unquote_to_bytes(raw_name).decode("latin-1")
        if name.lower() in _VERSION_2:
            raise version_2()
        known = _PARAMETERS.get(name.lower())
        if known is not None:
            if name != known:
                raise StoreError(_QUERY_ERROR, 400, f"The parameter {known} must be spelt exactly so.")
            if known in found:
                raise StoreError(_QUERY_ERROR, 400, f"The parameter {known} appears twice.")
            found[known] = unquote_to_bytes(raw_value).decode("latin-1")
        if known != "X-Amz-Signature":
            covered.append(part)
    return found, b"&".join(covered)


# Both forms ---------------------------------------------------------------------------------------------------------


def _signed_names(text: str, code: str) -> tuple[str, ...]:
    names = tuple(text.split(";"))
    if not _NAMES.fullmatch(text) or names != tuple(sorted(set(names))):
        raise StoreError(code, 400, "SignedHeaders must be sorted, in lower case, and name each header once.")
    return names


def _everything_signed(
    headers: Mapping[str, list[bytes]],
    signed: Sequence[str],
    *,
    required: Sequence[str],
    exempt: AbstractSet[str] = frozenset(),
) -> tuple[tuple[str, bytes], ...]:
    """Return the signed headers. Refuse sensitive headers that are unsigned, missing ones, and repeated ones."""
    if missing := sorted(name for name in signed if name not in headers):
        raise StoreError.known("SignatureDoesNotMatch", reason=f"A signed header is missing: {', '.join(missing)}.")
    if not set(required) <= set(signed):
        raise StoreError.known("AccessDenied", reason=f"The signature must cover these headers: {', '.join(required)}.")
    sensitive = {name for name in headers if _must_be_signed(name)}
    if unsigned := sorted(sensitive.difference(signed, exempt)):
        raise StoreError(
            "AccessDenied",
            403,
            "There were headers present in the request which were not signed",
            facts={"headers_not_signed": ", ".join(unsigned)},
        )
    for name in sensitive.union(signed, filter(_is_condition, headers)):
        _one(headers, name)
    return tuple((name, headers[name][0]) for name in signed)


def _by_name(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, list[bytes]]:
    """Return headers by their name in lower case. Refuse sensitive names with "_" for "-"."""
    found: dict[str, list[bytes]] = {}
    for raw_name, value in headers:
        name = raw_name.decode("latin-1").lower()
        if "_" in name and _misspelt(name):
            raise StoreError("InvalidRequest", 400, f"The header {name} must be written with '-'.")
        found.setdefault(name, []).append(value)
    return found


def _misspelt(name: str) -> bool:
    """Return whether a store that folds "_" into "-" would take this name for a sensitive one."""
    folded = name.replace("_", "-")
    if name.startswith("x-amz-meta-"):
        return folded.startswith("x-amz-meta-fencing-")
    return folded == "authorization" or _must_be_signed(folded) or _is_condition(folded)


def _must_be_signed(name: str) -> bool:
    return name in ("host", "content-md5", "x-fencing-token") or name.startswith(("x-amz-", "fencing-"))


def _is_condition(name: str) -> bool:
    """Return whether the header is a condition. A browser adds some to a URL, and object_store to a completion."""
    return name.startswith("if-")


def _one(headers: Mapping[str, list[bytes]], name: str) -> str | None:
    values = headers.get(name, [])
    if len(values) > 1:
        raise StoreError("InvalidRequest", 400, f"The header {name} appears twice.")
    return values[0].decode("latin-1").strip() if values else None


def _payload(declared: str) -> tuple[PayloadMode, str]:
    """Return the mode of the body, and its value in the canonical request."""
    if _HEXADECIMAL.fullmatch(declared):
        return PayloadMode.EXACT, declared
    try:
        if declared != PayloadMode.EXACT:
            return PayloadMode(declared), declared
    except ValueError:
        pass
    raise StoreError(
        "InvalidArgument", 400, "x-amz-content-sha256 must be a SHA-256 in hex, UNSIGNED-PAYLOAD or a STREAMING- mode."
    )
