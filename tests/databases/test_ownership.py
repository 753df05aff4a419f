"""Which database owns which names is a fact in each database: a gateway with other rules, or at another one, refuses.

A change of the rules ends the sessions of all gateways with former rules before a name has another database. It can be
killed at any step, and goes on or back.
"""

import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.changes.ownership import check_agreement, fleet
from gateway.config import Config
from gateway.db import ownership
from gateway.errors import ConfigurationError, Unavailable
from gateway.journal.rows import install
from tests.databases.fleet import CALLERS, calling, databases, settings
from tests.doctor.test_doctor import execute
from tests.pausing import pause, resume
from tests.postgres import GATEWAY, Server, as_gateway, fresh, fresh_database
from tests.processes import called, free_port, started
from tests.releases import write_toml
from tests.running import API_KEY, GRANTS, running
from tests.tiers import first
from tests.waiting import PATIENCE

NORTH, SOUTH = {"resources": ["job/**"]}, {"resources": ["tenant-7/**"]}
MOVED = {"resources": ["tenant-7/**", "job/**"]}
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


class Addresses(dict[str, str]):
    """The addresses of databases by name."""

    def config(
        self,
        rules: dict[str, Any] = SOUTH,
        *,
        west: dict[str, Any] | None = None,
        north_has: dict[str, Any] | None = None,
        **others: str,
    ) -> Config:
        """Return a configuration with these rules for south, and for a third database if ``west`` has some.

        ``others``: databases with another address.
        """
        at = {**self, **others}
        listed = databases(at["north"], at["south"], **rules)
        listed[0] |= north_has or {}
        if west is not None:
            listed.append({"name": "west", "dsn": at["west"], "schemas": ["w"], **west})
        return settings(listed)


@pytest.fixture
async def addresses(postgres_server: Server) -> AsyncIterator[Addresses]:
    async with AsyncExitStack() as stack:
        names = ("north", "south", "west")
        made = {name: await stack.enter_async_context(fresh_database(postgres_server)) for name in names}
        yield Addresses({name: as_gateway(dsn) for name, dsn in made.items()})


@asynccontextmanager
async def gateway(config: Config) -> AsyncIterator[httpx.AsyncClient]:
    async with running(config) as origin, calling(origin) as api:
        yield api


async def raised(api: httpx.AsyncClient, resource: str, token: str) -> str:
    """Raise a fence by a barrier, and return the outcome in a word."""
    answer = await api.post(f"/v1/fences/{resource}/barrier", json={"token": token})
    return "ok" if answer.status_code == 200 else str(answer.json()["code"])


async def applied(config: Config, *forget: str) -> bool:
    async with fleet(config) as found:
        found.check_applicable(forget)
        return await found.apply(lambda _: None)


async def test_gateways_with_other_rules_cannot_serve(addresses: Addresses) -> None:
    async with gateway(addresses.config()) as api, gateway(addresses.config(MOVED)) as other:
        assert await raised(api, "job/1", "5") == await raised(api, "tenant-7/1", "5") == "ok"
        assert await raised(other, "job/1", "9") == await raised(other, "anything", "9") == "ownership-differs"
        leased = await other.post("/v1/leases/job/1", json={"holder": "h", "ttl": 60})
        assert (leased.status_code, leased.json()["code"]) == (503, "ownership-differs")
        refused = (await other.post("/v1/fences/job/1/barrier", json={"token": "9"})).json()
        assert "The database south has resources tenant-7/**; schemas south. This gateway" in refused["detail"]
        assert (await other.get("/v1/health")).json()["databases"]["south"]["postgres"] == "closed"
        assert await raised(api, "job/1", "5") == "ok"


async def test_a_dsn_leads_to_the_database_of_its_name(addresses: Addresses) -> None:
    async with gateway(addresses.config()) as api:
        assert await raised(api, "job/1", "5") == "ok"
    swapped = addresses.config(north=addresses["south"], south=addresses["north"])
    async with gateway(swapped) as api:
        assert await raised(api, "job/1", "9") == await raised(api, "tenant-7/1", "9") == "ownership-differs"
    with pytest.raises(ConfigurationError, match="The DSN of the database north leads to the database south"):
        await check_agreement(swapped)
    with pytest.raises(ConfigurationError, match="The DSN of the database north leads to the database south"):
        await applied(swapped)


