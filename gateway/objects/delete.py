"""DeleteObject and DeleteObjects: each key is a fenced write of its own."""

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

from gateway.errors import GatewayError, StoreError
from gateway.http.body import offload
from gateway.objects.amend import Amendments
from gateway.objects.exchange import Exchange, headers_left_by
from gateway.objects.fenced_write import FencedWrite, FencedWrites
from gateway.objects.protocol import mutation
from gateway.objects.protocol.effects import Deleted, InParts
from gateway.objects.protocol.runner import OperationPayload
from gateway.objects.put import Puts
from gateway.objects.s3 import conditions, documents
from gateway.objects.s3.conditions import WriteCondition
from gateway.objects.s3.documents import DeletedObject, ObjectToDelete
from gateway.objects.store.client import TextHeaders

_AT_A_TIME = 16


class Deletes:
    """Deletes of objects, one or many."""

    def __init__(
        self, writes: FencedWrites, puts: Puts, amendments: Amendments, of_key: Callable[[str, str], "Deletes"]
    ) -> None:
        """``of_key`` returns those of the database that fences a key of a bucket."""
        self._of_key = of_key
        self._writes = writes
        self._puts = puts
        self._amendments = amendments

    async def delete(self, exchange: Exchange) -> None:
        """Serve a DeleteObject. The delete of one version is an amendment: a version has no ETag for a condition."""
        if exchange.request.parameter("versionId") is not None:
            await self._amendments.amend(exchange)
            return
        write = await self._writes.prepare(exchange)
        deleted = await self._delete(write, exchange.request.headers, exchange.request.condition)
        await exchange.response.deleted(deleted, write.target.resource)

    async def delete_many(self, exchange: Exchange) -> None:
        """Serve a DeleteObjects. Each key is fenced, refused and recorded by itself; the answer has each outcome."""
        _require_digest(exchange)
        body = await exchange.document()
        wanted = await offload(len(body.content), documents.deletion, body.content)
        # A bucket that does not exist is an error of the request, not one of each key.
        await self._writes.writable_profile(exchange.request.bucket)
        gate = asyncio.Semaphore(_AT_A_TIME)

        async def delete(entry: ObjectToDelete, write_id: UUID) -> GatewayError | DeletedObject:
            async with gate:
                try:
                    deletes = self._of_key(exchange.request.bucket, entry.key)
                    return await deletes.delete_entry(exchange, entry, write_id)
                except GatewayError as error:
                    return exchange.response.note(error)

        # A key that is listed twice is deleted twice, one after the other: the second delete finds nothing.
        results = await asyncio.gather(*map(delete, wanted.objects, write_ids(wanted.objects)))
        listed = zip(wanted.objects, results, strict=True)
        await exchange.response.document(documents.deleted(listed, quiet=wanted.quiet))

    async def delete_entry(self, exchange: Exchange, entry: ObjectToDelete, write_id: UUID) -> DeletedObject:
        """Delete one of the keys of a DeleteObjects, which its database fences. Raises ``GatewayError``."""
        write = await self._writes.prepare(exchange, entry.key, write_id=write_id)
        if entry.version_id is not None:
            stored = await self._amendments.remove_version(write, entry.version_id, exchange.request.headers)
            return _deleted_object(dict(stored.applied.headers))
        condition = None if entry.etag is None else conditions.for_entry(entry.etag)
        deleted = await self._delete(write, exchange.request.headers, condition)
        return _deleted_object(dict(headers_left_by(deleted)))

    async def _delete(self, write: FencedWrite, headers: TextHeaders, condition: WriteCondition | None) -> Deleted:
        profile = await self._writes.profile_for(write)
        steps = mutation.delete(
            *(write.announcement(), condition),
            conditional_delete=profile.conditional_delete,
            in_parts=profile.can_bump,
        )
        deleted = await self._writes.run(write, steps, OperationPayload(headers=headers))
        if isinstance(deleted, InParts):
            return await self._puts.entomb(write, condition, deleted)
        assert isinstance(deleted, Deleted)
        return deleted


def write_ids(objects: Sequence[ObjectToDelete]) -> list[UUID]:
    """Return the write id of each key: one for the whole request, so that a single-use token may delete all its keys.

    An intent is known by its key, its write id and its attempt. A key that is listed again gets an id of its own.
    """
    shared, seen, ids = uuid4(), set[str](), []
    for entry in objects:
        ids.append(uuid4() if entry.key in seen else shared)
        seen.add(entry.key)
    return ids


def _deleted_object(headers: dict[bytes, bytes]) -> DeletedObject:
    named = {name.lower(): value.decode("latin-1") for name, value in headers.items()}
    marker = named.get(b"x-amz-delete-marker")
    return DeletedObject(marker, named.get(b"x-amz-version-id") if marker == "true" else None)


def _require_digest(exchange: Exchange) -> None:
    """Refuse a document without a checksum, as S3 does: it may delete a thousand objects."""
    names = {name.lower() for name, _ in exchange.head.headers}
    if b"content-md5" not in names and not any(
        name.startswith((b"x-amz-checksum-", b"x-amz-trailer")) for name in names
    ):
        raise StoreError("InvalidRequest", 400, "Missing required header for this request: Content-MD5")
