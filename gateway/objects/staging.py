"""Stage the body of one write in the store, as the parts of an upload. Only the upload's completion takes effect.

The gateway holds no part in memory, unless only the end of the body tells how long it is.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from gateway.budget import Budget
from gateway.db import uploads
from gateway.db.database import Database
from gateway.errors import GatewayError, OutcomeUnknown, SqlError, Unavailable
from gateway.http.body import twice
from gateway.objects.exchange import WriteBody
from gateway.objects.fenced_write import FencedWrite
from gateway.objects.s3.answers import Applied, NotApplied, NotSent, Started, Unknown, store_refusal
from gateway.objects.s3.xml import Part, etag_of_parts
from gateway.objects.store.client import RequestBody, TextHeaders, pieces_of
from gateway.objects.store.connection import BodyStream
from gateway.objects.store.operations import Failure, Upstream

PartBodies: TypeAlias = AsyncGenerator[RequestBody, None]

_MEBIBYTE = 1024 * 1024
_LEAST = 5 * _MEBIBYTE  # S3's minimum for a part that is not the last
_USUAL = 8 * _MEBIBYTE
_STEP = 64 * 1024
_SIZES = 64
# Parts of a stream are large: between two parts the client waits for the store.
_PARTS = 8
_MOST = 4 * 1024 * _MEBIBYTE  # S3 takes 5 GiB
_TOUCH = 60.0
_SMALL_PARTS = 64 * _MEBIBYTE


@dataclass(frozen=True, slots=True)
class Staged:
    """A body that is in the store as an upload, and proven. Complete it, or abort it.

    ``etag`` is what the object will have, None where the ETags of the store cannot be predicted.
    """

    upload_id: str
    parts: tuple[Part, ...]
    etag: str | None


class Staging:
    """Stages the body of one write as the parts of a new upload. ``tombstone``: the body is that of a tombstone.

    The database knows of the upload, so that the sweeper finds one that a lost gateway leaves behind. If staging fails,
    it aborts the upload, and nothing is written. It raises the store's refusal, ``Unavailable``, or an error of the
    body itself.
    """

    def __init__(
        self, database: Database, upstream: Upstream, memory: Budget, write: FencedWrite, *, tombstone: bool = False
    ) -> None:
        self._database, self._upstream, self._memory, self._write = database, upstream, memory, write
        self._place, self._tombstone = write.place, tombstone
        self._touched = asyncio.get_running_loop().time()

    async def stage(self, incoming: WriteBody, headers: TextHeaders) -> Staged:
        """Stage a body, each part as it arrives. ``headers`` are those of the object it will be.

        The checksum of a whole body is verified here and not sent on: S3 takes those of parts only. If the end of the
        body alone tells its length, each part is in memory until it is stored. So its size must not grow with the body.
        """
        write_id = self._write.announced.write_id
        if incoming.exact:
            size = part_size(incoming.length, write_id)
            return await self._stage_chunks(incoming, headers, lambda chunks: _streams(chunks, incoming.length, size))
        size = part_size(min(incoming.length, _SMALL_PARTS), write_id)
        async with self._memory.held(twice(size)):
            return await self._stage_chunks(incoming, headers, lambda chunks: pieces_of(chunks, size))

    async def stage_whole(self, body: bytes, headers: TextHeaders = ()) -> Staged:

        async def one() -> PartBodies:
            yield body

        return await self.stage_parts(headers, lambda upload_id: self._store(upload_id, one()))

    async def stage_parts(
        self, headers: TextHeaders, store_parts: Callable[[str], Awaitable[tuple[Part, ...]]]
    ) -> Staged:
        """Open an upload, and let ``store_parts`` store the parts of the upload with the id it is given."""
        headers = [*headers, *self._write.marks(self._upstream, tombstone=self._tombstone)]
        started = await self._upstream.create_multipart(self._place, headers)
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
            answer = await self._upstream.abort_multipart(self._place, upload_id)
            if isinstance(answer, Applied | NotApplied):
                await uploads.remove(self._database, self._write.upload_key(upload_id))

    async def close(self, upload_id: str) -> None:
        """Forget an upload that has become the object. The write has taken effect: the sweeper finds what stays."""
        with suppress(Unavailable, OutcomeUnknown, SqlError):
            await uploads.remove(self._database, self._write.upload_key(upload_id))

    async def _stage_chunks(
        self, incoming: WriteBody, headers: TextHeaders, cut: Callable[[AsyncGenerator[bytes, None]], PartBodies]
    ) -> Staged:
        async def store_parts(upload_id: str) -> tuple[Part, ...]:
            async with aclosing(self._touching(upload_id, incoming.chunks())) as touching:
                return await self._store(upload_id, cut(touching))

        return await self.stage_parts(headers, store_parts)

    async def _store(self, upload_id: str, bodies: PartBodies) -> tuple[Part, ...]:
        parts = await self._upstream.upload_parts(self._place, upload_id, bodies)
        if not isinstance(parts, tuple):
            raise store_failure(parts)
        return parts

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
