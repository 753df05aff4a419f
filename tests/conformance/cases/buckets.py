"""Buckets: made, removed, configured, versioned and listed."""

import json
from typing import Any

from tests.conformance.observer import Observer, case, each


@case
def made_and_removed(s3: Observer) -> None:
    s3.create_bucket(Bucket=s3.new)
    s3.head_bucket(Bucket=s3.new)
    s3.get_bucket_location(Bucket=s3.new)
    s3.put_object(Bucket=s3.new, Key="k", Body=b"x")
    s3.delete_bucket(Bucket=s3.new)
    s3.get_object(Bucket=s3.new, Key="k")
    s3.delete_object(Bucket=s3.new, Key="k")
    s3.delete_bucket(Bucket=s3.new)
    s3.head_bucket(Bucket=s3.new)
    s3.delete_bucket(Bucket=s3.new)


@case
def made_twice(s3: Observer) -> None:
    s3.create_bucket()


@each({"upper-case": "{new}-A", "short": "ab", "underscore": "{new}_a", "dots": "{new}..a", "address": "192.168.5.4"})
def a_name(s3: Observer, name: str) -> None:
    s3.request("PUT", f"/{name}")


@case
def listed(s3: Observer) -> None:
    found = s3.target.client.list_buckets().get("Buckets", [])
    s3.note(listed=[one["Name"] in (s3.bucket, s3.other) for one in found].count(True))


@case
def location_and_existence(s3: Observer) -> None:
    s3.head_bucket()
    s3.get_bucket_location()
    s3.request("GET", "/{bucket}/")
    s3.request("HEAD", "/{bucket}/")


@case
def versioning(s3: Observer) -> None:
    s3.get_bucket_versioning()
    s3.put_bucket_versioning(VersioningConfiguration={"Status": "Enabled"})
    s3.get_bucket_versioning()
    s3.put_bucket_versioning(VersioningConfiguration={"Status": "Nonsense"})


def _policy(s3: Observer) -> str:
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": ["*"]},
        "Action": ["s3:GetObject"],
        "Resource": [f"arn:aws:s3:::{s3.bucket}/public/*"],
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@case
def policy(s3: Observer) -> None:
    s3.get_bucket_policy()
    s3.put_bucket_policy(Policy=_policy(s3))
    s3.get_bucket_policy_status()
    s3.note(kept=bool(s3.target.client.get_bucket_policy(Bucket=s3.bucket)["Policy"]))
    s3.delete_bucket_policy()
    s3.get_bucket_policy()
    s3.put_bucket_policy(Policy="{nonsense")


_RULE = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 30}}
_CORS = {"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["http://example.com"], "MaxAgeSeconds": 60}
_ENCRYPTION = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
_BLOCK = {"BlockPublicAcls": True, "IgnorePublicAcls": True, "BlockPublicPolicy": False, "RestrictPublicBuckets": False}

CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "lifecycle": ("bucket_lifecycle_configuration", {"LifecycleConfiguration": {"Rules": [_RULE]}}, "bucket_lifecycle"),
    "cors": ("bucket_cors", {"CORSConfiguration": {"CORSRules": [_CORS]}}, "bucket_cors"),
    "tagging": ("bucket_tagging", {"Tagging": {"TagSet": [{"Key": "a", "Value": "1"}]}}, "bucket_tagging"),
    "encryption": ("bucket_encryption", {"ServerSideEncryptionConfiguration": _ENCRYPTION}, "bucket_encryption"),
    "website": (
        "bucket_website",
        {"WebsiteConfiguration": {"IndexDocument": {"Suffix": "index.html"}}},
        "bucket_website",
    ),
    "public-access": ("public_access_block", {"PublicAccessBlockConfiguration": _BLOCK}, "public_access_block"),
    "ownership": (
        "bucket_ownership_controls",
        {"OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerPreferred"}]}},
        "bucket_ownership_controls",
    ),
}


@each(CONFIGURATIONS)
def configured(s3: Observer, given: tuple[str, dict[str, Any], str]) -> None:
    name, configuration, deleted = given
    getattr(s3, f"get_{name}")()
    getattr(s3, f"put_{name}")(**configuration)
    getattr(s3, f"get_{name}")()
    getattr(s3, f"delete_{deleted}")()
    getattr(s3, f"get_{name}")()


@each(
    {
        name: name
        for name in (
            "get_bucket_logging",
            "get_bucket_notification_configuration",
            "get_bucket_request_payment",
            "get_bucket_replication",
            "get_bucket_accelerate_configuration",
            "get_object_lock_configuration",
            "list_bucket_inventory_configurations",
        )
    }
)
def read(s3: Observer, operation: str) -> None:
    getattr(s3, operation)()


@each({"private": "private", "public-read": "public-read"})
def a_canned_acl(s3: Observer, acl: str) -> None:
    s3.put_bucket_acl(ACL=acl)
    s3.get_bucket_acl()


@each({"malformed": b"<Versioning", "empty": b"", "other": b"<Delete></Delete>"})
def a_configuration_that_is_no_document(s3: Observer, body: bytes) -> None:
    s3.request("PUT", "/{bucket}?versioning", {}, body)
    s3.get_bucket_versioning()


