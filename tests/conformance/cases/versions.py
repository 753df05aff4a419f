"""Versioned buckets."""

from typing import Any

from tests.conformance.observer import Observer, case, each


def _versioned(s3: Observer, status: str = "Enabled") -> None:
    s3.put_bucket_versioning(VersioningConfiguration={"Status": status})


@case
def written_twice_and_deleted(s3: Observer) -> None:
    _versioned(s3)
    first = s3.put_object(Key="k", Body=b"1").get("VersionId", "null")
    s3.put_object(Key="k", Body=b"2")
    s3.get_object(Key="k")
    s3.get_object(Key="k", VersionId=first)
    s3.head_object(Key="k", VersionId=first)
    marker = s3.delete_object(Key="k").get("VersionId", "null")
    s3.get_object(Key="k")
    s3.head_object(Key="k")
    s3.get_object(Key="k", VersionId=marker)
    s3.list_object_versions()
    s3.list_objects_v2()
    s3.delete_object(Key="k", VersionId=marker)
    s3.get_object(Key="k")
    s3.list_object_versions()


@case
def a_version_is_deleted(s3: Observer) -> None:
    _versioned(s3)
    s3.put_object(Key="k", Body=b"1")
    second = s3.put_object(Key="k", Body=b"2").get("VersionId", "null")
    s3.delete_object(Key="k", VersionId=second)
    s3.get_object(Key="k")
    s3.get_object(Key="k", VersionId=second)
    s3.list_object_versions()


@each({"nonsense": "nonsense", "null": "null"})
def a_version_that_is_not_there(s3: Observer, version: str) -> None:
    _versioned(s3)
    s3.put_object(Key="k", Body=b"1")
    s3.get_object(Key="k", VersionId=version)
    s3.head_object(Key="k", VersionId=version)
    s3.delete_object(Key="k", VersionId=version)


@case
def versioning_is_suspended(s3: Observer) -> None:
    _versioned(s3)
    s3.put_object(Key="k", Body=b"1")
    _versioned(s3, "Suspended")
    s3.get_bucket_versioning()
    s3.put_object(Key="k", Body=b"2")
    s3.put_object(Key="k", Body=b"3")
    s3.list_object_versions()
    s3.delete_object(Key="k")
    s3.list_object_versions()


@case
def an_object_from_before(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"1")
    _versioned(s3)
    s3.put_object(Key="k", Body=b"2")
    s3.list_object_versions()
    s3.get_object(Key="k", VersionId="null")


@case
def nothing_is_deleted(s3: Observer) -> None:
    _versioned(s3)
    s3.delete_object(Key="none")
    s3.list_object_versions()


@each(
    {
        "everything": {},
        "prefix": {"Prefix": "a/"},
        "delimiter": {"Delimiter": "/"},
        "two": {"MaxKeys": 2},
        "encoded": {"EncodingType": "url"},
        "marker": {"KeyMarker": "a/1"},
    }
)
def version_listing(s3: Observer, given: dict[str, Any]) -> None:
    _versioned(s3)
    for key in ("a/1", "a/1", "a/2", "b c", "d"):
        s3.put_object(Key=key, Body=b"x")
    s3.delete_object(Key="a/2")
    page = s3.list_object_versions(**given)
    if page.get("IsTruncated"):
        markers = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page.get("NextVersionIdMarker", "")}
        s3.list_object_versions(**(given | markers))


@case
def upload_and_copy_have_versions(s3: Observer) -> None:
    _versioned(s3)
    upload = s3.create_multipart_upload(Key="k").get("UploadId", "")
    part = s3.upload_part(Key="k", UploadId=upload, PartNumber=1, Body=b"part").get("ETag", "")
    s3.complete_multipart_upload(Key="k", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part}]})
    s3.head_object(Key="k")
    version = s3.put_object(Key="source", Body=b"1").get("VersionId", "null")
    s3.put_object(Key="source", Body=b"2")
    s3.copy_object(Key="copy", CopySource={"Bucket": s3.bucket, "Key": "source", "VersionId": version})
    s3.get_object(Key="copy")


@case
def several_versions_are_deleted(s3: Observer) -> None:
    _versioned(s3)
    versions = [s3.put_object(Key="k", Body=b"%d" % number).get("VersionId", "null") for number in range(2)]
    s3.put_object(Key="other", Body=b"x")
    s3.delete_objects(Delete={"Objects": [{"Key": "k", "VersionId": versions[1]}, {"Key": "other"}]})
    s3.get_object(Key="k")
    s3.list_object_versions()


@case
def tags_of_a_version(s3: Observer) -> None:
    _versioned(s3)
    first = s3.put_object(Key="k", Body=b"1", Tagging="a=1").get("VersionId", "null")
    s3.put_object(Key="k", Body=b"2")
    s3.get_object_tagging(Key="k", VersionId=first)
    s3.put_object_tagging(Key="k", VersionId=first, Tagging={"TagSet": [{"Key": "b", "Value": "2"}]})
    s3.get_object_tagging(Key="k", VersionId=first)
    s3.get_object_tagging(Key="k")
