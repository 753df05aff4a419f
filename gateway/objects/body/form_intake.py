"""Taking a form upload in from its client: first its fields, then its file, which is proven where the form ends."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

from gateway.errors import BodyTooLarge, GatewayError, StoreError
from gateway.fencing.record import Captured
from gateway.http.body import ArrivingBody, ClientGone
from gateway.objects.body.checksums import Declared, Proof, Verification
from gateway.objects.body.decoder import VerifiedBody, whole
from gateway.objects.body.form_parser import MAX_FIELD_BYTES, FormParser, is_form, malformed
from gateway.objects.body.intake import BEGINNING_PATIENCE, Beginning
from gateway.record.capture import NOTHING, Capture

# Of boundaries and the like, beside the fields themselves.
_MOST_AROUND_THE_FILE = 4 * MAX_FIELD_BYTES


class FormIntake:
    """One form. ``headers`` are the request's, ``max_size`` is that of the file in bytes.

    Ask for the fields first, then say what the file has to be, then take it in. Raises ``BodyTooLarge``, or
    ``StoreError`` for a head that cannot be right, before any of the form is asked for.
    """

    def __init__(
        self,
        arrivals: ArrivingBody,
        headers: Iterable[tuple[bytes, bytes]],
        max_size: int,
        capture: Capture = NOTHING,
    ) -> None:
        received = tuple(headers)
        self._kept = Beginning(capture, "")
        self._arrivals = arrivals
        self._parser = FormParser(_one(received, b"content-type") or "")
        self._left = _length(_one(received, b"content-length"))
        self._before_file = 0
        self._more = True
        self._held = b""
        self._shortest, self._longest, self._max_size = 0, max_size, max_size
        self._verification = Verification(Declared())
        self._proof: Proof | None = None
        if self._left > max_size + _MOST_AROUND_THE_FILE:
            raise BodyTooLarge(f"The form has {self._left} bytes; at most {max_size} are taken of a file.")

    async def fields(self) -> tuple[list[tuple[str, str]], str]:
        """All fields before the file, and the file's name. Raises ``StoreError``, ``ClientGone``."""
        while self._more and not self._parser.file_begun:
            self._held += await self._next()
            # Nobody has proven who they are yet.
            if self._before_file > _MOST_AROUND_THE_FILE:
                raise malformed(f"its file does not begin within {_MOST_AROUND_THE_FILE} bytes")
        if not self._parser.file_begun:
            self._parser.finish()
        return self._parser.fields, self._parser.filename

    def expect(self, declared: Declared, shortest: int = 0, longest: int | None = None, media_type: str = "") -> None:
        """What the file has to be: its checksums, its size in bytes, its type. Before it is taken in."""
        self._verification = Verification(declared)
        self._kept.media_type = media_type
        self._shortest = shortest
        if longest is not None:
            self._longest = min(longest, self._max_size)

    @property
    def most(self) -> int:
        """How many bytes the file can have, once its fields are there. Most often it has all but a boundary of them."""
        return len(self._held) + self._left

    @property
    def proof(self) -> Proof:
        """What was proven of a file that has been taken in."""
        assert self._proof is not None, "the file has not been taken in"
        return self._proof

    async def whole(self) -> VerifiedBody:
        """The whole file in memory. Raises what ``chunks`` raises."""
        async with aclosing(self.chunks()) as pieces:
            content = [piece async for piece in pieces]
        return whole(content, self.proof)

    def captured(self) -> Captured | None:
        """What is kept of a file that has been taken in."""
        return self._kept.captured(self.proof.size)

    async def beginning(self) -> Captured | None:
        """What is kept of a file that nobody wants any more: as much of that as comes in a moment."""
        with suppress(GatewayError, ClientGone, TimeoutError):
            async with asyncio.timeout(BEGINNING_PATIENCE), aclosing(self.chunks()) as pieces:
                while not self._kept.is_full and await anext(pieces, None) is not None:
                    pass
        return self._kept.captured(self._kept.seen + self._left)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The file as it comes. It ends with the whole form: well-formed, of the right size, its checksums true.

        Raises ``StoreError`` for what it is not, ``ClientGone``.
        """
        size, piece, self._held = 0, self._held, b""
        while True:
            size += len(piece)
            self._check_longest(size)
            self._verification.update(piece)
            if piece:
                self._kept.add(piece)
                yield piece
            if not self._more:
                break
            piece = await self._next()
        self._parser.finish()
        if size < self._shortest:
            raise StoreError(
                "EntityTooSmall",
                400,
                "Your proposed upload is smaller than the minimum allowed size",
                facts={"proposed_size": size, "min_size_allowed": self._shortest},
            )
        self._proof = self._verification.finish()

    async def _next(self) -> bytes:
        data, self._more = await self._arrivals.next()
        self._left -= len(data)
        piece = self._parser.feed(data)
        if not self._parser.file_begun:
            self._before_file += len(data)
        return piece

    def _check_longest(self, size: int) -> None:
        if size <= self._longest:
            return
        if self._longest == self._max_size:
            raise BodyTooLarge(f"The file has more than {self._max_size} bytes.")
        raise StoreError(
            "EntityTooLarge",
            400,
            "Your proposed upload exceeds the maximum allowed size",
            facts={"max_size_allowed": self._longest},
        )


def is_form_upload(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request with these headers brings a form."""
    return any(name.lower() == b"content-type" and is_form(value.decode("latin-1")) for name, value in headers)


def _one(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    values = [value.decode("latin-1").strip() for name, value in headers if name.lower() == wanted]
    if len(values) > 1:
        raise StoreError("InvalidRequest", 400, f"The header {wanted.decode()} stands twice.")
    return values[0] if values else None


def _length(value: str | None) -> int:
    if value is None:
        raise StoreError("MissingContentLength", 411, "You must provide the Content-Length HTTP header.")
    if not (value.isascii() and value.isdecimal() and len(value) <= 18):
        raise StoreError("InvalidArgument", 400, "The value of content-length is not a length.")
    return int(value)