async def test_two_spellings_of_one_dsn_are_one_database(addresses: Addresses) -> None:
    twice = addresses.config(south=addresses["north"] + "&application_name=x")
    with pytest.raises(ConfigurationError, match="The DSNs of north and south lead to one database"):
        await check_agreement(twice, claim=True)
    async with gateway(addresses.config()):
        pass
    async with gateway(addresses.config()) as api:
        assert await raised(api, "tenant-7/1", "5") == "ok"


@pytest.mark.thorough
async def test_a_gateway_with_one_database_cannot_serve_one_of_several(addresses: Addresses) -> None:
    single = Config.model_validate(
        {"postgres": {"dsn": addresses["north"], "schemas": ["north"]}, "callers": CALLERS, "grants": GRANTS[:1]}
    )
    async with gateway(single) as api:
        assert await raised(api, "tenant-7/1", "7") == await raised(api, "job/1", "7") == "ok"
        with pytest.raises(ConfigurationError, match="The database north is not one of several yet"):
            await check_agreement(addresses.config(), claim=True)
        assert await applied(addresses.config())
        assert await raised(api, "tenant-7/1", "9") == await raised(api, "job/1", "9") == "ownership-differs"
    async with gateway(addresses.config()) as api:
        assert await raised(api, "tenant-7/1", "6") == await raised(api, "job/1", "6") == "token-stale"
        assert await raised(api, "tenant-7/1", "8") == "ok"
    with pytest.raises(ConfigurationError, match="The database south has names"):
        await applied(single)
    # Back to one database: south gives its names away first.
    listed = databases(addresses["north"], addresses["south"])
    listed[1] |= {"schemas": [], "resources": []}
    assert await applied(settings(listed))
    assert await applied(single)
    async with gateway(single) as api:
        assert await raised(api, "tenant-7/1", "7") == "token-stale"
        assert await raised(api, "tenant-7/1", "8") == "ok"


async def test_names_move_with_their_fences_and_issued_tokens(addresses: Addresses) -> None:
    async with gateway(addresses.config()) as old:
        lease = (await old.post("/v1/leases/job/1", json={"holder": "h", "ttl": 60})).json()
        assert await raised(old, "job/2", "7.3") == "ok"
        before = await in_force(addresses.config())
        assert not await applied(addresses.config(MOVED)), "the lease is live"
        assert await in_force(addresses.config()) == before
        assert await raised(old, "job/2", "7.3") == "ok"
        assert (await old.delete(f"/v1/leases/job/1/{lease['lease']}")).status_code == 204
        async with fleet(addresses.config(MOVED)) as found:
            assert await found.moving() == ["north: 2 fences and locks move to south"]
        assert await applied(addresses.config(MOVED))
        for resource in ("job/2", "anything", "tenant-7/1"):
            assert await raised(old, resource, "9.9") == "ownership-differs"
    async with gateway(addresses.config(MOVED)) as new:
        assert await raised(new, "job/2", "7.2") == "token-stale"
        assert await raised(new, "job/2", "7.4") == "ok"
        issued = (await new.post("/v1/leases/job/1", json={"holder": "n"})).json()["token"]
        assert int(issued) > int(lease["token"])
        events = (await new.get("/v1/events?database=south&kind=administration")).json()["events"]
        details = next(one["details"] for one in events if one["details"].get("operation") == "ApplyOwnership")
        assert details["is"] == "resources job/**, tenant-7/**; schemas south"


async def test_issued_tokens_of_a_database_that_was_put_back_move_in_its_next_epoch(addresses: Addresses) -> None:
    async with gateway(addresses.config()) as old:
        lease = (await old.post("/v1/leases/job/1", json={"holder": "h", "ttl": 60})).json()
        assert (await old.delete(f"/v1/leases/job/1/{lease['lease']}")).status_code == 204
    # As on another timeline. Tokens that the former one issued are lost if no holder has shown them.
    await execute(addresses["north"], "UPDATE fencing.issuer SET timeline = '0'")
    assert await applied(addresses.config(MOVED))
    async with gateway(addresses.config(MOVED)) as new:
        issued = (await new.post("/v1/leases/job/1", json={"holder": "n"})).json()["token"]
        assert (lease["token"], issued) == ("1", "1.2")


