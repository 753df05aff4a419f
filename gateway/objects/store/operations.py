"""The gateway's operations on the objects of the store. Each returns an answer that the protocol can decide on.

A request that can be conditional is conditional. Each is signed with the time of its intent, so that the store refuses
it if it comes late. Nothing of a multipart upload takes effect before its completion.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias
from urllib.parse import unquote, unquote_plus

from gateway.config.sections import Limits, ObjectStore
from gateway.errors import ForOperator, Unavailable
from gateway.journal.evidence import Metadata, Witness
from gateway.objects.s3 import xml
from gateway.objects.s3.addressing import PartSource
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
    store_refusal,
    unquoted,
)
from gateway.objects.s3.request import Mark, own_metadata
from gateway.objects.s3.xml import Part, etag_of_parts
from gateway.objects.store.client import (
    Place,
    RequestBody,
    StoreClient,
    StoreResponse,
    TextHeaders,
    clock_of,
    path,
    query_of,
)
from gateway.observe.events import Observe, ignore

Failure: TypeAlias = Rejected | NotSent | Unknown
"""The answer to a step that has no condition to fail, where it did not succeed."""

# A store may answer an abort before the upload is gone. These are the seconds before each look, five in all.
_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 1.6)
# Ceph 16 reports a completion as successful and leaves the ETag empty. The object itself tells.
WITHOUT_ETAG = Unknown("success without an ETag")

_PAGE = 100
_MAX_PAGES = 100
_MAX_PAGE_BYTES = 1024 * 1024


class Upstream(StoreClient):
    """One object store, by its operations."""

    def __init__(self, config: ObjectStore, observe: Observe = ignore, timeout: float = Limits.store_timeout) -> None:
        super().__init__(config, observe, timeout)
        self._unquoted: set[str] = set()
        self._witness = Witness(key.get_secret_value() for key in config.secret_access_key)

    def drop_quotes(self, bucket: str) -> None:
        """Send ``If-Match`` to this bucket without quotation marks from now on, as some releases of Ceph need it."""
        self._unquoted.add(bucket)

    def own_metadata(
        self, place: Place, resource: str, token: str, write_id: str, *, tombstone: bool = False
    ) -> TextHeaders:
        """Return the metadata that the gateway gives each of its objects, signed: whose write it is, by which token."""
        own = own_metadata(resource, token, write_id, tombstone=tombstone)
        signature = self._witness.sign(*place, resource, token, write_id)
        return own if signature is None else (*own, (Mark.SIGNATURE, signature))

    async def look(self) -> datetime | None:
        """Return the store's clock, if it tells it.

        Raises ``Unavailable`` where it cannot be reached, and where it refuses the gateway's key. A key that may list
        no buckets is in order.
        """
        async with await self.send("GET", "/") as response:
            document = await response.read()
        if response.status >= 500:
            raise Unavailable(f"The store answers with {response.status}.", operator=ForOperator(at=self.at))
        if (error := xml.read_error(document)) is not None:
            refusal = store_refusal(Rejected(response.status, error.code, error.message), self.at)
            if isinstance(refusal, Unavailable):
                raise refusal
        return clock_of(response.header("date"))

    async def ask_time(self) -> HeadAnswer:
        """Ask the store for its clock: ``Missing`` with the time, or ``Unknown``."""
        try:
            async with await self.send("HEAD", "/") as response:
                return Missing(clock_of(response.header("date")))
        except Unavailable as error:
            return Unknown(error.message)

    async def head(self, place: Place) -> HeadAnswer:
        try:
            async with await self.send("HEAD", path(place)) as response:
                return self._with_evidence(place, response, _head_answer(response))
        except Unavailable as error:
            return Unknown(error.message)

    def _with_evidence(self, place: Place, response: StoreResponse, answer: HeadAnswer) -> HeadAnswer:
        signature = response.header(Mark.SIGNATURE)
        if not isinstance(answer, Found) or signature is None:
            return answer
        found = Metadata(*place, answer.resource, answer.token, answer.write_id, signature)
        return replace(answer, proven=self._witness.find(found))

    async def look_at_bucket(self, bucket: str, headers: TextHeaders = ()) -> int:
        """Return the status of a HeadBucket: 200, 404 for none, or a refusal. ``headers`` may name the expected owner.

        Raises ``Unavailable``.
        """
        async with await self.send("HEAD", f"/{bucket}", headers=headers) as response:
            if response.status >= 500:
                raise Unavailable(f"The store answered with {response.status} when asked for the bucket.")
            return response.status

    async def tagging(self, place: Place, version_id: str | None = None) -> list[tuple[str, str]] | None:
        """Return the object's tags; None where the store does not know tags, or has no such object.

        Raises ``Unavailable``.
        """
        query = query_of({"tagging": "", "versionId": version_id})
        async with await self.send("GET", path(place), query) as response:
            document = await response.read()
        if response.status >= 500 and response.status != 501:
            raise Unavailable(f"The store answered with {response.status} when asked for tags.")
        return xml.read_tags(document) if response.status == 200 else None

    async def put(
        self, place: Place, body: bytes, headers: TextHeaders = (), *, expected: str | None, signed_at: datetime
    ) -> WriteAnswer:
        """Put the object if its ETag is ``expected``; None: if there is no object."""
        conditional = [*headers, self._condition(place, expected)]
        answer, _ = await self.exchange("PUT", path(place), "", conditional, body, signed_at=signed_at)
        # Without an ETag the condition of the next write is unknown.
        return WITHOUT_ETAG if isinstance(answer, Applied) and answer.etag is None else answer

    async def put_in_parts(
        self, place: Place, body: bytes, headers: TextHeaders = (), *, expected: str | None, signed_at: datetime
    ) -> WriteAnswer:
        """Put the object as a multipart upload of one part, which gives the same bytes another ETag than ``put``."""

        async def whole() -> AsyncGenerator[RequestBody, None]:
            yield body

        async def sign() -> datetime:
            return signed_at

        # The checksum of the whole body is not one of an upload.
        checks = ("x-amz-checksum-", "content-md5")
        headers = [header for header in headers if not header[0].lower().startswith(checks)]
        return await self.put_pieces(place, whole(), headers, expected=expected, sign=sign)

    async def put_pieces(
        self,
        place: Place,
        pieces: AsyncGenerator[RequestBody, None],
        headers: TextHeaders,
        *,
        expected: str | None,
        sign: Callable[[], Awaitable[datetime]],
        excluded: Collection[str] = (),
    ) -> WriteAnswer:
        """Put the object as a multipart upload of these pieces, unless its ETag would be one of ``excluded``.

        Nothing takes effect before all of them are stored, which may take long. So ``sign`` returns the time of the
        completion's signature once they are.
        """
        started = await self.create_multipart(place, headers)
        if not isinstance(started, Started):
            return _no_effect(started)
        answer: WriteAnswer = NotSent("the object could not be read to its end")
        with suppress(Unavailable):
            parts = await self.upload_parts(place, started.upload_id, pieces)
            if not isinstance(parts, tuple):
                answer = _no_effect(parts)
            elif etag_of_parts(parts) in excluded:
                answer = NotSent("parts of this size give a forbidden ETag")
            else:
                answer = await self.complete_multipart(
                    place, started.upload_id, parts, expected=expected, signed_at=await sign()
                )
        if isinstance(answer, NotApplied | Rejected | NotSent):
            await self.abort_multipart(place, started.upload_id)
        return answer

    async def upload_parts(
        self, place: Place, upload_id: str, pieces: AsyncGenerator[RequestBody, None]
    ) -> tuple[Part, ...] | Failure:
        """Store pieces as the parts of an upload, one after the other. An error of ``pieces`` is raised here."""
        parts: list[Part] = []
        async with aclosing(pieces):
            async for piece in pieces:
                stored = await self.upload_part(place, upload_id, len(parts) + 1, piece)
                if not isinstance(stored, Uploaded):
                    return stored
                parts.append(Part(len(parts) + 1, stored.etag))
        return tuple(parts)

    async def delete(
        self, place: Place, headers: TextHeaders = (), *, expected: str, signed_at: datetime
    ) -> WriteAnswer:
        conditional = [*headers, self._condition(place, expected)]
        answer, _ = await self.exchange("DELETE", path(place), "", conditional, b"", signed_at=signed_at)
        return Applied(None, answer.headers) if isinstance(answer, Applied) else answer

    async def create_multipart(self, place: Place, headers: TextHeaders = ()) -> Started | Failure:
        """Open a multipart upload. ``headers`` are those of the object it will be."""
        answer, reply = await self.exchange("POST", path(place), "uploads=", headers, b"", signed_at=None)
        if not isinstance(answer, Applied) or reply is None:
            return Unknown("an upload was not opened") if isinstance(answer, Applied) else _failed(answer)
        upload_id = xml.read_field(reply.body, "InitiateMultipartUploadResult", "UploadId")
        return Started(upload_id, answer.headers) if upload_id else Unknown("an upload was opened without an id")

    async def upload_part(
        self, place: Place, upload_id: str, number: int, body: RequestBody, headers: TextHeaders = ()
    ) -> Uploaded | Failure:
        """Store a part, numbered from 1. An error of a stream is raised here; no part is stored then."""
        query = query_of({"partNumber": number, "uploadId": upload_id})
        answer, _ = await self.exchange("PUT", path(place), query, headers, body, signed_at=None)
        if not isinstance(answer, Applied):
            return _failed(answer)
        return Uploaded(answer.etag, answer.headers) if answer.etag else Unknown("a part was stored without an ETag")

    async def upload_part_copy(
        self, place: Place, upload_id: str, number: int, source: PartSource, headers: TextHeaders = ()
    ) -> Uploaded | Failure:
        """Store a part with bytes that the store has already. ``document`` of the answer is its CopyPartResult."""
        query = query_of({"partNumber": number, "uploadId": upload_id})
        answer, reply = await self.exchange("PUT", path(place), query, [*headers, *source.headers], b"", signed_at=None)
        if not isinstance(answer, Applied):
            return _failed(answer)
        document = reply.body if reply else b""
        etag = unquoted(xml.read_field(document, "CopyPartResult", "ETag"))
        return Uploaded(etag, answer.headers, document) if etag else Unknown("a part was copied without an ETag")

    async def complete_multipart(
        self,
        place: Place,
        upload_id: str,
        parts: Sequence[Part],
        headers: TextHeaders = (),
        *,
        expected: str | None,
        conditional: bool = True,
        signed_at: datetime,
    ) -> WriteAnswer:
        """Make the parts the object if the key's ETag is ``expected``; None: if there is no object.

        ``conditional`` False sends no condition at all, for stores that ignore it here. There, an abort of the upload
        stops its completion.
        """
        named = [("content-type", "application/xml"), *headers]
        if conditional:
            named.append(self._condition(place, expected))
        query, document = query_of({"uploadId": upload_id}), xml.complete(parts)
        answer, reply = await self.exchange("POST", path(place), query, named, document, signed_at=signed_at)
        if not isinstance(answer, Applied) or reply is None:
            return answer
        etag = unquoted(xml.read_field(reply.body, "CompleteMultipartUploadResult", "ETag"))
        details = xml.read_checksums(reply.body)
        return WITHOUT_ETAG if etag is None else Applied(etag, answer.headers, details=details)

    async def abort_multipart(self, place: Place, upload_id: str) -> WriteAnswer:
        """Abort the upload. ``Applied`` says that the store took the request, not that the upload is gone."""
        query = query_of({"uploadId": upload_id})
        answer, _ = await self.exchange("DELETE", path(place), query, (), b"", signed_at=None)
        return answer

    async def abandon_upload(self, place: Place, upload_id: str) -> bool:
        """Abort the upload, and wait until the store says that it has none by that id any more.

        Return False where it still shows it after some seconds, or does not say. The answer to the abort itself does
        not count: the upload may have been aborted before, or be gone because it was completed.
        """
        await self.abort_multipart(place, upload_id)
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            try:
                if await self._is_gone(place, upload_id):
                    return True
            except Unavailable:
                continue
        return False

    async def _is_gone(self, place: Place, upload_id: str) -> bool:
        """Return whether the store does not list the upload. If it lists no uploads, ask for the parts of this one."""
        listed = await self._lists(place, upload_id)
        if listed is not None:
            return not listed
        query = query_of({"max-parts": 1, "uploadId": upload_id})
        async with await self.send("GET", path(place), query) as response:
            error = xml.read_error(await response.read())
            return response.status == 404 and error is not None and error.code == "NoSuchUpload"

    async def _lists(self, place: Place, upload_id: str) -> bool | None:
        """Return whether the store lists the upload. None where it gives no listing, or one without an end."""
        bucket, raw_key = place
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
            # The listing of a key begins with its own uploads, but nothing says so. Only its end is an end.
            marker = {"key-marker": unquote_plus(page.next_key), "upload-id-marker": page.next_upload_id}
        return None

    def _condition(self, place: Place, expected: str | None) -> tuple[str, str]:
        """Return the header by which a write needs the ETag ``expected`` at its key; None: no object."""
        if expected is None:
            return "if-none-match", "*"
        return "if-match", expected if place[0] in self._unquoted else f'"{expected}"'


def _head_answer(response: StoreResponse) -> HeadAnswer:
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
        write_id=response.header(Mark.WRITE_ID),
        tombstone=response.header(Mark.TOMBSTONE) == "true",
        resource=response.header(Mark.RESOURCE),
        token=response.header(Mark.TOKEN),
        size=int(size) if size and size.isdecimal() else 0,
        date=date,
        last_modified=clock_of(response.header("last-modified")),
        invocation=response.header(Mark.INVOCATION),
    )


def _failed(answer: NotApplied | Failure) -> Failure:
    """Return the failure of a step without a condition: there, an answer like a broken condition is a refusal."""
    if isinstance(answer, NotApplied):
        return Rejected(answer.status, answer.code, f"The store answered with {answer.status}.")
    return answer


def _no_effect(step: Failure) -> Rejected | NotSent:
    """Return the outcome of an upload that is not completed: it has no effect, whatever its steps have done."""
    return NotSent(step.reason) if isinstance(step, Unknown) else step
