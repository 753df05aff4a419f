"""The body of a write: framing off, length and checksums proven before it takes effect. No I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.errors import BodyTooLarge, StoreError
from gateway.objects import checksums
from gateway.objects.checksums import Digests, Proof, Verification
from gateway.objects.chunked import Decoder, Signatures

_DIGITS = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class VerifiedBody:
    """A body that is what its sender said it would be. ``digests.headers`` may go to the store."""

    content: bytes
    digests: Digests


class Inspection:
    """One body on its way through: what goes in as it came comes out decoded, and is proven at the end.

    ``headers`` are the request's. ``sha256`` (hex) is the hash its signature covers, ``signatures`` the check of its
    chunks where they are signed; both come from the verified signature. ``max_size`` is in bytes, decoded. Raises
    ``BodyTooLarge``, or ``StoreError`` for a head that cannot be right, before any of the body is there.
    """

    def __init__(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        sha256: str | None,
        signatures: Signatures | None,
        max_size: int,
    ) -> None:
        named = {name.decode("latin-1").lower(): value.decode("latin-1").strip() for name, value in headers}
        framed = named.get("x-amz-content-sha256", "").startswith("STREAMING-")
        self.declared = checksums.declared(named)
        self.length = _length(named, framed=framed)
        """What the head says that the decoded body has, in bytes."""
        if self.length > max_size:
            raise BodyTooLarge(f"The body has {self.length} bytes; at most {max_size} are taken.")
        self._left = self.length
        self._signed_sha256 = sha256
        self._decoder = Decoder(self.length, trailers=self.declared.trailers, signatures=signatures) if framed else None
        self._verification = Verification(self.declared, sha256, md5=False, sha256=False)

    def ask_for(self, *, md5: bool, sha256: bool) -> None:
        """Which digests the proof is to have beside those that are compared. Before the first byte."""
        self._verification = Verification(self.declared, self._signed_sha256, md5=md5, sha256=sha256)

    def feed(self, data: bytes) -> bytes:
        """Take in what has arrived, and give what it decodes to. Raises ``StoreError`` once it cannot be right."""
        decoded = data if self._decoder is None else self._decoder.feed(data)
        self._left -= len(decoded)
        if self._left < 0:
            raise StoreError("IncompleteBody", 400, "The body is longer than its Content-Length says.")
        self._verification.update(decoded)
        return decoded

    def finish(self) -> Proof:
        """Called at the end. Raises ``StoreError`` where the body ended early or is not what was declared."""
        trailers = {} if self._decoder is None else self._decoder.finish()
        if self._left:
            raise StoreError("IncompleteBody", 400, "The body is shorter than its Content-Length says.")
        return self._verification.finish(trailers)


def whole(content: Iterable[bytes], proof: Proof) -> VerifiedBody:
    """A body in memory with its proof, which has all digests."""
    assert proof.md5 is not None
    assert proof.sha256 is not None
    return VerifiedBody(b"".join(content), Digests(proof.size, proof.md5, proof.sha256, proof.headers))


def _length(headers: Mapping[str, str], *, framed: bool) -> int:
    """The decoded length that the head declares."""
    if not framed:
        if "x-amz-trailer" in headers:
            raise StoreError("InvalidRequest", 400, "Only a body in chunks has a trailer.")
        if "aws-chunked" in headers.get("content-encoding", "").lower():
            raise StoreError(
                "InvalidRequest", 400, "A body that is aws-chunked needs a STREAMING- x-amz-content-sha256."
            )
    name = "x-amz-decoded-content-length" if framed else "content-length"
    value = headers.get(name)
    if value is None:
        raise StoreError("MissingContentLength", 411, f"You must provide the {name} HTTP header.")
    if not value or len(value) > 18 or not set(value) <= _DIGITS:
        raise StoreError("InvalidArgument", 400, f"The value of {name} is not a length.")
    return int(value)
