"""How long a dead holder blocks the next one, measured on each store: the table of docs/operations.md."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.intent import DEAD_AFTER
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, DoubleProcess
from tests.objects.clients import call, opened
from tests.running import API_KEY
from tests.stores.conftest import KINDS
from tests.stores.fenced import Fenced, fenced
from tests.stores.store import Store, StoreMissing, User

Matches: TypeAlias = Callable[[str, str], bool]
"""Of the method and the target of a request."""


class Relay:
    """Passes requests on as they are. The requests that ``losing`` names break their connection instead."""

    def __init__(self, store: str) -> None:
        self.losing: list[Matches] = []
        self.origin = ""
        self._store = urlsplit(store)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, onward = await asyncio.open_connection(self._store.hostname, self._store.port)
        answering = asyncio.create_task(_pass(answers, writer))
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._request(reader, onward):
                    pass
        finally:
            answering.cancel()
            for one in (onward, writer):
                one.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, onward: asyncio.StreamWriter) -> bool:
        """Pass one request on. False: it is lost."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        named = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        if any(matches(method, target) for matches in self.losing):
            return False
        onward.write(head)
        left = int(named.get("content-length", "0"))
        while left:
            some = await reader.read(min(left, 65536))
            if not some:
                return False
            left -= len(some)
            onward.write(some)
            await onward.drain()
        return True


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def relayed(store: str) -> AsyncIterator[Relay]:
    """A path to the store, at ``origin``."""
    relay = Relay(store)
    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    relay.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield relay
    server.close()


AT_ONCE = 15.0
"""Seconds that a takeover may take where it waits for nothing, on a busy machine."""
MOST = 120.0
"""The longest time that a holder may wait, in seconds."""
LARGE = b"a large body" * 800_000

STORES = [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in ("ceph", "minio", "versitygw", "double")]


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Each kind of store, and the double."""
    with ExitStack() as stack:
        try:
            if request.param == "double":
                double = stack.enter_context(DoubleProcess.start())
                yield Store("double", double.endpoint, User("owner", ACCESS_KEY, SECRET_KEY))
            else:
                yield stack.enter_context(KINDS[request.param]())
        except StoreMissing as missing:
            pytest.skip(str(missing))


@dataclass(frozen=True, slots=True)
class Scene:
    """A key, and the path to the store on which its mutations may get lost."""

    fenced: Fenced
    relay: Relay
    key: str

    @property
    def place(self) -> dict[str, str]:
        return {"Bucket": self.fenced.bucket, "Key": self.key}

    def s3(self, token: int) -> S3Client:
        return self.fenced.through(str(token))

    async def put(self, token: int, body: bytes) -> None:
        await call(self.s3(token).put_object, **self.place, Body=body)

    async def lose(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do what sends a mutation of the key, which never arrives. Its sender learns nothing."""
        self.relay.losing.append(self._mutates)
        with suppress(ClientError, BotoCoreError):
            await work()
            pytest.fail("the mutation was not lost")
        self.relay.losing.remove(self._mutates)

    def _mutates(self, method: str, target: str) -> bool:
        path, _, query = target.partition("?")
        if path.rpartition("/")[2] != self.key:
            return False
        match method:
            case "PUT":
                return "partNumber=" not in query
            case "POST":
                return query.startswith("uploadId=")
            case _:
                return method == "DELETE" and "uploadId=" not in query

    async def taken_over(self, token: int) -> float:
        """Return how many seconds a new holder waits for its barrier. It sends it again as the answers say."""
        started = time.monotonic()
        path = f"/v1/fences/s3/{self.fenced.bucket}/{self.key}/barrier"
        async with httpx.AsyncClient(base_url=self.fenced.origin, timeout=60) as api:
            while True:
                answer = await api.post(
                    path, json={"token": str(token)}, headers={"Authorization": f"Bearer {API_KEY}"}
                )
                waited = time.monotonic() - started
                if answer.status_code == 200:
                    return waited
                assert waited < MOST, answer.text
                assert answer.status_code == 503, answer.text
                document = answer.json()
                assert self.key in document["blocked_by"], document
                left = (datetime.fromisoformat(document["clears_at"]) - datetime.now(UTC)).total_seconds()
                assert left <= DEAD_AFTER.total_seconds() + 2, document
                assert abs(int(answer.headers["retry-after"]) - left) < 5, document
                await asyncio.sleep(min(max(left, 0.2), 1))


