"""The body of a write: read whole into memory, or piece by piece to be sent on; decoded and proven.

``http/body.py`` reads the bytes from the client. The proof is complete before anything takes effect: the framing is
removed, and the length and the checksums are verified.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass

from gateway.auth.sigv4 import VerifiedSignature
from gateway.errors import BodyTooLarge, GatewayError, StoreError
from gateway.fencing.record import CapturedPayload
from gateway.http.body import ArrivingBody, ClientGone
from gateway.objects.s3 import checksums
from gateway.objects.s3.checksums import Digests, Proof, Verification
from gateway.objects.s3.chunked import Decoder, Signatures
from gateway.record.payload_capture import NOTHING, Capture

_DIGITS = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class VerifiedBody:
    """A body that is what its sender declared. ``digests.headers`` may go to the store."""

    content: bytes
    digests: Digests


class Inspection:
    """Decodes one body as it passes, and proves it at the end. No I/O.

    ``headers`` are the request's. ``sha256`` (hex) is the hash that its signature covers, ``signatures`` the check of
    its chunks where they are signed; both come from the verified signature. ``max_size`` is in bytes, decoded. Raises
    ``BodyTooLarge``, or ``StoreError`` for a contradictory head, before any of the body is there.
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
        """The length of the decoded body that the head declares, in bytes."""
        if self.length > max_size:
            raise BodyTooLarge(f"The body has {self.length} bytes; at most {max_size} are taken.")
        self._left = self.length
        self._signed_sha256 = sha256
        self._decoder = Decoder(self.length, trailers=self.declared.trailers, signatures=signatures) if framed else None
        self._verification = Verification(self.declared, sha256, md5=False, sha256=False)

    def request_digests(self, *, md5: bool, sha256: bool) -> None:
        """Request digests that the proof is to have beside those that are compared. Call this before the first byte."""
        self._verification = Verification(self.declared, self._signed_sha256, md5=md5, sha256=sha256)

    def feed(self, data: bytes) -> bytes:
        """Take the bytes that have arrived, and return what they decode to. Raises ``StoreError`` for a wrong body."""
        decoded = data if self._decoder is None else self._decoder.feed(data)
        self._left -= len(decoded)
        if self._left < 0:
            raise StoreError("IncompleteBody", 400, "The body is longer than its Content-Length says.")
        self._verification.update(decoded)
        return decoded

    def finish(self) -> Proof:
        """Return the proof, at the end. Raises ``StoreError`` where the body ended early or is not what was
        declared.
        """
        trailers = {} if self._decoder is None else self._decoder.finish()
        if self._left:
            raise StoreError("IncompleteBody", 400, "The body is shorter than its Content-Length says.")
        return self._verification.finish(trailers)


def whole(content: Iterable[bytes], proof: Proof) -> VerifiedBody:
    """Return a body in memory with its proof, which has all digests."""
    assert proof.md5 is not None
    assert proof.sha256 is not None
    return VerifiedBody(b"".join(content), Digests(proof.size, proof.md5, proof.sha256, proof.headers))


def _length(headers: Mapping[str, str], *, framed: bool) -> int:
    """Return the decoded length that the head declares."""
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


CAPTURE_TIMEOUT = 1.0
"""Seconds to wait for the start of a body, for the record of a write that is refused already."""


class CaptureBuffer:
    """The start of a body, as much as the record is to keep of it and no more."""

    def __init__(self, capture: Capture, media_type: str) -> None:
        self._capture, self.media_type = capture, media_type
        self._bytes = b""
        self.seen = 0
        """Bytes of the body so far."""

    @property
    def is_full(self) -> bool:
        return len(self._bytes) >= self._capture.most

    def add(self, piece: bytes) -> None:
        self.seen += len(piece)
        if not self.is_full:
            self._bytes += piece[: self._capture.most - len(self._bytes)]

    def captured(self, size: int, content: bytes | None = None) -> CapturedPayload | None:
        """Return what the record keeps of a body of ``size`` bytes. ``content``: the whole body, where it is in
        memory.
        """
        if not self._capture.most:
            return None
        kept = self._bytes if content is None else content
        return self._capture.of_object(kept, self.media_type, more=len(kept) < size)


