"""PutObject: a small body is put from memory, a large one is staged in parts as it arrives. The stages, in order:

prepare the write, refuse a stale token, learn what the bucket does, take the body in, run the protocol, respond.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import uuid4

from gateway.budget import Budget
from gateway.db import uploads
from gateway.db.database import Database
from gateway.db.uploads import RecordedUpload, UploadKey
from gateway.errors import OutcomeUnknown, SqlError, StoreError, Unavailable
from gateway.http.body import twice
from gateway.objects.body import VerifiedBody
from gateway.objects.exchange import Exchange
from gateway.objects.fenced_write import FencedWrite, FencedWrites
from gateway.objects.form_body import FormBody
from gateway.objects.protocol import mutation
from gateway.objects.protocol.effects import (
    Candidate,
    Deleted,
    InParts,
    Steps,
    Stored,
    WriteOutcome,
    tombstone_body,
)
from gateway.objects.protocol.runner import OperationPayload, path_of
from gateway.objects.s3.answers import Uploaded
from gateway.objects.s3.documents import Part
from gateway.objects.s3.request_headers import WriteCondition
from gateway.objects.staging import Staged, Staging, part_size, store_failure
from gateway.objects.store.bucket_profile import Profile
from gateway.objects.store.client import TextHeaders
from gateway.objects.store.operations import Upstream

_SMALL_PARTS = 64 * 1024 * 1024


class Puts:
    """Writes of whole bodies. ``threshold``: the largest body, in bytes, that is put from memory."""

    def __init__(
        self, database: Database, upstream: Upstream, writes: FencedWrites, memory: Budget, threshold: int
    ) -> None:
        self._database = database
        self._upstream = upstream
        self._writes = writes
        self._memory = memory
        self._threshold = threshold

    async def put(self, exchange: Exchange) -> None:
        """Serve a PutObject."""
        write = await self._writes.prepare(exchange, capture_start=exchange.capture_start)
        incoming = exchange.incoming()
        # An early refusal spares the client a large body. For a small one the write itself finds out.
        if exchange.awaits_continue or incoming.length > self._threshold:
            await self._writes.refuse_if_stale(write)
        profile = await self._writes.profile_for(write)
        headers, condition = exchange.request.headers, exchange.request.condition
        if incoming.length <= self._threshold:
            async with self._memory.held(twice(incoming.length)):
                body = await incoming.whole()
                write = write.with_captured(incoming.captured(body.content))
                stored = await self.put_from_memory(write, profile, body, headers, condition)
        else:
            staged = await self.staging(write).stage(incoming, [*headers, *write.marks(self._upstream)], write.write_id)
            write = write.with_payload(incoming.length, incoming.proof.sha256).with_captured(incoming.captured())
            stored = await self.complete(write, profile, staged, condition)
        await exchange.response.stored(stored.applied, write.target.resource, stored.fence)

    async def put_form(self, write: FencedWrite, incoming: FormBody, headers: TextHeaders) -> Stored:
        """Write the file of a form. Only its end tells how long it is. ``headers`` are the object's."""
        profile = await self._writes.profile_for(write)
        most = incoming.most
        if most <= self._threshold:
            async with self._memory.held(twice(most)):
                body = await incoming.whole()
                return await self.put_from_memory(write.with_captured(incoming.captured()), profile, body, headers)
        await self._writes.refuse_if_stale(write)
        # One part at a time is put together in memory, so its size must not grow with the body.
        size = part_size(min(most, _SMALL_PARTS), write.write_id)
        async with self._memory.held(twice(size)):
            headers = [*headers, *write.marks(self._upstream)]
            staged = await self.staging(write).stage_unsized(incoming.chunks(), headers, size)
        write = write.with_payload(incoming.proof.size, incoming.proof.sha256).with_captured(incoming.captured())
        return await self.complete(write, profile, staged, None)

    async def put_from_memory(
        self,
        write: FencedWrite,
        profile: Profile,
        body: VerifiedBody,
        headers: TextHeaders,
        condition: WriteCondition | None = None,
    ) -> Stored:
        """Write a body that is in memory."""
        write = write.with_payload(body.digests.size, body.digests.sha256)
        steps = mutation.put(write.announcement(), _candidates(profile, body), condition)
        payload = OperationPayload(body.content, [*headers, *body.digests.headers, *write.call_marks()])
        done = await self._writes.run(write, steps, payload)
        if isinstance(done, InParts):
            staged = await self._staged(write, body.content, [*headers, *write.marks(self._upstream)])
            return await self.complete(write, profile, staged, condition, after=done)
        return _stored(done)

    async def entomb(self, write: FencedWrite, condition: WriteCondition | None, after: InParts) -> Deleted:
        """Delete an object by an upload of a tombstone. ``after`` is why."""
        staged = await self._staged(write, tombstone_body(uuid4()), write.marks(self._upstream, tombstone=True))
        announced = replace(write.announcement(), attempt=after.attempt, entombs=True, removes=True)
        steps = mutation.complete(
            announced, staged.upload_id, staged.etag, condition, conditional=False, tombstone=True
        )
        done = await self._completed(write, staged, steps)
        assert isinstance(done, Deleted)
        return done

    async def _staged(self, write: FencedWrite, body: bytes, headers: TextHeaders) -> Staged:
        """Stage a body that is in memory, as one part."""
        place = (write.bucket, path_of(write.key))

        async def store_part(upload_id: str) -> tuple[Part, ...]:
            stored = await self._upstream.upload_part(*place, upload_id, 1, body)
            if not isinstance(stored, Uploaded):
                raise store_failure(stored)
            return (Part(1, stored.etag),)

        return await self.staging(write).stage_parts(headers, store_part)

    def staging(self, write: FencedWrite) -> Staging:
        """Return the staging of a write's body. The register tells the sweeper of uploads that are left behind."""
        place = (write.bucket, path_of(write.key))
        return Staging(self._upstream, place, _Register(self._database, write))

    async def complete(
        self,
        write: FencedWrite,
        profile: Profile,
        staged: Staged,
        condition: WriteCondition | None,
        after: InParts | None = None,
    ) -> Stored:
        """Make what was staged the object. If that fails, nothing stays staged.

        ``after``: why a small body is staged, if it is one.
        """
        steps = mutation.complete(
            replace(write.announcement(), attempt=1 if after is None else after.attempt),
            staged.upload_id,
            staged.etag,
            condition,
            conditional=after is None and profile.complete_conditions,
        )
        return _stored(await self._completed(write, staged, steps))

    async def _completed(
        self, write: FencedWrite, staged: Staged, steps: Steps[WriteOutcome]
    ) -> Stored | Deleted | InParts:
        done = False
        try:
            result = await self._writes.run(write, steps, OperationPayload(parts=staged.parts))
            done = not isinstance(result, Deleted) or result.applied is not None  # else there was nothing to delete
            return result
        except StoreError as error:
            if error.s3_code != mutation.NO_SUCH_UPLOAD:
                raise
            raise Unavailable("Nothing was written: the staged upload has been aborted meanwhile.") from error
        finally:
            if done:
                # The sweeper finds what stays on the register. The write has taken effect.
                with suppress(Unavailable, OutcomeUnknown, SqlError):
                    await _Register(self._database, write).closed(staged.upload_id)
            else:
                await self.staging(write).abort(staged.upload_id)


