"""Signature Version 4 for S3: verify incoming requests, and sign outgoing ones.

No I/O; the clock is an argument. ``signature_claims`` reads the claims that this module proves.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from urllib.parse import quote

from gateway.auth import signature_claims
from gateway.auth.principal import ClientCertificate, Principal, SecretOf, owner
from gateway.auth.signature_claims import MAX_LIFETIME, PayloadMode, RequestHead, SignatureClaim
from gateway.errors import Fact, StoreError


@dataclass(frozen=True, slots=True)
class StoreCredentials:
    """The credentials that sign requests to the store."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str


def sign(
    request: RequestHead, payload_sha256: str, credentials: StoreCredentials, timestamp: datetime
) -> list[tuple[str, str]]:
    """Return the headers that sign ``request`` at ``timestamp`` (aware). They cover all its headers, with Host."""
    moment = _moment(int(timestamp.timestamp()))
    added = [("x-amz-content-sha256", payload_sha256), ("x-amz-date", moment)]
    headers = sorted([*_named(request), *((name, value.encode()) for name, value in added)])
    query = signature_claims.canonical_query(request.query_string)
    digest, names = signature_claims.canonical_request(request.method, request.raw_path, query, headers, payload_sha256)
    credential, _ = _credential(credentials, moment[:8])
    signed = f"Credential={credential},SignedHeaders={names},Signature={_signature(credentials, moment, digest)}"
    return [*added, ("authorization", f"{signature_claims.ALGORITHM} {signed}")]


def presign(request: RequestHead, credentials: StoreCredentials, timestamp: datetime, expires: timedelta) -> str:
    """Return the query string that signs ``request`` from ``timestamp`` (aware) for ``expires`` (1 second to 7 days).

    The query of the request comes first, unchanged. The signature covers all headers, with Host, but not the body.
    """
    if not timedelta(seconds=1) <= expires <= MAX_LIFETIME:
        raise ValueError("a signature in the query is good for 1 to 604800 seconds")
    moment = _moment(int(timestamp.timestamp()))
    headers = sorted(_named(request))
    _, credential = _credential(credentials, moment[:8])
    query = canonical = (
        f"X-Amz-Algorithm={signature_claims.ALGORITHM}&X-Amz-Credential={credential}&X-Amz-Date={moment}"
        f"&X-Amz-Expires={int(expires.total_seconds())}"
        f"&X-Amz-SignedHeaders={quote(';'.join(name for name, _ in headers), safe='')}"
    )
    if request.query_string:
        query = f"{request.query_string.decode('ascii')}&{query}"
        canonical = signature_claims.canonical_query(query.encode())
    digest, _ = signature_claims.canonical_request(
        request.method, request.raw_path, canonical, headers, PayloadMode.UNSIGNED
    )
    return f"{query}&X-Amz-Signature={_signature(credentials, moment, digest)}"


def _named(request: RequestHead) -> list[tuple[str, bytes]]:
    return [(name.decode().lower(), value) for name, value in request.headers]


@lru_cache(maxsize=64)  # the requests of a second have the same
def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(signature_claims.TIMESTAMP_FORMAT)


@lru_cache(maxsize=64)
def _credential(credentials: StoreCredentials, day: str) -> tuple[str, str]:
    """Return the credential of a day's signatures, as a header has it and as a query has it."""
    text = f"{credentials.access_key_id}/{signature_claims.credential_scope(day, credentials.region)}"
    return text, quote(text, safe="")


def _signature(credentials: StoreCredentials, moment: str, digest: str) -> str:
    key = signature_claims.signing_key(credentials.secret_access_key, moment[:8], credentials.region)
    scope = signature_claims.credential_scope(moment[:8], credentials.region)
    return signature_claims.signature(key, signature_claims.ALGORITHM, moment, scope, digest)


__all__ = [
    "ChunkSignatures",
    "PayloadMode",
    "ProvenClaim",
    "RequestHead",
    "SecretOf",
    "StoreCredentials",
    "VerifiedSignature",
    "presign",
    "sign",
    "verify",
]

MAX_SKEW = timedelta(minutes=15)


@dataclass(slots=True)
class ChunkSignatures:
    """The chain of signatures in an aws-chunked body. Each covers the one before it, the first that of the head."""

    signing_key: bytes = field(repr=False)
    timestamp: str
    scope: str
    previous: str

    def check_chunk(self, presented: str, sha256: str) -> None:
        """Check the signature of the next chunk, whose data hash to ``sha256`` (hex)."""
        self._check(presented, "AWS4-HMAC-SHA256-PAYLOAD", signature_claims.SHA256_OF_NOTHING, sha256)

    def check_trailer(self, presented: str, sha256: str) -> None:
        """Check the signature of the trailer, whose lines ``name:value\\n`` hash to ``sha256`` (hex)."""
        self._check(presented, "AWS4-HMAC-SHA256-TRAILER", sha256)

    def _check(self, presented: str, kind: str, *hashes: str) -> None:
        expected = signature_claims.signature(
            self.signing_key, kind, self.timestamp, self.scope, self.previous, *hashes
        )
        if not hmac.compare_digest(expected.encode(), presented.encode()):
            raise StoreError.known("SignatureDoesNotMatch", reason="The signature is that of a chunk of the body.")
        self.previous = expected


