"""The judge of linearizability, which ``make soak`` asks: its models, in histories that are right and wrong."""

import subprocess

import pytest

from tests.crash.porcupine import FOLDER, NotHere, Porcupine, go

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
