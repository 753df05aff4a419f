"""Signature Version 4 in its header form, for S3: who signed a request that came in, and signing one that goes out.

Whatever can change what a request means must be signed. A gateway that accepts an unsigned ``x-amz-*`` header and signs
it anew turns a request somebody was allowed to send into one nobody was. No I/O; the clock is an argument.
"""

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from gateway.auth import canonical
from gateway.auth.principal import Principal
from gateway.errors import StoreError

MAX_SKEW = timedelta(minutes=15)

SecretOf: TypeAlias = Callable[[str], tuple[Principal, str] | None]
"""From an access key id to its owner and its secret; None where the id is not known."""


class PayloadMode(StrEnum):
    """What a signature says about the body, as written in x-amz-content-sha256 (``EXACT``: the SHA-256 itself)."""

    EXACT = "EXACT"
    UNSIGNED = "UNSIGNED-PAYLOAD"
    UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"

    @property
    def chunked(self) -> bool:
        """Whether the body is framed as aws-chunked."""
        return self not in (PayloadMode.EXACT, PayloadMode.UNSIGNED)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body: path and query as they stand on the wire, headers as ASGI delivers them."""

    method: str
    raw_path: bytes
    query_string: bytes
    headers: Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Credentials:
    """What outbound requests are signed with."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str


@dataclass(slots=True)
class ChunkSignatures:
    """The chain of signatures through an aws-chunked body: each one covers the one before it, the first the head's."""

    signing_key: bytes = field(repr=False)
    timestamp: str
    scope: str
    previous: str

    def check_chunk(self, presented: str, sha256: str) -> None:
        """Check the signature of the next chunk, whose data hash to ``sha256`` (hex)."""
        self._check(presented, "AWS4-HMAC-SHA256-PAYLOAD", canonical.SHA256_OF_NOTHING, sha256)

    def check_trailer(self, presented: str, sha256: str) -> None:
        """Check the signature of the trailer, whose lines ``name:value\\n`` hash to ``sha256`` (hex)."""
        self._check(presented, "AWS4-HMAC-SHA256-TRAILER", sha256)

    def _check(self, presented: str, kind: str, *hashes: str) -> None:
        expected = canonical.signature(self.signing_key, kind, self.timestamp, self.scope, self.previous, *hashes)
        if not hmac.compare_digest(expected.encode(), presented.encode()):
            raise StoreError("SignatureDoesNotMatch", 403, "The signature of a chunk of the body does not match.")
        self.previous = expected


@dataclass(frozen=True, slots=True)
class VerifiedSignature:
    """Who signed the request, and what the signature says about the body.

    ``sha256`` (hex) is set for ``EXACT`` only, ``chunks`` for the modes with signed chunks only.
    """

    principal: Principal
    mode: PayloadMode
    sha256: str | None = None
    chunks: ChunkSignatures | None = None


def verify(request: RequestHead, secret_of: SecretOf, now: datetime) -> VerifiedSignature:
    """Prove who sent ``request``. ``now`` is aware. Raises ``StoreError`` with S3's code for everything else."""
    _refuse_presigned(request.query_string)
    headers = _by_name(request.headers)
    claim = _Claim.parse(_authorization(headers), _one(headers, "x-amz-date"))
    _everything_signed(headers, claim)
    owner = secret_of(claim.access_key_id)
    if owner is None:
        raise StoreError("InvalidAccessKeyId", 403, "The access key id is not known here.")
    principal, secret = owner
    if abs(claim.time - now) > MAX_SKEW:
        raise StoreError("RequestTimeTooSkewed", 403, "The request was signed more than 15 minutes off our time.")
    mode, payload = _payload(headers)
    signed = [(name, headers[name][0]) for name in claim.signed_headers]
    digest, _ = canonical.request(request.method, request.raw_path, request.query_string, signed, payload)
    key = canonical.signing_key(secret, claim.day, claim.region)
    expected = canonical.signature(key, canonical.ALGORITHM, claim.timestamp, claim.scope, digest)
    if not hmac.compare_digest(expected.encode(), claim.signature.encode()):
        raise StoreError("SignatureDoesNotMatch", 403, "The signature does not match the request and its secret key.")
    if mode in (PayloadMode.SIGNED_CHUNKS, PayloadMode.SIGNED_CHUNKS_TRAILER):
        return VerifiedSignature(principal, mode, chunks=ChunkSignatures(key, claim.timestamp, claim.scope, expected))
    return VerifiedSignature(principal, mode, payload if mode is PayloadMode.EXACT else None)


