"""Locks of a database alone: jobs acquire, write and are overtaken with no gateway, and go on when one is added."""

import asyncio
import os
import re
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import httpx
import psycopg
import pytest
import sqlalchemy

from gateway import app as app_module
from gateway.client import FencedClient, LockLost, NotAcquired, Refused, Stale, Unavailable, blocking, postgres
from gateway.client.etcd import EtcdSource
from gateway.client.hold import Hold
from gateway.client.postgres import DatabaseLeases
from gateway.client.sqlalchemy import fenced
from gateway.db import rights
from gateway.demo.embedded import EmbeddedPostgres
from gateway.findings import CheckStatus
from gateway.guard import installation as guards
from tests import ROOT
from tests.guard.stage import Session, Stage, hold, refused, session
from tests.poolers import pgbouncer
from tests.postgres import Server
from tests.postgres_relay import Relay, relay
from tests.processes import called
from tests.releases import write_toml
from tests.running import API_KEY, running
from tests.tiers import first
from tests.waiting import PATIENCE, waiting

Write: TypeAlias = Callable[[str, Hold, str], Awaitable[None]]

SENT = "UPDATE shipments SET state = %s WHERE order_id = 5"


async def by_psycopg(dsn: str, lock: Hold, state: str) -> None:
    async with await psycopg.AsyncConnection.connect(lock.dsn(dsn)) as connection:
        await connection.execute(SENT.encode(), (state,))


async def by_asyncpg(dsn: str, lock: Hold, state: str) -> None:
    opened = await asyncpg.connect(dsn, server_settings=lock.postgres_settings())
    try:
        await opened.execute(SENT.replace("%s", "$1"), state)
    finally:
        await opened.close()


async def by_sqlalchemy(dsn: str, lock: Hold, state: str) -> None:
    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    engine = fenced(sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool))
    with engine.begin() as connection:
        connection.exec_driver_sql(SENT, (state,))


async def take_away(stage: Stage, resource: str = "order/5") -> None:
    """Break the lock without notice to its holder, as an operator does."""
    await stage.execute(
        "SELECT fencing.break_v1(resource, epoch, value, 'role:operator', 'a test') FROM fencing.lease"
        f" WHERE resource = '{resource}'"
    )


async def states(stage: Stage) -> set[str]:
    return {state for (state,) in await stage.rows("SELECT DISTINCT state FROM shipments WHERE order_id = 5")}


async def rejection(origin: str, resource: str) -> dict[str, Any]:
    """Return the entry of the only refusal, once a gateway has made it."""
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with httpx.AsyncClient(base_url=origin, headers=headers) as client, asyncio.timeout(PATIENCE):
        while True:
            found = (await client.get("/v1/rejections", params={"resource": resource})).json()["rejections"]
            if found:
                (entry,) = found
                return dict(entry)
            await asyncio.sleep(0.05)


class Zombie:
    """A task in the block of a lock: it writes once, and again when it wakes up."""

    def __init__(self, stage: Stage, write: Write) -> None:
        self.held = asyncio.Event()
        self.awake = asyncio.Event()
        self.token = self.holder = ""
        self._stage, self._write = stage, write

    async def run(self) -> None:
        async with (
            FencedClient(self._stage.app, holder="first") as client,
            client.lock("order/5", on_loss="tell") as lock,
        ):
            self.token, self.holder = lock.token, lock.holder
            await self._write(self._stage.app, lock, "first")
            self.held.set()
            await self.awake.wait()
            await self._write(self._stage.app, lock, "late")


@pytest.mark.parametrize("write", first([by_psycopg, by_asyncpg, by_sqlalchemy]), ids=lambda way: way.__name__)
async def test_a_zombie_is_refused_and_a_gateway_that_is_added_later_has_it_on_record(
    guarded: Stage, write: Write
) -> None:
    zombie = Zombie(guarded, write)
    running_job = asyncio.create_task(zombie.run())
    await asyncio.wait_for(zombie.held.wait(), PATIENCE)
    assert await states(guarded) == {"first"}
    await take_away(guarded)
    async with FencedClient(guarded.app) as client, client.lock("order/5") as lock:
        assert int(lock.token) > int(zombie.token)
        zombie.awake.set()
        with pytest.raises((psycopg.Error, asyncpg.PostgresError, Stale), match=f"overtaken by {lock.token}"):
            await running_job
        await write(guarded.app, lock, "second")
    assert await states(guarded) == {"second"}
    await rights.grant(guarded.owner, guarded.gateway_role)
    async with running(guarded.config()) as origin:
        entry = await rejection(origin, "order/5")
    assert (entry["reason"], entry["token"], entry["fence"]) == ("token-stale", zombie.token, lock.token)
    assert (entry["caller"], entry["holder"]) == (f"role:{guarded.app_role}", zombie.holder)


