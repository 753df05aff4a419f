"""Reads pass through as the store answers them, but for what is the gateway's own."""

from datetime import UTC, datetime

import pytest
from botocore.exceptions import IncompleteReadError, ResponseStreamingError

from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import body_of, call, connect, outcome, refused
from tests.objects.object_gateway import Stage, staged
from tests.objects.raw import head, send
from tests.postgres import fresh_database
from tests.running import config, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_ranges_and_conditions(shared: Stage, key: str) -> None:
    s3 = connect(shared.origin, "33")
    put = await call(s3.put_object, Key=key, Body=b"0123456789")
    part = await call(s3.get_object, Key=key, Range="bytes=2-4")
    assert part["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert part["ContentRange"] == "bytes 2-4/10"
    assert await outcome(s3.get_object, Key=key, IfNoneMatch=put["ETag"]) == (304, "304")
    assert await outcome(s3.get_object, Key=key, IfMatch='"other"') == (412, "PreconditionFailed")
    assert await outcome(s3.get_object, Key=f"{key}-none") == (404, "NoSuchKey")
    assert await outcome(s3.list_objects_v2, Bucket="nowhere") == (404, "NoSuchBucket")


@pytest.mark.parametrize(
    ("content_type", "policy"),
    [
        ("text/html", "sandbox"),
        ("image/svg+xml", "sandbox"),
        ("application/pdf", None),
        ("application/pdf;,text/html", "sandbox"),
    ],
)
async def test_an_object_in_a_browser_is_apart_from_the_page(
    shared: Stage, key: str, content_type: str, policy: str | None
) -> None:
    """It would lie on the origin where people are logged in."""
    await call(connect(shared.origin, "33").put_object, Key=key, Body=b"<script>", ContentType=content_type)
    reply = await send(shared.origin, head(shared.origin, "GET", f"/bucket/{key}"))
    assert reply is not None
    assert reply.headers.get("content-security-policy") == policy


async def test_clients_cannot_set_the_gateways_metadata(shared: Stage, key: str) -> None:
    """A client that copies an object's metadata must not present an old token with it."""
    s3 = connect(shared.origin, "33", "ann")
    await call(s3.put_object, Key=key, Body=b"x", Metadata={"colour": "red"})
    reply = await send(shared.origin, head(shared.origin, "GET", f"/bucket/{key}"))
    assert reply is not None
    assert [name for name in reply.headers if name.startswith("x-amz-meta-")] == ["x-amz-meta-colour"]
    assert (reply.headers["fencing-token"], reply.headers["fencing-resource"]) == ("33", f"s3/bucket/{key}")
    assert set(shared.double.objects("bucket")[key].content.metadata) == {
        *("colour", "fencing-token", "fencing-resource", "fencing-write-id", "fencing-signature", "fencing-invocation"),
    }


@pytest.mark.parametrize("path", ["/bucket/none", "/bucket/none?tagging", "/nowhere"])
async def test_an_error_has_one_request_id(shared: Stage, path: str) -> None:
    """A caller asks about a request by the gateway's id, whatever id the store gives it."""
    reply = await send(shared.origin, head(shared.origin, "GET", path))
    assert reply is not None
    assert reply.status == 404
    assert f"<RequestId>{reply.headers['x-amz-request-id']}</RequestId>".encode() in reply.body


async def test_a_body_that_breaks_off_is_never_taken_for_the_whole(shared: Stage, key: str) -> None:
    shared.double.put("bucket", key, bytes(100_000))
    shared.double.cut_body(5000, operation="GetObject", key=key)
    with pytest.raises((IncompleteReadError, ResponseStreamingError)):
        await body_of(connect(shared.origin), key)
    assert len(await body_of(connect(shared.origin), key)) == 100_000


async def test_an_error_about_the_gateways_signature_is_not_shown_to_the_client(
    postgres_server: EmbeddedPostgres,
) -> None:
    """The client has signed well; to be told that its signature is wrong would send it looking in the wrong place."""
    async with staged(postgres_server, s3={"access_key_id": "AKIASTRANGER"}) as stage:
        s3 = connect(stage.origin, "33")
        for operation, arguments in (
            (s3.get_object, {"Key": "k"}),
            (s3.list_objects_v2, {}),
            (s3.put_object, {"Key": "k", "Body": b"x"}),
            (s3.delete_object, {"Key": "k"}),
        ):
            status, code, message = await refused(operation, **arguments)
            assert (status, code) == (503, "ServiceUnavailable"), message
            assert "gateway doctor" in message


async def test_a_redirect_is_not_followed_and_not_passed_on(shared: Stage, key: str) -> None:
    """It is the gateway's endpoint that is wrong; its address is none of the client's business."""
    shared.double.fail(307, code="TemporaryRedirect", operation="GetObject", key=key)
    assert await outcome(connect(shared.origin).get_object, Key=key) == (502, "BadGateway")


async def test_a_bucket_that_appears_later(postgres_server: EmbeddedPostgres) -> None:
    double = S3Double()
    async with (
        fresh_database(postgres_server) as dsn,
        serve(double) as endpoint,
        running(config(dsn, endpoint)) as origin,
    ):
        s3 = connect(origin, "33")
        assert await outcome(s3.put_object, Key="k", Body=b"x") == (404, "NoSuchBucket")
        double.store.create_bucket("bucket", datetime.now(UTC))
        assert await outcome(s3.put_object, Key="k", Body=b"x") == (200, "")
