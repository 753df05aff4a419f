"""Fenced credentials: every S3 client presents its token with them, and none can do more than they say."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from mypy_boto3_s3 import S3Client

from gateway.auth.keys import Keys
from gateway.auth.principal import Grant, Principal
from gateway.config.server import CallerKeys
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.token import Token
from tests.doubles.s3 import S3Double
from tests.integration.objects.clients import body_of, call, connect, outcome
from tests.integration.objects.stage import Stage, staged
from tests.running import ACCESS_KEY, SECRET_KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALE = (412, "StaleFencingToken")
DENIED = (403, "AccessDenied")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    double = S3Double(buckets=["bucket", "other"])
    double.behave(minimum_part_size=1)
    rules = [{"match": "bucket/jobs/{job}/**", "resource": "job/{job}"}]
    async with staged(postgres_server, double, objects=rules) as one:
        yield one


async def fenced(
    stage: Stage,
    resource: str,
    token: str = "34",
    holder: str | None = "ann",
    present: tuple[str | None, str | None] = (None, None),
) -> S3Client:
    """A client with fenced credentials. ``present``: token and holder in its headers beside them."""
    async with stage.api() as api:
        wanted = {"resource": resource, "token": token} | ({"holder": holder} if holder else {})
        answer = await api.post("/v1/credentials", json=wanted)
    assert answer.status_code == 201, answer.text
    given = answer.json()
    return connect(
        stage.origin,
        *present,
        access_key=given["access_key_id"],
        secret_key=given["secret_access_key"],
        aws_session_token=given["session_token"],
    )


def writes(s3: S3Client, key: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """One of each kind."""
    return {
        "put": (s3.put_object, {"Key": key, "Body": b"x"}),
        "copy": (s3.copy_object, {"Key": key, "CopySource": "bucket/source"}),
        "delete": (s3.delete_object, {"Key": key}),
        "tagging": (s3.put_object_tagging, {"Key": key, "Tagging": {"TagSet": []}}),
        "upload": (s3.create_multipart_upload, {"Key": key}),
    }


WRITES = ["put", "copy", "delete", "tagging", "upload"]


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


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("pattern", "path"),
    [("s3/bucket/{key}", "-2"), ("s3/bucket/{key}/*", "/one/two"), ("s3/bucket/{key}/**", ""), ("s3/other/**", "")],
)
async def test_nothing_beyond_it(shared: Stage, key: str, pattern: str, path: str, write: str) -> None:
    shared.double.put("bucket", "source", b"source")
    shared.double.put("bucket", key + path, b"before")
    s3 = await fenced(shared, pattern.replace("{key}", key))
    before, since = shared.double.sequence, len(shared.double.requests)
    function, arguments = writes(s3, key + path)[write]
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


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("present", [("35", None), ("33", None), (None, "bob"), ("34", "bob"), ("35", "ann")])
async def test_a_header_cannot_say_otherwise(
    shared: Stage, key: str, present: tuple[str | None, str | None], write: str
) -> None:
    shared.double.put("bucket", key, b"before")
    s3 = await fenced(shared, f"s3/bucket/{key}", present=present)
    before = shared.double.sequence
    function, arguments = writes(s3, key)[write]
    assert await outcome(function, **arguments) == DENIED
    assert not shared.applied(before)
    assert await shared.fence(f"s3/bucket/{key}") is None


async def test_neither_can_the_metadata(shared: Stage, key: str) -> None:
    s3 = await fenced(shared, f"s3/bucket/{key}")
    said = {"Metadata": {"fencing-token": "35"}}
    assert await outcome(s3.put_object, Key=key, Body=b"x", **said) == DENIED
    assert await outcome(s3.create_multipart_upload, Key=key, **said) == DENIED
    assert shared.body(key) is None


async def test_a_header_may_say_the_same(shared: Stage, key: str) -> None:
    s3 = await fenced(shared, f"s3/bucket/{key}", present=("34", "ann"))
    assert await outcome(s3.put_object, Key=key, Body=b"x") == (200, "")


async def test_an_upload_that_was_opened_with_another_token_gets_theirs(shared: Stage, key: str) -> None:
    """What was presented at the opening is for callers who present nothing. These do."""
    opened = await call(connect(shared.origin, "36").create_multipart_upload, Key=key)
    s3 = await fenced(shared, f"s3/bucket/{key}")
    named = {"Key": key, "UploadId": opened["UploadId"]}
    part = await call(s3.upload_part, **named, PartNumber=1, Body=b"x")
    listed = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    await call(s3.complete_multipart_upload, **named, MultipartUpload=listed)
    assert await shared.fence(f"s3/bucket/{key}") == "34"


@pytest.mark.parametrize("write", WRITES)
async def test_after_a_takeover_they_are_useless(shared: Stage, key: str, write: str) -> None:
    shared.double.put("bucket", "source", b"source")
    s3 = await fenced(shared, f"s3/bucket/{key}")
    await call(s3.put_object, Key=key, Body=b"x")
    assert (await shared.barrier(f"s3/bucket/{key}", "35", "bob")).status_code == 200
    before = shared.double.sequence
    function, arguments = writes(s3, key)[write]
    assert await outcome(function, **arguments) == STALE
    assert not shared.applied(before)
    (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
    assert (rejection["token"], rejection["holder"], rejection["caller"]) == ("34", "ann", "writer")
    assert (rejection["fence"], rejection["raised_by"]) == ("35", "bob")
    assert await body_of(s3, key) == b"x", "reading needs no token"


@pytest.mark.parametrize("ago", [timedelta(seconds=1), timedelta(days=1)])
async def test_expired_ones(shared: Stage, key: str, ago: timedelta) -> None:
    shared.double.put("bucket", key, b"before")
    caller = CallerKeys.model_validate({"name": "writer", "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY})

    def good_until(moment: datetime) -> S3Client:
        grant = Grant(f"s3/bucket/{key}", Token(0, 34), None, moment)
        issued = Keys([caller], anonymous=False).issue(Principal("writer"), grant)
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
    assert await outcome(good_until(datetime.now(UTC) + ago).put_object, Key=key, Body=b"x") == (200, "")
