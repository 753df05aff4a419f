"""boto3 with its defaults: the client, the transfer manager, paginators, presigned URLs, and the resource API."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from mypy_boto3_s3 import S3Client
from mypy_boto3_s3.service_resource import S3ServiceResource

from tests.clients.gateway import BUCKET, NEWER, REGION, TOKEN, Lock, Login, connect, send
from tests.clients.lossy import losing

MEBIBYTE = 1024**2
IN_PARTS = TransferConfig(multipart_threshold=8 * MEBIBYTE, multipart_chunksize=8 * MEBIBYTE)


@pytest.fixture
def s3(lock: Lock, login: Login) -> Iterator[S3Client]:
    client = lock.gateway.connect(login, retries={"mode": "standard", "max_attempts": 3})
    yield client
    client.close()


@pytest.fixture
def resource(lock: Lock, login: Login) -> S3ServiceResource:
    return boto3.Session(login.access_key_id, login.secret_access_key, login.session_token, REGION).resource(
        "s3", endpoint_url=lock.gateway.origin
    )


def test_objects(s3: S3Client, lock: Lock) -> None:
    key = lock.key("a b+c/ü.txt")
    put = s3.put_object(Bucket=BUCKET, Key=key, Body=b"hello", Metadata={"colour": "red"}, ContentType="text/plain")
    head = s3.head_object(Bucket=BUCKET, Key=key)
    assert (head["ETag"], head["ContentLength"], head["ContentType"]) == (put["ETag"], 5, "text/plain")
    assert head["Metadata"] == {"colour": "red"}
    assert s3.get_object(Bucket=BUCKET, Key=key, Range="bytes=1-3")["Body"].read() == b"ell"
    copied = s3.copy_object(Bucket=BUCKET, Key=lock.key("copy"), CopySource={"Bucket": BUCKET, "Key": key})
    assert copied["CopyObjectResult"]["ETag"] == put["ETag"]
    s3.delete_object(Bucket=BUCKET, Key=key)
    assert set(lock.objects()) == {"copy"}
    s3.put_object(Bucket=BUCKET, Key=lock.key("other"), Body=b"x")
    gone = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": lock.key(name)} for name in ("copy", "other")]})
    assert {one["Key"] for one in gone["Deleted"]} == {lock.key("copy"), lock.key("other")}
    assert lock.objects() == {}


@pytest.mark.thorough
def test_the_transfer_manager(s3: S3Client, lock: Lock, large: Path, tmp_path: Path) -> None:
    s3.upload_file(str(large), BUCKET, lock.key("up"), Config=IN_PARTS, ExtraArgs={"Metadata": {"colour": "red"}})
    assert lock.body("up") == large.read_bytes()
    assert s3.head_object(Bucket=BUCKET, Key=lock.key("up"))["ETag"].endswith('-3"')
    s3.copy({"Bucket": BUCKET, "Key": lock.key("up")}, BUCKET, lock.key("copied"), Config=IN_PARTS)
    s3.download_file(BUCKET, lock.key("copied"), str(tmp_path / "down"), Config=IN_PARTS)
    assert (tmp_path / "down").read_bytes() == large.read_bytes()
    s3.upload_fileobj(io.BytesIO(b"small"), BUCKET, lock.key("up"))
    assert lock.body("up") == b"small"


def test_pages(s3: S3Client, lock: Lock) -> None:
    lock.seed(**{f"n{number}": b"x" for number in range(5)})
    for name in ("list_objects_v2", "list_objects"):
        pages = s3.get_paginator(name).paginate(Bucket=BUCKET, Prefix=lock.prefix, PaginationConfig={"PageSize": 2})
        assert [[one["Key"][-2:] for one in page["Contents"]] for page in pages] == [["n0", "n1"], ["n2", "n3"], ["n4"]]


def test_conditional_writes(s3: S3Client, lock: Lock) -> None:
    key = lock.key("k")
    first = s3.put_object(Bucket=BUCKET, Key=key, Body=b"one", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"two", IfNoneMatch="*")
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"two", IfMatch=first["ETag"])
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"three", IfMatch=first["ETag"])
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.delete_object(Bucket=BUCKET, Key=key, IfMatch=first["ETag"])
    assert lock.body("k") == b"two"
    assert lock.rejections() == [], "a condition that fails is no stale token"


@pytest.mark.thorough
def test_the_resource_api(resource: S3ServiceResource, lock: Lock) -> None:
    bucket = resource.Bucket(BUCKET)
    bucket.put_object(Key=lock.key("a"), Body=b"hello")
    bucket.Object(lock.key("b")).copy_from(CopySource={"Bucket": BUCKET, "Key": lock.key("a")})
    bucket.upload_fileobj(io.BytesIO(b"file"), lock.key("c"))
    assert {one.key: one.size for one in bucket.objects.filter(Prefix=lock.prefix)} == {
        lock.key("a"): 5,
        lock.key("b"): 5,
        lock.key("c"): 4,
    }
    bucket.objects.filter(Prefix=lock.prefix).delete()
    assert lock.objects() == {}


def presigned(lock: Lock, method: str, name: str, token: str | None = TOKEN, **more: str) -> str:
    """A URL whose query carries the token: boto3's own presigning has no place for another parameter."""
    url = f"{lock.gateway.origin}/{BUCKET}/{lock.key(name)}"
    request = AWSRequest(method, url, params=more | ({"fencing-token": token} if token else {}))
    S3SigV4QueryAuth(Credentials("demo", "demo-secret"), "s3", REGION, expires=600).add_auth(request)
    return str(request.prepare().url)


