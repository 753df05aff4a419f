"""Taking in the body of a put: framing off, length and checksums proven before anything is written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.errors import BodyTooLarge, StoreError
from gateway.objects import checksums
from gateway.objects.checksums import Digests, Verification
from gateway.objects.chunked import Decoder, Signatures

_DIGITS = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class VerifiedBody:
    """A body that is what its sender said it would be. ``digests.headers`` may go to the store."""

    content: bytes
    digests: Digests


class Body:
    """One body on its way in, held in memory.

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
        declared = checksums.declared(named)
        framed = named.get("x-amz-content-sha256", "").startswith("STREAMING-")
        self._left = _length(named, framed=framed)
        if self._left > max_size:
            raise BodyTooLarge(f"The body has {self._left} bytes; at most {max_size} are taken.")
        self._decoder = Decoder(self._left, trailers=declared.trailers, signatures=signatures) if framed else None
        self._verification = Verification(declared, sha256)
        self._content: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take in what has arrived. Raises ``StoreError`` as soon as it cannot be right any more."""
        decoded = data if self._decoder is None else self._decoder.feed(data)
        self._left -= len(decoded)
        if self._left < 0:
            raise StoreError("IncompleteBody", 400, "The body is longer than its Content-Length says.")
        self._verification.update(decoded)
        self._content.append(decoded)

    def finish(self) -> VerifiedBody:
        """The whole body. Raises ``StoreError`` where it ended early or is not what was declared."""
        trailers = {} if self._decoder is None else self._decoder.finish()
        if self._left:
            raise StoreError("IncompleteBody", 400, "The body is shorter than its Content-Length says.")
        return VerifiedBody(b"".join(self._content), self._verification.finish(trailers))


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
