"""The distributions built from this tree have all that the gateway needs without a checkout, and nothing else."""

import asyncio
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from gateway.db import migrations
from tests import ROOT
from tests.package.environment import NAME, metadata


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
    for suffix in (".sql", ".html", ".css", ".js", ".svg", "commands.sh", "r1000_baseline.sql"):
        assert any(name.endswith(suffix) for name in packed), suffix


def test_the_metadata_says_what_an_index_shows(wheel: zipfile.ZipFile) -> None:
    known = metadata(wheel)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (known["Name"], known["Version"], known["License-Expression"]) == (NAME, project["version"], "Apache-2.0")
    assert known["License-File"] == "LICENSE"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())
    assert known["Requires-Python"] == ">=3.11"
    classifiers = known.get_all("Classifier") or []
    assert "Development Status :: 5 - Production/Stable" in classifiers
    assert "Programming Language :: Python :: 3.11" in classifiers
    assert known["Description-Content-Type"] == "text/markdown"
    assert known.get_payload() == (ROOT / "README.md").read_text()


@pytest.mark.thorough
def test_an_index_would_take_the_distributions(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("PASSED") == 2


def test_a_package_that_says_it_is_typed_has_the_marker_that_type_checkers_look_for(wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Typing :: Typed" in project["classifiers"]
    assert "gateway/py.typed" in wheel.namelist()


@pytest.mark.thorough
def test_the_wheel_installs_its_schema_where_there_is_no_checkout(unpacked: Path, dsn: str) -> None:
    revision = migrations.newest()
    asyncio.run(execute(dsn, "DROP SCHEMA fencing CASCADE"))
    told = run(unpacked, "-m", "gateway", "migrate", "--dsn", dsn)
    assert told == f"fencing schema: not installed -> {revision}\n"
    where = run(unpacked, "-c", "import gateway.db.migrations; print(gateway.db.migrations.__file__)")
    assert Path(where.strip()).is_relative_to(unpacked), "or it was the checkout's that has been tried"


@pytest.mark.thorough
def test_pages_and_files_are_found_in_the_wheel(unpacked: Path) -> None:
    program = (
        "from gateway.web.rendering import Assets; from gateway.web.rendering import environment; "
        "from gateway.demo.demonstration import commands; "
        "pages = environment(); [pages.get_template(name) for name in pages.list_templates()]; "
        "Assets().address('style.css'); print(len(commands('http://127.0.0.1:8080', 33, 'postgresql:///')))"
    )
    assert int(run(unpacked, "-c", program)) > 1000


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