@case
def a_preflight(s3: Observer) -> None:
    s3.put_bucket_cors(CORSConfiguration={"CORSRules": [_CORS]})
    headers = {"Origin": "http://example.com", "Access-Control-Request-Method": "PUT"}
    s3.request("OPTIONS", "/{bucket}/k", headers, signed=False)
    s3.put_object(Key="k", Body=b"x")
    s3.request("GET", "/{bucket}/k", {"Origin": "http://example.com"})


@case
def an_object_lock_bucket(s3: Observer) -> None:
    s3.create_bucket(Bucket=s3.new, ObjectLockEnabledForBucket=True)
    s3.get_object_lock_configuration(Bucket=s3.new)
    s3.put_object(Bucket=s3.new, Key="k", Body=b"x")
    s3.put_object_legal_hold(Bucket=s3.new, Key="k", LegalHold={"Status": "ON"})
    s3.get_object_legal_hold(Bucket=s3.new, Key="k")
    s3.put_object_legal_hold(Bucket=s3.new, Key="k", LegalHold={"Status": "OFF"})
    s3.delete_object(Bucket=s3.new, Key="k")


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


KEYS = ("a", "a b", "a/1", "a/2", "a/b/1", "b%2Fc", "b+c", "c/", "c/d", "z_1", "é/ü")

LISTINGS: dict[str, dict[str, Any]] = {
    "everything": {},
    "prefix": {"Prefix": "a/"},
    "prefix-empty": {"Prefix": ""},
    "prefix-percent": {"Prefix": "b%2F"},
    "prefix-unicode": {"Prefix": "é"},
    "delimiter": {"Delimiter": "/"},
    "delimiter-empty": {"Delimiter": ""},
    "delimiter-percent": {"Delimiter": "%"},
    "delimiter-long": {"Delimiter": "b/"},
    "prefix-and-delimiter": {"Prefix": "a/", "Delimiter": "/"},
    "encoded": {"EncodingType": "url"},
    "encoded-delimiter": {"EncodingType": "url", "Delimiter": "/"},
    "at-most-one": {"MaxKeys": 1},
    "at-most-none": {"MaxKeys": 0},
    "at-most-many": {"MaxKeys": 5000},
    "at-most-negative": {"MaxKeys": -1},
    "pages-of-groups": {"MaxKeys": 2, "Delimiter": "/"},
}


def _fill(s3: Observer) -> None:
    for key in KEYS:
        s3.put_object(Key=key, Body=key.encode())


@each(LISTINGS)
def list_v2(s3: Observer, given: dict[str, Any]) -> None:
    _fill(s3)
    s3.list_objects_v2(**given)


@each(LISTINGS)
def list_v1(s3: Observer, given: dict[str, Any]) -> None:
    _fill(s3)
    s3.list_objects(**given)


@each({"one": 1, "five": 5})
def pages_v2(s3: Observer, size: int) -> None:
    _fill(s3)
    page = s3.list_objects_v2(MaxKeys=size)
    while token := page.get("NextContinuationToken"):
        page = s3.list_objects_v2(MaxKeys=size, ContinuationToken=token)


@each({"one": {"MaxKeys": 1}, "five": {"MaxKeys": 5}, "groups": {"MaxKeys": 2, "Delimiter": "/"}})
def pages_v1(s3: Observer, given: dict[str, Any]) -> None:
    _fill(s3)
    page = s3.list_objects(**given)
    while page.get("IsTruncated"):
        marker = page.get("NextMarker") or page["Contents"][-1]["Key"]
        page = s3.list_objects(Marker=marker, **given)


@each({"within": "a/1", "between": "a/1x", "after": "~", "empty": "", "unicode": "é"})
def start_after(s3: Observer, marker: str) -> None:
    _fill(s3)
    s3.list_objects_v2(StartAfter=marker)
    s3.list_objects(Marker=marker)


@each({"owner": {"FetchOwner": True}, "token": {"ContinuationToken": "nonsense"}, "type": {"EncodingType": "other"}})
def odd_listing(s3: Observer, given: dict[str, Any]) -> None:
    s3.put_object(Key="a", Body=b"x")
    s3.list_objects_v2(**given)


@each({"max-keys": "?max-keys=many", "list-type": "?list-type=3", "unordered": "?list-type=2&max-keys="})
def malformed_listing(s3: Observer, query: str) -> None:
    s3.request("GET", "/{bucket}" + query)


@case
def an_empty_bucket(s3: Observer) -> None:
    s3.list_objects_v2()
    s3.list_objects()
    s3.list_object_versions()
    s3.list_multipart_uploads()


@case
def what_was_deleted_is_not_listed(s3: Observer) -> None:
    _fill(s3)
    s3.delete_object(Key="a/1")
    s3.list_objects_v2(Prefix="a/")
    s3.list_objects(Prefix="a/")
    s3.list_object_versions(Prefix="a/")


@case
def a_key_that_xml_cannot_say(s3: Observer) -> None:
    s3.put_object(Key="a\nb\x02", Body=b"x")
    s3.request("GET", "/{bucket}?list-type=2&encoding-type=url")
