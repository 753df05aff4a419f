"""Takes in the body of a write: whole into memory, or piece by piece to be sent on, decoded and proven."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

from gateway.auth.sigv4 import VerifiedSignature
from gateway.errors import GatewayError
from gateway.fencing.record import Captured
from gateway.http.body import ArrivingBody, ClientGone
from gateway.objects.body.checksums import Proof
from gateway.objects.body.decoder import Inspection, VerifiedBody, whole
from gateway.record.capture import NOTHING, Capture

BEGINNING_PATIENCE = 1.0
"""Seconds for the beginning of a body that is kept of a write which is refused already."""


class Beginning:
    """The beginning of a body, as much as is to be kept of it, and no more."""

    def __init__(self, capture: Capture, media_type: str) -> None:
        self._capture, self.media_type = capture, media_type
        self._bytes = b""
        self.seen = 0
        """Bytes of the body that have gone by."""

    @property
    def is_full(self) -> bool:
        return len(self._bytes) >= self._capture.most

    def add(self, piece: bytes) -> None:
        self.seen += len(piece)
        if not self.is_full:
            self._bytes += piece[: self._capture.most - len(self._bytes)]

    def captured(self, size: int, content: bytes | None = None) -> Captured | None:
        """Of a body of so many bytes. ``content``: the whole of it, in place of what has been added."""
        kept = self._bytes if content is None else content
        return self._capture.of_object(kept, self.media_type, more=len(kept) < size)


def media_type_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What the client says that its body is."""
    return next((value.decode("latin-1") for name, value in headers if name == b"content-type"), "")


class Intake:
    """The body of one request.

    ``headers`` are the request's, ``max_size`` is in bytes, decoded. Raises ``BodyTooLarge``, or ``StoreError`` for a
    head that cannot be right, before any of the body is asked for.
    """

    def __init__(
        self,
        arrivals: ArrivingBody,
        headers: Iterable[tuple[bytes, bytes]],
        signature: VerifiedSignature,
        max_size: int,
        capture: Capture = NOTHING,
    ) -> None:
        """``capture``: what is to be kept of the body, should its write be refused."""
        headers = tuple(headers)
        self._kept = Beginning(capture, media_type_of(headers) if capture.most else "")
        self._arrivals = arrivals
        self._inspection = Inspection(headers, sha256=signature.sha256, signatures=signature.chunks, max_size=max_size)
        self._proof: Proof | None = None

    @property
    def length(self) -> int:
        """What the head says that the decoded body has, in bytes."""
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
        """What was proven of a body that has been taken in."""
        assert self._proof is not None, "the body has not been taken in"
        return self._proof

    async def whole(self) -> VerifiedBody:
        """Return the whole body, with all its digests. Raises ``StoreError``, ``BodyTooSlow`` or ``ClientGone``."""
        self._inspection.ask_for(md5=True, sha256=True)
        async with aclosing(self._decoded()) as pieces:
            content = [piece async for piece in pieces]
        return whole(content, self.proof)

    async def chunks(self, *, md5: bool = False, sha256: bool = False) -> AsyncGenerator[bytes, None]:
        """The decoded body as it comes, for sending it on; ask for digests that ``proof`` is to have.

        The last piece is held back until the body is proven, so that a body that is not what was declared never becomes
        a whole one anywhere. An empty body has nothing to hold back. Raises what ``whole`` raises.
        """
        self._inspection.ask_for(md5=md5, sha256=sha256)
        held = b""
        async with aclosing(self._decoded()) as pieces:
            async for piece in pieces:
                self._kept.add(piece)
                if held:
                    yield held
                held = piece
        if held:
            yield held

    def captured(self, content: bytes | None = None) -> Captured | None:
        """What is kept of a body that has been taken in. ``content``: the whole of it, where it is in memory."""
        return self._kept.captured(self.length, content)

    async def beginning(self) -> Captured | None:
        """What is kept of a body that nobody has asked for, and nobody will: as much of that as comes in a moment."""
        with suppress(GatewayError, ClientGone, TimeoutError):
            async with asyncio.timeout(BEGINNING_PATIENCE), aclosing(self._decoded()) as pieces:
                while not self._kept.is_full and (piece := await anext(pieces, None)) is not None:
                    self._kept.add(piece)
        return self._kept.captured(self.length)

    async def _decoded(self) -> AsyncGenerator[bytes, None]:
        """Each decoded piece; proven when it ends."""
        more = True
        while more:
            data, more = await self._arrivals.next()
            piece = self._inspection.feed(data)
            if piece:
                yield piece
        self._proof = self._inspection.finish()
