"""The operations on buckets themselves."""

from __future__ import annotations

import re

from tests.doubles.s3.documents import child_text, parse
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.messages import OWNER, Answer, Request, element, group, iso_date, xml
from tests.doubles.s3.state import Store

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def list_buckets(store: Store, _: Request) -> Answer:
    """ListBuckets."""
    names = sorted(store.buckets)
    buckets = [
        group("Bucket", [element("Name", name), element("CreationDate", iso_date(store.buckets[name].created))])
        for name in names
    ]
    return xml("ListAllMyBucketsResult", OWNER, group("Buckets", buckets))


def create_bucket(store: Store, request: Request) -> Answer:
    """CreateBucket; making one's own bucket again succeeds, as in us-east-1."""
    name = request.head.bucket or ""
    if not _BUCKET_NAME.fullmatch(name):
        raise S3Error("InvalidBucketName", BucketName=name)
    store.create_bucket(name, request.now)
    return Answer(200, headers={"location": f"/{name}"})


def delete_bucket(store: Store, request: Request) -> Answer:
    """DeleteBucket."""
    store.delete_bucket(request.head.bucket or "")
    return Answer(204)


def head_bucket(store: Store, request: Request) -> Answer:
    """HeadBucket."""
    store.bucket(request.head.bucket or "")
    return Answer(200)


def get_bucket_location(store: Store, request: Request) -> Answer:
    """GetBucketLocation; the default region has an empty answer."""
    store.bucket(request.head.bucket or "")
    return xml("LocationConstraint")


def get_bucket_versioning(store: Store, request: Request) -> Answer:
    """GetBucketVersioning; a bucket that never had versions has an empty answer."""
    state = store.versioning(request.head.bucket or "")
    return xml("VersioningConfiguration", element("Status", state or None))


def put_bucket_versioning(store: Store, request: Request) -> Answer:
    """PutBucketVersioning; there is no way back to a bucket that never had versions."""
    wanted = child_text(parse(request.body.data, "VersioningConfiguration"), "Status")
    place = store.bucket(request.head.bucket or "")
    if wanted == "Enabled":
        place.versioning = "Enabled"
    elif wanted == "Suspended":
        place.versioning = "Suspended"
    else:
        raise S3Error("MalformedXML")
    return Answer(200)