def sign(
    request: RequestHead, payload_sha256: str, credentials: Credentials, timestamp: datetime
) -> list[tuple[str, str]]:
    """The headers that sign ``request`` at ``timestamp`` (aware). All its headers are signed; Host must be there."""
    moment = timestamp.astimezone(UTC).strftime(canonical.TIMESTAMP_FORMAT)
    added = [("x-amz-content-sha256", payload_sha256), ("x-amz-date", moment)]
    headers = sorted(
        [(name.decode().lower(), value) for name, value in request.headers]
        + [(name, value.encode()) for name, value in added]
    )
    digest, names = canonical.request(request.method, request.raw_path, request.query_string, headers, payload_sha256)
    scope = f"{moment[:8]}/{credentials.region}/s3/aws4_request"
    key = canonical.signing_key(credentials.secret_access_key, moment[:8], credentials.region)
    signature = canonical.signature(key, canonical.ALGORITHM, moment, scope, digest)
    credential = f"Credential={credentials.access_key_id}/{scope}"
    added.append(("authorization", f"{canonical.ALGORITHM} {credential},SignedHeaders={names},Signature={signature}"))
    return added


_AUTHORIZATION = re.compile(
    r"Credential=(?P<id>[\x21-\x2b\x2d-\x7e]+)/(?P<day>[0-9]{8})/(?P<region>[A-Za-z0-9-]+)/(?P<service>[a-z0-9]+)"
    r"/(?P<end>[a-z0-9_]+) *, *SignedHeaders=(?P<headers>[!#$%&'*+.^_`|~0-9a-z;-]+) *, *Signature=(?P<hex>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class _Claim:
    """What an Authorization header claims, read but not proven."""

    access_key_id: str
    region: str
    timestamp: str
    time: datetime
    signed_headers: tuple[str, ...]
    signature: str

    @property
    def day(self) -> str:
        return self.timestamp[:8]

    @property
    def scope(self) -> str:
        return f"{self.day}/{self.region}/s3/aws4_request"

    @classmethod
    def parse(cls, authorization: str, timestamp: str | None) -> "_Claim":
        match = _AUTHORIZATION.fullmatch(authorization)
        if match is None:
            raise _malformed("The Authorization header is not of the form that AWS4-HMAC-SHA256 has.")
        if match["service"] != "s3" or match["end"] != "aws4_request":
            raise _malformed("The credential must be for the service s3 and end in aws4_request.")
        names = tuple(match["headers"].split(";"))
        if names != tuple(sorted(set(names))):
            raise _malformed("SignedHeaders must be sorted and name each header once.")
        if timestamp is None:
            raise StoreError("AccessDenied", 403, "A signed request needs the header x-amz-date.")
        try:
            time = datetime.strptime(timestamp, canonical.TIMESTAMP_FORMAT).replace(tzinfo=UTC)
        except ValueError:
            raise StoreError("AccessDenied", 403, "x-amz-date must look like 20260131T235959Z.") from None
        # strptime takes digits away from the front; only the full form binds the day of the credential.
        if len(timestamp) != 16 or timestamp[:8] != match["day"]:
            raise _malformed("The day of the credential must be the day of x-amz-date.")
        return cls(match["id"], match["region"], timestamp, time, names, match["hex"])


def _malformed(message: str) -> StoreError:
    return StoreError("AuthorizationHeaderMalformed", 400, message)


def _refuse_presigned(query_string: bytes) -> None:
    names = {name.lower() for name in re.findall(rb"(?:^|&)([^=&]*)", query_string)}
    if names & {b"awsaccesskeyid", b"signature"} or any(name.startswith(b"x-amz-") for name in names):
        raise StoreError("NotImplemented", 501, "Presigned URLs are not supported; sign in the Authorization header.")


def _by_name(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, list[bytes]]:
    """Headers by their name in lower case. Refuses sensitive names with "_" for "-"."""
    found: dict[str, list[bytes]] = {}
    for raw_name, value in headers:
        name = raw_name.decode("latin-1").lower()
        if "_" in name and _misspelt(name):
            raise StoreError("InvalidRequest", 400, f"The header {name} must be written with '-'.")
        found.setdefault(name, []).append(value)
    return found


def _misspelt(name: str) -> bool:
    """Some servers fold "_" into "-", so that ``x_amz_copy_source`` would mean to them what it did not mean to us."""
    folded = name.replace("_", "-")
    if name.startswith("x-amz-meta-"):
        return folded.startswith("x-amz-meta-fencing-")
    return folded == "authorization" or _must_be_signed(folded)


_SIGNED_IF_SENT = frozenset(
    {
        "host",
        "content-md5",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-unmodified-since",
        "x-fencing-token",
    }
)


def _must_be_signed(name: str) -> bool:
    return name in _SIGNED_IF_SENT or name.startswith(("x-amz-", "fencing-"))


def _one(headers: Mapping[str, list[bytes]], name: str) -> str | None:
    values = headers.get(name, [])
    if len(values) > 1:
        raise StoreError("InvalidRequest", 400, f"The header {name} stands twice.")
    return values[0].decode("latin-1").strip() if values else None


def _authorization(headers: Mapping[str, list[bytes]]) -> str:
    """What follows the algorithm in the Authorization header."""
    value = _one(headers, "authorization")
    if value is None:
        raise StoreError("AccessDenied", 403, "Access denied: the request is not signed.")
    algorithm, _, rest = value.partition(" ")
    if algorithm == canonical.ALGORITHM:
        return rest.strip()
    if algorithm == "AWS":
        raise StoreError("InvalidRequest", 400, "Signature Version 2 is not supported. Please use AWS4-HMAC-SHA256.")
    if algorithm.startswith("AWS4-ECDSA"):
        raise StoreError("NotImplemented", 501, "Signature Version 4A is not supported. Please use AWS4-HMAC-SHA256.")
    raise StoreError("InvalidArgument", 400, "The type of the Authorization header is not supported.")


def _everything_signed(headers: Mapping[str, list[bytes]], claim: _Claim) -> None:
    """Refuse sensitive headers that are not signed, signed ones that are missing, and either that stand twice."""
    signed = set(claim.signed_headers)
    if missing := sorted(name for name in signed if name not in headers):
        raise StoreError("SignatureDoesNotMatch", 403, f"A signed header is missing: {', '.join(missing)}.")
    if "host" not in signed or "x-amz-date" not in signed:
        raise StoreError("AccessDenied", 403, "The headers host and x-amz-date must be signed.")
    # The payload's hash needs no place in SignedHeaders: the canonical request ends with it.
    sensitive = {name for name in headers if _must_be_signed(name)}
    if unsigned := sorted(sensitive - signed - {"x-amz-content-sha256"}):
        raise StoreError(
            "AccessDenied",
            403,
            f"There were headers present in the request which were not signed: {', '.join(unsigned)}.",
            facts={"headers_not_signed": ", ".join(unsigned)},
        )
    for name in sensitive | signed:
        _one(headers, name)


_SHA256 = re.compile(r"[0-9a-f]{64}")


def _payload(headers: Mapping[str, list[bytes]]) -> tuple[PayloadMode, str]:
    """The mode of the body, and what stands in the canonical request for it."""
    value = _one(headers, "x-amz-content-sha256")
    if value is None:
        raise StoreError("InvalidRequest", 400, "Missing required header for this request: x-amz-content-sha256.")
    if _SHA256.fullmatch(value):
        return PayloadMode.EXACT, value
    try:
        if value != PayloadMode.EXACT:
            return PayloadMode(value), value
    except ValueError:
        pass
    raise StoreError(
        "InvalidArgument", 400, "x-amz-content-sha256 must be a SHA-256 in hex, UNSIGNED-PAYLOAD or a STREAMING- mode."
    )
