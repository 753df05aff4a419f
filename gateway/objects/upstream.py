"""The operations the gateway performs on the object store, each with an answer the protocol can decide on.

Every write is conditional and signed with the time of its intent: there is no way to ask for anything else.
"""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote
from xml.sax.saxutils import escape

from gateway.config import ObjectStore
from gateway.errors import OutcomeUnknown, Unavailable
from gateway.objects import forwarding, xml
from gateway.objects.answers import (
    Applied,
    Found,
    HeadAnswer,
    Missing,
    NotApplied,
    NotSent,
    Rejected,
    Started,
    Unknown,
    Uploaded,
    WriteAnswer,
    of_write,
    unquoted,
)
from gateway.objects.hop import Hop, Response, TextHeaders, clock_of

__all__ = ["Response", "TextHeaders", "Upstream"]


class Upstream(Hop):
    """One object store, by its operations. ``raw_key`` is a key as it stands in a path, percent-encoded.

    ``quoted_conditions`` False sends ``If-Match`` without quotation marks, as some releases of Ceph want it.
    """

    def __init__(self, config: ObjectStore, *, quoted_conditions: bool = True) -> None:
        super().__init__(config)
        self._quoted = quoted_conditions
        self._unquoted: set[str] = set()

    def drop_quotes(self, bucket: str) -> None:
        """From now on send ``If-Match`` to this bucket without quotation marks: its probe found them refused."""
        self._unquoted.add(bucket)

    async def head(self, bucket: str, raw_key: str) -> HeadAnswer:
        """The object as it is now."""
        try:
            async with await self.send("HEAD", _path(bucket, raw_key)) as response:
                return _head_answer(response)
        except Unavailable as error:
            return Unknown(error.message)

    async def get(self, bucket: str, raw_key: str, query: str = "", headers: TextHeaders = ()) -> Response:
        """The object, its body not read yet. Raises ``Unavailable``."""
        return await self.send("GET", _path(bucket, raw_key), query, headers)

    async def put(
        self,
        bucket: str,
        raw_key: str,
        body: bytes,
        headers: TextHeaders = (),
        *,
        expected: str | None,
        signed_at: datetime,
    ) -> WriteAnswer:
        """Put the object if its ETag is ``expected``; None: if there is no object."""
        conditional = [*headers, self._condition(bucket, expected)]
        answer = await self._write("PUT", _path(bucket, raw_key), "", conditional, body, signed_at)
        return _with_etag(answer)

    async def delete(
        self, bucket: str, raw_key: str, headers: TextHeaders = (), *, expected: str, signed_at: datetime
    ) -> WriteAnswer:
        """Delete the object if its ETag is ``expected``."""
        conditional = [*headers, self._condition(bucket, expected)]
        answer = await self._write("DELETE", _path(bucket, raw_key), "", conditional, b"", signed_at)
        return Applied(None, answer.headers) if isinstance(answer, Applied) else answer

    async def put_in_parts(
        self,
        bucket: str,
        raw_key: str,
        body: bytes,
        headers: TextHeaders = (),
        *,
        expected: str | None,
        signed_at: datetime,
    ) -> WriteAnswer:
        """``put`` in another form: a multipart upload of one part, which gives the same bytes another ETag."""
        # What is true of the whole body is said of it on completion, if at all.
        of_object = [header for header in headers if not header[0].lower().startswith("x-amz-checksum-")]
        started = await self.create_multipart(bucket, raw_key, of_object, signed_at=signed_at)
        if not isinstance(started, Started):
            return _no_effect(started)
        upload_id = started.upload_id
        part = await self.upload_part(bucket, raw_key, upload_id, 1, body, signed_at=signed_at)
        answer = (
            await self.complete_multipart(
                bucket, raw_key, upload_id, [part.etag], expected=expected, signed_at=signed_at
            )
            if isinstance(part, Uploaded)
            else _no_effect(part)
        )
        if isinstance(answer, NotApplied | Rejected | NotSent):
            await self.abort_multipart(bucket, raw_key, upload_id, signed_at=signed_at)
        return answer

    async def create_multipart(
        self, bucket: str, raw_key: str, headers: TextHeaders = (), *, signed_at: datetime
    ) -> Started | Rejected | NotSent | Unknown:
        """Open a multipart upload. ``headers`` are those of the object it will be."""
        path = _path(bucket, raw_key)
        answer, body = await self._exchange("POST", path, "uploads=", headers, b"", signed_at)
        upload_id = xml.read_field(body, "InitiateMultipartUploadResult", "UploadId")
        if isinstance(answer, Applied):
            return Started(upload_id) if upload_id else Unknown("an upload was opened without an id")
        return _refused(answer)

    async def upload_part(
        self, bucket: str, raw_key: str, upload_id: str, number: int, body: bytes, *, signed_at: datetime
    ) -> Uploaded | Rejected | NotSent | Unknown:
        """Store a part, numbered from 1."""
        query = f"partNumber={number}&{_upload(upload_id)}"
        answer = await self._write("PUT", _path(bucket, raw_key), query, (), body, signed_at)
        if isinstance(answer, Applied):
            return Uploaded(answer.etag) if answer.etag else Unknown("a part was stored without an ETag")
        return _refused(answer)

    async def complete_multipart(
        self,
        bucket: str,
        raw_key: str,
        upload_id: str,
        parts: Sequence[str],
        *,
        expected: str | None,
        signed_at: datetime,
    ) -> WriteAnswer:
        """Make the parts, given by their ETags, the object, on the same condition as ``put``."""
        path, document = _path(bucket, raw_key), _completion(parts)
        headers = [("content-type", "application/xml"), self._condition(bucket, expected)]
        answer, body = await self._exchange("POST", path, _upload(upload_id), headers, document, signed_at)
        if isinstance(answer, Applied):
            etag = xml.read_field(body, "CompleteMultipartUploadResult", "ETag")
            return _with_etag(Applied(unquoted(etag), answer.headers))
        return answer

    async def abort_multipart(self, bucket: str, raw_key: str, upload_id: str, *, signed_at: datetime) -> WriteAnswer:
        """Give the upload up. ``Applied`` says that the store took the request, not that all parts are gone."""
        return await self._write("DELETE", _path(bucket, raw_key), _upload(upload_id), (), b"", signed_at)

    async def _write(
        self, method: str, raw_path: str, query: str, headers: TextHeaders, body: bytes, signed_at: datetime
    ) -> WriteAnswer:
        answer, _ = await self._exchange(method, raw_path, query, headers, body, signed_at)
        return answer

    async def _exchange(
        self, method: str, raw_path: str, query: str, headers: TextHeaders, body: bytes, signed_at: datetime
    ) -> tuple[WriteAnswer, bytes]:
        """What the store says to a write, and the document it says it with."""
        try:
            response = await self.send(method, raw_path, query, headers, body, signed_at=signed_at)
        except Unavailable as error:
            return NotSent(error.message), b""
        except OutcomeUnknown as error:
            return Unknown(error.message), b""
        async with response:
            try:
                document = await response.read()
            except Unavailable as error:
                return Unknown(error.message), b""
            return of_write(response.status, response.header("etag"), document, response.headers), document

    def _condition(self, bucket: str, expected: str | None) -> tuple[str, str]:
        if expected is None:
            return "if-none-match", "*"
        quoted = self._quoted and bucket not in self._unquoted
        return "if-match", f'"{expected}"' if quoted else expected


