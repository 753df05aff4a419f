"""The operations the gateway performs on the objects of the store, each with an answer the protocol can decide on.

What can be conditional is, and is signed with the time of its intent. What cannot is signed in the query, so that the
store refuses it soon after.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, unquote, unquote_plus
from xml.sax.saxutils import escape

from gateway.errors import Unavailable
from gateway.objects.s3 import forwarded_headers, xml
from gateway.objects.s3.answers import (
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
    unquoted,
)
from gateway.objects.store.client import (
    BodyStream,
    Exchange,
    Reply,
    Response,
    TextHeaders,
    clock_of,
    path,
    query_of,
    refused,
)

# An abort may be answered before the upload is gone. Seconds between two looks; all of them together are some five.
_LOOKS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 1.6)
# Ceph 16 says that a completion has succeeded, and leaves the ETag empty. The object itself tells.
WITHOUT_ETAG = Unknown("success without an ETag")

_PAGE = 100
_MAX_PAGES = 100
_MAX_PAGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """A part as a completion names it. ``checksums`` are elements such as ``("ChecksumCRC32", "…")``."""

    number: int
    etag: str
    checksums: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PartSource:
    """What a part is copied from. ``key`` is not encoded; ``span`` is first and last byte, both included.

    With ``etag`` the copy is refused (412) where the source is another object by now.
    """

    bucket: str
    key: str
    etag: str | None = None
    version_id: str | None = None
    span: tuple[int, int] | None = None

    @property
    def headers(self) -> TextHeaders:
        # Encoded by us: a client's own spelling may mean another key to the store than it does to the gateway.
        named = quote(f"{self.bucket}/{self.key}", safe="/")
        version = "" if self.version_id is None else f"?versionId={quote(self.version_id, safe='')}"
        headers = [("x-amz-copy-source", named + version)]
        if self.etag is not None:
            headers.append(("x-amz-copy-source-if-match", f'"{self.etag}"'))
        if self.span is not None:
            headers.append(("x-amz-copy-source-range", f"bytes={self.span[0]}-{self.span[1]}"))
        return headers


class MultipartUploads(Exchange):
    """The operations on multipart uploads. ``raw_key`` is percent-encoded, as in a path."""

    async def create_multipart(
        self, bucket: str, raw_key: str, headers: TextHeaders = (), *, signed_at: datetime
    ) -> Started | Rejected | NotSent | Unknown:
        """Open a multipart upload. ``headers`` are those of the object it will be."""
        answer, reply = await self.exchange(
            "POST", path(bucket, raw_key), "uploads=", headers, b"", signed_at=signed_at
        )
        if not isinstance(answer, Applied) or reply is None:
            return Unknown("an upload was not opened") if isinstance(answer, Applied) else refused(answer)
        upload_id = xml.read_field(reply.body, "InitiateMultipartUploadResult", "UploadId")
        return Started(upload_id, answer.headers) if upload_id else Unknown("an upload was opened without an id")

    async def upload_part(
        self,
        bucket: str,
        raw_key: str,
        upload_id: str,
        number: int,
        body: bytes | BodyStream,
        headers: TextHeaders = (),
        *,
        signed_at: datetime,
    ) -> Uploaded | Rejected | NotSent | Unknown:
        """Store a part, numbered from 1. What a stream raises comes out of here; no part is stored then."""
        query = query_of({"partNumber": number, "uploadId": upload_id})
        answer, _ = await self.exchange("PUT", path(bucket, raw_key), query, headers, body, signed_at=signed_at)
        if isinstance(answer, Applied):
            return (
                Uploaded(answer.etag, answer.headers) if answer.etag else Unknown("a part was stored without an ETag")
            )
        return refused(answer)

    async def upload_part_copy(
        self,
        bucket: str,
        raw_key: str,
        upload_id: str,
        number: int,
        source: PartSource,
        headers: TextHeaders = (),
        *,
        signed_at: datetime,
    ) -> Uploaded | Rejected | NotSent | Unknown:
        """Store a part with bytes the store has already. ``document`` of the answer is its CopyPartResult."""
        query = query_of({"partNumber": number, "uploadId": upload_id})
        answer, reply = await self.exchange(
            "PUT", path(bucket, raw_key), query, [*headers, *source.headers], b"", signed_at=signed_at
        )
        if not isinstance(answer, Applied):
            return refused(answer)
        document = reply.body if reply else b""
        etag = unquoted(xml.read_field(document, "CopyPartResult", "ETag"))
        return Uploaded(etag, answer.headers, document) if etag else Unknown("a part was copied without an ETag")

    async def complete_multipart(
        self,
        bucket: str,
        raw_key: str,
        upload_id: str,
        parts: Sequence[Part | str],
        headers: TextHeaders = (),
        *,
        expected: str | None,
        conditional: bool = True,
        signed_at: datetime,
    ) -> WriteAnswer:
        """Make the parts the object if the key's ETag is ``expected``; None: if there is no object.

        Parts given by their ETags alone are numbered from 1. ``conditional`` False sends no condition at all: for
        stores that ignore it here, where a completion is stopped by aborting its upload.
        """
        named = [("content-type", "application/xml"), *headers]
        if conditional:
            named.append(self.condition(bucket, expected))
        query, document = query_of({"uploadId": upload_id}), _completion(parts)
        answer, reply = await self.exchange("POST", path(bucket, raw_key), query, named, document, signed_at=signed_at)
        if not isinstance(answer, Applied) or reply is None:
            return answer
        etag = unquoted(xml.read_field(reply.body, "CompleteMultipartUploadResult", "ETag"))
        details = xml.read_checksums(reply.body)
        return WITHOUT_ETAG if etag is None else Applied(etag, answer.headers, details=details)

    async def abort_multipart(self, bucket: str, raw_key: str, upload_id: str, *, signed_at: datetime) -> WriteAnswer:
        """Give the upload up. ``Applied`` says that the store took the request, not that the upload is gone."""
        query = query_of({"uploadId": upload_id})
        answer, _ = await self.exchange("DELETE", path(bucket, raw_key), query, (), b"", signed_at=signed_at)
        return answer

    async def abandon_upload(self, bucket: str, raw_key: str, upload_id: str, *, signed_at: datetime) -> bool:
        """Abort the upload, and wait until the store says that it has none by that id any more.

        False where it still shows it after some seconds, or does not say. What the abort itself is answered does not
        matter: it may have been aborted before, or be gone because it was completed.
        """
        await self.abort_multipart(bucket, raw_key, upload_id, signed_at=signed_at)
        for pause in _LOOKS:
            await asyncio.sleep(pause)
            try:
                if await self._is_gone(bucket, raw_key, upload_id):
                    return True
            except Unavailable:
                continue
        return False

    async def _is_gone(self, bucket: str, raw_key: str, upload_id: str) -> bool:
        """Whether the store's listing is without it, or, where it does not list uploads, it knows no parts of it."""
        listed = await self._lists(bucket, raw_key, upload_id)
        if listed is not None:
            return not listed
        query = query_of({"max-parts": 1, "uploadId": upload_id})
        async with await self.send("GET", path(bucket, raw_key), query) as response:
            error = xml.read_error(await response.read())
            return response.status == 404 and error is not None and error.code == "NoSuchUpload"

    async def _lists(self, bucket: str, raw_key: str, upload_id: str) -> bool | None:
        """Whether the upload stands in the store's listing. None where the listing cannot be had, or has no end."""
        wanted = {"uploads": "", "encoding-type": "url", "max-uploads": _PAGE, "prefix": unquote(raw_key)}
        marker: dict[str, str] = {}
        for _ in range(_MAX_PAGES):
            async with await self.send("GET", f"/{bucket}", query_of({**wanted, **marker})) as response:
                document = await response.read(_MAX_PAGE_BYTES)
            page = xml.read_uploads(document) if response.status == 200 else None
            if page is None:
                return None
            if upload_id in page.upload_ids:
                return True
            if not page.truncated:
                return False
            # The listing of a key begins with its own uploads, but nothing says so; only its end is an end.
            marker = {"key-marker": unquote_plus(page.next_key), "upload-id-marker": page.next_upload_id}
        return None


