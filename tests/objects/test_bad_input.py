"""Bad input is answered clearly, and nothing is written, raised or left behind."""

from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.objects.clients import call, connect, refused
from tests.objects.object_gateway import Stage, module_stage, store
from tests.objects.raw import Headers, ask, framed, head, lines, send, sha256

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_BODY = 100_000


UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


TOKEN = ("fencing-token", "33")


shared = module_stage(
    lambda: store("bucket"),
    lambda one: call(connect(one.origin, "1").put_object, Key="copied", Body=b"source"),
    server={"max_body": MAX_BODY},
)


@dataclass
class Bad:
    """A request and the answer it must get. ``body`` is sent as it is, behind a head of ``headers``."""

    name: str
    status: int
    code: str
    headers: Headers = (TOKEN,)
    method: str = "PUT"
    query: str = ""
    body: bytes = b"hello"
    payload: str = "UNSIGNED-PAYLOAD"
    unsigned: Headers = ()
    length: int | None = None
    signer: dict[str, Any] = field(default_factory=dict)

    def wire(self, origin: str, key: str) -> bytes:
        length = len(self.body) if self.length is None else self.length
        unsigned = [*self.unsigned, ("content-length", str(length))]
        target = f"/bucket/{key}{self.query}"
        how: Any = {"payload": self.payload, "unsigned": unsigned, **self.signer}
        return head(origin, self.method, target, self.headers, **how) + self.body

    def __str__(self) -> str:
        return self.name


def token(name: str, text: str | bytes, code: str = "FencingTokenMalformed") -> Bad:
    return Bad(name, 400, code, headers=[("fencing-token", text)])


def in_chunks(name: str, code: str, body: bytes, decoded: str = "5", status: int = 400) -> Bad:
    headers = [TOKEN, ("x-amz-decoded-content-length", decoded)]
    return Bad(name, status, code, headers, body=body, payload=UNSIGNED_TRAILER)


TOKENS = [
    Bad("no token", 428, "FencingTokenRequired", headers=()),
    token("an empty token", ""),
    token("a zero-padded token", "033"),
    token("two tokens in one header", "33, 33"),
    token("a token of a resource", "s3/bucket/k=33"),
    Bad("one in the metadata", 400, "FencingTokenMalformed", [("x-amz-meta-fencing-token", "a/k=33")]),
    token("broken UTF-8", b"\xff33", "InvalidRequest"),
    Bad("two token headers", 400, "InvalidRequest", unsigned=[("fencing-token", "34")]),
    Bad("two token headers, both signed", 400, "AuthorizationHeaderMalformed", [TOKEN, ("fencing-token", "34")]),
    Bad("the alias beside it", 400, "FencingTokenMalformed", headers=[TOKEN, ("x-fencing-token", "33")]),
    Bad("the underscore spelling", 400, "InvalidRequest", headers=[("fencing_token", "33")]),
    Bad("a session token that is a real one", 400, "InvalidToken", [("x-amz-security-token", "FwoGZXIvYXdzEBYa")]),
    Bad("two tokens in the session", 400, "FencingTokenMalformed",
        [("x-amz-security-token", "fencing-token=33&fencing-token=34")]),
    Bad("another resource", 422, "FencingResourceMismatch", headers=[TOKEN, ("fencing-resource", "s3/bucket/other")]),
    Bad("a resource not in canonical form", 400, "FencingResourceMalformed",
        headers=[TOKEN, ("fencing-resource", "s3/bucket/%6bey")]),
]  # fmt: skip


SIGNATURES = [
    Bad("an unsigned token", 403, "AccessDenied", headers=(), unsigned=[TOKEN]),
    Bad("the store's own access key", 403, "InvalidAccessKeyId",
        signer={"access_key": "AKIADOUBLE", "secret": "double-secret"}),
]  # fmt: skip


