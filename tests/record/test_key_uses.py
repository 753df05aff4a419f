"""When each key of a caller was last used: noted by every way in, also by the fast path, and by nothing else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from gateway import part
from gateway.auth.callers import Callers
from gateway.auth.key_uses import KeyKind, KeyUse, digest_of, fingerprint
from gateway.auth.principal import Principal
from gateway.db import key_uses as store
from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import GatewayError
from gateway.observe.events import Observe
from gateway.record import flushing as flushing_module
from gateway.record.flushing import Noted, flushing
from gateway.record.key_uses import KeyUses
from tests.doubles.s3 import S3Double
from tests.identity_provider import claims, shared_key, token
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.objects.test_forms import post, signed
from tests.patience import patient_trips
from tests.postgres import fresh_database
from tests.running import config, running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

OLD, NEW = "old-api-key-of-the-worker", "new-api-key-of-the-worker"
PAIRS = {"AKIAOLD": "old-secret-of-the-worker", "AKIANEW": "new-secret-of-the-worker"}
SECRET = "a-secret-that-is-shared-with-an-issuer"
WORKER: dict[str, Any] = {
    "name": "worker",
    "groups": ["auditors"],
    "api_key": NEW,
    "api_keys": [OLD],
    "keys": [{"access_key_id": name, "secret_access_key": secret} for name, secret in PAIRS.items()],
}
ISSUER = {"name": "app", "secret": SECRET, "issuer": "https://issuer.example"}
SHOWN = {key: fingerprint("worker", digest_of(key.encode())) for key in (OLD, NEW)}


class Rounds:
    """Counts how often gateways have stored all that they had noted: it comes last in each of their rounds."""

    what = "rounds"

    def __init__(self) -> None:
        self.done = 0

    async def flush(self, _: Database) -> None:
        self.done += 1


ROUNDS = Rounds()


def soon(database: Database, noted: Sequence[Noted], observe: Observe) -> AbstractAsyncContextManager[None]:
    return flushing(database, [*noted, ROUNDS], observe, interval=0.02)


@pytest.fixture(scope="module", autouse=True)
def _soon() -> Any:
    """Gateways store uses at once, and at their end, however long that takes.

    A write on the fast path stays on it, too: a shared trip that takes too long makes it another.
    """
    with pytest.MonkeyPatch.context() as patch, patient_trips():
        patch.setattr(part, "flushing", soon)
        patch.setattr(flushing_module, "_GRACE", PATIENCE)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, S3Double(buckets=["bucket"]), callers=[WORKER], issuers=[ISSUER]) as one:
        await one.rows("CREATE TABLE orders (id bigint PRIMARY KEY, state text)")
        await one.rows("INSERT INTO orders SELECT id FROM generate_series(1, 9) AS id")
        async with bearing(one, NEW) as client, asyncio.timeout(PATIENCE):
            while (await client.get("/v1/tables/orders")).status_code != 200:
                await asyncio.sleep(0.05)
        await call(s3(one, "AKIANEW").put_object, Key="probed", Body=b"x")
        yield one


def bearing(one: Stage, key: str, header: str = "Authorization") -> httpx.AsyncClient:
    value = f"Bearer {key}" if header == "Authorization" else key
    return httpx.AsyncClient(base_url=one.origin, headers={header: value}, timeout=PATIENCE)


def s3(one: Stage, name: str, secret: str | None = None) -> Any:
    return connect(one.origin, "1", access_key=name, secret_key=secret or PAIRS[name])


async def stored(dsn: str) -> dict[str, datetime]:
    database = Database(dsn)
    try:
        return {use.key: use.last_used for use in await store.read(database)}
    finally:
        await database.close()


@asynccontextmanager
async def noting(one: Stage, key: str | None) -> AsyncIterator[None]:
    """Check that the work inside is a use of this key, and of no other one. None: of none."""
    before = await settled(one)
    yield
    after = await settled(one)
    assert {name for name, last in after.items() if last != before.get(name)} == ({key} if key else set())


async def settled(one: Stage) -> dict[str, datetime]:
    """Return what is stored, once all that has been noted until now is: a round may be under way, the next one is not.

    No other gateway runs meanwhile.
    """
    begun = ROUNDS.done
    async with asyncio.timeout(PATIENCE):
        while ROUNDS.done < begun + 2:
            await asyncio.sleep(0.01)
    return await stored(one.dsn)


async def read(one: Stage, key: str, header: str = "Authorization") -> None:
    async with bearing(one, key, header) as client:
        assert (await client.get("/v1/tables/orders?id=eq.1")).status_code == 200


async def lock(one: Stage, key: str) -> None:
    async with bearing(one, key) as client:
        assert (await client.post(f"/v1/leases/{uuid4()}", json={"holder": "a", "ttl": 5})).status_code == 201


async def log_in(one: Stage, key: str) -> None:
    async with httpx.AsyncClient(base_url=one.origin) as client:
        answer = await client.post("/ui/login", data={"api_key": key}, headers={"Origin": one.origin})
        assert answer.status_code == 303, answer.text


async def put(one: Stage, name: str) -> None:
    await call(s3(one, name).put_object, Key="key", Body=b"x")


async def follow(one: Stage, name: str) -> None:
    url = s3(one, name).generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "probed"})
    async with httpx.AsyncClient() as client:
        assert (await client.get(url)).status_code == 200


async def post_form(one: Stage, name: str) -> None:
    form = signed(one.origin, "form", access_key=name, secret_key=PAIRS[name])
    assert (await post(form)).status_code == 204


Deed = Callable[[Stage, str], Awaitable[None]]
BY_API_KEY: dict[str, Deed] = {
    "table": read,
    "apikey": partial(read, header="apikey"),
    "lock": lock,
    "login": log_in,
}
BY_PAIR: dict[str, Deed] = {"put": put, "presigned": follow, "form": post_form}


@pytest.mark.parametrize("deed", BY_API_KEY.values(), ids=BY_API_KEY)
@pytest.mark.parametrize("key", [OLD, NEW])
async def test_the_use_of_an_api_key_is_stored(stage: Stage, deed: Deed, key: str) -> None:
    async with noting(stage, SHOWN[key]):
        await deed(stage, key)
    assert datetime.now(UTC) - (await stored(stage.dsn))[SHOWN[key]] < timedelta(seconds=PATIENCE)


@pytest.mark.parametrize("deed", BY_PAIR.values(), ids=BY_PAIR)
@pytest.mark.parametrize("name", PAIRS)
async def test_the_use_of_a_pair_is_stored(stage: Stage, deed: Deed, name: str) -> None:
    async with noting(stage, name):
        await deed(stage, name)


async def test_answers_without_a_task_are_uses(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such requests are not authenticated again: the key was proven when their head was prepared."""
    proven: list[bytes] = []
    owner = Callers._owner

    def prove(self: Callers, key: bytes) -> Principal:
        proven.append(key)
        return owner(self, key)

    monkeypatch.setattr(Callers, "_owner", prove)
    async with bearing(stage, OLD) as client:

        async def write() -> None:
            sent = {"Fencing-Token": "1"}
            assert (await client.patch("/v1/tables/orders?id=eq.2", json={"state": "x"}, headers=sent)).is_success

        for _ in range(6):
            await write()
        proven.clear()
        async with noting(stage, SHOWN[OLD]):
            await write()
        assert proven == []


