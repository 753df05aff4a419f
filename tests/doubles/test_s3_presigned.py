"""Requests signed in the query: verified as boto3 signs them, and refused by the store's clock once expired."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.doubles.conftest import Call
from tests.doubles.s3 import S3Double
from tests.doubles.test_s3_double import KEYS
from tests.doubles.test_s3_faults import soon
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def presigned(client: S3Client, operation: Any, expires: int = 120, **parameters: Any) -> str:
    return client.generate_presigned_url(operation, {"Bucket": "bucket", "Key": "key", **parameters}, expires)


async def send(method: str, url: str, **options: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        return await http.request(method, url, **options)


@pytest.mark.parametrize("key", [key for key in KEYS if ".." not in key and "//" not in key])
async def test_a_query_signed_request_is_served(client: S3Client, double: S3Double, key: str) -> None:
    answer = await send("PUT", presigned(client, "put_object", Key=key), content=b"body")
    assert answer.status_code == 200
    assert double.objects("bucket")[key].content.body == b"body"
    assert double.mutations[-1].signed_at is not None
    assert (await send("GET", presigned(client, "get_object", Key=key))).content == b"body"


async def test_the_other_parameters_still_choose_the_operation(call: Call, client: S3Client, double: S3Double) -> None:
    created = await call("create_multipart_upload", Key="key")
    place = {"UploadId": created["UploadId"]}
    sent = await send("PUT", presigned(client, "upload_part", PartNumber=1, **place), content=b"part")
    assert sent.status_code == 200
    assert [exchange.operation for exchange in double.requests][-1] == "UploadPart"


async def test_signed_headers_are_part_of_the_signature(client: S3Client, double: S3Double) -> None:
    url = presigned(client, "put_object", Metadata={"color": "red"})
    for headers, expected in [
        ({"x-amz-meta-color": "blue"}, "SignatureDoesNotMatch"),
        ({}, "SignatureDoesNotMatch"),
        ({"x-amz-meta-color": "red", "x-amz-meta-more": "1"}, "AccessDenied"),
    ]:
        answer = await send("PUT", url, content=b"", headers=headers)
        assert (answer.status_code, expected in answer.text) == (403, True)
    assert double.mutations == []
    assert (await send("PUT", url, content=b"", headers={"x-amz-meta-color": "red"})).status_code == 200


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("/bucket/key", "/bucket/other", (403, "SignatureDoesNotMatch")),
        ("X-Amz-Expires=120", "X-Amz-Expires=121", (403, "SignatureDoesNotMatch")),
        ("X-Amz-Expires=120", "X-Amz-Expires=604801", (400, "AuthorizationQueryParametersError")),
        ("X-Amz-Expires=120", "X-Amz-Expires=0", (400, "AuthorizationQueryParametersError")),
        ("&X-Amz-Expires=120", "", (400, "AuthorizationQueryParametersError")),
        ("AKIADOUBLE", "AKIAOTHER", (403, "InvalidAccessKeyId")),
        ("us-east-1", "eu-west-1", (400, "AuthorizationQueryParametersError")),
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", (400, "AuthorizationQueryParametersError")),
        ("X-Amz-Signature=", "prefix=a&X-Amz-Signature=", (403, "SignatureDoesNotMatch")),
    ],
)
async def test_a_changed_url_is_refused(
    client: S3Client, double: S3Double, old: str, new: str, expected: tuple[int, str]
) -> None:
    url = presigned(client, "put_object")
    assert old in url
    answer = await send("PUT", url.replace(old, new), content=b"")
    assert (answer.status_code, expected[1] in answer.text) == (expected[0], True)
    assert double.mutations == []


async def test_two_signatures_are_one_too_many(client: S3Client) -> None:
    answer = await send("GET", presigned(client, "get_object"), headers={"Authorization": "AWS4-HMAC-SHA256 x"})
    assert (answer.status_code, "InvalidArgument" in answer.text) == (400, True)


@pytest.mark.parametrize(("offset", "expected"), [(110, 200), (125, 403), (-890, 200), (-910, 403)])
async def test_a_signature_expires_by_the_stores_clock(
    client: S3Client, double: S3Double, offset: float, expected: int
) -> None:
    url = presigned(client, "put_object", 120)
    double.behave(clock_offset=offset)
    answer = await send("PUT", url, content=b"")
    assert answer.status_code == expected
    assert ("<Message>Request has expired</Message>" in answer.text) == (offset == 125)
    assert len(double.mutations) == (1 if expected == 200 else 0)


@pytest.mark.parametrize(("at", "expected"), [("arrival", 403), ("before", 200)])
async def test_a_late_packet_expires_unless_the_store_has_it(
    client: S3Client, double: S3Double, at: str, expected: int
) -> None:
    late = double.hold(at)
    sent = asyncio.create_task(send("PUT", presigned(client, "put_object", 60), content=b""))
    await soon(late.arrived)
    double.behave(clock_offset=70)
    late.release()
    assert (await sent).status_code == expected
    assert len(double.mutations) == (1 if expected == 200 else 0)
