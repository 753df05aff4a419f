"""The options of a rule: observe instead of enforce, one write per token, one holder per token."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.decision import Enforcement, Equal
from gateway.observe.events import WriteRefused
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALE, USED, DUPLICATE = (412, "StaleFencingToken"), (412, "UsedFencingToken"), (412, "DuplicateFencingToken")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    rules = [
        {"match": "bucket/watched/**", "mode": Enforcement.OBSERVE},
        {"match": "bucket/strict/**", "equal": Equal.STRICT},
    ]
    async with staged(postgres_server, S3Double(buckets=["bucket"]), objects=rules) as one:
        yield one


async def test_a_write_in_observe_mode_passes_and_is_on_record(shared: Stage, key: str) -> None:
    key = f"watched/{key}"
    await call(connect(shared.origin, "34", "bob").put_object, Key=key, Body=b"new")
    assert await outcome(connect(shared.origin, "33", "ann").put_object, Key=key, Body=b"old") == (200, "")
    assert shared.body(key) == b"old"
    assert await outcome(connect(shared.origin).put_object, Key=key, Body=b"bare") == (200, "")
    assert shared.body(key) == b"bare"
    assert await outcome(connect(shared.origin, "32").delete_object, Key=key) == (204, "")
    assert shared.body(key) is None
    assert await outcome(connect(shared.origin).delete_object, Key=key) == (204, "")
    record = await shared.rejections(resource=f"s3/bucket/{key}")
    assert [(one["method"], one["token"], one["reason"], one["enforced"], one["fence"]) for one in record] == [
        ("DELETE", None, "token-required", False, "34"),
        ("DELETE", "32", "token-stale", False, "34"),
        ("PUT", None, "token-required", False, "34"),
        ("PUT", "33", "token-stale", False, "34"),
    ]
    assert [one["payload_size"] for one in record] == [None, None, 4, 3]
    told = [event.rejection for event in shared.events if isinstance(event, WriteRefused)]
    assert {one["id"] for one in record} <= {str(rejection.id) for rejection in told}
    assert await shared.fence(f"s3/bucket/{key}") == "34", "what was not obeyed lowers nothing"


async def test_the_answer_tells_the_writer(shared: Stage, key: str) -> None:
    key = f"watched/{key}"

    async def told(operation: str, token: str | None, **arguments: Any) -> str | None:
        answer = await call(getattr(connect(shared.origin, token), operation), **arguments)
        told: str | None = answer["ResponseMetadata"]["HTTPHeaders"].get("fencing-would-refuse")
        return told

    assert await told("put_object", "34", Key=key, Body=b"new") is None
    assert await told("put_object", "33", Key=key, Body=b"old") == "token-stale; fence=34"
    assert await told("put_object", None, Key=key, Body=b"bare") == "token-required; fence=34"
    assert await told("copy_object", "33", Key=key, CopySource=f"bucket/{key}", MetadataDirective="REPLACE") == (
        "token-stale; fence=34"
    )
    upload = await call(connect(shared.origin, "32").create_multipart_upload, Key=key)
    part = {"Key": key, "UploadId": upload["UploadId"]}
    sent = await call(connect(shared.origin, "32").upload_part, **part, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": sent["ETag"]}]}
    assert await told("complete_multipart_upload", "32", **part, MultipartUpload=parts) == "token-stale; fence=34"
    several = {"Objects": [{"Key": key}, {"Key": f"{key}-other"}]}
    assert await told("delete_objects", "33", Delete=several) == "token-stale; fence=34"
    assert await told("delete_object", "33", Key=key) == "token-stale; fence=34"


async def test_without_a_fence_and_without_a_token(shared: Stage, key: str) -> None:
    key = f"watched/{key}"
    assert await outcome(connect(shared.origin).put_object, Key=key, Body=b"x") == (200, "")
    (noted,) = await shared.rejections(resource=f"s3/bucket/{key}")
    assert (noted["reason"], noted["enforced"], noted["fence"]) == ("token-required", False, None)
    assert await shared.fence(f"s3/bucket/{key}") is None


async def test_a_malformed_token_is_refused_even_where_it_is_only_observed(shared: Stage, key: str) -> None:
    refused = await outcome(connect(shared.origin, "033").put_object, Key=f"watched/{key}", Body=b"x")
    assert refused == (400, "FencingTokenMalformed")
    assert shared.body(f"watched/{key}") is None


async def test_strict_lets_each_token_write_once(shared: Stage, key: str) -> None:
    key = f"strict/{key}"
    s3 = connect(shared.origin, "33")
    assert await outcome(s3.put_object, Key=key, Body=b"first") == (200, "")
    assert await outcome(s3.put_object, Key=key, Body=b"second") == USED
    assert await outcome(s3.delete_object, Key=key) == USED
    assert shared.body(key) == b"first"
    assert await outcome(connect(shared.origin, "34").delete_object, Key=key) == (204, "")
    assert [one["reason"] for one in await shared.rejections(resource=f"s3/bucket/{key}")] == ["token-used"] * 2


async def test_a_barrier_uses_no_token_up(shared: Stage, key: str) -> None:
    key = f"strict/{key}"
    for _ in range(2):
        assert (await shared.barrier(f"s3/bucket/{key}", "33")).status_code == 200
    assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"first") == (200, "")
    assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"second") == USED
    assert (await shared.barrier(f"s3/bucket/{key}", "33")).status_code == 200
    assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"second") == USED


async def test_a_strict_write_that_starts_again_is_not_its_own_second(shared: Stage, key: str) -> None:
    """The key changes between the look and the write: the same write tries again, with its own token."""
    key = f"strict/{key}"
    held = shared.double.hold(operation="PutObject", key=key)
    s3 = connect(shared.origin, "33")
    writing = asyncio.ensure_future(outcome(s3.put_object, Key=key, Body=b"mine"))
    await held.arrived.wait()
    shared.double.put("bucket", key, b"somebody's")
    held.release()
    assert await writing == (200, "")
    assert shared.body(key) == b"mine"


async def test_two_holders_cannot_share_a_token(shared: Stage, key: str) -> None:
    ann, bob, nobody = (connect(shared.origin, "33", holder) for holder in ("ann", "bob", None))
    assert await outcome(ann.put_object, Key=key, Body=b"ann") == (200, "")
    assert await outcome(bob.put_object, Key=key, Body=b"bob") == DUPLICATE
    assert await outcome(bob.delete_object, Key=key) == DUPLICATE
    assert shared.body(key) == b"ann"
    assert await outcome(ann.put_object, Key=key, Body=b"ann again") == (200, "")
    assert await outcome(nobody.put_object, Key=key, Body=b"unnamed") == (200, ""), "who gives no name is not doubted"
    assert await outcome(connect(shared.origin, "34", "bob").put_object, Key=key, Body=b"bob") == (200, "")
    record = await shared.rejections(resource=f"s3/bucket/{key}", reason="token-duplicate")
    assert [(one["holder"], one["raised_by"]) for one in record] == [("bob", "ann")] * 2


async def test_epochs_come_before_values(shared: Stage, key: str) -> None:
    assert await outcome(connect(shared.origin, "1.5").put_object, Key=key, Body=b"x") == (200, "")
    assert await outcome(connect(shared.origin, "999").put_object, Key=key, Body=b"y") == STALE
    assert await outcome(connect(shared.origin, "0.999").put_object, Key=key, Body=b"y") == STALE
    assert await outcome(connect(shared.origin, "2.0").put_object, Key=key, Body=b"z") == (200, "")
    assert await shared.fence(f"s3/bucket/{key}") == "2.0"
    largest = f"{2 + 1000}.{2**48}"
    assert await outcome(connect(shared.origin, largest).put_object, Key=key, Body=b"z") == (200, "")
    assert await shared.fence(f"s3/bucket/{key}") == largest


async def test_a_write_that_passed_but_cannot_be_put_on_record_is_not_called_unwritten(
    postgres_server: EmbeddedPostgres,
) -> None:
    rules = [{"match": "bucket/watched/**", "mode": Enforcement.OBSERVE}]
    async with staged(postgres_server, S3Double(buckets=["bucket"]), objects=rules) as stage:
        await stage.rows("ALTER TABLE fencing.intake RENAME TO lost")
        answered = await outcome(connect(stage.origin).put_object, Key="watched/k", Body=b"x")
        assert answered == (503, "FencingOutcomeUnknown")
        assert stage.body("watched/k") == b"x"
