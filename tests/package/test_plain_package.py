"""The plain package is the client library and the commands that only call a gateway. It brings no server."""

import json
import tomllib
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_group

from gateway.cli import application
from gateway.demo.embedded import EmbeddedPostgres
from tests import ROOT
from tests.client.stage import Stage, staged
from tests.package import environment
from tests.package.environment import Environment
from tests.running import API_KEY

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

SERVER = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "asyncpg", "alembic", "uvloop", "structlog", "jinja2"}
"""Packages that only a server needs, or a program that has them already."""

CALLING = {"run", "audit", "credentials", "epoch"}
"""Commands that only call a gateway, by their first word."""
OTHERS = {"reload", "completion", "health"}
"""The same for operators, and commands that ask only their own machine."""

INSTALL = "pip install 'fencing-gateway[server]'"

ALL_COMMANDS = """
import contextlib, io, json, sys
from gateway.cli import main

ended = {}
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main(line)
        except SystemExit as left:
            ended[" ".join(line)] = [left.code or 0, errors.getvalue()]
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def plain(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment.make(tmp_path_factory.mktemp("plain") / "environment", wheel)


@pytest.fixture(scope="module")
def stage(postgres_server: EmbeddedPostgres) -> Iterator[Stage]:
    with staged(postgres_server) as one:
        yield one


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Each command, with its parameters."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command.params


def smallest(parameters: list[Any]) -> Iterator[str]:
    """The least that a command line must have."""
    for one in parameters:
        if one.required:
            yield from (("1",) if one.param_type_name == "argument" else (one.opts[0], "1"))


def ended(plain: Environment, lines: list[list[str]]) -> dict[str, tuple[int, str]]:
    """Exit codes and standard errors of commands, by their command lines."""
    done = plain.run("python", "-c", ALL_COMMANDS, json.dumps(lines), COLUMNS="500")
    assert done.returncode == 0, done.stderr
    answers: dict[str, tuple[int, str]] = {line: (code, said) for line, (code, said) in json.loads(done.stdout).items()}
    assert len(answers) == len(lines)
    return answers


def test_it_brings_nothing_of_the_server(wheel: zipfile.ZipFile, plain: Environment) -> None:
    assert len(environment.needed(wheel)) <= 20
    served = environment.needed(wheel, "server")
    assert served > SERVER
    only = served - environment.needed(wheel)
    program = (
        f"from importlib.util import find_spec; print(*(n for n in {sorted(only)} if find_spec(n.replace('-', '_'))))"
    )
    assert plain.run("python", "-c", program).stdout.strip() == ""


def test_no_extra_but_those_of_a_server_brings_one(wheel: zipfile.ZipFile) -> None:
    for extra in EXTRAS.keys() - {"server", "demo"}:
        assert not environment.needed(wheel, extra) & SERVER, extra
    assert environment.needed(wheel, "demo") >= environment.needed(wheel, "server")


def test_it_locks_and_writes_and_a_zombie_is_refused(plain: Environment, stage: Stage) -> None:
    number = stage.account()
    program = f"""
import asyncio
from gateway.client import FencedClient, Stale, blocking
from gateway.client.etcd import EtcdSource
from gateway.client.kubernetes import KubernetesSource

row = {{"id": {number}, "owner": "first"}}

async def main():
    async with FencedClient({stage.origin!r}, api_key={API_KEY!r}) as client:
        async with client.lock("public.accounts/{number}") as lock:
            (await lock.http.put("/v1/tables/accounts?id=eq.{number}", json=row)).raise_for_status()

asyncio.run(main())
with blocking.FencedClient({stage.origin!r}, api_key={API_KEY!r}) as client:
    with client.lock("public.accounts/{number}") as lock:
        lock.http.patch("/v1/tables/accounts?id=eq.{number}", json={{"owner": "second"}}).raise_for_status()
        older = {{"Fencing-Token": str(int(lock.token) - 1)}}
import httpx
late = httpx.patch({stage.origin!r} + "/v1/tables/accounts?id=eq.{number}", json={{"owner": "zombie"}},
    headers={{**older, "Authorization": "Bearer {API_KEY}"}}, trust_env=False)
print(late.status_code)
"""
    done = plain.run("python", "-c", program)
    assert (done.returncode, done.stdout) == (0, "412\n"), done.stderr
    assert stage.owner(number) == "second"
    searched = plain.run(
        "gateway", "audit", "search", "--url", stage.origin, "--resource", f"public.accounts/{number}",
        GATEWAY_API_KEY=API_KEY,
    )  # fmt: skip
    assert searched.returncode == 0, searched.stderr
    assert "token-stale" in searched.stdout


@pytest.mark.thorough
def test_gateway_run_holds_the_lock_around_a_command(plain: Environment, stage: Stage) -> None:
    number = stage.account()
    lock = f"public.accounts/{number}"
    shown = "import os; print(os.environ['FENCING_TOKEN'], os.environ['AWS_SESSION_TOKEN'][:4] != '')"
    options = ("run", "--url", stage.origin, "--lock", lock)
    known = {"GATEWAY_API_KEY": API_KEY}
    done = plain.run("gateway", *options, "--", "python", "-c", shown, **known)
    assert (done.returncode, done.stdout) == (0, f"{stage.standing(lock)['token']} True\n"), done.stderr
    for source, extra in (("redis://h", "redis"), ("zookeeper://h:1", "zookeeper"), ("postgresql://h/d", "postgres")):
        lacks = plain.run("gateway", *options, "--source", source, "--", "true", **known)
        assert lacks.returncode == 2, lacks.stderr
        assert f"pip install 'fencing-gateway[{extra}]'" in lacks.stderr


@pytest.mark.thorough
def test_every_command_has_its_help(plain: Environment) -> None:
    lines = [[*path, "--help"] for path, _ in commands(get_group(application))]
    assert {code for code, _ in ended(plain, [["--help"], ["--version"], *lines]).values()} == {0}


def test_a_command_of_the_server_says_what_to_install(plain: Environment) -> None:
    serving = [
        [*path, *smallest(parameters)]
        for path, parameters in commands(get_group(application))
        if path[0] not in CALLING | OTHERS | {"demo"} and path != ("config", "diff")
    ]
    assert len(serving) > 10
    for line, (code, said) in ended(plain, serving).items():
        assert code == 2, (line, said)
        assert said.startswith("gateway: This command needs the server, which is not installed ("), (line, said)
        assert said.endswith(f"{INSTALL}\n"), (line, said)
        assert len(said.splitlines()) == 1, said


@pytest.mark.thorough
def test_the_demo_names_its_own_extra(plain: Environment) -> None:
    done = plain.run("gateway", "demo")
    assert done.returncode == 2
    assert "pip install 'fencing-gateway[demo]'" in done.stderr
    assert INSTALL not in done.stderr


@pytest.mark.thorough
def test_commands_that_call_a_gateway_need_no_server(plain: Environment) -> None:
    """They get as far as the address, at which no gateway is."""
    found = list(commands(get_group(application)))
    assert {path[0] for path, _ in found} > CALLING | OTHERS
    lines = [[*path, *smallest(parameters)] for path, parameters in found if path[0] in CALLING]
    for line, (code, said) in ended(plain, lines).items():
        assert code != 0, line
        assert "is not installed" not in said, said
