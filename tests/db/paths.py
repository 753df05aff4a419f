"""Every path of a request to the database: each prepares an attempt with rows, keys and locks of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from tests.db.world import Attempt, Said, World
from tests.objects.clients import call, outcome

Path: TypeAlias = Callable[[World], Awaitable[Attempt]]

LARGE = b"x" * 1000
"""More than is put from memory."""


# Tables -------------------------------------------------------------------------------------------------------------


def _patched(world: World, row: int, token: int | None, table: str = "accounts", **headers: str) -> Attempt:
    async def changed() -> bool:
        return await world.note(row, table) == "after"

    return Attempt(
        lambda: world.ask("PATCH", f"/v1/tables/{table}?id=eq.{row}", {"note": "after"}, token, **headers),
        (200, 204),
        changed,
    )


async def _carried(world: World, token: int = 33, table: str = "accounts") -> int:
    """A row whose fence carries the token, written by requests of the same form."""
    row = await world.row(table)
    for note in ("first", "before"):
        said = await world.ask("PATCH", f"/v1/tables/{table}?id=eq.{row}", {"note": note}, token)
        assert said == (204, "")
    return row


async def hot_write(world: World) -> Attempt:
    return _patched(world, await _carried(world), 33)


async def write_that_raises_the_fence(world: World) -> Attempt:
    return _patched(world, await _carried(world), 34)


async def first_write(world: World) -> Attempt:
    return _patched(world, await world.row(), 33)


async def write_with_its_row(world: World) -> Attempt:
    return _patched(world, await world.row(), 33, prefer="return=representation,timezone=Asia/Tokyo")


async def write_with_a_trigger(world: World) -> Attempt:
    return _patched(world, await world.row("audited"), 33, "audited")


async def observed_write(world: World) -> Attempt:
    return _patched(world, await world.row("watched"), None, "watched")


async def overtaken_write(world: World) -> Attempt:
    row = await _carried(world, 40)
    return Attempt(lambda: world.ask("PATCH", f"/v1/tables/accounts?id=eq.{row}", {"note": "after"}, 39), (412,))


async def implausible_write(world: World) -> Attempt:
    row = await world.row()
    target = f"/v1/tables/accounts?id=eq.{row}"
    return Attempt(lambda: world.ask("PATCH", target, {"note": "after"}, 2**62), (403,))


async def writes_that_share_a_trip(world: World) -> Attempt:
    rows = [await _carried(world) for _ in range(3)]
    attempts = [_patched(world, row, 33) for row in rows]
    answers: list[Said] = []

    async def send() -> Said:
        answers[:] = await asyncio.gather(*(one.send() for one in attempts))
        return max(answers)

    async def all_or_as_said() -> bool:
        changed = [await world.note(row) == "after" for row in rows]
        for (status, code), done in zip(answers, changed, strict=True):
            assert not (status == 204 and not done), answers
            assert not (code == "unavailable" and done), answers
        return all(changed)

    return Attempt(send, (204,), all_or_as_said)


async def keyed_write(world: World) -> Attempt:
    row = await world.row()
    return _patched(world, row, 33, idempotency_key=f'"{row}"')


async def replay(world: World) -> Attempt:
    row = await world.row()
    attempt = _patched(world, row, 33, idempotency_key=f'"{row}"')
    assert await attempt.send() == (204, "")
    return Attempt(attempt.send, (204,))


async def transaction(world: World) -> Attempt:
    rows = [await world.row() for _ in range(2)]
    writes = [
        {"method": "PATCH", "table": "accounts", "query": f"id=eq.{row}", "body": {"note": "after"}, "token": "33"}
        for row in rows
    ]

    async def changed() -> bool:
        notes = {await world.note(row) for row in rows}
        assert len(notes) == 1, "half of the list took effect"
        return notes == {"after"}

    return Attempt(lambda: world.ask("POST", "/v1/transaction", {"writes": writes}), (200,), changed)


async def call_that_writes(world: World) -> Attempt:
    row = await world.row()

    async def changed() -> bool:
        return await world.note(row) == "after"

    document, resource = {"account": row, "note": "after"}, f"public.accounts/{row}"
    return Attempt(
        lambda: world.ask("POST", "/v1/tables/rpc/annotate", document, 33, fencing_resource=resource), (204,), changed
    )


def _asked(method: str, path: str, *expected: int, document: Any = None, **headers: str) -> Path:
    async def path_of(world: World) -> Attempt:
        return Attempt(lambda: world.ask(method, path, document, None, **headers), expected or (200,))

    return path_of


# Fences and locks ---------------------------------------------------------------------------------------------------


async def barrier(world: World) -> Attempt:
    path = f"/v1/fences/job/{world.number}/barrier"
    return Attempt(lambda: world.ask("POST", path, {"token": "33"}))


async def overtaken_barrier(world: World) -> Attempt:
    path = f"/v1/fences/job/{world.number}/barrier"
    assert await world.ask("POST", path, {"token": "34"}) == (200, "")
    return Attempt(lambda: world.ask("POST", path, {"token": "33"}), (412,))


async def epoch(world: World) -> Attempt:
    resource = f"job/{world.number}"
    assert await world.ask("POST", f"/v1/fences/{resource}/barrier", {"token": "33"}) == (200, "")

    async def begun() -> bool:
        epoch = await world.operator.fetchval("SELECT epoch FROM fencing.fence WHERE resource = $1", resource)
        return bool(epoch == 1)

    document = {"expected": "33", "reason": "a test"}
    return Attempt(lambda: world.ask("POST", f"/v1/fences/{resource}/epoch", document), (200,), begun)


async def acquire(world: World) -> Attempt:
    path = f"/v1/leases/job/{world.number}"
    return Attempt(lambda: world.ask("POST", path, {"holder": "ann"}), (200, 201))


async def acquire_after_waiting(world: World) -> Attempt:
    path = f"/v1/leases/job/{world.number}"
    return Attempt(lambda: world.ask("POST", path, {"holder": "ann", "wait": 5}), (200, 201))


async def acquire_and_raise(world: World) -> Attempt:
    path = f"/v1/leases/job/{world.number}"
    return Attempt(lambda: world.ask("POST", path, {"holder": "ann", "barrier": True}), (200, 201))


async def _leased(world: World, **wish: Any) -> dict[str, Any]:
    answer = await world.api.post(f"/v1/leases/job/{world.number}", json={"holder": "ann", **wish})
    assert answer.status_code == 201, answer.text
    lease: dict[str, Any] = answer.json()
    return lease


async def renew(world: World) -> Attempt:
    lease = await _leased(world)
    return Attempt(lambda: world.ask("PUT", f"/v1/leases/{lease['resource']}/{lease['lease']}", {}))


async def renew_many(world: World) -> Attempt:
    leases = [await _leased(world) for _ in range(2)]
    wanted = {"leases": [{"resource": one["resource"], "lease": one["lease"]} for one in leases]}
    return Attempt(lambda: world.ask("PUT", "/v1/leases", wanted))


async def release(world: World) -> Attempt:
    lease = await _leased(world)

    async def ended() -> bool:
        return not await world.operator.fetchval(
            "SELECT count(*) FROM fencing.lease WHERE resource = $1", lease["resource"]
        )

    path = f"/v1/leases/{lease['resource']}/{lease['lease']}"
    return Attempt(lambda: world.ask("DELETE", path), (204,), ended)


async def withdraw(world: World) -> Attempt:
    lease = await _leased(world, request="wish")
    path = f"/v1/withdrawals/{lease['resource']}"
    return Attempt(lambda: world.ask("POST", path, {"holder": "ann", "request": "wish"}), (204,))


async def break_lock(world: World) -> Attempt:
    lease = await _leased(world)

    async def ended() -> bool:
        return not await world.operator.fetchval(
            "SELECT count(*) FROM fencing.lease WHERE resource = $1", lease["resource"]
        )

    document = {"expected": lease["token"], "reason": "a test"}
    return Attempt(lambda: world.ask("POST", f"/v1/breaks/{lease['resource']}", document), (200,), ended)


async def sequencer(world: World) -> Attempt:
    lease = await _leased(world)
    return Attempt(lambda: world.ask("POST", "/v1/sequencers/check", {"sequencer": lease["sequencer"]}))


# The record ---------------------------------------------------------------------------------------------------------


async def entry(world: World) -> Attempt:
    attempt = await overtaken_barrier(world)
    assert (await attempt.send())[0] == 412
    rejection = (await world.api.get("/v1/rejections?limit=1")).json()["rejections"][0]["id"]
    return Attempt(lambda: world.ask("GET", f"/v1/rejections/{rejection}"))


async def credentials(world: World) -> Attempt:
    resource = f"s3/bucket/key-{world.number}"
    document = {"resource": resource, "token": "33", "ttl": 900}
    return Attempt(lambda: world.ask("POST", "/v1/credentials", document), (201,))


# Objects ------------------------------------------------------------------------------------------------------------


def _put(world: World, key: str, token: int = 33, body: bytes = b"after", **arguments: Any) -> Attempt:
    async def stands() -> bool:
        return world.stage.body(key) == body

    return Attempt(lambda: outcome(world.s3(token).put_object, Key=key, Body=body, **arguments), (200,), stands)


async def put(world: World) -> Attempt:
    return _put(world, f"key-{world.number}")


async def put_again(world: World) -> Attempt:
    return _put(world, await world.object())


async def put_by_the_next_holder(world: World) -> Attempt:
    return _put(world, await world.object(), 34)


async def put_on_condition(world: World) -> Attempt:
    key = await world.object()
    etag = (await call(world.s3().head_object, Key=key))["ETag"]
    return _put(world, key, IfMatch=etag)


async def put_in_parts(world: World) -> Attempt:
    return _put(world, f"key-{world.number}", body=LARGE)


async def overtaken_put(world: World) -> Attempt:
    key = await world.object(token=34)
    return Attempt(lambda: outcome(world.s3(33).put_object, Key=key, Body=b"after"), (412,))


async def put_over_a_zombie(world: World) -> Attempt:
    """An older holder's write is still on its way to the store."""
    key = await world.object()
    held = world.stage.double.hold(operation="PutObject", key=key)
    zombie = asyncio.ensure_future(outcome(world.s3(33).put_object, Key=key, Body=b"late"))
    await held.arrived.wait()

    async def release() -> None:
        held.release()
        await zombie

    attempt = _put(world, key, 34)
    return Attempt(attempt.send, attempt.expected, attempt.effect, release)


