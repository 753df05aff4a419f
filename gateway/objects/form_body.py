"""A form upload as it arrives: its fields into memory, its file piece by piece.

The only user of python-multipart, which finds the boundaries. ``FormParser`` decides, without I/O, what a part is and
how large it may be. ``FormBody`` reads the form and proves its file.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from gateway.errors import BodyTooLarge, GatewayError, StoreError
from gateway.fencing.record import CapturedPayload
from gateway.http.body import ArrivingBody, ClientGone
from gateway.objects.body import CAPTURE_TIMEOUT, CaptureBuffer, VerifiedBody, whole
from gateway.objects.s3.checksums import Declared, Proof, Verification
from gateway.record.payload_capture import NOTHING, Capture

MEDIA_TYPE = "multipart/form-data"
FILE = "file"

MAX_FIELDS = 100
MAX_FIELD_BYTES = 20 * 1024
"""S3's limit for all fields before the file together, with their own headers."""
_MAX_HEADER_BYTES = 4096
_MAX_HEADERS = 8

_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_AS_IT_IS = frozenset({b"7bit", b"8bit", b"binary"})


def is_form(content_type: str) -> bool:
    """Return whether a body of this type is a form that can hold a file."""
    return content_type.partition(";")[0].strip().lower() == MEDIA_TYPE


class FormParser:
    """Parses one form. ``content_type`` is the request's. Raises ``StoreError`` 400 for a form that cannot be right.

    ``fields`` are the fields before the file, with names as they came. As with S3, fields after the file have no
    effect. ``filename`` has no folders, and is empty where there is none.
    """

    def __init__(self, content_type: str) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not _BOUNDARY.fullmatch(boundary):
            raise malformed("the Content-Type of the request needs a boundary of 1 to 70 characters")
        self.fields: list[tuple[str, str]] = []
        self.filename = ""
        self.file_begun = False
        self.file_ended = False
        self.ended = False
        self._headers: dict[bytes, bytes] = {}
        self._header_name = b""
        self._header_value = b""
        self._field: str | None = None
        self._value = b""
        self._in_file = False
        self._size = 0
        self._of_file: list[bytes] = []
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._take_header_name,
                "on_header_value": self._take_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._take_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
            max_header_count=_MAX_HEADERS,
            max_header_size=_MAX_HEADER_BYTES,
        )
        # The response says what is wrong with a form. Any caller could fill the log with it.
        self._parser.logger.disabled = True

    def feed(self, data: bytes) -> bytes:
        """Take the bytes that have arrived, and return those that belong to the file."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise malformed("its parts are not what its boundary says") from error
        piece = b"".join(self._of_file)
        self._of_file.clear()
        return piece

    def finish(self) -> None:
        """Check at the end of the request that the form is complete and has a file. Raises ``StoreError``."""
        if not self.ended:
            raise malformed("it ends before its closing boundary")
        if not self.file_ended:
            raise _not_one_file()

    def _begin_part(self) -> None:
        self._headers = {}

    def _take_header_name(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header_name += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        name = self._header_name.lower()
        if name in self._headers:
            raise malformed("a part has one header twice")
        self._headers[name] = self._header_value
        self._header_name = self._header_value = b""

    def _end_headers(self) -> None:
        if self._headers.get(b"content-transfer-encoding", b"binary").strip().lower() not in _AS_IT_IS:
            raise malformed("a part has a Content-Transfer-Encoding")
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or not options.get(b"name"):
            raise malformed("a part has no name")
        name = _text(options[b"name"], "The name of a field")
        if name.lower() == FILE:
            if self.file_begun:
                raise _not_one_file()
            self.file_begun = self._in_file = True
            self.filename = re.split(r"[/\\]", _text(options.get(b"filename", b""), "The name of the file"))[-1]
        elif not self.file_begun:
            if len(self.fields) == MAX_FIELDS:
                raise malformed(f"it has more than {MAX_FIELDS} fields")
            self._field = name

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._of_file.append(data[start:end])
        elif self._field is not None:
            self._count(end - start)
            self._value += data[start:end]

    def _end_part(self) -> None:
        if self._in_file:
            self._in_file, self.file_ended = False, True
        elif self._field is not None:
            self.fields.append((self._field, _text(self._value, f"The field {self._field[:64]!a}")))
            self._field, self._value = None, b""

    def _end(self) -> None:
        self.ended = True

    def _count(self, size: int) -> None:
        """Count the bytes before the file. Later fields are not kept, so they do not count."""
        self._size += 0 if self.file_begun else size
        if self._size > MAX_FIELD_BYTES:
            raise StoreError(
                "MaxPostPreDataLengthExceeded",
                400,
                f"Your POST request fields preceding the upload file were too large: {MAX_FIELD_BYTES} bytes at most.",
            )


def malformed(reason: str) -> StoreError:
    """Return S3's error for a form that cannot be read. ``reason`` is a clause."""
    return StoreError(
        "MalformedPOSTRequest", 400, f"The body of your POST request is not well-formed {MEDIA_TYPE}: {reason}."
    )


