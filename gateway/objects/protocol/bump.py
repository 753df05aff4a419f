"""Write an object's same bytes again in another form, so that its ETag changes and a late request's condition fails."""

import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import TypeAlias
from urllib.parse import urlencode

from gateway.errors import Unavailable
from gateway.objects.protocol.effects import UploadForm
from gateway.objects.protocol.mutation import candidates, choose
from gateway.objects.s3 import request_headers
from gateway.objects.s3.answers import NotApplied, NotSent, Rejected, Started, Unknown, Uploaded, WriteAnswer
from gateway.objects.s3.documents import Part, etag_of_parts
from gateway.objects.store.client import StoreResponse, TextHeaders, path
from gateway.objects.store.operations import Upstream

MEBIBYTE = 1024 * 1024
# Up to this size the bytes are read into memory and may go in either form. Larger ones go in parts, one at a time.
SMALL = 8 * MEBIBYTE
_LEAST = 5 * MEBIBYTE  # S3's minimum for a part that is not the last
_USUAL = 16 * MEBIBYTE
_PARTS = 9000  # S3 takes 10000

NO_FORM_LEFT = NotSent("every form of these bytes has a forbidden ETag")

ForbiddenEtags: TypeAlias = frozenset[str]
Sign: TypeAlias = Callable[[], Awaitable[datetime]]
"""Forbids the condition of the bump until that is dead. Returns the time of its signature."""

# The headers that S3 returns with a GET and takes with a PUT.
_KEPT = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
        "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-aws-kms-key-id",
        "x-amz-storage-class",
        "x-amz-website-redirect-location",
    }
)


async def bump(
    upstream: Upstream, bucket: str, raw_key: str, etag: str, forbidden: ForbiddenEtags, sign: Sign
) -> WriteAnswer:
    """Bump the object if its ETag still is ``etag``; the new one is not in ``forbidden``.

    ``NO_FORM_LEFT`` where each form has a forbidden ETag. ``NotSent`` also where the object cannot be read.
    """
    try:
        response = await upstream.send("GET", path(bucket, raw_key), headers=[("if-match", f'"{etag}"')])
    except Unavailable as error:
        return NotSent(error.message)
    async with response:
        if response.status != 200:
            return NotApplied(response.status, "the object has changed, or cannot be read")
        length = response.header("content-length")
        if length is None or not length.isdecimal():
            # A body that broke off would pass for a whole one, and would become the object.
            return NotSent("the store does not say how long the object is")
        try:
            tags = await _tags(upstream, bucket, raw_key, response)
            rewriting = _Rewriting(upstream, bucket, raw_key, etag, sign, [*_kept(response), *tags])
            if int(length) <= SMALL:
                return await rewriting.put_from_memory(await response.read(SMALL), forbidden | {etag})
        except Unavailable as error:
            return NotSent(error.message)
        return await rewriting.in_parts(response, _part_size(int(length)), forbidden | {etag})


def _part_size(length: int) -> int:
    """Return a size of parts that no upload of the object is likely to have had, so that the ETag is a new one."""
    least = max(_LEAST, length // _PARTS)
    return least + secrets.randbelow(min(length, least + _USUAL) - least)


class _Rewriting:
    """Writes one object back to its key, on condition that it is still there."""

    def __init__(
        self, upstream: Upstream, bucket: str, raw_key: str, etag: str, sign: Sign, headers: TextHeaders
    ) -> None:
        self._upstream = upstream
        self._place = (bucket, raw_key)
        self._etag = etag
        self._sign = sign
        self._headers = headers

    async def put_from_memory(self, body: bytes, excluded: ForbiddenEtags) -> WriteAnswer:
        md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
        form = choose(candidates(md5), excluded)
        if form is None:
            return NO_FORM_LEFT
        send = self._upstream.put if form is UploadForm.PLAIN else self._upstream.put_in_parts
        return await send(*self._place, body, self._headers, expected=self._etag, signed_at=await self._sign())

    async def in_parts(self, response: StoreResponse, part_size: int, excluded: ForbiddenEtags) -> WriteAnswer:
        """Write it in parts. Nothing takes effect before all of them are stored, which may take long."""
        started = await self._upstream.create_multipart(*self._place, self._headers)
        if not isinstance(started, Started):
            return NotSent(started.reason) if isinstance(started, Unknown) else started
        answer: WriteAnswer = NotSent("the object could not be read to its end")
        try:
            parts = await self._upload(started.upload_id, response, part_size)
            if isinstance(parts, list) and etag_of_parts(parts) in excluded:
                answer = NotSent("parts of this size give a forbidden ETag")
            elif isinstance(parts, list):
                answer = await self._upstream.complete_multipart(
                    *self._place, started.upload_id, parts, expected=self._etag, signed_at=await self._sign()
                )
            else:
                answer = parts
        except Unavailable:
            pass
        if isinstance(answer, NotApplied | Rejected | NotSent):
            await self._upstream.abort_multipart(*self._place, started.upload_id)
        return answer

    async def _upload(self, upload_id: str, response: StoreResponse, part_size: int) -> list[Part] | Rejected | NotSent:
        parts: list[Part] = []
        async for body in _pieces(response, part_size):
            stored = await self._upstream.upload_part(*self._place, upload_id, len(parts) + 1, body)
            if not isinstance(stored, Uploaded):
                return NotSent(stored.reason) if isinstance(stored, Unknown) else stored
            parts.append(Part(len(parts) + 1, stored.etag))
        return parts


def _kept(response: StoreResponse) -> TextHeaders:
    """Return the headers that make it the same object again, the gateway's own metadata included."""
    named = [(name.decode("latin-1").lower(), value.decode("utf-8", "replace")) for name, value in response.headers]
    return [(name, value) for name, value in named if name in _KEPT or name.startswith(request_headers.METADATA)]


async def _tags(upstream: Upstream, bucket: str, raw_key: str, response: StoreResponse) -> TextHeaders:
    """Return the tags of an object that is about to be written again. An answer to GET has only their number."""
    if response.header("x-amz-tagging-count") in (None, "0"):
        return ()
    return [("x-amz-tagging", urlencode(await upstream.tagging(bucket, raw_key) or []))]


async def _pieces(response: StoreResponse, size: int) -> AsyncIterator[bytes]:
    """Yield the body in pieces of ``size`` bytes, the last one shorter."""
    piece = bytearray()
    async with aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            piece += chunk
            while len(piece) >= size:
                yield bytes(piece[:size])
                del piece[:size]
    if piece:
        yield bytes(piece)
