"""Multipart uploads by clients. Parts are staged; the completion is the fenced write."""

from gateway.db import uploads
from gateway.db.database import Database
from gateway.db.uploads import Place, Upload
from gateway.errors import GatewayError, StoreError, Unavailable
from gateway.fencing.rules import Fence
from gateway.http.body import Memory, offload
from gateway.objects.call import Call
from gateway.objects.protocol import generator
from gateway.objects.protocol.effects import Stored
from gateway.objects.run.runner import Payload, path_of
from gateway.objects.s3 import documents
from gateway.objects.s3.answers import Applied, Found, NotApplied, NotSent, Rejected, Started, Unknown, Uploaded
from gateway.objects.store.multipart import Part, PartSource, etag_of_parts
from gateway.objects.store.operations import Upstream
from gateway.objects.writes.copy import Sources
from gateway.objects.writes.fenced_write import Beginning, Write, Writes, after_the_effect, refusal_of_store
from gateway.objects.writes.staging import forward_part


class Uploads:
    """CreateMultipartUpload, UploadPart, UploadPartCopy, CompleteMultipartUpload, AbortMultipartUpload."""

    def __init__(
        self,
        database: Database,
        upstream: Upstream,
        writes: Writes,
        sources: Sources,
        memory: Memory,
        threshold: int,
    ) -> None:
        """``threshold``: the largest part, in bytes, that is taken into memory if there is a reason to."""
        self._database = database
        self._upstream = upstream
        self._writes = writes
        self._sources = sources
        self._memory = memory
        self._threshold = threshold

    async def create(self, call: Call) -> None:
        """Open an upload, and remember what was presented with it: that is valid for its parts and its completion."""
        write = await self._writes.write(call)
        await self._writes.admit(write)
        await self._writes.fit(write)
        started = await self._upstream.create_multipart(
            write.bucket,
            path_of(write.key),
            [*call.request.headers, *write.marks()],
            signed_at=await self._database.now(),
        )
        if not isinstance(started, Started):
            raise _failure(started)
        shown = write.presented
        place = _place(write, started.upload_id)
        upload = Upload(
            place,
            write.write_id,
            shown.token if shown else None,
            write.attempt.holder,
            write.attempt.caller,
            sequencer=shown.sequencer if shown else None,
        )
        await uploads.opened(self._database, upload)
        document = documents.initiated(write.bucket, write.key, started.upload_id)
        await call.answer.stored(Applied(None, started.headers), write.target.resource, None, document=document)

    async def part(self, call: Call) -> None:
        """Pass a part on. Nothing takes effect by it."""
        upload_id, number = _addressed(call)
        write = await self._belonging(call, upload_id, call.beginning)
        intake = call.intake()
        async with self._memory.reserved(min(intake.length, self._threshold) if intake.trailing else 0):
            uploaded = await forward_part(
                self._upstream,
                write.bucket,
                path_of(write.key),
                upload_id,
                number,
                intake,
                call.request.headers,
                signed_at=await self._database.now(),
                memory_threshold=self._threshold,
            )
        if not isinstance(uploaded, Uploaded):
            raise _failure(uploaded)
        await call.answer.stored(Applied(uploaded.etag, uploaded.headers), write.target.resource, None)

    async def part_copy(self, call: Call) -> None:
        """Let the store copy a part, if its source is there for callers."""
        upload_id, number = _addressed(call)
        write = await self._belonging(call, upload_id)
        source = call.request.source
        assert source is not None
        found = await self._sources.find(source)
        copied = await self._upstream.upload_part_copy(
            write.bucket,
            path_of(write.key),
            upload_id,
            number,
            PartSource(source.bucket, source.key, found.etag, source.version_id, source.range),
            call.request.headers,
            signed_at=await self._database.now(),
        )
        if not isinstance(copied, Uploaded):
            raise _failure(copied)
        await call.answer.stored(
            Applied(copied.etag, copied.headers), write.target.resource, None, document=copied.document
        )

    async def abort(self, call: Call) -> None:
        """Give an upload up. A stale token is refused: the upload may be its successor's by now."""
        upload_id = call.request.parameter("uploadId") or ""
        write = await self._belonging(call, upload_id)
        place = _place(write, upload_id)
        answer = await self._upstream.abort_multipart(
            write.bucket, path_of(write.key), upload_id, signed_at=await self._database.now()
        )
        if isinstance(answer, Rejected | NotSent | Unknown):
            raise _failure(answer)
        with after_the_effect("noted"):
            await uploads.closed(self._database, place)
        if isinstance(answer, NotApplied):
            raise _no_such_upload()
        await call.answer.passed(204, (), b"", write.target.resource)

    async def complete(self, call: Call) -> None:
        """Make the parts the object."""
        upload_id = call.request.parameter("uploadId") or ""
        write, upload = await self._opened(call, upload_id)
        body = await call.document()
        listed = await offload(len(body.content), documents.completion, body.content)
        profile = await self._writes.fit(write)
        if upload.completed:
            # A new holder is acknowledged by this, too, although it writes nothing.
            fence = await self._writes.bar(write)
            if (done := await self._completed_before(write)) is not None:
                await self._answer(call, write, done, fence)
                return
        steps = generator.complete(
            write.announcement(),
            upload_id,
            etag_of_parts(part.etag for part in listed),
            call.request.condition,
            conditional=profile.complete_conditions,
        )
        parts = [Part(part.number, part.etag, part.checksums) for part in listed]
        stored = await self._writes.run(write, steps, Payload(headers=call.request.headers, parts=parts))
        assert isinstance(stored, Stored)
        with after_the_effect("noted"):
            await uploads.completed(self._database, _place(write, upload_id))
        await self._answer(call, write, stored.applied, stored.fence)

    async def _answer(self, call: Call, write: Write, applied: Applied, fence: Fence | None) -> None:
        document = documents.completed(call.address, write.bucket, write.key, applied.etag or "", applied.details)
        await call.answer.stored(applied, write.target.resource, fence, document=document)

    async def _completed_before(self, write: Write) -> Applied | None:
        """A client that lost the answer to its completion asks again: the object is its upload's, if it still is."""
        state = await self._upstream.head(write.bucket, path_of(write.key))
        if isinstance(state, Found) and state.write_id == str(write.mark):
            return Applied(state.etag)
        return None

    async def _belonging(self, call: Call, upload_id: str, beginning: Beginning | None = None) -> Write:
        write, upload = await self._opened(call, upload_id, beginning)
        if upload.completed:
            raise _no_such_upload()
        return write

    async def _opened(self, call: Call, upload_id: str, beginning: Beginning | None = None) -> tuple[Write, Upload]:
        """The write that an upload is for. Only those that were opened through the gateway carry its marks."""
        request = call.request
        target = self._writes.target(request.bucket, request.key, request.fencing.resource)
        place = Place(target.resource, request.bucket, request.key, upload_id)
        fence, upload = await uploads.peek(self._database, place)
        if upload is None or upload.staged:
            raise _no_such_upload()
        write = await self._writes.write(call, opened=upload, beginning=beginning)
        if fence is not None:
            await self._writes.admit(write, fence)
        return write, upload


def _place(write: Write, upload_id: str) -> Place:
    return Place(write.target.resource, write.bucket, write.key, upload_id)


def _addressed(call: Call) -> tuple[str, int]:
    """Upload and part number of a request; ``classify`` has checked both."""
    return call.request.parameter("uploadId") or "", int(call.request.parameter("partNumber") or 0)


def _no_such_upload() -> StoreError:
    return StoreError(
        "NoSuchUpload",
        404,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or "
        "completed, or it was not opened through this gateway.",
    )


def _failure(answer: Rejected | NotSent | Unknown) -> GatewayError:
    if isinstance(answer, Rejected):
        return refusal_of_store(answer)
    return Unavailable(f"Nothing was written: {answer.reason}.")
