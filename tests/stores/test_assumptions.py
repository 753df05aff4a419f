"""The gateway's assumptions about every store, tried on real ones, and the findings of its own probe and doctor.

docs/stores.md says what follows from them.
"""

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pyarrow
import pytest
import s3fs
from botocore.exceptions import ClientError
from mypy_boto3_s3 import S3Client
from pyarrow import dataset, fs

from gateway.demo.embedded import EmbeddedPostgres
from gateway.doctor.writers import check_bucket_writers
from gateway.fencing.intent import LATE_AFTER
from gateway.findings import Check, CheckStatus
from gateway.objects.store.bucket_profile import (
    COMPLETE_CONDITIONS,
    DELETE_CONDITION,
    KEYS,
    PUT_CONDITIONS,
    Probe,
    Profile,
)
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import probe
from tests.journal.installation import connected
from tests.objects.clients import body_of, call, in_thread, outcome
from tests.running import ACCESS_KEY, SECRET_KEY
from tests.stores.fenced import Fenced, fenced
from tests.stores.store import REGION, Store, StoreMissing, program
from tests.waiting import PATIENCE


@pytest.fixture
def bucket(store: Store) -> str:
    return _bucket(store)


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
        answer = httpx.request(method, url, content=b"late" if method == "PUT" else b"", timeout=60)
        assert answer.status_code == 403
        assert s3.get_object(Bucket=bucket, Key=method)["Body"].read() == b"before"


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


