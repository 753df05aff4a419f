"""Write an object's same bytes again in another form, so that its ETag changes and a late request's condition fails."""

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeAlias
from urllib.parse import urlencode

from gateway.errors import Unavailable
from gateway.objects.protocol.effects import UploadForm
from gateway.objects.protocol.mutation import candidates, choose
from gateway.objects.s3.answers import NotApplied, NotSent, WriteAnswer
from gateway.objects.s3.request import DESCRIPTION, METADATA
from gateway.objects.store.client import Place, StoreResponse, TextHeaders, path, pieces_of
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
        *DESCRIPTION,
        "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-aws-kms-key-id",
        "x-amz-storage-class",
        "x-amz-website-redirect-location",
    }
)


async def bump(upstream: Upstream, place: Place, etag: str, forbidden: ForbiddenEtags, sign: Sign) -> WriteAnswer:
    """Write the object's same bytes again, in another form, if its ETag still is ``etag``.

    Its ETag changes to none of ``forbidden``, so that the condition of a late request fails.

    ``NO_FORM_LEFT`` where each form has a forbidden ETag. ``NotSent`` also where the object cannot be read.
    """
    try:
        response = await upstream.send("GET", path(place), headers=[("if-match", f'"{etag}"')])
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
            tags = await _tags(upstream, place, response)
            headers, excluded = [*_kept(response), *tags], forbidden | {etag}
            if int(length) > SMALL:
                pieces = pieces_of(response.chunks(), _part_size(int(length)))
                return await upstream.put_pieces(place, pieces, headers, expected=etag, sign=sign, excluded=excluded)
            body = await response.read(SMALL)
            form = choose(candidates(hashlib.md5(body, usedforsecurity=False).hexdigest()), excluded)
            if form is None:
                return NO_FORM_LEFT
            send = upstream.put if form is UploadForm.PLAIN else upstream.put_in_parts
            return await send(place, body, headers, expected=etag, signed_at=await sign())
        except Unavailable as error:
            return NotSent(error.message)


def _part_size(length: int) -> int:
    """Return a size of parts that no upload of the object is likely to have had, so that the ETag is a new one."""
    least = max(_LEAST, length // _PARTS)
    return least + secrets.randbelow(min(length, least + _USUAL) - least)


def _kept(response: StoreResponse) -> TextHeaders:
    """Return the headers that make it the same object again, the gateway's own metadata included."""
    named = [(name.decode("latin-1").lower(), value.decode("utf-8", "replace")) for name, value in response.headers]
    return [(name, value) for name, value in named if name in _KEPT or name.startswith(METADATA)]


async def _tags(upstream: Upstream, place: Place, response: StoreResponse) -> TextHeaders:
    """Return the tags of an object that is about to be written again. An answer to GET has only their number."""
    if response.header("x-amz-tagging-count") in (None, "0"):
        return ()
    return [("x-amz-tagging", urlencode(await upstream.tagging(place) or []))]
