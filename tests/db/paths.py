"""Every path of a request to the database: each prepares an attempt with rows, keys and locks of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from mypy_boto3_s3 import S3Client

from tests.db.world import Attempt, Check, Said, World
from tests.objects.clients import call, outcome

Path: TypeAlias = Callable[[World], Awaitable[Attempt]]

ANN = {"holder": "ann"}
LARGE = b"x" * 1000
"""More than is put from memory."""


def _asked(method: str, path: str, *expected: int, document: Any = None, **headers: str) -> Path:
    async def path_of(world: World) -> Attempt:
        number = world.number
        return Attempt(lambda: world.ask(method, path.format(number), document, None, **headers), expected or (200,))

    return path_of


def _of_s3(ask: Callable[[S3Client, int], Awaitable[Said]]) -> Path:
    async def path_of(world: World) -> Attempt:
        number = world.number
        return Attempt(lambda: ask(world.s3(), number))

    return path_of


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


def _writes(token: int | None, table: str = "accounts", *, carried: bool = False, **headers: str) -> Path:
    async def path_of(world: World) -> Attempt:
        row = await (_carried(world, table=table) if carried else world.row(table))
        return _patched(world, row, token, table, **headers)

    return path_of


PATHS: dict[str, Path] = {
    "hot_write": _writes(33, carried=True),
    "write_that_raises_the_fence": _writes(34, carried=True),
    "first_write": _writes(33),
    "write_with_its_row": _writes(33, prefer="return=representation,timezone=Asia/Tokyo"),
    "write_with_a_trigger": _writes(33, "audited"),
    "observed_write": _writes(None, "watched"),
}
"""By name. The rest of this module adds to them."""


def _path(path: Path) -> Path:
    PATHS[path.__name__] = path
    return path


@_path
async def overtaken_write(world: World) -> Attempt:
    row = await _carried(world, 40)
    return Attempt(lambda: world.ask("PATCH", f"/v1/tables/accounts?id=eq.{row}", {"note": "after"}, 39), (412,))


@_path
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


@_path
async def keyed_write(world: World) -> Attempt:
    row = await world.row()
    return _patched(world, row, 33, idempotency_key=f'"{row}"')


@_path
async def replay(world: World) -> Attempt:
    row = await world.row()
    attempt = _patched(world, row, 33, idempotency_key=f'"{row}"')
    assert await attempt.send() == (204, "")
    return Attempt(attempt.send, (204,))


@_path
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


@_path
async def call_that_writes(world: World) -> Attempt:
    row = await world.row()
    document, resource = {"account": row, "note": "after"}, f"public.accounts/{row}"
    changed = _patched(world, row, 33).effect
    return Attempt(
        lambda: world.ask("POST", "/v1/tables/rpc/annotate", document, 33, fencing_resource=resource), (204,), changed
    )


# Fences and locks ---------------------------------------------------------------------------------------------------


@_path
async def overtaken_barrier(world: World) -> Attempt:
    path = f"/v1/fences/job/{world.number}/barrier"
    assert await world.ask("POST", path, {"token": "34"}) == (200, "")
    return Attempt(lambda: world.ask("POST", path, {"token": "33"}), (412,))


@_path
async def epoch(world: World) -> Attempt:
    resource = f"job/{world.number}"
    assert await world.ask("POST", f"/v1/fences/{resource}/barrier", {"token": "33"}) == (200, "")

    async def begun() -> bool:
        epoch = await world.operator.fetchval("SELECT epoch FROM fencing.fence WHERE resource = $1", resource)
        return bool(epoch == 1)

    document = {"expected": "33", "reason": "a test"}
    return Attempt(lambda: world.ask("POST", f"/v1/fences/{resource}/epoch", document), (200,), begun)


async def _leased(world: World, **wish: Any) -> dict[str, Any]:
    answer = await world.api.post(f"/v1/leases/job/{world.number}", json={"holder": "ann", **wish})
    assert answer.status_code == 201, answer.text
    lease: dict[str, Any] = answer.json()
    return lease


@_path
async def renew(world: World) -> Attempt:
    lease = await _leased(world)
    return Attempt(lambda: world.ask("PUT", f"/v1/leases/{lease['resource']}/{lease['lease']}", {}))


@_path
async def renew_many(world: World) -> Attempt:
    leases = [await _leased(world) for _ in range(2)]
    wanted = {"leases": [{"resource": one["resource"], "lease": one["lease"]} for one in leases]}
    return Attempt(lambda: world.ask("PUT", "/v1/leases", wanted))


def _ended(world: World, resource: str) -> Check:
    async def ended() -> bool:
        return not await world.operator.fetchval("SELECT count(*) FROM fencing.lease WHERE resource = $1", resource)

    return ended


@_path
async def release(world: World) -> Attempt:
    lease = await _leased(world)
    path = f"/v1/leases/{lease['resource']}/{lease['lease']}"
    return Attempt(lambda: world.ask("DELETE", path), (204,), _ended(world, lease["resource"]))


@_path
async def withdraw(world: World) -> Attempt:
    lease = await _leased(world, request="wish")
    path = f"/v1/withdrawals/{lease['resource']}"
    return Attempt(lambda: world.ask("POST", path, {"holder": "ann", "request": "wish"}), (204,))


@_path
async def break_lock(world: World) -> Attempt:
    lease = await _leased(world)
    document, path = {"expected": lease["token"], "reason": "a test"}, f"/v1/breaks/{lease['resource']}"
    return Attempt(lambda: world.ask("POST", path, document), (200,), _ended(world, lease["resource"]))


@_path
async def sequencer(world: World) -> Attempt:
    lease = await _leased(world)
    return Attempt(lambda: world.ask("POST", "/v1/sequencers/check", {"sequencer": lease["sequencer"]}))


# The record ---------------------------------------------------------------------------------------------------------


@_path
async def entry(world: World) -> Attempt:
    attempt = await overtaken_barrier(world)
    assert (await attempt.send())[0] == 412
    rejection = (await world.api.get("/v1/rejections?limit=1")).json()["rejections"][0]["id"]
    return Attempt(lambda: world.ask("GET", f"/v1/rejections/{rejection}"))


@_path
async def credentials(world: World) -> Attempt:
    document = {"resource": f"s3/bucket/key-{world.number}", "token": "33", "ttl": 900}
    return Attempt(lambda: world.ask("POST", "/v1/credentials", document), (201,))


# Objects ------------------------------------------------------------------------------------------------------------


def _stands(world: World, key: str, body: bytes | None = b"after") -> Check:
    async def stands() -> bool:
        return world.stage.body(key) == body

    return stands


def _put(world: World, key: str, token: int = 33, body: bytes = b"after", **arguments: Any) -> Attempt:
    send = partial(outcome, world.s3(token).put_object, Key=key, Body=body, **arguments)
    return Attempt(send, (200,), _stands(world, key, body))


def _puts(token: int = 33, body: bytes = b"after", *, again: bool = False) -> Path:
    async def path_of(world: World) -> Attempt:
        return _put(world, await world.object() if again else f"key-{world.number}", token, body)

    return path_of


@_path
async def put_on_condition(world: World) -> Attempt:
    key = await world.object()
    etag = (await call(world.s3().head_object, Key=key))["ETag"]
    return _put(world, key, IfMatch=etag)


@_path
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


@_path
async def barrier_over_a_zombie(world: World) -> Attempt:
    attempt = await put_over_a_zombie(world)
    resource = await world.operator.fetchval("SELECT resource FROM fencing.intent ORDER BY signed_at DESC LIMIT 1")
    path = f"/v1/fences/{resource}/barrier"
    return Attempt(lambda: world.ask("POST", path, {"token": "34"}), after=attempt.after)


@_path
async def delete(world: World) -> Attempt:
    key = await world.object()
    return Attempt(lambda: outcome(world.s3().delete_object, Key=key), (204,), _stands(world, key, None))


@_path
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


async def _copied(world: World, body: bytes) -> Attempt:
    target, source = f"key-{world.number}", {"Bucket": "bucket", "Key": await world.object(body)}
    send = partial(outcome, world.s3().copy_object, Key=target, CopySource=source)
    return Attempt(send, (200,), _stands(world, target, body))


@_path
async def copy(world: World) -> Attempt:
    return await _copied(world, b"after")


@_path
async def large_copy(world: World) -> Attempt:
    return await _copied(world, LARGE)


async def _opened(world: World) -> dict[str, Any]:
    """An upload with one part: what names it."""
    key = f"key-{world.number}"
    upload = (await call(world.s3().create_multipart_upload, Key=key))["UploadId"]
    place = {"Key": key, "UploadId": upload}
    part = await call(world.s3().upload_part, **place, PartNumber=1, Body=b"after")
    return {"place": place, "parts": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}}


@_path
async def upload_part(world: World) -> Attempt:
    upload = await _opened(world)
    return Attempt(lambda: outcome(world.s3().upload_part, **upload["place"], PartNumber=2, Body=b"more"))


@_path
async def copy_part(world: World) -> Attempt:
    upload, wanted = await _opened(world), {"Bucket": "bucket", "Key": await world.object()}
    return Attempt(lambda: outcome(world.s3().upload_part_copy, **upload["place"], PartNumber=2, CopySource=wanted))


@_path
async def complete_upload(world: World) -> Attempt:
    upload = await _opened(world)
    arguments = {**upload["place"], "MultipartUpload": upload["parts"]}
    send = partial(outcome, world.s3().complete_multipart_upload, **arguments)
    return Attempt(send, (200,), _stands(world, upload["place"]["Key"]))


@_path
async def abort_upload(world: World) -> Attempt:
    upload = await _opened(world)
    key = upload["place"]["Key"]

    async def gone() -> bool:
        listed = await call(world.s3().list_multipart_uploads, Prefix=key)
        return not listed.get("Uploads")

    return Attempt(lambda: outcome(world.s3().abort_multipart_upload, **upload["place"]), (204,), gone)


@_path
async def tag(world: World) -> Attempt:
    key = await world.object()

    async def tagged() -> bool:
        return bool((await call(world.s3().get_object_tagging, Key=key))["TagSet"])

    wanted: Any = {"TagSet": [{"Key": "state", "Value": "after"}]}
    return Attempt(lambda: outcome(world.s3().put_object_tagging, Key=key, Tagging=wanted), (200,), tagged)


@_path
async def make_bucket(world: World) -> Attempt:
    bucket = f"made-{world.number}"

    async def there() -> bool:
        return bucket in [one["Name"] for one in (await call(world.s3().list_buckets))["Buckets"]]

    return Attempt(lambda: outcome(world.s3().create_bucket, Bucket=bucket), (200,), there)


PATHS |= {
    "barrier": _asked("POST", "/v1/fences/job/{}/barrier", document={"token": "33"}),
    "acquire": _asked("POST", "/v1/leases/job/{}", 200, 201, document=ANN),
    "acquire_after_waiting": _asked("POST", "/v1/leases/job/{}", 200, 201, document={**ANN, "wait": 5}),
    "acquire_and_raise": _asked("POST", "/v1/leases/job/{}", 200, 201, document={**ANN, "barrier": True}),
    "open_upload": _of_s3(lambda s3, number: outcome(s3.create_multipart_upload, Key=f"key-{number}")),
    "list_objects": _of_s3(lambda s3, _: outcome(s3.list_objects_v2)),
    "list_uploads": _of_s3(lambda s3, _: outcome(s3.list_multipart_uploads)),
    "put": _puts(),
    "put_again": _puts(again=True),
    "put_by_the_next_holder": _puts(34, again=True),
    "put_in_parts": _puts(body=LARGE),
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
