"""DeleteObject and DeleteObjects: each key is a fenced write of its own."""

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

from gateway.errors import GatewayError, StoreError
from gateway.http.body import offload
from gateway.objects.exchange import Exchange, left_by
from gateway.objects.protocol import generator
from gateway.objects.protocol.effects import Deleted
from gateway.objects.run.runner import OperationPayload
from gateway.objects.s3 import conditions, documents
from gateway.objects.s3.conditions import WriteCondition
from gateway.objects.s3.documents import DeletedObject, ObjectToDelete
from gateway.objects.store.client import TextHeaders
from gateway.objects.writes.amend import Amendments
from gateway.objects.writes.fenced_write import FencedWrite, FencedWrites

_AT_A_TIME = 16


class Deletes:
    """Deletes of objects, one or many."""

    def __init__(self, writes: FencedWrites, amendments: Amendments) -> None:
        self._writes = writes
        self._amendments = amendments

    async def delete(self, call: Exchange) -> None:
        """DeleteObject. Of one version it is an amendment: a version has no ETag that a condition could be on."""
        if call.request.parameter("versionId") is not None:
            await self._amendments.amend(call)
            return
        write = await self._writes.write(call)
        deleted = await self._delete(write, call.request.headers, call.request.condition)
        await call.answer.deleted(deleted, write.target.resource)

    async def delete_many(self, call: Exchange) -> None:
        """DeleteObjects: every key is fenced, refused and recorded by itself. The answer says what became of each."""
        _require_digest(call)
        body = await call.document()
        wanted = await offload(len(body.content), documents.deletion, body.content)
        await self._writes.writable(call.request.bucket)  # there may be no such bucket: that is no error of each key
        gate = asyncio.Semaphore(_AT_A_TIME)

        async def one(doomed: ObjectToDelete, write_id: UUID) -> GatewayError | DeletedObject:
            async with gate:
                try:
                    return await self._one(call, doomed, write_id)
                except GatewayError as error:
                    return error

        # A key that stands there twice is deleted twice, one after the other: the second finds nothing.
        results = await asyncio.gather(*map(one, wanted.objects, write_ids(wanted.objects)))
        listed = zip(wanted.objects, results, strict=True)
        await call.answer.document(documents.deleted(listed, quiet=wanted.quiet))

    async def _one(self, call: Exchange, doomed: ObjectToDelete, write_id: UUID) -> DeletedObject:
        write = await self._writes.write(call, doomed.key, write_id=write_id)
        if doomed.version_id is not None:
            stored = await self._amendments.remove_version(write, doomed.version_id, call.request.headers)
            return _said(dict(stored.applied.headers))
        condition = None if doomed.etag is None else conditions.for_entry(doomed.etag)
        deleted = await self._delete(write, call.request.headers, condition)
        return _said(dict(left_by(deleted)))

    async def _delete(self, write: FencedWrite, headers: TextHeaders, condition: WriteCondition | None) -> Deleted:
        profile = await self._writes.fit(write)
        steps = generator.delete(write.announcement(profile), condition, conditional_delete=profile.conditional_delete)
        deleted = await self._writes.run(write, steps, OperationPayload(headers=headers))
        assert isinstance(deleted, Deleted)
        return deleted


def write_ids(objects: Sequence[ObjectToDelete]) -> list[UUID]:
    """One write id for the whole request, so that a token that may write once may delete all its keys.

    But an intent is known by its key, its write id and its attempt: a key that is there again has an id of its own.
    """
    shared, seen, ids = uuid4(), set[str](), []
    for doomed in objects:
        ids.append(uuid4() if doomed.key in seen else shared)
        seen.add(doomed.key)
    return ids


def _said(headers: dict[bytes, bytes]) -> DeletedObject:
    named = {name.lower(): value.decode("latin-1") for name, value in headers.items()}
    marker = named.get(b"x-amz-delete-marker")
    return DeletedObject(marker, named.get(b"x-amz-version-id") if marker == "true" else None)


def _require_digest(call: Exchange) -> None:
    """S3 does not delete a thousand objects by a document that nothing vouches for."""
    names = {name.lower() for name, _ in call.head.headers}
    if b"content-md5" not in names and not any(
        name.startswith((b"x-amz-checksum-", b"x-amz-trailer")) for name in names
    ):
        raise StoreError("InvalidRequest", 400, "Missing required header for this request: Content-MD5")
