"""What boto3 really sends is verified, understood and taken in, whatever the key and the way of framing."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import PayloadMode, RequestHead, VerifiedSignature, verify
from gateway.errors import StoreError
from gateway.fencing.token import Token
from gateway.objects.body import Body, VerifiedBody
from gateway.objects.operations import Operation
from gateway.objects.request import S3Request, classify

KEYS = [
    "k",
    "a//b",
    "/lead",
    "tail/",
    "a/../b",
    "..",
    "./a",
    "a+b",
    "a b",
    "100%",
    "a%2Fb",
    "é",
    "e\u0301",
    "a?b#c&d=e",
    "~!*'()",
]


class _Answer(io.BytesIO):
    def stream(self, **_: Any) -> list[bytes]:
        return [b"<Answer/>"]


@dataclass
class Sent:
    """A request as boto3 hands it to the network."""

    head: RequestHead
    body: bytes

    @property
    def classified(self) -> S3Request:
        return classify(self.head.method, self.head.raw_path, self.head.query_string, self.head.headers)

    def verified(self) -> VerifiedSignature:
        signed = dict(self.head.headers)[b"x-amz-date"].decode()
        now = datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return verify(self.head, lambda _: (Principal("worker"), "sk"), now)


def send(call: Callable[[Any], object], scheme: str = "http", **settings: Any) -> Sent:
    """The one request that ``call`` makes of a boto3 client with the fencing token 7."""
    sent: list[Sent] = []

    def add_token(params: dict[str, Any], **_: Any) -> None:
        params["headers"]["Fencing-Token"] = "7"

    def capture(request: Any, **_: Any) -> Any:
        parts = urlsplit(request.url)
        body = request.body.read() if hasattr(request.body, "read") else request.body or b""
        headers = [] if "host" in request.headers else [(b"host", parts.netloc.encode())]
        for name, value in request.headers.items():
            headers.append((name.lower().encode(), value if isinstance(value, bytes) else value.encode()))
        head = RequestHead(request.method, parts.path.encode(), parts.query.encode(), headers)
        sent.append(Sent(head, bytes(body)))
        return AWSResponse(request.url, 200, HTTPHeaders(), _Answer())

    client = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=f"{scheme}://gateway:8080",
        aws_access_key_id="AK",
        aws_secret_access_key="sk",
        config=Config(s3={"addressing_style": "path"}, **settings),
    )
    client.meta.events.register("before-call.s3", add_token)
    client.meta.events.register("before-send.s3", capture)
    call(client)
    (only,) = sent
    return only


def take(sent: Sent, wire: bytes) -> VerifiedBody:
    verified = sent.verified()
    body = Body(sent.head.headers, sha256=verified.sha256, signatures=verified.chunks, max_size=10_000)
    body.feed(wire)
    return body.finish()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("scheme", "mode"), [("http", PayloadMode.EXACT), ("https", PayloadMode.UNSIGNED_TRAILER)])
def test_a_put(scheme: str, mode: PayloadMode, key: str) -> None:
    content = bytes(range(256)) * 10
    sent = send(
        lambda s3: s3.put_object(Bucket="bucket", Key=key, Body=content, ContentType="a/b", Metadata={"my_key": "1"}),
        scheme,
    )
    verified, request = sent.verified(), sent.classified
    assert (verified.principal.name, verified.mode) == ("worker", mode)
    assert (request.operation, request.bucket, request.key) == (Operation.PUT_OBJECT, "bucket", key)
    assert request.fencing.token == Token(0, 7)
    assert dict(request.headers) == {"content-type": "a/b", "x-amz-meta-my_key": "1"}

    taken = take(sent, sent.body)
    assert taken.content == content
    assert [name for name, _ in taken.digests.headers] == ["x-amz-checksum-crc32"]

    for wrong in (sent.body[:-1], sent.body.replace(b"\x01", b"\x02", 1)):
        with pytest.raises(StoreError):
            take(sent, wrong)


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_every_checksum(scheme: str, algorithm: str) -> None:
    sent = send(lambda s3: s3.put_object(Bucket="bucket", Key="k", Body=b"hello", ChecksumAlgorithm=algorithm), scheme)
    assert [name for name, _ in take(sent, sent.body).digests.headers] == [f"x-amz-checksum-{algorithm.lower()}"]


def test_a_put_without_any_checksum() -> None:
    sent = send(
        lambda s3: s3.put_object(Bucket="bucket", Key="k", Body=b"hello"),
        "https",
        request_checksum_calculation="when_required",
    )
    assert take(sent, sent.body).content == b"hello"


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        (Operation.LIST_BUCKETS, lambda s3: s3.list_buckets()),
        (Operation.HEAD_BUCKET, lambda s3: s3.head_bucket(Bucket="bucket")),
        (Operation.GET_BUCKET_LOCATION, lambda s3: s3.get_bucket_location(Bucket="bucket")),
        (Operation.LIST_OBJECTS_V2, lambda s3: s3.list_objects_v2(Bucket="bucket", Prefix="a +/é", Delimiter="/")),
        (Operation.GET_OBJECT, lambda s3: s3.get_object(Bucket="bucket", Key="k", Range="bytes=0-1")),
        (Operation.HEAD_OBJECT, lambda s3: s3.head_object(Bucket="bucket", Key="k")),
        (Operation.DELETE_OBJECT, lambda s3: s3.delete_object(Bucket="bucket", Key="k", IfMatch='"e"')),
    ],
)
def test_the_other_operations(operation: Operation, call: Callable[[Any], object]) -> None:
    sent = send(call)
    assert sent.verified().sha256 is not None
    request = sent.classified
    assert request.operation is operation
    assert dict(request.parameters).get("prefix") in (None, "a +/é")


@pytest.mark.parametrize(
    "call",
    [
        lambda s3: s3.copy_object(Bucket="bucket", Key="k", CopySource="bucket/other"),
        lambda s3: s3.create_multipart_upload(Bucket="bucket", Key="k"),
        lambda s3: s3.upload_part(Bucket="bucket", Key="k", UploadId="u", PartNumber=1, Body=b"x"),
        lambda s3: s3.complete_multipart_upload(Bucket="bucket", Key="k", UploadId="u", MultipartUpload={"Parts": []}),
        lambda s3: s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "k"}]}),
        lambda s3: s3.delete_object(Bucket="bucket", Key="k", VersionId="v"),
        lambda s3: s3.put_object_tagging(Bucket="bucket", Key="k", Tagging={"TagSet": []}),
        lambda s3: s3.put_object_acl(Bucket="bucket", Key="k", ACL="private"),
        lambda s3: s3.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"}),
        lambda s3: s3.put_object(Bucket="bucket", Key="k", Body=b"", WriteOffsetBytes=3),
        lambda s3: s3.create_bucket(Bucket="bucket"),
        lambda s3: s3.list_objects(Bucket="bucket"),
    ],
)
def test_what_is_not_served_is_refused(call: Callable[[Any], object]) -> None:
    sent = send(call)
    sent.verified()
    with pytest.raises(StoreError) as caught:
        assert sent.classified
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
