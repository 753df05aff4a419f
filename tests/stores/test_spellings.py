"""If a store takes two keys for one, an older holder reaches no object by another spelling of its key."""

from typing import Any

import pytest
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres
from tests.objects.clients import body_of, call, outcome
from tests.stores.fenced import Fenced, fenced
from tests.stores.store import Store

PATHS = {"/d/k", "//d/k", "d//k", "d/./k", "./d/k", "d/e/../k", "../d/k", "d/k//", "d/k/."}
OTHERS = {"d/k/", "d/k__XLDIR__", "D/k", "d/K", "d/é", "d/e\u0301", "d\\k", "d/k.", "d/k "}

# By store, what the gateway refuses in front of it: docs/stores.md says why.
REFUSED = {
    "moto": set[str](),
    "ceph": set[str](),
    "minio": {*PATHS, "d/k__XLDIR__"},
    "versitygw": {*PATHS, "d/k/"},
}
TAGS = {"TagSet": [{"Key": "by", "Value": "older"}]}


async def test_an_older_holder_has_no_other_spelling(postgres_server: EmbeddedPostgres, store: Store) -> None:
    async with fenced(postgres_server, store) as front:
        newer, older, beside = front.through("2"), front.through("1"), front.beside()
        here: dict[str, Any] = {"Bucket": front.bucket}
        await call(newer.put_object, **here, Key="d/k", Body=b"the newer holder's")
        await call(older.put_object, **here, Key="source", Body=b"late")
        found = set()
        for key in sorted(PATHS | OTHERS):
            answers = await _attempts(front, older, key)
            if (400, "InvalidArgument") in answers:
                assert set(answers) == {(400, "InvalidArgument")}, key
                found.add(key)
            assert await body_of(beside, "d/k", front.bucket) == b"the newer holder's", key
            assert (await call(beside.get_object_tagging, **here, Key="d/k"))["TagSet"] == [], key
        assert found == REFUSED[store.name]
        assert await outcome(newer.put_object, **here, Key="d/k", Body=b"again") == (200, "")


async def _attempts(front: Fenced, s3: S3Client, key: str) -> list[tuple[int, str]]:
    """Return the outcomes of every way to write a key; the delete comes last."""
    where: dict[str, Any] = {"Bucket": front.bucket, "Key": key}
    return [
        await outcome(s3.put_object, **where, Body=b""),
        await outcome(s3.put_object_tagging, **where, Tagging=TAGS),
        await outcome(s3.copy_object, **where, CopySource=f"{front.bucket}/source"),
        await outcome(s3.create_multipart_upload, **where),
        await outcome(s3.delete_object, **where),
    ]


async def test_a_marker_of_a_directory_is_not_written_by_the_name_of_its_file(
    postgres_server: EmbeddedPostgres, store: Store
) -> None:
    """MinIO keeps the object d/ under another name, and takes that for a key."""
    if store.name == "versitygw":
        pytest.skip("no key that ends in a slash is written there")
    async with fenced(postgres_server, store) as front:
        newer, older, beside = front.through("2"), front.through("1"), front.beside()
        assert await outcome(newer.put_object, Bucket=front.bucket, Key="d/", Body=b"newer") == (200, "")
        await outcome(older.put_object, Bucket=front.bucket, Key="d__XLDIR__", Body=b"older")
        assert await body_of(beside, "d/", front.bucket) == b"newer"
