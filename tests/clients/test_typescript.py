"""The client in TypeScript: its lint, its build, its tests, and its tests against a real gateway."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests import ROOT
from tests.client.stage import Stage, staged
from tests.clients.commands import PATIENCE, program
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY

pytestmark = [pytest.mark.installed, pytest.mark.xdist_group("typescript")]

PACKAGE = ROOT / "clients/typescript"


@pytest.fixture(scope="module")
def stage(postgres_server: EmbeddedPostgres) -> Iterator[Stage]:
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


def test_lint() -> None:
    run("npm", "run", "--silent", "lint")


def test_build(tmp_path: Path) -> None:
    """The package has no runtime dependency, and its types compile without those of Node."""
    run("npx", "tsc", "--project", "tsconfig.build.json", "--outDir", str(tmp_path))
    used = f"import {{ Gateway }} from '{tmp_path}/index.js'; new Gateway({{ url: 'http://localhost' }})"
    run("node", "--input-type=module", "--eval", used)


def test_without_a_gateway(tmp_path: Path) -> None:
    """The vectors of docs/client-protocol.md, and every way to lose a lock."""
    run("node", "--test", *compiled(PACKAGE / "build/unit", "unit"))


def test_with_a_gateway(stage: Stage) -> None:
    run(
        "node", "--test", *compiled(PACKAGE / "build/gateway", "gateway"),
        GATEWAY_URL=stage.origin, GATEWAY_API_KEY=API_KEY, GATEWAY_OPERATOR_KEY="operator-key",
        GATEWAY_ACCESS_KEY=ACCESS_KEY, GATEWAY_SECRET_KEY=SECRET_KEY,
    )  # fmt: skip


def compiled(directory: Path, kind: str) -> list[str]:
    """Compile the tests into a folder of their own, because tests may run at the same time. Return their files."""
    run("npx", "tsc", "--outDir", str(directory))
    return sorted(str(path) for path in (directory / "test" / kind).glob("*.test.js"))
