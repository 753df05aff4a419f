"""The object plane in front of the S3 double, with boto3 as its client."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config as BotoConfig
from mypy_boto3_s3 import S3Client

from gateway.observe.events import Observe
from tests.doubles.s3 import S3Double, serve
from tests.running import ACCESS_KEY, SECRET_KEY, Events, config, running

Connect = Callable[..., S3Client]


@pytest.fixture
async def double() -> S3Double:
    return S3Double(buckets=["bucket", "other"])


@pytest.fixture
async def endpoint(double: S3Double) -> AsyncIterator[str]:
    async with serve(double) as address:
        yield address


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def origin(dsn: str, endpoint: str, events: Observe) -> AsyncIterator[str]:
    async with running(config(dsn, endpoint), events) as address:
        yield address


def connect(origin: str, token: str | None = None, holder: str | None = None, **settings: Any) -> S3Client:
    """A boto3 client of the gateway that presents ``token`` in the Fencing-Token header of every request."""
    client = boto3.client(
        "s3",
        endpoint_url=origin,
        aws_access_key_id=settings.pop("access_key", ACCESS_KEY),
        aws_secret_access_key=settings.pop("secret_key", SECRET_KEY),
        region_name="us-east-1",
        config=BotoConfig(retries={"max_attempts": 0}, s3={"addressing_style": "path"}, signature_version="s3v4"),
        **settings,
    )

    def present(params: dict[str, Any], **_: Any) -> None:
        if token is not None:
            params["headers"]["Fencing-Token"] = token
        if holder is not None:
            params["headers"]["Fencing-Holder"] = holder

    client.meta.events.register("before-call.s3", present)
    return client
