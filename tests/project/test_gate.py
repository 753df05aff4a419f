"""The gate's verdict on small projects: .ci/gate.py repeats a failed test, and hides nothing else that goes wrong."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from tests import ROOT
from tests.tiers import first
from tests.waiting import PATIENCE

MAKEFILE = """
test:
\t.venv/bin/python -m pytest -q -p xdist --numprocesses=2
broken:
\tfalse
endless:
\tsleep 600
half:
\techo '<testsuites>' > build/gate/half.xml
"""

FLAKY = """
from pathlib import Path
import pytest

def test_flaky(tmp_path_factory):
    ran = Path("ran")
    first = not ran.exists()
    ran.touch()
    assert not first, "it was the first time"

def test_fine():
    pass

def test_without_its_program():
    pytest.skip("there is no program")
"""

# Each of them passes when it runs alone, or runs again.
HIDDEN: dict[str, tuple[str, str]] = {
    "a crash of a worker": (
        "crashed while running",
        """
        import os
        from pathlib import Path

        def test_it():
            if not Path("ran").exists():
                Path("ran").touch()
                os.kill(os.getpid(), 9)
    """,
    ),
    "an error at the end of a test": (
        "failed on teardown",
        """
        from pathlib import Path
        import pytest

        @pytest.fixture
        def leaking():
            yield
            if not Path("ran").exists():
                Path("ran").touch()
                raise RuntimeError("a session was left open")

        def test_it(leaking):
            pass
    """,
    ),
    "a leak that a test found": (
        "PytestUnraisableExceptionWarning",
        """
        import gc
        from pathlib import Path

        def test_it():
            if not Path("ran").exists():
                Path("ran").touch()
                open("ran")
                gc.collect()
    """,
    ),
    "a module that cannot be read": (
        "collection failure",
        """
        from pathlib import Path

        if not Path("ran").exists():
            Path("ran").touch()
            raise RuntimeError("it cannot be read")

        def test_it():
            pass
    """,
    ),
    "failures without number": (
        "21 tests failed",
        """
        from pathlib import Path
        import pytest

        @pytest.mark.parametrize("number", range(21))
        def test_it(number):
            ran = Path(f"ran-{number}")
            first = not ran.exists()
            ran.touch()
            assert not first
    """,
    ),
}


def judged(folder: Path, test: str, *steps: str) -> tuple[int, str]:
    """Let the gate run steps in a project with this module of tests; its exit code and what it printed."""
    (folder / "Makefile").write_text(MAKEFILE)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\naddopts = --import-mode=importlib\n")
    (folder / "tests/subject").mkdir(parents=True)
    (folder / "tests/subject/test_it.py").write_text(dedent(test))
    (folder / ".venv").symlink_to(sys.prefix)
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    gate = subprocess.run(
        [sys.executable, ROOT / ".ci/gate.py", "7", *steps],
        cwd=folder,
        env=settings | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return gate.returncode, gate.stdout + gate.stderr


def test_a_flaky_test_is_named_and_the_gate_is_green(tmp_path: Path) -> None:
    status, printed = judged(tmp_path, FLAKY, "test=1")
    flaky = "flaky: tests/subject/test_it.py::test_flaky, first failure: AssertionError: it was the first time"
    assert status == 0, printed
    assert (tmp_path / "build/flaky.txt").read_text() == f"{flaky}\n"
    *_, named, verdict = printed.splitlines()
    assert (named, verdict) == (flaky, "green")
    table = printed[printed.index("step ") :]
    assert re.search(r"^installation +7 +0 +0$", table, re.MULTILINE)
    assert re.search(r"^test +\d+ +1 +1$", table, re.MULTILINE)
    assert re.search(r"^left out: 1 × there is no program$", table, re.MULTILINE)


def test_a_test_that_fails_again_is_red(tmp_path: Path) -> None:
    status, printed = judged(tmp_path, "def test_it():\n    assert False, 'always'\n", "test=1")
    assert status == 1
    assert "test: tests/subject/test_it.py::test_it failed twice, first: AssertionError: always" in printed
    assert not (tmp_path / "build/flaky.txt").exists()


@pytest.mark.parametrize("trouble", first(HIDDEN))
def test_a_second_run_hides_nothing_else(tmp_path: Path, trouble: str) -> None:
    said, test = HIDDEN[trouble]
    status, printed = judged(tmp_path, test, "test=1")
    assert status == 1, printed
    verdict = printed[printed.index("step ") :]
    assert said in verdict
    assert verdict.endswith("red\n")
    assert "once more:" not in printed


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("broken=1", "broken: it failed with exit code 2, and no failed test explains it"),
        ("endless=0.005", "endless: it took longer than 0.005 minutes, and was ended"),
        ("half=1", "half: its report cannot be read: no element found"),
    ],
)
def test_a_step_that_fails_without_its_tests_is_red_and_the_others_still_run(
    tmp_path: Path, step: str, said: str
) -> None:
    status, printed = judged(tmp_path, "def test_it():\n    pass\n", step, "test=1")
    assert status == 1
    assert said in printed
    assert "1 passed" in printed


def test_a_gate_that_is_ended_leaves_nothing_running(tmp_path: Path) -> None:
    """Neither soon after the start of a step, nor as soon as the gate can hear of it."""
    for number, when in ((signal.SIGTERM, "pid"), (signal.SIGTERM, "step"), (signal.SIGINT, "step")):
        folder = tmp_path / f"{number}-{when}"
        folder.mkdir()
        # The step itself ends the gate, while the gate is still busy with the start of the step.
        end = f"kill -{number} $$(ps -o ppid= -p $$PPID); " if when == "step" else ""
        (folder / "Makefile").write_text(f"endless:\n\t{end}echo $$$$ > pid; exec sleep 600\n")
        gate = subprocess.Popen([sys.executable, ROOT / ".ci/gate.py", "7", "endless=9"], cwd=folder)
        pid = folder / "pid"
        soon(partial(has_begun, gate, pid))
        # A second signal could come when the gate has ended its work and Python no longer calls handlers.
        if when == "pid":
            gate.send_signal(number)
        assert gate.wait(PATIENCE) == 1
        # The step may be over before it has written its number.
        soon(partial(is_over, pid))


def has_begun(gate: "subprocess.Popen[bytes]", pid: Path) -> bool:
    return (pid.exists() and pid.read_text() != "") or gate.poll() is not None


def is_over(pid: Path) -> bool:
    return not pid.exists() or not pid.read_text() or is_gone(int(pid.read_text()))


def soon(look: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """An orphan that has ended is a zombie for ever where the first process waits for no child."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