def test_presigned_urls_that_carry_a_token(lock: Lock) -> None:
    assert send("PUT", presigned(lock, "PUT", "k"), content=b"hello").status_code == 200
    assert send("GET", presigned(lock, "GET", "k", None)).content == b"hello"
    only_new = send("PUT", presigned(lock, "PUT", "k", **{"If-None-Match": "*"}), content=b"x")
    assert (only_new.status_code, "PreconditionFailed" in only_new.text) == (412, True)
    signed = presigned(lock, "PUT", "k")
    for changed in (f"{signed}&fencing-holder=me", signed.replace("/k?", "/another?")):
        assert send("PUT", changed, content=b"x").status_code == 403
    without = send("PUT", presigned(lock, "PUT", "k", None), content=b"x")
    assert (without.status_code, "FencingTokenRequired" in without.text) == (428, True)
    with lock.overtaken(refusals=2):
        for method in ("PUT", "DELETE"):
            refused = send(method, presigned(lock, method, "k"), content=b"zombie")
            assert (refused.status_code, "StaleFencingToken" in refused.text) == (412, True)
    assert send("DELETE", presigned(lock, "DELETE", "k", NEWER)).status_code == 204
    # In the store a tombstone may stand there: a request of the older holder may be waiting for absence.
    assert send("GET", presigned(lock, "GET", "k", None)).status_code == 404


def test_presigned_urls_of_credentials_that_carry_a_token(s3: S3Client, lock: Lock) -> None:
    place = {"Bucket": BUCKET, "Key": lock.key("k")}
    put, get, delete = (s3.generate_presigned_url(f"{name}_object", place) for name in ("put", "get", "delete"))
    assert send("PUT", put, content=b"hello").status_code == 200
    assert send("GET", get).content == b"hello"
    with lock.overtaken(refusals=2):
        assert send("PUT", put, content=b"zombie").status_code == 412
        assert send("DELETE", delete).status_code == 412
        assert send("GET", get).content == b"hello", "reads go on"


def test_a_form(s3: S3Client, lock: Lock) -> None:
    """The session token is a field of the form: the browser that posts it needs to know nothing."""
    form = s3.generate_presigned_post(BUCKET, lock.key("k"))
    url, fields = form["url"], form["fields"]
    assert send("POST", url, data=fields, files={"file": b"hello"}).status_code == 204
    assert lock.body("k") == b"hello"
    with lock.overtaken():
        assert send("POST", url, data=fields, files={"file": b"zombie"}).status_code == 412


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_retries_after_a_lost_answer(lock: Lock, login: Login, large: Path, method: str) -> None:
    """boto3 sends again what it has heard nothing of; the holder's own second try is no stale write."""
    lock.seed(there=b"old")
    path = f"/{BUCKET}/{lock.key('there')}"
    expected = f"{path}?uploadId=" if method == "POST" else path
    with losing(lock.gateway.origin, f"{method} {expected}".encode()) as (origin, network):
        s3 = connect(origin, login)
        match method:
            case "PUT":
                s3.put_object(Bucket=BUCKET, Key=lock.key("there"), Body=b"new")
            case "POST":
                s3.upload_file(str(large), BUCKET, lock.key("there"), Config=IN_PARTS)
            case "DELETE":
                s3.delete_object(Bucket=BUCKET, Key=lock.key("there"))
        s3.close()
        assert network.lost == 1
    assert lock.body("there") == {"PUT": b"new", "POST": large.read_bytes(), "DELETE": None}[method]
    assert lock.rejections() == []