@pytest.fixture
async def origin(guarded: Stage) -> AsyncIterator[str]:
    """The gateway that was added to the database."""
    await rights.grant(guarded.owner, guarded.gateway_role)
    async with running(guarded.config()) as added:
        yield added


async def job(address: str, dsn: str, state: str) -> str:
    """Write under a lock, by the address that the environment has. Return the token."""
    async with FencedClient(address, api_key=API_KEY) as client, client.lock("order/5") as lock:
        await by_psycopg(dsn, lock, state)
        return lock.token


@pytest.mark.thorough
async def test_a_gateway_is_added_and_the_job_stays_as_it_is(guarded: Stage, origin: str) -> None:
    tokens = [
        int(await job(address, guarded.app, state))
        for address, state in ((guarded.app, "1"), (origin, "2"), (guarded.app, "3"), (origin, "4"))
    ]
    assert tokens == sorted(set(tokens))
    assert await states(guarded) == {"4"}
    kinds = "SELECT kind FROM fencing.record WHERE resource = 'order/5' AND kind LIKE 'lease%'"
    assert len(await guarded.rows(kinds)) == 8, "each lock and its release are on record"


PREPARATION = re.compile(r"^<!-- run: prepare -->\n```sh\npip [^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.thorough
async def test_the_owner_prepares_a_database_without_a_gateway(stage: Stage, tmp_path: Path) -> None:
    (code,) = PREPARATION.findall((ROOT / "docs/sdk.md").read_text())
    code = code.replace("postgresql://owner@localhost/shop", f"'{stage.owner}'").replace(
        "--grants app", "--grants $APP"
    )
    await stage.execute("UPDATE fencing.opening SET started = started - interval '1 second'")
    more = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "APP": stage.app_role}
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-euc", code], cwd=tmp_path, env=without_gateway(more), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("writes order/{order_id} without holding it is refused; no gateway is let through\n")
    assert "When you add a gateway, install the guard again" in done.stderr
    for dsn in (stage.app, stage.gateway, stage.owner):
        async with session(dsn) as opened, refused("FN428"):
            await opened.execute("UPDATE shipments SET state = 'late'")
    await job(stage.app, stage.app, "sent")
    assert await states(stage) == {"sent"}
    rules = str(tmp_path / "rules.toml")
    shown = await asyncio.to_thread(called, "guard", "show", "--dsn", stage.owner, "--config", rules)
    assert (shown.returncode, "rows are order/{order_id}; no gateway is let through" in shown.stdout) == (0, True)
    # A gateway that is added is told what to do, and then let through.
    (check, *_) = await guards.examine_guards(stage.config().default)
    assert "it lets no gateway through, and the gateway is" in check.detail
    await stage.install("shipments")
    (check, *_) = await guards.examine_guards(stage.config().default)
    assert check.status is CheckStatus.OK
    removed = await asyncio.to_thread(called, "guard", "remove", "shipments", "--dsn", stage.owner)
    assert removed.stdout == "shipments: the guard is removed\n"


async def test_an_owner_accepts_no_loss_without_a_configuration(stage: Stage, tmp_path: Path) -> None:
    configured = write_toml(tmp_path / "gateway.toml", {"postgres": {"dsn": stage.gateway}})
    for options, said in (
        (("--accept-loss",), "--accept-loss: needs the configuration"),
        (("--config", configured), "--dsn is for a database without a gateway"),
    ):
        wrong = await asyncio.to_thread(called, "open", "--dsn", stage.owner, *options)
        assert (wrong.returncode, said in wrong.stderr) == (2, True)
    # A gateway with a journal may have acknowledged what is lost. Only its configuration can tell.
    await stage.execute("UPDATE fencing.opening SET mode = 'async', started = started - interval '1 second'")
    weaker = await asyncio.to_thread(called, "open", "--dsn", stage.owner)
    assert weaker.returncode != 0
    assert "promises less" in weaker.stderr