def _head_answer(response: Response) -> HeadAnswer:
    date = clock_of(response.header("date"))
    if response.status == 404:
        return Missing(date)
    etag, size = unquoted(response.header("etag")), response.header("content-length")
    if response.status != 200 or etag is None:
        return Unknown(f"HEAD was answered with {response.status}")
    return Found(
        etag,
        write_id=response.header(forwarding.WRITE_ID),
        tombstone=response.header(forwarding.TOMBSTONE) == "true",
        resource=response.header(forwarding.RESOURCE),
        token=response.header(forwarding.TOKEN),
        size=int(size) if size and size.isdecimal() else 0,
        date=date,
    )


def _with_etag(answer: WriteAnswer) -> WriteAnswer:
    """Without an ETag nobody knows what the next write's condition would be."""
    return Unknown("success without an ETag") if isinstance(answer, Applied) and answer.etag is None else answer


def _refused(answer: NotApplied | Rejected | NotSent | Unknown) -> Rejected | NotSent | Unknown:
    """The steps of an upload have no condition to fail: what looks like it is a refusal."""
    if isinstance(answer, NotApplied):
        return Rejected(answer.status, answer.code, f"The store answered with {answer.status}.")
    return answer


def _no_effect(step: Rejected | NotSent | Unknown) -> Rejected | NotSent:
    """An upload that is not completed has no effect, whatever became of its steps."""
    return NotSent(step.reason) if isinstance(step, Unknown) else step


def _path(bucket: str, raw_key: str) -> str:
    return f"/{bucket}/{raw_key}"


def _upload(upload_id: str) -> str:
    return f"uploadId={quote(upload_id, safe='')}"


def _completion(parts: Sequence[str]) -> bytes:
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag)}&quot;</ETag></Part>"
        for number, etag in enumerate(parts, 1)
    )
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{namespace}">{listed}</CompleteMultipartUpload>'.encode()