async def test_nothing_else_is_a_use(stage: Stage) -> None:
    """Wrong keys and signatures, signatures of other requests, identity tokens and temporary keys."""
    async with noting(stage, None):
        async with bearing(stage, f"{OLD}x") as client:
            assert (await client.get("/v1/tables/orders?id=eq.1")).status_code == 401
        assert await outcome(s3(stage, "AKIAOLD", "wrong").head_bucket) == (403, "403")
        url = s3(stage, "AKIAOLD").generate_presigned_url("head_bucket", Params={"Bucket": "bucket"})
        async with httpx.AsyncClient() as client:
            assert (await client.get(url)).status_code == 403  # it was signed for HEAD
        async with bearing(stage, token(shared_key(SECRET), claims(), "HS256", kid=None)) as client:
            assert (await client.get("/v1/health")).status_code == 200
            assert (await client.get("/v1/tables/orders?id=eq.1")).status_code == 403
    async with bearing(stage, NEW) as client:
        answer = await client.post("/v1/credentials", json={"resource": "s3/bucket/fenced", "token": "1"})
    keys = answer.json()
    async with noting(stage, None):
        fenced = connect(
            stage.origin,
            access_key=keys["access_key_id"],
            secret_key=keys["secret_access_key"],
            aws_session_token=keys["session_token"],
        )
        await call(fenced.put_object, Key="fenced", Body=b"x")


