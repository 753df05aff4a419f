"""The source of a copy: looked at as callers see it, and read for what a copy takes over."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from gateway.errors import StoreError, Unavailable
from gateway.objects import forwarding
from gateway.objects.answers import unquoted
from gateway.objects.body import VerifiedBody
from gateway.objects.checksums import Digests
from gateway.objects.hop import Response
from gateway.objects.reads import is_tombstone, refuse_what_is_about_us
from gateway.objects.source import CopySource
from gateway.objects.upstream import TextHeaders, Upstream

# What describes the bytes to their readers; a copy has it from its source, or all of it from its request.
_DESCRIPTION = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
    }
)


@dataclass(frozen=True, slots=True)
class SourceObject:
    """What stands at the source: its ETag without quotes, its size in bytes, its headers by lower-case name."""

    etag: str
    size: int
    headers: Mapping[str, str]

    @property
    def version_id(self) -> str | None:
        return self.headers.get("x-amz-version-id")

    def description(self) -> TextHeaders:
        """The headers and metadata that a copy takes over."""
        return [
            (name, value) for name, value in self.headers.items() if describes(name) and not forwarding.is_own(name)
        ]


def describes(name: str) -> bool:
    """Whether a header (lower-case name) says something about an object that its source or its request decides."""
    return name in _DESCRIPTION or name.startswith(forwarding.METADATA)


class Sources:
    """Reads of what is to be copied."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def find(self, source: CopySource) -> SourceObject:
        """The source, if it fulfils its conditions. Raises ``StoreError``: NoSuchKey, or 412 where it does not."""
        response = await self._upstream.send("HEAD", source.raw_path, source.query, source.conditions)
        async with response:
            if response.status in (304, 412):
                raise StoreError(
                    "PreconditionFailed", 412, "At least one of the pre-conditions you specified did not hold"
                )
            if response.status == 404 or is_tombstone(response):
                raise await self._missing(source)
            await refuse_what_is_about_us(response)
            return _object(response)

    async def _missing(self, source: CopySource) -> StoreError:
        """An answer to HEAD does not say what there is none of."""
        bucket = await self._upstream.send("HEAD", f"/{source.bucket}")
        async with bucket:
            if bucket.status == 404:
                return StoreError("NoSuchBucket", 404, "The specified bucket does not exist.")
        return StoreError("NoSuchKey", 404, "The specified key does not exist.")

    async def read(self, source: CopySource, found: SourceObject) -> VerifiedBody:
        """The bytes of a source that has been found, if they still are the same; for small ones."""
        response = await self._upstream.send("GET", source.raw_path, source.query, [("if-match", f'"{found.etag}"')])
        async with response:
            if response.status == 412:
                raise StoreError("PreconditionFailed", 412, "The source of the copy has changed meanwhile.")
            await refuse_what_is_about_us(response)
            content = await response.read(found.size + 1) if response.status == 200 else b""
        if response.status != 200 or len(content) != found.size:
            raise Unavailable("Nothing was written: the source of the copy could not be read.")
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return VerifiedBody(content, Digests(len(content), md5, hashlib.sha256(content).hexdigest(), ()))

    async def tags(self, source: CopySource) -> TextHeaders:
        """The tags of the source as the header that gives them to its copy."""
        tags = await self._upstream.tagging(source.bucket, source.raw_key, source.version_id)
        return [("x-amz-tagging", urlencode(tags))] if tags else []


def _object(response: Response) -> SourceObject:
    headers = {name.decode("latin-1").lower(): value.decode("utf-8", "replace") for name, value in response.headers}
    etag, size = unquoted(headers.get("etag")), headers.get("content-length", "")
    if response.status != 200 or etag is None or not size.isdecimal():
        raise Unavailable("Nothing was written: the source of the copy could not be read.")
    return SourceObject(etag, int(size), headers)
