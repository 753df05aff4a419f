"""One request to the object plane and its answer: a verified S3 request, and the writer of its response."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Scope, Send

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import VerifiedSignature
from gateway.errors import GatewayError, Unavailable, for_callers
from gateway.fencing.decision import Fence
from gateway.fencing.headers import would_refuse
from gateway.fencing.record import Attempt, CapturedPayload, MissingGrant
from gateway.http.body import Body, ClientGone
from gateway.http.head import Head
from gateway.objects.s3 import xml
from gateway.objects.s3.answers import Applied, RawHeaders
from gateway.objects.s3.body import FileInspection, Inspection, Proof, VerifiedBody, whole
from gateway.objects.s3.request import Mark, S3Request, is_own
from gateway.objects.s3.xml import MAX_DOCUMENT
from gateway.objects.store.client import StoreResponse
from gateway.record.payload_capture import NOTHING, Capture

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        # The gateway's own, of a body that it has sent. moto keeps it, and shows it for a part of the object, too.
        b"content-md5",
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
_BODY_HEADERS = frozenset({b"content-length", b"content-type"})
# The gateway returns the fence's marks in the metadata under the names of the request headers. A client that copies the
# metadata of an object then does not present an old token with it.
_RENAMED = {
    Mark.TOKEN.encode(): b"fencing-token",
    Mark.RESOURCE.encode(): b"fencing-resource",
}


CAPTURE_TIMEOUT = 1.0
"""Seconds to wait for the start of a body, for the record of a write that is refused already."""


class Arrivals(Protocol):
    """The bytes of a body: those of a request, or of the file in a form."""

    async def next(self) -> tuple[bytes, bool]: ...


class CaptureBuffer:
    """The start of a body, as much as the record is to keep of it and no more."""

    def __init__(self, capture: Capture, media_type: str) -> None:
        self._capture, self._media_type = capture, media_type
        self._bytes = b""
        self.seen = 0
        """Bytes of the body so far."""

    @property
    def is_full(self) -> bool:
        return len(self._bytes) >= self._capture.most

    def add(self, piece: bytes) -> None:
        self.seen += len(piece)
        if not self.is_full:
            self._bytes += piece[: self._capture.most - len(self._bytes)]

    def captured(self, size: int, content: bytes | None = None) -> CapturedPayload | None:
        """Return what the record keeps of a body of ``size`` bytes. ``content``: the whole body, if in memory."""
        if not self._capture.most:
            return None
        kept = self._bytes if content is None else content
        return self._capture.of_object(kept, self._media_type, more=content is None and len(kept) < size)


def media_type_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == b"content-type"), "")


class WriteBody:
    """A body that is not asked for yet: read whole into memory, or piece by piece to be sent on.

    ``length`` is in bytes. Unless it is ``exact``, it is the most that the body can have.
    """

    def __init__(self, arrivals: Arrivals, inspection: Inspection | FileInspection, kept: CaptureBuffer) -> None:
        self._arrivals, self._inspection, self._kept = arrivals, inspection, kept
        self.length, self.exact = inspection.length, inspection.exact
        self._ended = False
        self._proof: Proof | None = None

    @property
    def checksum_headers(self) -> tuple[tuple[str, str], ...]:
        """The checksums that the head declares. They may be sent on ahead of the proof: the store checks them too."""
        return self._inspection.declared.headers

    @property
    def trailing(self) -> bool:
        return bool(self._inspection.declared.trailers)

    @property
    def proof(self) -> Proof:
        assert self._proof is not None, "the body has not been taken in"
        return self._proof

    async def whole(self) -> VerifiedBody:
        """Return the whole body, with all its digests. Raises ``StoreError``, ``BodyTooSlow`` or ``ClientGone``."""
        self._inspection.request_digests()
        async with aclosing(self._decoded()) as pieces:
            content = [piece async for piece in pieces]
        return whole(content, self.proof)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the decoded body as it arrives, for sending it on. Raises what ``whole`` raises.

        The last piece is held back until the body is proven. So a body that is not what was declared never becomes
        whole anywhere. An empty body has nothing to hold back.
        """
        held = b""
        async with aclosing(self._decoded()) as pieces:
            async for piece in pieces:
                self._kept.add(piece)
                if held:
                    yield held
                held = piece
        if held:
            yield held

    def captured(self, content: bytes | None = None) -> CapturedPayload | None:
        """Return what the record keeps of a body that has been read. ``content``: the whole body, if in memory."""
        return self._kept.captured(self._kept.seen if self._ended else self.length, content)

    async def capture_start(self) -> CapturedPayload | None:
        """Return what the record keeps of a body that the gateway does not want: as much as arrives within a second."""
        with suppress(GatewayError, ClientGone, TimeoutError):
            async with asyncio.timeout(CAPTURE_TIMEOUT), aclosing(self._decoded()) as pieces:
                while not self._kept.is_full and (piece := await anext(pieces, None)) is not None:
                    self._kept.add(piece)
        return self.captured()

    async def _decoded(self) -> AsyncGenerator[bytes, None]:
        """Yield each decoded piece. The body is proven when this ends."""
        more = True
        while more:
            data, more = await self._arrivals.next()
            piece = self._inspection.feed(data)
            if piece:
                yield piece
        self._ended = True
        self._proof = self._inspection.finish()


