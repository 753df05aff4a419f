"""DeleteObject, DeleteObjects, and writes for which S3 has no condition.

Each key of a delete is a fenced write of its own. S3 has no condition for tags, ACLs, retention, legal holds,
annotations, restores, and the delete of a version. The protocol announces these like every write of their key, and they
wait for their turn. Nothing but the end of their signature can stop them once they are on their way, so the signature
is a short one.
"""

from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

from gateway.background import at_a_time
from gateway.errors import GatewayError, StoreError, Unavailable
from gateway.http.body import offload
from gateway.objects.authorisation import StoreRights
from gateway.objects.exchange import Exchange, client_headers
from gateway.objects.fenced_write import FencedWrite, FencedWrites
from gateway.objects.protocol import mutation
from gateway.objects.protocol.effects import Deleted, InParts, Stored
from gateway.objects.protocol.runner import OperationPayload
from gateway.objects.put import Puts
from gateway.objects.s3 import xml
from gateway.objects.s3.answers import RawHeaders
from gateway.objects.s3.conditions import WriteCondition, condition_of_entry
from gateway.objects.s3.operations import Operation, not_implemented
from gateway.objects.s3.request import S3Request
from gateway.objects.s3.xml import DeletedFacts, ObjectToDelete
from gateway.objects.store.client import TextHeaders, query_of
from gateway.objects.store.operations import Upstream

_SUBRESOURCES = frozenset({"acl", "annotation", "legal-hold", "retention", "tagging"})
# Errors that a GetObject gets too. They do not tell whether the store has understood the subresource.
_ERRORS_OF_READS = frozenset(
    {"AccessDenied", "InvalidArgument", "MethodNotAllowed", "NoSuchBucket", "NoSuchKey", "NoSuchVersion"}
)


def _refuse_output(body: bytes) -> None:
    """Refuse a restore that has the store write its result to other keys, which no token fences."""
    root = xml.parse(body)
    if body.strip() and (root is None or any(xml.local(element) == "OutputLocation" for element in root.iter())):
        raise not_implemented("RestoreObject with an OutputLocation", "the store would write to keys without a fence")


class Amendments:
    """Fenced writes to what belongs to an object beside its bytes."""

    def __init__(self, upstream: Upstream, writes: FencedWrites, rights: StoreRights) -> None:
        self._upstream, self._writes, self._rights = upstream, writes, rights
        self._understood: set[tuple[str, str]] = set()

    async def amend(self, exchange: Exchange) -> None:
        request = exchange.request
        write = await self._writes.prepare(exchange)
        await self._writes.refuse_if_stale(write)
        for subresource in request.operation.markers & _SUBRESOURCES:
            await self._check_understood(request, subresource)
        body = await exchange.document() if exchange.head.method in ("PUT", "POST") else None
        if body is not None:
            await self._rights.check_document(request, body.content)
            if request.operation is Operation.RESTORE_OBJECT:
                _refuse_output(body.content)
        vouched = () if body is None else (body.content_md5, *body.headers)
        amendment = OperationPayload(
            b"" if body is None else body.content,
            (*request.headers, *vouched),
            method=exchange.head.method,
            query=request.query,
        )
        if body is not None:
            write = write.with_body(body.size, body.sha256)
        uncovers = request.operation is Operation.DELETE_OBJECT
        stored = await self._run(
            write, amendment, on_version=request.parameter("versionId") is not None, uncovers=uncovers
        )
        await exchange.response.stored(
            stored.applied, write.target.resource, stored.fence, status=stored.applied.status
        )

    async def _check_understood(self, request: S3Request, subresource: str) -> None:
        """Ask for the subresource, once a bucket. Raises ``StoreError`` where the store does not know it.

        Some stores ignore a parameter that they do not know. To them PUT ?retention is a PutObject, and DELETE
        ?annotation a DeleteObject. Their GET is then a GetObject too, and returns an ETag.
        """
        if (request.bucket, subresource) in self._understood:
            return
        query = query_of({subresource: "", "versionId": request.parameter("versionId")})
        response = await self._upstream.send("GET", request.raw_path, query)
        async with response:
            error = xml.read_error(await response.read())
        if error is not None and error.code in _ERRORS_OF_READS:
            raise StoreError(error.code, response.status, error.message)
        bare = error is None and response.status in (404, 405, 501)
        if bare or (response.status < 400 and response.header("etag") is not None):
            raise not_implemented(f"{request.operation}", "the store behind it does not know it")
        if response.status >= 500 and response.status != 501:
            raise Unavailable("Nothing was written: the object store does not say whether it knows the operation.")
        self._understood.add((request.bucket, subresource))

    async def remove_version(self, write: FencedWrite, version_id: str, headers: TextHeaders) -> Stored:
        amendment = OperationPayload(headers=headers, method="DELETE", query=query_of({"versionId": version_id}))
        return await self._run(write, amendment, on_version=True, uncovers=True)

    async def _run(
        self, write: FencedWrite, amendment: OperationPayload, *, on_version: bool, uncovers: bool
    ) -> Stored:
        profile = await self._writes.profile_for(write)
        steps = mutation.amend(write.announced, on_version=on_version, uncovers=uncovers, bumps=profile.can_bump)
        stored = await self._writes.run(write, steps, amendment)
        assert isinstance(stored, Stored)
        return stored


