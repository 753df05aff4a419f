"""Reads: they pass through to the store. A tombstone is absence.

Listings leave out what clients are not to see: tombstones, uploads that the gateway opened for itself, and buckets
without a grant. The store's answer for a bucket without any passes through as it is. Otherwise the gateway compares the
listing with Postgres, and looks at each possible tombstone in the store.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import TypeAlias, TypeVar
from urllib.parse import quote

from gateway.auth.grants import IN_A_BUCKET, Action
from gateway.auth.sigv4 import RequestHead
from gateway.background import at_a_time
from gateway.db import intents, uploads
from gateway.db.database import Database
from gateway.errors import GatewayError, StoreError, Unavailable
from gateway.objects.exchange import Exchange, ResponseWriter
from gateway.objects.protocol.effects import TOMBSTONE_SIZE
from gateway.objects.s3 import addressing, listing_pages, xml
from gateway.objects.s3.answers import RawHeaders, no_such_key
from gateway.objects.s3.listing_pages import COMMON_PREFIXES, ListingEntry, ListingPage
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request
from gateway.objects.store.client import StoreResponse, TextHeaders, path, place_of, query_of
from gateway.objects.store.operations import Upstream

# Operations that read what belongs to an object beside its bytes. A tombstone has nothing of the kind.
_BESIDE_BYTES = frozenset(
    {
        Operation.GET_OBJECT_ACL,
        Operation.GET_OBJECT_ANNOTATION,
        Operation.GET_OBJECT_ATTRIBUTES,
        Operation.GET_OBJECT_LEGAL_HOLD,
        Operation.GET_OBJECT_RETENTION,
        Operation.GET_OBJECT_TAGGING,
        Operation.LIST_OBJECT_ANNOTATIONS,
    }
)

_OF_CORS = frozenset(
    {
        b"access-control-allow-credentials",
        b"access-control-allow-methods",
        b"access-control-allow-origin",
        b"access-control-expose-headers",
        b"vary",
    }
)
_CORS_TIMEOUT = 1.0
"""Seconds that a refusal waits for the store to name the CORS headers."""

# With the bucket in the path, an object has the origin of the page at /ui/, where people are logged in. The sandbox
# keeps scripts in objects from running there.
_SANDBOX = (b"content-security-policy", b"sandbox")

_PREFLIGHT = frozenset({"origin", "access-control-request-headers", "access-control-request-method"})


class Reads:
    """All reads but listings of objects and uploads."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def read(self, exchange: Exchange) -> None:
        request = exchange.request
        if exchange.principal.is_anonymous and any(name.startswith("response-") for name, _ in request.parameters):
            # Else a link of a third party could choose the type of an object, such as a page of HTML.
            message = "Request specific response headers cannot be used for anonymous GET requests."
            raise StoreError("InvalidRequest", 400, message)
        if request.operation in _BESIDE_BYTES:
            await self._refuse_tombstone(request)
        method = "HEAD" if request.operation in (Operation.HEAD_BUCKET, Operation.HEAD_OBJECT) else "GET"
        response = await self._upstream.send(method, request.raw_path, request.query, request.headers)
        await response.raise_gateway_fault()
        if request.operation in (Operation.GET_OBJECT, Operation.HEAD_OBJECT) and response.is_tombstone:
            async with response:
                await _absent(exchange, response)
            return
        sandboxed = request.operation is Operation.GET_OBJECT and not exchange.hosted and not _is_pdf(response)
        await exchange.response.stream(response, (_SANDBOX,) if sandboxed else ())

    async def preflight(self, head: RequestHead, host_bucket: str | None, response: ResponseWriter) -> None:
        """Ask the store whether the bucket's CORS rules allow a page's request. A preflight is never signed."""
        bucket, key = addressing.read(head.raw_path, host_bucket)
        given = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in head.headers]
        headers = [pair for pair in given if pair[0] in _PREFLIGHT]
        path = f"/{bucket}/{quote(key, safe='/')}" if key else f"/{bucket}"
        async with await self._upstream.send("OPTIONS", path, headers=headers) as answer:
            body = await answer.read()
        await response.passed(answer.status, answer.headers, body)

    async def cors(self, head: RequestHead, host_bucket: str | None) -> RawHeaders:
        """Return the CORS headers for a refusal: without them, the script of a page cannot read why it was refused.

        There are none unless a rule of the bucket allows the request, or if the store does not tell soon.
        """
        given = {name.lower(): value.decode("latin-1") for name, value in head.headers}
        if b"origin" not in given or head.method == "OPTIONS":
            return ()
        method = given.get(b"access-control-request-method", head.method)
        asked = [("origin", given[b"origin"]), ("access-control-request-method", method)]
        with suppress(GatewayError, TimeoutError):
            bucket, _ = addressing.read(head.raw_path, host_bucket)
            async with asyncio.timeout(_CORS_TIMEOUT):
                async with await self._upstream.send("OPTIONS", f"/{bucket}", headers=asked) as answer:
                    await answer.read()
            if bucket and answer.status == 200:
                return tuple((name, value) for name, value in answer.headers if name.lower() in _OF_CORS)
        return ()

    async def _refuse_tombstone(self, request: S3Request) -> None:
        version = request.parameter("versionId")
        query = "" if version is None else request.query
        async with await self._upstream.send("HEAD", request.raw_path, _only_version(query)) as response:
            if response.is_tombstone:
                raise no_such_key()