def etag_of_parts(etags: Iterable[str]) -> str | None:
    """The ETag an upload of these parts gets; None where the store's ETags are no hashes, and so never come back."""
    try:
        digests = [bytes.fromhex(etag) for etag in etags]
    except ValueError:
        return None
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def _completion(parts: Sequence[Part | str]) -> bytes:
    listed = []
    for number, given in enumerate(parts, 1):
        part = Part(number, given) if isinstance(given, str) else given
        checksums = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in part.checksums)
        listed.append(
            f"<Part><PartNumber>{part.number}</PartNumber><ETag>&quot;{escape(part.etag)}&quot;</ETag>{checksums}</Part>"
        )
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{namespace}">{"".join(listed)}</CompleteMultipartUpload>'.encode()


__all__ = ["Reply", "Response", "TextHeaders", "Upstream"]


class Upstream(MultipartUploads):
    """One object store, by its operations. ``raw_key`` is a key as it stands in a path, percent-encoded.

    ``quoted_conditions`` False sends ``If-Match`` without quotation marks, as some releases of Ceph want it.
    """

    async def head(self, bucket: str, raw_key: str) -> HeadAnswer:
        """The object as it is now."""
        try:
            async with await self.send("HEAD", path(bucket, raw_key)) as response:
                return _head_answer(response)
        except Unavailable as error:
            return Unknown(error.message)

    async def get(self, bucket: str, raw_key: str, query: str = "", headers: TextHeaders = ()) -> Response:
        """The object, its body not read yet. Raises ``Unavailable``."""
        return await self.send("GET", path(bucket, raw_key), query, headers)

    async def put(
        self,
        bucket: str,
        raw_key: str,
        body: bytes,
        headers: TextHeaders = (),
        *,
        expected: str | None,
        signed_at: datetime,
        expires: timedelta | None = None,
    ) -> WriteAnswer:
        """Put the object if its ETag is ``expected``; None: if there is no object. ``expires``: as of ``Hop.send``."""
        conditional = [*headers, self.condition(bucket, expected)]
        answer, _ = await self.exchange(
            "PUT", path(bucket, raw_key), "", conditional, body, signed_at=signed_at, expires=expires
        )
        return _with_etag(answer)

    async def delete(
        self,
        bucket: str,
        raw_key: str,
        headers: TextHeaders = (),
        *,
        expected: str,
        signed_at: datetime,
        expires: timedelta | None = None,
    ) -> WriteAnswer:
        """Delete the object if its ETag is ``expected``. ``expires``: as of ``Hop.send``."""
        conditional = [*headers, self.condition(bucket, expected)]
        answer, _ = await self.exchange(
            "DELETE", path(bucket, raw_key), "", conditional, b"", signed_at=signed_at, expires=expires
        )
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

    async def amend(
        self,
        method: str,
        bucket: str,
        raw_key: str,
        query: str,
        headers: TextHeaders,
        body: bytes,
        *,
        signed_at: datetime,
        expires: timedelta,
    ) -> tuple[WriteAnswer, Reply | None]:
        """Change what goes with an object, its tags say. There is no condition for that, but an end to its validity.

        The second value is the store's own answer; None where there was none.
        """
        return await self.exchange(
            method, path(bucket, raw_key), query, headers, body, signed_at=signed_at, expires=expires
        )

    async def delete_unconditionally(
        self,
        bucket: str,
        raw_key: str,
        version_id: str | None = None,
        headers: TextHeaders = (),
        *,
        signed_at: datetime,
        expires: timedelta,
    ) -> tuple[WriteAnswer, Reply | None]:
        """Delete the object, or one version of it, whatever it is, as long as the signature is good."""
        query = query_of({"versionId": version_id})
        return await self.amend("DELETE", bucket, raw_key, query, headers, b"", signed_at=signed_at, expires=expires)

    async def tagging(self, bucket: str, raw_key: str, version_id: str | None = None) -> list[tuple[str, str]] | None:
        """The object's tags; None where the store does not know tags, or has no such object. Raises ``Unavailable``."""
        query = query_of({"tagging": "", "versionId": version_id})
        async with await self.send("GET", path(bucket, raw_key), query) as response:
            document = await response.read()
        if response.status >= 500 and response.status != 501:
            raise Unavailable(f"The store answered with {response.status} when asked for tags.")
        return xml.read_tags(document) if response.status == 200 else None


