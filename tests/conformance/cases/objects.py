"""Objects: write, read, overwrite, delete; odd keys, sizes, metadata and standard headers."""

import base64
import hashlib
from datetime import UTC, datetime
from typing import Any

from tests.conformance.observer import Observer, case, each

MEBIBYTE = 1024 * 1024


@case
def written_read_and_deleted(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"hello")
    s3.get_object(Key="k")
    s3.head_object(Key="k")
    s3.put_object(Key="k", Body=b"other")
    s3.get_object(Key="k")
    s3.delete_object(Key="k")
    s3.get_object(Key="k")
    s3.head_object(Key="k")
    s3.list_objects_v2()


@case
def the_same_bytes_twice(s3: Observer) -> None:
    for _ in range(2):
        s3.put_object(Key="k", Body=b"same")
    s3.head_object(Key="k")


@case
def a_missing_object(s3: Observer) -> None:
    s3.get_object(Key="none")
    s3.head_object(Key="none")
    s3.get_object(Key="none", Range="bytes=0-1")
    s3.delete_object(Key="none")


@case
def a_missing_bucket(s3: Observer) -> None:
    for bucket in ("no-such-bucket-anywhere-here",):
        s3.get_object(Bucket=bucket, Key="k")
        s3.head_object(Bucket=bucket, Key="k")
        s3.list_objects_v2(Bucket=bucket)
        s3.list_objects(Bucket=bucket)
        s3.head_bucket(Bucket=bucket)
        s3.list_multipart_uploads(Bucket=bucket)


@each(
    {
        "put": ("put_object", {"Key": "k", "Body": b"x"}),
        "delete": ("delete_object", {"Key": "k"}),
        "create-upload": ("create_multipart_upload", {"Key": "k"}),
        "delete-objects": ("delete_objects", {"Delete": {"Objects": [{"Key": "k"}]}}),
        "tag": ("put_object_tagging", {"Key": "k", "Tagging": {"TagSet": [{"Key": "a", "Value": "b"}]}}),
    }
)
def a_write_to_a_missing_bucket(s3: Observer, call: tuple[str, dict[str, Any]]) -> None:
    operation, arguments = call
    getattr(s3, operation)(Bucket="no-such-bucket-anywhere-here", **arguments)


@each(
    {
        "slash-first": "/first",
        "slashes-first": "//first",
        "slashes-within": "a//b",
        "slash-last": "directory/",
        "dot": "./a",
        "dots": "../a",
        "dots-within": "a/../b",
        "plus": "a+b",
        "space": "a b",
        "spaces-around": " a ",
        "percent": "a%2Fb",
        "percent-alone": "100%",
        "ampersand": "a&b=c",
        "question-mark": "a?b",
        "hash": "a#b",
        "quote": "a\"b'c",
        "angle": "<a>&b",
        "backslash": "a\\b",
        "tilde": "~a(b)*!",
        "colon": "a:b@c,d;e",
        "unicode": "日本語/ключ/ß",
        "emoji": "😀",
        "composed": "é",
        "decomposed": "e\u0301",
        "tab": "a\tb",
        "newline": "a\nb",
        "control": "a\x01b",
        "single": "a",
        "underscore": "_a",
        "longest": "k" * 1024,
        "too-long": "k" * 1025,
        "long-segments": "/".join(["s" * 200] * 5),
    }
)
def a_key(s3: Observer, key: str) -> None:
    s3.put_object(Key=key, Body=key.encode())
    s3.get_object(Key=key)
    s3.list_objects_v2(EncodingType="url")
    s3.delete_object(Key=key)
    s3.head_object(Key=key)


@each(
    {
        "plain": {"a": "1", "b-c": "two words"},
        "case": {"MixedCase": "Value", "UPPER": "UPPER"},
        "spaces": {"a": "one  two   three"},
        "empty": {"a": ""},
        "long": {"a": "v" * 1500},
        "many": {f"name-{number}": str(number) for number in range(40)},
        "odd-characters": {"a": "x=y;z,\"q\" 'r' %20 <>&", "under_score": "1"},
        "too-much": {"a": "v" * 3000},
    }
)
def metadata(s3: Observer, given: dict[str, str]) -> None:
    s3.put_object(Key="k", Body=b"x", Metadata=given)
    s3.head_object(Key="k")
    s3.get_object(Key="k")


@each({"latin": "h\xe9llo", "utf-8": "日本".encode().decode("latin-1"), "encoded-word": "=?UTF-8?B?5pel5pys?="})
def metadata_by_hand(s3: Observer, value: str) -> None:
    s3.request("PUT", "/{bucket}/k", {"x-amz-meta-name": value}, b"x")
    s3.head_object(Key="k")