BODIES = [
    Bad("another SHA-256", 400, "XAmzContentSHA256Mismatch", payload=sha256(b"hellO")),
    Bad("a length that is shorter", 400, "XAmzContentSHA256Mismatch",
        body=b"helloP", payload=sha256(b"helloP"), length=5),
    Bad("more than is taken", 413, "EntityTooLarge", body=b"", length=MAX_BODY + 1),
    Bad("more than a number can say", 413, "EntityTooLarge", body=b"", length=10**17),
    in_chunks("a decoded length that is longer", "IncompleteBody", framed(b"hello"), "6"),
    in_chunks("a decoded length that is too much", "EntityTooLarge", framed(b"hello"), str(MAX_BODY + 1), 413),
]  # fmt: skip


UPLOAD_GONE = "?partNumber=1&uploadId=u"


PART = b"<Part><PartNumber>1</PartNumber><ETag>e</ETag></Part>"


COMPLETION = b"<CompleteMultipartUpload>%s</CompleteMultipartUpload>"


def tokenless(name: str, method: str, query: str = "", headers: Headers = (), body: bytes = b"") -> Bad:
    return Bad(name, 428, "FencingTokenRequired", headers, method=method, query=query, body=body)


def form(name: str, status: int, code: str, method: str, query: str, body: bytes = b"") -> Bad:
    return Bad(name, status, code, method=method, query=query, body=body)


# All writes besides putting and deleting one object are fenced like these.
FORMS = [
    tokenless("a copy without a token", "PUT", headers=[("x-amz-copy-source", "bucket/copied")]),
    tokenless("an upload without a token", "POST", "?uploads"),
    tokenless("tags without a token", "PUT", "?tagging", body=b"<Tagging><TagSet/></Tagging>"),
    tokenless("an ACL without a token", "PUT", "?acl"),
    tokenless("a retention without a token", "PUT", "?retention", body=b"<Retention/>"),
    tokenless("a restoration without a token", "POST", "?restore", body=b"<RestoreRequest/>"),
    tokenless("a deleted version without a token", "DELETE", "?versionId=v"),
    form("a part of no upload", 404, "NoSuchUpload", "PUT", UPLOAD_GONE, b"part"),
    form("the completion of no upload", 404, "NoSuchUpload", "POST", "?uploadId=u", COMPLETION % PART),
    Bad("a copy of nothing", 404, "NoSuchKey", [TOKEN, ("x-amz-copy-source", "bucket/none")], body=b""),
    Bad("a copy of an ambiguous name", 400, "InvalidArgument", [TOKEN, ("x-amz-copy-source", "bucket/a+b")], body=b""),
]


@pytest.mark.parametrize("bad", [*TOKENS, *SIGNATURES, *BODIES, *FORMS], ids=str)
async def test_nothing_is_written(shared: Stage, key: str, bad: Bad) -> None:
    since, before = len(shared.double.requests), shared.double.sequence
    reply = await ask(shared.origin, bad.wire(shared.origin, key))
    assert (reply.status, reply.code) == (bad.status, bad.code), reply.body
    assert "x-amz-request-id" in reply.headers
    assert_untouched(shared, since, before)
    assert await traces(shared, key) == []


def assert_untouched(shared: Stage, since: int, before: int) -> None:
    assert not shared.written(since)
    assert not shared.applied(before)


async def traces(shared: Stage, key: str) -> list[str]:
    """Return the kinds of rows that the database keeps about a key."""
    kinds = ("fence", "intent", "object", "forbidden")
    each = (f"SELECT '{kind}' AS kind FROM fencing.{kind} WHERE resource = $1" for kind in kinds)
    return [row["kind"] for row in await shared.rows(" UNION ALL ".join(each), f"s3/bucket/{key}")]