def _not_one_file() -> StoreError:
    return StoreError("IncorrectNumberOfFilesInPostRequest", 400, "POST requires exactly one file upload per request.")


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise StoreError("InvalidArgument", 400, f"{what} must be UTF-8.") from None


# Bytes for boundaries and headers, beside the fields themselves.
_MOST_AROUND_THE_FILE = 4 * MAX_FIELD_BYTES


class FormBody:
    """Reads one form. ``headers`` are the request's, ``max_size`` is that of the file in bytes.

    Ask for the fields first, then call ``expect``, then read the file. Raises ``BodyTooLarge``, or ``StoreError`` for a
    contradictory head, before any of the form is asked for.
    """

    def __init__(
        self,
        arrivals: ArrivingBody,
        headers: Iterable[tuple[bytes, bytes]],
        max_size: int,
        capture: Capture = NOTHING,
    ) -> None:
        received = tuple(headers)
        self._kept = CaptureBuffer(capture, "")
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
        """Return all fields before the file, and the file's name. Raises ``StoreError``, ``ClientGone``."""
        while self._more and not self._parser.file_begun:
            self._held += await self._next()
            # The sender is not proven yet.
            if self._before_file > _MOST_AROUND_THE_FILE:
                raise malformed(f"its file does not begin within {_MOST_AROUND_THE_FILE} bytes")
        if not self._parser.file_begun:
            self._parser.finish()
        return self._parser.fields, self._parser.filename

    def expect(self, declared: Declared, shortest: int = 0, longest: int | None = None, media_type: str = "") -> None:
        """Set what the file has to be: its checksums, its size in bytes, its type. Call this before reading it."""
        self._verification = Verification(declared)
        self._kept.media_type = media_type
        self._shortest = shortest
        if longest is not None:
            self._longest = min(longest, self._max_size)

    @property
    def most(self) -> int:
        """The most bytes that the file can have, once its fields are there. Most often it has all but a boundary of
        them.
        """
        return len(self._held) + self._left

    @property
    def proof(self) -> Proof:
        assert self._proof is not None, "the file has not been taken in"
        return self._proof

    async def whole(self) -> VerifiedBody:
        """Return the whole file in memory. Raises what ``chunks`` raises."""
        async with aclosing(self.chunks()) as pieces:
            content = [piece async for piece in pieces]
        return whole(content, self.proof)

    def captured(self, content: bytes | None = None) -> CapturedPayload | None:
        """Return what the record keeps of a file that has been read. ``content``: the whole file, if in memory."""
        return self._kept.captured(self.proof.size, content)

    async def capture_start(self) -> CapturedPayload | None:
        """Return what the record keeps of a file whose write is refused: as much of it as arrives within a second."""
        with suppress(GatewayError, ClientGone, TimeoutError):
            async with asyncio.timeout(CAPTURE_TIMEOUT), aclosing(self.chunks()) as pieces:
                while not self._kept.is_full and await anext(pieces, None) is not None:
                    pass
        return self._kept.captured(self._kept.seen + self._left)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the file as it arrives. It ends with the whole form: well-formed, of the right size, its checksums
        true.

        Raises ``StoreError`` for a form that is not, ``ClientGone``.
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
