"""Answers of the object plane: what the store said, less what is the gateway's own, or an error in S3's XML."""

from collections.abc import Callable
from contextlib import aclosing

from starlette.types import Scope, Send

from gateway.errors import GatewayError, StoreError, for_callers
from gateway.fencing.rules import Fence
from gateway.http.body import ClientGone
from gateway.http.head import Head
from gateway.objects.protocol.effects import Deleted
from gateway.objects.s3 import forwarded_headers, xml
from gateway.objects.s3.answers import Applied, Headers
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request
from gateway.objects.store.client import Response

__all__ = ["Answer", "Response"]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"server",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-amz-id-2",
        b"x-amz-request-id",
    }
)
_OF_THE_BODY = frozenset({b"content-length", b"content-type"})
# What a browser shows of a bucket that stands in the path lies on the origin of the page at /ui/, where people are
# logged in: no script in it runs.
_APART = (b"content-security-policy", b"sandbox")
_OF_A_DELETE = frozenset({b"x-amz-delete-marker", b"x-amz-version-id"})
# The fence's marks in the metadata come back under the names they are sent with, so that a client that copies an
# object's metadata does not present an old token with it.
_RENAMED = {
    forwarded_headers.TOKEN.encode(): b"fencing-token",
    forwarded_headers.RESOURCE.encode(): b"fencing-resource",
}


class Answer:
    """The answer to one request."""

    def __init__(self, scope: Scope, send: Send) -> None:
        head = Head.of(scope)
        self._method, self._path = head.method, head.raw_path.decode("latin-1")
        self._told = scope["state"]
        self._request_id: str = self._told["request_id"]
        # Nobody is told that the client has hung up: without asking, the rest of a large object would be read for it.
        self._gone: Callable[[], bool] = self._told.get("gone", lambda: False)
        self._send = send
        self._started = False

    async def error(self, error: GatewayError) -> None:
        """The error as S3 would put it. Once an answer has begun, all there is left is to break it off."""
        error = for_callers(error)
        self._told["code"] = error.code
        if self._started:
            raise error
        status, headers, body = xml.answer(error, method=self._method, path=self._path, request_id=self._request_id)
        await self._whole(status, headers, body)

    async def stored(
        self, applied: Applied, resource: str, fence: Fence | None, document: bytes = b"", status: int = 200
    ) -> None:
        """A write that has taken effect. ``document``: what S3 says of it in XML, instead of in headers."""
        kept = [pair for pair in _own(applied.headers) if pair[0] not in _OF_THE_BODY]
        if document:
            kept = [pair for pair in kept if pair[0] != b"etag"] + [(b"content-type", b"application/xml")]
        elif applied.etag is not None and not any(name == b"etag" for name, _ in kept):
            kept.append((b"etag", f'"{applied.etag}"'.encode("latin-1")))
        await self._whole(status, [*kept, *_fencing(resource, fence)], document)

    async def deleted(self, deleted: Deleted, resource: str) -> None:
        """A delete that has taken effect, or found nothing."""
        await self._whole(204, [*left_by(deleted), *_fencing(resource, deleted.fence)], b"")

    async def passed(self, status: int, headers: Headers, body: bytes, resource: str | None = None) -> None:
        """What the store said, as it said it, but under the id of this request, also where an error names it."""
        fencing = [] if resource is None else _fencing(resource, None)
        kept = [pair for pair in _own(headers) if pair[0] != b"content-length"]
        theirs = next((value for name, value in headers if name.lower() == b"x-amz-request-id"), b"")
        if status >= 400 and theirs:
            body = body.replace(theirs, self._request_id.encode())
        await self._whole(status, [*kept, *fencing], body)

    async def document(self, body: bytes, status: int = 200) -> None:
        """A document of the gateway's own."""
        await self._whole(status, [(b"content-type", b"application/xml")], body)

    async def redirected(self, address: str, resource: str, fence: Fence | None) -> None:
        """See Other: where a browser goes after a form upload has taken effect. ``address`` is ASCII."""
        await self._whole(303, [(b"location", address.encode("ascii")), *_fencing(resource, fence)], b"")

    async def stream(self, request: S3Request, response: Response, *, hosted: bool = False) -> None:
        """The store's answer to a read, as it comes. A tombstone is absence. Raises ``ClientGone``.

        ``hosted``: its bucket stands in the host, so that browsers take it for another origin.
        """
        async with response:
            if request.operation in (Operation.GET_OBJECT, Operation.HEAD_OBJECT) and _is_tombstone(response):
                await self._absent(response, of_version=request.parameter("versionId") is not None)
                return
            if response.status >= 400 and self._method != "HEAD":
                await self.passed(response.status, response.headers, await response.read())
                return
            kept = _own(response.headers)
            apart = request.operation is Operation.GET_OBJECT and not hosted and not _is_pdf(response)
            await self._start(response.status, [*kept, _APART] if apart else kept)
            if self._method != "HEAD":
                async with aclosing(response.chunks()) as chunks:
                    async for chunk in chunks:
                        if self._gone():
                            raise ClientGone
                        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})

    async def _absent(self, response: Response, *, of_version: bool) -> None:
        """What S3 says of a deleted key. In a bucket with versions a tombstone is a delete marker, and has an id."""
        error, marks = StoreError("NoSuchKey", 404, "The specified key does not exist."), []
        version_id = response.header("x-amz-version-id")
        if version_id is not None:
            marks = [(b"x-amz-delete-marker", b"true"), (b"x-amz-version-id", version_id.encode("latin-1"))]
            if of_version:
                error = StoreError("MethodNotAllowed", 405, "This version is a delete marker: it can only be deleted.")
                marks.append((b"allow", b"DELETE"))
        status, headers, body = xml.answer(error, method=self._method, path=self._path, request_id=self._request_id)
        await self._whole(status, [*headers, *marks], body)

    async def _whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        if status != 204 and self._method != "HEAD" and not any(name == b"content-length" for name, _ in headers):
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        named = {name for name, _ in headers}
        own = [] if b"x-amz-request-id" in named else [(b"x-amz-request-id", self._request_id.encode())]
        self._started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *own]})


def left_by(deleted: Deleted) -> list[tuple[bytes, bytes]]:
    """What a delete tells of what it left, in a bucket with versions. A tombstone passes for a delete marker."""
    kept = [pair for pair in _own(deleted.applied.headers if deleted.applied else ()) if pair[0] in _OF_A_DELETE]
    if [name for name, _ in kept] == [b"x-amz-version-id"]:
        kept.append((b"x-amz-delete-marker", b"true"))
    return kept


def _own(headers: Headers) -> list[tuple[bytes, bytes]]:
    kept = []
    for raw_name, value in headers:
        name = raw_name.lower()
        if name in _HOP_BY_HOP or (name not in _RENAMED and forwarded_headers.is_own(name.decode("latin-1"))):
            continue
        kept.append((_RENAMED.get(name, name), value))
    return kept


def _fencing(resource: str, fence: Fence | None) -> list[tuple[bytes, bytes]]:
    token = [] if fence is None else [(b"fencing-token", str(fence.token).encode())]
    return [*token, (b"fencing-resource", resource.encode())]


def _is_pdf(response: Response) -> bool:
    """What browsers show by a program of their own, which has no part in any origin and refuses to work apart.

    To the letter: of ``application/pdf;,text/html`` a browser takes the end.
    """
    return (response.header("content-type") or "").lower() == "application/pdf"


def _is_tombstone(response: Response) -> bool:
    return response.header(forwarded_headers.TOMBSTONE) == "true"