@case
def metadata_is_replaced_with_the_object(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x", Metadata={"a": "1"})
    s3.put_object(Key="k", Body=b"x", Metadata={"b": "2"})
    s3.head_object(Key="k")
    s3.put_object(Key="k", Body=b"x")
    s3.head_object(Key="k")


@each(
    {
        "content-type": {"ContentType": "text/plain; charset=utf-8"},
        "content-type-odd": {"ContentType": 'x/y; a="b;c"'},
        "cache-control": {"CacheControl": "max-age=60, public"},
        "content-disposition": {"ContentDisposition": 'attachment; filename="a b.txt"'},
        "content-language": {"ContentLanguage": "de, en"},
        "content-encoding": {"ContentEncoding": "gzip"},
        "content-encodings": {"ContentEncoding": "gzip, br"},
        "expires": {"Expires": datetime(2033, 1, 1, tzinfo=UTC)},
        "website": {"WebsiteRedirectLocation": "/elsewhere"},
        "storage-class": {"StorageClass": "STANDARD"},
        "storage-class-unknown": {"StorageClass": "NO_SUCH_CLASS"},
        "encryption": {"ServerSideEncryption": "AES256"},
        "tags": {"Tagging": "a=1&b=two%20words"},
    }
)
def a_header_of_the_object(s3: Observer, given: dict[str, Any]) -> None:
    s3.put_object(Key="k", Body=b"x", **given)
    s3.head_object(Key="k")
    s3.get_object(Key="k")
    s3.put_object(Key="k", Body=b"y")
    s3.head_object(Key="k")


@each(
    {
        "nothing": 0,
        "one": 1,
        "chunk": 64 * 1024,
        "chunk-and-one": 64 * 1024 + 1,
        "mebibyte": MEBIBYTE,
        "large": 20 * MEBIBYTE,
    }
)
def a_size(s3: Observer, size: int) -> None:
    s3.put_object(Key="k", Body=b"x" * size)
    s3.head_object(Key="k")
    s3.get_object(Key="k")
    s3.list_objects_v2()


@each(
    {
        "right": lambda body: base64.b64encode(hashlib.md5(body).digest()).decode(),
        "wrong": lambda _: base64.b64encode(hashlib.md5(b"something else").digest()).decode(),
        "short": lambda _: "YWJj",
        "not-base64": lambda _: "no base 64!",
        "empty": lambda _: "",
    }
)
def content_md5(s3: Observer, header: Any) -> None:
    s3.request("PUT", "/{bucket}/k", {"Content-MD5": header(b"hello")}, b"hello")
    s3.head_object(Key="k")


@each({"CRC32": "CRC32", "CRC32C": "CRC32C", "SHA1": "SHA1", "SHA256": "SHA256", "CRC64NVME": "CRC64NVME"})
def a_checksum(s3: Observer, algorithm: str) -> None:
    s3.put_object(Key="k", Body=b"hello", ChecksumAlgorithm=algorithm)
    s3.head_object(Key="k", ChecksumMode="ENABLED")
    s3.get_object(Key="k", ChecksumMode="ENABLED")


@each(
    {
        "crc32": {"x-amz-checksum-crc32": "AAAAAA=="},
        "sha256": {"x-amz-checksum-sha256": base64.b64encode(b"0" * 32).decode()},
        "short": {"x-amz-checksum-crc32": "AAAA"},
        "two": {"x-amz-checksum-crc32": "NhCmhg==", "x-amz-checksum-crc32c": "mnG7TA=="},
    }
)
def a_wrong_checksum(s3: Observer, headers: dict[str, str]) -> None:
    s3.request("PUT", "/{bucket}/k", headers, b"hello")
    s3.head_object(Key="k")


@each({"wrong": "0" * 64, "not-a-hash": "nonsense"})
def a_wrong_hash_of_the_body(s3: Observer, declared: str) -> None:
    s3.request("PUT", "/{bucket}/k", {"X-Amz-Content-SHA256": declared}, b"hello")
    s3.head_object(Key="k")


@case
def attributes(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"hello")
    s3.get_object_attributes(Key="k", ObjectAttributes=["ETag", "ObjectSize", "StorageClass"])
    s3.get_object_attributes(Key="none", ObjectAttributes=["ETag"])


@each({"post": "POST", "patch": "PATCH"})
def a_method_that_objects_do_not_have(s3: Observer, method: str) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.request(method, "/{bucket}/k")
