"""PutObject, stage by stage. Form uploads, copies and deletes join where their stages are the same.

A small body is put from memory. A large one is staged in parts as it arrives, and only its completion takes effect.
"""

from dataclasses import replace
from uuid import uuid4

from gateway.budget import Budget
from gateway.db.database import Database
from gateway.errors import StoreError, Unavailable
from gateway.http.body import twice
from gateway.objects.exchange import Exchange, WriteBody
from gateway.objects.fenced_write import FencedWrite, FencedWrites
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
from gateway.objects.protocol.runner import OperationPayload
from gateway.objects.s3.body import VerifiedBody
from gateway.objects.s3.conditions import WriteCondition
from gateway.objects.staging import Staged, Staging
from gateway.objects.store.bucket_profile import Profile
from gateway.objects.store.client import TextHeaders
from gateway.objects.store.operations import Upstream


class Puts:
    """Writes of whole bodies. ``threshold``: the largest body, in bytes, that is put from memory."""

    def __init__(
        self, database: Database, upstream: Upstream, writes: FencedWrites, memory: Budget, threshold: int
    ) -> None:
        self.database, self.upstream, self.writes = database, upstream, writes
        self.memory, self.threshold = memory, threshold

    async def put(self, exchange: Exchange) -> None:
        request = exchange.request
        write = await self.writes.prepare(exchange, capture_start=exchange.capture_start)
        incoming, early = exchange.incoming(), exchange.awaits_continue
        stored = await self.store(write, incoming, request.headers, request.condition, early=early)
        await exchange.response.stored(stored.applied, write.target.resource, stored.fence)

    async def store(
        self,
        write: FencedWrite,
        incoming: WriteBody,
        headers: TextHeaders,
        condition: WriteCondition | None = None,
        *,
        early: bool = False,
    ) -> Stored:
        """Write a body as it arrives: a small one from memory, a large one in parts. ``headers`` are the object's.

        ``early``: refuse a stale token before the body is taken in, also of a small body.
        """
        small = incoming.length <= self.threshold
        # An early refusal spares the client a large body. For a small one the write itself finds out.
        if early or not small:
            await self.writes.refuse_if_stale(write)
        profile = await self.writes.profile_for(write)
        if small:
            async with self.memory.held(twice(incoming.length)):
                body = await incoming.whole()
                write = write.with_body(body.size, body.sha256, incoming.captured(body.content))
                return await self.put_from_memory(write, profile, body, headers, condition)
        staged = await self.staging(write).stage(incoming, headers)
        write = write.with_body(incoming.proof.size, incoming.proof.sha256, incoming.captured())
        return await self.complete(write, profile, staged, condition)

    async def put_from_memory(
        self,
        write: FencedWrite,
        profile: Profile,
        body: VerifiedBody,
        headers: TextHeaders,
        condition: WriteCondition | None,
    ) -> Stored:
        steps = mutation.put(write.announced, _candidates(profile, body), condition)
        sent = [*headers, body.content_md5, *body.headers, *write.marks(self.upstream)]
        payload = OperationPayload(body.content, sent)
        done = await self.writes.run(write, steps, payload)
        if isinstance(done, InParts):
            staged = await self.staging(write).stage_whole(body.content, headers)
            return await self.complete(write, profile, staged, condition, after=done)
        return _stored(done)

    async def entomb(self, write: FencedWrite, condition: WriteCondition | None, after: InParts) -> Deleted:
        """Delete an object by an upload of a tombstone. ``after`` is why."""
        staged = await self.staging(write, tombstone=True).stage_whole(tombstone_body(uuid4()))
        announced = replace(write.announced, attempt=after.attempt, entombs=True, removes=True)
        steps = mutation.complete(
            announced, staged.upload_id, staged.etag, condition, conditional=False, tombstone=True
        )
        done = await self._completed(write, staged, steps)
        assert isinstance(done, Deleted)
        return done

    def staging(self, write: FencedWrite, *, tombstone: bool = False) -> Staging:
        return Staging(self.database, self.upstream, self.memory, write, tombstone=tombstone)

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
            replace(write.announced, attempt=1 if after is None else after.attempt),
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
            result = await self.writes.run(write, steps, OperationPayload(parts=staged.parts))
            done = not isinstance(result, Deleted) or result.applied is not None  # else there was nothing to delete
            return result
        except StoreError as error:
            if error.s3_code != mutation.NO_SUCH_UPLOAD:
                raise
            raise Unavailable("Nothing was written: the staged upload has been aborted meanwhile.") from error
        finally:
            staging = self.staging(write)
            await (staging.close(staged.upload_id) if done else staging.abort(staged.upload_id))


def _stored(done: Stored | Deleted | InParts) -> Stored:
    assert isinstance(done, Stored)
    return done


def _candidates(profile: Profile, body: VerifiedBody) -> tuple[Candidate, ...]:
    """Return the forms in which this store takes the body, with their ETags where ETags are hashes.

    An ETag may be a hash even where the probe has seen unique ETags. The object may be encrypted otherwise than its
    bucket is by default, and that default may have changed since.
    """
    candidates = mutation.candidates(body.md5)
    return candidates if profile.can_bump else candidates[:1]
