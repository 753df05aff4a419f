"""CopyObject: a read and a fenced write. Small objects pass through memory, large ones never leave the store."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from gateway.background import at_a_time
from gateway.errors import StoreError, Unavailable
from gateway.http.body import twice
from gateway.objects.exchange import Exchange
from gateway.objects.fenced_write import FencedWrite
from gateway.objects.protocol.effects import Stored
from gateway.objects.put import Puts
from gateway.objects.s3 import xml
from gateway.objects.s3.addressing import CopySource, PartSource
from gateway.objects.s3.answers import Applied, Rejected, Uploaded, no_such_key, step_failure, unquoted
from gateway.objects.s3.body import Algorithm, VerifiedBody, algorithm_named, checksum_elements, checksum_header
from gateway.objects.s3.request import DESCRIPTION, METADATA, S3Request, is_own
from gateway.objects.s3.xml import Part
from gateway.objects.staging import Staging, part_size
from gateway.objects.store.bucket_profile import Profile
from gateway.objects.store.client import StoreResponse, TextHeaders
from gateway.objects.store.operations import Upstream


@dataclass(frozen=True, slots=True)
class SourceObject:
    """The object at the source: its ETag without quotes, its size in bytes, its headers by lower-case name."""

    etag: str
    size: int
    headers: Mapping[str, str]

    @property
    def version_id(self) -> str | None:
        return self.headers.get("x-amz-version-id")

    @property
    def checksum(self) -> Algorithm | None:
        """The algorithm of the checksum that the store keeps of it."""
        return next((each for each in Algorithm if each.header in self.headers), None)

    def description(self) -> TextHeaders:
        return [(name, value) for name, value in self.headers.items() if describes(name) and not is_own(name)]


def describes(name: str) -> bool:
    """Return whether a header (lower-case name) describes an object, so that a copy has it from source or request."""
    return name in DESCRIPTION or name.startswith(METADATA)


class SourceChanged(Unavailable):
    """The source of a copy has changed since it was found."""


class Sources:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def find(self, source: CopySource) -> SourceObject:
        """Return the source. Raises ``StoreError``: NoSuchKey, or 412 where it does not fulfil its conditions."""
        asked = [*source.conditions, ("x-amz-checksum-mode", "ENABLED")]
        response = await self._upstream.send("HEAD", source.raw_path, source.query, asked)
        async with response:
            if response.status in (304, 412):
                raise StoreError.known("PreconditionFailed")
            if response.status == 404 or response.is_tombstone:
                raise await self._missing(source)
            if response.status == 403 and source.expects_owner:
                raise StoreError.known("AccessDenied", reason="The bucket of the source has another owner.")
            await response.raise_gateway_fault()
            return _object(response)

    async def _missing(self, source: CopySource) -> StoreError:
        """Tell a missing bucket from a missing key, which an answer to HEAD does not."""
        is_absent = await self._upstream.look_at_bucket(source.bucket) == 404
        return StoreError.known("NoSuchBucket") if is_absent else no_such_key()

    async def read(self, source: CopySource, found: SourceObject, checksum: Algorithm | None = None) -> VerifiedBody:
        """Return the bytes of a small source that was found, with a checksum of them.

        Raises ``SourceChanged`` if they are not the same any more.
        """
        response = await self._upstream.send("GET", source.raw_path, source.query, [("if-match", f'"{found.etag}"')])
        async with response:
            if response.status in (404, 412):
                raise SourceChanged("Nothing was written: the source of the copy keeps changing.")
            await response.raise_gateway_fault()
            content = await response.read(found.size + 1) if response.status == 200 else b""
        if response.status != 200 or len(content) != found.size:
            raise Unavailable("Nothing was written: the source of the copy could not be read.")
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        checksums = () if checksum is None else (checksum_header(checksum, content),)
        return VerifiedBody(content, md5, hashlib.sha256(content).hexdigest(), checksums)

    async def tags(self, source: CopySource) -> TextHeaders:
        tags = await self._upstream.tagging((source.bucket, source.raw_key), source.version_id)
        return [("x-amz-tagging", urlencode(tags))] if tags else []


def _object(response: StoreResponse) -> SourceObject:
    headers = {name.decode("latin-1").lower(): value.decode("utf-8", "replace") for name, value in response.headers}
    etag, size = unquoted(headers.get("etag")), headers.get("content-length", "")
    if response.status != 200 or etag is None or not size.isdecimal():
        raise Unavailable("Nothing was written: the source of the copy could not be read.")
    return SourceObject(etag, int(size), headers)


# Headers that make a copy of an object onto itself another object, so that it is not a mistake.
_CHANGES = ("x-amz-server-side-encryption", "x-amz-storage-class", "x-amz-website-redirect-location")
_NOT_OF_THE_COPY = frozenset({"x-amz-checksum-algorithm", "x-amz-tagging"})
_AT_A_TIME = 4
_ATTEMPTS = 10  # as long as the source is another object each time


class Copies:
    """Copies inside the store. An object up to ``puts.threshold`` bytes passes through memory."""

    def __init__(self, puts: Puts, sources: Sources) -> None:
        self._puts, self._sources = puts, sources
        self._upstream, self._writes = puts.upstream, puts.writes

    async def copy(self, exchange: Exchange) -> None:
        request = exchange.request
        source = request.source
        assert source is not None
        named = next((value for name, value in request.headers if name == "x-amz-checksum-algorithm"), None)
        checksum = None if named is None else algorithm_named(named)
        write = await self._writes.prepare(exchange)
        _refuse_in_place(request, source)
        await self._writes.refuse_if_stale(write)
        profile = await self._writes.profile_for(write)
        for attempt in range(1, _ATTEMPTS + 1):
            found = await self._sources.find(source)
            try:
                stored = await self._copied(exchange, write, profile, source, found, checksum)
                break
            except SourceChanged:  # its writer is at work, and the copy is of what it leaves
                if attempt == _ATTEMPTS:
                    raise
        modified = _text(self._upstream.store_time)
        document = xml.copied(stored.applied.etag or "", modified, checksum_elements(stored.applied.headers))
        applied = stored.applied if found.version_id is None else _from_version(stored.applied, found.version_id)
        await exchange.response.stored(applied, write.target.resource, stored.fence, document=document)

    async def _copied(
        self,
        exchange: Exchange,
        write: FencedWrite,
        profile: Profile,
        source: CopySource,
        found: SourceObject,
        checksum: Algorithm | None,
    ) -> Stored:
        """Copy the source that was found. Raises ``SourceChanged`` if it is another one meanwhile."""
        request = exchange.request
        headers = await self._headers(request, source, found)
        if found.size <= self._puts.threshold:
            async with self._puts.memory.held(twice(found.size)):
                body = await self._sources.read(source, found, checksum or found.checksum)
                write = write.with_body(body.size, body.sha256)
                return await self._puts.put_from_memory(write, profile, body, headers, request.condition)
        staging = self._puts.staging(write)
        staged = await staging.stage_parts(
            headers, lambda upload_id: self._copy_parts(write, source, found, staging, upload_id)
        )
        return await self._puts.complete(write.with_body(found.size, None), profile, staged, request.condition)

    async def _headers(self, request: S3Request, source: CopySource, found: SourceObject) -> TextHeaders:
        own = [pair for pair in request.headers if not describes(pair[0]) and pair[0] not in _NOT_OF_THE_COPY]
        described = [pair for pair in request.headers if describes(pair[0])]
        tags = [pair for pair in request.headers if pair[0] == "x-amz-tagging"]
        return [
            *own,
            *(described if source.replace_metadata else found.description()),
            *(tags if source.replace_tags else await self._sources.tags(source)),
        ]

    async def _copy_parts(
        self, write: FencedWrite, source: CopySource, found: SourceObject, staging: Staging, upload_id: str
    ) -> tuple[Part, ...]:
        """Let the store copy all parts of an upload, from a source that must not change meanwhile."""
        size = part_size(found.size, write.announced.write_id)

        async def copy_part(first: int) -> Part:
            number = first // size + 1
            span = (first, min(first + size, found.size) - 1)
            wanted = PartSource(source.bucket, source.key, found.etag, source.version_id, span)
            copied = await self._upstream.upload_part_copy(write.place, upload_id, number, wanted)
            if isinstance(copied, Uploaded):
                await staging.touch(upload_id)
                return Part(number, copied.etag)
            if isinstance(copied, Rejected) and copied.status == 412:
                raise SourceChanged("Nothing was written: the source of the copy keeps changing.")
            raise step_failure(copied)

        return tuple(await at_a_time(_AT_A_TIME, copy_part, range(0, found.size, size)))


def _refuse_in_place(request: S3Request, source: CopySource) -> None:
    in_place = (source.bucket, source.key) == (request.bucket, request.key) and source.version_id is None
    if in_place and not source.replace_metadata and not any(name in _CHANGES for name, _ in request.headers):
        raise StoreError(
            "InvalidRequest",
            400,
            "This copy request is illegal because it is trying to copy an object to itself without changing the "
            "object's metadata, storage class, website redirect location or encryption attributes.",
        )


def _text(moment: datetime | None) -> str:
    """Return a time as S3 writes it in a document. It is the store's own clock, from the answer to the write."""
    return (moment or datetime.fromtimestamp(0, UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _from_version(applied: Applied, version_id: str) -> Applied:
    return Applied(applied.etag, (*applied.headers, (b"x-amz-copy-source-version-id", version_id.encode())))