async def _absent(exchange: Exchange, response: StoreResponse) -> None:
    """Send what S3 says of a deleted key. In a bucket with versions a tombstone is a delete marker with an id."""
    error, marks = no_such_key(), []
    version_id = response.header("x-amz-version-id")
    if version_id is not None:
        marks = [(b"x-amz-delete-marker", b"true"), (b"x-amz-version-id", version_id.encode("latin-1"))]
        if exchange.request.parameter("versionId") is not None:
            error = StoreError.known(
                "MethodNotAllowed", reason="This version is a delete marker: it can only be deleted."
            )
            marks.append((b"allow", b"DELETE"))
    await exchange.response.refusal(error, tuple(marks))


def _is_pdf(response: StoreResponse) -> bool:
    """Return whether the browser's own viewer shows it, which belongs to no origin and refuses to work in a sandbox.

    The comparison is literal: of ``application/pdf;,text/html`` a browser takes the end.
    """
    return (response.header("content-type") or "").lower() == "application/pdf"


def _only_version(query: str) -> str:
    return "&".join(pair for pair in query.split("&") if pair.startswith("versionId="))


Item = TypeVar("Item")

Databases: TypeAlias = Callable[[str, str], Sequence[Database]]
"""Returns the databases that fence keys of a bucket with a prefix."""

Select: TypeAlias = Callable[[ListingPage, listing_pages.Fetch], Awaitable[tuple[list[ListingEntry], ListingPage]]]
"""Returns the entries of an answer, and the last page that they come from, given the first."""

_MAX_PAGE = 16 * 1024 * 1024  # bytes: a thousand of the longest keys, each character escaped, and their owners
_LARGE = 512 * 1024
_AT_A_TIME = 16
_PREFIXES_AT_A_TIME = 4