@dataclass(frozen=True, slots=True)
class ProvenClaim:
    """A claim that was proven with a secret. The same head is proven by it, as long as its owner has that secret."""

    claim: SignatureClaim
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class VerifiedSignature:
    """The signer of a request, and the promise of the signature about the body.

    ``sha256`` (hex) is set for ``EXACT`` only, ``chunks`` for the modes with signed chunks only. ``proven`` is None
    without a signature, and where chunks are signed.
    """

    principal: Principal
    mode: PayloadMode
    sha256: str | None = None
    chunks: ChunkSignatures | None = None
    proven: ProvenClaim | None = None


def verify(
    request: RequestHead, secret_of: SecretOf, now: datetime, proven: ProvenClaim | None = None
) -> VerifiedSignature:
    """Prove the sender of ``request``, signed in its headers or in its query (a presigned URL). ``now`` is aware.

    ``proven``: that of an earlier request with the same head. The owner of the key and the time are checked again.
    Raises ``StoreError`` with S3's code for everything else.
    """
    claim = signature_claims.read(request) if proven is None else proven.claim
    signer = claim.credential
    principal, secret = owner(signer.access_key_id, claim.session_token, secret_of, now)
    _in_time(claim, now)
    exact = claim.payload if claim.mode is PayloadMode.EXACT else None
    if proven is not None and proven.secret == secret:
        return VerifiedSignature(principal, claim.mode, exact, proven=proven)
    query = signature_claims.canonical_query(claim.query_string)
    digest, _ = signature_claims.canonical_request(
        request.method, request.raw_path, query, claim.headers, claim.payload
    )
    key = signature_claims.signing_key(secret, signer.day, signer.region)
    expected = signature_claims.signature(key, signature_claims.ALGORITHM, claim.timestamp, signer.scope, digest)
    if not hmac.compare_digest(expected.encode(), claim.signature.encode()):
        raise StoreError.known("SignatureDoesNotMatch")
    if claim.mode in (PayloadMode.SIGNED_CHUNKS, PayloadMode.SIGNED_CHUNKS_TRAILER):
        chunks = ChunkSignatures(key, claim.timestamp, signer.scope, expected)
        return VerifiedSignature(principal, claim.mode, chunks=chunks)
    return VerifiedSignature(principal, claim.mode, exact, proven=ProvenClaim(claim, secret))


@dataclass(frozen=True, slots=True)
class Signers:
    """The callers of the object plane. ``clock`` judges the age of signatures.

    ``anonymous``: the caller of requests without a signature; None if they are refused. ``by_certificate`` returns the
    caller that a client certificate proves; None if it proves none.
    """

    secret_of: SecretOf
    clock: Callable[[], datetime]
    anonymous: Principal | None = None
    by_certificate: Callable[[ClientCertificate], Principal | None] | None = None

    def verify(
        self, request: RequestHead, certificate: ClientCertificate | None = None, proven: ProvenClaim | None = None
    ) -> VerifiedSignature:
        """Return the proven signature of a request. Without one the caller is that of a certificate, or anonymous.

        ``proven``: that of an earlier request with the same head.
        A request with any credentials, however wrong, is that of their owner. Raises ``StoreError``, and
        ``Unauthenticated`` for a certificate that must not be used.
        """
        unsigned_is_wrong = self.anonymous is None and certificate is None
        if proven is not None or unsigned_is_wrong or signature_claims.is_signed(request):
            return verify(request, self.secret_of, self.clock(), proven)
        certified = self.by_certificate(certificate) if self.by_certificate and certificate else None
        caller = certified or self.anonymous
        if caller is None:
            advice = "The request is not signed, and the client certificate is not that of any caller."
            raise StoreError.known("AccessDenied", advice)
        mode, payload = signature_claims.unsigned_payload(request)
        return VerifiedSignature(caller, mode, payload if mode is PayloadMode.EXACT else None)


def _in_time(claim: SignatureClaim, now: datetime) -> None:
    if claim.lifetime is None:
        if abs(claim.time - now) > MAX_SKEW:
            facts: dict[str, Fact] = {
                "request_time": claim.timestamp,
                "server_time": f"{now:{signature_claims.TIMESTAMP_FORMAT}}",
                "max_allowed_skew_milliseconds": MAX_SKEW // timedelta(milliseconds=1),
            }
            raise StoreError.known("RequestTimeTooSkewed", facts=facts)
    elif now < claim.time - MAX_SKEW:
        raise StoreError("AccessDenied", 403, "Request is not valid yet.")
    elif now > claim.time + claim.lifetime:
        raise StoreError("AccessDenied", 403, "Request has expired")