async def barrier_over_a_zombie(world: World) -> Attempt:
    attempt = await put_over_a_zombie(world)
    resource = await world.operator.fetchval("SELECT resource FROM fencing.intent ORDER BY signed_at DESC LIMIT 1")
    path = f"/v1/fences/{resource}/barrier"
    return Attempt(lambda: world.ask("POST", path, {"token": "34"}), after=attempt.after)


async def delete(world: World) -> Attempt:
    key = await world.object()

    async def gone() -> bool:
        return world.stage.body(key) is None

    return Attempt(lambda: outcome(world.s3().delete_object, Key=key), (204,), gone)


async def delete_many(world: World) -> Attempt:
    keys = [await world.object() for _ in range(2)]
    answers: dict[str, str] = {}

    async def send() -> Said:
        answers.clear()
        wanted: Any = {"Objects": [{"Key": key} for key in keys]}
        status, code = 200, ""
        try:
            done = await call(world.s3().delete_objects, Delete=wanted)
        except world.s3().exceptions.ClientError as error:
            failed: Any = error.response
            return failed["ResponseMetadata"]["HTTPStatusCode"], failed["Error"]["Code"]
        for one in done.get("Errors", []):
            answers[one["Key"]] = one["Code"]
            status, code = 503, one["Code"]
        return status, code

    async def gone() -> bool:
        there = [key for key in keys if world.stage.body(key) is not None]
        for key in keys:
            assert not (answers.get(key) == "ServiceUnavailable" and key not in there), answers
        return not there

    return Attempt(send, (200,), gone)