async def test_the_same_request_without_the_mistake_is_accepted(shared: Stage, key: str) -> None:
    """The table above refuses for the reason it gives, and not for one that all its requests have."""
    good = [
        Bad("plain", 200, ""),
        Bad("the MD5", 200, "", headers=[TOKEN, ("content-md5", "XUFAKrxLKna5cZ2REBfFkg==")]),
        Bad("the SHA-256", 200, "", payload=sha256(b"hello")),
        in_chunks("in chunks", "", framed(b"hel", b"lo"), status=200),
        Bad("the largest", 200, "", body=bytes(MAX_BODY)),
        Bad("named", 200, "", headers=[TOKEN, ("fencing-resource", f"s3/bucket/{key}")]),
        Bad("the alias", 200, "", headers=[("x-fencing-token", "33")]),
        Bad("in the session", 200, "", headers=[("x-amz-security-token", "fencing-token=33&fencing-holder=ann")]),
    ]
    for one in good:
        reply = await ask(shared.origin, one.wire(shared.origin, key))
        assert (reply.status, reply.code) == (one.status, one.code), one.name
        assert shared.body(key) == (b"hello" if "chunks" in one.name else one.body)


@pytest.mark.parametrize("payload", ["UNSIGNED-PAYLOAD", sha256(b"hello"), UNSIGNED_TRAILER])
@pytest.mark.parametrize("sent", [0, 3])
async def test_a_body_that_ends_early(shared: Stage, key: str, payload: str, sent: int) -> None:
    """The connection ends in the middle of the body. No client is left to answer, and no object to write."""
    body = framed(b"hello") if payload == UNSIGNED_TRAILER else b"hello"
    headers = [TOKEN] + ([("x-amz-decoded-content-length", "5")] if payload == UNSIGNED_TRAILER else [])
    bad = Bad("early", 0, "", headers, payload=payload, body=body[:sent], length=len(body))
    since, before = len(shared.double.requests), shared.double.sequence
    assert await send(shared.origin, bad.wire(shared.origin, key), half_close=True) is None
    assert_untouched(shared, since, before)
    assert await traces(shared, key) == []
    assert await send(shared.origin, Bad("again", 200, "").wire(shared.origin, key)) is not None
    assert shared.body(key) == b"hello"


async def test_a_request_that_is_not_signed(shared: Stage, key: str) -> None:
    since = len(shared.double.requests)
    for method in ("GET", "HEAD", "PUT", "DELETE", "POST"):
        reply = await ask(shared.origin, lines(method, f"/bucket/{key}", [("host", "gateway"), TOKEN]))
        assert reply.status == 403
        assert method == "HEAD" or reply.code == "AccessDenied"
    assert not shared.double.requests[since:], "not even a read gets through"


async def test_deletes_of_many_without_a_token(shared: Stage) -> None:
    since = len(shared.double.requests)
    answer = await call(connect(shared.origin).delete_objects, Delete={"Objects": [{"Key": "copied"}, {"Key": "none"}]})
    assert [(one["Key"], one["Code"]) for one in answer["Errors"]] == [
        ("copied", "FencingTokenRequired"),
        ("none", "FencingTokenRequired"),
    ]
    assert "Deleted" not in answer
    assert not shared.written(since)
    assert shared.body("copied") == b"source"


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?AWSAccessKeyId=AKIA&Signature=c2ln&Expires=1893456000", []), ("", [("authorization", "AWS AKIA:c2ln")])],
)
async def test_signature_version_2(shared: Stage, key: str, query: str, headers: Headers) -> None:
    """`aws s3 presign` and boto3 presign with it by default where the endpoint is not that of AWS."""
    for method in ("GET", "PUT", "DELETE"):
        request = lines(method, f"/bucket/{key}{query}", [("host", "gateway"), ("content-length", "0"), *headers])
        reply = await ask(shared.origin, request)
        assert (reply.status, reply.code) == (400, "InvalidRequest")
        assert b"Please use AWS4-HMAC-SHA256." in reply.body
        assert b"aws configure set default.s3.signature_version s3v4" in reply.body
        assert b'Config(signature_version="s3v4")' in reply.body
    assert shared.body(key) is None


