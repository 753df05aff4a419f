"""A gateway under a load that is a little of everything, and how it is scraped."""

from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias
from uuid import uuid4

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.policy import MAX_JUMP
from gateway.observe.events import Observe
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage
from tests.patience import patient_trips
from tests.postgres import fresh_database
from tests.running import Events, config, running

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint);
INSERT INTO accounts SELECT number, 0 FROM generate_series(1, 100) AS number;
CREATE TABLE watched (id bigint PRIMARY KEY, v int);
INSERT INTO watched VALUES (1, 1);
"""
RULES: Mapping[str, Any] = {
    "tables": [{"name": "public.accounts"}, {"name": "public.watched", "mode": "observe"}],
    "objects": [{"match": "bucket/reports/**"}],
    "webhooks": [{"name": "pager", "url": "http://127.0.0.1:9/", "secret": "whsec_" + b64encode(b"s" * 32).decode()}],
    "alarms": [{"name": "storm", "more_than": 1000, "minutes": 1}],
}

Samples: TypeAlias = dict[str, dict[frozenset[tuple[str, str]], float]]


@asynccontextmanager
async def scene(server: EmbeddedPostgres, observe: Observe | None = None, **sections: Any) -> AsyncIterator[Stage]:
    """A stage with two tables, one of which is only observed, and a rule for objects.

    Which way a write goes is told and counted. A shared trip that takes too long, on a busy machine, makes it another.
    """
    double, events = S3Double(buckets=["bucket"]), Events()
    async with fresh_database(server) as dsn, serve(double) as endpoint:
        settings = config(dsn, endpoint, **{**RULES, **sections})
        stage = Stage("", endpoint, double, events, dsn)
        for statement in TABLES.split(";"):
            await stage.rows(statement)
        with patient_trips():
            async with running(settings, observe or events) as origin:
                yield replace(stage, origin=origin)


async def patch(api: httpx.AsyncClient, key: int, token: int, table: str = "accounts", **headers: str) -> int:
    """Write one row; the status."""
    column = "balance" if table == "accounts" else "v"
    answer = await api.patch(
        f"/v1/tables/{table}?id=eq.{key}", json={column: token}, headers={"Fencing-Token": str(token), **headers}
    )
    return answer.status_code


async def load(stage: Stage) -> None:
    """Writes by all ways, refusals, a takeover, reads, locks, and what ends in an error."""
    async with stage.api() as api:
        for key in range(1, 4):
            # In a transaction, which raises the fence; in one statement; by the recipe of the one before.
            assert [await patch(api, key, 5) for _ in range(3)] == [204, 204, 204]
        assert await patch(api, 1, 4) == 412
        assert await patch(api, 1, MAX_JUMP * 3) == 403
        assert await patch(api, 1, 4, "watched") == 204
        assert await patch(api, 1, 3, "watched") == 204
        assert (await api.get("/v1/tables/accounts?id=eq.1")).status_code == 200
        assert (await api.get("/v1/tables/accounts?id=eq.1")).status_code == 200
        assert (await api.patch("/v1/tables/accounts?id=eq.1", json={"balance": 1})).status_code == 428
        assert (await api.get("/v1/nothing")).status_code == 404
        assert await call(connect(stage.origin, "7").put_object, Key="reports/a", Body=b"x")
        assert (await outcome(connect(stage.origin, "6").put_object, Key="reports/a", Body=b"y"))[0] == 412
        assert (await stage.barrier("s3/bucket/reports/a", "8")).status_code == 200
        assert (await stage.barrier("s3/bucket/reports/a", "7")).status_code == 412
        lock = f"/v1/leases/job/{uuid4().hex}"
        lease = (await api.post(lock, json={"holder": "me", "ttl": 60})).json()
        assert (await api.post(lock, json={"holder": "you", "ttl": 60})).status_code == 409
        assert (await api.post(lock, json={"holder": "you", "ttl": 60, "wait": 0.1})).status_code == 409
        assert (await api.put(f"{lock}/{lease['lease']}", json={})).status_code == 200
        assert (await api.delete(f"{lock}/{lease['lease']}")).status_code == 204


async def scrape(stage: Stage) -> Samples:
    """Return the result of a scrape: samples by name and labels."""
    async with stage.api() as api:
        answer = await api.get("/v1/metrics")
    assert answer.status_code == 200, answer.text
    return samples(answer.text)


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    return sum(one for having, one in found.get(name, {}).items() if labels.items() <= dict(having).items())