async def copy(world: World) -> Attempt:
    source, target = await world.object(b"after"), f"key-{world.number}"

    async def stands() -> bool:
        return world.stage.body(target) == b"after"

    wanted = {"Bucket": "bucket", "Key": source}
    return Attempt(lambda: outcome(world.s3().copy_object, Key=target, CopySource=wanted), (200,), stands)


async def large_copy(world: World) -> Attempt:
    source, target = await world.object(LARGE), f"key-{world.number}"

    async def stands() -> bool:
        return world.stage.body(target) == LARGE

    wanted = {"Bucket": "bucket", "Key": source}
    return Attempt(lambda: outcome(world.s3().copy_object, Key=target, CopySource=wanted), (200,), stands)


async def open_upload(world: World) -> Attempt:
    key = f"key-{world.number}"
    return Attempt(lambda: outcome(world.s3().create_multipart_upload, Key=key))


async def _opened(world: World) -> dict[str, Any]:
    """An upload with one part: what names it."""
    key = f"key-{world.number}"
    upload = (await call(world.s3().create_multipart_upload, Key=key))["UploadId"]
    place = {"Key": key, "UploadId": upload}
    part = await call(world.s3().upload_part, **place, PartNumber=1, Body=b"after")
    return {"place": place, "parts": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}}


async def upload_part(world: World) -> Attempt:
    upload = await _opened(world)
    return Attempt(lambda: outcome(world.s3().upload_part, **upload["place"], PartNumber=2, Body=b"more"))