async def test_a_caller_goes_on_with_its_other_key(stage: Stage) -> None:
    """Locks, idempotency keys and uploads belong to the caller, whichever key proves it."""
    async with bearing(stage, OLD) as old, bearing(stage, NEW) as new:
        lease = (await old.post("/v1/leases/rotation", json={"holder": "a", "ttl": 60})).json()["lease"]
        assert (await new.put(f"/v1/leases/rotation/{lease}", json={"ttl": 60})).status_code == 200
        assert (await new.delete(f"/v1/leases/rotation/{lease}")).is_success
        sent = {"Fencing-Token": "1", "Idempotency-Key": '"one"'}
        first, again = [await client.post("/v1/tables/orders", json={"id": 77}, headers=sent) for client in (old, new)]
    assert (first.status_code, again.status_code) == (201, 201)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    upload = (await call(s3(stage, "AKIAOLD").create_multipart_upload, Key="parts"))["UploadId"]
    part = await call(s3(stage, "AKIANEW").upload_part, Key="parts", UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
    await call(s3(stage, "AKIANEW").complete_multipart_upload, Key="parts", UploadId=upload, MultipartUpload=parts)
    assert stage.body("parts") == b"x"


async def test_the_latest_use_counts_over_all_gateways(dsn: str) -> None:
    """Each stores its own uses, at the latest when it ends, and a late one changes nothing."""
    settings = config(dsn, callers=[WORKER])
    async with running(settings) as one, running(settings) as other:
        for origin, key in ((one, OLD), (other, NEW)):
            async with httpx.AsyncClient(base_url=origin, headers={"apikey": key}) as client:
                assert (await client.get("/v1/metrics")).status_code == 200
    found = await stored(dsn)
    assert set(found) == set(SHOWN.values())
    database = Database(dsn)
    await store.note(database, [("worker", "api", SHOWN[OLD], 3600.0)])
    assert await stored(dsn) == found
    await store.note(database, [("worker", "api", SHOWN[OLD], 0.0)])
    assert (await stored(dsn))[SHOWN[OLD]] > found[SHOWN[OLD]]
    await database.close()


async def test_a_use_during_an_outage_is_stored_with_its_own_time(
    postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = KeyUse("worker", KeyKind.S3, b"AKIAOLD")
    uses, away = KeyUses([use, KeyUse("worker", KeyKind.S3, b"AKIANEW")]), Database("postgresql://x@127.0.0.1:1/none")
    use.note()
    assert use.last is not None
    use.last -= 600
    with pytest.raises(GatewayError):
        await uses.flush(away)
    async with fresh_database(postgres_server) as dsn:
        database = Database(dsn)
        await uses.flush(database)
        (found,) = await store.read(database)
        ago = await database.now() - found.last_used
        assert timedelta(minutes=10) <= ago < timedelta(minutes=10, seconds=PATIENCE)
        # A use that the database has is not stored again.
        await uses.flush(away)
        await database.close()


async def test_a_fingerprint_is_the_same_everywhere() -> None:
    """Two callers with the same key have other fingerprints, so one list of guesses does not serve for all."""
    digest = digest_of(b"key")
    assert fingerprint("a", digest) == "f4ab0825"
    assert fingerprint("b", digest) != fingerprint("a", digest)
