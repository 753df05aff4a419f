"""Keys go through byte for byte, and each is a resource of its own."""

import unicodedata

import pytest

from tests.objects.clients import body_of, call, connect, outcome, refused
from tests.objects.object_gateway import Stage
from tests.objects.raw import head, send

pytestmark = pytest.mark.asyncio(loop_scope="module")

NFC = unicodedata.normalize("NFC", "é")
NFD = unicodedata.normalize("NFD", "é")

# Each key with the resource it belongs to, behind s3/bucket/.
KEYS = [
    ("a/../b", "a/..~/b"),
    ("a/..~/b", "a/..~~/b"),
    ("b", "b"),
    ("/x", "/x"),
    ("x//y", "x//y"),
    ("x/y", "x/y"),
    ("%2F", "%252F"),
    ("%2f", "%252f"),
    ("a%2Fb", "a%252Fb"),
    ("a+b c", "a+b%20c"),
    ("a b c", "a%20b%20c"),
    ("a+b+c", "a+b+c"),
    (NFC, "%C3%A9"),
    (NFD, "e%CC%81"),
    ("tail/", "tail/"),
    ("tail", "tail"),
    (".", ".~"),
    ("..", "..~"),
    ("./.", ".~/.~"),
    ("?a=b&c#d", "%3Fa%3Db&c%23d"),
    ("line\r\n\tfeed", "line%0D%0A%09feed"),
    ("\x7f\u2028", "%7F%E2%80%A8"),
    ("~!$&'()*+,;=:@", "~!$&'()*+%2C;%3D:@"),
]


@pytest.mark.parametrize(("key", "resource"), KEYS, ids=[ascii(key) for key, _ in KEYS])
async def test_an_object_is_stored_under_exactly_its_key(shared: Stage, key: str, resource: str) -> None:
    s3 = connect(shared.origin, "33")
    body = key.encode()
    put = await call(s3.put_object, Key=key, Body=body)
    assert put["ResponseMetadata"]["HTTPHeaders"]["fencing-resource"] == f"s3/bucket/{resource}"
    assert shared.body(key) == body
    assert await body_of(s3, key) == body
    assert await shared.fence(f"s3/bucket/{resource}") == "33"


async def test_keys_that_differ_in_their_encoding_never_share_an_object(shared: Stage) -> None:
    s3 = connect(shared.origin, "33")
    for key, _ in KEYS:
        await call(s3.put_object, Key=key, Body=key.encode())
    assert {key: shared.body(key) for key, _ in KEYS} == {key: key.encode() for key, _ in KEYS}
    for key, _ in KEYS:
        await call(s3.delete_object, Key=key)
        assert shared.body(key) is None
        left = [other for other, _ in KEYS if shared.body(other) is not None]
        assert left == [other for other, _ in KEYS[KEYS.index((key, _)) + 1 :]], "it took no other with it"


SPELLINGS = [("%41%2D~", "A-~"), ("a+b", "a+b"), ("a%2Bb", "a+b"), ("x%2Fy%2fz", "x/y/z"), ("'(*)'", "'(*)'")]


@pytest.mark.parametrize(("raw", "key"), SPELLINGS)
async def test_spellings_of_one_key_are_one_resource(shared: Stage, raw: str, key: str) -> None:
    """Percent-encoding what need not be encoded changes nothing: a second spelling is no way around the fence."""
    resource = f"s3/bucket/{key}"
    assert (await shared.barrier(resource, "50")).status_code == 200
    stale = head(shared.origin, "PUT", f"/bucket/{raw}", [("fencing-token", "49")], unsigned=[("content-length", "1")])
    reply = await send(shared.origin, stale + b"x")
    assert reply is not None
    assert (reply.status, reply.code) == (412, "StaleFencingToken")
    fresh = head(shared.origin, "PUT", f"/bucket/{raw}", [("fencing-token", "50")], unsigned=[("content-length", "1")])
    reply = await send(shared.origin, fresh + b"x")
    assert reply is not None
    assert (reply.status, reply.headers["fencing-resource"]) == (200, resource)
    assert shared.body(key) == b"x"
    shared.double.store.bucket("bucket").objects.pop(key)


async def test_the_longest_key_needs_a_rule_and_is_told_so(shared: Stage) -> None:
    """S3 takes keys of 1024 bytes, a resource name 512."""
    s3 = connect(shared.origin, "33")
    fits = "k" * (512 - len("s3/bucket/"))
    assert await outcome(s3.put_object, Key=fits, Body=b"x") == (200, "")
    assert shared.body(fits) == b"x"
    for key in (fits + "k", "é" * 100, "k" * 1024):
        status, code, message = await refused(s3.put_object, Key=key, Body=b"x")
        assert (status, code) == (400, "FencingResourceMalformed")
        assert "rule" in message
        assert shared.body(key) is None
    assert (await refused(s3.put_object, Key="k" * 1025, Body=b"x"))[:2] == (400, "KeyTooLongError")


async def test_an_invalid_key_is_refused(shared: Stage) -> None:
    since = len(shared.double.requests)
    for raw in ("%", "%zz", "%ff", "%C3", "a%00b"):
        request = head(shared.origin, "PUT", f"/bucket/{raw}", [("fencing-token", "1")])
        reply = await send(shared.origin, request)
        assert reply is not None
        assert (reply.status, reply.code) == (400, "InvalidURI"), raw
    assert not shared.double.requests[since:]