@pytest.mark.thorough
async def test_fences_that_move_are_in_the_journal_of_their_new_database(
    addresses: Addresses, postgres_server: Server
) -> None:
    """With mode sync the database takes no raise that is not there."""
    async with fresh_database(postgres_server) as journal:
        await install(journal, GATEWAY)
        kept = {"journal": {"mode": "sync", "dsn": as_gateway(journal)}}
        async with gateway(addresses.config(SOUTH | kept)) as old:
            for resource in ("job/1", "tenant-7/1"):
                assert await raised(old, resource, "5") == "ok"
        assert await applied(addresses.config(MOVED | kept))
        put_back = "UPDATE fencing.fence SET value = 1; UPDATE fencing.opening SET term = 0, started = 'epoch'"
        await execute(addresses["south"], put_back)
        async with gateway(addresses.config(MOVED | kept)) as new:
            assert await raised(new, "job/1", "4") == await raised(new, "tenant-7/1", "4") == "token-stale"


@pytest.mark.thorough
@pytest.mark.parametrize("mode", first(["sync", "async"]))
async def test_a_database_that_was_put_back_to_before_a_change_lets_no_gateway_in(
    addresses: Addresses, postgres_server: Server, mode: str
) -> None:
    """Its row says what it owned. Its journal has the number of the change, beside the fences."""
    async with fresh_database(postgres_server) as journal:
        await install(journal, GATEWAY)
        kept = {"journal": {"mode": mode, "dsn": as_gateway(journal)}}
        former, following = addresses.config(north_has=kept), addresses.config(MOVED, north_has=kept)
        async with gateway(former) as old:
            assert await raised(old, "job/1", "5") == "ok"
        async with (
            saved(postgres_server, addresses["north"]) as put_back,
            gateway(former) as old,
            gateway(following) as new,
        ):
            assert await applied(following)
            assert await raised(new, "job/1", "9") == "ok"
            await put_back()
            assert await raised(old, "job/1", "6") == await raised(old, "rest", "1") == "ownership-differs"
            assert await raised(new, "rest", "1") == "ownership-differs"
            async with fleet(following) as found:
                assert ["put back to before a change" in one.message for one in found.differences()] == [True]
            assert await applied(following)
            assert await raised(old, "job/1", "6") == await raised(old, "rest", "1") == "ownership-differs"
            assert await raised(new, "job/1", "8") == "token-stale"
            assert await raised(new, "rest", "1") == "ok"
            # Names that have come back have their newest fences, too, though the row says what it said before.
            assert await applied(former)
            await put_back()
            assert await raised(old, "job/1", "9") == "ownership-differs"
            assert await applied(former)
            assert await raised(old, "job/1", "8") == "token-stale"
            assert await raised(old, "job/1", "9") == "ok"
            assert "#ownership" not in (await old.get("/v1/fences?database=north")).text


