"""Installing a guard, taking it off, looking at it, and its SQL: any name in it stays a name."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeAlias

import pytest

from gateway.config import Config
from gateway.db import migrations
from gateway.doctor.examination import examine, render
from gateway.findings import Check, CheckStatus
from tests.guard.stage import RULES, Session, Stage, hold_and_write, logging_in_as, refused
from tests.processes import called, run
from tests.releases import write_toml
from tests.tiers import first

Command: TypeAlias = Callable[..., Awaitable["CompletedProcess[str]"]]
TRIGGERS = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fencing_guard%'"
FUNCTIONS = "SELECT proname FROM pg_proc WHERE proname ~ '^guard_[0-9a-f]{16}$'"


def written(directory: Path, dsn: str, rules: list[dict[str, str]]) -> str:
    """The path of a configuration."""
    return write_toml(directory / "gateway.toml", {"postgres": {"dsn": dsn}, "tables": rules})


@pytest.fixture
def command(stage: Stage, tmp_path: Path) -> Command:
    """``await command("install", "shipments")``, with the gateway's own role in the configuration."""

    async def call(*arguments: str, dsn: str = stage.gateway, rules: list[dict[str, str]] = RULES) -> Any:
        return await asyncio.to_thread(called, "guard", *arguments, "--config", written(tmp_path, dsn, rules))

    return call


async def test_install_show_and_remove(stage: Stage, command: Command, app: Session, tmp_path: Path) -> None:
    config = written(tmp_path, stage.gateway, RULES)
    wanted = ("public.shipments", "--dsn", stage.owner, "--grants", stage.app_role)
    done = await asyncio.to_thread(run, "guard", "install", *wanted, "--config", config)
    said = "public.shipments: who writes order/{order_id} without holding it is refused; the role "
    assert (done.returncode, done.stdout) == (0, f"{said}{stage.gateway_role} is let through\n")
    assert "can drop the guard or switch it off" in done.stderr
    async with refused("FN428"):
        await app.execute("UPDATE shipments SET state = 'x'")
    shown = await command("show")
    assert shown.returncode == 0
    assert (
        f"ok       guard on public.shipments: rows are order/{{order_id}}; the role {stage.gateway_role}"
        in shown.stdout
    )
    assert "none on public.once, public.settings" in shown.stdout
    off = await command("remove", "shipments", "--dsn", stage.owner)
    assert (off.stdout, off.stderr) == ("shipments: the guard is removed\n", "")
    again = await command("remove", "shipments", "--dsn", stage.owner)
    assert again.stdout == "shipments: there is no guard\n"
    assert await app.execute("UPDATE shipments SET state = 'x'") == "UPDATE 4"
    assert await stage.rows(TRIGGERS) == [(0,)]
    assert await stage.rows(FUNCTIONS) == []


async def test_what_is_left_of_a_guard_can_be_removed(stage: Stage, command: Command) -> None:
    await stage.install("shipments")
    await stage.execute("DROP TRIGGER fencing_guard_row ON shipments")
    assert (await command("remove", "shipments", "--dsn", stage.owner)).stdout == "shipments: the guard is removed\n"
    assert await stage.rows(TRIGGERS) == [(0,)]


async def test_roles_that_may_write_are_named_with_what_they_need(stage: Stage, command: Command) -> None:
    done = await command("install", "settings", "--observe", "--dsn", stage.owner)
    assert "settings: who writes settings without holding it is put on record" in done.stdout
    (named,) = re.findall(r"May write it beside the gateway: (.*)\.", done.stderr)
    assert stage.app_role in named.split(", ")
    assert f'GRANT EXECUTE ON FUNCTION fencing.hold(text, text, text, boolean) TO "{stage.app_role}";' in done.stderr


async def test_print_changes_nothing_and_what_it_prints_does_it_all(
    stage: Stage, command: Command, app: Session
) -> None:
    await stage.install("shipments", observe=True, grants=False)
    before = await stage.rows(FUNCTIONS)
    rules = [{"name": "public.shipments", "resource": "other/{order_id}"}]
    printed = await command(
        "install", "shipments", "--print", "--grants", stage.app_role, "--dsn", stage.owner, rules=rules
    )
    assert printed.returncode == 0, printed.stderr
    assert await stage.rows(FUNCTIONS) == before
    await stage.execute(printed.stdout)
    assert len(await stage.rows(FUNCTIONS)) == 1
    assert await stage.rows(FUNCTIONS) != before, "the older one is gone"
    assert await hold_and_write(app, "DELETE FROM shipments WHERE order_id = 5", ("other/5", 1)) == "DELETE 2"
    async with refused("FN428"):
        await app.execute("DELETE FROM shipments")


