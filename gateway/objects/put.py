"""PutObject: a small body is put from memory, a large one is staged in parts as it arrives. The stages, in order:

prepare the write, make sure that it can be written, take the body in, run the protocol, respond. Only the completion of
what is staged takes effect. The gateway holds no part in memory, unless only the end of the body tells how long it is.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID, uuid4

from gateway.budget import Budget
from gateway.db import uploads
from gateway.db.database import Database
from gateway.errors import GatewayError, OutcomeUnknown, SqlError, StoreError, Unavailable
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
from gateway.objects.s3.answers import Applied, NotApplied, NotSent, Started, Unknown, Uploaded, store_refusal
from gateway.objects.s3.body import VerifiedBody
from gateway.objects.s3.conditions import WriteCondition
from gateway.objects.s3.xml import Part, etag_of_parts
from gateway.objects.store.bucket_profile import Profile
from gateway.objects.store.client import BodyStream, TextHeaders, pieces_of
from gateway.objects.store.operations import Failure, Upstream

PartBodies: TypeAlias = AsyncGenerator[bytes | BodyStream, None]

_MEBIBYTE = 1024 * 1024
_LEAST = 5 * _MEBIBYTE  # S3's minimum for a part that is not the last
_USUAL = 8 * _MEBIBYTE
_STEP = 64 * 1024
_SIZES = 64
# Parts of a stream are large: between two parts the client waits for the store.
_PARTS = 8
_MOST = 4 * 1024 * _MEBIBYTE  # S3 takes 5 GiB
_TOUCH = 60.0
_SMALL_PARTS = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Staged:
    """A body that is in the store as an upload, and proven. Complete it, or abort it.

    ``etag`` is what the object will have, None where the ETags of the store cannot be predicted.
    """

    upload_id: str
    parts: tuple[Part, ...]
    etag: str | None


class Staging:
    """Stages the body of one write as the parts of a new upload.

    The database knows of the upload, so that the sweeper finds one that a lost gateway leaves behind. If staging fails,
    it aborts the upload, and nothing is written. It raises the store's refusal, ``Unavailable``, or an error of the
    body itself.
    """

    def __init__(self, database: Database, upstream: Upstream, write: FencedWrite) -> None:
        self._database, self._upstream, self._write = database, upstream, write
        self._place = write.place
        self._touched = asyncio.get_running_loop().time()

    async def stage(self, incoming: WriteBody, headers: TextHeaders, write_id: UUID) -> Staged:
        """Stage a body, each part as it arrives. ``headers`` are those of the object it will be.

        The checksum of a whole body is verified here and not sent on: S3 takes those of parts only.
        """
        size = part_size(incoming.length, write_id)
        return await self._stage_chunks(
            incoming.chunks(), headers, lambda chunks: _streams(chunks, incoming.length, size)
        )

    async def stage_unsized(self, chunks: AsyncGenerator[bytes, None], headers: TextHeaders, size: int) -> Staged:
        """Stage a body whose end alone tells its length: each part is in memory until it is stored.

        ``size``: bytes of each part but the last. ``chunks`` end where the body is proven.
        """
        return await self._stage_chunks(chunks, headers, lambda touching: pieces_of(touching, size))

    async def stage_whole(self, body: bytes, headers: TextHeaders) -> Staged:

        async def one() -> PartBodies:
            yield body

        return await self.stage_parts(headers, lambda upload_id: self._store(upload_id, one()))

    async def stage_parts(
        self, headers: TextHeaders, store_parts: Callable[[str], Awaitable[tuple[Part, ...]]]
    ) -> Staged:
        """Open an upload, and let ``store_parts`` store the parts of the upload with the id it is given."""
        started = await self._upstream.create_multipart(*self._place, headers)
        if not isinstance(started, Started):
            raise store_failure(started)
        done = False
        try:
            await uploads.record_opened(self._database, self._write.upload(started.upload_id, staged=True))
            parts = await store_parts(started.upload_id)
            done = True
        finally:
            if not done:
                await self.abort(started.upload_id)
        return Staged(started.upload_id, parts, etag_of_parts(parts))

    async def touch(self, upload_id: str) -> None:
        """Note now and then that the body is still on its way."""
        moment = asyncio.get_running_loop().time()
        if moment - self._touched >= _TOUCH:
            self._touched = moment
            await uploads.touch(self._database, self._write.upload_key(upload_id))

    async def abort(self, upload_id: str) -> None:
        """Abort the upload if possible. If the store does not confirm it, the database keeps it, for the sweeper."""
        with suppress(GatewayError):
            answer = await self._upstream.abort_multipart(*self._place, upload_id)
            if isinstance(answer, Applied | NotApplied):
                await uploads.remove(self._database, self._write.upload_key(upload_id))

    async def close(self, upload_id: str) -> None:
        """Forget an upload that has become the object. The write has taken effect: the sweeper finds what stays."""
        with suppress(Unavailable, OutcomeUnknown, SqlError):
            await uploads.remove(self._database, self._write.upload_key(upload_id))

    async def _stage_chunks(
        self,
        chunks: AsyncGenerator[bytes, None],
        headers: TextHeaders,
        cut: Callable[[AsyncGenerator[bytes, None]], PartBodies],
    ) -> Staged:
        async def store_parts(upload_id: str) -> tuple[Part, ...]:
            async with aclosing(self._touching(upload_id, chunks)) as touching, aclosing(cut(touching)) as bodies:
                return await self._store(upload_id, bodies)

        return await self.stage_parts(headers, store_parts)

    async def _store(self, upload_id: str, bodies: PartBodies) -> tuple[Part, ...]:
        parts: list[Part] = []
        async for body in bodies:
            number = len(parts) + 1
            stored = await self._upstream.upload_part(*self._place, upload_id, number, body)
            if not isinstance(stored, Uploaded):
                raise store_failure(stored)
            parts.append(Part(number, stored.etag))
        return tuple(parts)

    async def _touching(self, upload_id: str, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(body) as chunks:
            async for chunk in chunks:
                await self.touch(upload_id)
                yield chunk


def part_size(length: int, write_id: UUID) -> int:
    """Return the bytes of each part but the last, for a body of ``length`` bytes.

    The size decides the object's ETag. It differs from write to write, so that the same bytes written again have
    another ETag: the first may have been forbidden meanwhile.
    """
    if length <= _LEAST:
        return max(length, 1)
    least = _LEAST if length <= 2 * _USUAL else min(max(_USUAL, math.ceil(length / _PARTS)), _MOST)
    # Every size is less than the length: all larger sizes would come to one part, and one ETag.
    choices = min(_SIZES, (length - least - 1) // _STEP + 1)
    return least + write_id.int % choices * _STEP


def store_failure(answer: Failure) -> GatewayError:
    if isinstance(answer, NotSent | Unknown):
        return Unavailable(f"The store does not take the body: {answer.reason}.")
    if answer.code == "NoSuchUpload":
        return Unavailable("The store does not take the body: the upload was aborted.")
    return store_refusal(answer)


async def _streams(chunks: AsyncGenerator[bytes, None], left: int, size: int) -> PartBodies:
    """Cut a body of ``left`` bytes into parts that go through as they arrive."""
    source = _Source(chunks)
    while left:
        length = min(size, left)
        yield BodyStream(source.take(length), length)
        left -= length


class _Source:
    """A stream cut into parts, none of which is ever put together."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self._chunks = chunks
        self._rest = b""

    def take(self, size: int) -> "_Piece":
        return _Piece(self, size)

    async def next(self, most: int) -> bytes:
        chunk = self._rest or await anext(self._chunks)
        self._rest = chunk[most:]
        return chunk[:most]


