"""A request that is repeated: its sender is told what became of the first, and a copy undoes nothing newer."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gateway.fencing.decision import Equal
from gateway.fencing.intent import Duplicates
from gateway.objects import fenced_write
from tests.clients.lossy import losing
from tests.doubles.s3 import Rule
from tests.objects import raw
from tests.objects.clients import body_of, call, connect, opened, outcome
from tests.objects.clients import refused as refusal
from tests.objects.object_gateway import ADMIN, Stage, module_stage, store, sweeper
from tests.objects.object_gateway import WRITER as WRITING
from tests.objects.raw import Reply
from tests.running import ACCESS_KEY, SECRET_KEY
from tests.tiers import first
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

# SDKs send a request again by themselves. If an earlier attempt took effect, the refusal of the next one says so.

LARGE = 9 * 1024 * 1024


STRICT = "strict/"


WRITER = {"access_key": ACCESS_KEY, "secret": SECRET_KEY}


ANOTHER = {"access_key": "AKIAANOTHER", "secret": "another-secret"}


CALLERS: list[dict[str, Any]] = [
    {**WRITING, "groups": ["auditors"]},
    {"name": "another", "access_key_id": ANOTHER["access_key"], "secret_access_key": ANOTHER["secret"]},
]
TOLD, NOT_TOLD = ("took-effect", True), (None, False)


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Have refused writers wait for the store, whatever stands still meanwhile. One test sets a limit of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fenced_write, "EVIDENCE_TIMEOUT", PATIENCE)
        yield


shared = module_stage(
    lambda: store("bucket"), callers=CALLERS, objects=[{"match": f"bucket/{STRICT}**", "equal": Equal.STRICT}]
)


def told(error: Any) -> tuple[str | None, bool]:
    """Return what an error says of an earlier attempt, first to a program and then to a person."""
    return error.get("EarlierAttempt"), "earlier attempt" in error["Message"]


def put(
    stage: Stage,
    key: str,
    token: str,
    body: bytes = b"x",
    *more: tuple[str, str],
    by: dict[str, Any] = WRITER,
    call_id: str | None = None,
) -> Coroutine[Any, Any, Reply | None]:
    """Send a PutObject once, as one attempt of a call."""
    unsigned = [("content-length", str(len(body))), *([("amz-sdk-invocation-id", call_id)] if call_id else [])]
    signed = [("fencing-token", token), *more]
    request = raw.head(stage.origin, "PUT", f"/bucket/{key}", signed, unsigned=unsigned, **by)
    return raw.send(stage.origin, request + body)


def says(reply: Reply | None) -> bool:
    """Whether an answer says that an earlier attempt took effect."""
    assert reply is not None
    assert reply.status in (403, 412), reply
    assert (b"earlier attempt" in reply.body) is (b"<EarlierAttempt>took-effect</EarlierAttempt>" in reply.body)
    return b"earlier attempt" in reply.body


class TestBoto3:
    @pytest.mark.parametrize("size", first([1, LARGE]))
    async def test_overtaken_meanwhile(self, shared: Stage, key: str, size: int) -> None:
        """Its answer is lost on the way. A newer holder comes before boto3 sends the request again."""
        loop, body = asyncio.get_running_loop(), b"x" * size
        barriers = iter([shared.barrier(f"s3/bucket/{key}", "6")])

        def before_it_is_sent_again(**_: object) -> None:
            for barrier in barriers:
                asyncio.run_coroutine_threadsafe(barrier, loop).result()

        with losing(shared.origin, f"PUT /bucket/{key}".encode()) as (origin, network):
            s3 = connect(origin, "5", attempts=2)
            s3.meta.events.register("needs-retry.s3", before_it_is_sent_again)
            with pytest.raises(ClientError) as caught:
                await call(s3.put_object, Key=key, Body=body)
            assert network.lost == 1
        response: Any = caught.value.response
        error = response["Error"]
        assert response["ResponseMetadata"]["RetryAttempts"] == 1
        assert (error["Code"], told(error)) == ("StaleFencingToken", TOLD)
        assert shared.body(key) == body
        (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
        assert rejection["id"] == error["Rejection"]

    async def test_a_completion(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin, "5")
        completion = await opened(s3, key, [b"x"])
        await call(s3.complete_multipart_upload, **completion)
        await shared.barrier(f"s3/bucket/{key}", "6")
        with pytest.raises(ClientError) as caught:
            await call(s3.complete_multipart_upload, **completion)
        assert told(caught.value.response["Error"]) == TOLD
        for other in (s3.upload_part, s3.create_multipart_upload, s3.abort_multipart_upload):
            numbered = {"PartNumber": 1, "Body": b"x"} if other == s3.upload_part else {}
            named = {} if other == s3.create_multipart_upload else {"UploadId": completion["UploadId"]}
            with pytest.raises(ClientError) as caught:
                await call(other, Key=key, **numbered, **named)
            assert told(caught.value.response["Error"]) == NOT_TOLD

    async def test_the_mark_of_a_call_is_not_shown_to_readers(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin, "5")
        await call(s3.put_object, Key=key, Body=b"x", Metadata={"colour": "red"})
        found = await call(s3.get_object, Key=key)
        assert found["Metadata"] == {"colour": "red"}
        assert not [name for name in found["ResponseMetadata"]["HTTPHeaders"] if "invocation" in name]
        await call(s3.copy_object, Key=f"{key}-copy", CopySource={"Bucket": "bucket", "Key": key})
        stored = shared.double.objects("bucket")
        marks = [stored[one].content.metadata["fencing-invocation"] for one in (key, f"{key}-copy")]
        assert marks[0] != marks[1]


class TestOnlyItsOwn:
    """The gateway names an earlier attempt only if it was this request and its object is at the key at that moment."""

    async def test_the_same_call_and_another_one(self, shared: Stage, key: str) -> None:
        reply = await put(shared, key, "5", call_id="call-1")
        assert reply is not None
        assert reply.status == 200
        await shared.barrier(f"s3/bucket/{key}", "6")
        assert says(await put(shared, key, "5", call_id="call-1"))
        assert not says(await put(shared, key, "5", call_id="call-2"))
        assert not says(await put(shared, key, "5"))
        assert not says(await put(shared, key, "5", call_id="call-1", by=ANOTHER))
        assert shared.body(key) == b"x"
        assert len(await shared.rejections(resource=f"s3/bucket/{key}")) == 4

    async def test_the_same_call_with_a_token_that_writes_once(self, shared: Stage, key: str) -> None:
        await put(shared, f"{STRICT}{key}", "5", call_id="call-1")
        reply = await put(shared, f"{STRICT}{key}", "5", call_id="call-1")
        assert says(reply)
        assert reply is not None
        assert reply.code == "UsedFencingToken"

    async def test_a_condition_that_the_first_attempt_has_broken(self, shared: Stage, key: str) -> None:
        await put(shared, key, "5", b"x", ("if-none-match", "*"), call_id="call-1")
        assert says(await put(shared, key, "5", b"x", ("if-none-match", "*"), call_id="call-1"))
        assert await shared.rejections(resource=f"s3/bucket/{key}") == [], "S3's own condition is no refusal"

    async def test_another_writer_has_written_since(self, shared: Stage, key: str) -> None:
        await put(shared, key, "5", call_id="call-1")
        await put(shared, key, "6", b"newer", call_id="call-2")
        assert not says(await put(shared, key, "5", call_id="call-1"))
        assert await body_of(connect(shared.origin), key) == b"newer"

    async def test_an_object_in_another_form_is_still_known(self, shared: Stage, key: str) -> None:
        """A newer holder's barrier makes certain of a write on its way: the bytes stay, their form changes."""
        await put(shared, key, "5", call_id="call-1")
        before = shared.double.objects("bucket")[key].etag
        putting = put(shared, key, "5", b"late", call_id="call-2")
        held, late = await shared.late(putting, operation="PutObject", key=key)
        assert (await shared.barrier(f"s3/bucket/{key}", "6")).status_code == 200
        held.release()
        assert not says(await late)
        assert shared.double.objects("bucket")[key].etag != before
        assert says(await put(shared, key, "5", call_id="call-1"))

    async def test_a_store_that_does_not_answer_delays_no_refusal(
        self, shared: Stage, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fenced_write, "EVIDENCE_TIMEOUT", 0.1)
        await put(shared, key, "5", call_id="call-1")
        await shared.barrier(f"s3/bucket/{key}", "6")
        held = shared.double.hold(operation="HeadObject", key=key)
        assert not says(await put(shared, key, "5", call_id="call-1"))
        held.release()
        shared.double.fail(503, operation="HeadObject", key=key)
        assert not says(await put(shared, key, "5", call_id="call-1"))


