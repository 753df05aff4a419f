"""A run of tests ends in time: later tests are left out and counted, and a commit decides on the order of files."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT

FILES = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tests of their own, which use the hooks as ours do."""
    (tmp_path / "conftest.py").write_text(
        "from tests.budget import pytest_collection_modifyitems, pytest_runtest_setup\n"
    )
    for number in range(FILES):
        (tmp_path / f"test_{number}.py").write_text("def test_first(): pass\ndef test_second(): pass\n")
    return tmp_path


def ran(folder: Path, **settings: str) -> str:
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-ra",
        "-v",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        str(folder),
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **settings}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_what_is_too_late_is_left_out_and_counted(folder: Path) -> None:
    assert f"{2 * FILES} passed" in ran(folder, TESTS_UNTIL=str(time.time() + 600))
    late = ran(folder, TESTS_UNTIL=str(time.time() - 1))
    assert f"{2 * FILES} skipped" in late
    assert f"SKIPPED [{2 * FILES}]" in late
    assert "left out: the time for these tests is over" in late


def test_another_commit_has_another_order_of_files(folder: Path) -> None:
    def order(commit: str) -> list[str]:
        return [line.split()[0] for line in ran(folder, TESTS_ORDER=commit).splitlines() if "PASSED" in line]

    first, again, other = order("a" * 40), order("a" * 40), order("b" * 40)
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other)
    for one, two in zip(first[::2], first[1::2], strict=True):
        assert one.replace("test_first", "test_second") == two, "tests of one file stay together"