def _listed(s3: S3Client, bucket: str, key: str) -> list[str]:
    return [one["UploadId"] for one in s3.list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", [])]


WITHOUT_END = {"moto", "versitygw"}
"""They wait for ever: docs/stores.md says what follows from it."""


async def test_the_gateway_knows_a_store_that_waits_for_ever(store: Store) -> None:
    async with _upstream(store) as upstream:
        await upstream.time()
        assert upstream.is_patient is (store.name == "versitygw"), "moto is for tests only"


@pytest.mark.thorough
async def test_a_body_that_is_continued_too_late_has_no_effect(store: Store) -> None:
    """As a gateway would that was paused in the middle of sending one."""
    s3 = store.connect()
    s3.create_bucket(Bucket="interrupted")
    url = urlsplit(s3.generate_presigned_url("put_object", {"Bucket": "interrupted", "Key": "k"}, ExpiresIn=15))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: 200000\r\n\r\n"
    writer.write(head.encode() + b"x" * 100_000)
    ended = False
    try:
        async with asyncio.timeout(LATE_AFTER.total_seconds()):
            ended = not (await reader.read(65536)).startswith(b"HTTP/1.1 200")
    except TimeoutError:
        pass
    except ConnectionError:
        ended = True
    writer.write(b"x" * 100_000)
    written, left = False, PATIENCE if store.name in WITHOUT_END else 2
    while not written and left > 0:
        await asyncio.sleep(0.1)
        left -= 0.1
        written = s3.list_objects_v2(Bucket="interrupted")["KeyCount"] == 1
    writer.close()
    assert written == (store.name in WITHOUT_END), f"ended: {ended}"


# If a probe fails, the probes that build on it are not tried, and count as failed.
_AFTER_PUT = COMPLETE_CONDITIONS | DELETE_CONDITION | {Probe.ETAG_OF_MULTIPART, *KEYS, Probe.UPLOADS_TRAILING_SLASH}

MINIO = {*DELETE_CONDITION, Probe.KEYS_ODD_SEGMENTS, Probe.KEYS_MARKER, Probe.UPLOADS_TRAILING_SLASH}
# By store, and by whether the bucket is versioned: what fails.
FAILED: dict[tuple[str, bool], set[Probe]] = {
    ("moto", False): {Probe.COMPLETE_IF_MATCH, Probe.COMPLETE_RACE},
    ("moto", True): {Probe.COMPLETE_IF_MATCH, Probe.COMPLETE_RACE},
    ("ceph", False): {*COMPLETE_CONDITIONS, *DELETE_CONDITION, Probe.QUOTED_CONDITIONS},
    ("ceph", True): {*PUT_CONDITIONS, *_AFTER_PUT, Probe.READ_BACK, Probe.QUOTED_CONDITIONS},
    ("minio", False): MINIO,
    ("minio", True): MINIO,
    ("versitygw", False): {Probe.KEYS_ODD_SEGMENTS, Probe.KEYS_TRAILING_SLASH, Probe.UPLOADS_TRAILING_SLASH},
    ("versitygw", True): {*PUT_CONDITIONS, *_AFTER_PUT},
}

# The probes that fail now and then: a race that is lost about once in a hundred rounds. One probe in forty sees it.
# An operator of such a store tells the gateway not to rely on it: ``distrust = ["delete"]``.
NOW_AND_THEN = {"versitygw": {Probe.DELETE_RACE}}


@pytest.mark.parametrize("versioned", [False, True], ids=["plain", "versioned"])
async def test_the_probe_finds_what_the_store_lacks(store: Store, *, versioned: bool) -> None:
    bucket = _bucket(store, versioned=versioned)
    profile = await _probed(store, bucket)
    failed = {Probe(finding.name) for finding in profile.findings if not finding.passed}
    known = FAILED[store.name, versioned]
    assert failed - NOW_AND_THEN.get(store.name, set()) == known - NOW_AND_THEN.get(store.name, set()), profile.findings
    assert profile.writable == (not failed & PUT_CONDITIONS)


@pytest.mark.parametrize("versioned", [False, True], ids=["plain", "versioned"])
async def test_the_probe_leaves_nothing_behind(store: Store, *, versioned: bool) -> None:
    if versioned and store.name == "versitygw":
        pytest.skip("versions removed at the same time now and then leave one; no fenced writes there anyway")
    bucket, s3 = _bucket(store, versioned=versioned), store.connect()
    await _probed(store, bucket)
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    assert not {"Versions", "DeleteMarkers"} & s3.list_object_versions(Bucket=bucket).keys()


async def test_the_probe_says_the_same_each_time(store: Store) -> None:
    """A race that a store loses now and then shows here, or is known of and distrusted."""
    bucket = _bucket(store)
    first, *others = [_relied_on(store, await _probed(store, bucket)) for _ in range(5)]
    assert others == [first] * 4


def _bucket(store: Store, *, versioned: bool = False) -> str:
    bucket, s3 = f"bucket-{uuid4().hex[:12]}", store.connect()
    s3.create_bucket(Bucket=bucket)
    if versioned:
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return bucket


def _upstream(store: Store) -> AbstractAsyncContextManager[Upstream]:
    return connected(store.endpoint, store.owner.access_key_id, store.owner.secret_access_key)


async def _probed(store: Store, bucket: str) -> Profile:
    async with _upstream(store) as upstream:
        return await probe(upstream, bucket)


def _relied_on(store: Store, profile: Profile) -> Profile:
    """The profile as a gateway uses it that distrusts what is known to fail now and then."""
    unsteady = NOW_AND_THEN.get(store.name, set())
    steady = tuple(finding for finding in profile.findings if finding.name not in unsteady)
    return replace(profile.without(["delete"] if unsteady & DELETE_CONDITION else []), findings=steady)


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


def by_boto3(front: Fenced) -> None:
    s3 = front.through("33")
    here: dict[str, Any] = {"Bucket": front.bucket, "Key": "boto3/x/"}
    for _ in range(2):
        for _ in range(2):
            s3.put_object(**here, Body=b"")
        assert s3.head_object(**here)["ContentLength"] == 0
        s3.delete_object(**here)
        assert "Contents" not in s3.list_objects_v2(Bucket=front.bucket, Prefix="boto3/")
    s3.put_object(**here, Body=b"")


def by_pyarrow(front: Fenced) -> None:
    files = fs.S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        session_token="fencing-token=33",
        region=REGION,
        scheme="http",
        endpoint_override=urlsplit(front.origin).netloc,
        allow_bucket_creation=False,
    )
    base = f"{front.bucket}/pyarrow/x"
    for _ in range(2):
        for _ in range(2):
            files.create_dir(base)
        files.delete_dir(base)
    table = pyarrow.table({"day": [1, 1, 2], "value": [1, 2, 3]})
    for _ in range(3):
        dataset.write_dataset(
            table,
            base,
            filesystem=files,
            format="parquet",
            partitioning=["day"],
            existing_data_behavior="delete_matching",
        )
    assert dataset.dataset(base, filesystem=files, partitioning=["day"]).count_rows() == 3


