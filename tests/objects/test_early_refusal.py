"""A stale writer is refused before it sends its body, and it is on record."""

import asyncio
from urllib.parse import urlsplit

import pytest

from gateway.observe.events import WriteRefused
from tests.objects.clients import call, connect
from tests.objects.object_gateway import Stage
from tests.objects.raw import head, receive

pytestmark = pytest.mark.asyncio(loop_scope="module")


def put_head(origin: str, key: str, token: str, length: int) -> bytes:
    return head(
        origin,
        "PUT",
        f"/bucket/{key}",
        [("fencing-token", token), ("fencing-holder", "ann")],
        unsigned=[("content-length", str(length)), ("expect", "100-continue")],
    )


async def test_the_body_of_a_stale_writer_is_never_asked_for(shared: Stage, key: str) -> None:
    await call(connect(shared.origin, "34", "bob").put_object, Key=key, Body=b"new")
    parts = urlsplit(shared.origin)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(put_head(shared.origin, key, "33", 10_000_000))
    reply = await receive(reader)
    assert reply is not None
    assert (reply.status, reply.code, reply.interim) == (412, "StaleFencingToken", ())
    assert reply.headers["connection"] == "close"
    assert await reader.read() == b"", "a body that came now would be taken for the next request"
    writer.close()
    (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
    assert (rejection["token"], rejection["fence"], rejection["holder"], rejection["raised_by"]) == (
        *("33", "34"),
        *("ann", "bob"),
    )
    assert rejection["payload_size"] is None, "the body was not read"
    assert rejection["request_id"] == reply.headers["x-amz-request-id"]
    told = [str(event.rejection.id) for event in shared.events if isinstance(event, WriteRefused)]
    assert rejection["id"] in told
    assert rejection["id"].encode() in reply.body
    assert shared.body(key) == b"new"


async def test_a_fresh_writer_is_asked_to_go_on(shared: Stage, key: str) -> None:
    parts = urlsplit(shared.origin)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(put_head(shared.origin, key, "33", 5))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    writer.write(b"hello")
    reply = await receive(reader)
    assert reply is not None
    assert reply.status == 200
    assert shared.body(key) == b"hello"
    writer.close()


async def test_a_writer_that_is_overtaken_while_it_sends_is_on_record_with_its_payload(shared: Stage, key: str) -> None:
    parts = urlsplit(shared.origin)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(put_head(shared.origin, key, "33", 5))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    writer.write(b"hello")
    reply = await receive(reader)
    assert reply is not None
    assert (reply.status, reply.code) == (412, "StaleFencingToken")
    (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
    assert rejection["payload_size"] == 5
    assert rejection["payload_sha256"] == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert shared.body(key) is None
    assert await shared.count("intent", key) == 0
    writer.close()
