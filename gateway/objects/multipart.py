"""Multipart uploads by clients. Parts are staged; the completion is the fenced write."""

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

from gateway.db import uploads
from gateway.db.uploads import RecordedUpload, UploadKey
from gateway.errors import StoreError
from gateway.fencing.decision import Fence
from gateway.http.body import offload, twice
from gateway.objects.copy import Sources
from gateway.objects.exchange import Exchange, WriteBody
from gateway.objects.fenced_write import CaptureStart, FencedWrite, after_the_effect
from gateway.objects.protocol import mutation
from gateway.objects.protocol.effects import Stored
from gateway.objects.protocol.runner import OperationPayload
from gateway.objects.put import Puts
from gateway.objects.s3 import xml
from gateway.objects.s3.addressing import PartSource
from gateway.objects.s3.answers import (
    Applied,
    Found,
    NotApplied,
    NotSent,
    Rejected,
    Started,
    Unknown,
    Uploaded,
    step_failure,
)
from gateway.objects.s3.xml import etag_of_parts
from gateway.objects.store.client import Place, TextHeaders
from gateway.objects.store.connection import BodyStream
from gateway.objects.store.operations import Failure


class Uploads:
    def __init__(self, puts: Puts, sources: Sources) -> None:
        """``puts.threshold``: the largest part, in bytes, that may be read into memory."""
        self._database, self._upstream, self._writes = puts.database, puts.upstream, puts.writes
        self._memory, self._threshold = puts.memory, puts.threshold
        self._sources = sources

    async def create(self, exchange: Exchange) -> None:
        """Open an upload. The token presented with it is valid for its parts and its completion."""
        write = await self._writes.prepare(exchange)
        await self._writes.refuse_if_stale(write)
        await self._writes.profile_for(write)
        headers = [*exchange.request.headers, *write.marks(self._upstream)]
        started = await self._upstream.create_multipart(write.place, headers)
        if not isinstance(started, Started):
            raise step_failure(started)
        await uploads.record_opened(self._database, write.upload(started.upload_id, staged=False))
        document = xml.initiated(exchange.request.bucket, exchange.request.key, started.upload_id)
        await exchange.response.stored(Applied(None, started.headers), write.target.resource, None, document=document)

    async def part(self, exchange: Exchange) -> None:
        upload_id, number = _addressed(exchange)
        write = await self._pending_write(exchange, upload_id, exchange.capture_start)
        incoming = exchange.incoming()
        async with self._memory.held(self._read_first(incoming)):
            uploaded = await self._forward((write.place, upload_id, number), incoming, exchange.request.headers)
        if not isinstance(uploaded, Uploaded):
            raise step_failure(uploaded)
        await exchange.response.stored(Applied(uploaded.etag, uploaded.headers), write.target.resource, None)

    def _read_first(self, incoming: WriteBody) -> int:
        """Return the bytes of memory that a part takes: nothing, if it goes on as it arrives."""
        if not incoming.trailing:
            return 0
        if incoming.length <= self._threshold:
            return twice(incoming.length)
        return incoming.length if self._fits(incoming) else 0

    def _fits(self, part: WriteBody) -> bool:
        """Return whether other writes of the caller still have room beside a part in memory."""
        return part.length <= self._memory.most() // 4

    async def _forward(
        self, part: tuple[Place, str, int], incoming: WriteBody, headers: TextHeaders
    ) -> Uploaded | Failure:
        """Store a part as it arrives. A part that is not proven never becomes whole.

        A checksum in the client's head goes with it. A checksum in the trailer would be known too late. So such a part
        is read into memory first, and goes without if it is too large. Raises the errors of ``WriteBody.chunks``.
        """
        # An empty body has no last piece to hold back.
        if incoming.length == 0 or (incoming.trailing and incoming.length <= self._threshold):
            body = await incoming.whole()
            return await self._upstream.upload_part(*part, body.content, [*headers, *body.headers])
        async with aclosing(incoming.chunks()) as chunks:
            if incoming.trailing and self._fits(incoming):
                pieces = [piece async for piece in chunks]
                stream = BodyStream(_each(pieces), incoming.length)
                return await self._upstream.upload_part(*part, stream, [*headers, *incoming.proof.headers])
            stream = BodyStream(chunks, incoming.length)
            return await self._upstream.upload_part(*part, stream, [*headers, *incoming.checksum_headers])

    async def part_copy(self, exchange: Exchange) -> None:
        """Let the store copy a part, if the caller may read its source."""
        upload_id, number = _addressed(exchange)
        write = await self._pending_write(exchange, upload_id)
        source = exchange.request.source
        assert source is not None
        found = await self._sources.find(source)
        wanted = PartSource(source.bucket, source.key, found.etag, source.version_id, source.range)
        copied = await self._upstream.upload_part_copy(write.place, upload_id, number, wanted, exchange.request.headers)
        if not isinstance(copied, Uploaded):
            raise step_failure(copied)
        await exchange.response.stored(
            Applied(copied.etag, copied.headers), write.target.resource, None, document=copied.document
        )

    async def abort(self, exchange: Exchange) -> None:
        """Abort an upload. A stale token is refused: the upload may be its successor's by now."""
        upload_id = exchange.request.parameter("uploadId") or ""
        write = await self._pending_write(exchange, upload_id)
        answer = await self._upstream.abort_multipart(write.place, upload_id)
        if isinstance(answer, Rejected | NotSent | Unknown):
            raise step_failure(answer)
        with after_the_effect("noted"):
            await uploads.remove(self._database, write.upload_key(upload_id))
        if isinstance(answer, NotApplied):
            raise _no_such_upload()
        await exchange.response.passed(204, (), b"", write.target.resource)

    async def complete(self, exchange: Exchange) -> None:
        upload_id = exchange.request.parameter("uploadId") or ""
        write, upload = await self._write_of_upload(exchange, upload_id)
        body = await exchange.document()
        listed = await offload(len(body.content), xml.completion, body.content)
        profile = await self._writes.profile_for(write)
        if upload.completed:
            # This acknowledges a new holder too, although it writes nothing.
            fence = await self._writes.raise_fence(write)
            if (done := await self._completed_before(write)) is not None:
                await self._answer(exchange, write, done, fence)
                return
        steps = mutation.complete(
            write.announced,
            upload_id,
            etag_of_parts(listed),
            exchange.request.condition,
            conditional=profile.complete_conditions,
        )
        stored = await self._writes.run(write, steps, OperationPayload(headers=exchange.request.headers, parts=listed))
        assert isinstance(stored, Stored)
        with after_the_effect("noted"):
            await uploads.mark_completed(self._database, write.upload_key(upload_id))
        await self._answer(exchange, write, stored.applied, stored.fence)

    async def _answer(self, exchange: Exchange, write: FencedWrite, applied: Applied, fence: Fence | None) -> None:
        bucket, key = exchange.request.bucket, exchange.request.key
        document = xml.completed(exchange.address, bucket, key, applied.etag or "", applied.details)
        await exchange.response.stored(applied, write.target.resource, fence, document=document)

    async def _completed_before(self, write: FencedWrite) -> Applied | None:
        """Return the object, if a completion before this one has written it and it is still there.

        A client that has lost the answer to its completion sends it again.
        """
        state = await self._upstream.head(write.place)
        if isinstance(state, Found) and state.write_id == str(write.announced.mark):
            return Applied(state.etag)
        return None

    async def _pending_write(
        self, exchange: Exchange, upload_id: str, capture_start: CaptureStart | None = None
    ) -> FencedWrite:
        write, upload = await self._write_of_upload(exchange, upload_id, capture_start)
        if upload.completed:
            raise _no_such_upload()
        return write

    async def _write_of_upload(
        self, exchange: Exchange, upload_id: str, capture_start: CaptureStart | None = None
    ) -> tuple[FencedWrite, RecordedUpload]:
        """Return the write that an upload is for. Only uploads that were opened through the gateway carry its marks."""
        request = exchange.request
        target = self._writes.resources.target(request.bucket, request.key, request.fencing.resource)
        place = UploadKey(target.resource, request.bucket, request.key, upload_id)
        fence, upload = await uploads.peek(self._database, place)
        if upload is None or upload.staged:
            raise await self._unknown(exchange, target.resource)
        write = await self._writes.prepare(exchange, opened=upload, capture_start=capture_start)
        if fence is not None:
            await self._writes.refuse_if_stale(write, fence)
        return write, upload

    async def _unknown(self, exchange: Exchange, resource: str) -> StoreError:
        """Return the error for an upload that is not there. Beyond their scope, credentials do not hear of buckets."""
        scope, bucket = exchange.principal.scope, exchange.request.bucket
        if (scope is None or scope.covers(resource)) and await self._upstream.look_at_bucket(bucket) == 404:
            return StoreError.known("NoSuchBucket")
        return _no_such_upload()


async def _each(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _addressed(exchange: Exchange) -> tuple[str, int]:
    """Return upload and part number of a request; ``classify`` has checked both."""
    return exchange.request.parameter("uploadId") or "", int(exchange.request.parameter("partNumber") or 0)


def _no_such_upload() -> StoreError:
    return StoreError.known(
        "NoSuchUpload", reason="Uploads that were not opened through the gateway are unknown to it."
    )