def media_type_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the media type that the client gives its body."""
    return next((value.decode("latin-1") for name, value in headers if name == b"content-type"), "")


class WriteBody:
    """The body of one request.

    ``headers`` are the request's, ``max_size`` is in bytes, decoded. Raises ``BodyTooLarge``, or ``StoreError`` for a
    contradictory head, before any of the body is asked for.
    """

    def __init__(
        self,
        arrivals: ArrivingBody,
        headers: Iterable[tuple[bytes, bytes]],
        signature: VerifiedSignature,
        max_size: int,
        capture: Capture = NOTHING,
    ) -> None:
        """``capture``: how much of the body the record keeps, should its write be refused."""
        headers = tuple(headers)
        self._kept = CaptureBuffer(capture, media_type_of(headers) if capture.most else "")
        self._arrivals = arrivals
        self._inspection = Inspection(headers, sha256=signature.sha256, signatures=signature.chunks, max_size=max_size)
        self._proof: Proof | None = None

    @property
    def length(self) -> int:
        """The length of the decoded body that the head declares, in bytes."""
        return self._inspection.length

    @property
    def checksum_headers(self) -> tuple[tuple[str, str], ...]:
        """The checksums that the head declares. They may be sent on ahead of the proof: the store checks them too."""
        return self._inspection.declared.headers

    @property
    def trailing(self) -> bool:
        """Whether the client's checksum comes only at the end."""
        return bool(self._inspection.declared.trailers)

    @property
    def proof(self) -> Proof:
        """The proof of a body that has been read."""
        assert self._proof is not None, "the body has not been taken in"
        return self._proof

    async def whole(self) -> VerifiedBody:
        """Return the whole body, with all its digests. Raises ``StoreError``, ``BodyTooSlow`` or ``ClientGone``."""
        self._inspection.request_digests(md5=True, sha256=True)
        async with aclosing(self._decoded()) as pieces:
            content = [piece async for piece in pieces]
        return whole(content, self.proof)

    async def chunks(self, *, md5: bool = False, sha256: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the decoded body as it arrives, for sending it on. ``md5`` and ``sha256`` request digests in ``proof``.

        The last piece is held back until the body is proven. So a body that is not what was declared never becomes
        whole anywhere. An empty body has nothing to hold back. Raises what ``whole`` raises.
        """
        self._inspection.request_digests(md5=md5, sha256=sha256)
        held = b""
        async with aclosing(self._decoded()) as pieces:
            async for piece in pieces:
                self._kept.add(piece)
                if held:
                    yield held
                held = piece
        if held:
            yield held

    def captured(self, content: bytes | None = None) -> CapturedPayload | None:
        """Return what the record keeps of a body that has been read. ``content``: the whole body, where it is in
        memory.
        """
        return self._kept.captured(self.length, content)

    async def capture_start(self) -> CapturedPayload | None:
        """Return what the record keeps of a body that the gateway does not want: as much as arrives within a second."""
        with suppress(GatewayError, ClientGone, TimeoutError):
            async with asyncio.timeout(CAPTURE_TIMEOUT), aclosing(self._decoded()) as pieces:
                while not self._kept.is_full and (piece := await anext(pieces, None)) is not None:
                    self._kept.add(piece)
        return self._kept.captured(self.length)

    async def _decoded(self) -> AsyncGenerator[bytes, None]:
        """Yield each decoded piece. The body is proven when this ends."""
        more = True
        while more:
            data, more = await self._arrivals.next()
            piece = self._inspection.feed(data)
            if piece:
                yield piece
        self._proof = self._inspection.finish()
