"""A form upload as it arrives: its fields into memory, its file piece by piece. No I/O.

The only user of python-multipart, which finds the boundaries; what a part is and how large it may be is decided here.
"""

import re

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from gateway.errors import StoreError

MEDIA_TYPE = "multipart/form-data"
FILE = "file"

MAX_FIELDS = 100
MAX_FIELD_BYTES = 20 * 1024
"""Of all fields before the file together, their own headers included. It is S3's limit."""
_MAX_HEADER_BYTES = 4096
_MAX_HEADERS = 8

_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_AS_IT_IS = frozenset({b"7bit", b"8bit", b"binary"})


def is_form(content_type: str) -> bool:
    """Whether a body of this type is a form that can hold a file."""
    return content_type.partition(";")[0].strip().lower() == MEDIA_TYPE


class FormParser:
    """One form. ``content_type`` is the request's. Raises ``StoreError`` 400 for a form that cannot be right.

    ``fields`` are those before the file, names as they came. What comes after the file has no effect, as with S3.
    ``filename`` has no folders, and is empty where there is none.
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
        # What is wrong with a form, its sender is told. It would fill the log for anybody who likes.
        self._parser.logger.disabled = True

    def feed(self, data: bytes) -> bytes:
        """Take in what has arrived, and give what of it belongs to the file."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise malformed("its parts are not what its boundary says") from error
        piece = b"".join(self._of_file)
        self._of_file.clear()
        return piece

    def finish(self) -> None:
        """Called at the end of the request. Raises ``StoreError`` where that is not the end of a form with a file."""
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
        """What comes after the file is not kept, so it need not be counted."""
        self._size += 0 if self.file_begun else size
        if self._size > MAX_FIELD_BYTES:
            raise StoreError(
                "MaxPostPreDataLengthExceeded",
                400,
                f"Your POST request fields preceding the upload file were too large: {MAX_FIELD_BYTES} bytes at most.",
            )


def malformed(reason: str) -> StoreError:
    """S3's error for a form that cannot be read. ``reason`` is a clause."""
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