class ResponseWriter:
    """Writes the response to one request: the store's answer without the gateway's own marks, or an error as XML."""

    def __init__(self, scope: Scope, send: Send) -> None:
        head = Head.of(scope)
        self._method, self._path = head.method, head.raw_path.decode("latin-1")
        self._state = scope["state"]
        self._request_id: str = self._state["request_id"]
        # ASGI does not report that the client has hung up. Without this the gateway would read on from the store.
        self._client_gone: Callable[[], bool] = self._state.get("gone", lambda: False)
        self._send = send
        self._started = False
        self._observed: list[tuple[str, Fence | None]] = []

    def would_refuse(self, reason: str, fence: Fence | None) -> None:
        """Note why an enforcing rule would have refused a write that observe mode lets pass. The answer tells it."""
        self._observed.append((reason, fence))

    @property
    def started(self) -> bool:
        return self._started

    def note(self, error: GatewayError) -> GatewayError:
        """Note the error of one of several keys, and return it as the caller gets it. The answer is a success."""
        error = for_callers(error)
        if error.status == Unavailable.status:
            self._state.setdefault("unserved", error)
        return error

    async def error(self, error: GatewayError, more: RawHeaders = ()) -> None:
        """Send the error as S3 does, and ``more`` headers. Raise it if the response has begun: that breaks it off."""
        error = for_callers(error)
        self._state["error"] = error
        if self._started:
            raise error
        await self.refusal(error, more)

    async def refusal(self, error: GatewayError, more: RawHeaders = ()) -> None:
        """Send the document of an error, which is no fault of the request: the key of a read is absent."""
        status, headers, body = xml.answer(error, method=self._method, path=self._path, request_id=self._request_id)
        await self._whole(status, [*headers, *more], body)

    async def stored(
        self, applied: Applied, resource: str, fence: Fence | None, document: bytes = b"", status: int = 200
    ) -> None:
        """Acknowledge a write. ``document``: what S3 says of it in XML, instead of in headers."""
        kept = [pair for pair in client_headers(applied.headers) if pair[0] not in _BODY_HEADERS]
        if document:
            kept = [pair for pair in kept if pair[0] != b"etag"] + [(b"content-type", b"application/xml")]
        elif applied.etag is not None and not any(name == b"etag" for name, _ in kept):
            kept.append((b"etag", f'"{applied.etag}"'.encode("latin-1")))
        await self.acknowledged(status, tuple(kept), resource, fence, document)

    async def acknowledged(
        self, status: int, headers: RawHeaders, resource: str, fence: Fence | None, body: bytes = b""
    ) -> None:
        await self._whole(status, [*headers, *_fencing(resource, fence)], body)

    async def passed(self, status: int, headers: RawHeaders, body: bytes, resource: str | None = None) -> None:
        """Pass the store's answer on under the id of this request, also where an error document names the id."""
        fencing = [] if resource is None else _fencing(resource, None)
        kept = [pair for pair in client_headers(headers) if pair[0] != b"content-length"]
        theirs = next((value for name, value in headers if name.lower() == b"x-amz-request-id"), b"")
        if status >= 400 and theirs:
            body = body.replace(theirs, self._request_id.encode())
        await self._whole(status, [*kept, *fencing], body)

    async def document(self, body: bytes, status: int = 200) -> None:
        await self._whole(status, [(b"content-type", b"application/xml")], body)

    async def stream(self, response: StoreResponse, more: RawHeaders = ()) -> None:
        """Pass the store's answer to a read on as it arrives, and ``more`` headers with a success.

        Raises ``ClientGone``.
        """
        async with response:
            if response.status >= 400 and self._method != "HEAD":
                await self.passed(response.status, response.headers, await response.read())
                return
            headers = [*client_headers(response.headers), *more]
            body = b"" if self._method == "HEAD" else response.arrived()
            if body is None:
                await self._stream_body(response, headers)
            else:
                await self._start(response.status, headers)
            await self._send({"type": "http.response.body", "body": body or b""})

    async def _stream_body(self, response: StoreResponse, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head with the first piece of the body, so that a small answer is one packet."""
        async with aclosing(response.chunks()) as chunks:
            chunk: bytes | None = await anext(chunks, None)
            await self._start(response.status, headers)
            while chunk is not None:
                if self._client_gone():
                    raise ClientGone
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await anext(chunks, None)

    async def _whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        if status != 204 and self._method != "HEAD" and not any(name == b"content-length" for name, _ in headers):
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        if self._observed:
            headers = [*headers, *would_refuse(self._observed)]
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        named = {name for name, _ in headers}
        own = [] if b"x-amz-request-id" in named else [(b"x-amz-request-id", self._request_id.encode())]
        self._started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *own]})


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request whose sender is proven and whose head is parsed, with its body and the writer of its response.

    ``max_body`` is in bytes, decoded. ``hosted``: the bucket stands in the host, not in the path. ``capture``: how much
    of the body the record keeps, should the gateway refuse the request. ``authorised``: the key that its caller may
    write, and the grant that is missing for that where its rule only observes.
    """

    scope: Scope
    head: Head
    body: Body
    response: ResponseWriter
    request: S3Request
    signature: VerifiedSignature
    max_body: int
    hosted: bool = False
    capture: Capture = NOTHING
    authorised: tuple[str, MissingGrant | None] | None = None

    @property
    def principal(self) -> Principal:
        return self.signature.principal

    @property
    def awaits_continue(self) -> bool:
        """Whether the client holds its body back until the gateway asks for it."""
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.head.headers)

    @property
    def address(self) -> str:
        """The URL of the object, as its client would ask for it."""
        host = next((value.decode("latin-1") for name, value in self.head.headers if name == b"host"), "")
        path = f"/{self.request.raw_key}" if self.hosted else self.request.raw_path
        return f"{self.scope.get('scheme', 'http')}://{host}{path}"

    def incoming(self, max_size: int | None = None) -> WriteBody:
        """Return the body, not asked for yet. Raises ``BodyTooLarge``, or ``StoreError`` for a contradictory head."""
        size = self.max_body if max_size is None else min(max_size, self.max_body)
        headers = self.request.headers_of_body(self.head.headers)
        signature = self.signature
        inspection = Inspection(headers, sha256=signature.sha256, signatures=signature.chunks, max_size=size)
        return WriteBody(self.body, inspection, CaptureBuffer(self.capture, media_type_of(headers)))

    async def document(self) -> VerifiedBody:
        """Return a body that is an S3 document, in memory. Raises what ``WriteBody.whole`` raises."""
        incoming = self.incoming(MAX_DOCUMENT)
        await self.body.keep(incoming.length)
        return await incoming.whole()

    async def capture_start(self) -> CapturedPayload | None:
        """Return what the record keeps of a body that the gateway has not asked for, and is not going to."""
        if not self.capture.most:
            return None
        if self.awaits_continue:
            return CapturedPayload(media_type_of(self.head.headers), left_out="the client was not asked for it")
        try:
            incoming = self.incoming()
        except GatewayError:
            return None  # the head contradicts itself
        return await incoming.capture_start()

    def attempt(self) -> Attempt:
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
            program=self.head.program,
        )


def client_headers(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Return the store's headers without the gateway's own marks, and without those of the hop."""
    kept = []
    for raw_name, value in headers:
        name = raw_name.lower()
        if name in _HOP_BY_HOP or (name not in _RENAMED and is_own(name.decode("latin-1"))):
            continue
        kept.append((_RENAMED.get(name, name), value))
    return kept


def _fencing(resource: str, fence: Fence | None) -> list[tuple[bytes, bytes]]:
    token = [] if fence is None else [(b"fencing-token", str(fence.token).encode())]
    return [*token, (b"fencing-resource", resource.encode())]
