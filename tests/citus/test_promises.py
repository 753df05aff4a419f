"""A node of a Citus cluster does what a PostgreSQL without Citus does: each promise once more, and the same answers.

The promises are shown by the tests that show them elsewhere. The answers are those for rows, objects and locks, errors
included.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from gateway.db import leases, migrations, rights
from gateway.db.database import Database
from gateway.fencing.lease import LockRequest
from tests import ROOT
from tests.citus.cluster import ROLE, Cluster, Node, execute, session
from tests.crash.clients import Answer, Client
from tests.doubles.s3 import S3Double, serve
from tests.postgres import GATEWAY, as_gateway, install, memory_or_disk
from tests.processes import free_port
from tests.running import API_KEY, OPEN, config, running
from tests.tables.test_differential import HEADERS, Asked, history

PROMISES = (
    # A table write below the fence is not applied, and fence and row are one transaction.
    "crash/test_table_steps.py::test_paused[raising-update-of-one-at-tables.claim.after-by_barrier]",
    "crash/test_table_steps.py::test_killed[insert-of-two-at-tables.commit.after]",
    "tables/test_refusals.py::test_a_failed_write_takes_its_raise_back",
    # After an acknowledged barrier, nothing older takes effect. A refusal has no effect, and a success is durable.
    "crash/test_object_steps.py::test_paused[overwrite-at-objects.begin.after-by_barrier]",
    "crash/test_object_steps.py::test_paused[delete-at-objects.begin.before-by_barrier]",
    "crash/test_object_steps.py::test_killed[create-at-objects.begin.after]",
    # A stale write is on record before its refusal, and a changed record is found.
    "crash/test_refusals.py::test_on_record_before_it_is_answered[stale-put-at-objects.begin.after-kill]",
    "record/test_chain.py::test_an_entry_that_is_gone_is_found",
    "record/test_sealing.py::TestInTheBackground::test_every_gateway_seals_and_says_so",
    # One holder, growing tokens, queues, barriers of locks.
    "leases/test_acquire.py::test_one_holder_at_a_time_with_growing_tokens",
    "leases/test_leases_waiting.py::test_first_come_first_served",
    "leases/test_leases_barrier.py::test_nothing_older_takes_effect_any_more",
)


@pytest.mark.parametrize("kind", ["worker", pytest.param("coordinator", marks=pytest.mark.citus)])
def test_each_promise_once(cluster: Cluster, kind: str) -> None:
    node = cluster.coordinator if kind == "coordinator" else cluster.workers[0]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not thorough and not installed", "-p", "no:cacheprovider"]
        + [f"tests/{name}" for name in PROMISES],
        cwd=ROOT,
        env={**os.environ, **cluster.suites(node), "PYTEST_XDIST_WORKER": "gw99"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


async def test_each_node_has_fences_and_locks_of_its_own(cluster: Cluster, name: str) -> None:
    """A migration of one node leaves nothing on the others, and works on a worker as on the coordinator."""
    await asyncio.to_thread(install, cluster.coordinator.dsn(name))
    for worker in cluster.workers:
        await asyncio.to_thread(migrations.upgrade, worker.dsn(name))
        await execute(worker.dsn(name), ROLE)
        await rights.grant(worker.dsn(name), GATEWAY)
    for number, node in enumerate(cluster.nodes):
        database = Database(as_gateway(node.dsn(name)))
        try:
            for expected in range(1, 4 + number):
                answer = await leases.acquire_alone(database, LockRequest("job/1", "ann", "tester", 30.0), None)
                assert answer.lease is not None
                assert answer.lease.token.value == expected
                await leases.release_alone(database, "job/1", answer.lease.id, "tester")
        finally:
            await database.close()


LENGTH = 250
TABLE = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL DEFAULT 0, note text)"
ALONE = "citus.enable_ddl_propagation = off"
JOBS = ("job/1", "job/2")
_CHANGING = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\d{4}-\d\d-\d\dT[0-9:.+Z]+"), "MOMENT"),
    (re.compile(r'"(\w+_in|retry_after|wait)":\s?[0-9.]+'), r'"\1":SECONDS'),
    (re.compile(r"(RequestId|HostId)>[^<]*<"), r"\1><"),
    (re.compile(r"for another [0-9.]+ s"), "for a while"),
)


@pytest.fixture(scope="module")
def plain(cluster: Cluster) -> Iterator[Node]:
    """A server of the same release that has not loaded Citus."""
    with tempfile.TemporaryDirectory(prefix="plain", dir=memory_or_disk()) as directory:
        Path(directory).chmod(0o777)
        node = Node(Path(directory) / "n", free_port(), cluster.coordinator.programs)
        node.create(citus=False)
        node.start()
        yield node
        node.kill()


class Lane:
    """The same calls, one after the other, through a gateway of one database."""

    def __init__(self, origin: str, seed: int) -> None:
        self._random = Random(seed)
        self._rows = iter([asked for account in history(seed) for asked in account])
        self._port = int(origin.rpartition(":")[2])
        headers = {"Authorization": f"Bearer {API_KEY}"}
        self._http = httpx.AsyncClient(base_url=origin, headers=headers, timeout=60)
        self._leases: list[str] = ["00000000-0000-0000-0000-000000000000"]

    async def play(self) -> list[object]:
        """Return all answers."""
        kinds = {self._row: 4, self._object: 4, self._lock: 4, self._fence: 1}
        answers: list[object] = []
        for _ in range(LENGTH):
            (act,) = self._random.choices(list(kinds), list(kinds.values()))
            answers.append(await act())
        await self._http.aclose()
        return answers

    async def _row(self) -> object:
        asked = next(self._rows, Asked("GET", "/accounts?order=id", None, {}))
        account = str(self._random.randint(1, 3))
        headers = {name: value.replace("#", account) for name, value in asked.headers.items()}
        content = None if asked.body is None else asked.body.replace("#", account).encode()
        return await self._ask(
            asked.method, f"/v1/tables{asked.target.replace('#', account)}", content, "application/json", headers
        )

    async def _object(self) -> object:
        chance = self._random
        tokens: list[int | str] = [4, 5, 5, 6, 7, "x"]
        token = chance.choice(tokens)
        client, key = Client(self._port, token), chance.choice(["a", "b"])
        body = chance.choice([b"", b"one", b"two" * 5000])
        what = chance.choice(["put", "put", "get", "delete", "copy", "tag", "version", "many"])
        tried: dict[str, Any] = {
            "put": (client.put, key, body),
            "get": (client.read, key),
            "delete": (client.delete, key),
            "copy": (client.copy, "a", key),
            "tag": (client.tag, key, "t"),
            "version": (client.delete_version, key, "null"),
            "many": (client.delete_many, "a", "b"),
        }
        answer: Answer = await asyncio.to_thread(*tried[what])
        return what, key, answer.status, answer.code, _alike(answer.body.decode())

    async def _lock(self) -> object:
        chance, job = self._random, self._random.choice(JOBS)
        lease, holder = chance.choice(self._leases[-2:]), chance.choice(["ann", "bob"])
        wish = {
            "holder": holder,
            "ttl": chance.choice([600, 600, 600, -1]),
            "mode": chance.choice(["exclusive", "shared"]),
        }
        wish |= {"barrier": chance.random() < 0.3}
        method, target, document = chance.choice(
            [
                ("POST", f"/v1/leases/{job}", wish),
                ("POST", f"/v1/leases/{job}", wish),
                ("PUT", f"/v1/leases/{job}/{lease}", {"ttl": 600}),
                ("PUT", "/v1/leases", {"leases": [{"resource": job, "lease": lease}]}),
                ("DELETE", f"/v1/leases/{job}/{lease}", None),
                ("DELETE", f"/v1/leases/{job}/{self._leases[-1]}", None),
                ("DELETE", f"/v1/leases/{job}", {"reason": "a test"}),
                ("GET", f"/v1/leases/{job}", None),
                ("GET", "/v1/leases?prefix=job", None),
            ]
        )
        content = None if document is None else json.dumps(document).encode()
        return await self._ask(method, target, content, "application/json", {})

    async def _fence(self) -> object:
        name = self._random.choice([*JOBS, "public.accounts/1", "s3/bucket/a", "a b"])
        token = self._random.choice(["4", "5", "6", "0", "x"])
        answers = [await self._ask("POST", f"/v1/fences/{name}/barrier", json.dumps({"token": token}).encode())]
        answers.append(await self._ask("GET", f"/v1/fences/{name}"))
        return answers

    async def _ask(
        self,
        method: str,
        target: str,
        content: bytes | None = None,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> object:
        answer = await self._http.request(
            method, target, content=content, headers={"content-type": kind, **(headers or {})}
        )
        if method == "POST" and answer.status_code in (200, 201) and "/leases/" in target:
            self._leases.append(answer.json()["lease"])
        seen = {name: _alike(answer.headers[name]) for name in HEADERS if name in answer.headers}
        return method, target.partition("/leases/")[0], answer.status_code, _alike(answer.text), seen


def _alike(text: str) -> str:
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return text


@asynccontextmanager
async def _served(dsn: str) -> Any:
    async with AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(serve(S3Double(buckets=["bucket"])))
        yield await stack.enter_async_context(running(config(dsn, endpoint, grants=OPEN)))


async def _left(dsn: str) -> list[list[tuple[Any, ...]]]:
    """Return the rows, the fences and the refusals that the calls have left."""
    async with session(dsn) as opened:
        return [
            [tuple(row) for row in await opened.fetch(sql)]
            for sql in (
                "SELECT * FROM accounts ORDER BY id",
                "SELECT resource, epoch, value, holder FROM fencing.fence ORDER BY resource",
                "SELECT kind, resource, value, holder FROM fencing.event WHERE resource <> '' ORDER BY 1, 2, 3, 4",
                "SELECT resource, reason, value, holder, fence_value FROM fencing.rejection ORDER BY 1, 2, 3, 4, 5",
            )
        ]


@pytest.mark.citus
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_node_answers_as_a_server_without_citus(cluster: Cluster, plain: Node, name: str, seed: int) -> None:
    dsns = [cluster.coordinator.dsn(name), cluster.workers[0].dsn(name), plain.dsn(name)]
    await execute(plain.dsn(), f"CREATE DATABASE {name}")
    for dsn in dsns:
        # On a worker Citus refuses much of what an operator makes, unless this is off.
        await execute(dsn, f"SET {ALONE}; ALTER DATABASE {name} SET {ALONE}")
        await asyncio.to_thread(install, dsn)
        await execute(dsn, TABLE)
    answers, left = [], []
    for dsn in dsns:
        async with _served(dsn) as origin:
            answers.append(await Lane(origin, seed).play())
        left.append(await _left(dsn))
    assert len({str(answer) for answer in answers[2]}) > LENGTH / 4, "the answers say little"
    for node in (0, 1):
        for one, other in zip(answers[node], answers[2], strict=True):
            assert one == other
        assert left[node] == left[2]
