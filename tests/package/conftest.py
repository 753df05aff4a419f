"""The distributions of this tree, built once for all tests of a process."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source distribution and a wheel."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)],
        cwd=ROOT,
        capture_output=True,
        timeout=300,
        check=True,
    )
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive
