"""Writes under a lock: the requests that carry it, the hosts that see it, and the errors that a program gets."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import boto3
import httpx
import orjson
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from postgrest import APIError

from gateway import errors
from gateway.client import FencedClient, Lock, MissingExtra, raise_for_refusal
from gateway.client.api import refusal_from
from gateway.client.client import program_name
from gateway.client.errors import (
    FencingError,
    Implausible,
    LockLost,
    NotAcquired,
    OutcomeUnknown,
    Refused,
    Stale,
    Unavailable,
)
from gateway.errors import GatewayError
from gateway.fencing.headers import is_holder
from gateway.http.middleware import problem
from gateway.objects.s3 import xml
from gateway.tables.dialect import errors as failures
from tests.client.stage import BUCKET, Counter, Stage
from tests.running import ACCESS_KEY, SECRET_KEY
from tests.serving_app import served
from tests.waiting import PATIENCE


def key(number: int, name: str = "file") -> dict[str, str]:
    return {"Bucket": BUCKET, "Key": f"accounts/{number}/{name}"}


async def in_thread(function: Any, **arguments: Any) -> Any:
    return await asyncio.to_thread(function, **arguments)


class Listener:
    """A server that writes down what it hears, and redirects what is asked of ``/away``."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, str]]] = []
        self.elsewhere = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        self.heard.append((scope["path"], {name.decode(): value.decode() for name, value in scope["headers"]}))
        away = scope["path"] == "/away"
        headers = [(b"location", f"{self.elsewhere}/caught".encode())] if away else []
        await send({"type": "http.response.start", "status": 307 if away else 200, "headers": headers})
        resource = scope["path"].removeprefix("/v1/fences/").removesuffix("/barrier")
        await send({"type": "http.response.body", "body": json.dumps({"resource": resource, "token": None}).encode()})


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Listener, str]]:
    listener = Listener()
    async with served(listener) as port:
        yield listener, f"http://127.0.0.1:{port}"


async def test_a_lock_is_shown_to_its_gateway_alone(counter: Counter, job: str) -> None:
    async with listening() as (gateway, origin), listening() as (other, elsewhere):
        gateway.elsewhere = elsewhere
        async with (
            FencedClient(origin, api_key="a secret") as client,
            client.lock(job, source=counter, barrier=False) as lock,
        ):
            shown = {name.lower(): value for name, value in lock.headers.items()}
            await lock.http.get("/here")
            await lock.http.get("/here", headers={"Fencing-Token": "a=1, b=2", "Authorization": "mine"})
            await lock.http.post("/away", json={"x": 1}, follow_redirects=True)
            await lock.http.post(f"{elsewhere}/straight", headers={"Fencing-Token": "7"})
    paths = [path for path, _ in gateway.heard]
    assert paths == [f"/v1/fences/{job}", "/here", "/here", "/away"]
    own, listed, away = (headers for _, headers in gateway.heard[1:])
    for headers in (own, away):
        assert headers.items() >= {**shown, "authorization": "Bearer a secret"}.items()
    assert (listed["fencing-token"], listed["authorization"]) == ("a=1, b=2", "mine")
    assert "fencing-resource" not in listed, "a list names its resources itself"
    assert [path for path, _ in other.heard] == ["/caught", "/straight"]
    for _, headers in other.heard:
        assert not [name for name in headers if name.startswith("fencing-") or name == "authorization"]


@pytest.mark.thorough
async def test_what_is_refused_for_other_reasons_is_answered_as_ever(stage: Stage, client: FencedClient) -> None:
    number = stage.account()
    target = f"/v1/tables/accounts?id=eq.{number}"
    async with client.lock(f"public.accounts/{number}") as lock:
        made = raise_for_refusal(await lock.http.put(target, json={"id": number, "owner": "a"}))
        assert made.is_success
        changed = await lock.http.patch(target, json={"owner": "b"}, headers={"If-Match": '"another"'})
        assert (changed.status_code, changed.json()["code"]) == (412, "row-changed")
        assert changed.headers["etag"] != '"another"'
        with pytest.raises(Refused) as refused:
            raise_for_refusal(changed)
        assert (refused.value.status, refused.value.code) == (412, "row-changed")

        # The row of another resource: the gateway writes nothing and raises no fence of it.
        other = await lock.http.put("/v1/tables/accounts?id=eq.999999", json={"id": 999999})
        assert (other.status_code, other.json()["code"]) == (422, "resource-mismatch")
        assert lock.postgrest.session is not lock.http
        with pytest.raises(APIError, match="does not cover"):
            await lock.postgrest.from_("accounts").upsert({"id": 999999}).execute()
        async with lock.s3() as s3:
            await s3.put_object(**key(number), Body=b"x")
            with pytest.raises(ClientError, match="PreconditionFailed"):
                await s3.put_object(**key(number), Body=b"x", IfMatch='"none"')
            with pytest.raises(ClientError, match="FencingResourceMismatch"):
                await s3.put_object(**key(999999), Body=b"x")
        lock.check()


