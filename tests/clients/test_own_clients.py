"""The clients in Go and in TypeScript: their lint, their vectors and unit tests, and their tests against a gateway."""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from uuid import uuid4

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.guard import installation as guard
from gateway.guard.installation import GuardRequest
from tests import ROOT
from tests.client.stage import Stage, staged
from tests.clients.commands import PATIENCE, program
from tests.clients.formats import execute
from tests.clients.gateway import Gateway
from tests.guard.stage import logging_in_as
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY, config

FOLDER = ROOT / "clients/go"
PACKAGES = ("./fencing", "./awss3", "./pgxlock", "./integration")
STATICCHECK = "honnef.co/go/tools/cmd/staticcheck"
BUILDING = 400
RUNNING = 180


@dataclass(frozen=True, slots=True)
class Go:
    """The Go command, with what it needs of the machine: its caches, and no network."""

    command: str

    def run(self, *arguments: str, timeout: int) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.command, *arguments], cwd=FOLDER,
            env={**os.environ, "GOPROXY": "off", "GOTOOLCHAIN": "local"}, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def go() -> Go:
    """Go with the modules of the client. The tests are skipped if either is missing."""
    command = program("go", "https://go.dev/doc/install, 1.26 or newer")
    found = Go(command)
    asked = found.run("list", "-deps", "-test", *PACKAGES, STATICCHECK, timeout=BUILDING)
    if asked.returncode != 0:
        pytest.skip(f"the modules of the Go client are not there: run `make go-modules`. {asked.stderr[-500:]}")
    return found


@pytest.fixture(scope="module")
def integration(go: Go, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The integration tests, built once."""
    binary = tmp_path_factory.mktemp("go") / "integration.test"
    built = go.run("test", "-c", "-o", str(binary), "./integration", timeout=BUILDING)
    assert built.returncode == 0, built.stderr
    return binary


@pytest.fixture(scope="module")
def guarded(gateway: Gateway) -> Iterator[str]:
    """The address of a role that writes the table ``shipments`` beside the gateway, under a guard."""
    role = f"app_{uuid4().hex[:12]}"

    async def prepare() -> None:
        statements = f"""
            CREATE TABLE shipments (id bigint PRIMARY KEY, state text);
            CREATE ROLE {role} LOGIN;
            GRANT ALL ON shipments TO {role};
        """
        await execute(gateway.dsn, statements)
        request = GuardRequest("public.shipments", dsn=gateway.dsn, grants=(role,))
        await guard.install(config(gateway.dsn).default, request)

    asyncio.run(prepare())
    yield logging_in_as(role, gateway.dsn)
    asyncio.run(execute(gateway.dsn, f"DROP TABLE shipments; DROP OWNED BY {role}; DROP ROLE {role}"))


@pytest.mark.installed
def test_formatting_and_lint(go: Go) -> None:
    unformatted = subprocess.run(["gofmt", "-l", "."], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert unformatted.stdout == ""
    for command in (("vet",), ("run", STATICCHECK, "-checks", "all,-ST1000")):
        found = go.run(*command, *PACKAGES, timeout=BUILDING)
        assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.installed
def test_no_module_is_replaced_by_a_folder() -> None:
    """A program that requires the modules gets no ``replace`` of theirs: only this clone's ``go.work`` has some."""
    for path in FOLDER.glob("**/go.mod"):
        assert "replace" not in path.read_text()


@pytest.mark.installed
def test_vectors_and_units(go: Go) -> None:
    race = ["-race"] if which("gcc") else []  # The race detector needs a C compiler.
    ran = go.run("test", "-v", *race, "./fencing", timeout=BUILDING)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "--- SKIP" not in ran.stdout
    assert len(re.findall(r"^--- PASS: TestVectorsOf", ran.stdout, re.MULTILINE)) == 7


@pytest.mark.installed
def test_against_a_gateway(integration: Path, gateway: Gateway, guarded: str, subtests: pytest.Subtests) -> None:
    """Every way to lose a lock, a zombie, tables, buckets, sessions under a guard."""
    ran = subprocess.run(
        [str(integration), "-test.v", "-test.timeout", f"{RUNNING - 10}s"], cwd=FOLDER / "integration",
        env={**os.environ, "FENCING_GATEWAY": gateway.origin, "FENCING_DATABASE": guarded}, capture_output=True,
        text=True, timeout=RUNNING, check=False,
    )  # fmt: skip
    results = re.findall(r"^--- (PASS|FAIL|SKIP): (\w+)", ran.stdout, re.MULTILINE)
    for result, name in results:
        with subtests.test(test=name):
            assert result == "PASS", ran.stdout[-8000:]
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-4000:]
    assert len(results) >= 10


# The client in TypeScript: its lint, its build, its tests, and its tests against a real gateway.


PACKAGE = ROOT / "clients/typescript"


@pytest.fixture(scope="module")
def typescript_stage(postgres_server: EmbeddedPostgres) -> Iterator[Stage]:
    with staged(postgres_server) as one:
        yield one


def run(*command: str, **variables: str) -> None:
    """Run a command in the folder of the package, and show what it says if it fails."""
    executable = program(command[0], "install Node 20 or newer, then run `make clients`")
    if not (PACKAGE / "node_modules").is_dir():
        pytest.skip("the packages of the TypeScript client are not installed: run `make clients`")
    done = subprocess.run(
        [executable, *command[1:]], cwd=PACKAGE, env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.installed
@pytest.mark.xdist_group("typescript")
def test_lint() -> None:
    run("npm", "run", "--silent", "lint")


@pytest.mark.installed
@pytest.mark.xdist_group("typescript")
def test_build(tmp_path: Path) -> None:
    """The package has no runtime dependency, and its types compile without those of Node."""
    run("npx", "tsc", "--project", "tsconfig.build.json", "--outDir", str(tmp_path))
    used = f"import {{ Gateway }} from '{tmp_path}/index.js'; new Gateway({{ url: 'http://localhost' }})"
    run("node", "--input-type=module", "--eval", used)


@pytest.mark.installed
@pytest.mark.xdist_group("typescript")
def test_without_a_gateway(tmp_path: Path) -> None:
    """The vectors of docs/client-protocol.md, and every way to lose a lock."""
    run("node", "--test", *compiled(PACKAGE / "build/unit", "unit"))


@pytest.mark.installed
@pytest.mark.xdist_group("typescript")
def test_with_a_gateway(typescript_stage: Stage) -> None:
    run(
        "node", "--test", *compiled(PACKAGE / "build/gateway", "gateway"),
        GATEWAY_URL=typescript_stage.origin, GATEWAY_API_KEY=API_KEY, GATEWAY_OPERATOR_KEY="operator-key",
        GATEWAY_ACCESS_KEY=ACCESS_KEY, GATEWAY_SECRET_KEY=SECRET_KEY,
    )  # fmt: skip


def compiled(directory: Path, kind: str) -> list[str]:
    """Compile the tests into a folder of their own, because tests may run at the same time. Return their files."""
    run("npx", "tsc", "--outDir", str(directory))
    return sorted(str(path) for path in (directory / "test" / kind).glob("*.test.js"))
