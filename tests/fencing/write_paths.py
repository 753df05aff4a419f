"""Every way in which a request can raise a fence, or prepare to. Each takes what is shown; gives status and code."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

import httpx
from mypy_boto3_s3 import S3Client

from gateway.auth.sigv4 import RequestHead, StoreCredentials, presign
from tests.fencing.policy_gateway import Shown, World
from tests.objects.clients import call, connect, outcome
from tests.objects.raw import Reply
from tests.objects.test_forms import TOKEN as FORM_TOKEN
from tests.objects.test_forms import post, signed
from tests.running import ACCESS_KEY, SECRET_KEY
from tests.waiting import PATIENCE

Said: TypeAlias = tuple[int, str]
Way: TypeAlias = Callable[[World, str, Shown], Awaitable[Said]]


def _key(resource: str) -> str:
    return f"{resource}/file"


def client(world: World, shown: Shown, **settings: Any) -> S3Client:
    """A boto3 client that sends ``shown`` in signed headers."""
    opened = connect(world.stage.origin, **settings)

    def present(params: dict[str, Any], **_: Any) -> None:
        params["headers"].update(shown.headers)

    opened.meta.events.register("before-call.s3", present)
    return opened


def _said(answer: httpx.Response) -> Said:
    if answer.is_success:
        return answer.status_code, ""
    is_xml = answer.headers["content-type"].startswith("application/xml")
    return answer.status_code, Reply(0, {}, answer.content).code if is_xml else answer.json()["code"]


# Tables -------------------------------------------------------------------------------------------------------------


def _table(method: str, *, of_row: bool) -> Way:
    async def way(world: World, resource: str, shown: Shown) -> Said:
        kind, _, name = resource.partition("/")
        await world.insert(resource)
        query = f"?kind=eq.{kind}&name=eq.{name}" if of_row else "?on_conflict=kind,name"
        body = (
            None
            if method == "DELETE"
            else {"note": "after"} | ({} if method == "PATCH" else {"kind": kind, "name": name})
        )
        headers = shown.headers | ({"Prefer": "resolution=merge-duplicates"} if method == "POST" else {})
        return _said(await world.api.request(method, f"/v1/tables/docs{query}", json=body, headers=headers))

    return way


async def call_a_function(world: World, resource: str, shown: Shown) -> Said:
    kind, _, name = resource.partition("/")
    await world.insert(resource)
    headers = {**shown.headers, "Fencing-Resource": resource}
    body = {"kind": kind, "name": name, "note": "after"}
    return _said(await world.api.post("/v1/tables/rpc/annotate", json=body, headers=headers))


async def transaction(world: World, resource: str, shown: Shown) -> Said:
    kind, _, name = resource.partition("/")
    await world.insert(resource)
    honest = {"method": "POST", "table": "docs", "body": {"kind": "any", "name": f"beside-{name}"}, "token": "1"}
    fields = {"token": shown.token, "sequencer": shown.sequencer}
    write = {"method": "PATCH", "table": "docs", "query": f"kind=eq.{kind}&name=eq.{name}", "body": {"note": "after"}}
    answer = await world.api.post("/v1/transaction", json={"writes": [honest, write | fields]})
    beside = await world.row(f"any/beside-{name}")
    await world.database.execute("DELETE FROM docs WHERE name = $1", f"beside-{name}")
    assert (beside is not None or answer.is_success) == answer.is_success
    return _said(answer)


async def pairs(world: World, resource: str, shown: Shown) -> Said:
    kind, _, name = resource.partition("/")
    await world.insert(resource)
    headers = shown.headers
    if shown.token is not None:
        headers["Fencing-Token"] = f"any/{name}-other=1, {resource}={shown.token}"
    query = f"?kind=eq.{kind}&name=eq.{name}"
    return _said(await world.api.patch(f"/v1/tables/docs{query}", json={"note": "after"}, headers=headers))


async def idempotent(world: World, resource: str, shown: Shown) -> Said:
    kind, _, name = resource.partition("/")
    await world.insert(resource)
    headers = {**shown.headers, "Idempotency-Key": f'"{name}-{shown.bare}"'}
    query = f"?kind=eq.{kind}&name=eq.{name}"
    return _said(await world.api.patch(f"/v1/tables/docs{query}", json={"note": "after"}, headers=headers))


# Objects ------------------------------------------------------------------------------------------------------------


async def put(world: World, resource: str, shown: Shown) -> Said:
    return await outcome(client(world, shown).put_object, Key=_key(resource), Body=b"after")


async def put_in_parts(world: World, resource: str, shown: Shown) -> Said:
    """More than is put from memory, so it is staged."""
    return await outcome(client(world, shown).put_object, Key=_key(resource), Body=b"x" * (9 * 1024 * 1024))


async def copy(world: World, resource: str, shown: Shown) -> Said:
    world.stage.double.put("bucket", "any/source/file", b"after")
    source = {"Bucket": "bucket", "Key": "any/source/file"}
    return await outcome(client(world, shown).copy_object, Key=_key(resource), CopySource=source)


async def delete(world: World, resource: str, shown: Shown) -> Said:
    return await outcome(client(world, shown).delete_object, Key=_key(resource))


async def delete_many(world: World, resource: str, shown: Shown) -> Said:
    wanted = {"Objects": [{"Key": _key(resource)}]}
    answer = await call(client(world, shown).delete_objects, Delete=wanted)
    errors = answer.get("Errors", [])
    return (403, errors[0]["Code"]) if errors else (200, "")


async def open_upload(world: World, resource: str, shown: Shown) -> Said:
    return await outcome(client(world, shown).create_multipart_upload, Key=_key(resource))


async def complete_upload(world: World, resource: str, shown: Shown) -> Said:
    """Opened with something honest, and completed with what is shown."""
    upload = await _opened(world, resource)
    if upload is None:
        return await open_upload(world, resource, shown)
    s3, place = client(world, shown), {"Key": _key(resource), "UploadId": upload}
    honest = connect(world.stage.origin)
    part = await call(honest.upload_part, **place, PartNumber=1, Body=b"after")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    return await outcome(s3.complete_multipart_upload, **place, MultipartUpload=parts)


async def upload_part(world: World, resource: str, shown: Shown) -> Said:
    upload = await _opened(world, resource)
    if upload is None:
        return await open_upload(world, resource, shown)
    s3 = client(world, shown)
    return await outcome(s3.upload_part, Key=_key(resource), UploadId=upload, PartNumber=1, Body=b"after")


async def _opened(world: World, resource: str) -> str | None:
    """An upload, opened by the holder of a lease; None where there is none."""
    lease = (
        await world.leased(resource, "uploader")
        if not resource.startswith("any/")
        else {"token": "1", "sequencer": None}
    )
    opened = client(world, Shown(lease["token"], lease["sequencer"]))
    upload: str = (await call(opened.create_multipart_upload, Key=_key(resource)))["UploadId"]
    return upload


async def tag(world: World, resource: str, shown: Shown) -> Said:
    world.stage.double.put("bucket", _key(resource), b"before")
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    return await outcome(client(world, shown).put_object_tagging, Key=_key(resource), Tagging=tags)


async def metadata(world: World, resource: str, shown: Shown) -> Said:
    said = {name.lower(): value for name, value in shown.headers.items()}
    return await outcome(connect(world.stage.origin).put_object, Key=_key(resource), Body=b"after", Metadata=said)


async def session(world: World, resource: str, shown: Shown) -> Said:
    said = urlencode({name.lower(): value for name, value in shown.headers.items()})
    s3 = connect(world.stage.origin, aws_session_token=said)
    return await outcome(s3.put_object, Key=_key(resource), Body=b"after")


async def form(world: World, resource: str, shown: Shown) -> Said:
    fields = {FORM_TOKEN: shown.bare}
    if shown.sequencer is not None:
        fields["x-amz-meta-fencing-sequencer"] = shown.sequencer
    return _said(await post(signed(world.stage.origin, _key(resource), fields), b"after"))


async def presigned(world: World, resource: str, shown: Shown) -> Said:
    origin, path = world.stage.origin, f"/bucket/{_key(resource)}"
    query = "&".join(f"{name.lower()}={quote(value, safe='')}" for name, value in shown.headers.items())
    head = RequestHead("PUT", path.encode(), query.encode(), [(b"host", urlsplit(origin).netloc.encode())])
    signature = presign(
        head, StoreCredentials(ACCESS_KEY, SECRET_KEY, "us-east-1"), datetime.now(UTC), timedelta(minutes=5)
    )
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        return _said(await http.put(f"{origin}{path}?{signature}", content=b"after"))


# The fencing API ----------------------------------------------------------------------------------------------------


async def barrier(world: World, resource: str, shown: Shown) -> Said:
    body = {"token": shown.bare, "sequencer": shown.sequencer}
    return _said(await world.api.post(f"/v1/fences/{resource}/barrier", json=body))


async def credentials(world: World, resource: str, shown: Shown) -> Said:
    """Issued, and used if they are."""
    return await _with_credentials(world, resource, resource, shown)


async def wide_credentials(world: World, resource: str, shown: Shown) -> Said:
    """For many resources, so that nothing can be looked at before they are used."""
    return await _with_credentials(world, resource, f"{resource.partition('/')[0]}/*", shown)


async def _with_credentials(world: World, resource: str, pattern: str, shown: Shown) -> Said:
    body = {"resource": pattern, "token": shown.bare, "sequencer": shown.sequencer}
    answer = await world.api.post("/v1/credentials", json=body)
    if not answer.is_success:
        return _said(answer)
    issued = answer.json()
    s3 = connect(
        world.stage.origin,
        access_key=issued["access_key_id"],
        secret_key=issued["secret_access_key"],
        aws_session_token=issued["session_token"],
    )
    return await outcome(s3.put_object, Key=_key(resource), Body=b"after")


WAYS: dict[str, Way] = {
    "patch": _table("PATCH", of_row=True),
    "upsert": _table("POST", of_row=False),
    "put a row": _table("PUT", of_row=True),
    "delete a row": _table("DELETE", of_row=True),
    **{
        way.__name__.replace("_", " "): way
        for way in (
            *(call_a_function, transaction, pairs, idempotent, put, put_in_parts, copy, delete, delete_many),
            *(open_upload, upload_part, complete_upload, tag, metadata, session, form, presigned),
            *(barrier, credentials, wide_credentials),
        )
    },
}
