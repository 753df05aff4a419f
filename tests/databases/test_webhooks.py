"""Webhooks and alarms run for each database: one that is down holds up none of the others' messages."""

import pytest

from tests.databases.fleet import SOON, fleet
from tests.postgres import Server
from tests.record.receiver import SECRET, receiving
from tests.waiting import PATIENCE


@pytest.mark.thorough
async def test_each_database_is_told_of_by_itself(postgres_server: Server) -> None:
    async with receiving() as receiver:
        webhook = {"name": "ops", "url": receiver.url, "secret": SECRET}
        alarm = {"name": "zombies", "webhooks": ["ops"], "more_than": 1, "minutes": 60}
        async with (
            fleet(postgres_server, gives_up=SOON, webhooks=[webhook], alarms=[alarm]) as gateway,
            gateway.api() as api,
        ):

            async def refuse(schema: str, times: int) -> None:
                lock = f"{schema}.orders/1"
                assert (await api.post(f"/v1/fences/{lock}/barrier", json={"token": "9"})).status_code == 200
                for _ in range(times):
                    headers = {"Fencing-Token": "8", "Content-Profile": schema}
                    late = await api.patch("/v1/tables/orders?id=eq.1", json={"status": "x"}, headers=headers)
                    assert late.status_code == 412

            def told() -> list[str]:
                return [one["resource"] for one in receiver.entries() if one["kind"] == "rejection"]

            def alarms() -> int:
                return sum(one.type != "fencing.entries" for one in receiver.taken)

            # One refusal in each: an alarm counts the entries of its own database only.
            await refuse("north", 1)
            await refuse("south", 1)
            await receiver.until(lambda: len(told()) == 2)
            assert sorted(told()) == ["north.orders/1", "south.orders/1"]
            assert alarms() == 0
            gateway.lines["south"].pause()
            await refuse("north", 1)
            await receiver.until(lambda: len(told()) == 3 and alarms() == 1)
            gateway.lines["south"].resume()
            async with gateway.api() as later:
                for database in ("north", "south"):
                    shown = await later.get(f"/v1/webhooks?database={database}", timeout=PATIENCE)
                    assert shown.json()["webhooks"][0]["name"] == "ops"
