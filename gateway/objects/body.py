"""The body of a write: read whole into memory, or piece by piece to be sent on; decoded and proven.

``http/body.py`` reads the bytes from the client. The proof is complete before anything takes effect: the framing is
removed, and the length and the checksums are verified. ``Decoder`` removes the framing aws-chunked: chunk by chunk,
with signatures and a trailer.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from gateway.auth.sigv4 import VerifiedSignature
from gateway.errors import BodyTooLarge, GatewayError, StoreError
from gateway.fencing.record import CapturedPayload
from gateway.http.body import ArrivingBody, ClientGone
from gateway.objects.s3 import checksums
from gateway.objects.s3.checksums import Proof, Verification
from gateway.record.payload_capture import NOTHING, Capture

MAX_LINE = 4096
MAX_TRAILERS = 16

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?")
_TRAILER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*([\x21-\x7e]*)[ \t]*")
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class Signatures(Protocol):
    """Checks the chain of chunk signatures. Each method raises where the presented signature is wrong."""

    def check_chunk(self, presented: str, sha256: str) -> None: ...

    def check_trailer(self, presented: str, sha256: str) -> None: ...


class _State(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    DONE = auto()


class Decoder:
    """Decodes one body.

    ``decoded_length`` is the value of x-amz-decoded-content-length. ``trailers`` are the names that x-amz-trailer
    declares, in lower case; each must come, and no other. ``signatures`` is given where the chunks are signed.
    """

    def __init__(
        self, decoded_length: int, *, trailers: AbstractSet[str] = frozenset(), signatures: Signatures | None = None
    ) -> None:
        self._left = decoded_length
        self._declared = trailers
        self._signatures = signatures
        self._state = _State.SIZE
        self._line_begun = b""
        self._chunk_left = 0
        self._chunk_signature = ""
        self._chunk_hash = hashlib.sha256()
        self._trailers: dict[str, str] = {}

    def feed(self, data: bytes) -> bytes:
        """Return the decoded bytes that ``data`` completes. Raises ``StoreError`` as soon as the framing is wrong.

        Only an incomplete line is kept. So the time taken grows with ``data`` alone, however small its chunks are.
        """
        if self._line_begun:
            data, self._line_begun = self._line_begun + data, b""
        pieces: list[bytes] = []
        position, end = 0, len(data)
        while position < end:
            if self._state is _State.DATA:
                piece = data[position : position + self._chunk_left]
                position += len(piece)
                self._data(piece)
                pieces.append(piece)
            elif self._state is _State.DONE:
                raise _incomplete("The body goes on after its last chunk.")
            else:
                line_end = data.find(b"\r\n", position, position + MAX_LINE + 2)
                if line_end < 0:
                    self._begin_line(data[position:])
                    break
                self._line(data[position:line_end])
                position = line_end + 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def finish(self) -> dict[str, str]:
        """Return the trailers by lower-case name, at the end of the body. Raises ``StoreError`` if it ended early."""
        if self._state is not _State.DONE:
            raise _incomplete("The body ended before its last chunk was complete.")
        return self._trailers

    def _begin_line(self, begun: bytes) -> None:
        if len(begun) > MAX_LINE:
            raise _incomplete("A line of the body's framing is too long.")
        self._line_begun = begun

    def _line(self, line: bytes) -> None:
        if self._state is _State.SIZE:
            self._size(line)
        elif self._state is _State.DATA_END:
            self._data_end(line)
        else:
            self._trailer(line)

    def _size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None or (match[2] is None) != (self._signatures is None):
            raise StoreError("InvalidChunkSizeError", 400, "A chunk of the body does not start as it must.")
        self._chunk_left = int(match[1], 16)
        if self._signatures is not None:
            self._chunk_signature = match[2].decode()
            self._chunk_hash = hashlib.sha256()
        if self._chunk_left > self._left:
            raise _incomplete("The body is longer than x-amz-decoded-content-length says.")
        self._left -= self._chunk_left
        self._state = _State.DATA if self._chunk_left else _State.TRAILER
        if not self._chunk_left:
            self._check_chunk()
            if self._left:
                raise _incomplete("The body is shorter than x-amz-decoded-content-length says.")

    def _data(self, piece: bytes) -> None:
        self._chunk_left -= len(piece)
        if self._signatures is not None:
            self._chunk_hash.update(piece)
        if not self._chunk_left:
            self._check_chunk()
            self._state = _State.DATA_END

    def _check_chunk(self) -> None:
        if self._signatures is not None:
            self._signatures.check_chunk(self._chunk_signature, self._chunk_hash.hexdigest())

    def _data_end(self, line: bytes) -> None:
        if line:
            raise StoreError("InvalidChunkSizeError", 400, "A chunk of the body is longer than it says.")
        self._state = _State.SIZE

    def _trailer(self, line: bytes) -> None:
        if not line:
            self._end()
            return
        match = _TRAILER_LINE.fullmatch(line)
        name = match[1].decode().lower() if match else ""
        if match is None or name in self._trailers or len(self._trailers) >= MAX_TRAILERS:
            raise _malformed_trailer("A line of the trailer cannot be read.")
        if _TRAILER_SIGNATURE in self._trailers:
            raise _malformed_trailer("The trailer goes on after its signature.")
        self._trailers[name] = match[2].decode()

    def _end(self) -> None:
        signature = self._trailers.pop(_TRAILER_SIGNATURE, None)
        if self._trailers.keys() != self._declared:
            raise _malformed_trailer("The trailer does not have the fields that x-amz-trailer declares.")
        if self._signatures is None:
            if signature is not None:
                raise _malformed_trailer("The trailer is signed, but the request says that it is not.")
        elif self._trailers or signature is not None:
            lines = "".join(f"{name}:{value}\n" for name, value in self._trailers.items())
            self._signatures.check_trailer(signature or "", hashlib.sha256(lines.encode()).hexdigest())
        self._state = _State.DONE


def _incomplete(message: str) -> StoreError:
    return StoreError("IncompleteBody", 400, message)


def _malformed_trailer(message: str) -> StoreError:
    return StoreError("MalformedTrailerError", 400, message)


_DIGITS = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class VerifiedBody:
    """A body that is what its sender declared: its MD5 and SHA-256 in hex, and checksum headers that are true of it.

    The headers may go to the store.
    """

    content: bytes
    md5: str
    sha256: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def content_md5(self) -> tuple[str, str]:
        """The header that vouches for the body: S3 wants one with some documents, whatever else does."""
        return "content-md5", base64.b64encode(bytes.fromhex(self.md5)).decode()


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
    assert proof.md5 is not None
    assert proof.sha256 is not None
    return VerifiedBody(b"".join(content), proof.md5, proof.sha256, proof.headers)


def _length(headers: Mapping[str, str], *, framed: bool) -> int:
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
        return self._inspection.length

    @property
    def most(self) -> int:
        """The most bytes that the body can have."""
        return self.length

    @property
    def checksum_headers(self) -> tuple[tuple[str, str], ...]:
        """The checksums that the head declares. They may be sent on ahead of the proof: the store checks them too."""
        return self._inspection.declared.headers

    @property
    def trailing(self) -> bool:
        return bool(self._inspection.declared.trailers)

    @property
    def proof(self) -> Proof:
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
