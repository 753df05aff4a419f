"""Trailers never become headers: a request means what its head said when the head was complete."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.auth.callers import Callers
from gateway.config.access import CallerKeys
from gateway.db.database import Database
from gateway.fencing.resource import Template
from gateway.observe.events import Event
from gateway.tables.naming.plan import Rule
from gateway.tables.pipeline import Exposure, TablePlane
from tests.running import GRANT_RULES
from tests.serving_app import served
from tests.tables.asking import change, rows

pytestmark = pytest.mark.thorough

OTHER = """
CREATE SCHEMA other;
CREATE TABLE other.shipments (id bigint PRIMARY KEY, order_id bigint, state text DEFAULT 'new');
INSERT INTO other.shipments VALUES (1, 7, 'new');
"""
KEY = "a-key-that-is-long-enough"
PROVEN = {"Authorization": f"Bearer {KEY}"}
TARGET = "/v1/tables/shipments?order_id=eq.7"


@pytest.fixture
async def port(tables: Database, events: list[Event]) -> AsyncIterator[int]:
    """Serve a plane with two schemas and one caller behind the gateway's own connection class."""
    await change(tables, OTHER)
    keys = Callers([CallerKeys.model_validate({"name": "honest", "api_key": KEY})], GRANT_RULES)
    rules = {f"{schema}.shipments": Rule(Template.parse("order/{order_id}")) for schema in ("public", "other")}
    exposure = Exposure(schemas=("public", "other"), rules=rules, tx_override=True)
    plane = TablePlane(tables, exposure, authenticate=lambda head: keys.by_bearer(head.headers), observe=events.append)
    async with served(plane) as port:
        yield port


async def patch_with_trailers(
    port: int, headers: dict[str, str], trailers: dict[str, str], *, state: str = "early", pause: float = 0.05
) -> int:
    """Send a chunked PATCH whose last chunk follows ``pause`` seconds later with ``trailers``; return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = f'{{"state": "{state}"}}'.encode()
    head = {"Host": "gateway", "Transfer-Encoding": "chunked", "Content-Type": "application/json", **headers}
    writer.write(f"PATCH {TARGET} HTTP/1.1\r\n{_lines(head)}\r\n{len(body):x}\r\n".encode() + body + b"\r\n")
    if pause:
        await asyncio.sleep(pause)
    writer.write(f"0\r\n{_lines(trailers)}\r\n".encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


def _lines(fields: dict[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items())


async def states(tables: Database, schema: str) -> set[str]:
    return {state for (state,) in await rows(tables, f"SELECT state FROM {schema}.shipments WHERE order_id = 7")}


@pytest.mark.parametrize("pause", [0.0, 0.05], ids=["one packet", "two packets"])
@pytest.mark.parametrize(
    ("meaning", "status", "written"),
    [
        ({"Content-Profile": "other"}, 204, {"public": {"early"}, "other": {"late"}}),
        ({"Prefer": "handling=strict, max-affected=1"}, 400, {"public": {"early"}, "other": {"new"}}),
        ({"Accept": "application/vnd.pgrst.object+json"}, 406, {"public": {"early"}, "other": {"new"}}),
        ({"Prefer": "tx=rollback"}, 204, {"public": {"early"}, "other": {"new"}}),
    ],
    ids=["schema", "max-affected", "one row", "dry run"],
)
async def test_trailers_teach_the_gateway_nothing_about_headers(
    port: int, tables: Database, meaning: dict[str, str], status: int, written: dict[str, set[str]], pause: float
) -> None:
    # The same form as that of the honest client, which accepts anything unless it says what it wants.
    headers = {**PROVEN, "Fencing-Token": "5", **({} if "Accept" in meaning else {"Accept": "*/*"})}
    for _ in range(3):
        assert await patch_with_trailers(port, headers, meaning, pause=pause) == 204
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            headers = {**PROVEN, "Fencing-Token": "5", **meaning}
            answer = await client.patch(TARGET, json={"state": "late"}, headers=headers)
            assert answer.status_code == status, answer.text
    assert {schema: await states(tables, schema) for schema in written} == written


@pytest.mark.parametrize("pause", [0.0, 0.05], ids=["one packet", "two packets"])
@pytest.mark.parametrize(
    ("headers", "trailers", "status"),
    [
        ({"Fencing-Token": "5"}, PROVEN, 401),
        ({"Fencing-Token": "5"}, {"apikey": KEY}, 401),
        (PROVEN, {"Fencing-Token": "5"}, 428),
    ],
    ids=["authorization", "apikey", "token"],
)
async def test_trailers_prove_nothing(
    port: int, tables: Database, headers: dict[str, str], trailers: dict[str, str], status: int, pause: float
) -> None:
    assert await patch_with_trailers(port, headers, trailers, pause=pause) == status
    assert await states(tables, "public") == {"new"}
