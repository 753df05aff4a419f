"""Commands act on all databases of a configuration, or on one by its name. One that fails does not stop the others."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from typer.testing import CliRunner, Result

from gateway.commands.audit import audit
from gateway.errors import GatewayError
from tests.databases.fleet import Fleet
from tests.databases.test_lists import listed, raised, refused
from tests.postgres import GATEWAY, Server, as_gateway, fresh
from tests.processes import called
from tests.releases import write_toml
from tests.running import API_KEY

DOWN = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def addresses(postgres_server: Server) -> Iterator[dict[str, str]]:
    with fresh(postgres_server) as north, fresh(postgres_server) as south:
        yield {"north": north, "south": south}


def written(directory: Path, addresses: dict[str, str], **others: str) -> Path:
    entries = [
        {"name": name, "dsn": dsn, "schemas": [f"public_{name}"]} for name, dsn in {**addresses, **others}.items()
    ]
    callers = [{"name": "ann", "api_key": "a-key-of-ann-that-is-long"}]
    return Path(write_toml(directory / "gateway.toml", {"databases": entries, "callers": callers}))


def execute(address: str, statements: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(statements)


def test_commands_act_on_each_database(tmp_path: Path, addresses: dict[str, str]) -> None:
    config = written(tmp_path, {name: as_gateway(dsn) for name, dsn in addresses.items()})
    planned = called("databases", "plan", "--json", "--config", str(config))
    *seats, plan = map(json.loads, planned.stdout.splitlines())
    assert ([seat["database"] for seat in seats], plan["changes"]) == (["north", "south"], True)
    assert planned.returncode == 1
    assert called("databases", "apply", "--config", str(config)).returncode == 0
    for command in (["open"], ["sweep"], ["naming", "plan"], ["guard", "show"]):
        both = called(*command, "--config", str(config))
        assert both.returncode == 0, both.stderr
        assert "north:\n" in both.stdout
        assert "south:\n" in both.stdout
        one = called(*command, "--database", "south", "--config", str(config))
        assert "north:" not in one.stdout
    report = called("guard", "show", "--json", "--database", "south", "--config", str(config))
    assert json.loads(report.stdout)["status"] == "ok"
    neither = called("guard", "show", "--json", "--config", str(config))
    assert (neither.returncode, neither.stdout) == (2, "")
    wrong = called("open", "--database", "west", "--config", str(config))
    assert (wrong.returncode, "there is no database west; there are: north, south" in wrong.stderr) == (2, True)


@pytest.mark.thorough
def test_a_database_that_is_down_does_not_stop_a_command(tmp_path: Path, addresses: dict[str, str]) -> None:
    config = written(tmp_path, {"north": DOWN, "south": addresses["south"]})
    found = called("migrate", "--config", str(config))
    assert found.returncode == 2
    assert "gateway: north: " in found.stderr
    assert "south:\nfencing schema: " in found.stdout


@pytest.mark.thorough
def test_a_dsn_or_a_target_is_for_one_database(tmp_path: Path, addresses: dict[str, str]) -> None:
    config = str(written(tmp_path, addresses))
    for command in (
        ["migrate", "--dsn", addresses["south"]],
        ["naming", "plan", "public_south.orders"],
        ["doctor", "--json"],
    ):
        refused = called(*command, "--config", config)
        assert (refused.returncode, "name the database with --database" in refused.stderr) == (2, True), command
    assert called("migrate", "--dsn", addresses["south"], "--database", "south", "--config", config).returncode == 0


def test_a_gateway_does_not_start_with_rules_that_are_not_in_force(tmp_path: Path, addresses: dict[str, str]) -> None:
    """In the other database their tokens would count from nothing, and overtaken holders could write again."""
    for name, address in addresses.items():
        execute(address, f"CREATE SCHEMA public_{name}")
    config = written(tmp_path, addresses)
    given = config.read_text()
    assert "each database has what the rules give it" in called("migrate", "--config", str(config)).stdout
    assert called("config", "check", "--config", str(config)).returncode == 0
    config.write_text(given.replace('"public_south"]', '"public_south"]\nresources = ["tenant-7/**"]'))
    refused = called("config", "check", "--config", str(config))
    assert refused.returncode == 78
    assert "The database south has schemas public_south. This gateway gives it resources" in refused.stderr
    assert "gateway databases apply" in called("serve", "--listen", "127.0.0.1:0", "--config", str(config)).stderr
    written(tmp_path, dict(reversed(addresses.items())))
    assert "The database north has all names but" in called("config", "check", "--config", str(config)).stderr


@pytest.mark.thorough
def test_databases_are_migrated_one_after_the_other_by_their_owners(tmp_path: Path, addresses: dict[str, str]) -> None:
    """As the chart does. With the last one, each gets what the rules give it, so that a check finds nothing."""
    config = str(written(tmp_path, {name: as_gateway(dsn) for name, dsn in addresses.items()}))
    for name, address in addresses.items():
        execute(address, f"DROP SCHEMA fencing CASCADE; CREATE SCHEMA public_{name}")
    for name, address in addresses.items():
        owner = tmp_path / name
        owner.write_text(address)
        options = ("--database", name, "--dsn-file", str(owner), "--grant-to", GATEWAY)
        done = called("migrate", *options, "--config", config)
        assert done.returncode == 0, done.stderr
        assert ("each database has what the rules give it" in done.stdout) is (name == "south")
    checked = called("config", "check", "--config", config)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.thorough
def test_dsns_of_a_migration_may_be_in_files(tmp_path: Path, addresses: dict[str, str]) -> None:
    """Every user of a machine can see arguments."""
    config = str(written(tmp_path, {"north": addresses["north"], "south": DOWN}))
    owner, journal, nothing = tmp_path / "owner", tmp_path / "journal", tmp_path / "nothing"
    owner.write_text(addresses["south"] + "\n")
    journal.write_text(addresses["north"])
    nothing.write_text("\n")
    files = ("--dsn-file", str(owner), "--journal-dsn-file", str(journal))
    done = called("migrate", "--database", "south", *files, "--config", config)
    assert (done.returncode, "the journal has its table" in done.stdout) == (0, True), done.stderr
    both = called("migrate", "--database", "south", *files, "--dsn", DOWN, "--config", config)
    assert (both.returncode, "both given" in both.stderr) == (2, True)
    for wrong in (nothing, tmp_path / "absent"):
        refused = called("migrate", "--database", "south", "--dsn-file", str(wrong), "--config", config)
        assert (refused.returncode, "--dsn-file:" in refused.stderr) == (2, True), refused.stderr


# Records: ``gateway audit`` is about the record of one database. -----------------------------------------------------


@pytest.fixture
def asked(gateway: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The gateway that commands ask."""
    monkeypatch.setenv("GATEWAY_URL", gateway.origin)
    monkeypatch.setenv("GATEWAY_API_KEY", API_KEY)
    return gateway