Lose: TypeAlias = Callable[[Scene], Awaitable[float]]


def after_a_put(work: Callable[[Scene], Awaitable[object]]) -> Lose:
    """Lose what this sends for a key that has an object. Return the wait of the next holder."""

    async def lost(scene: Scene) -> float:
        await scene.put(33, b"X")
        await scene.lose(lambda: work(scene))
        return await scene.taken_over(34)

    return lost


async def a_create(scene: Scene) -> float:
    await scene.lose(lambda: scene.put(33, b"Y"))
    return await scene.taken_over(34)


async def a_copy(scene: Scene) -> None:
    source = f"{scene.key}-source"
    await call(scene.s3(33).put_object, Bucket=scene.fenced.bucket, Key=source, Body=b"Y")
    await call(scene.s3(33).copy_object, **scene.place, CopySource={"Bucket": scene.fenced.bucket, "Key": source})


async def a_completion(scene: Scene) -> None:
    s3 = scene.s3(33)
    await call(s3.complete_multipart_upload, **await opened(s3, scene.key, [b"Y"], scene.fenced.bucket))


async def both_forms(scene: Scene) -> float:
    """Holders in a row lose a write of the same bytes, which have two forms. Return the longest wait of one."""
    await scene.put(33, b"X")
    longest = 0.0
    for token in range(33, 37):
        await scene.lose(lambda token=token: scene.put(token, b"Y"))  # type: ignore[misc]
        longest = max(longest, await scene.taken_over(token + 1))
        if longest > AT_ONCE:
            break  # the wait itself frees the forms
        await scene.put(token + 1, b"X")
    return longest


TAGS = {"TagSet": [{"Key": "a", "Value": "b"}]}
LOST: dict[str, Lose] = {
    "create": a_create,
    "put": after_a_put(lambda scene: scene.put(33, b"Y")),
    "large put": after_a_put(lambda scene: scene.put(33, LARGE)),
    "copy": after_a_put(a_copy),
    "completion": after_a_put(a_completion),
    "delete": after_a_put(lambda scene: call(scene.s3(33).delete_object, **scene.place)),
    "tags": after_a_put(lambda scene: call(scene.s3(33).put_object_tagging, **scene.place, Tagging=TAGS)),
    "the same bytes, four holders in a row": both_forms,
}
# By store, the lost writes that a new holder waits for, until they cannot take effect. It waits for no others.
SMALL = {"put", "copy", "delete", "the same bytes, four holders in a row"}
WAITS = {"double": {"tags"}, "minio": {"tags"}, "versitygw": {"tags"}, "ceph": {"tags", *SMALL}}


async def test_no_holder_waits_longer_than_the_table_says(postgres_server: EmbeddedPostgres, store: Store) -> None:
    async with relayed(store.endpoint) as relay, fenced(postgres_server, replace(store, endpoint=relay.origin)) as one:
        await call(one.through("1").put_object, Bucket=one.bucket, Key="warm", Body=b"the probe comes before it")
        scenes = [Scene(one, relay, name.replace(" ", "-").replace(",", "")) for name in LOST]
        times = await asyncio.gather(*(lose(scene) for lose, scene in zip(LOST.values(), scenes, strict=True)))
    measured = {name: round(seconds, 1) for name, seconds in zip(LOST, times, strict=True)}
    print(f"seconds until a new holder is acknowledged, {store.name}: {json.dumps(measured)}")
    assert all(seconds <= MOST for seconds in measured.values()), measured
    assert {name for name, seconds in measured.items() if seconds > AT_ONCE} == WAITS[store.name], measured