async def test_bodies_of_all_kinds_go_through(stage: Stage, client: FencedClient) -> None:
    number = stage.account()

    async def pieces() -> AsyncIterator[bytes]:
        yield f'{{"id": {number},'.encode()
        yield b'"owner": "streamed"}'

    async with client.lock(f"public.accounts/{number}") as lock:
        target = f"/v1/tables/accounts?id=eq.{number}"
        answer = await lock.http.put(target, content=pieces(), headers={"Content-Type": "application/json"})
        assert answer.is_success, answer.text
        async with lock.http.stream("GET", target) as streamed:
            assert b"streamed" in b"".join([piece async for piece in streamed.aiter_raw()])


async def test_requests_of_s3(stage: Stage, client: FencedClient) -> None:
    """Parts, many deletions, presigned URLs: all of them are fenced."""
    number = stage.account()
    resource = f"public.accounts/{number}"
    async with client.lock(resource, on_loss="tell") as lock, lock.s3(max_pool_connections=3) as s3:
        assert s3.meta.config.max_pool_connections == 3
        upload = (await s3.create_multipart_upload(**key(number, "large")))["UploadId"]
        part = await s3.upload_part(**key(number, "large"), UploadId=upload, PartNumber=1, Body=b"part")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        await s3.complete_multipart_upload(**key(number, "large"), UploadId=upload, MultipartUpload=parts)
        assert stage.body(number, "large") == b"part"

        url = await s3.generate_presigned_url("put_object", Params=key(number), ExpiresIn=60)
        async with httpx.AsyncClient() as anybody:
            assert (await anybody.put(url, content=b"presigned")).status_code == 200
            assert stage.body(number) == b"presigned"

            stage.raised(resource, "1000")
            late = await anybody.put(url, content=b"late")
        assert (late.status_code, "StaleFencingToken" in late.text) == (412, True)
        with pytest.raises(Stale) as refused:
            await s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key(number)["Key"]}]})
        assert (refused.value.token, refused.value.fence, refused.value.resource) == (lock.token, "1000", resource)
        assert lock.lost.is_set()
    assert stage.body(number) == b"presigned"


async def test_a_client_of_the_programs_own(stage: Stage, client: FencedClient) -> None:
    number = stage.account()
    s3 = boto3.Session(region_name="us-east-1").client(
        "s3", endpoint_url=stage.origin, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        config=Config(s3={"addressing_style": "path"}),
    )  # fmt: skip
    async with client.lock(f"public.accounts/{number}", on_loss="tell") as lock:
        lock.attach(s3)
        await in_thread(s3.put_object, **key(number), Body=b"x")
        stage.raised(lock.resource, "1000")
        with pytest.raises(Stale):
            await in_thread(s3.put_object, **key(number), Body=b"y")
        await asyncio.wait_for(lock.lost.wait(), PATIENCE)
    s3.close()
    assert stage.body(number) == b"x"


async def test_credentials_and_the_environment(stage: Stage, client: FencedClient) -> None:
    number = stage.account()
    async with client.lock(f"public.accounts/{number}") as lock:
        issued = await lock.credentials(ttl=60)
        assert timedelta(seconds=30) < issued.expiration - datetime.now(UTC) <= timedelta(seconds=60)
        assert issued.secret_access_key not in repr(issued)
        variables = await lock.environment()
        of_the_lock = {
            "FENCING_TOKEN": lock.token,
            "FENCING_RESOURCE": lock.resource,
            "FENCING_HOLDER": lock.holder,
            "FENCING_SEQUENCER": lock.sequencer,
            "GATEWAY_URL": stage.origin,
        }
        without = await lock.environment(s3=False)
        assert without.keys() == {*of_the_lock, "PGOPTIONS", "PGAPPNAME"}
        assert without.items() >= of_the_lock.items()
        assert variables.items() >= of_the_lock.items()
        assert variables["AWS_ENDPOINT_URL"] == variables["AWS_ENDPOINT_URL_S3"] == stage.origin
        s3 = boto3.Session(region_name="us-east-1").client(
            "s3", endpoint_url=variables["AWS_ENDPOINT_URL"], aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=variables["AWS_SESSION_TOKEN"], config=Config(s3={"addressing_style": "path"}),
        )  # fmt: skip
        await in_thread(s3.put_object, **key(number), Body=b"by a child")
        with pytest.raises(ClientError):
            await in_thread(s3.put_object, **key(number + 1), Body=b"not covered")
        wide = await lock.credentials("public.accounts/*")
        assert wide.session_token != issued.session_token
    s3.close()
    assert stage.body(number) == b"by a child"