async def run(*arguments: str | Path) -> Result:
    """The command, beside the gateway that it asks."""
    return await asyncio.to_thread(lambda: CliRunner().invoke(audit, [str(one) for one in arguments]))


async def test_commands_ask_for_the_database_of_a_record(asked: Fleet, api: httpx.AsyncClient, tmp_path: Path) -> None:
    output = tmp_path / "record.ndjson"
    for database in ("north", "south"):
        await raised(api, database, "y")
        await refused(api, database, "zombie")
    for command in (["search"], ["tail"], ["incidents"], ["verify"], ["export", "--output", output]):
        answered = await run(*command)
        assert isinstance(answered.exception, GatewayError), command
        assert "--database): north, south." in answered.exception.advice
    assert not output.exists()
    of_south = ("--database", "south")
    found = await run("search", "--kind", "barrier", *of_south)
    assert ("tenant-7/y" in found.stdout, "job/y" in found.stdout) == (True, False)
    tailed = await run("tail", "--kind", "barrier", "--last", "1", "--limit", "1", "--json", *of_south)
    assert "tenant-7/zombie" in tailed.stdout
    incidents = await run("incidents", *of_south)
    header, row = (line.split("\t") for line in incidents.stdout.splitlines())
    assert row[header.index("resource")] == "tenant-7/zombie"
    assert (await run("acknowledge", row[header.index("id")], "--note", "seen", *of_south)).exit_code == 0
    assert (await run("export", "--output", output, *of_south)).exit_code == 0
    head = await listed(api, "/v1/record/head", database="south")
    for source in ([output], [*of_south]):
        verified = await run("verify", *source)
        assert verified.stdout.splitlines()[-1] == f"--head {head['position']}:{head['hash']}", verified.output
    epoch = ("epoch", "--url", asked.origin, "--reason", "lost", "--prefix", "tenant-7/y")
    done = await asyncio.to_thread(called, *epoch, *of_south)
    assert "tenant-7/y: 8 -> 1.0" in done.stdout, done.stderr
    assert "--database): north, south." in (await asyncio.to_thread(called, *epoch)).stderr