async def test_tables_of_the_same_form_may_share_a_function(stage: Stage, command: Command) -> None:
    rules = [{"name": f"public.{name}", "resource": "all"} for name in ("settings", "once")]
    for name in ("settings", "once"):
        assert (await command("install", name, "--dsn", stage.owner, rules=rules)).returncode == 0
    assert len(await stage.rows(FUNCTIONS)) == 1
    await command("remove", "once", "--dsn", stage.owner)
    assert len(await stage.rows(FUNCTIONS)) == 1
    async with refused("FN428"):
        await stage.execute("UPDATE settings SET value = 'x'")
    await command("remove", "settings", "--dsn", stage.owner)
    assert await stage.rows(FUNCTIONS) == []


async def test_odd_names_are_quoted(stage: Stage, command: Command) -> None:
    await stage.execute("""
        CREATE TABLE "T 'a\"\"b" ("Id; $x$" bigint PRIMARY KEY, "new" text, "part1" text);
    """)
    name = "public.T 'a\"b"
    rules = [{"name": name, "resource": "$guard$/{Id; $x$}/{new}/{part1}"}]
    done = await command("install", name, "--dsn", stage.owner, rules=rules)
    assert done.returncode == 0, done.stderr
    async with refused("FN428", "$guard$/7/n'/p"):
        await stage.execute("""INSERT INTO "T 'a\"\"b" VALUES (7, 'n''', 'p')""")
    assert (await command("show", rules=rules)).returncode == 0
    assert (await command("remove", name, "--dsn", stage.owner, rules=rules)).returncode == 0


UNGUARDABLE = [
    (["install", "nothing"], "There is no table public.nothing."),
    (["install", "fencing.fence"], "The schema fencing is not exposed. Exposed are public."),
    (["install", "selected"], "public.selected is a view. Install the guard on the tables that hold its rows."),
    (["install", "keyless"], "public.keyless has no primary key, so its rows have no names."),
    (["install", "heir"], "Other tables inherit from public.heir"),
    (["install", "part"], "public.part is a partition."),
    (["install", "far"], "public.far has rows in a foreign table"),
    (["install", "wrong"], "The resource template 'x/{gone}' names the column 'gone'"),
    (["install", "shipments", "--gateway-role", "nobody there"], "There is no role nobody there."),
    (["install", "shipments", "--grants", "nobody there"], "There is no role nobody there."),
    (["remove", "nothing"], "There is no table public.nothing."),
]


async def test_what_cannot_be_guarded_is_one_line(stage: Stage, command: Command, subtests: pytest.Subtests) -> None:
    await stage.execute("""
        CREATE VIEW selected AS SELECT * FROM settings;
        CREATE TABLE keyless (v integer);
        CREATE TABLE heir (id integer PRIMARY KEY);
        CREATE TABLE child () INHERITS (heir);
        CREATE TABLE whole (id integer PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE part PARTITION OF whole FOR VALUES IN (1);
        CREATE TABLE wrong (id integer PRIMARY KEY);
        CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
        CREATE TABLE far (id integer) PARTITION BY LIST (id);
        CREATE FOREIGN TABLE farther PARTITION OF far FOR VALUES IN (1) SERVER elsewhere;
    """)
    rules = [*RULES, {"name": "public.wrong", "resource": "x/{gone}"}]
    for arguments, said in UNGUARDABLE:
        with subtests.test(arguments=arguments):
            done = await command(*arguments, "--dsn", stage.owner, rules=rules)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
            assert done.stderr.startswith(f"gateway: {said}")
    assert await stage.rows(TRIGGERS) == [(0,)]


async def test_a_gateway_that_could_not_be_told_apart_is_refused_unless_it_is_named(
    stage: Stage, command: Command
) -> None:
    for dsn, standing in ((stage.owner, "a superuser"), (stage.gateway, "the owner of the table")):
        if dsn == stage.gateway:
            await stage.execute(f"ALTER TABLE shipments OWNER TO {stage.gateway_role}")
        done = await command("install", "shipments", "--dsn", stage.owner, dsn=dsn)
        assert done.returncode == 2
        assert f", {standing}: the guard cannot tell it from others who do." in done.stderr
    done = await command("install", "shipments", "--dsn", stage.owner, "--gateway-role", stage.gateway_role)
    assert done.returncode == 0
    assert f"Any session that logs in as {stage.gateway_role} is let through and can drop the guard" in done.stderr


