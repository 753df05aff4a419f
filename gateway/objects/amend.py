"""Writes for which S3 has no condition: tags, ACLs, retention, legal holds, annotations, restores, and versions.

The protocol announces them like every write of their key, and they wait for their turn. Nothing but the end of their
signature can stop them once they are on their way, so the signature is a short one.
"""

from gateway.errors import StoreError, Unavailable
from gateway.objects.exchange import Exchange
from gateway.objects.fenced_write import FencedWrite, FencedWrites
from gateway.objects.protocol import mutation
from gateway.objects.protocol.effects import Stored
from gateway.objects.protocol.runner import Amendment, OperationPayload
from gateway.objects.s3 import xml
from gateway.objects.s3.operations import Operation, not_implemented
from gateway.objects.s3.request import S3Request
from gateway.objects.store.client import TextHeaders, query_of
from gateway.objects.store.operations import Upstream
from gateway.objects.store_rights import StoreRights

MAX_DOCUMENT = 1024 * 1024
"""Bytes of a document of tags, grants or the like. An annotation is the largest of them."""

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
        self._upstream = upstream
        self._writes = writes
        self._rights = rights
        self._understood: set[tuple[str, str]] = set()

    async def amend(self, exchange: Exchange) -> None:
        """Serve an operation on a subresource of an object, or of one of its versions."""
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
        amendment = Amendment(
            exchange.head.method,
            request.query,
            (*request.headers, *((body.digests.content_md5, *body.digests.headers) if body else ())),
            body.content if body else b"",
        )
        if body is not None:
            write = write.with_payload(body.digests.size, body.digests.sha256)
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
        """Delete one version of an object, for good."""
        amendment = Amendment("DELETE", query_of({"versionId": version_id}), tuple(headers))
        return await self._run(write, amendment, on_version=True, uncovers=True)

    async def _run(self, write: FencedWrite, amendment: Amendment, *, on_version: bool, uncovers: bool) -> Stored:
        profile = await self._writes.profile_for(write)
        steps = mutation.amend(write.announcement(), on_version=on_version, uncovers=uncovers, bumps=profile.can_bump)
        stored = await self._writes.run(write, steps, OperationPayload(amendment=amendment))
        assert isinstance(stored, Stored)
        return stored
