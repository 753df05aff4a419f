"""``gateway enforce``: it says which writers would be refused, and takes rules and guards from observe to enforce."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import TypeAlias

import httpx
import pytest

from gateway.db import rights
from tests.guard.stage import Session, Stage, hold, refused, session
from tests.processes import called, called_in_a_terminal
from tests.running import API_KEY, running

Enforce: TypeAlias = Callable[..., Awaitable["CompletedProcess[str]"]]
TEXT = """# The shop, before it is fenced.
[postgres]
dsn = "{dsn}"

[[tables]]
name = "public.shipments"     # one lock an order
resource = "order/{{order_id}}"
mode = "observe"              # since Monday

[[tables]]
name = "public.settings"
resource = "settings"
mode = "observe"
"""


@pytest.fixture
async def file(stage: Stage, tmp_path: Path) -> Path:
    await rights.grant(stage.owner, stage.gateway_role)
    path = tmp_path / "gateway.toml"
    path.write_text(TEXT.format(dsn=stage.gateway))
    path.chmod(0o640)
    return path


@pytest.fixture
def enforce(file: Path) -> Enforce:
    async def call(*arguments: str) -> "CompletedProcess[str]":
        return await asyncio.to_thread(called, "enforce", *arguments, "--config", str(file))

    return call


async def claimed(stage: Stage, resource: str) -> None:
    """Let a session take a resource over, as the next holder of its lock."""
    async with session(stage.owner) as owner:
        for token in (1, 2):
            await hold(owner, resource, token, "job-a")


async def written(stage: Stage, rule: str) -> None:
    """Let gateways have counted writes under a rule of a table, which none of them would have refused."""
    await stage.execute(
        "INSERT INTO fencing.traffic (gateway, minute, plane, rule, accepted, refused, observed) "
        f"VALUES ('gateway-1', date_trunc('minute', now()), 'tables', '{rule}', 3, 0, 0)"
    )


async def test_it_says_what_would_be_refused_and_changes_nothing(
    stage: Stage, app: Session, file: Path, enforce: Enforce
) -> None:
    await stage.install("shipments", observe=True, watch=True)
    await app.execute("SET application_name = 'psql'")
    await app.execute("UPDATE shipments SET state = 'x' WHERE order_id = 5")
    await written(stage, "public.settings")

    said = await enforce()
    assert said.returncode == 1
    lines = said.stdout.splitlines()
    assert "public.shipments (tables, rule and guard observe): not ready" in lines
    assert "  1 of 1 callers on record would be refused:" in lines
    assert "    token-required: 1 writer" in lines
    assert f"role:{stage.app_role}\tpsql\ttoken-required\t1\tjust now" in lines
    assert any(line.startswith("order/5\t1\t") for line in lines)
    assert "public.settings (tables, the rule observes): ready" in lines
    assert said.stderr.startswith("Not ready, 1 of 2: public.shipments.\n")
    assert f"Ready by themselves: gateway enforce public.settings --config {file}\n" in said.stderr
    assert file.read_text() == TEXT.format(dsn=stage.gateway)

    listed = map(json.loads, (await enforce("--json", "--check")).stdout.splitlines())
    shipments, settings = sorted(listed, key=lambda one: str(one["rule"]), reverse=True)
    assert (shipments["answer"], shipments["guard"], shipments["observed"]) == ("not-ready", "observe", 1)
    assert [one["resource"] for one in shipments["resources"]] == ["order/5"]
    assert (settings["answer"], settings["callers"], settings["writes"]) == ("ready", 0, 3)


async def test_a_claim_is_evidence_for_a_table_with_a_guard_alone(stage: Stage, file: Path, enforce: Enforce) -> None:
    """The gateway counts each write. So where it alone writes, a holder without a write has written nothing."""
    await claimed(stage, "settings")
    none = await enforce("public.settings")
    assert none.returncode == 1
    assert none.stdout == ("public.settings (tables, the rule observes): unknown\n  Nothing was written under it.\n\n")
    assert file.read_text() == TEXT.format(dsn=stage.gateway)
    await stage.install("settings", observe=True)
    guarded = await enforce("public.settings", "--check")
    assert guarded.returncode == 0
    assert "public.settings (tables, rule and guard observe): ready" in guarded.stdout


async def test_it_changes_the_file_and_the_guards(stage: Stage, app: Session, file: Path, enforce: Enforce) -> None:
    await stage.install("shipments", observe=True, watch=True)
    await app.execute("UPDATE shipments SET state = 'x' WHERE order_id = 5")
    await written(stage, "public.settings")
    one = await enforce("public.settings")
    assert (one.returncode, "public.settings enforces" in one.stderr) == (0, True), one.stderr
    assert "gateway reload --config" in one.stderr
    before = TEXT.format(dsn=stage.gateway)
    assert file.read_text() == before[: before.rindex("observe")] + 'enforce"\n'

    other = await enforce("--anyway", "--dsn", stage.gateway)
    assert (other.returncode, "Name a role with --dsn that owns" in other.stderr) == (2, True), other.stderr
    assert file.read_text() == before[: before.rindex("observe")] + 'enforce"\n'

    anyway = await enforce("--anyway")
    assert anyway.returncode == 1
    assert "These guards still observe." in anyway.stderr
    assert "gateway guard install public.shipments --config" in anyway.stderr
    assert file.read_text() == before.replace('"observe"', '"enforce"')
    assert file.stat().st_mode & 0o777 == 0o640
    assert [*file.parent.iterdir()] == [file]

    guards = await enforce("--anyway", "--dsn", stage.owner)
    assert guards.returncode == 0, guards.stderr
    assert "public.shipments (tables, the guard observes): not ready" in guards.stdout
    assert "without holding it is refused" in guards.stderr
    assert "its rows are watched" in guards.stderr
    async with refused("FN428"):
        await app.execute("UPDATE shipments SET state = 'x' WHERE order_id = 5")

    done = await enforce()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Nothing observes.\n")


async def test_more_writers_than_are_shown_are_counted(stage: Stage, file: Path, enforce: Enforce) -> None:
    await stage.execute(
        "INSERT INTO fencing.intake (kind, plane, rule, resource, reason, enforced, caller, holder, target) "
        "SELECT 'rejection', 'tables', 'public.shipments', 'order/' || n, 'token-required', false, 'caller-' || n, "
        "'job', '/v1/tables/shipments' FROM generate_series(1, 43) AS n"
    )
    said = (await enforce("public.shipments")).stdout
    assert "  43 of 43 callers on record would be refused:\n    token-required: 43 writers\n" in said
    assert said.count("\tjob\t") == 20
    assert "Of 43 writers and 43 resources, those with the most writes are shown." in said
    words = ("enforce", "public.shipments", "--check", "--config", str(file))
    shown = await asyncio.to_thread(called_in_a_terminal, *words)
    assert max(map(len, shown)) <= 80, shown
    assert "  43 of 43 callers on record would be refused:" in shown


async def test_a_table_whose_guard_alone_observes_is_on_the_way_too(
    stage: Stage, app: Session, file: Path, enforce: Enforce
) -> None:
    await stage.install("once", observe=True)
    await app.execute("UPDATE once SET v = 2")
    said = await enforce("public.once")
    assert said.returncode == 1
    assert "public.once (tables, the guard observes): not ready" in said.stdout


async def test_a_write_of_the_gateway_that_would_be_refused_is_on_the_list(
    stage: Stage, file: Path, enforce: Enforce
) -> None:
    rules = [{"name": "public.settings", "resource": "settings", "mode": "observe"}]
    async with running(stage.config(tables=rules)) as url, httpx.AsyncClient(base_url=url) as client:
        headers = {"Authorization": f"Bearer {API_KEY}", "User-Agent": "importer/2"}
        answer = await client.patch("/v1/tables/settings?name=eq.colour", json={"value": "blue"}, headers=headers)
        assert answer.headers["fencing-would-refuse"] == "token-required", answer.text
    said = await enforce("public.settings")
    assert "importer/2\ttoken-required\t1\t" in said.stdout


async def test_nothing_is_changed_that_the_file_does_not_say(
    stage: Stage, file: Path, enforce: Enforce, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(stage, "public.settings")
    unknown = await enforce("public.nothing")
    assert (unknown.returncode, unknown.stderr) == (
        2,
        "gateway: public.nothing: no such rule observes. Observing: public.settings, public.shipments.\n",
    )
    none = await enforce("public.shipments")
    assert (none.returncode, "Nothing was written under it" in none.stdout) == (1, True)
    before = file.read_text()
    with monkeypatch.context() as patch:
        patch.setenv("GATEWAY_TABLES", '[{"name": "public.settings", "resource": "settings", "mode": "observe"}]')
        said = await enforce()
        assert said.returncode == 2
        assert (
            "The mode comes from the environment, GATEWAY_TABLES, and this command changes files alone." in said.stderr
        )
    real = file.rename(file.with_name("real.toml"))
    file.symlink_to(real)
    assert (await enforce("public.settings")).returncode == 0
    assert file.is_symlink()
    assert real.read_text() == before[: before.rindex("observe")] + 'enforce"\n'
    real.write_text(before.replace("public.shipments", "public.missing"))
    wrong = await enforce("public.settings", "--anyway")
    assert (wrong.returncode, "public.missing" in wrong.stderr) == (2, True)
    assert "enforce" not in real.read_text()