def by_s3fs(front: Fenced) -> None:
    # boto3 sends the token as a header; this client as a session token.
    files = s3fs.S3FileSystem(
        key=ACCESS_KEY,
        secret=SECRET_KEY,
        token="fencing-token=33",
        endpoint_url=front.origin,
        client_kwargs={"region_name": REGION},
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    base = f"{front.bucket}/s3fs/x"
    for _ in range(2):
        for _ in range(2):
            files.touch(f"{base}/")
        files.pipe(f"{base}/y", b"content")
        files.mv(f"{base}/y", f"{base}/z")
        files.rm(base, recursive=True)
        assert not files.exists(base)


@pytest.mark.parametrize("client", [by_boto3, by_pyarrow, by_s3fs])
async def test_directories_are_made_and_removed_again_and_again(
    postgres_server: EmbeddedPostgres, store: Store, client: Callable[[Fenced], None]
) -> None:
    if store.name == "versitygw":
        pytest.skip("no key that ends in a slash is written there")
    async with fenced(postgres_server, store) as front:
        await asyncio.to_thread(client, front)


async def test_s3cmd_copies_moves_and_modifies(postgres_server: EmbeddedPostgres, store: Store, tmp_path: Path) -> None:
    """It puts back the ACL that it gets, and the headers of answers."""
    try:
        s3cmd = program("s3cmd", "apt-get install --no-install-recommends s3cmd")
    except StoreMissing as missing:
        pytest.skip(str(missing))
    content = tmp_path / "content"
    content.write_text("content")
    async with fenced(postgres_server, store) as front:
        host, base = urlsplit(front.origin).netloc, f"s3://{front.bucket}/x"

        def run(*command: str, token: str = "33") -> tuple[int, str]:
            keys = [f"--access_key={ACCESS_KEY}", f"--secret_key={SECRET_KEY}", f"--access_token=fencing-token={token}"]
            where = [
                "--config=/dev/null",
                f"--host={host}",
                f"--host-bucket={host}",
                f"--region={REGION}",
                "--no-ssl",
            ]
            ended = subprocess.run([s3cmd, *where, *keys, *command], capture_output=True, text=True, check=False)
            return ended.returncode, ended.stderr

        for command in (
            ("put", str(content), f"{base}/a"),
            ("cp", f"{base}/a", f"{base}/b"),
            ("mv", f"{base}/b", f"{base}/c"),
            ("modify", "--add-header=x-amz-meta-colour:red", f"{base}/c"),
        ):
            status, told = await asyncio.to_thread(run, *command)
            assert status == 0, told
        s3 = front.beside()
        listed = await call(front.through("33").list_objects_v2, Bucket=front.bucket)
        assert [one["Key"] for one in listed["Contents"]] == ["x/a", "x/c"]
        assert s3.head_object(Bucket=front.bucket, Key="x/c")["Metadata"]["colour"] == "red"
        assert await front.barrier("x/c", "34") == 200
        assert (await asyncio.to_thread(run, "modify", "--add-header=x-amz-meta-colour:blue", f"{base}/c"))[0] != 0
        assert s3.head_object(Bucket=front.bucket, Key="x/c")["Metadata"]["colour"] == "red"


def putting(s3: S3Client, bucket: str, content: bytes) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=content)