class Listings:
    """ListBuckets, ListObjects, ListObjectsV2, ListObjectVersions, ListMultipartUploads."""

    def __init__(self, databases: Databases, upstream: Upstream) -> None:
        self._databases, self._upstream = databases, upstream

    async def list_buckets(self, exchange: Exchange) -> None:
        """Serve ListBuckets, with the buckets in which the caller is granted anything. A page may be empty."""
        rights = exchange.principal.rights
        response = await self._upstream.send("GET", "/", exchange.request.query, exchange.request.headers)
        if rights.bucket(Action.READ, "*") or response.status != 200:
            await self._pass(exchange, response)
            return
        async with response:
            document = await response.read(_MAX_PAGE)
        page = listing_pages.buckets(document, lambda bucket: rights.inside(bucket, *IN_A_BUCKET))
        if page is None:
            raise _unreadable()
        await exchange.response.passed(200, response.headers, page)

    async def list_objects(self, exchange: Exchange) -> None:
        await self._list_visible(exchange, self._tombstones(exchange.request))

    async def list_uploads(self, exchange: Exchange) -> None:
        request = exchange.request
        listed = self._databases(request.bucket, request.parameter("prefix") or "")
        await self._list_visible(exchange, _OwnUploads(listed))

    async def list_versions(self, exchange: Exchange) -> None:
        """Serve ListObjectVersions. A tombstone is shown as a delete marker, as a delete leaves in a bucket with
        versions.

        It has a version id that can be deleted, and is part of the history. Postgres does not list older versions, so a
        tombstone among them is told by its size, and then by its metadata. A bucket that never had versions has no
        delete markers.
        """
        request, tombstones = exchange.request, self._tombstones(exchange.request)

        async def select(first: ListingPage, _: listing_pages.Fetch) -> tuple[list[ListingEntry], ListingPage]:
            suspects = [
                entry for entry in first.entries if entry.kind == listing_pages.VERSION and entry.size == TOMBSTONE_SIZE
            ]
            found = await tombstones.verified(request.bucket, suspects, lambda each: each.text("VersionId"))
            nameless = any(entry.text("VersionId") in ("", "null") for entry in found)
            if nameless and not await self._ever_versioned(request.bucket):
                return [entry for entry in first.entries if entry not in found], first
            return [
                listing_pages.as_delete_marker(entry) if entry in found else entry for entry in first.entries
            ], first

        await self._rewrite(exchange, select)

    async def _ever_versioned(self, bucket: str) -> bool:
        """Return whether the bucket has versions, or had. True where the store does not say."""
        async with await self._upstream.send("GET", f"/{bucket}", "versioning=") as response:
            status = xml.read_field(await response.read(), "VersioningConfiguration", "Status")
        return response.status != 200 or bool(status)

    async def is_empty(self, bucket: str) -> bool:
        """Return whether the bucket has nothing that a client can see. This does not count older versions."""
        return await self._has_only_hidden(_Tombstones(self._databases(bucket, ""), self._upstream), bucket, "")

    def _tombstones(self, request: S3Request) -> "_Tombstones":
        return _Tombstones(self._databases(request.bucket, request.parameter("prefix") or ""), self._upstream)

    async def _list_visible(self, exchange: Exchange, kind: "_Hidden") -> None:
        request = exchange.request
        if not await kind.any_in(request.bucket):
            await self._pass(exchange, await self._ask(request.bucket, request.query, request.headers))
            return

        async def select(first: ListingPage, fetch: listing_pages.Fetch) -> tuple[list[ListingEntry], ListingPage]:
            async def hidden_entries(entries: Sequence[ListingEntry]) -> set[ListingEntry]:
                return await self._hidden_entries(kind, request.bucket, entries)

            return await listing_pages.filled(request.operation, first, fetch, hidden_entries)

        await self._rewrite(exchange, select)

    async def _rewrite(self, exchange: Exchange, select: Select) -> None:
        """Answer with what ``select`` makes of the first page, and of those it fetches after it."""
        request, parameters = exchange.request, dict(exchange.request.parameters)
        response = await self._ask(request.bucket, request.query, request.headers)
        if response.status != 200:
            await self._pass(exchange, response)
            return
        async with response:
            document = await response.read(_MAX_PAGE)
        try:
            body = await self._document(request, parameters, select, document)
        except Unavailable:
            # A key may have characters that XML does not allow. S3 writes them all the same, and some clients read it.
            if "encoding-type" in parameters:
                raise
            parameters["encoding-type"] = "url"
            body = await self._document(request, parameters, select)
        await exchange.response.passed(200, response.headers, body)

    async def _document(
        self, request: S3Request, parameters: Mapping[str, str], select: Select, document: bytes | None = None
    ) -> bytes:
        """Return the document to answer with. Without a first one, names are written as if they were not encoded."""

        async def fetch(following: Mapping[str, str]) -> ListingPage:
            return await self._page(request.bucket, {**parameters, **following}, request.headers)

        first = await fetch({}) if document is None else await _read(document)
        entries, last = await select(first, fetch)
        if document is not None and tuple(entries) == first.entries:
            return document
        return listing_pages.written(request.operation, first, entries, last, decode=document is None and first.encoded)

    async def _hidden_entries(self, kind: "_Hidden", bucket: str, entries: Sequence[ListingEntry]) -> set[ListingEntry]:
        """Return the entries that a page leaves out: hidden ones, and prefixes that have nothing else below them."""
        known = [entry for entry in entries if _storable(entry.name)]
        hidden = await kind.among(bucket, [entry for entry in known if entry.kind != COMMON_PREFIXES])
        prefixes = [entry for entry in known if entry.kind == COMMON_PREFIXES]
        suspects = await kind.below(bucket, [entry.name for entry in prefixes]) if prefixes else frozenset()

        async def only_hidden(entry: ListingEntry) -> bool:
            return await self._has_only_hidden(kind, bucket, entry.name)

        suspected = [entry for entry in prefixes if entry.name in suspects]
        return {*hidden, *await _filtered(only_hidden, suspected, _PREFIXES_AT_A_TIME)}

    async def _has_only_hidden(self, kind: "_Hidden", bucket: str, prefix: str) -> bool:
        """Return whether everything below a prefix is hidden. False where that would take too long to find out."""
        asked = {**kind.parameters, "encoding-type": "url", **({"prefix": prefix} if prefix else {})}
        limit = "max-uploads" if kind.operation is Operation.LIST_MULTIPART_UPLOADS else "max-keys"
        # Most often the first keys show it.
        sizes = chain((10, 100), repeat(1000, listing_pages.MOST_PAGES))
        following: Mapping[str, str] | None = {}
        for size in sizes:
            page = await self._page(bucket, {**asked, **(following or {}), limit: str(size)})
            if len(await kind.among(bucket, page.entries)) < len(page.entries):
                return False
            following = page.following(kind.operation)
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
        await response.raise_gateway_fault()
        await exchange.response.stream(response)


