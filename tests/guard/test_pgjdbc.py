"""pgJDBC, and with it Spark: its sessions show a token by ``fencing.hold``, or by settings of their connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.clients.commands import Shell
from tests.clients.conversation import Conversation, conversation
from tests.clients.java import DIRECTORY, command
from tests.guard.stage import Session, Stage, hold
from tests.postgres_relay import relay

pytestmark = pytest.mark.installed

SENT = ["UPDATE shipments SET state = 'sent' WHERE order_id = 5"]
HOLD = ["SELECT fencing.hold('order/5', '34', 'ann')"]
ROWS = ["INSERT INTO shipments VALUES (?, ?, ?)", [9, 5, "new"], [10, 5, "new"]]
SETTINGS = {"options": "-c fencing.resource=order/5 -c fencing.token=34"}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    with conversation(command(DIRECTORY / "Tables.java"), Shell(tmp_path_factory.mktemp("java"), {})) as one:
        yield one


@dataclass(frozen=True)
class Driver:
    """Writes as the role beside the gateway."""

    java: Conversation
    address: str
    user: str

    async def write(self, *statements: list[Any], **properties: str) -> dict[str, Any]:
        """One transaction on a connection of its own."""
        known = {"user": self.user, "sslmode": "disable", "reWriteBatchedInserts": "true", **properties}
        asked = {"url": self.address, "properties": known, "statements": statements}
        answer: dict[str, Any] = await asyncio.to_thread(lambda: self.java.ask(**asked))
        return answer


@pytest.fixture
async def driver(guarded: Stage, java: Conversation) -> AsyncIterator[Driver]:
    async with relay(guarded.app) as network:
        named = conninfo_to_dict(network.url)
        yield Driver(java, f"jdbc:postgresql://127.0.0.1:{named['port']}/{named['dbname']}", guarded.app_role)


async def sent(stage: Stage) -> int:
    return len(await stage.rows("SELECT FROM shipments WHERE state = 'sent'"))


async def test_it_holds_and_then_writes(guarded: Stage, driver: Driver, app: Session) -> None:
    assert (await driver.write(SENT))["state"] == "FN428"
    done = await driver.write(HOLD, SENT, ROWS)
    assert (done["state"], done["rows"][:2]) == ("", [-1, 2])
    await hold(app, "order/5", 35, "bob")
    refused = await driver.write(HOLD, SENT)
    assert refused["state"] == "FN412"
    facts = json.loads(refused["detail"])
    assert (facts["code"], facts["token"], facts["raised_by"]) == ("token-stale", "34", "bob")
    assert await sent(guarded) == 2


async def test_its_connection_has_the_token(guarded: Stage, driver: Driver, app: Session) -> None:
    """No statement shows the token, so programs that know nothing of it are fenced."""
    assert (await driver.write(SENT, **SETTINGS))["state"] == "FN428", "nothing has claimed it"
    await hold(app, "order/5", 34, "ann")
    assert (await driver.write(SENT, ROWS, **SETTINGS))["state"] == ""
    assert await sent(guarded) == 2
    url = f"{driver.address}?options=-c%20fencing.resource=order/5%20-c%20fencing.token=34"
    assert (await replace(driver, address=url).write(SENT))["state"] == "", "in the address, as Spark takes it"
    another = await driver.write(["UPDATE shipments SET state = 'sent' WHERE order_id = 6"], **SETTINGS)
    assert another["state"] == "FN422"
    await hold(app, "order/5", 35, "bob")
    for statements in ([SENT], [["INSERT INTO shipments VALUES (?, ?, ?)", [11, 5, "new"], [12, 5, "new"]]]):
        refused = await driver.write(*statements, **SETTINGS)
        assert (refused["state"], json.loads(refused["detail"])["code"]) == ("FN412", "token-stale")
    assert await guarded.rows("SELECT id FROM shipments WHERE order_id = 5 ORDER BY id") == [(1,), (2,), (9,), (10,)]