# A request that reaches the store a second time, long after it was answered, undoes nothing that came after it.

GONE = (404, "NoSuchKey")


DONE = (200, "")


TAGS = {"TagSet": [{"Key": "stage", "Value": "draft"}]}


def repeating(duplicates: Duplicates) -> dict[str, Any]:
    return {"s3": {"duplicates": duplicates}, "limits": {"pending_wait": 0.1}, "callers": [ADMIN]}


tolerating = module_stage(**repeating(Duplicates.TOLERATE))


waiting = module_stage(**repeating(Duplicates.WAIT))


@pytest.fixture(params=Duplicates)
def either(request: pytest.FixtureRequest, tolerating: Stage, waiting: Stage) -> Stage:
    return tolerating if request.param is Duplicates.TOLERATE else waiting


async def arrives_again(copy: Rule) -> list[int | None]:
    """Return the store's answers to the copy."""
    copy.release()
    async with asyncio.timeout(PATIENCE):
        await copy.finished.wait()
    return copy.statuses


async def half_an_hour_later(stage: Stage) -> None:
    """The signatures of everything that is over are dead."""
    await stage.rows("UPDATE fencing.spent SET dead_at = dead_at - interval '31 minutes'")
    await stage.rows("UPDATE fencing.forbidden SET dead_at = dead_at - interval '31 minutes'")