@pytest.mark.parametrize(
    ("library", "use"),
    [
        ("aiobotocore.session", lambda lock: lock.s3().__aenter__()),
        ("boto3", lambda lock: in_thread(lock.boto3)),
        ("postgrest", lambda lock: in_thread(lambda: lock.postgrest)),
    ],
)
async def test_what_is_not_installed(
    counter: Counter, stage: Stage, job: str, monkeypatch: pytest.MonkeyPatch, library: str, use: Any
) -> None:
    """It is missed where it is used, and the error says what to install."""
    from gateway.client import s3  # noqa: PLC0415

    s3._boto3_session.cache_clear()
    s3._aiobotocore_session.cache_clear()
    monkeypatch.setitem(sys.modules, library, None)
    async with stage.client() as client, client.lock(job, source=counter) as lock:
        with pytest.raises(MissingExtra, match=r"pip install .\.\[client\]") as missing:
            await use(lock)
    assert isinstance(missing.value, ImportError)
    assert missing.value.extra == "client"


async def test_without_keys_there_is_no_s3(counter: Counter, stage: Stage, job: str) -> None:
    async with (
        FencedClient(stage.origin, api_key="writer-api-key") as client,
        client.lock(job, source=counter) as lock,
    ):
        with pytest.raises(Refused, match="access_key_id"):
            await lock.s3().__aenter__()


async def test_before_the_block_there_is_nothing(client: FencedClient, job: str) -> None:
    lock: Lock = client.lock(job)
    with pytest.raises(RuntimeError, match="not held yet"):
        _ = lock.token
    with pytest.raises(RuntimeError, match="not held yet"):
        await lock.http.get("/")


# Every error of the gateway, on every plane, is the same typed error: rendered by the gateway's own code.


Plane: TypeAlias = Callable[[GatewayError], FencingError]

STALE = {
    "resource": "order/5", "token": "2.33", "fence": "2.34", "raised_by": "the successor",
    "raised_at": "2026-01-02T03:04:05+00:00", "rejection": "17",
}  # fmt: skip
SENTENCE = "The fencing token 2.33 of order/5 has been overtaken by 2.34."
TWICE = "Another holder, the successor, uses the fencing token 2.33 of order/5."
CASES: list[tuple[GatewayError, type[FencingError]]] = [
    (errors.TokenStale(SENTENCE, facts=STALE), Stale),
    (errors.TokenDuplicate(TWICE, facts=STALE), Stale),
    (errors.TokenUsed("The fencing token 2.33 of order/5 has already written.", facts=STALE), Refused),
    (errors.TokenImplausible("No."), Implausible),
    (errors.OutcomeUnknown("Who knows."), OutcomeUnknown),
    (errors.Unavailable("Not now."), Unavailable),
    (errors.LeaseLost("It is gone."), LockLost),
    (errors.LockHeld("Somebody has it.", facts={"resource": "order/5", "holder": "a"}), NotAcquired),
    (errors.ResourceMismatch("Not covered.", facts={"touched": "order/6"}), Refused),
    (errors.Forbidden("No."), Refused),
    (errors.StoreUnfit("No."), Refused),
    (errors.SqlError("XX000", "What happened?"), OutcomeUnknown),
]


def as_problem(error: GatewayError) -> FencingError:
    return refusal_from(error.status, {}, orjson.dumps(problem(error)))


def as_table(error: GatewayError) -> FencingError:
    answer = failures.answer(error)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    assert isinstance(answer.body, bytes)
    return refusal_from(answer.status, headers, answer.body)


def as_table_without_body(error: GatewayError) -> FencingError:
    answer = failures.answer(error)
    return refusal_from(answer.status, {name.decode(): value.decode() for name, value in answer.headers}, b"")


def as_s3(error: GatewayError) -> FencingError:
    return refusal_from(error.status, {}, xml.render(error, path="/bucket/key", request_id="1"))


PLANES: list[Plane] = [as_problem, as_table, as_table_without_body, as_s3]
OF_LOCKS = (errors.LeaseLost, errors.LockHeld)
"""Of these S3 knows nothing."""


@pytest.mark.parametrize(
    ("error", "kind", "plane"),
    [(*case, plane) for case in CASES for plane in PLANES if plane is not as_s3 or not isinstance(case[0], OF_LOCKS)],
    ids=lambda value: getattr(value, "code", getattr(value, "__name__", "")),
)
def test_kinds(error: GatewayError, kind: type[FencingError], plane: Plane) -> None:
    found = plane(error)
    assert type(found) is kind
    if isinstance(found, Refused):
        assert found.status == error.status
    if plane is not as_table_without_body and kind is not NotAcquired:
        assert error.message in found.message


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["billing.py", "5"], "billing.py"),
        (["/usr/bin/python3.11", "jobs/billing.py", "5"], "billing.py"),
        (["python", "-m", "shop.billing", "5"], "shop.billing"),
        (["python", "-c", "print()"], "python"),
        (["java", "-jar", "/srv/billing.jar"], "billing.jar"),
        (["psql"], "psql"),
        (["bash"], "bash"),
        (["/srv/la facturación"], "la-facturaci-n"),
        ([""], "program"),
    ],
)
def test_a_holder_is_named_after_its_program(command: list[str], program: str) -> None:
    name = program_name(command)
    assert name == f"{program}@{socket.gethostname()[:100]}:{os.getpid()}"
    assert is_holder(name)