SNIPPET = re.compile(r"^<!-- run: database -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.thorough
async def test_the_job_of_the_documentation_is_that_job(guarded: Stage, origin: str) -> None:
    (code,) = SNIPPET.findall((ROOT / "docs/sdk.md").read_text())
    code = code.replace("app@localhost/shop", guarded.app.removeprefix("postgresql://"))
    for number, more in enumerate(({}, {"GATEWAY_URL": origin, "GATEWAY_API_KEY": API_KEY}), 1):
        await asyncio.to_thread(run_program, code, more)
        assert await guarded.rows("SELECT value FROM fencing.fence") == [(number,)]
        assert await states(guarded) == {"sent"}


def run_program(code: str, more: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=without_gateway(more), timeout=PATIENCE, check=True)


def without_gateway(more: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")} | more


async def test_holders_of_both_ways_exclude_each_other_and_wait_in_one_queue(guarded: Stage, origin: str) -> None:
    order: list[str] = []

    async def wait_with(client: FencedClient, name: str) -> None:
        async with client.lock("order/5") as lock:
            order.append(f"{name} {lock.token}")

    async with FencedClient(guarded.app) as direct, FencedClient(origin, api_key=API_KEY) as through:
        for holding, waiting_ones in ((direct, (through, direct)), (through, (direct, through))):
            order.clear()
            async with holding.lock("order/5") as lock:
                for client in (direct, through):
                    with pytest.raises(NotAcquired) as taken:
                        await client.lock("order/5", wait=0).__aenter__()
                    assert taken.value.holder == lock.holder
                tasks = []
                for number, client in enumerate(waiting_ones):
                    tasks.append(asyncio.create_task(wait_with(client, str(number))))
                    await until(guarded, f"SELECT count(*) = {number + 1} FROM fencing.living_waiter")
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            assert [one.split()[0] for one in order] == ["0", "1"], "first come, first served"
            tokens = [int(lock.token), *(int(one.split()[1]) for one in order)]
            assert tokens == sorted(set(tokens))


async def until(stage: Stage, condition: str) -> None:
    async with asyncio.timeout(PATIENCE), session(stage.owner) as owner:
        while not await owner.fetchval(condition):
            await asyncio.sleep(0.02)


@pytest.mark.thorough
async def test_a_waiter_that_is_cancelled_or_gone_keeps_no_one_waiting(guarded: Stage) -> None:
    async with FencedClient(guarded.app) as client, FencedClient(guarded.app) as other:
        async with client.lock("order/5"):
            cancelled = asyncio.create_task(other.lock("order/5").__aenter__())
            await until(guarded, "SELECT count(*) = 1 FROM fencing.living_waiter")
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert await guarded.rows("SELECT FROM fencing.waiter") == []
            async with session(guarded.app) as gone:
                outcome = await gone.fetchval(
                    "SELECT outcome FROM fencing.acquire('order/5', 'gone', 30, 'r', wait => true)"
                )
            assert outcome == "waiting"
            # Its place lasts for five seconds.
            await guarded.execute("UPDATE fencing.waiter SET until = until - interval '5 seconds'")
        async with client.lock("order/5", wait=0):
            pass


@pytest.mark.thorough
async def test_shared_holders_have_one_token_and_the_next_one_a_higher(guarded: Stage) -> None:
    async with FencedClient(guarded.app) as client:
        async with client.lock("order/5", mode="shared") as one, client.lock("order/5", mode="shared") as other:
            assert one.token == other.token
            for lock in (one, other):
                await by_psycopg(guarded.app, lock, "shared")
            with pytest.raises(NotAcquired):
                await client.lock("order/5", mode="exclusive", holder=one.holder).__aenter__()
        async with client.lock("order/5") as alone:
            assert int(alone.token) > int(one.token)


async def test_the_barrier_waits_for_a_transaction_of_an_older_holder(guarded: Stage, app: Session) -> None:
    async with (
        FencedClient(guarded.app) as client,
        client.lock("order/5", on_loss="tell") as old,
        session(guarded.owner) as looking,
    ):
        transaction = app.transaction()
        await transaction.start()
        await hold(app, "order/5", old.token, old.holder)
        await app.execute("UPDATE shipments SET state = 'old' WHERE order_id = 5")
        await take_away(guarded)
        entering = asyncio.create_task(client.lock("order/5").__aenter__())
        await waiting(looking)
        assert not entering.done()
        await transaction.commit()
        new = await asyncio.wait_for(entering, PATIENCE)
        assert await states(guarded) == {"old"}, "what the block reads is all that the older holder wrote"
        await new.__aexit__(None, None, None)


@pytest.mark.thorough
async def test_a_transaction_that_stays_open_is_told(guarded: Stage, app: Session) -> None:
    source = DatabaseLeases(guarded.app, timeout=0.3)
    held = await source.acquire("order/5", holder="new", ttl=60, wait=0, mode="exclusive")
    async with app.transaction():
        await hold(app, "order/5", 0)
        with pytest.raises(Unavailable, match="A transaction of an older holder"):
            await source.barrier(held, str(held.value), "new")
    await source.barrier(held, str(held.value), "new")
    await source.release(held)
    assert not await source.holds(held)
    await source.aclose()


@pytest.mark.thorough
async def test_a_lock_is_kept_while_another_one_cannot_be_asked_for(guarded: Stage, app: Session) -> None:
    async with FencedClient(guarded.app) as client, client.lock("order/6", ttl=1.5, on_loss="tell") as lock:
        async with app.transaction():
            await acquired(app, "one")
            asking = asyncio.create_task(client.lock("order/5", wait=5).__aenter__())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lock.lost.wait(), 3)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


class Paused(Relay):
    """The path of a client that is paused once it has sent a message: it sends and hears nothing until its end."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.closed = asyncio.Event()

    async def _requests(self, client: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
        while (sent := await client.read(65536)) and not self._broken:
            self._broken = bool(self.losing and self.losing in sent)
            requests.write(sent)
        await self.closed.wait()
        requests.close()

    async def _answers(self, server: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while (answer := await server.read(65536)) and not self._broken:
            answers.write(answer)
        await self.closed.wait()
        answers.close()


@pytest.mark.parametrize("step", first([b"fencing.acquire", b"fencing.hold"]))
async def test_a_client_that_is_paused_at_any_step_keeps_no_row_locked(guarded: Stage, step: bytes) -> None:
    async with relay(guarded.app, Paused) as path:
        assert isinstance(path, Paused)
        path.losing = step
        async with FencedClient(path.url) as paused, FencedClient(guarded.app) as other:
            entering = asyncio.create_task(paused.lock("order/5", ttl=0.5).__aenter__())
            await until(guarded, "SELECT count(*) = 1 FROM fencing.lease")
            async with asyncio.timeout(PATIENCE), other.lock("order/5") as lock:
                await by_psycopg(guarded.app, lock, "other")
            path.closed.set()
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
    assert await states(guarded) == {"other"}


@pytest.mark.thorough
async def test_a_lock_that_is_taken_away_is_lost(guarded: Stage) -> None:
    async def work() -> None:
        async with FencedClient(guarded.app) as client, client.lock("order/5", ttl=0.6):
            await take_away(guarded)
            await asyncio.sleep(PATIENCE)

    with pytest.raises(LockLost):
        await work()


@pytest.mark.thorough
def test_programs_without_an_event_loop_have_the_same_locks(guarded: Stage) -> None:
    with blocking.FencedClient(guarded.app) as client, client.lock("order/5") as lock:
        with psycopg.connect(lock.dsn(guarded.app)) as connection:
            connection.execute(SENT.encode(), ("threads",))
        assert lock.environment(s3=False)["FENCING_TOKEN"] == lock.token
        with pytest.raises(Refused, match="need a gateway"):
            _ = lock.http


@pytest.mark.parametrize("address", [
    "postgresql+psycopg://app:se cret@localhost/shop", "jdbc:postgresql://localhost/shop?user=app&password=se cret",
    "host=localhost password=se cret", "postgresql://app:secret@localhost/shop?password",
])  # fmt: skip
async def test_an_address_that_is_none_is_told_without_its_password(address: str) -> None:
    with pytest.raises((ValueError, Refused), match=r"not an address|cannot be read") as told:
        async with FencedClient(address) as client, client.lock("order/5", wait=0):
            pass
    assert "cret" not in "".join(traceback.format_exception(told.value))


async def test_what_needs_a_gateway_says_so(guarded: Stage) -> None:
    async with FencedClient(guarded.app, access_key_id="a", secret_access_key="b") as client:
        with pytest.raises(Refused, match="need a gateway"):
            client.lock("order/5", source=EtcdSource("http://127.0.0.1:1"))
        async with client.lock("order/5") as lock:
            assert "GATEWAY_URL" not in await lock.environment(s3=False)
            uses: tuple[Callable[[], Any], ...] = (
                lambda: lock.http, lambda: lock.postgrest, lock.boto3, lambda: lock.attach(None), lock.credentials,
                lock.environment, lock.s3().__aenter__,
            )  # fmt: skip
            for use in uses:
                with pytest.raises(Refused, match=r"need a gateway.*Give FencedClient the address of a gateway"):
                    await use()


@pytest.mark.installed
async def test_a_transaction_pooler_may_stand_between(guarded: Stage, postgres_server: Server) -> None:
    if not isinstance(postgres_server, EmbeddedPostgres):
        pytest.skip("the pooler stands before the embedded server")
    database = guarded.owner.partition("?")[0].rpartition("/")[2]
    with pgbouncer(postgres_server, "transaction", "default_pool_size = 1") as address:
        dsn = f"postgresql://postgres@{address}/{database}"
        async with FencedClient(dsn) as client, FencedClient(dsn) as other:
            async with client.lock("order/5", ttl=1) as lock:
                await by_sqlalchemy(dsn, lock, "pooled")
                with pytest.raises(NotAcquired):
                    await other.lock("order/5", wait=2).__aenter__()
            async with other.lock("order/5") as next_one:
                assert int(next_one.token) == int(lock.token) + 1
    assert await states(guarded) == {"pooled"}


# Rights of a role ----------------------------------------------------------------------------------------------------


async def acquired(opened: Session, request: str) -> dict[str, Any]:
    (row,) = await opened.fetch("SELECT * FROM fencing.acquire('order/5', 'ann', 60, $1)", request)
    return dict(row)


async def test_a_role_ends_and_renews_its_own_leases_only(guarded: Stage, app: Session) -> None:
    async with session(guarded.owner) as owner:
        theirs = await acquired(owner, "one")
        assert theirs["outcome"] == "granted"
        assert await app.fetchval("SELECT fencing.renew('order/5', $1, 60)", theirs["lease"]) is None
        await app.execute("SELECT fencing.release('order/5', 'ann', 'one')")
        assert await owner.fetchval("SELECT fencing.renew('order/5', $1)", theirs["lease"]) is not None
        mine = await acquired(app, "two")
        assert (mine["outcome"], mine["held_by"], mine["token"]) == ("held", "ann", None)


@pytest.mark.thorough
async def test_what_no_lease_has_is_refused(guarded: Stage, app: Session, subtests: pytest.Subtests) -> None:
    for arguments in (
        "'order 5', 'ann', 60, 'one'", "'order/5', '', 60, 'one'", "'order/5', NULL, 60, 'one'",
        "'order/5', 'ann', 0, 'one'", "'order/5', 'ann', 'NaN', 'one'", "'order/5', 'ann', 'Infinity', 'one'",
        "'order/5', 'ann', NULL, 'one'", "'order/5', 'ann', 60, ''", "'order/5', 'ann', 60, NULL",
        "'order/5', 'ann', 60, 'one', 'other'", "'order/5', 'ann', 60, 'one', NULL",
    ):  # fmt: skip
        with subtests.test(arguments):
            async with refused("FN400"):
                await app.execute(f"SELECT fencing.acquire({arguments})")
    assert await guarded.rows("SELECT FROM fencing.lock") == []


@pytest.mark.thorough
async def test_a_session_that_idles_in_a_transaction_gives_up_the_rows_of_its_locks(
    guarded: Stage, app: Session, other: Session
) -> None:
    limit = "SHOW idle_in_transaction_session_timeout"
    for step in ("acquire('order/5', 'ann', 60, 'one')", "renew('order/5', NULL)", "release('order/5', 'ann', 'one')"):
        async with app.transaction():
            assert await app.fetchval(limit) == "0"
            await app.execute(f"SELECT fencing.{step}")
            assert await app.fetchval(limit) == "10s"
    assert await app.fetchval(limit) == "0"
    await app.execute("SET idle_in_transaction_session_timeout = '200ms'")
    await app.execute("BEGIN")
    assert (await acquired(app, "one"))["token"] == "2"
    row = await asyncio.wait_for(acquired(other, "two"), PATIENCE)
    assert row["token"] == "2", "the other one was never committed"
    assert app.is_closed()


@pytest.mark.thorough
async def test_a_waiter_in_an_open_transaction_keeps_no_waiter_of_another_lock(
    guarded: Stage, app: Session, other: Session
) -> None:
    ask = "SELECT outcome FROM fencing.acquire($1, $2, 60, 'one', wait => true)"
    for resource in ("order/5", "order/6", "order/7"):
        assert await app.fetchval(ask, resource, "holder") == "granted"
    assert await app.fetchval(ask, "order/7", "first") == "waiting"
    async with app.transaction():
        assert await app.fetchval(ask, "order/5", "ann") == "waiting"
        assert await asyncio.wait_for(other.fetchval(ask, "order/6", "bob"), 5) == "waiting"


@pytest.mark.thorough
async def test_what_was_acknowledged_survives_a_crash_of_the_server(guarded: Stage, app: Session) -> None:
    await app.execute("SET synchronous_commit = off")
    waits = "SHOW synchronous_commit"
    for step, expected in (
        ("acquire('order/5', 'ann', 60, 'one')", "on"),
        ("hold('order/5', '1')", "on"),
        ("hold('order/5', '1')", "off"),  # the fence was raised before
    ):
        async with app.transaction():
            await app.execute(f"SELECT fencing.{step}")
            assert await app.fetchval(waits) == expected, step


@pytest.mark.thorough
async def test_an_older_snapshot_is_refused_and_the_client_has_none(guarded: Stage, app: Session) -> None:
    async with app.transaction(isolation="repeatable_read"), refused("FN409"):
        await app.execute("SELECT fencing.acquire('order/5', 'ann', 60, 'one')")
    await guarded.execute(f"ALTER ROLE {guarded.app_role} SET default_transaction_isolation = serializable")
    async with FencedClient(guarded.app) as client, client.lock("order/5") as lock:
        assert lock.token == "1"


@pytest.mark.thorough
async def test_a_server_that_takes_no_writes_is_told(guarded: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby is not open either, and it would be of no use to open it."""
    monkeypatch.setattr(postgres, "SHORTEST_TIMEOUT", 0.1)
    await guarded.execute(f"ALTER ROLE {guarded.app_role} SET default_transaction_read_only = on")
    async with FencedClient(guarded.app) as client:
        with pytest.raises(Unavailable, match="session is read-only"):
            await client.lock("order/5", wait=0).__aenter__()


@pytest.mark.thorough
async def test_without_the_right_the_error_names_the_command_that_gives_it(stage: Stage) -> None:
    await stage.install("shipments", grants=False)
    for right in ("REVOKE USAGE ON SCHEMA fencing FROM", "GRANT USAGE ON SCHEMA fencing TO"):
        await stage.execute(f"{right} {stage.app_role}")
        async with FencedClient(stage.app) as client:
            with pytest.raises(Refused, match=r"permission denied.*gateway guard install TABLE --grants ROLE"):
                await client.lock("order/5").__aenter__()


@pytest.mark.thorough
async def test_a_database_that_was_not_opened_gives_no_lock(
    guarded: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres, "SHORTEST_TIMEOUT", 0.1)
    monkeypatch.setattr(postgres, "OPENING", 2.0)
    await guarded.execute("UPDATE fencing.opening SET started = started - interval '1 second'")
    async with FencedClient(guarded.app) as client:
        with pytest.raises(Unavailable, match="the operator runs: gateway open") as closed:
            await client.lock("order/5", wait=0).__aenter__()
        assert closed.value.code == "database-closed"
        caplog.clear()
        with pytest.raises(Unavailable, match="gateway open --dsn OWNER"):
            await client.lock("order/5").__aenter__()
        assert [line.partition(".")[0] for line in caplog.messages] == [
            "Waiting for order/5: The database was not opened for its present run: it may have lost fences"
        ]
        async with session(guarded.app) as app, refused("FN503") as refusal:
            # The next in the queue would get a token that may be one of those that were lost.
            await app.execute("SELECT fencing.release('order/5', 'ann', 'one')")
        assert "gateway open --dsn OWNER" in refusal.hint
        settings = guarded.config(postgres={"dsn": guarded.owner}).default
        await app_module.open_database(settings)
        async with client.lock("order/5", wait=0) as before:
            assert before.token == "1"
        # An operator who accepts a loss begins an epoch, so tokens are above whatever was lost.
        await guarded.execute("UPDATE fencing.opening SET system = 'another server'")
        await app_module.open_database(settings, accept_loss=True)
        async with client.lock("order/5", wait=0) as after:
            assert after.token == "1.1"
            await by_psycopg(guarded.app, after, "after")
    assert await states(guarded) == {"after"}


@pytest.mark.thorough
async def test_raises_that_a_journal_must_have_are_left_to_a_gateway(guarded: Stage) -> None:
    await guarded.execute("UPDATE fencing.opening SET mode = 'sync'")
    async with FencedClient(guarded.app) as client:
        with pytest.raises(Refused, match=r"not in the journal.*set GATEWAY_URL"):
            await client.lock("order/5").__aenter__()
    assert await guarded.rows("SELECT FROM fencing.lease") == []