def completing(s3: S3Client, bucket: str, content: bytes) -> None:
    upload: dict[str, Any] = {"Bucket": bucket, "Key": "k"}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    part = s3.upload_part(**upload, PartNumber=1, Body=content)["ETag"]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part}]})


def copying(s3: S3Client, bucket: str, content: bytes) -> None:
    source = content.decode()
    s3.put_object(Bucket=bucket, Key=source, Body=content)
    s3.copy_object(Bucket=bucket, Key="k", CopySource={"Bucket": bucket, "Key": source})


def posting(s3: S3Client, bucket: str, content: bytes) -> None:
    form = s3.generate_presigned_post(
        bucket, "k", {"fencing-token": "33"}, [["eq", "$fencing-token", "33"]], ExpiresIn=600
    )
    answer = httpx.post(form["url"], data=form["fields"], files={"file": content}, timeout=60)
    assert answer.status_code == 204, answer.text


def deleting(s3: S3Client, bucket: str, content: bytes) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=content)
    s3.delete_object(Bucket=bucket, Key="k")


CONNECTIONS, WRITES = 8, 3


@pytest.mark.parametrize(
    "write",
    [putting, completing, *(pytest.param(one, marks=pytest.mark.thorough) for one in (copying, posting, deleting))],
)
async def test_writers_of_one_holder_wait_for_one_another(
    postgres_server: EmbeddedPostgres, store: Store, write: Callable[[S3Client, str, bytes], None]
) -> None:
    """Also through two gateways, and whether they write the same bytes or not. On S3, all of them succeed."""
    async with fenced(postgres_server, store) as one, one.another() as other:
        await call(one.through("33").put_object, Bucket=one.bucket, Key="probed", Body=b"")
        await call(other.through("33").put_object, Bucket=one.bucket, Key="probed", Body=b"")

        def work(number: int) -> None:
            s3 = (one, other)[number % 2].through("33")
            for turn in range(WRITES):
                write(s3, one.bucket, b"the same" if turn == 0 else f"{number}-{turn}".encode())

        working = (in_thread(work, number=number) for number in range(CONNECTIONS))
        failures = await asyncio.gather(*working, return_exceptions=True)
        assert failures == [None] * CONNECTIONS
        assert await one.rows("SELECT FROM fencing.intent") == []
        assert await one.rows("SELECT FROM fencing.forbidden") == [], "they settle nothing"


async def examined(store: Store, bucket: str, *trusted: str) -> Check:
    async with _upstream(store) as upstream:
        [check] = await check_bucket_writers(upstream, bucket, trusted)
    return check


def put_policy(store: Store, bucket: str, **changed: Any) -> None:
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": ["*"]},
        "Action": ["s3:PutObject"],
        "Resource": [f"arn:aws:s3:::{bucket}/*"],
        **changed,
    }
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    store.connect().put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


async def test_a_fresh_bucket_is_open_to_the_users_that_the_store_does_not_show(store: Store, bucket: str) -> None:
    check = await examined(store, bucket)
    assert (check.status, "does not say which of its users" in check.detail) == (CheckStatus.WARNING, True), check
    assert (await examined(store, bucket, "store")).status is CheckStatus.OK


async def test_a_policy_that_lets_everybody_write_is_found(store: Store, bucket: str) -> None:
    put_policy(store, bucket, Action=["s3:GetObject"])
    assert (await examined(store, bucket, "store")).status is CheckStatus.OK
    put_policy(store, bucket)
    check = await examined(store, bucket, "store")
    assert (check.status, check.detail) == (CheckStatus.WARNING, "* may PutObject by the policy")
    assert (await examined(store, bucket, "store", "*")).status is CheckStatus.OK
