"""Administration of buckets: for callers with the right to it, and on record before the store is asked."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from gateway.db import bypasses, intents, record
from gateway.db.database import Database
from gateway.errors import OutcomeUnknown, StoreError, Unavailable
from gateway.objects.authorisation import StoreRights
from gateway.objects.exchange import Exchange
from gateway.objects.fenced_write import after_the_effect
from gateway.objects.reads import Listings
from gateway.objects.s3.answers import NotSent, Rejected, store_refusal
from gateway.objects.s3.operations import Operation
from gateway.objects.store.client import StoreReply
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.objects.sweeper import Sweeper
from gateway.observe.events import BucketAdministered, Observe

Authorise: TypeAlias = Callable[[Exchange, bytes], Awaitable[None]]
"""Raises ``Denied`` if a configuration has the store write to a bucket that the caller does not administer."""

# These may change what a bucket does with conditions. A deleted bucket may be created again as another one.
_CHANGES_THE_PROFILE = frozenset(
    {
        Operation.CREATE_BUCKET,
        Operation.DELETE_BUCKET,
        Operation.PUT_BUCKET_ENCRYPTION,
        Operation.DELETE_BUCKET_ENCRYPTION,
        Operation.PUT_BUCKET_VERSIONING,
    }
)


class Administration:
    def __init__(
        self,
        database: Database,
        upstream: Upstream,
        profiles: Profiles,
        listings: Listings,
        sweeper: Sweeper,
        rights: StoreRights,
        authorise: Authorise,
        observe: Observe,
        *,
        is_shared: Callable[[str], bool],
    ) -> None:
        """``is_shared``: whether several databases have keys in a bucket."""
        self._is_shared, self._database, self._upstream = is_shared, database, upstream
        self._profiles, self._listings, self._sweeper = profiles, listings, sweeper
        self._rights, self._authorise, self._observe = rights, authorise, observe

    async def administer(self, exchange: Exchange) -> None:
        """Pass one request on. Its caller has the right to it."""
        request = exchange.request
        if request.operation is Operation.DELETE_BUCKET and self._is_shared(request.bucket):
            # The other databases would still remember its objects, and look for their tombstones.
            raise StoreError("NotImplemented", 501, "Several databases have keys in this bucket, so it stays.")
        body = await exchange.document() if exchange.head.method in ("PUT", "POST") else None
        if body is not None:
            await self._authorise(exchange, body.content)
            await self._rights.check_document(request, body.content)
        await record.record_administration(self._database, exchange.attempt(), request.operation, bucket=request.bucket)
        headers = [*request.headers, *((body.content_md5, *body.headers) if body else ())]
        content = body.content if body else b""
        try:
            reply = await self.send(exchange.head.method, request.raw_path, request.query, headers, content)
            if request.operation is Operation.DELETE_BUCKET and await self._clear(request.bucket, reply):
                reply = await self.send(exchange.head.method, request.raw_path, request.query, headers, content)
        finally:
            # The store may have done it without answering.
            if request.operation in _CHANGES_THE_PROFILE:
                self._profiles.forget(request.bucket)
        if request.operation is Operation.DELETE_BUCKET and reply.status < 300:
            with after_the_effect("noted"):
                await bypasses.forget_bucket(self._database, request.bucket)
        self._observe(BucketAdministered(exchange.principal.name, request.operation, request.bucket, reply.status))
        await exchange.response.passed(reply.status, reply.headers, reply.body)

    async def send(
        self, method: str, raw_path: str, query: str, headers: list[tuple[str, str]], content: bytes
    ) -> StoreReply:
        """Send the request, and return the store's answer, unless it is about the gateway."""
        answer, reply = await self._upstream.exchange(method, raw_path, query, headers, content, signed_at=None)
        if isinstance(answer, NotSent):
            raise Unavailable(f"Nothing was changed: {answer.reason}.")
        if reply is None:
            raise OutcomeUnknown("The object store does not answer. The bucket may have been changed.")
        if isinstance(answer, Rejected):
            refusal = store_refusal(answer)
            if refusal.status != reply.status:
                raise refusal
        return reply

    async def _clear(self, bucket: str, reply: StoreReply) -> bool:
        """Return whether a bucket that cannot be deleted held nothing but tombstones, and is now without them.

        Raises ``StoreError`` BucketNotEmpty where tombstones have to stay for now.
        """
        if reply.status != 409 or not await intents.any_tombstone_in(self._database, bucket):
            return False
        if not await self._listings.is_empty(bucket):
            return False
        await self._sweeper.sweep_tombstones(bucket)
        if await intents.any_tombstone_in(self._database, bucket):
            raise StoreError.known(
                "BucketNotEmpty",
                "It has tombstones of deleted objects. They have to stay while a late request may be waiting for "
                "absence. Delete the bucket later, after two minutes at most.",
            )
        return True