async def test_an_acknowledged_object_stays(either: Stage, key: str) -> None:
    before = await call(connect(either.origin, "42").put_object, Key=key, Body=b"state")
    copy = either.double.repeat(operation="PutObject", key=key)
    await call(connect(either.origin, "43").put_object, Key=key, Body=b"other")
    after = await call(connect(either.origin, "52").put_object, Key=key, Body=b"state")
    assert await arrives_again(copy) == [412]
    assert either.body(key) == b"state"
    assert before["ETag"] != after["ETag"]


async def test_a_newer_holders_delete_stays(either: Stage, key: str) -> None:
    """A tombstone stands for absence until the signature of the create is dead."""
    async with sweeper(either) as (sweeping, _):
        copy = either.double.repeat(operation="PutObject", key=key)
        await call(connect(either.origin, "43").put_object, Key=key, Body=b"made")
        await call(connect(either.origin, "52").delete_object, Key=key)
        await sweeping.sweep_tombstones()
        assert await either.count("tombstone", key) == 1
        assert await arrives_again(copy) == [412]
        assert await outcome(connect(either.origin).get_object, Key=key) == GONE
        await half_an_hour_later(either)
        await sweeping.sweep()
        assert await either.count("tombstone", key) == 0
        assert either.body(key) is None
        await half_an_hour_later(either)
        await sweeping.sweep()
        assert await either.count("spent", key) == 0


async def test_the_condition_of_a_write_that_failed_is_remembered(either: Stage, key: str) -> None:
    """The first attempt takes the key to be absent, because nothing is known of it."""
    either.double.put("bucket", key, b"from before")
    copy = either.double.repeat(operation="PutObject", key=key)
    await call(connect(either.origin, "43").put_object, Key=key, Body=b"made")
    await call(connect(either.origin, "52").delete_object, Key=key)
    assert await arrives_again(copy) == [412]
    assert await outcome(connect(either.origin).get_object, Key=key) == GONE


async def test_two_contents_in_turn_pass_by_default(tolerating: Stage, key: str) -> None:
    writer = connect(tolerating.origin, "1")
    etags = [(await call(writer.put_object, Key=key, Body=body))["ETag"] for body in (b"a", b"b") * 4]
    assert etags[:4] == etags[4:], "the form that was used longest ago comes first"
    assert len(set(etags[:4])) == 4
    await call(writer.delete_object, Key=key)
    assert await tolerating.count("tombstone", key) == 0, "a delete of the holder's own object leaves none"


async def test_two_contents_in_turn_wait(waiting: Stage, key: str) -> None:
    writer = connect(waiting.origin, "1")
    for body in (b"a", b"b", b"a", b"b"):
        await call(writer.put_object, Key=key, Body=body)
    status, _, message = await refusal(writer.put_object, Key=key, Body=b"a")
    assert status == 503
    assert "Nothing was written" in message
    assert waiting.body(key) == b"b"
    assert await outcome(writer.put_object, Key=key, Body=b"c") == DONE, "other bytes need not wait"
    await half_an_hour_later(waiting)
    assert await outcome(writer.put_object, Key=key, Body=b"a") == DONE


async def test_the_same_upload_again(either: Stage, waiting: Stage, key: str) -> None:
    """Its bytes have one form only. If the gateway waits, the wait resolves the conflict."""
    writer = connect(either.origin, "1")

    async def upload() -> tuple[int, str]:
        return await outcome(writer.complete_multipart_upload, **await opened(writer, key, [b"large"]))

    assert await upload() == DONE
    again = [(await upload())[0] for _ in range(2)]
    assert again == ([503, 503] if either is waiting else [200, 200])
    await half_an_hour_later(either)
    assert await upload() == DONE
    assert either.body(key) == b"large"


async def test_an_amendment_stays_announced_where_writes_wait(waiting: Stage, key: str) -> None:
    """It has no condition, so nothing but the end of its signature stops a copy."""
    await call(connect(waiting.origin, "43").put_object, Key=key, Body=b"x")
    assert await outcome(connect(waiting.origin, "43").put_object_tagging, Key=key, Tagging=TAGS) == DONE
    assert (await waiting.barrier(f"s3/bucket/{key}", "52")).status_code == 503
    await waiting.rows("UPDATE fencing.intent SET signed_at = signed_at - interval '8 minutes' WHERE key = $1", key)
    assert (await waiting.barrier(f"s3/bucket/{key}", "52")).status_code == 200
    assert await outcome(connect(waiting.origin, "52").put_object, Key=key, Body=b"y") == DONE
