"""A served double for each test, real clients against it, and requests as their senders sign them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.doubles.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Double, serve
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Call = Callable[..., Any]
KEYS = ["a b", "a+b", "a/../b", "a//b", "%2F", "ü/ß", "a?b", "a&b=c", "~tilde", "dots.", "\x01"]


@pytest.fixture(scope="session")
def session() -> boto3.Session:
    """One session, because reading the service model is what makes a client slow to build."""
    return boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION)


@pytest.fixture
def double() -> S3Double:
    return S3Double(buckets=["bucket"])


@pytest.fixture
async def endpoint(double: S3Double) -> AsyncIterator[str]:
    async with serve(double) as address:
        yield address


@pytest.fixture
def client(session: boto3.Session, endpoint: str) -> S3Client:
    return client_for(session, endpoint)


@pytest.fixture
def call(client: S3Client) -> Call:
    """Call an operation of boto3 without blocking the loop the double runs on; gives the answer or its status."""

    async def run(operation: str, /, **arguments: Any) -> Any:
        arguments.setdefault("Bucket", "bucket")
        return await asyncio.to_thread(getattr(client, operation), **arguments)

    return run


@pytest.fixture
def status(call: Call) -> Call:
    """The status and error code of an operation: (200, "") where it succeeds."""

    async def run(operation: str, /, **arguments: Any) -> tuple[int, str]:
        try:
            answer = await call(operation, **arguments)
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
        return answer["ResponseMetadata"]["HTTPStatusCode"], ""

    return run


def client_for(session: boto3.Session, endpoint: str, **options: Any) -> S3Client:
    """A client that neither retries nor leaves path style."""
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path"},
        retries={"total_max_attempts": 1},
        max_pool_connections=64,
        **options,
    )
    return session.client("s3", endpoint_url=endpoint, config=config)


def quoted(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


async def begin_upload(call: Call, *bodies: bytes, **options: Any) -> dict[str, Any]:
    """Upload the parts of `key` under the write-id w; what is given back completes it."""
    created = await call("create_multipart_upload", Key="key", Metadata={"fencing-write-id": "w"}, **options)
    place = {"Key": "key", "UploadId": created["UploadId"]}
    parts = []
    for count, body in enumerate(bodies, start=1):
        part = await call("upload_part", PartNumber=count, Body=body, **place)
        parts.append({"PartNumber": count, "ETag": part["ETag"]})
    return {**place, "MultipartUpload": {"Parts": parts}}


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        await event.wait()


async def send(method: str, url: str, **options: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        return await http.request(method, url, **options)


def signed(endpoint: str, method: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> dict[str, str]:
    """The headers of a request, signed by botocore as its own clients do."""
    request = AWSRequest(method=method, url=endpoint + path, data=body, headers=headers or {})
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(request)
    return dict(request.headers.items())


async def send_and_vanish(
    endpoint: str, method: str, path: str, body: bytes, headers: dict[str, str], *, shorter_by: int = 0
) -> None:
    """Send a request whole (or all but the last bytes) and close the connection at once, as a killed process does."""
    address = urlsplit(endpoint)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in signed(endpoint, method, path, body, headers).items()]
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + body[: len(body) - shorter_by])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
