"""The gateway and writers beside it, on one guarded table: one fence for both."""

from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.observe.events import StepReached
from tests.guard.stage import RULES, Session, Stage, hold, refused
from tests.running import API_KEY, Events, running
from tests.waiting import PATIENCE

SENT = "UPDATE shipments SET state = 'sent' WHERE order_id = 5"


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def gateway(guarded: Stage, events: Events) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running(guarded.config(), events) as origin,
        calling(origin) as client,
    ):
        yield client


def calling(origin: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=origin, headers={"authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE)


async def patch(gateway: httpx.AsyncClient, token: int, state: str = "by the gateway") -> httpx.Response:
    target = "/v1/tables/shipments?order_id=eq.5"
    return await gateway.patch(target, headers={"fencing-token": str(token)}, json={"state": state})


async def test_each_side_is_fenced_by_the_other(guarded: Stage, gateway: httpx.AsyncClient, app: Session) -> None:
    assert (await patch(gateway, 34)).status_code == 204
    async with refused("FN412", "overtaken by 34, raised by writer"):
        await hold(app, "order/5", 33)
    async with app.transaction():
        await hold(app, "order/5", 35)
        assert await app.execute(SENT) == "UPDATE 2"
    late = await patch(gateway, 34)
    assert (late.status_code, late.json()["code"]) == (412, "token-stale")
    assert await guarded.rows("SELECT DISTINCT state FROM shipments WHERE order_id = 5") == [("sent",)]
    (record,) = await guarded.rows("SELECT fence_value, fence_caller FROM fencing.rejection")
    assert record == (35, f"role:{guarded.app_role}")


async def test_a_barrier_ends_the_writes_of_older_holders(
    guarded: Stage, gateway: httpx.AsyncClient, app: Session
) -> None:
    await hold(app, "order/5", 34)
    assert (await gateway.post("/v1/fences/order/5/barrier", json={"token": "35"})).status_code == 200
    async with refused("FN412"), app.transaction():
        await app.execute("SET LOCAL fencing.resource = 'order/5'; SET LOCAL fencing.token = '34'")
        await app.execute(SENT)
    async with app.transaction():
        await app.execute("SET LOCAL fencing.resource = 'order/5'; SET LOCAL fencing.token = '35'")
        assert await app.execute(SENT) == "UPDATE 2"


async def test_the_gateway_keeps_its_fast_path(gateway: httpx.AsyncClient, events: Events) -> None:
    await patch(gateway, 34)
    events.clear()
    assert (await patch(gateway, 34)).status_code == 204
    steps = [event.name for event in events if isinstance(event, StepReached)]
    assert steps == ["tables.fast.before", "tables.fast.after"]


async def test_a_gateway_of_another_role_is_refused_and_not_let_through(guarded: Stage) -> None:
    await guarded.execute(f"""
        GRANT ALL ON ALL TABLES IN SCHEMA fencing TO {guarded.app_role};
        GRANT USAGE ON SCHEMA fencing TO {guarded.app_role};
    """)
    misled = guarded.config(postgres={"dsn": guarded.app}, tables=RULES)
    async with (
        running(misled) as origin,
        calling(origin) as client,
    ):
        answer = await patch(client, 34)
    assert (answer.status_code, answer.json()["code"]) == (400, "FN428")
    assert await guarded.rows("SELECT FROM shipments WHERE state <> 'new'") == []
