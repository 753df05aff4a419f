"""`make audit`: vulnerabilities fail, a network that is not there does not, and nothing else passes for either."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

CLEAN = {"name": "sound", "version": "1.0", "vulns": []}
VULNERABLE = {"name": "broken", "version": "0.9", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.0"]}]}
UNKNOWN = {"name": "ours", "skip_reason": "not on PyPI"}
OFFLINE = "Traceback …\nrequests.exceptions.ConnectionError: HTTPSConnectionPool(host='pypi.org', port=443)"


def audited(tmp_path: Path, stdout: str, stderr: str = "", code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run the target with a pip-audit that says this."""
    program = tmp_path / "pip-audit"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"sys.stdout.write({stdout!r})\nsys.stderr.write({stderr!r})\nsys.exit({code})\n"
    )
    program.chmod(0o755)
    script = ROOT / ".ci/audit.py"
    return subprocess.run([sys.executable, script, program], capture_output=True, text=True, check=False)


def said(*pins: object) -> str:
    return json.dumps({"dependencies": pins, "fixes": []})


def test_nothing_known_is_a_success_that_says_how_much_was_looked_up(tmp_path: Path) -> None:
    ended = audited(tmp_path, said(CLEAN, UNKNOWN))
    assert ended.returncode == 0
    for file in ("run", "demo", "dev"):
        assert f"requirements/{file}.txt: 1 of 2 looked up, 0 vulnerabilities known" in ended.stdout
    assert "the service does not know ours" in ended.stdout


def test_a_known_vulnerability_fails_and_is_named(tmp_path: Path) -> None:
    ended = audited(tmp_path, said(CLEAN, VULNERABLE), "Found 1 known vulnerability", 1)
    assert ended.returncode == 1
    assert "broken 0.9: PYSEC-1, fixed in ['1.0']" in ended.stdout


def test_without_a_network_it_is_skipped_with_the_reason(tmp_path: Path) -> None:
    ended = audited(tmp_path, "", OFFLINE, 1)
    assert ended.returncode == 0
    assert "SKIPPED, nothing was looked up: the service cannot be reached (requests.exceptions" in ended.stdout


def test_a_service_that_knows_nothing_is_not_believed(tmp_path: Path) -> None:
    """A mirror of packages answers so; "none known" would be no finding."""
    ended = audited(tmp_path, said(UNKNOWN, UNKNOWN))
    assert ended.returncode == 0
    assert "SKIPPED, nothing was looked up: the service that answers here knows none of the 2 pins" in ended.stdout


@pytest.mark.parametrize(("stdout", "stderr"), [("", "ERROR: requirements cannot be read"), ("{}", ""), ("", "")])
def test_every_other_failure_is_one(tmp_path: Path, stdout: str, stderr: str) -> None:
    ended = audited(tmp_path, stdout, stderr, 1)
    assert ended.returncode == 2
    assert "pip-audit has failed" in ended.stdout
