"""Signature Version 4 for S3, as the planes use it: who signed a request that came in, and signing one that goes out.

No I/O; the clock is an argument. ``claims`` reads what is to be proven here, ``signing`` is the other direction.
"""

import hmac
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gateway.auth import canonical, claims
from gateway.auth.canonical import RequestHead
from gateway.auth.claims import Claim, PayloadMode
from gateway.auth.principal import Principal, SecretOf, owner
from gateway.auth.signing import Credentials, presign, sign
from gateway.errors import StoreError

__all__ = [
    "ChunkSignatures",
    "Credentials",
    "PayloadMode",
    "RequestHead",
    "SecretOf",
    "VerifiedSignature",
    "presign",
    "sign",
    "verify",
]

MAX_SKEW = timedelta(minutes=15)


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
    """Prove who sent ``request``, signed in its headers or in its query (a presigned URL). ``now`` is aware.

    Raises ``StoreError`` with S3's code for everything else.
    """
    claim = claims.read(request)
    signer = claim.credential
    principal, secret = owner(signer.access_key_id, claim.session_token, secret_of, now)
    _in_time(claim, now)
    digest, _ = canonical.request(request.method, request.raw_path, claim.query_string, claim.headers, claim.payload)
    key = canonical.signing_key(secret, signer.day, signer.region)
    expected = canonical.signature(key, canonical.ALGORITHM, claim.timestamp, signer.scope, digest)
    if not hmac.compare_digest(expected.encode(), claim.signature.encode()):
        raise StoreError("SignatureDoesNotMatch", 403, "The signature does not match the request and its secret key.")
    if claim.mode in (PayloadMode.SIGNED_CHUNKS, PayloadMode.SIGNED_CHUNKS_TRAILER):
        chunks = ChunkSignatures(key, claim.timestamp, signer.scope, expected)
        return VerifiedSignature(principal, claim.mode, chunks=chunks)
    return VerifiedSignature(principal, claim.mode, claim.payload if claim.mode is PayloadMode.EXACT else None)


def _in_time(claim: Claim, now: datetime) -> None:
    if claim.lifetime is None:
        if abs(claim.time - now) > MAX_SKEW:
            raise StoreError("RequestTimeTooSkewed", 403, "The request was signed more than 15 minutes off our time.")
    elif now < claim.time - MAX_SKEW:
        raise StoreError("AccessDenied", 403, "Request is not valid yet.")
    elif now > claim.time + claim.lifetime:
        raise StoreError("AccessDenied", 403, "Request has expired")
