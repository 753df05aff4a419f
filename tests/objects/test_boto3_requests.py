"""The gateway verifies, understands and accepts the requests that boto3 really sends, for any key and framing."""

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
from gateway.objects.body.intake import Inspection, VerifiedBody, whole
from gateway.objects.s3.addressing import bucket_of_host
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request, classify

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
        return verify(self.head, lambda *_: (Principal("worker"), "sk"), now)


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
        config=Config(**{"s3": {"addressing_style": "path"}, **settings}),
    )
    client.meta.events.register("before-call.s3", add_token)
    client.meta.events.register("before-send.s3", capture)
    call(client)
    (only,) = sent
    return only


def take(sent: Sent, wire: bytes) -> VerifiedBody:
    verified = sent.verified()
    body = Inspection(sent.head.headers, sha256=verified.sha256, signatures=verified.chunks, max_size=10_000)
    body.request_digests(md5=True, sha256=True)
    return whole([body.feed(wire)], body.finish())


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


EVERYTHING_ELSE: list[tuple[Operation, Callable[[Any], object]]] = [
    (Operation.LIST_OBJECTS, lambda s3: s3.list_objects(Bucket="bucket", Marker="a b")),
    (Operation.LIST_OBJECT_VERSIONS, lambda s3: s3.list_object_versions(Bucket="bucket")),
    (Operation.COPY_OBJECT, lambda s3: s3.copy_object(Bucket="bucket", Key="k", CopySource="bucket/other")),
    (Operation.CREATE_MULTIPART_UPLOAD, lambda s3: s3.create_multipart_upload(Bucket="bucket", Key="k")),
    (
        Operation.UPLOAD_PART,
        lambda s3: s3.upload_part(Bucket="bucket", Key="k", UploadId="u", PartNumber=1, Body=b"x"),
    ),
    (
        Operation.UPLOAD_PART_COPY,
        lambda s3: s3.upload_part_copy(
            Bucket="bucket", Key="k", UploadId="u", PartNumber=1, CopySource={"Bucket": "bucket", "Key": "k"}
        ),
    ),
    (
        Operation.COMPLETE_MULTIPART_UPLOAD,
        lambda s3: s3.complete_multipart_upload(
            Bucket="bucket", Key="k", UploadId="u", MultipartUpload={"Parts": []}, IfNoneMatch="*"
        ),
    ),
    (
        Operation.ABORT_MULTIPART_UPLOAD,
        lambda s3: s3.abort_multipart_upload(Bucket="bucket", Key="k", UploadId="u"),
    ),
    (
        Operation.DELETE_OBJECTS,
        lambda s3: s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "k"}]}),
    ),
    (Operation.DELETE_OBJECT, lambda s3: s3.delete_object(Bucket="bucket", Key="k", VersionId="v")),
    (
        Operation.PUT_OBJECT_TAGGING,
        lambda s3: s3.put_object_tagging(Bucket="bucket", Key="k", Tagging={"TagSet": []}),
    ),
    (Operation.PUT_OBJECT_ACL, lambda s3: s3.put_object_acl(Bucket="bucket", Key="k", ACL="private")),
    (
        Operation.PUT_BUCKET_VERSIONING,
        lambda s3: s3.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"}),
    ),
    (Operation.CREATE_BUCKET, lambda s3: s3.create_bucket(Bucket="bucket")),
]


@pytest.mark.parametrize(("operation", "call"), EVERYTHING_ELSE)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_everything_else_with_its_token(scheme: str, operation: Operation, call: Callable[[Any], object]) -> None:
    sent = send(call, scheme)
    sent.verified()
    request = sent.classified
    assert request.operation is operation
    assert request.fencing.token == Token(0, 7)


@pytest.mark.parametrize("key", KEYS)
def test_the_source_of_a_copy(key: str) -> None:
    source = {"Bucket": "bucket", "Key": key, "VersionId": "v+1"}
    request = send(lambda s3: s3.copy_object(Bucket="bucket", Key="k", CopySource=source)).classified
    assert request.source is not None
    assert (request.source.bucket, request.source.key, request.source.version_id) == ("bucket", key, "v+1")


@pytest.mark.parametrize("key", KEYS)
def test_virtual_hosts(key: str) -> None:
    sent = send(lambda s3: s3.put_object(Bucket="bucket", Key=key, Body=b"x"), s3={"addressing_style": "virtual"})
    sent.verified()
    head = sent.head
    bucket = bucket_of_host(head.headers, ["gateway"])
    request = classify(head.method, head.raw_path, head.query_string, head.headers, bucket)
    assert (request.operation, request.bucket, request.key) == (Operation.PUT_OBJECT, "bucket", key)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("operation", [Operation.GET_OBJECT, Operation.PUT_OBJECT, Operation.DELETE_OBJECT])
def test_presigned_requests(operation: Operation, key: str) -> None:
    s3 = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url="http://gateway:8080",
        aws_access_key_id="AK",
        aws_secret_access_key="sk",
        aws_session_token="fencing-token=7&fencing-holder=w1",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    name = {"Get": "get_object", "Put": "put_object", "Del": "delete_object"}[operation[:3]]
    url = urlsplit(s3.generate_presigned_url(name, Params={"Bucket": "bucket", "Key": key}))
    host = [(b"host", url.netloc.encode())]
    request = classify(operation.method, url.path.encode(), url.query.encode(), host)
    assert (request.operation, request.bucket, request.key, request.parameters) == (operation, "bucket", key, ())
    assert (request.fencing.token, request.fencing.holder) == (Token(0, 7), "w1")


@pytest.mark.parametrize(
    "call",
    [
        lambda s3: s3.put_object(Bucket="bucket", Key="k", Body=b"", WriteOffsetBytes=3),
        lambda s3: s3.put_object(Bucket="bucket", Key="k", Body=b"", SSECustomerAlgorithm="AES256", SSECustomerKey="k"),
        lambda s3: s3.delete_object(Bucket="bucket", Key="k", MFA="serial 123456"),
        lambda s3: s3.delete_object(Bucket="bucket", Key="k", VersionId="v", IfMatch='"e"'),
        lambda s3: s3.select_object_content(
            Bucket="bucket",
            Key="k",
            Expression="SELECT 1",
            ExpressionType="SQL",
            InputSerialization={},
            OutputSerialization={},
        ),
        lambda s3: s3.get_object_torrent(Bucket="bucket", Key="k"),
        lambda s3: s3.rename_object(Bucket="bucket", Key="k", RenameSource="other"),
    ],
)
def test_what_is_not_served_is_refused(call: Callable[[Any], object]) -> None:
    sent = send(call, "https")
    sent.verified()
    with pytest.raises(StoreError) as caught:
        assert sent.classified
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
