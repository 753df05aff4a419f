"""Large bodies on their way to the store: staged as parts of an upload, which takes effect with its completion only.

No part is held in memory, unless only the end of the body tells how long it is. Parts of a client's own upload go
through in the same way.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias
from uuid import UUID

from gateway.errors import GatewayError, Unavailable
from gateway.objects.body.intake import WriteBody
from gateway.objects.s3.answers import Applied, NotApplied, NotSent, Rejected, Started, Unknown, Uploaded
from gateway.objects.s3.documents import Part, etag_of_parts
from gateway.objects.store.client import TextHeaders
from gateway.objects.store.operations import Upstream
from gateway.objects.store.upload_stream import BodyStream

ObjectPlace: TypeAlias = tuple[str, str]
"""Bucket and raw key."""

_MEBIBYTE = 1024 * 1024
_LEAST = 5 * _MEBIBYTE  # what S3 takes for a part that is not the last
_USUAL = 8 * _MEBIBYTE
_STEP = 64 * 1024
_SIZES = 64
# A part is as large as a stream of it can be: between two parts everybody waits for the store.
_PARTS = 8
_MOST = 4 * 1024 * _MEBIBYTE  # S3 takes 5 GiB
_TOUCH = 60.0


class Register(Protocol):
    """Where uploads are noted that would stay behind if the gateway went away."""

    async def opened(self, upload_id: str) -> None: ...

    async def touched(self, upload_id: str) -> None: ...

    async def closed(self, upload_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Staged:
    """A body that is in the store as an upload, and proven. Complete it, or abort it.

    ``etag`` is what the object will have, None where the store's ETags cannot be foretold.
    """

    upload_id: str
    parts: tuple[Part, ...]
    etag: str | None


async def stage(
    upstream: Upstream,
    place: ObjectPlace,
    intake: WriteBody,
    headers: TextHeaders,
    now: Callable[[], Awaitable[datetime]],
    *,
    write_id: UUID,
    register: Register,
) -> Staged | Rejected:
    """Put a body into the store as the parts of a new upload, each as it arrives.

    ``headers`` are those of the object it will be; ``now`` is the database's clock. Checksums of the whole body are
    verified here and cannot be sent on: S3 wants those of parts. Where it fails, the upload is aborted first; then
    ``Rejected`` if the store refuses, else ``Unavailable``, or what ``WriteBody.chunks`` raises. Nothing is written then.
    """
    size = part_size(intake.length, write_id)
    chunks = intake.chunks()
    return await _staged(
        upstream, place, chunks, lambda touched: _streams(touched, intake.length, size), headers, now, register
    )


async def stage_unsized(
    upstream: Upstream,
    place: ObjectPlace,
    chunks: AsyncGenerator[bytes, None],
    size: int,
    headers: TextHeaders,
    now: Callable[[], Awaitable[datetime]],
    *,
    register: Register,
) -> Staged | Rejected:
    """The same for a body whose length only its end tells: each part is in memory until it is stored.

    ``size``: bytes of each part but the last. ``chunks`` end where the body is proven; what they raise comes out here.
    """
    return await _staged(upstream, place, chunks, lambda touched: _pieces(touched, size), headers, now, register)


async def forward_part(
    upstream: Upstream,
    bucket: str,
    raw_key: str,
    upload_id: str,
    number: int,
    intake: WriteBody,
    headers: TextHeaders,
    *,
    signed_at: datetime,
    memory_threshold: int,
) -> Uploaded | Rejected | NotSent | Unknown:
    """Store a part of a client's own upload as it arrives; the part never becomes whole if it is not proven.

    A checksum in the client's head goes along. One in its trailer would be known too late, so such a part is taken into
    memory first, up to ``memory_threshold`` bytes; a larger one goes without. Raises what ``WriteBody.chunks`` raises.
    """
    place = (bucket, raw_key, upload_id, number)
    # Of an empty body there is no last piece that could be held back.
    if intake.length == 0 or (intake.trailing and intake.length <= memory_threshold):
        body = await intake.whole()
        return await upstream.upload_part(*place, body.content, [*headers, *body.digests.headers], signed_at=signed_at)
    async with aclosing(intake.chunks()) as chunks:
        stream = BodyStream(chunks, intake.length)
        return await upstream.upload_part(*place, stream, [*headers, *intake.checksum_headers], signed_at=signed_at)


def part_size(length: int, write_id: UUID) -> int:
    """Bytes of each part but the last, for a body of ``length`` bytes.

    The size decides the object's ETag. It differs from write to write, so that the same bytes written again have
    another one: the first may have been forbidden meanwhile.
    """
    if length <= _LEAST:
        return max(length, 1)
    least = _LEAST if length <= 2 * _USUAL else min(max(_USUAL, math.ceil(length / _PARTS)), _MOST)
    # Every size is less than the length: all sizes from there on would come to one part, and one ETag.
    choices = min(_SIZES, (length - least - 1) // _STEP + 1)
    return least + write_id.int % choices * _STEP


_Bodies: TypeAlias = AsyncGenerator[bytes | BodyStream, None]


async def _staged(
    upstream: Upstream,
    place: ObjectPlace,
    chunks: AsyncGenerator[bytes, None],
    parts_of: Callable[[AsyncGenerator[bytes, None]], _Bodies],
    headers: TextHeaders,
    now: Callable[[], Awaitable[datetime]],
    register: Register,
) -> Staged | Rejected:
    started = await upstream.create_multipart(*place, headers, signed_at=await now())
    if isinstance(started, NotSent | Unknown):
        raise Unavailable(f"The store does not take the body: {started.reason}.")
    if not isinstance(started, Started):
        return started
    staging = _Staging(upstream, place, started.upload_id, now, register)
    done = False
    try:
        await register.opened(started.upload_id)
        async with aclosing(staging.touching(chunks)) as touched, aclosing(parts_of(touched)) as bodies:
            result = await staging.run(bodies)
        done = isinstance(result, Staged)
        return result
    finally:
        if not done:
            await staging.abort()


async def _streams(chunks: AsyncGenerator[bytes, None], left: int, size: int) -> _Bodies:
    """A body of ``left`` bytes, cut into parts that go through as they come."""
    source = _Source(chunks)
    while left:
        length = min(size, left)
        yield BodyStream(source.take(length), length)
        left -= length


async def _pieces(chunks: AsyncGenerator[bytes, None], size: int) -> _Bodies:
    """A body of any length, cut into parts that are put together here. An empty one is one part."""
    held: list[bytes] = []
    missing, first = size, True
    async for chunk in chunks:
        rest = chunk
        while len(rest) >= missing:
            held.append(rest[:missing])
            piece, rest = b"".join(held), rest[missing:]
            held.clear()
            yield piece
            missing, first = size, False
        held.append(rest)
        missing -= len(rest)
    if first or missing < size:
        yield b"".join(held)


class _Staging:
    """One body on its way into one upload."""

    def __init__(
        self,
        upstream: Upstream,
        place: ObjectPlace,
        upload_id: str,
        now: Callable[[], Awaitable[datetime]],
        register: Register,
    ) -> None:
        self._upstream = upstream
        self._place = place
        self._upload_id = upload_id
        self._now = now
        self._register = register
        self._touched = asyncio.get_running_loop().time()

    async def run(self, bodies: _Bodies) -> Staged | Rejected:
        """Store each of the bodies as a part."""
        parts: list[Part] = []
        async for body in bodies:
            stored = await self._upstream.upload_part(
                *self._place,
                self._upload_id,
                len(parts) + 1,
                body,
                # A body may take longer than a signature is good for, so each part has one of its own.
                signed_at=await self._now(),
            )
            if isinstance(stored, Rejected) and stored.code != "NoSuchUpload":
                return stored
            if not isinstance(stored, Uploaded):
                reason = "the upload was given up" if isinstance(stored, Rejected) else stored.reason
                raise Unavailable(f"The store does not take the body: {reason}.")
            parts.append(Part(len(parts) + 1, stored.etag))
        return Staged(self._upload_id, tuple(parts), etag_of_parts(parts))

    async def abort(self) -> None:
        """Give the upload up, as far as that can be done now; what is left on the register is swept later."""
        with suppress(GatewayError):
            answer = await self._upstream.abort_multipart(*self._place, self._upload_id, signed_at=await self._now())
            if isinstance(answer, Applied | NotApplied):
                await self._register.closed(self._upload_id)

    async def touching(self, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The body; the register hears now and then that it is still coming."""
        clock = asyncio.get_running_loop().time
        async with aclosing(body) as chunks:
            async for chunk in chunks:
                if clock() - self._touched >= _TOUCH:
                    self._touched = clock()
                    await self._register.touched(self._upload_id)
                yield chunk


class _Source:
    """A stream cut into parts, none of which is ever put together."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self._chunks = chunks
        self._rest = b""

    def take(self, size: int) -> "_Piece":
        """The next ``size`` bytes, as they come."""
        return _Piece(self, size)

    async def next(self, most: int) -> bytes:
        chunk = self._rest or await anext(self._chunks)
        self._rest = chunk[most:]
        return chunk[:most]


class _Piece:
    """An iterator over a part of a source. Not a generator: it may be left half way, and has nothing to close."""

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