class _Piece:
    """An iterator over a part of a source. Not a generator: a reader may leave it half way, with nothing to close."""

    def __init__(self, source: _Source, size: int) -> None:
        self._source, self._left = source, size

    def __aiter__(self) -> "_Piece":
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        chunk = await self._source.next(self._left)
        self._left -= len(chunk)
        return chunk


class Puts:
    """Writes of whole bodies. ``threshold``: the largest body, in bytes, that is put from memory."""

    def __init__(
        self, database: Database, upstream: Upstream, writes: FencedWrites, memory: Budget, threshold: int
    ) -> None:
        self.database, self.upstream, self.writes = database, upstream, writes
        self.memory, self.threshold = memory, threshold

    async def put(self, exchange: Exchange) -> None:
        write = await self.writes.prepare(exchange, capture_start=exchange.capture_start)
        incoming = exchange.incoming()
        request, early = exchange.request, exchange.awaits_continue
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
        profile = await self.writes.ready(write, early=early or not small)
        if small:
            async with self.memory.held(twice(incoming.length)):
                body = await incoming.whole()
                write = write.with_captured(incoming.captured(body.content))
                return await self.put_from_memory(write, profile, body, headers, condition)
        staging, headers = self.staging(write), [*headers, *write.marks(self.upstream)]
        if incoming.exact:
            staged = await staging.stage(incoming, headers, write.write_id)
        else:
            # One part at a time is put together in memory, so its size must not grow with the body.
            size = part_size(min(incoming.length, _SMALL_PARTS), write.write_id)
            async with self.memory.held(twice(size)):
                staged = await staging.stage_unsized(incoming.chunks(), headers, size)
        write = write.with_payload(incoming.proof.size, incoming.proof.sha256).with_captured(incoming.captured())
        return await self.complete(write, profile, staged, condition)

    async def put_from_memory(
        self,
        write: FencedWrite,
        profile: Profile,
        body: VerifiedBody,
        headers: TextHeaders,
        condition: WriteCondition | None,
    ) -> Stored:
        write = write.with_payload(body.size, body.sha256)
        steps = mutation.put(write.announcement(), _candidates(profile, body), condition)
        payload = OperationPayload(body.content, [*headers, *body.headers, *write.call_marks()])
        done = await self.writes.run(write, steps, payload)
        if isinstance(done, InParts):
            staged = await self.staging(write).stage_whole(body.content, [*headers, *write.marks(self.upstream)])
            return await self.complete(write, profile, staged, condition, after=done)
        return _stored(done)

    async def entomb(self, write: FencedWrite, condition: WriteCondition | None, after: InParts) -> Deleted:
        """Delete an object by an upload of a tombstone. ``after`` is why."""
        marks = write.marks(self.upstream, tombstone=True)
        staged = await self.staging(write).stage_whole(tombstone_body(uuid4()), marks)
        announced = replace(write.announcement(), attempt=after.attempt, entombs=True, removes=True)
        steps = mutation.complete(
            announced, staged.upload_id, staged.etag, condition, conditional=False, tombstone=True
        )
        done = await self._completed(write, staged, steps)
        assert isinstance(done, Deleted)
        return done

    def staging(self, write: FencedWrite) -> Staging:
        return Staging(self.database, self.upstream, write)

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