def multipart(s3: S3Client, lock: Lock) -> None:
    place = {"Bucket": BUCKET, "Key": lock.key("there")}
    upload = s3.create_multipart_upload(**place)["UploadId"]  # type: ignore[arg-type]
    s3.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"zombie")  # type: ignore[arg-type]


FORMS: dict[str, Callable[[S3Client, Lock, Path], object]] = {
    "put_object": lambda s3, lock, _: s3.put_object(Bucket=BUCKET, Key=lock.key("there"), Body=b"zombie"),
    "put_object of a new key": lambda s3, lock, _: s3.put_object(Bucket=BUCKET, Key=lock.key("new"), Body=b"zombie"),
    "put_object on a condition": lambda s3, lock, _: s3.put_object(
        Bucket=BUCKET, Key=lock.key("new"), Body=b"zombie", IfNoneMatch="*"
    ),
    "put_object of 20 MiB": lambda s3, lock, large: s3.put_object(
        Bucket=BUCKET, Key=lock.key("there"), Body=large.read_bytes()
    ),
    "delete_object": lambda s3, lock, _: s3.delete_object(Bucket=BUCKET, Key=lock.key("there")),
    "copy_object": lambda s3, lock, _: s3.copy_object(
        Bucket=BUCKET, Key=lock.key("there"), CopySource={"Bucket": BUCKET, "Key": lock.key("source")}
    ),
    "copy in parts": lambda s3, lock, _: s3.copy(
        {"Bucket": BUCKET, "Key": lock.key("source")},
        BUCKET,
        lock.key("there"),
        Config=TransferConfig(multipart_threshold=1),
    ),
    "upload_file": lambda s3, lock, large: s3.upload_file(str(large), BUCKET, lock.key("there"), Config=IN_PARTS),
    "upload_fileobj": lambda s3, lock, _: s3.upload_fileobj(io.BytesIO(b"zombie"), BUCKET, lock.key("there")),
    "create_multipart_upload": lambda s3, lock, _: multipart(s3, lock),
    "put_object_tagging": lambda s3, lock, _: s3.put_object_tagging(
        Bucket=BUCKET, Key=lock.key("there"), Tagging={"TagSet": [{"Key": "colour", "Value": "red"}]}
    ),
    "put_object_acl": lambda s3, lock, _: s3.put_object_acl(Bucket=BUCKET, Key=lock.key("there"), ACL="private"),
}


@pytest.mark.parametrize("form", FORMS)
def test_after_a_takeover_every_write_is_refused(s3: S3Client, lock: Lock, large: Path, form: str) -> None:
    lock.seed(there=b"precious", source=b"source")
    with lock.overtaken():
        with pytest.raises((ClientError, boto3.exceptions.S3UploadFailedError), match="StaleFencingToken"):
            FORMS[form](s3, lock, large)
        assert len(lock.rejections()) == 1, "a refusal is final: nothing is tried again"


def test_after_a_takeover_each_key_of_many_is_refused(s3: S3Client, lock: Lock) -> None:
    lock.seed(there=b"precious", source=b"source")
    with lock.overtaken(refusals=2):
        keys = [{"Key": lock.key(name)} for name in ("there", "source")]
        answer = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": keys})  # type: ignore[typeddict-item]
        assert [one["Code"] for one in answer["Errors"]] == ["StaleFencingToken"] * 2
        assert "Deleted" not in answer


def test_an_upload_begun_before_the_takeover_is_not_completed(s3: S3Client, lock: Lock) -> None:
    lock.seed(there=b"precious")
    place = {"Bucket": BUCKET, "Key": lock.key("there")}
    upload = s3.create_multipart_upload(**place)["UploadId"]  # type: ignore[arg-type]
    part = s3.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"zombie")  # type: ignore[arg-type]
    with lock.overtaken(), pytest.raises(ClientError, match="StaleFencingToken"):
        s3.complete_multipart_upload(
            **place,  # type: ignore[arg-type]
            UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
        )


def test_fenced_credentials_write_nothing_else(lock: Lock) -> None:
    s3 = lock.gateway.connect(lock.fenced())
    for key in ("elsewhere", f"accounts/{lock.name}x/k"):
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    s3.close()
