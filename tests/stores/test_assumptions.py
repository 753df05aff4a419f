"""The gateway's assumptions about every store, tried on real ones."""

import time
from http.client import HTTPConnection
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError
from mypy_boto3_s3 import S3Client

from tests.stores.store import Store, connect


@pytest.fixture
def bucket(store: Store) -> str:
    name = f"bucket-{uuid4().hex[:12]}"
    store.connect().create_bucket(Bucket=name)
    return name


def test_an_expired_signature_is_refused(store: Store, bucket: str) -> None:
    """How an unconditional write is settled: once its signature has expired it cannot land any more."""
    if store.name == "moto":
        pytest.skip("moto does not look at signatures; it is for trying out")
    s3 = store.connect()
    operations = {"PUT": "put_object", "DELETE": "delete_object"}
    for method in operations:
        s3.put_object(Bucket=bucket, Key=method, Body=b"before")
    urls = {
        method: s3.generate_presigned_url(operation, Params={"Bucket": bucket, "Key": method}, ExpiresIn=1)
        for method, operation in operations.items()
    }
    time.sleep(2.5)
    for method, url in urls.items():
        assert _send(method, url, b"late" if method == "PUT" else b"") == 403
        assert s3.get_object(Bucket=bucket, Key=method)["Body"].read() == b"before"


def test_a_signature_that_has_not_expired_is_taken(store: Store, bucket: str) -> None:
    s3 = store.connect()
    url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "k"}, ExpiresIn=60)
    assert _send("PUT", url, b"in time") == 200
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"in time"


def test_an_aborted_upload_is_gone(store: Store, bucket: str) -> None:
    """How a completion without a condition is settled: after the abort it has no effect, and the list says so."""
    s3 = store.connect()
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x")["ETag"]
    assert _listed(s3, bucket, "k") == [upload]
    s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload)
    assert _listed(s3, bucket, "k") == []
    with pytest.raises(ClientError):
        s3.complete_multipart_upload(
            Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part}]}
        )
    with pytest.raises(ClientError):
        s3.head_object(Bucket=bucket, Key="k")


def test_a_part_may_go_out_without_the_hash_of_its_body(store: Store, bucket: str) -> None:
    """How large bodies go on as they come: with a length, over http too."""
    s3 = connect(store.endpoint, store.owner, s3={"payload_signing_enabled": False, "addressing_style": "path"})
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    parts = {"Bucket": bucket, "Key": "k", "UploadId": upload, "PartNumber": 1}
    url = s3.generate_presigned_url("upload_part", Params=parts, ExpiresIn=60)
    assert _send("PUT", url, b"x" * 6 * 1024 * 1024) == 200
    assert [part["Size"] for part in s3.list_parts(Bucket=bucket, Key="k", UploadId=upload)["Parts"]] == [6 * 1024**2]


def _listed(s3: S3Client, bucket: str, key: str) -> list[str]:
    return [one["UploadId"] for one in s3.list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", [])]


def _send(method: str, url: str, body: bytes = b"") -> int:
    """A request to an address that carries its signature; its status."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=60)
    try:
        connection.request(method, f"{parts.path}?{parts.query}", body=body)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
