"""The client in Go: its vectors and unit tests, and its integration tests against this gateway."""

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

from gateway.guard import installation as guard
from gateway.guard.installation import GuardRequest
from tests import ROOT
from tests.clients.commands import program
from tests.clients.gateway import Gateway
from tests.guard.stage import logging_in_as, session
from tests.running import config

pytestmark = pytest.mark.installed

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
            [self.command, *arguments],
            cwd=FOLDER,
            env={**os.environ, "GOPROXY": "off", "GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


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

    async def execute(sql: str) -> None:
        async with session(gateway.dsn) as owner:
            await owner.execute(sql)

    async def prepare() -> None:
        await execute(f"""
            CREATE TABLE shipments (id bigint PRIMARY KEY, state text);
            CREATE ROLE {role} LOGIN;
            GRANT ALL ON shipments TO {role};
        """)
        request = GuardRequest("public.shipments", dsn=gateway.dsn, grants=(role,))
        await guard.install(config(gateway.dsn), request)

    asyncio.run(prepare())
    yield logging_in_as(role, gateway.dsn)
    asyncio.run(execute(f"DROP TABLE shipments; DROP OWNED BY {role}; DROP ROLE {role}"))


def test_formatting_and_lint(go: Go) -> None:
    unformatted = subprocess.run(["gofmt", "-l", "."], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert unformatted.stdout == ""
    for command in (("vet",), ("run", STATICCHECK, "-checks", "all,-ST1000")):
        found = go.run(*command, *PACKAGES, timeout=BUILDING)
        assert found.returncode == 0, found.stdout + found.stderr


def test_no_module_is_replaced_by_a_folder() -> None:
    """A program that requires the modules gets no ``replace`` of theirs: only this clone's ``go.work`` has some."""
    for path in FOLDER.glob("**/go.mod"):
        assert "replace" not in path.read_text()


def test_vectors_and_units(go: Go) -> None:
    race = ["-race"] if which("gcc") else []  # The race detector needs a C compiler.
    ran = go.run("test", "-v", *race, "./fencing", timeout=BUILDING)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "--- SKIP" not in ran.stdout
    assert len(re.findall(r"^--- PASS: TestVectorsOf", ran.stdout, re.MULTILINE)) == 7


def test_against_a_gateway(integration: Path, gateway: Gateway, guarded: str, subtests: pytest.Subtests) -> None:
    """Every way to lose a lock, a zombie, tables, buckets, sessions under a guard."""
    ran = subprocess.run(
        [str(integration), "-test.v", "-test.timeout", f"{RUNNING - 10}s"],
        cwd=FOLDER / "integration",
        env={**os.environ, "FENCING_GATEWAY": gateway.origin, "FENCING_DATABASE": guarded},
        capture_output=True,
        text=True,
        timeout=RUNNING,
        check=False,
    )
    results = re.findall(r"^--- (PASS|FAIL|SKIP): (\w+)", ran.stdout, re.MULTILINE)
    for result, name in results:
        with subtests.test(test=name):
            assert result == "PASS", ran.stdout[-8000:]
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-4000:]
    assert len(results) >= 10
