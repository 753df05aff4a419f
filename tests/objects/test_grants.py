"""Fenced credentials: every S3 client presents its token with them, and none can do more than they say."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mypy_boto3_s3 import S3Client

from gateway.auth.callers import Callers
from gateway.auth.principal import FencedScope, Principal
from gateway.config.access import CallerKeys
from gateway.errors import StoreError
from gateway.fencing.token import Token
from gateway.objects.authorisation import ABOUT_A_BUCKET, ReadScope
from gateway.objects.key_rules import KeyRule, Resources
from gateway.objects.s3.operations import Level, Operation, OperationKind
from gateway.objects.s3.request import S3Request, classify
from gateway.objects.store.bucket_profile import Probe
from gateway.objects.store.probe import Profiles
from tests.objects.clients import body_of, call, connect, outcome
from tests.objects.object_gateway import Stage, module_stage, store
from tests.running import PAIR
from tests.tiers import first
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALE = (412, "StaleFencingToken")


DENIED = (403, "AccessDenied")


shared = module_stage(
    lambda: store(minimum_part_size=1), objects=[{"match": "bucket/jobs/{job}/**", "resource": "job/{job}"}]
)


async def fenced(
    stage: Stage,
    resource: str,
    present: tuple[str | None, str | None] = (None, None),
    read: str | Sequence[str] = ("s3/bucket/source",),
) -> S3Client:
    """A client with fenced credentials of ann. ``present``: token and holder in its headers beside them."""
    issued = await stage.issued(resource=resource, token="34", holder="ann", read=read)
    return connect(stage.origin, *present, **issued)


def writes(s3: S3Client, key: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """One of each kind."""
    return {
        "put": (s3.put_object, {"Key": key, "Body": b"x"}),
        "copy": (s3.copy_object, {"Key": key, "CopySource": "bucket/source"}),
        "delete": (s3.delete_object, {"Key": key}),
        "tagging": (s3.put_object_tagging, {"Key": key, "Tagging": {"TagSet": []}}),
        "upload": (s3.create_multipart_upload, {"Key": key}),
    }


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("s3/bucket/{key}", ""), ("s3/bucket/{key}/*", "/one"), ("s3/bucket/{key}/**", "/one/two"), ("s3/*/**", "/x")],
)
async def test_they_write_what_their_pattern_covers(shared: Stage, key: str, pattern: str, path: str) -> None:
    s3 = await fenced(shared, pattern.replace("{key}", key))
    put = await call(s3.put_object, Key=key + path, Body=b"x")
    assert put["ResponseMetadata"]["HTTPHeaders"]["fencing-token"] == "34"
    assert await body_of(s3, key + path) == b"x"
    async with shared.api() as api:
        fence = (await api.get(f"/v1/fences/s3/bucket/{key}{path}")).json()
    assert (fence["token"], fence["raised_by"], fence["caller"]) == ("34", "ann", "writer")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("s3/bucket/{key}", "-2"), ("s3/bucket/{key}/*", "/one/two"), ("s3/bucket/{key}/**", ""), ("s3/other/**", "")],
)
async def test_a_key_beyond_the_pattern_is_denied(shared: Stage, key: str, pattern: str, path: str) -> None:
    shared.double.put("bucket", "source", b"source")
    shared.double.put("bucket", key + path, b"before")
    s3 = await fenced(shared, pattern.replace("{key}", key))
    before, since = shared.double.sequence, len(shared.double.requests)
    for function, arguments in writes(s3, key + path).values():
        assert await outcome(function, **arguments) == DENIED
    assert not shared.applied(before)
    assert shared.written(since) == []
    assert await shared.fence(f"s3/bucket/{key}{path}") is None


async def test_the_pattern_is_over_resources_and_not_over_keys(shared: Stage, key: str) -> None:
    s3 = await fenced(shared, f"job/{key}")
    assert await outcome(s3.put_object, Key=f"jobs/{key}/deep/x", Body=b"x") == (200, "")
    assert await outcome(s3.put_object, Key=f"jobs/{key}-2/x", Body=b"x") == DENIED
    other = await fenced(shared, f"s3/bucket/jobs/{key}/**")
    assert await outcome(other.put_object, Key=f"jobs/{key}/deep/y", Body=b"x") == DENIED


async def test_of_many_keys_those_beyond_it_are_denied(shared: Stage, key: str) -> None:
    for each in (key, f"{key}-2"):
        shared.double.put("bucket", each, b"x")
    s3 = await fenced(shared, f"s3/bucket/{key}")
    answer = await call(s3.delete_objects, Delete={"Objects": [{"Key": key}, {"Key": f"{key}-2"}]})
    assert [each["Key"] for each in answer["Deleted"]] == [key]
    assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [(f"{key}-2", "AccessDenied")]
    assert (shared.body(key), shared.body(f"{key}-2")) == (None, b"x")


@pytest.mark.parametrize("present", [("35", None), ("33", None), (None, "bob"), ("34", "bob"), ("35", "ann")])
async def test_a_header_cannot_say_otherwise(shared: Stage, key: str, present: tuple[str | None, str | None]) -> None:
    shared.double.put("bucket", key, b"before")
    s3 = await fenced(shared, f"s3/bucket/{key}", present=present)
    before = shared.double.sequence
    for function, arguments in writes(s3, key).values():
        assert await outcome(function, **arguments) == DENIED
    assert not shared.applied(before)
    assert await shared.fence(f"s3/bucket/{key}") is None


async def test_an_upload_that_was_opened_with_another_token_gets_theirs(shared: Stage, key: str) -> None:
    """The token presented at the opening is for callers that present none. These callers present one."""
    opened = await call(connect(shared.origin, "36").create_multipart_upload, Key=key)
    s3 = await fenced(shared, f"s3/bucket/{key}")
    named = {"Key": key, "UploadId": opened["UploadId"]}
    part = await call(s3.upload_part, **named, PartNumber=1, Body=b"x")
    listed = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    await call(s3.complete_multipart_upload, **named, MultipartUpload=listed)
    assert await shared.fence(f"s3/bucket/{key}") == "34"


async def test_after_a_takeover_they_are_useless(shared: Stage, key: str) -> None:
    shared.double.put("bucket", "source", b"source")
    s3 = await fenced(shared, f"s3/bucket/{key}")
    await call(s3.put_object, Key=key, Body=b"x")
    assert (await shared.barrier(f"s3/bucket/{key}", "35", "bob")).status_code == 200
    before = shared.double.sequence
    for function, arguments in writes(s3, key).values():
        assert await outcome(function, **arguments) == STALE
    assert not shared.applied(before)
    rejections = await shared.rejections(resource=f"s3/bucket/{key}")
    assert len(rejections) == len(writes(s3, key))
    for rejection in rejections:
        assert (rejection["token"], rejection["holder"], rejection["caller"]) == ("34", "ann", "writer")
        assert (rejection["fence"], rejection["raised_by"]) == ("35", "bob")
    assert await body_of(s3, key) == b"x", "reading needs no token"


@pytest.mark.parametrize("ago", first([timedelta(seconds=1), timedelta(days=1)]))
async def test_expired_ones(shared: Stage, key: str, ago: timedelta) -> None:
    shared.double.put("bucket", key, b"before")
    caller = CallerKeys.model_validate({"name": "writer", **PAIR})

    def good_until(moment: datetime) -> S3Client:
        issued = Callers([caller]).issue(Principal("writer"), moment, FencedScope(f"s3/bucket/{key}", Token(0, 34)))
        return connect(
            shared.origin,
            access_key=issued.access_key_id,
            secret_key=issued.secret_access_key,
            aws_session_token=issued.session_token,
        )

    late = good_until(datetime.now(UTC) - ago)
    for function, arguments in writes(late, key).values():
        assert await outcome(function, **arguments) == (400, "ExpiredToken")
    assert await outcome(late.get_object, Key=key) == (400, "ExpiredToken"), "they are no credentials at all"
    assert shared.body(key) == b"before"
    in_time = good_until(datetime.now(UTC) + max(ago, timedelta(seconds=PATIENCE)))
    assert await outcome(in_time.put_object, Key=key, Body=b"x") == (200, "")


async def test_they_read_what_they_write(shared: Stage, key: str) -> None:
    s3 = await fenced(shared, f"job/{key}", read="own")
    own = f"jobs/{key}/deep/x"
    await call(s3.put_object, Key=own, Body=b"x")
    assert await body_of(s3, own) == b"x"
    await call(s3.head_object, Key=own)
    await call(s3.head_bucket)
    assert await outcome(s3.get_bucket_location) == (200, "")
    assert await outcome(s3.get_bucket_versioning) == (200, "")
    assert (await outcome(s3.get_bucket_cors))[0] == 501, "it reaches the store, and the double has no such operation"
    assert await outcome(s3.get_bucket_policy) == DENIED, "it is about more"
    await call(s3.copy_object, Key=f"jobs/{key}/copy", CopySource=f"bucket/{own}")
    listed = await call(s3.list_objects_v2, Prefix=f"jobs/{key}/")
    assert [one["Key"] for one in listed["Contents"]] == [f"jobs/{key}/copy", own]
    assert await outcome(s3.head_object, Key=f"jobs/{key}/none") == (404, "404")
    assert await outcome(s3.list_objects_v2, Prefix=f"jobs/{key}") == DENIED, "jobs of longer names would be shown"


async def test_they_read_more_if_it_was_requested(shared: Stage, key: str) -> None:
    shared.double.put("other", f"in/{key}/a", b"a")
    shared.double.put("other", f"out/{key}", b"b")
    s3 = await fenced(shared, f"job/{key}", read=[f"s3/other/in/{key}/**"])
    assert await body_of(s3, f"in/{key}/a", "other") == b"a"
    await call(s3.copy_object, Key=f"jobs/{key}/a", CopySource=f"other/in/{key}/a")
    assert len((await call(s3.list_objects_v2, Bucket="other", Prefix=f"in/{key}/"))["Contents"]) == 1
    assert await outcome(s3.get_object, Bucket="other", Key=f"out/{key}") == DENIED
    assert await outcome(s3.put_object, Bucket="other", Key=f"in/{key}/a", Body=b"x") == DENIED, (
        "reading is not writing"
    )
    everything = await fenced(shared, f"job/{key}", read="all")
    assert await body_of(everything, f"out/{key}", "other") == b"b"
    assert len((await call(everything.list_buckets))["Buckets"]) == 2
    assert await outcome(everything.put_object, Bucket="other", Key=f"out/{key}", Body=b"x") == DENIED


async def test_credentials_that_cannot_be_issued(shared: Stage) -> None:
    async with shared.api() as api:
        for read in ("", "s3/bucket/**", ["s3/b*"], ["**/x"], ["\u00e9"], [""], ["x"] * 17, [1], None):
            answer = await api.post("/v1/credentials", json={"resource": "job/1", "token": "1", "read": read})
            assert answer.status_code == 400, read
            assert answer.json()["code"] in ("request-malformed", "resource-malformed")


async def test_a_wider_read_is_on_record(shared: Stage, key: str) -> None:
    await fenced(shared, f"job/{key}", read=["s3/other/**"])
    async with shared.api() as api:
        found = (await api.get("/v1/events", params={"kind": "administration", "resource": f"job/{key}"})).json()
    (entry,) = found["events"]
    assert entry["details"]["read"] == ["s3/other/**"]


# No operation reads anything but the credentials' own resources and the extra ones requested.

RULES = Resources([KeyRule.compile("bkt/jobs/{id}/**", "job/{id}")])


READING = [operation for operation in Operation if operation.kind is OperationKind.READ]


LISTINGS = [operation for operation in READING if "prefix" in operation.optional and operation.level is Level.BUCKET]


class Tried(Profiles):
    """The profile of every bucket: which kinds of keys it takes for others."""

    def __init__(self, *confused: Probe) -> None:
        self.confused = frozenset(confused)

    async def of(self, bucket: str) -> Any:
        return self


class Untried(Tried):
    async def of(self, bucket: str) -> Any:
        raise StoreError("AccessDenied", 403, "The store does not let the gateway write.")


NOTHING_CONFUSED = Tried()


def grant(pattern: str, *read: str) -> FencedScope:
    return FencedScope(pattern, Token(0, 34), read=read)


def request(operation: Operation, bucket: str = "bkt", key: str = "key", **parameters: str) -> S3Request:
    path = {Level.SERVICE: "/", Level.BUCKET: f"/{bucket}", Level.OBJECT: f"/{bucket}/{key}"}[operation.level]
    values = {"list-type": "2", "uploadId": "u", "partNumber": "1", "annotationName": "n", "id": "i"}
    named = {marker: values.get(marker, "") for marker in operation.markers} | parameters
    query = "&".join(f"{name}={value}" for name, value in named.items())
    headers = [(b"x-amz-copy-source", f"{bucket}/{key}".encode())] if operation.copies else []
    return classify(operation.method, path.encode(), query.encode(), headers)


async def denied(asked: S3Request, held: FencedScope, profiles: Any = NOTHING_CONFUSED) -> bool:
    refused: StoreError | None = None
    try:
        await ReadScope(RULES, profiles).check(asked, held)
    except StoreError as error:
        refused = error
    if refused is None:
        return False
    assert (refused.s3_code, refused.status) == ("AccessDenied", 403)
    assert "These fenced credentials read what" in refused.advice
    return True


@pytest.mark.parametrize("pattern", ["job/42", "s3/other/**", "s3/bkt/key2", "s3/bkt/key/**", "s3/*/other"])
async def test_a_key_beyond_the_grant_is_not_read(pattern: str) -> None:
    for operation in READING:
        if operation in ABOUT_A_BUCKET:
            assert await denied(request(operation, bucket="third"), grant("s3/bkt/**")), operation
        else:
            assert await denied(request(operation), grant(pattern)), operation


@pytest.mark.parametrize("operation", [one for one in READING if one.level is Level.OBJECT])
async def test_a_grant_reads_the_keys_it_covers(operation: Operation) -> None:
    assert not await denied(request(operation, key="jobs/42/a"), grant("job/42"))
    assert not await denied(request(operation), grant("s3/bkt/key"))
    assert not await denied(request(operation), grant("job/42", "s3/bkt/*"))
    assert await denied(request(operation, key="jobs/43/a"), grant("job/42"))
    assert await denied(request(operation, key="jobs/42"), grant("job/42"))
    assert await denied(request(operation, key="jobs/42/a"), grant("s3/bkt/jobs/42/**"))


@pytest.mark.parametrize("operation", LISTINGS)
async def test_a_listing_must_stay_below_a_granted_prefix(operation: Operation) -> None:
    for prefix in ("jobs/42/", "jobs/42/deep/x"):
        assert not await denied(request(operation, prefix=prefix), grant("job/42"))
    for prefix in ("", "j", "jobs/", "jobs/4", "jobs/42", "jobs/43/", "jobs//", "other/"):
        assert await denied(request(operation, prefix=prefix), grant("job/42")), prefix
    assert not await denied(request(operation, prefix="x/"), grant("job/42", "s3/bkt/x/**"))
    assert not await denied(request(operation), grant("s3/bkt/**", "job/*"))
    assert await denied(request(operation), grant("s3/bkt/**")), "the keys of jobs have other resources"


async def test_a_bucket_with_a_granted_key_is_found() -> None:
    for operation in ABOUT_A_BUCKET:
        for pattern in ("job/42", "s3/bkt/deep/key", "s3/*/x"):
            assert not await denied(request(operation), grant(pattern))
        assert await denied(request(operation), grant("s3/other/**"))
        assert await denied(request(operation), grant("public.orders/5"))
        reads = operation in (Operation.HEAD_BUCKET, Operation.GET_BUCKET_LOCATION)
        assert await denied(request(operation), grant("s3/other/**", "s3/bkt/deep/key")) != reads, "it writes nothing"


async def test_another_spelling_of_another_key_is_not_read() -> None:
    """A store that keeps objects as files finds jobs/43 below jobs/42/../43."""
    odd, own = Probe.KEYS_ODD_SEGMENTS, grant("job/42")
    for key in ("jobs/42/../43/a", "jobs/42//a", "jobs/42/./a"):
        for operation in (Operation.GET_OBJECT, Operation.HEAD_OBJECT, Operation.COPY_OBJECT):
            assert await denied(request(operation, key=key), own, Tried(odd))
            assert not await denied(request(operation, key=key), own, Tried()), "S3 keeps them apart"
            assert await denied(request(operation, key=key), own, Untried())
        assert await denied(request(Operation.LIST_OBJECTS_V2, prefix=f"{key}/"), own, Tried(odd))
