"""The judge of linearizability, which ``make soak`` asks: its models, in histories that are right and wrong."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.crash.porcupine import FOLDER, NotHere, Porcupine, go
from tests.crash.soak import losses

pytestmark = pytest.mark.installed


@pytest.fixture(scope="module", autouse=True)
def porcupine(tmp_path_factory: pytest.TempPathFactory) -> Porcupine:
    try:
        return Porcupine.built(tmp_path_factory.mktemp("porcupine"))
    except NotHere as reason:
        pytest.skip(str(reason))


def test_formatting_and_lint() -> None:
    unformatted = subprocess.run(["gofmt", "-l", "."], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert unformatted.stdout == ""
    vetted = go("vet", ".")
    assert vetted.returncode == 0, vetted.stderr


def test_histories_that_are_right_and_wrong() -> None:
    ran = go("test", "-count=1", "-v", ".")
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert ran.stdout.count("--- PASS: TestBrokenPromises/") > 20
    assert ran.stdout.count("--- PASS: TestHonestHistories/") > 10


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["rewinds", "dumps", "lags"])
def test_what_a_database_loses_is_seen_unless_the_judge_is_told_of_it(
    fault: str, porcupine: Porcupine, tmp_path: Path
) -> None:
    """A copy or a dump is put back, or a lagging standby takes over. Fences and objects stay."""
    history, silent = tmp_path / "history", tmp_path / "silent"
    asyncio.run(losses.play(300, 6, "sync", (fault,), history, patience=1))
    told = history.read_text().splitlines(keepends=True)
    silent.write_text("".join(line for line in told if '"line":"rewind"' not in line))
    assert silent.stat().st_size < history.stat().st_size
    whole, without = porcupine.judge(history, silent)
    assert whole.linearizable
    assert without.broken
