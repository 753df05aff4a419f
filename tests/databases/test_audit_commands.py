"""``gateway audit`` without ``--database`` is about the records of all databases, and names those that are missing."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from gateway.commands.audit import audit
from gateway.errors import ConfigurationError, Unavailable
from tests.databases.fleet import Fleet, fleet
from tests.databases.test_merged_record import all_raised, listed, raised, refused
from tests.postgres import Server
from tests.running import API_KEY


@pytest_asyncio.fixture
async def gateway(postgres_server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    async with fleet(postgres_server) as one:
        monkeypatch.setenv("GATEWAY_URL", one.origin)
        monkeypatch.setenv("GATEWAY_API_KEY", API_KEY)
        yield one


@pytest_asyncio.fixture
async def api(gateway: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.api() as client:
        yield client


async def run(*arguments: str | Path) -> Result:
    """The command, beside the gateway that it asks."""
    return await asyncio.to_thread(lambda: CliRunner().invoke(audit, [str(one) for one in arguments]))


def cells(result: Result, *titles: str) -> list[tuple[str, ...]]:
    header, *lines = (line.split("\t") for line in result.stdout.splitlines())
    return [tuple(line[header.index(title)] for title in titles) for line in lines]


async def test_lists_have_a_column_with_the_database(gateway: Fleet, api: httpx.AsyncClient) -> None:
    resources = await all_raised(api, 5)
    owners = ["south" if one.startswith("tenant-7/") else "north" for one in resources]
    found = await run("search", "--kind", "barrier", "--oldest")
    assert (found.exit_code, found.stderr) == (0, "5 of 5\n")
    assert cells(found, "resource", "database") == list(zip(resources, owners, strict=True))
    alone = await run("search", "--kind", "barrier", "--database", "south")
    assert "database" not in alone.stdout.splitlines()[0]
    assert len(alone.stdout.splitlines()) == 1 + owners.count("south")
    for database in ("north", "south"):
        await refused(api, database, "zombie")
    incidents = await run("incidents")
    assert cells(incidents, "resource", "database") == [("tenant-7/zombie", "south"), ("job/zombie", "north")]
    identifier = cells(incidents, "id")[0][0]
    assert (await run("acknowledge", identifier, "--note", "seen")).exit_code == 0
    tailed = await run("tail", "--kind", "barrier", "--last", "4", "--limit", "4", "--json")
    assert {json.loads(line)["database"] for line in tailed.stdout.splitlines()} == {"north", "south"}


async def test_both_chains_of_an_export_are_verified(gateway: Fleet, api: httpx.AsyncClient, tmp_path: Path) -> None:
    await all_raised(api, 8)
    heads = [
        f"{one['database']}:{one['position']}:{one['hash']}" for one in (await listed(api, "/v1/record/head"))["heads"]
    ]
    for form in ("ndjson", "parquet"):
        file = tmp_path / f"record.{form}"
        exported = await run("export", "--output", file)
        assert exported.exit_code == 0, exported.output
        judged = await run("verify", file, *(f"--head={head}" for head in heads))
        assert judged.exit_code == 0, judged.output
        assert judged.stdout.splitlines()[-2:] == [f"--head {head}" for head in heads]
    from_gateway = await run("verify")
    assert from_gateway.stdout.splitlines()[-2:] == [f"--head {head}" for head in heads]
    assert (await run("verify", "--database", "south")).stdout.splitlines()[-1] == heads[1].replace("south:", "--head ")

    lines = (tmp_path / "record.ndjson").read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if "tenant-7/1" in line)
    changed = tmp_path / "changed.ndjson"
    for text, told in (
        (lines[number].replace("tenant-7/1", "tenant-7/9"), "was changed"),
        (lines[number].replace('"south"', '"north"'), "north: Entry "),
        (lines[number].replace('"database":', '"base":'), "is no entry"),
    ):
        changed.write_text("\n".join([*lines[:number], text, *lines[number + 1 :]]) + "\n")
        judged = await run("verify", changed)
        assert judged.exit_code == 1
        assert told in judged.stdout, judged.stdout
        assert f"line {number + 1}" in judged.stdout.lower()
    # An export from which a whole database was removed does not pass, if its head was saved.
    changed.write_text("".join(f"{line}\n" for line in lines if '"database":"north"' in line))
    judged = await run("verify", changed, *(f"--head={head}" for head in heads))
    assert judged.exit_code == 1
    assert "south: Entries 1 to" in judged.stdout
    refused_head = await run("verify", tmp_path / "record.ndjson", "--head", heads[0].removeprefix("north:"))
    assert isinstance(refused_head.exception, ConfigurationError)


@pytest.mark.thorough
async def test_an_export_goes_on_after_a_cursor(gateway: Fleet, api: httpx.AsyncClient) -> None:
    await all_raised(api, 6)
    lines = (await run("export")).stdout.splitlines()
    first = {one["database"]: one["position"] for one in map(json.loads, lines[:4])}
    after = ",".join(f"{name}:{position}" for name, position in first.items())
    assert (await run("export", "--after", after)).stdout.splitlines() == lines[4:]


async def test_a_database_that_is_down_is_named_and_changes_the_exit_code(
    gateway: Fleet, api: httpx.AsyncClient, tmp_path: Path
) -> None:
    await all_raised(api)
    gateway.lines["south"].cut()
    for command in ("search", "incidents"):
        found = await run(command)
        assert found.exit_code == 1
        assert "This is not all. No answer of: south." in found.stderr
    assert cells(await run("search", "--kind", "barrier"), "database") == [("north",)] * 3
    output = tmp_path / "record.ndjson"
    for arguments in (("export", "--output", output), ("verify",)):
        assert isinstance((await run(*arguments)).exception, Unavailable)
    assert not output.exists()
    assert (await run("export", "--output", output, "--database", "north")).exit_code == 0
    following = asyncio.create_task(run("tail", "--last", "0", "--limit", "1"))
    for number in range(300):
        await raised(api, "north", f"more-{number}")
        if following.done():
            break
        await asyncio.sleep(0.1)
    tailed = await following
    assert tailed.exit_code == 1
    assert "The database south does not answer" in tailed.stderr
