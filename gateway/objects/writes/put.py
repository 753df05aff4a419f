"""PutObject: a small body is put from memory, a large one is staged in parts as it arrives. The stages, in order:

prepare the write, refuse a stale token, learn what the bucket does, take the body in, run the protocol, respond.
"""

from contextlib import suppress
from dataclasses import dataclass

from gateway.db import uploads
from gateway.db.database import Database
from gateway.db.uploads import RecordedUpload, UploadKey
from gateway.errors import OutcomeUnknown, SqlError, StoreError, Unavailable
from gateway.http.body import Memory
from gateway.objects.body.form import FormBody
from gateway.objects.body.intake import VerifiedBody
from gateway.objects.exchange import Exchange
from gateway.objects.probe.bucket_profile import Profile
from gateway.objects.protocol import mutation
from gateway.objects.protocol.effects import Candidate, Deleted, Stored
from gateway.objects.run.runner import OperationPayload, path_of
from gateway.objects.s3.conditions import WriteCondition
from gateway.objects.store.client import TextHeaders
from gateway.objects.store.operations import Upstream
from gateway.objects.writes.fenced_write import FencedWrite, FencedWrites
from gateway.objects.writes.staging import Staged, Staging, part_size

_SMALL_PARTS = 64 * 1024 * 1024


class Puts:
    """Writes of whole bodies. ``threshold``: the largest body, in bytes, that is put from memory."""

    def __init__(
        self, database: Database, upstream: Upstream, writes: FencedWrites, memory: Memory, threshold: int
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
            async with self._memory.reserved(incoming.length):
                body = await incoming.whole()
                write = write.with_captured(incoming.captured(body.content))
                stored = await self.put_from_memory(write, profile, body, headers, condition)
        else:
            staged = await self.staging(write).stage(incoming, [*headers, *write.marks()], write.write_id)
            write = write.with_payload(incoming.length, incoming.proof.sha256).with_captured(incoming.captured())
            stored = await self.complete(write, profile, staged, condition)
        await exchange.response.stored(stored.applied, write.target.resource, stored.fence)

    async def put_form(self, write: FencedWrite, incoming: FormBody, headers: TextHeaders) -> Stored:
        """Write the file of a form. Only its end tells how long it is. ``headers`` are the object's."""
        profile = await self._writes.profile_for(write)
        most = incoming.most
        if most <= self._threshold:
            async with self._memory.reserved(most):
                body = await incoming.whole()
                return await self.put_from_memory(write.with_captured(incoming.captured()), profile, body, headers)
        await self._writes.refuse_if_stale(write)
        # One part at a time is put together in memory, so its size must not grow with the body.
        size = part_size(min(most, _SMALL_PARTS), write.write_id)
        async with self._memory.reserved(size):
            headers = [*headers, *write.marks()]
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
        steps = mutation.put(write.announcement(profile), _candidates(profile, body), condition)
        payload = OperationPayload(body.content, [*headers, *body.digests.headers, *write.call_marks()])
        return _stored(await self._writes.run(write, steps, payload))

    def staging(self, write: FencedWrite) -> Staging:
        """Return the staging of a write's body. The register tells the sweeper of uploads that are left behind."""
        place = (write.bucket, path_of(write.key))
        return Staging(self._upstream, place, self._database.now, _Register(self._database, write))

    async def complete(
        self, write: FencedWrite, profile: Profile, staged: Staged, condition: WriteCondition | None
    ) -> Stored:
        """Make what was staged the object. If that fails, nothing stays staged."""
        steps = mutation.complete(
            write.announcement(),
            staged.upload_id,
            staged.etag,
            condition,
            conditional=profile.complete_conditions,
        )
        done = False
        try:
            result = _stored(await self._writes.run(write, steps, OperationPayload(parts=staged.parts)))
            done = True
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


def _stored(done: Stored | Deleted) -> Stored:
    assert isinstance(done, Stored)
    return done


def _candidates(profile: Profile, body: VerifiedBody) -> tuple[Candidate, ...]:
    """Return the forms in which this store takes the body, with their ETags where ETags are hashes.

    An ETag may be a hash even where the probe has seen unique ETags. The object may be encrypted otherwise than its
    bucket is by default, and that default may have changed since.
    """
    candidates = mutation.candidates(body.digests.md5)
    return candidates if profile.can_bump else candidates[:1]