METADATA = {"long": "v" * 2045}
"""One byte more than S3 allows: names count without their prefix, and the gateway's own do not count."""


async def test_too_much_metadata_in_each_way_in(shared: Stage, key: str) -> None:
    s3, since, too_large = connect(shared.origin, "33"), len(shared.double.requests), (400, "MetadataTooLarge")
    copied: dict[str, Any] = {"Key": key, "CopySource": "bucket/copied", "Metadata": METADATA}
    for function, arguments in (
        (s3.put_object, {"Key": key, "Body": b"x", "Metadata": METADATA}),
        (s3.create_multipart_upload, {"Key": key, "Metadata": METADATA}),
        (s3.copy_object, {**copied, "MetadataDirective": "REPLACE"}),
        (s3.copy_object, copied),
    ):
        assert (await refused(function, **arguments))[:2] == too_large
    fields = {"x-amz-meta-long": METADATA["long"], "x-amz-meta-fencing-token": "33"}
    conditions = [{name: value} for name, value in fields.items()]
    form = s3.generate_presigned_post("bucket", key, Fields=dict(fields), Conditions=conditions)
    async with httpx.AsyncClient() as client:
        posted = await client.post(form["url"], data=form["fields"], files={"file": b"x"})
        url = s3.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": key, "Metadata": METADATA})
        put = await client.put(url, headers={f"x-amz-meta-{name}": value for name, value in METADATA.items()})
    for answer in (posted, put):
        assert (answer.status_code, "MetadataTooLarge" in answer.text) == (400, True), answer.text
    assert not shared.written(since)


async def test_metadata_that_is_repeated_is_one_list(shared: Stage, key: str) -> None:
    """S3 signs and keeps it so. A token must not be a list."""
    metadata = [("x-amz-meta-colour", "red,green"), ("x-amz-meta-other", "x")]
    signed = head(shared.origin, "PUT", f"/bucket/{key}", [TOKEN, *metadata], unsigned=[("content-length", "0")])
    request = signed.replace(b"x-amz-meta-colour: red,green", b"x-amz-meta-colour: red\r\nx-amz-meta-colour: green ")
    assert request != signed
    assert (await ask(shared.origin, request)).status == 200
    kept = (await call(connect(shared.origin).head_object, Key=key))["Metadata"]
    assert {name: kept[name] for name in ("colour", "other")} == {"colour": "red,green", "other": "x"}
    tokens = [("x-amz-meta-fencing-token", "33"), ("x-amz-meta-fencing-token", "33")]
    request = head(shared.origin, "PUT", f"/bucket/{key}", tokens, unsigned=[("content-length", "0")])
    assert (await ask(shared.origin, request)).status == 400


@pytest.mark.parametrize("name", ["aa", "a", "v2", ".gitignore", "my-bucket.", "bucket-%25", "Upper", "a_b"])
async def test_a_name_that_no_bucket_can_have(shared: Stage, name: str) -> None:
    for method in ("PUT", "GET"):
        reply = await ask(shared.origin, head(shared.origin, method, f"/{name}", unsigned=[("content-length", "0")]))
        assert (reply.status, reply.code) == (400, "InvalidBucketName")


async def test_a_bucket_that_is_not_there(shared: Stage) -> None:
    s3 = connect(shared.origin, "33")
    assert (await refused(s3.put_object, Bucket="nowhere", Key="k", Body=b"x"))[:2] == (404, "NoSuchBucket")
    assert (await refused(s3.delete_object, Bucket="nowhere", Key="k"))[:2] == (404, "NoSuchBucket")
    assert (await refused(s3.get_object, Bucket="nowhere", Key="k"))[:2] == (404, "NoSuchBucket")
    assert await shared.fence("s3/nowhere/k") is None
