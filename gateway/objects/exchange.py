"""One request to the object plane, once it is known who sent it and what it asks for."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.types import Scope, Send

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import VerifiedSignature
from gateway.errors import GatewayError, StoreError, for_callers
from gateway.fencing.record import Attempt, Captured
from gateway.fencing.rules import Fence
from gateway.http.body import Body, ClientGone
from gateway.http.head import Head
from gateway.objects.body.intake import VerifiedBody, WriteBody, media_type_of
from gateway.objects.protocol.effects import Deleted
from gateway.objects.s3 import forwarded_headers, xml
from gateway.objects.s3.answers import Applied, RawHeaders
from gateway.objects.s3.documents import MAX_DOCUMENT
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request
from gateway.objects.store.client import StoreResponse
from gateway.record.capture import NOTHING, Capture

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


class ResponseWriter:
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

    async def passed(self, status: int, headers: RawHeaders, body: bytes, resource: str | None = None) -> None:
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

    async def stream(self, request: S3Request, response: StoreResponse, *, hosted: bool = False) -> None:
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

    async def _absent(self, response: StoreResponse, *, of_version: bool) -> None:
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


def _own(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
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


def _is_pdf(response: StoreResponse) -> bool:
    """What browsers show by a program of their own, which has no part in any origin and refuses to work apart.

    To the letter: of ``application/pdf;,text/html`` a browser takes the end.
    """
    return (response.header("content-type") or "").lower() == "application/pdf"


def _is_tombstone(response: StoreResponse) -> bool:
    return response.header(forwarded_headers.TOMBSTONE) == "true"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that is proven and classified.

    ``max_body`` is in bytes, decoded. ``hosted``: its bucket stands in the host, not in the path. ``capture``: what is
    to be kept of its body, should it be refused.
    """

    scope: Scope
    head: Head
    body: Body
    answer: ResponseWriter
    request: S3Request
    signature: VerifiedSignature
    max_body: int
    hosted: bool = False
    capture: Capture = NOTHING

    @property
    def principal(self) -> Principal:
        return self.signature.principal

    @property
    def body_is_held_back(self) -> bool:
        """Whether the client sends its body only when it is told to go on."""
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.head.headers)

    @property
    def address(self) -> str:
        """Where the object is, as its client would ask for it."""
        host = next((value.decode("latin-1") for name, value in self.head.headers if name == b"host"), "")
        path = f"/{self.request.raw_key}" if self.hosted else self.request.raw_path
        return f"{self.scope.get('scheme', 'http')}://{host}{path}"

    def intake(self, max_size: int | None = None) -> WriteBody:
        """The body, not asked for yet. Raises ``BodyTooLarge``, or ``StoreError`` for a head that cannot be right."""
        size = self.max_body if max_size is None else min(max_size, self.max_body)
        headers = [*self.head.headers, *((name.encode(), value.encode()) for name, value in self.request.hoisted)]
        return WriteBody(self.body, headers, self.signature, size, self.capture)

    async def document(self) -> VerifiedBody:
        """Return a body that is a document of S3's, in memory. Raises what ``WriteBody.whole`` raises."""
        intake = self.intake(MAX_DOCUMENT)
        await self.body.reserve(intake.length)
        return await intake.whole()

    async def beginning(self) -> Captured | None:
        """What is kept of a body that has not been asked for, and is not going to be."""
        if not self.capture.most:
            return None
        if self.body_is_held_back:
            return Captured(media_type_of(self.head.headers), left_out="the client was not asked for it")
        try:
            intake = self.intake()
        except GatewayError:
            return None  # its head cannot be right
        return await intake.beginning()

    def attempt(self) -> Attempt:
        """How the request goes on record."""
        path, query = self.head.raw_path.decode("latin-1"), self.head.query_string.decode("latin-1")
        state = self.scope["state"]
        return Attempt(
            token=self.request.fencing.token,
            holder=self.request.fencing.holder,
            caller=self.principal.name,
            method=self.head.method,
            target="?".join(filter(None, (path, query))),
            client=state["client"],
            request_id=state["request_id"],
            plane="objects",
        )