class _Tombstones:
    """Tombstones, the objects that stand for deleted ones.

    ``any_in``: whether a bucket may have any; ``among``: which of these entries are some; ``below``: below which of
    these prefixes there may be some. ``parameters`` list the same below a prefix.
    """

    operation = Operation.LIST_OBJECTS_V2
    parameters: Mapping[str, str] = {"list-type": "2"}

    def __init__(self, databases: Sequence[Database], upstream: Upstream) -> None:
        self._databases, self._upstream = databases, upstream

    async def any_in(self, bucket: str) -> bool:
        return any(await asyncio.gather(*(intents.any_tombstone_in(database, bucket) for database in self._databases)))

    async def among(self, bucket: str, entries: Sequence[ListingEntry]) -> list[ListingEntry]:
        sized = [entry for entry in entries if entry.size in (TOMBSTONE_SIZE, None) and _storable(entry.name)]
        if not sized:
            return []
        asked = [entry.name for entry in sized]
        names = await _all(intents.tombstones_among(database, bucket, asked) for database in self._databases)
        return await self.verified(bucket, [entry for entry in sized if entry.name in names])

    async def below(self, bucket: str, prefixes: Sequence[str]) -> frozenset[str]:
        return await _all(intents.tombstones_below(database, bucket, prefixes) for database in self._databases)

    async def verified(
        self, bucket: str, entries: Iterable[ListingEntry], version_of: Callable[[ListingEntry], str] | None = None
    ) -> list[ListingEntry]:
        """Return the entries that are tombstones by their metadata. An entry that is gone by now counts as one."""

        async def is_one(entry: ListingEntry) -> bool:
            query = "" if version_of is None else query_of({"versionId": version_of(entry) or "null"})
            async with await self._upstream.send("HEAD", path(place_of(bucket, entry.name)), query) as response:
                if response.status == 404:
                    return version_of is None
                if response.status != 200:
                    raise Unavailable(f"The store answered with {response.status} when asked about a key it lists.")
                return response.is_tombstone

        return await _filtered(is_one, entries, _AT_A_TIME)


class _OwnUploads:
    """Uploads that take a body in for the gateway, asked for as tombstones are. Clients cannot use them."""

    operation = Operation.LIST_MULTIPART_UPLOADS
    parameters: Mapping[str, str] = {"uploads": ""}

    def __init__(self, databases: Sequence[Database]) -> None:
        self._databases = databases

    async def any_in(self, bucket: str) -> bool:
        return any(await asyncio.gather(*(uploads.any_staged(database, bucket) for database in self._databases)))

    async def among(self, bucket: str, entries: Sequence[ListingEntry]) -> list[ListingEntry]:
        asked = [entry.text("UploadId") for entry in entries]
        ids = await _all(uploads.staged_among(database, bucket, asked) for database in self._databases)
        return [entry for entry in entries if entry.text("UploadId") in ids]

    async def below(self, bucket: str, prefixes: Sequence[str]) -> frozenset[str]:
        return await _all(uploads.staged_below(database, bucket, prefixes) for database in self._databases)


_Hidden: TypeAlias = _Tombstones | _OwnUploads
"""The entries that a listing of one kind leaves out."""


async def _all(asked: Iterable[Awaitable[frozenset[str]]]) -> frozenset[str]:
    """Return what the databases of a bucket know, which are asked side by side. The first failure decides.

    The others are not cancelled then, because that would end their sessions. They end within their own timeouts.
    """
    return frozenset[str]().union(*await asyncio.gather(*asked))


async def _read(document: bytes) -> ListingPage:
    """Return the page. A large one is parsed in a thread."""
    large = len(document) >= _LARGE
    page = await asyncio.to_thread(listing_pages.read, document) if large else listing_pages.read(document)
    if page is None:
        raise _unreadable()
    return page


def _unreadable() -> Unavailable:
    advice = "Ask the operator to look at what it answers."
    return Unavailable("The store's listing is not one, or no XML.", advice=advice)


def _storable(name: str) -> bool:
    """Return whether Postgres can store such a key: none with a NUL, or with bytes that are no UTF-8."""
    with suppress(UnicodeEncodeError):
        return "\0" not in name and bool(name.encode())
    return False


async def _filtered(check: Callable[[Item], Awaitable[bool]], items: Iterable[Item], most: int) -> list[Item]:
    """Return the items that pass a check, in their order. Raises the error of the first check that fails."""
    wanted = list(items)
    passed = await at_a_time(most, check, wanted)
    return [item for item, passes in zip(wanted, passed, strict=True) if passes]
