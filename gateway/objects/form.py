"""PostObject: the upload of a browser's form, which is a PutObject that its fields describe and its policy allows.

The stages, in order: read the fields, verify the policy, prepare the write, take the file in, respond.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode, urlsplit

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.types import Scope

from gateway import budget
from gateway.auth import post_policy
from gateway.auth.sigv4 import PayloadMode, RequestHead, Signers, VerifiedSignature
from gateway.errors import BodyTooLarge, StoreError, TokenRequired
from gateway.http import origins
from gateway.http.body import ArrivingBody, Body
from gateway.http.head import Head
from gateway.objects.exchange import CaptureBuffer, Exchange, ResponseWriter, WriteBody
from gateway.objects.fenced_write import FencedWrite
from gateway.objects.protocol.effects import Stored
from gateway.objects.put import Puts
from gateway.objects.s3 import addressing, xml
from gateway.objects.s3.body import Declared, FileInspection, declared, length_of
from gateway.objects.s3.conditions import read_condition
from gateway.objects.s3.operations import Operation, not_implemented
from gateway.objects.s3.request import S3Request, can_be_header, forwarded, read_fencing
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
            raise StoreError.known("MaxPostPreDataLengthExceededError", facts={"max_size_allowed": MAX_FIELD_BYTES})


def malformed(reason: str) -> StoreError:
    """Return S3's error for a form that cannot be read. ``reason`` is a clause."""
    return StoreError.known("MalformedPOSTRequest", reason=f"{reason[0].upper()}{reason[1:]}.")


def _not_one_file() -> StoreError:
    return StoreError.known("IncorrectNumberOfFilesInPostRequest")


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise StoreError("InvalidArgument", 400, f"{what} must be UTF-8.") from None


# Bytes for boundaries and headers, beside the fields themselves.
_MOST_AROUND_THE_FILE = 4 * MAX_FIELD_BYTES


class FormBody:
    """Reads one form: its fields into memory, then its file. ``max_size`` is that of the file in bytes.

    Raises ``BodyTooLarge``, or ``StoreError`` for a contradictory head, before any of the form is asked for.
    """

    def __init__(self, arrivals: ArrivingBody, headers: Iterable[tuple[bytes, bytes]], max_size: int) -> None:
        """``headers`` are the request's."""
        received = tuple(headers)
        self._arrivals, self._max_size = arrivals, max_size
        self._parser = FormParser(_one(received, b"content-type") or "")
        self._left = length_of("content-length", _one(received, b"content-length"))
        self._before_file = 0
        self._more = True
        self._held = b""
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

    def file(self, declared: Declared, shortest: int, longest: int | None, kept: CaptureBuffer) -> WriteBody:
        """Return the file, once the fields are there. Its end is that of a well-formed form."""
        most = len(self._held) + self._left  # most often all but a boundary
        inspection = FileInspection(declared, length=most, max_size=self._max_size, shortest=shortest, longest=longest)
        return WriteBody(self, inspection, kept)

    async def next(self) -> tuple[bytes, bool]:
        """Return the next bytes of the file, and whether there may be more. Raises ``StoreError``, ``ClientGone``."""
        piece, self._held = self._held, b""
        if not piece and self._more:
            piece = await self._next()
        if not self._more:
            self._parser.finish()
        return piece, self._more

    async def _next(self) -> bytes:
        data, self._more = await self._arrivals.next()
        self._left -= len(data)
        piece = self._parser.feed(data)
        if not self._parser.file_begun:
            self._before_file += len(data)
        return piece


def is_form_upload(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and is_form(value.decode("latin-1")) for name, value in headers)


