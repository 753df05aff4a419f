"""The operations the gateway performs on the objects of the store, each with an answer the protocol can decide on.

What can be conditional is, and is signed with the time of its intent. What cannot is signed in the query, so that the
store refuses it soon after.
"""

from datetime import datetime, timedelta

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
from gateway.objects.store.client import Response, TextHeaders, clock_of
from gateway.objects.store.exchange import Reply, path, query_of
from gateway.objects.store.multipart import MultipartUploads

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
