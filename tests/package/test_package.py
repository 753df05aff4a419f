"""The distributions of this tree: what they have, and what the plain package can do alone.

The plain package is the client library and the commands that only call a gateway. It brings no server. Its environment
has the packages that the wheel's metadata asks for, from the environment of the tests, and needs no network.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_group

from gateway.cli import application
from gateway.db import migrations
from gateway.demo.embedded import EmbeddedPostgres
from tests import ROOT
from tests.client.stage import Stage, staged
from tests.frameworks.stage import SNIPPETS, named
from tests.running import API_KEY


def build(folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", *options, "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=True)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source distribution and a wheel."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    (path,) = build(tmp_path_factory.mktemp("wheel"), "--target", "wheel").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


NAME = "fencing-gateway"


@dataclass(frozen=True, slots=True)
class Environment:
    """A folder with its own Python, in which nothing of this process's environment can be imported."""

    folder: Path

    def run(self, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment to its end, away from any checkout."""
        program, *arguments = command
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=self.folder,
            env={"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def metadata(wheel: zipfile.ZipFile) -> Message:
    """Return the core metadata of a wheel."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return HeaderParser().parsestr(wheel.read(name).decode())


def needed(wheel: zipfile.ZipFile, *extras: str, others: Iterable[str] = ()) -> set[str]:
    """Return the canonical names of all packages that the wheel with these extras brings, and other requirements."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(NAME, extra) for extra in ("", *extras)]
    for other in map(Requirement, others):
        found.add(canonicalize_name(other.name))
        waiting += [(canonicalize_name(other.name), extra) for extra in ("", *other.extras)]
    while waiting:
        if (step := waiting.pop()) in seen:
            continue
        seen.add(step)
        name, extra = step
        listed = metadata(wheel).get_all("Requires-Dist") if name == NAME else distribution(name).requires
        for wanted in _applying(listed or (), extra):
            needs = canonicalize_name(wanted.name)
            found.add(needs)
            waiting += [(needs, more) for more in ("", *wanted.extras)]
    return found - {NAME}


def _applying(lines: Iterable[str], extra: str) -> Iterator[Requirement]:
    for line in lines:
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            yield wanted


def make(folder: Path, wheel: zipfile.ZipFile, others: Iterable[str] = ()) -> Environment:
    """Make an environment with the wheel, the packages that it needs without an extra, and other requirements."""
    venv.create(folder, with_pip=False, symlinks=True)
    assert wheel.filename is not None
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    python = folder / "bin/python"
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *options, wheel.filename], check=True)
    (target,) = folder.glob("lib/python*/site-packages")
    for name in sorted(needed(wheel, others=others)):
        here = distribution(name)
        tops = {file.parts[0] for file in here.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (target / top).symlink_to(str(here.locate_file(top)))
    return Environment(folder)


def tree(folder: str) -> Iterator[str]:
    """The files of a folder, relative to the root, less what Python and editors leave behind."""
    for path in (ROOT / folder).rglob("*"):
        if path.is_file() and path.parent.name != "__pycache__" and not path.name.startswith("."):
            yield str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def unpacked(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a wheel puts it beside the libraries: no checkout around it."""
    folder = tmp_path_factory.mktemp("site-packages")
    wheel.extractall(folder)
    return folder


def run(unpacked: Path, *arguments: str) -> str:
    """Return Python's output with these arguments, away from the checkout and with the package of the wheel."""
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    told = subprocess.run(
        [sys.executable, *arguments],
        cwd=unpacked.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_the_wheel_has_every_file_of_the_package_and_every_migration_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    expected = {*tree("gateway"), *(f"gateway/{name}" for name in tree("migrations"))}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == expected
    for suffix in (".sql", ".html", ".css", ".js", ".svg", "commands.sh", "r1001_refusals.sql"):
        assert any(name.endswith(suffix) for name in packed), suffix


@pytest.mark.thorough
def test_an_index_would_take_the_distributions(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("PASSED") == 2


@pytest.mark.thorough
def test_the_wheel_installs_its_schema_where_there_is_no_checkout(unpacked: Path, dsn: str) -> None:
    revision = migrations.newest()
    asyncio.run(execute(dsn, "DROP SCHEMA fencing CASCADE"))
    told = run(unpacked, "-m", "gateway", "migrate", "--dsn", dsn)
    assert told == f"fencing schema: not installed -> {revision}\n"
    where = run(unpacked, "-c", "import gateway.db.migrations; print(gateway.db.migrations.__file__)")
    assert Path(where.strip()).is_relative_to(unpacked), "or it was the checkout's that has been tried"


@pytest.mark.thorough
def test_the_source_distribution_has_what_the_wheel_is_built_from_and_no_installed_packages(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*tree("gateway"), *tree("migrations"), "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if re.search(r"(^|/)(node_modules|\.venv|__pycache__)/", name)]


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

SERVER = {"starlette", "uvicorn", "sqlalchemy", "asyncpg", "uvloop", "structlog", "jinja2"}
"""Packages that only a server needs, or a program that has them already."""

CALLING = {"run", "audit", "credentials", "epoch"}
"""Commands that only call a gateway, by their first word."""
OTHERS = {"reload", "completion", "health"}
"""The same for operators, and commands that ask only their own machine."""

INSTALL = "In a clone of the gateway: pip install '.[server]'"

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
    return make(tmp_path_factory.mktemp("plain") / "environment", wheel)


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
    assert len(needed(wheel)) <= 20
    served = needed(wheel, "server")
    assert served > SERVER
    assert needed(wheel, "demo") >= served
    for extra in EXTRAS.keys() - {"server", "demo"}:
        assert not needed(wheel, extra) & SERVER, extra
    only = served - needed(wheel)
    program = (
        f"from importlib.util import find_spec; print(*(n for n in {sorted(only)} if find_spec(n.replace('-', '_'))))"
    )
    assert plain.run("python", "-c", program).stdout.strip() == ""


def test_the_documentation_lists_what_pip_installs_and_the_wheel_is_small(wheel: zipfile.ZipFile) -> None:
    """pip installs all of the wheel for a client, the server included."""
    assert wheel.filename is not None
    assert Path(wheel.filename).stat().st_size < 2_000_000
    assert sum(file.file_size for file in wheel.filelist) < 6_000_000
    (listed,) = re.findall(
        r"^```text\n(no extra.*?)^```$", (ROOT / "docs/sdk.md").read_text(), re.MULTILINE | re.DOTALL
    )
    rows = re.findall(r"^(no extra|\S+) +(\d+) \w+ +(\d+) MB((?:.*\n +)*.*)$", listed, re.MULTILINE)
    assert [row[0] for row in rows] == ["no extra", "client", "postgres"]
    plain = needed(wheel)
    for extra, count, size, names in rows:
        expected = plain if extra == "no extra" else needed(wheel, extra) - plain
        assert set(names.split()) == expected, extra
        assert int(count) == len(expected), extra
        files = (file for name in expected for file in distribution(name).files or () if file.suffix != ".pyc")
        assert sum(file.size or 0 for file in files) == pytest.approx(int(size) * 1e6, rel=0.3), extra


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
        assert f"pip install '.[{extra}]'" in lacks.stderr


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
    assert "pip install '.[demo]'" in done.stderr
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


BEGIN = """
import ast, sys
from types import ModuleType

for name in ("shop", "shop.models"):
    sys.modules[name] = module = ModuleType(name)
    module.print_label = module.Order = None
names = {}
for snippet in sys.argv[1:]:
    # A block with a lock would call a gateway.
    program = ast.parse(snippet)
    program.body = [each for each in program.body if not isinstance(each, ast.With)]
    exec(compile(program, "snippet", "exec"), names)
    if "INSTALLED_APPS" in names:
        import django
        from django.conf import settings
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}
        settings.configure(INSTALLED_APPS=names.pop("INSTALLED_APPS"), DATABASES={"default": database})
        django.setup()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("snippets", [("sqlalchemy",), ("asyncio",), ("settings", "django"), ("alembic",), ("celery",)])
def test_a_snippet_of_a_framework_begins_where_there_is_only_what_its_section_names(
    snippets: tuple[str, ...], wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    environment = make(tmp_path / "environment", wheel, named(snippets[0]))
    done = environment.run("python", "-c", BEGIN, *(SNIPPETS[name] for name in snippets))
    assert done.returncode == 0, done.stderr