@dataclass(frozen=True, slots=True)
class _Register:
    """Notes the uploads of one write, so that the sweeper finds those that a lost gateway leaves behind."""

    database: Database
    write: FencedWrite

    async def opened(self, upload_id: str) -> None:
        presented, attempt = self.write.presented, self.write.attempt
        token = presented.token if presented else None
        upload = RecordedUpload(
            self._place(upload_id), self.write.write_id, token, attempt.holder, attempt.caller, staged=True
        )
        await uploads.record_opened(self.database, upload)

    async def touched(self, upload_id: str) -> None:
        await uploads.touch(self.database, self._place(upload_id))

    async def closed(self, upload_id: str) -> None:
        await uploads.remove(self.database, self._place(upload_id))

    def _place(self, upload_id: str) -> UploadKey:
        return UploadKey(self.write.target.resource, self.write.bucket, self.write.key, upload_id)


def _stored(done: Stored | Deleted | InParts) -> Stored:
    assert isinstance(done, Stored)
    return done


def _candidates(profile: Profile, body: VerifiedBody) -> tuple[Candidate, ...]:
    """Return the forms in which this store takes the body, with their ETags where ETags are hashes.

    An ETag may be a hash even where the probe has seen unique ETags. The object may be encrypted otherwise than its
    bucket is by default, and that default may have changed since.
    """
    candidates = mutation.candidates(body.digests.md5)
    return candidates if profile.can_bump else candidates[:1]