async def copy_part(world: World) -> Attempt:
    upload, wanted = await _opened(world), {"Bucket": "bucket", "Key": await world.object()}
    return Attempt(lambda: outcome(world.s3().upload_part_copy, **upload["place"], PartNumber=2, CopySource=wanted))


async def complete_upload(world: World) -> Attempt:
    upload = await _opened(world)

    async def stands() -> bool:
        return world.stage.body(upload["place"]["Key"]) == b"after"

    return Attempt(
        lambda: outcome(world.s3().complete_multipart_upload, **upload["place"], MultipartUpload=upload["parts"]),
        (200,),
        stands,
    )


async def complete_again(world: World) -> Attempt:
    upload = await _opened(world)
    arguments = {**upload["place"], "MultipartUpload": upload["parts"]}
    assert await outcome(world.s3().complete_multipart_upload, **arguments) == (200, "")
    return Attempt(lambda: outcome(world.s3().complete_multipart_upload, **arguments))


async def abort_upload(world: World) -> Attempt:
    upload = await _opened(world)
    key = upload["place"]["Key"]

    async def gone() -> bool:
        listed = await call(world.s3().list_multipart_uploads, Prefix=key)
        return not listed.get("Uploads")

    return Attempt(lambda: outcome(world.s3().abort_multipart_upload, **upload["place"]), (204,), gone)


async def tag(world: World) -> Attempt:
    key = await world.object()

    async def tagged() -> bool:
        return bool((await call(world.s3().get_object_tagging, Key=key))["TagSet"])

    wanted: Any = {"TagSet": [{"Key": "state", "Value": "after"}]}
    return Attempt(lambda: outcome(world.s3().put_object_tagging, Key=key, Tagging=wanted), (200,), tagged)


async def list_objects(world: World) -> Attempt:
    return Attempt(lambda: outcome(world.s3().list_objects_v2))


async def list_uploads(world: World) -> Attempt:
    return Attempt(lambda: outcome(world.s3().list_multipart_uploads))


async def make_bucket(world: World) -> Attempt:
    bucket = f"made-{world.number}"

    async def there() -> bool:
        return bucket in [one["Name"] for one in (await call(world.s3().list_buckets))["Buckets"]]

    return Attempt(lambda: outcome(world.s3().create_bucket, Bucket=bucket), (200,), there)


async def remove_bucket(world: World) -> Attempt:
    attempt, bucket = await make_bucket(world), f"made-{world.number - 1}"
    assert await attempt.send() == (200, "")

    async def gone() -> bool:
        assert attempt.effect is not None
        return not await attempt.effect()

    return Attempt(lambda: outcome(world.s3().delete_bucket, Bucket=bucket), (204,), gone)


PATHS: dict[str, Path] = {
    path.__name__: path
    for path in (
        hot_write,
        write_that_raises_the_fence,
        first_write,
        write_with_its_row,
        write_with_a_trigger,
        observed_write,
        overtaken_write,
        implausible_write,
        writes_that_share_a_trip,
        keyed_write,
        replay,
        transaction,
        call_that_writes,
        barrier,
        overtaken_barrier,
        epoch,
        acquire,
        acquire_after_waiting,
        acquire_and_raise,
        renew,
        renew_many,
        release,
        withdraw,
        break_lock,
        sequencer,
        entry,
        credentials,
        put,
        put_again,
        put_by_the_next_holder,
        put_on_condition,
        put_in_parts,
        overtaken_put,
        put_over_a_zombie,
        barrier_over_a_zombie,
        delete,
        delete_many,
        copy,
        large_copy,
        open_upload,
        upload_part,
        copy_part,
        complete_upload,
        complete_again,
        abort_upload,
        tag,
        list_objects,
        list_uploads,
        make_bucket,
        remove_bucket,
    )
} | {
    "hot_read": _asked("GET", "/v1/tables/accounts?id=eq.1"),
    "estimated_read": _asked("GET", "/v1/tables/accounts", 200, 206, prefer="count=planned"),
    "call_that_reads": _asked("GET", "/v1/tables/rpc/notes"),
    "fences": _asked("GET", "/v1/fences"),
    "fence": _asked("GET", "/v1/fences/job/1"),
    "locks": _asked("GET", "/v1/leases"),
    "lock": _asked("GET", "/v1/leases/job/1"),
    "rejections": _asked("GET", "/v1/rejections"),
    "export": _asked("GET", "/v1/events.csv"),
    "webhooks": _asked("GET", "/v1/webhooks"),
    "health": _asked("GET", "/v1/health"),
    "ready": _asked("GET", "/v1/ready", 204),
}
