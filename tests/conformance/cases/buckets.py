"""Buckets: made, removed, configured."""

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
    s3.delete_object(Bucket=s3.new, Key="k")
    s3.delete_bucket(Bucket=s3.new)
    s3.head_bucket(Bucket=s3.new)
    s3.delete_bucket(Bucket=s3.new)


@case
def made_twice(s3: Observer) -> None:
    s3.create_bucket()


@case
def removed_though_not_empty(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.delete_bucket()
    s3.get_object(Key="k")


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