def _head_answer(response: Response) -> HeadAnswer:
    date = clock_of(response.header("date"))
    if response.status == 404:
        return Missing(date)
    if response.status == 400:
        refusal = Rejected(400, "InvalidArgument", "The object store does not take this key.")
        return Unknown("the store does not take this key", refusal)
    etag, size = unquoted(response.header("etag")), response.header("content-length")
    if response.status != 200 or etag is None:
        return Unknown(f"HEAD was answered with {response.status}")
    return Found(
        etag,
        write_id=response.header(forwarded_headers.WRITE_ID),
        tombstone=response.header(forwarded_headers.TOMBSTONE) == "true",
        resource=response.header(forwarded_headers.RESOURCE),
        token=response.header(forwarded_headers.TOKEN),
        size=int(size) if size and size.isdecimal() else 0,
        date=date,
        last_modified=clock_of(response.header("last-modified")),
        invocation=response.header(forwarded_headers.INVOCATION),
    )


def _with_etag(answer: WriteAnswer) -> WriteAnswer:
    """Without an ETag nobody knows what the next write's condition would be."""
    return Unknown("success without an ETag") if isinstance(answer, Applied) and answer.etag is None else answer


def _no_effect(step: Rejected | NotSent | Unknown) -> Rejected | NotSent:
    """An upload that is not completed has no effect, whatever became of its steps."""
    return NotSent(step.reason) if isinstance(step, Unknown) else step
