"""Reads pass through, as they came. A tombstone is absence."""

from urllib.parse import quote

from gateway.auth.sigv4 import RequestHead
from gateway.errors import StoreError
from gateway.objects.exchange import Call
from gateway.objects.responses import Answer
from gateway.objects.s3.answers import Rejected, of_write
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request
from gateway.objects.store.client import Response
from gateway.objects.store.operations import Upstream
from gateway.objects.writes.fenced_write import refusal_of_store

# What goes with an object, and is asked for beside it: of a tombstone there is none.
_BESIDE = frozenset(
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

_PREFLIGHT = frozenset({"origin", "access-control-request-headers", "access-control-request-method"})


class Reads:
    """Everything that is asked of the store and changes nothing there, but for listings of objects and uploads."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def read(self, call: Call) -> None:
        """Pass one read through."""
        request = call.request
        if request.operation in _BESIDE:
            await self._refuse_tombstone(request)
        method = "HEAD" if request.operation in (Operation.HEAD_BUCKET, Operation.HEAD_OBJECT) else "GET"
        response = await self._upstream.send(method, request.raw_path, request.query, request.headers)
        await refuse_what_is_about_us(response)
        await call.answer.stream(request, response, hosted=call.hosted)

    async def preflight(self, head: RequestHead, bucket: str, key: str, answer: Answer) -> None:
        """What a browser asks ahead of a page's request: whether the bucket's CORS rules allow that. Never signed."""
        asked = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in head.headers]
        headers = [pair for pair in asked if pair[0] in _PREFLIGHT]
        path = f"/{bucket}/{quote(key, safe='/')}" if key else f"/{bucket}"
        response = await self._upstream.send("OPTIONS", path, headers=headers)
        async with response:
            body = await response.read()
        await answer.passed(response.status, response.headers, body)

    async def _refuse_tombstone(self, request: S3Request) -> None:
        version = request.parameter("versionId")
        query = "" if version is None else request.query
        response = await self._upstream.send("HEAD", request.raw_path, _only_version(query))
        async with response:
            if is_tombstone(response):
                raise StoreError("NoSuchKey", 404, "The specified key does not exist.")


def _only_version(query: str) -> str:
    return "&".join(pair for pair in query.split("&") if pair.startswith("versionId="))


def is_tombstone(response: Response) -> bool:
    """Whether an answer is about what stands for a deleted object."""
    return response.header("x-amz-meta-fencing-tombstone") == "true"


async def refuse_what_is_about_us(response: Response) -> None:
    """An answer may be about the gateway: its signature, or the address it asks at. The client must not see that."""
    if response.status in (400, 403) or (300 <= response.status < 400 and response.status != 304):
        async with response:
            rejected = of_write(response.status, None, await response.read())
        assert isinstance(rejected, Rejected)
        raise refusal_of_store(rejected)
