"""Listings leave out what clients are not to see: tombstones, and the uploads the gateway opened for itself.

Where a bucket has none, the store's answer passes through as it is. Else what is listed is compared with what Postgres
knows, and what that says may be a tombstone is looked at in the store.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Protocol, TypeVar

from gateway.db import tombstones, uploads
from gateway.db.database import Database
from gateway.errors import GatewayError, Unavailable
from gateway.objects.exchange import Exchange, is_tombstone
from gateway.objects.protocol.effects import TOMBSTONE_SIZE
from gateway.objects.reads import raise_gateway_fault
from gateway.objects.run.runner import path_of
from gateway.objects.s3 import listing_pages, xml
from gateway.objects.s3.listing_pages import COMMON_PREFIXES, ListingEntry, ListingPage
from gateway.objects.s3.operations import Operation
from gateway.objects.store.client import StoreResponse, TextHeaders, path, query_of
from gateway.objects.store.operations import Upstream

Item = TypeVar("Item")

_MAX_PAGE = 16 * 1024 * 1024  # bytes: a thousand of the longest keys, each character of them escaped, and their owners
_LARGE = 512 * 1024
_AT_A_TIME = 16
_PREFIXES_AT_A_TIME = 4


class _Veil(Protocol):
    """What a listing of one kind leaves out. ``asking`` are the parameters for listing the same below a prefix."""

    operation: Operation
    asking: Mapping[str, str]

    async def any_in(self, bucket: str) -> bool:
        """Whether there may be anything of that kind in the bucket."""

    async def among(self, bucket: str, entries: Sequence[ListingEntry]) -> list[ListingEntry]:
        """Which of these entries are not to be seen."""

    async def below(self, bucket: str, prefixes: Sequence[str]) -> frozenset[str]:
        """Below which of these prefixes there may be any."""


class Listings:
    """ListObjects, ListObjectsV2, ListObjectVersions, ListMultipartUploads."""

    def __init__(self, database: Database, upstream: Upstream) -> None:
        self._upstream = upstream
        self._objects = _Tombstones(database, upstream)
        self._uploads = _OwnUploads(database)

    async def list_objects(self, exchange: Exchange) -> None:
        """ListObjects and ListObjectsV2, without tombstones."""
        await self._veiled(exchange, self._objects)

    async def list_uploads(self, exchange: Exchange) -> None:
        """ListMultipartUploads, without those that stage a body."""
        await self._veiled(exchange, self._uploads)

    async def list_versions(self, exchange: Exchange) -> None:
        """ListObjectVersions. A tombstone is shown as what a delete leaves in a bucket with versions: a delete marker.

        It has a version id that can be deleted, and is part of the history. Once it is history nobody keeps a list of
        it, so it is told by its size, and then by its metadata. A bucket that never had versions has no delete markers.
        """
        request = exchange.request

        async def shown(first: ListingPage, _: listing_pages.Fetch) -> tuple[list[ListingEntry], ListingPage]:
            suspects = [
                entry for entry in first.entries if entry.kind == listing_pages.VERSION and entry.size == TOMBSTONE_SIZE
            ]
            buried = await self._objects.verified(request.bucket, suspects, lambda each: each.text("VersionId"))
            nameless = any(entry.text("VersionId") in ("", "null") for entry in buried)
            if nameless and not await self._ever_versioned(request.bucket):
                return [entry for entry in first.entries if entry not in buried], first
            return [
                listing_pages.as_delete_marker(entry) if entry in buried else entry for entry in first.entries
            ], first

        await self._rewritten(exchange, shown)

    async def _ever_versioned(self, bucket: str) -> bool:
        """Whether the bucket has versions, or had. True where the store does not say."""
        async with await self._upstream.send("GET", f"/{bucket}", "versioning=") as response:
            status = xml.read_field(await response.read(), "VersioningConfiguration", "Status")
        return response.status != 200 or bool(status)

    async def is_empty(self, bucket: str) -> bool:
        """Whether nothing is in the bucket that a client can see. Of older versions this says nothing."""
        return await self._is_hollow(self._objects, bucket, "")

    async def _veiled(self, exchange: Exchange, veil: _Veil) -> None:
        request = exchange.request
        if not await veil.any_in(request.bucket):
            await self._pass(exchange, await self._ask(request.bucket, request.query, request.headers))
            return

        async def shown(first: ListingPage, fetch: listing_pages.Fetch) -> tuple[list[ListingEntry], ListingPage]:
            async def hidden(entries: Sequence[ListingEntry]) -> set[ListingEntry]:
                return await self._hidden(veil, request.bucket, entries)

            return await listing_pages.filled(request.operation, first, fetch, hidden)

        await self._rewritten(exchange, shown)

    async def _rewritten(
        self,
        exchange: Exchange,
        shown: Callable[[ListingPage, listing_pages.Fetch], Awaitable[tuple[list[ListingEntry], ListingPage]]],
    ) -> None:
        """Answer with what ``shown`` makes of the first page, and of those it fetches after it."""
        request, parameters = exchange.request, dict(exchange.request.parameters)
        response = await self._ask(request.bucket, request.query, request.headers)
        if response.status != 200:
            await self._pass(exchange, response)
            return
        async with response:
            document = await response.read(_MAX_PAGE)
        try:
            body = await self._made(request.operation, request.bucket, parameters, request.headers, shown, document)
        except Unavailable:
            # A key may have characters that no XML can say. S3 writes them all the same, and some clients read it.
            if "encoding-type" in parameters:
                raise
            parameters["encoding-type"] = "url"
            body = await self._made(request.operation, request.bucket, parameters, request.headers, shown)
        await exchange.response.passed(200, response.headers, body)

    async def _made(
        self,
        operation: Operation,
        bucket: str,
        parameters: Mapping[str, str],
        headers: TextHeaders,
        shown: Callable[[ListingPage, listing_pages.Fetch], Awaitable[tuple[list[ListingEntry], ListingPage]]],
        document: bytes | None = None,
    ) -> bytes:
        """The document to answer with. Without a first one, the client gets names as if they were not encoded."""

        async def fetch(following: Mapping[str, str]) -> ListingPage:
            return await self._page(bucket, {**parameters, **following}, headers)

        first = await fetch({}) if document is None else await _read(document)
        entries, last = await shown(first, fetch)
        if document is not None and tuple(entries) == first.entries:
            return document
        return listing_pages.written(operation, first, entries, last, decode=document is None and first.encoded)

    async def _hidden(self, veil: _Veil, bucket: str, entries: Sequence[ListingEntry]) -> set[ListingEntry]:
        """What a listing leaves out of a page: that itself, and prefixes below which there is nothing else."""
        known = [entry for entry in entries if _storable(entry.name)]
        hidden = await veil.among(bucket, [entry for entry in known if entry.kind != COMMON_PREFIXES])
        prefixes = [entry for entry in known if entry.kind == COMMON_PREFIXES]
        suspects = await veil.below(bucket, [entry.name for entry in prefixes]) if prefixes else frozenset()

        async def hollow(entry: ListingEntry) -> bool:
            return await self._is_hollow(veil, bucket, entry.name)

        suspected = [entry for entry in prefixes if entry.name in suspects]
        return {*hidden, *await _those(hollow, suspected, _PREFIXES_AT_A_TIME)}

    async def _is_hollow(self, veil: _Veil, bucket: str, prefix: str) -> bool:
        """Whether all there is below a prefix is hidden. False where that would take too long to find out."""
        asked = {**veil.asking, "encoding-type": "url", **({"prefix": prefix} if prefix else {})}
        limit = "max-uploads" if veil.operation is Operation.LIST_MULTIPART_UPLOADS else "max-keys"
        # Most often the first keys tell.
        sizes = chain((10, 100), repeat(1000, listing_pages.MOST_PAGES))
        following: Mapping[str, str] | None = {}
        for size in sizes:
            page = await self._page(bucket, {**asked, **(following or {}), limit: str(size)})
            if len(await veil.among(bucket, page.entries)) < len(page.entries):
                return False
            following = page.following(veil.operation)
            if following is None:
                return True
        return False

    async def _page(self, bucket: str, parameters: Mapping[str, str], headers: TextHeaders = ()) -> ListingPage:
        async with await self._ask(bucket, query_of(parameters), headers) as response:
            document = await response.read(_MAX_PAGE)
        if response.status != 200:
            raise Unavailable(f"The store answered with {response.status} when asked for more of a listing.")
        return await _read(document)

    async def _ask(self, bucket: str, query: str, headers: TextHeaders) -> StoreResponse:
        return await self._upstream.send("GET", f"/{bucket}", query, headers)

    async def _pass(self, exchange: Exchange, response: StoreResponse) -> None:
        await raise_gateway_fault(response)
        await exchange.response.stream(exchange.request, response)


class _Tombstones:
    """What stands for deleted objects."""

    operation = Operation.LIST_OBJECTS_V2
    asking: Mapping[str, str] = {"list-type": "2"}

    def __init__(self, database: Database, upstream: Upstream) -> None:
        self._database = database
        self._upstream = upstream

    async def any_in(self, bucket: str) -> bool:
        return await tombstones.any_in(self._database, bucket)

    async def among(self, bucket: str, entries: Sequence[ListingEntry]) -> list[ListingEntry]:
        sized = [entry for entry in entries if entry.size in (TOMBSTONE_SIZE, None) and _storable(entry.name)]
        if not sized:
            return []
        names = await tombstones.among(self._database, bucket, [entry.name for entry in sized])
        return await self.verified(bucket, [entry for entry in sized if entry.name in names])

    async def below(self, bucket: str, prefixes: Sequence[str]) -> frozenset[str]:
        return await tombstones.below(self._database, bucket, prefixes)

    async def verified(
        self, bucket: str, entries: Iterable[ListingEntry], version_of: Callable[[ListingEntry], str] | None = None
    ) -> list[ListingEntry]:
        """Those of them that are tombstones by their metadata. One that is gone by now was one, or is not there."""

        async def is_one(entry: ListingEntry) -> bool:
            query = "" if version_of is None else query_of({"versionId": version_of(entry) or "null"})
            async with await self._upstream.send("HEAD", path(bucket, path_of(entry.name)), query) as response:
                if response.status == 404:
                    return version_of is None
                if response.status != 200:
                    raise Unavailable(f"The store answered with {response.status} when asked about a key it lists.")
                return is_tombstone(response)

        return await _those(is_one, entries, _AT_A_TIME)


class _OwnUploads:
    """Uploads that take in a body for the gateway. Nobody else can use them."""

    operation = Operation.LIST_MULTIPART_UPLOADS
    asking: Mapping[str, str] = {"uploads": ""}

    def __init__(self, database: Database) -> None:
        self._database = database

    async def any_in(self, bucket: str) -> bool:
        return await uploads.any_staged(self._database, bucket)

    async def among(self, bucket: str, entries: Sequence[ListingEntry]) -> list[ListingEntry]:
        ids = await uploads.staged_among(self._database, bucket, [entry.text("UploadId") for entry in entries])
        return [entry for entry in entries if entry.text("UploadId") in ids]

    async def below(self, bucket: str, prefixes: Sequence[str]) -> frozenset[str]:
        return await uploads.staged_below(self._database, bucket, prefixes)


async def _read(document: bytes) -> ListingPage:
    """The page. Of a large one, without holding other requests up."""
    large = len(document) >= _LARGE
    page = await asyncio.to_thread(listing_pages.read, document) if large else listing_pages.read(document)
    if page is None:
        raise Unavailable(
            "The store's listing is not one, or no XML.", advice="Ask the operator to look at what it answers."
        )
    return page


def _storable(name: str) -> bool:
    """Whether Postgres can know of such a key: none with a NUL, or with bytes that are no UTF-8."""
    with suppress(UnicodeEncodeError):
        return "\0" not in name and bool(name.encode())
    return False


async def _those(check: Callable[[Item], Awaitable[bool]], items: Iterable[Item], at_a_time: int) -> list[Item]:
    """The items that pass a check, in their order. Raises what the first check raises that fails."""
    gate, wanted = asyncio.Semaphore(at_a_time), list(items)

    async def checked(item: Item) -> bool:
        async with gate:
            return await check(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(checked(item)) for item in wanted]
    except* GatewayError as errors:
        raise errors.exceptions[0] from None
    return [item for item, task in zip(wanted, tasks, strict=True) if task.result()]