@asynccontextmanager
async def saved(server: Server, address: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Copy a database that nothing uses. Yield a function that puts it back."""
    name = address.partition("?")[0].rpartition("/")[2]
    copy = f"{name}_saved"
    connection = await asyncpg.connect(server.dsn("postgres"))

    async def put_back() -> None:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {copy} STRATEGY file_copy")

    try:
        await connection.execute(f"CREATE DATABASE {copy} TEMPLATE {name} STRATEGY file_copy")
        yield put_back
        await connection.execute(f"DROP DATABASE {copy}")
    finally:
        await connection.close()


async def test_a_name_that_moved_is_listed_by_its_owner(addresses: Addresses) -> None:
    """Its former owner keeps the fence, which protects nothing there."""
    async with gateway(addresses.config()) as old:
        for number in range(4):
            assert await raised(old, f"job/{number}", "5") == "ok"
        assert await raised(old, "kept", "5") == "ok"
    assert await applied(addresses.config(MOVED))
    async with gateway(addresses.config(MOVED)) as new:
        assert await raised(new, "job/2", "6") == "ok"
        found: dict[str, list[tuple[str, str]]] = {"south": [], "north": []}
        for database, fences in found.items():
            after: str | None = ""
            while after is not None:
                page = (await new.get(f"/v1/fences?database={database}&limit=2&after={after}")).json()
                fences += [(one["resource"], one["token"]) for one in page["fences"]]
                after = page["after"]
        assert found["south"] == [(f"job/{number}", "6" if number == 2 else "5") for number in range(4)]
        assert found["north"] == [*[(f"job/{number}", "5") for number in range(4)], ("kept", "5")]


async def in_force(config: Config) -> list[Any]:
    async with fleet(config) as found:
        return [(one.registered.share, one.registered.following) for one in found.seats if one.registered]


STEPS = [("put_in_force", 1), ("close", 1), ("carry", 1), ("close", 2), ("end_sessions", 2)]


class Killed(BaseException):
    """The end of the process at a step."""


@pytest.mark.thorough
@pytest.mark.parametrize("goes", ["on", "back"])
@pytest.mark.parametrize("at", first(STEPS), ids=str)
async def test_a_change_that_was_killed_goes_on_or_back(
    addresses: Addresses, monkeypatch: pytest.MonkeyPatch, at: tuple[str, int], goes: str
) -> None:
    former, following = addresses.config(), addresses.config(MOVED)
    async with gateway(former) as old:
        assert await raised(old, "job/1", "5") == "ok"
        with monkeypatch.context() as patch:
            kill_at(patch, *at)
            with suppress(Killed):  # one database has fences to carry over
                await applied(following)
        async with gateway(following) as new:
            served = [await raised(api, "job/1", token) for api, token in ((old, "6"), (new, "7"))]
            assert served != ["ok", "ok"], "no moment in which both serve the name"
            highest = 7 if served[1] == "ok" else 6 if served[0] == "ok" else 5
            assert await applied(following if goes == "on" else former)
            serving, other = (new, old) if goes == "on" else (old, new)
            assert await raised(serving, "job/1", str(highest - 1)) == "token-stale"
            assert await raised(serving, "job/1", "8") == "ok"
            assert await raised(other, "job/1", "9") == "ownership-differs"


def kill_at(patch: pytest.MonkeyPatch, step: str, number: int) -> None:
    """Kill the change after it has taken a step for the second time, or the first one."""
    original, taken = getattr(ownership, step), 0

    async def take(*arguments: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == number:
            await original(*arguments)
            raise Killed
        return await original(*arguments)

    patch.setattr(ownership, step, take)


async def test_a_database_that_fails_during_a_change_keeps_no_other_one_closed(
    addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(addresses.config()) as api:
        assert await raised(api, "job/1", "5") == "ok"
        original = ownership.close

        async def fail(database: Any, target: Any, seen: Any) -> bool:
            if target.name == "south":
                raise Unavailable("It is down.")
            return await original(database, target, seen)

        with monkeypatch.context() as patch:
            patch.setattr(ownership, "close", fail)
            with pytest.raises(Unavailable, match="It is down"):
                await applied(addresses.config(MOVED))
        assert await raised(api, "job/1", "6") == await raised(api, "tenant-7/1", "6") == "ok"


@pytest.mark.thorough
async def test_only_databases_that_a_change_concerns_must_be_up(addresses: Addresses) -> None:
    async with gateway(addresses.config(west={})) as api:
        assert await raised(api, "job/1", "5") == "ok"
    with pytest.raises(Unavailable, match="south does not answer, and the rules may change what it has"):
        await applied(addresses.config({"resources": []}, west=NORTH, south=NOWHERE))
    assert await applied(addresses.config(west=NORTH, south=NOWHERE))
    async with gateway(addresses.config(west=NORTH)) as api:
        assert await raised(api, "job/1", "4") == "token-stale"
        assert await raised(api, "tenant-7/1", "1") == "ok"


@pytest.mark.thorough
@pytest.mark.parametrize("lost", first([False, True]))
async def test_a_database_gives_its_names_away_before_it_is_removed_or_is_forgotten(
    addresses: Addresses, *, lost: bool
) -> None:
    async with gateway(addresses.config(west=NORTH)) as api:
        assert await raised(api, "job/1", "5") == "ok"
    with pytest.raises(ConfigurationError, match="The database west has names") as refused:
        await applied(addresses.config())
    assert "--forget west" in refused.value.advice
    if lost:
        assert await applied(addresses.config(), "west")
    else:
        assert await applied(addresses.config(west={"schemas": []}))
        await check_agreement(addresses.config())
    async with gateway(addresses.config()) as api:
        assert await raised(api, "job/1", "4") == ("ok" if lost else "token-stale"), "fences of a lost one are lost"


async def test_databases_of_two_fleets_do_not_mix(addresses: Addresses, postgres_server: Server) -> None:
    async with fresh_database(postgres_server) as dsn:
        for config in (addresses.config(), addresses.config(north=addresses["west"], south=as_gateway(dsn))):
            async with gateway(config):
                pass
        with pytest.raises(ConfigurationError, match="north and south are of different fleets"):
            await check_agreement(addresses.config(south=as_gateway(dsn)))


def test_a_gateway_that_was_paused_during_a_change_is_refused(tmp_path: Path, postgres_server: Server) -> None:
    """It has a session that was let in, and a request on its way. Both are of the former rules."""
    with fresh(postgres_server) as north, fresh(postgres_server) as south:
        at = {"north": as_gateway(north), "south": as_gateway(south)}
        former, following = written(tmp_path / "former.toml", at), written(tmp_path / "following.toml", at, "job/**")
        assert called("databases", "plan", "--config", str(former)).returncode == 1
        assert called("databases", "apply", "--config", str(former)).returncode == 0
        with serving(former) as old, ThreadPoolExecutor() as pool:
            assert old.barrier("5") == (200, None)
            pause(old.process.pid)
            late = pool.submit(old.barrier, "6")
            planned = called("databases", "plan", "--config", str(following))
            assert (planned.returncode, "north: 1 fences and locks move to south" in planned.stdout) == (1, True)
            done = called("databases", "apply", "--config", str(following))
            assert done.returncode == 0, done.stderr
            with serving(following) as new:
                assert new.barrier("9") == (200, None)
                resume(old.process.pid)
                status, code = late.result(PATIENCE)
                assert (status, code in ("ownership-differs", "unavailable")) == (503, True)
                assert old.barrier("10") == (503, "ownership-differs")
                assert new.barrier("8") == (412, "token-stale")
        assert "The DSN" not in called("doctor", "--database", "north", "--config", str(following)).stdout
        refused = called("serve", "--listen", "127.0.0.1:0", "--config", str(former))
        assert (refused.returncode, "gateway databases apply" in refused.stderr) == (2, True)
        told = called("doctor", "--database", "north", "--config", str(former)).stdout
        assert "The database north has all names but" in told


def written(file: Path, at: dict[str, str], *south: str) -> Path:
    """Write a configuration with these resources of south."""
    entries: list[dict[str, Any]] = [
        {"name": "north", "dsn": at["north"], "schemas": ["public"]},
        {"name": "south", "dsn": at["south"], "schemas": [], "resources": south},
    ]
    grant = {"callers": ["ann"], "actions": ["barrier", "read"], "resources": ["**"]}
    callers = [{"name": "ann", "api_key": API_KEY}]
    return Path(write_toml(file, {"databases": entries, "callers": callers, "grants": [grant]}))


@dataclass(frozen=True)
class Process:
    """A gateway as a process of its own."""

    process: "subprocess.Popen[bytes]"
    origin: str

    def barrier(self, token: str) -> tuple[int, str | None]:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        url = f"{self.origin}/v1/fences/job/1/barrier"
        # One of them is answered when two commands are done, and another gateway has started.
        answer = httpx.post(url, json={"token": token}, headers=headers, timeout=4 * PATIENCE)
        return answer.status_code, answer.json().get("code") if answer.status_code != 200 else None

    def answers(self) -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.origin}/readyz", timeout=PATIENCE).status_code == 204
        return False


@contextmanager
def serving(config: Path) -> Iterator[Process]:
    port = free_port()
    with started("serve", "--listen", f"127.0.0.1:{port}", "--config", str(config)) as one:
        there = Process(one.process, f"http://127.0.0.1:{port}")
        one.wait_for(there.answers)
        yield there