_AT_A_TIME = 16
_DELETE_HEADERS = frozenset({b"x-amz-delete-marker", b"x-amz-version-id"})


class Deletes:
    def __init__(self, puts: Puts, amendments: Amendments, of_key: Callable[[str, str], "Deletes"]) -> None:
        """``of_key`` returns those of the database that fences a key of a bucket."""
        self._puts, self._writes, self._amendments, self._of_key = puts, puts.writes, amendments, of_key

    async def delete(self, exchange: Exchange) -> None:
        """Serve a DeleteObject. The delete of one version is an amendment: a version has no ETag for a condition."""
        if exchange.request.parameter("versionId") is not None:
            await self._amendments.amend(exchange)
            return
        write = await self._writes.prepare(exchange)
        deleted = await self._delete(write, exchange.request.headers, exchange.request.condition)
        await exchange.response.acknowledged(204, headers_left_by(deleted), write.target.resource, deleted.fence)

    async def delete_many(self, exchange: Exchange) -> None:
        """Serve a DeleteObjects. Each key is fenced, refused and recorded by itself; the answer has each outcome."""
        _require_digest(exchange)
        body = await exchange.document()
        wanted, quiet = await offload(len(body.content), xml.deletion, body.content)
        # A bucket that does not exist is an error of the request, not one of each key.
        await self._writes.writable_profile(exchange.request.bucket)

        async def delete(named: tuple[ObjectToDelete, UUID]) -> GatewayError | DeletedFacts:
            entry, write_id = named
            try:
                deletes = self._of_key(exchange.request.bucket, entry.key)
                return await deletes.delete_entry(exchange, entry, write_id)
            except GatewayError as error:
                return exchange.response.note(error)

        # A key that is listed twice is deleted twice, one after the other: the second delete finds nothing.
        entries = zip(wanted, write_ids(wanted), strict=True)
        results = await at_a_time(_AT_A_TIME, delete, entries)
        listed = zip(wanted, results, strict=True)
        await exchange.response.document(xml.deleted(listed, quiet=quiet))

    async def delete_entry(self, exchange: Exchange, entry: ObjectToDelete, write_id: UUID) -> DeletedFacts:
        """Delete one of the keys of a DeleteObjects, which its database fences. Raises ``GatewayError``."""
        write = await self._writes.prepare(exchange, entry.key, write_id=write_id)
        if entry.version_id is not None:
            stored = await self._amendments.remove_version(write, entry.version_id, exchange.request.headers)
            return _deleted_facts(dict(stored.applied.headers))
        condition = None if entry.etag is None else condition_of_entry(entry.etag)
        deleted = await self._delete(write, exchange.request.headers, condition)
        return _deleted_facts(dict(headers_left_by(deleted)))

    async def _delete(self, write: FencedWrite, headers: TextHeaders, condition: WriteCondition | None) -> Deleted:
        profile = await self._writes.profile_for(write)
        steps = mutation.delete(
            *(write.announced, condition),
            conditional_delete=profile.delete_condition,
            in_parts=profile.can_bump,
        )
        deleted = await self._writes.run(write, steps, OperationPayload(headers=headers))
        if isinstance(deleted, InParts):
            return await self._puts.entomb(write, condition, deleted)
        assert isinstance(deleted, Deleted)
        return deleted


def headers_left_by(deleted: Deleted) -> RawHeaders:
    """Return the headers of a delete in a bucket with versions. A tombstone passes for a delete marker."""
    headers = deleted.applied.headers if deleted.applied else ()
    kept = [pair for pair in client_headers(headers) if pair[0] in _DELETE_HEADERS]
    if [name for name, _ in kept] == [b"x-amz-version-id"]:
        kept.append((b"x-amz-delete-marker", b"true"))
    return tuple(kept)


def write_ids(objects: Sequence[ObjectToDelete]) -> list[UUID]:
    """Return the write id of each key: one for the whole request, so that a single-use token may delete all its keys.

    An intent is known by its key, its write id and its attempt. A key that is listed again gets an id of its own.
    """
    shared, seen, ids = uuid4(), set[str](), []
    for entry in objects:
        ids.append(uuid4() if entry.key in seen else shared)
        seen.add(entry.key)
    return ids


def _deleted_facts(headers: dict[bytes, bytes]) -> DeletedFacts:
    named = {name.lower(): value.decode("latin-1") for name, value in headers.items()}
    marker = named.get(b"x-amz-delete-marker")
    version_id = named.get(b"x-amz-version-id") if marker == "true" else None
    return {"DeleteMarker": marker, "DeleteMarkerVersionId": version_id}


def _require_digest(exchange: Exchange) -> None:
    """Refuse a document without a checksum, as S3 does: it may delete a thousand objects."""
    names = {name.lower() for name, _ in exchange.head.headers}
    if b"content-md5" not in names and not any(
        name.startswith((b"x-amz-checksum-", b"x-amz-trailer")) for name in names
    ):
        raise StoreError("InvalidRequest", 400, "Missing required header for this request: Content-MD5")