async def test_the_gateways_own_role_gets_no_grant(stage: Stage, command: Command) -> None:
    """The guard would let its writes through without a token."""
    for arguments in ((stage.gateway_role,), (stage.app_role, "--gateway-role", stage.app_role)):
        done = await command("install", "shipments", "--dsn", stage.owner, "--grants", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Give the gateway a role of its own" in done.stderr
    assert await stage.rows(TRIGGERS) == [(0,)]


async def test_who_may_not_install_it_is_told_so(stage: Stage, command: Command) -> None:
    for dsn, said in ((stage.gateway, "The database refuses: "), (stage.app, "")):
        done = await command("install", "shipments", "--dsn", dsn)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr
        assert "--dsn" in done.stderr or "permission denied" in done.stderr
    await stage.install("shipments")
    done = await command("remove", "shipments", "--dsn", stage.gateway)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "The database refuses: " in done.stderr


async def test_an_older_schema_is_told_to_migrate(
    stage: Stage, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "BASELINE", "r0000")
    await stage.execute("UPDATE fencing.migration SET version_num = 'r0000'")
    for arguments in (["install", "shipments"], ["show"]):
        done = await command(*arguments, *(["--dsn", stage.owner] if "install" in arguments else []))
        assert done.returncode == 2
        assert (
            done.stderr
            == "gateway: The fencing schema is at r0000; a guard needs r1002. Run 'gateway migrate' first.\n"
        )


class TestDoctor:
    async def found(self, config: Config, name: str = "guard on public.shipments") -> Check:
        report = await examine(config.default)
        checks = [check for check in report.checks if check.name == name]
        assert len(checks) == 1, "\n".join(render(report))
        return checks[0]

    async def test_a_guard_that_fits(self, guarded: Stage) -> None:
        check = await self.found(guarded.config())
        assert (check.status, check.advice) == (CheckStatus.OK, "")
        others = await self.found(guarded.config(), "guard")
        assert others.status is CheckStatus.OK
        assert "none on public.once, public.settings" in others.detail
        bare = await self.found(guarded.config(), "schema")
        assert "EXECUTE on fencing.hold" not in bare.detail
        await guarded.install("shipments", observe=True)
        check = await self.found(guarded.config())
        assert (check.status, check.detail.startswith("it only observes")) == (CheckStatus.WARNING, True)

    @pytest.mark.parametrize(
        "case",
        first(
            [
                ("ALTER TABLE shipments DISABLE TRIGGER fencing_guard_row", {}, "switched off: fencing_guard_row on"),
                ("DROP TRIGGER fencing_guard_truncate ON shipments", {}, "fencing_guard_truncate on shipments"),
                ("ALTER TABLE shipments ALTER order_id TYPE text", {}, "names rows differently by now"),
                ("ALTER TABLE shipments RENAME order_id TO o", {}, "names the column 'order_id'"),
                (
                    "SELECT 1",
                    {"resource": "job/{order_id}"},
                    "it names rows order/{order_id}, and the rule says job/{order_id}",
                ),
                ("SELECT 1", {"equal": "strict"}, "equal tokens by accept, and the rule says strict"),
            ]
        ),
    )
    async def test_a_guard_that_does_not_fit_is_a_problem(
        self, guarded: Stage, case: tuple[str, dict[str, str], str]
    ) -> None:
        change, rule, words = case
        await guarded.execute(change)
        tables = [{"name": "public.shipments", "resource": "order/{order_id}", **rule}]
        check = await self.found(guarded.config(tables=tables))
        assert check.status is CheckStatus.PROBLEM
        assert words in check.detail
        assert check.advice == "Run gateway guard install public.shipments."

    async def test_a_gateway_with_another_role_is_a_problem(self, guarded: Stage) -> None:
        await guarded.execute(f"ALTER ROLE {guarded.gateway_role} RENAME TO {guarded.gateway_role}_2")
        renamed = logging_in_as(f"{guarded.gateway_role}_2", guarded.gateway)
        try:
            check = await self.found(guarded.config(postgres={"dsn": renamed}))
            assert check.status is CheckStatus.PROBLEM
            assert f"it lets the role {guarded.gateway_role} through, and the gateway is" in check.detail
        finally:
            await guarded.execute(f"ALTER ROLE {guarded.gateway_role}_2 RENAME TO {guarded.gateway_role}")
