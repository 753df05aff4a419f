"""Clients of the gateway: boto3 with a token in the header, and how tests call it."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from mypy_boto3_s3 import S3Client

from tests.running import ACCESS_KEY, SECRET_KEY
from tests.waiting import PATIENCE

Result = TypeVar("Result")

# The loop's own threads are too few for the writers some tests set off at once.
_THREADS = ThreadPoolExecutor(32)


async def in_thread(function: Callable[..., Result], /, **arguments: Any) -> Result:
    """Run what blocks beside the event loop that serves it."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(function, **arguments))


@cache
def _session() -> boto3.Session:
    """One session, because reading the service model is what makes a client slow to build."""
    return boto3.Session(region_name="us-east-1")


def connect(origin: str, token: str | None = None, holder: str | None = None, **settings: Any) -> S3Client:
    """A boto3 client of the gateway that presents ``token`` in the Fencing-Token header of every request."""
    client = _session().client(
        "s3",
        endpoint_url=origin,
        aws_access_key_id=settings.pop("access_key", ACCESS_KEY),
        aws_secret_access_key=settings.pop("secret_key", SECRET_KEY),
        config=Config(
            retries={"total_max_attempts": settings.pop("attempts", 1)},
            s3={"addressing_style": "path"},
            signature_version="s3v4",
            max_pool_connections=32,
            read_timeout=2 * PATIENCE,
        ),
        **settings,
    )

    def present(params: dict[str, Any], **_: Any) -> None:
        if token is not None:
            params["headers"]["Fencing-Token"] = token
        if holder is not None:
            params["headers"]["Fencing-Holder"] = holder

    client.meta.events.register("before-call.s3", present)
    return client


async def call(operation: Any, /, **arguments: Any) -> dict[str, Any]:
    """A boto3 call, on "bucket" unless told otherwise, without blocking the event loop that serves it."""
    if operation.__name__ != "list_buckets":
        arguments.setdefault("Bucket", "bucket")
    answer: dict[str, Any] = await in_thread(operation, **arguments)
    return answer


async def refused(operation: Any, /, **arguments: Any) -> tuple[int, str, str]:
    """Status, code and message of a call that must fail."""
    with pytest.raises(ClientError) as caught:
        await call(operation, **arguments)
    response: Any = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"], response["Error"]["Message"]


async def outcome(operation: Any, /, **arguments: Any) -> tuple[int, str]:
    """Status and code of a call that may fail; the code of a success is empty."""
    try:
        answer = await call(operation, **arguments)
    except ClientError as error:
        failed: Any = error.response
        return failed["ResponseMetadata"]["HTTPStatusCode"], failed["Error"]["Code"]
    return answer["ResponseMetadata"]["HTTPStatusCode"], ""


async def warm_up(client: S3Client, key: str) -> None:
    """The first write to a bucket, for which it is probed: again until all of the probe is answered in time."""
    async with asyncio.timeout(2 * PATIENCE):
        while await outcome(client.put_object, Key=key, Body=b"probed") != (200, ""):
            await asyncio.sleep(0.1)


async def opened(
    s3: S3Client, key: str, bodies: Sequence[bytes] = (b"one", b"two"), bucket: str = "bucket", **arguments: Any
) -> dict[str, Any]:
    """Open an upload and send its parts; the arguments of its completion."""
    upload_id = (await call(s3.create_multipart_upload, Bucket=bucket, Key=key, **arguments))["UploadId"]
    place = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
    parts = []
    for number, body in enumerate(bodies, 1):
        part = await call(s3.upload_part, **place, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    return {**place, "MultipartUpload": {"Parts": parts}}


async def body_of(client: S3Client, key: str, bucket: str = "bucket") -> bytes:
    """The whole object."""
    answer = await call(client.get_object, Bucket=bucket, Key=key)
    content: bytes = await in_thread(answer["Body"].read)
    return content
