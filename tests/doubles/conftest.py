"""A served double for each test, and real clients against it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.doubles.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Double, serve

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Call = Callable[..., Any]


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