def _one(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    values = [value.decode("latin-1").strip() for name, value in headers if name.lower() == wanted]
    if len(values) > 1:
        raise StoreError("InvalidRequest", 400, f"The header {wanted.decode()} stands twice.")
    return values[0] if values else None


_FILENAME = "${filename}"
_MAX_TAGS = 10

# Fields for the server that takes the form. They are no part of the object.
_OWN = frozenset(
    {
        "acl",
        "bucket",
        "key",
        "policy",
        "redirect",
        "success_action_redirect",
        "success_action_status",
        "tagging",
        "x-amz-algorithm",
        "x-amz-credential",
        "x-amz-signature",
    }
)
# These describe the body of a request. A form is not that body.
_OF_A_BODY = frozenset({"x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer"})
_CHECKS = frozenset({"content-md5", "x-amz-sdk-checksum-algorithm"})

_SIGNED_ONLY = ("x-amz-", "x-fencing-", "fencing-", "if-")


@dataclass(frozen=True, slots=True)
class FormRequest:
    """The request in a form. ``status`` is that of the answer, unless there is an address to ``redirect`` to."""

    request: S3Request
    declared: Declared
    status: int
    redirect: str | None


class FormUploads:
    """Form uploads. Their fields prove who sent them, so they skip the stages that read the head of a request.

    Nothing but a PostObject gets in this way: the operation is not read from the request. ``max_body``: the largest
    file, in bytes.
    """

    def __init__(
        self,
        puts: Puts,
        signers: Signers,
        of_key: Callable[[str, str], "FormUploads"],
        max_body: int,
        capture: Capture = NOTHING,
    ) -> None:
        """``of_key`` returns those of the database that fences a key of a bucket."""
        self._puts, self._signers, self._of_key = puts, signers, of_key
        self._max_body, self._capture = max_body, capture

    def bucket(self, head: RequestHead, host_bucket: str | None) -> str | None:
        """Return the bucket that a form is posted to; None for every other POST."""
        if head.query_string or not is_form_upload(head.headers):
            return None
        bucket, key = addressing.read(head.raw_path, host_bucket)
        return bucket if bucket and not key else None

    async def post(
        self, bucket: str, scope: Scope, head: Head, body: Body, response: ResponseWriter, *, hosted: bool
    ) -> None:
        """Serve a PostObject. Raises ``GatewayError``, ``ClientGone``."""
        _check_headers(head.headers)
        form_body = FormBody(body, head.headers, self._max_body)
        fields, filename = await form_body.fields()
        named = named_fields(fields, filename, bucket)
        signers = self._signers
        policy = post_policy.verify(named, signers.secret_of, signers.clock(), signers.anonymous)
        policy.principal.use.note()
        budget.serve(scope["state"], policy.principal.name)
        if policy.principal.is_anonymous:
            origins.check(head.method, head.headers)  # a page of any site can post a form
        form = read_form(named)
        media_type = dict(form.request.headers).get("content-type", "")
        kept = CaptureBuffer(self._capture, media_type)
        incoming = form_body.file(form.declared, policy.min_length, policy.max_length, kept)
        signature = VerifiedSignature(policy.principal, PayloadMode.UNSIGNED)
        exchange = Exchange(scope, head, body, response, form.request, signature, self._max_body, hosted)
        write, stored = await self._of_key(bucket, form.request.key).store(exchange, incoming)
        await _respond(exchange, form, write, stored)

    async def refuse(self, exchange: Exchange) -> None:
        raise StoreError.known(
            "PreconditionFailed",
            f"{exchange.request.operation} takes a form: Content-Type multipart/form-data, and no query.",
            facts={"condition": "Bucket POST must be of the enclosure-type multipart/form-data"},
        )

    async def store(self, exchange: Exchange, incoming: WriteBody) -> tuple[FencedWrite, Stored]:
        """Store the file of a form whose policy is verified, at a key that is fenced here. Raises ``GatewayError``."""
        write = await self._prepare(exchange, incoming)
        return write, await self._puts.store(write, incoming, exchange.request.headers)

    async def _prepare(self, exchange: Exchange, incoming: WriteBody) -> FencedWrite:
        try:
            return await self._puts.writes.prepare(exchange, capture_start=incoming.capture_start)
        except TokenRequired as error:
            advice = "Give the form a field x-amz-meta-fencing-token with a condition for it in its policy."
            raise TokenRequired(error.message, advice=advice, facts=error.facts) from error


async def _respond(exchange: Exchange, form: FormRequest, write: FencedWrite, stored: Stored) -> None:
    applied, resource, fence = stored.applied, write.target.resource, stored.fence
    etag = applied.etag or ""
    address = redirect_address(form, etag)
    if address is not None:
        await exchange.response.acknowledged(303, ((b"location", address.encode("ascii")),), resource, fence)
        return
    location = exchange.address
    headers = (*applied.headers, (b"location", location.encode("latin-1", "replace")))
    document = xml.posted(location, form.request.bucket, form.request.key, etag) if form.status == 201 else b""
    await exchange.response.stored(replace(applied, headers=headers), resource, fence, document, form.status)


def _check_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse headers with a meaning: a form signs its fields alone, so any caller could have set the headers."""
    names = {name.decode("latin-1").lower() for name, _ in headers}
    if "authorization" in names:
        raise StoreError(
            "InvalidArgument", 400, "Only one authorization is allowed: a form is signed in its fields, by its policy."
        )
    folded = {name.replace("_", "-") for name in names}
    if unsigned := sorted(name for name in folded if name.startswith(_SIGNED_ONLY) or name == "content-md5"):
        raise StoreError(
            "AccessDenied",
            403,
            "There were headers present in the request which were not signed",
            advice=f"Send {', '.join(unsigned)} as fields of the form, with conditions for them in its policy.",
        )


def named_fields(fields: Iterable[tuple[str, str]], filename: str, bucket: str) -> dict[str, str]:
    """Return the fields by lower-case name, with the name of the file filled in, and the bucket of the address.

    Raises ``StoreError`` 400 for a field that is there twice, or names another bucket.
    """
    found: dict[str, str] = {}
    for given, value in fields:
        name = given.lower()
        if name in found:
            raise StoreError("InvalidArgument", 400, f"The form has two fields {name[:64]!a}.")
        found[name] = value.replace(_FILENAME, filename)
    if found.setdefault("bucket", bucket) != bucket:
        raise StoreError("InvalidArgument", 400, "The field bucket is not the bucket of the address.")
    return found


def read_form(fields: Mapping[str, str]) -> FormRequest:
    """Return the request in a form whose policy is verified. ``fields`` are as ``named_fields`` returns them.

    Raises ``StoreError``, and the errors of ``gateway.fencing.headers.read``.
    """
    bucket, key = fields["bucket"], fields.get("key")
    if key is None:
        raise StoreError("InvalidArgument", 400, "Bucket POST must contain a field named 'key' before the file.")
    if not key or "\0" in key:
        raise StoreError.known("UserKeyMustBeSpecified", reason="It must name an object, without a NUL character.")
    addressing.check(bucket, key)
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    writer = read_fencing(Operation.POST_OBJECT, raw, session=fields.get("x-amz-security-token"))
    condition = read_condition(Operation.POST_OBJECT, fields)
    request = S3Request(
        Operation.POST_OBJECT, bucket, key, quote(key, safe="/"), (), _headers(fields), writer, condition
    )
    status = fields.get("success_action_status", "")
    return FormRequest(
        request,
        declared({name: value.strip() for name, value in fields.items() if _is_check(name)}),
        int(status) if status in ("200", "201") else 204,
        fields.get("success_action_redirect", fields.get("redirect")),
    )


def redirect_address(form: FormRequest, etag: str) -> str | None:
    """Return the address to redirect the browser to; None where the form names none, or no valid one.

    ``etag`` is without quotes. S3, too, then answers with a status instead of a redirect.
    """
    try:
        parts = urlsplit(form.redirect or "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
    except ValueError:
        return None
    parameters = {"bucket": form.request.bucket, "key": form.request.key, "etag": f'"{etag}"'}
    query = "&".join(part for part in (parts.query, urlencode(parameters, quote_via=quote)) if part)
    return quote(parts._replace(query=query).geturl(), safe="%/:=&?~#+!$,;'@()*[]")


def _headers(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the headers of the object: those of a PutObject, and those that a form calls by another name."""
    given = {name: value.strip() for name, value in fields.items() if name not in _OWN and not _is_ignored(name)}
    if described := sorted(_OF_A_BODY & given.keys()):
        raise not_implemented(f"{Operation.POST_OBJECT} with the field {described[0]}")
    for field, header, value in (
        ("acl", "x-amz-acl", fields.get("acl", "").strip()),
        ("tagging", "x-amz-tagging", _tags(fields.get("tagging", ""))),
    ):
        if field in fields and header in given:
            raise StoreError("InvalidArgument", 400, f"The form has both a field {field} and a field {header}.")
        if value:
            given[header] = value
    headers = forwarded(Operation.PUT_OBJECT, given)
    for name, value in headers:
        if not can_be_header(name, value):
            raise StoreError("InvalidArgument", 400, f"The field {name[:64]!a} cannot be a header of the object.")
    return headers


def _tags(document: str) -> str:
    if not document.strip():
        return ""
    tags = xml.read_tags(document.encode())
    if tags is None or not all(name for name, _ in tags):
        raise StoreError.known(
            "MalformedXML", reason="The field tagging must be a Tagging document, with a Key in each Tag."
        )
    if len(tags) > _MAX_TAGS:
        raise StoreError("BadRequest", 400, f"Object tags cannot be greater than {_MAX_TAGS}.")
    return urlencode(tags, quote_via=quote)


def _is_check(name: str) -> bool:
    return name in _CHECKS or name.startswith("x-amz-checksum-")


def _is_ignored(name: str) -> bool:
    return name.startswith("x-ignore-")
