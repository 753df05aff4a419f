"""Reads: they pass through to the store. A tombstone is absence."""

import asyncio
from contextlib import suppress
from urllib.parse import quote

from gateway.auth.sigv4 import RequestHead
from gateway.errors import GatewayError, StoreError
from gateway.objects.exchange import Exchange, ResponseWriter
from gateway.objects.s3 import addressing
from gateway.objects.s3.answers import RawHeaders, no_such_key
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request
from gateway.objects.store.client import StoreResponse
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
        """Pass one read through."""
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
            error = StoreError("MethodNotAllowed", 405, "This version is a delete marker: it can only be deleted.")
            marks.append((b"allow", b"DELETE"))
    await exchange.response.refusal(error, tuple(marks))


def _is_pdf(response: StoreResponse) -> bool:
    """Return whether the browser's own viewer shows it, which belongs to no origin and refuses to work in a sandbox.

    The comparison is literal: of ``application/pdf;,text/html`` a browser takes the end.
    """
    return (response.header("content-type") or "").lower() == "application/pdf"


def _only_version(query: str) -> str:
    return "&".join(pair for pair in query.split("&") if pair.startswith("versionId="))
