"""Objects: written, read, deleted and amended; odd keys, sizes, metadata, standard headers, ranges and conditions."""

import base64
import hashlib
from datetime import UTC, datetime
from typing import Any

from tests.conformance.observer import Observer, case, each

MEBIBYTE = 1024 * 1024
OTHER = '"00000000000000000000000000000000"'
PAST, FUTURE = datetime(2001, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
BODY = b"0123456789"


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
        "angle": "<a>&b",
        "backslash": "a\\b",
        "tilde": "~a(b)*!",
        "colon": "a:b@c,d;e",
        "unicode": "日本語/ключ/ß",
        "composed": "é",
        "decomposed": "e\u0301",
        "newline": "a\nb",
        "control": "a\x01b",
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
        "cache-control": {"CacheControl": "max-age=60, public"},
        "content-disposition": {"ContentDisposition": 'attachment; filename="a b.txt"'},
        "content-language": {"ContentLanguage": "de, en"},
        "content-encoding": {"ContentEncoding": "gzip"},
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
        "chunk-and-one": 64 * 1024 + 1,
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


@each(
    {
        "middle": "bytes=3-6",
        "open": "bytes=7-",
        "suffix": "bytes=-3",
        "suffix-of-nothing": "bytes=-0",
        "past-the-end": "bytes=5-100",
        "outside": "bytes=10-20",
        "backwards": "bytes=6-3",
        "several": "bytes=0-1,3-4",
        "nonsense": "bytes=a-b",
    }
)
def a_range(s3: Observer, given: str) -> None:
    s3.put_object(Key="k", Body=BODY)
    s3.get_object(Key="k", Range=given)
    s3.head_object(Key="k", Range=given)


@case
def a_range_of_nothing(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"")
    s3.get_object(Key="k", Range="bytes=0-0")
    s3.get_object(Key="k", Range="bytes=0-")


@each(
    {
        "match": {"IfMatch": "{etag}"},
        "match-unquoted": {"IfMatch": "{bare}"},
        "match-other": {"IfMatch": OTHER},
        "match-any": {"IfMatch": "*"},
        "none-match": {"IfNoneMatch": "{etag}"},
        "none-match-other": {"IfNoneMatch": OTHER},
        "none-match-any": {"IfNoneMatch": "*"},
        "modified": {"IfModifiedSince": PAST},
        "not-modified": {"IfModifiedSince": FUTURE},
        "unmodified": {"IfUnmodifiedSince": FUTURE},
        "not-unmodified": {"IfUnmodifiedSince": PAST},
        "match-and-not-unmodified": {"IfMatch": "{etag}", "IfUnmodifiedSince": PAST},
        "none-match-and-modified": {"IfNoneMatch": "{etag}", "IfModifiedSince": PAST},
    }
)
def a_conditional_read(s3: Observer, given: dict[str, Any]) -> None:
    etag = s3.put_object(Key="k", Body=BODY).get("ETag", "")
    filled = {
        name: value.format(etag=etag, bare=etag.strip('"')) if isinstance(value, str) else value
        for name, value in given.items()
    }
    s3.get_object(Key="k", **filled)
    s3.head_object(Key="k", **filled)


@case
def a_conditional_read_of_nothing(s3: Observer) -> None:
    s3.get_object(Key="none", IfMatch=OTHER)
    s3.get_object(Key="none", IfNoneMatch="*")


@each(
    {
        "content-type": {"ResponseContentType": "text/x-other"},
        "content-disposition": {"ResponseContentDisposition": 'attachment; filename="b c"'},
        "expires": {"ResponseExpires": FUTURE},
    }
)
def a_response_override(s3: Observer, given: dict[str, Any]) -> None:
    s3.put_object(Key="k", Body=BODY, ContentType="text/plain")
    s3.get_object(Key="k", **given)


@case
def a_part_by_its_number(s3: Observer) -> None:
    s3.put_object(Key="k", Body=BODY)
    s3.get_object(Key="k", PartNumber=1)
    s3.head_object(Key="k", PartNumber=1)
    s3.get_object(Key="k", PartNumber=2)


@case
def a_compressed_object_stays_compressed(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"\x1f\x8bnot really", ContentEncoding="gzip")
    s3.request("GET", "/{bucket}/k", {"Accept-Encoding": "gzip"})
    s3.request("GET", "/{bucket}/k", {"Accept-Encoding": "identity"})


CONDITIONS: dict[str, dict[str, Any]] = {
    "none-match-any": {"IfNoneMatch": "*"},
    "none-match-own": {"IfNoneMatch": "{etag}"},
    "none-match-other": {"IfNoneMatch": OTHER},
    "match-own": {"IfMatch": "{etag}"},
    "match-bare": {"IfMatch": "{bare}"},
    "match-other": {"IfMatch": OTHER},
    "match-any": {"IfMatch": "*"},
    "both": {"IfMatch": "{etag}", "IfNoneMatch": "*"},
}


def _filled(given: dict[str, str], etag: str) -> dict[str, str]:
    return {name: value.format(etag=etag, bare=etag.strip('"')) for name, value in given.items()}


@each(CONDITIONS)
def put_over_an_object(s3: Observer, given: dict[str, str]) -> None:
    etag = s3.put_object(Key="k", Body=b"old").get("ETag", "")
    s3.put_object(Key="k", Body=b"new", **_filled(given, etag))
    s3.get_object(Key="k")


@each(CONDITIONS)
def put_where_nothing_is(s3: Observer, given: dict[str, str]) -> None:
    s3.put_object(Key="k", Body=b"new", **_filled(given, '"5d41402abc4b2a76b9719d911017c592"'))
    s3.get_object(Key="k")


@case
def put_after_a_delete(s3: Observer) -> None:
    etag = s3.put_object(Key="k", Body=b"old").get("ETag", "")
    s3.delete_object(Key="k")
    s3.put_object(Key="k", Body=b"new", IfMatch=etag)
    s3.put_object(Key="k", Body=b"new", IfNoneMatch="*")
    s3.get_object(Key="k")


@each({"own": {"IfMatch": "{etag}"}, "other": {"IfMatch": OTHER}, "any": {"IfMatch": "*"}})
def conditional_delete(s3: Observer, given: dict[str, str]) -> None:
    etag = s3.put_object(Key="k", Body=b"x").get("ETag", "")
    s3.delete_object(Key="k", **_filled(given, etag))
    s3.head_object(Key="k")
    s3.delete_object(Key="none", **_filled(given, etag))


@each(
    {
        "none-match-any": {"IfNoneMatch": "*"},
        "match-own": {"IfMatch": "{etag}"},
        "match-other": {"IfMatch": OTHER},
    }
)
def conditional_completion(s3: Observer, given: dict[str, str]) -> None:
    for key in ("new", "there"):
        etag = s3.put_object(Key="there", Body=b"old").get("ETag", "")
        upload = s3.create_multipart_upload(Key=key).get("UploadId", "")
        part = s3.upload_part(Key=key, UploadId=upload, PartNumber=1, Body=b"part").get("ETag", "")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
        s3.complete_multipart_upload(Key=key, UploadId=upload, MultipartUpload=parts, **_filled(given, etag))
        s3.get_object(Key=key)


@each({"loud": False, "quiet": True})
def several(s3: Observer, quiet: bool) -> None:  # noqa: FBT001 - the row of the table
    for key in ("a", "b", "c d", "é"):
        s3.put_object(Key=key, Body=b"x")
    objects = [{"Key": key} for key in ("a", "c d", "é", "none")]
    s3.delete_objects(Delete={"Objects": objects, "Quiet": quiet})
    s3.list_objects_v2()


@case
def the_same_key_twice(s3: Observer) -> None:
    s3.put_object(Key="a", Body=b"x")
    s3.delete_objects(Delete={"Objects": [{"Key": "a"}, {"Key": "a"}]})


@case
def odd_keys(s3: Observer) -> None:
    keys = ("a//b", "../c", "a&b<c>", " space ", "a%2Fb")
    for key in keys:
        s3.put_object(Key=key, Body=b"x")
    s3.delete_objects(Delete={"Objects": [{"Key": key} for key in keys]})
    s3.list_objects_v2()


@each({"most": 1000, "too-many": 1001})
def many(s3: Observer, count: int) -> None:
    s3.put_object(Key="k0", Body=b"x")
    answer = s3.delete_objects(Delete={"Objects": [{"Key": f"k{number}"} for number in range(count)], "Quiet": True})
    s3.note(errors=answer.get("Errors", []))
    s3.head_object(Key="k0")


@each(
    {
        "malformed": b"<Delete><Object>",
        "empty": b"",
        "no-objects": b"<Delete></Delete>",
        "other": b"<Tagging></Tagging>",
        "no-key": b"<Delete><Object></Object></Delete>",
    }
)
def a_document(s3: Observer, body: bytes) -> None:
    s3.put_object(Key="k0", Body=b"x")
    s3.request("POST", "/{bucket}?delete", _with_md5(body), body)
    s3.head_object(Key="k0")


@case
def without_a_checksum(s3: Observer) -> None:
    s3.put_object(Key="k0", Body=b"x")
    s3.request("POST", "/{bucket}?delete", {}, b"<Delete><Object><Key>k0</Key></Object></Delete>")
    s3.head_object(Key="k0")


def _with_md5(body: bytes) -> dict[str, str]:
    return {"Content-MD5": base64.b64encode(hashlib.md5(body).digest()).decode()}


def _tags(**tags: str) -> dict[str, Any]:
    return {"TagSet": [{"Key": key, "Value": value} for key, value in tags.items()]}


@case
def tags_put_read_and_deleted(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.get_object_tagging(Key="k")
    s3.put_object_tagging(Key="k", Tagging=_tags(a="1", b="two words", c=""))
    s3.get_object_tagging(Key="k")
    s3.head_object(Key="k")
    s3.get_object(Key="k")
    s3.put_object_tagging(Key="k", Tagging=_tags(z="9"))
    s3.get_object_tagging(Key="k")
    s3.delete_object_tagging(Key="k")
    s3.get_object_tagging(Key="k")


@each(
    {
        "most": {f"k{number}": str(number) for number in range(10)},
        "too-many": {f"k{number}": str(number) for number in range(11)},
        "longest": {"k" * 128: "v" * 256},
        "key-too-long": {"k" * 129: "v"},
        "value-too-long": {"k": "v" * 257},
        "unicode": {"ключ": "значение"},
        "none": {},
    }
)
def a_tag_set(s3: Observer, tags: dict[str, str]) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.put_object_tagging(Key="k", Tagging=_tags(**tags))
    s3.get_object_tagging(Key="k")


@case
def the_same_tag_twice(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.put_object_tagging(Key="k", Tagging={"TagSet": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]})


@each({"malformed": b"<Tagging>", "empty": b"", "other": b"<Delete></Delete>"})
def tags_that_are_no_document(s3: Observer, body: bytes) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.request("PUT", "/{bucket}/k?tagging", {}, body)
    s3.get_object_tagging(Key="k")


@case
def tags_of_nothing(s3: Observer) -> None:
    s3.get_object_tagging(Key="none")
    s3.put_object_tagging(Key="none", Tagging=_tags(a="1"))
    s3.delete_object_tagging(Key="none")


@case
def tags_go_with_the_object(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x", Tagging="a=1")
    s3.get_object_tagging(Key="k")
    s3.put_object(Key="k", Body=b"y")
    s3.get_object_tagging(Key="k")


@each(
    {name: name for name in ("private", "public-read", "authenticated-read", "bucket-owner-full-control", "nonsense")}
)
def a_canned_acl(s3: Observer, acl: str) -> None:
    s3.put_object(Key="public/k", Body=b"x", ACL=acl)
    s3.get_object_acl(Key="public/k")
    s3.put_object(Key="public/later", Body=b"x")
    s3.put_object_acl(Key="public/later", ACL=acl)
    s3.get_object_acl(Key="public/later")


@case
def an_acl_by_document(s3: Observer) -> None:
    s3.put_object(Key="public/k", Body=b"x")
    found = s3.get_object_acl(Key="public/k")
    if found:
        everyone = {"Type": "Group", "URI": "http://acs.amazonaws.com/groups/global/AllUsers"}
        grants = [*found["Grants"], {"Grantee": everyone, "Permission": "READ"}]
        s3.put_object_acl(Key="public/k", AccessControlPolicy={"Owner": found["Owner"], "Grants": grants})
        s3.get_object_acl(Key="public/k")


@case
def an_acl_put_back(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    if found := s3.get_object_acl(Key="k"):
        s3.put_object_acl(Key="k", AccessControlPolicy={"Owner": found["Owner"], "Grants": found["Grants"]})
        s3.get_object_acl(Key="k")


@case
def a_directory_marker(s3: Observer) -> None:
    for _ in range(2):
        s3.put_object(Key="x/", Body=b"")
        s3.put_object(Key="x/", Body=b"")
        s3.list_objects_v2(Delimiter="/")
        s3.delete_object(Key="x/")
        s3.list_objects_v2()
    s3.put_object(Key="x/", Body=b"")
    s3.head_object(Key="x/")


@case
def an_acl_of_nothing(s3: Observer) -> None:
    s3.get_object_acl(Key="none")
    s3.put_object_acl(Key="none", ACL="private")


@case
def locks_without_object_lock(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.get_object_retention(Key="k")
    s3.get_object_legal_hold(Key="k")
    s3.put_object_legal_hold(Key="k", LegalHold={"Status": "ON"})
    s3.put_object_retention(Key="k", Retention={"Mode": "GOVERNANCE", "RetainUntilDate": "2099-01-01T00:00:00Z"})


@case
def restored_though_not_archived(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.restore_object(Key="k", RestoreRequest={"Days": 1})
