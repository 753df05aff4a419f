"""The unit of deploy/systemd fits the gateway, and systemd itself finds nothing wrong with it."""

import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group

from gateway.cli import application
from gateway.config.server import Server
from gateway.workers.parent import KILLED_AFTER
from tests import ROOT

UNIT = ROOT / "deploy/systemd/fencing-gateway.service"
MOST_EXPOSURE = 1.5
"""Of 10, as ``systemd-analyze security`` counts. The network remains."""


class _Lists(dict[str, Any]):
    """Keeps all values of a key that comes more than once."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, list) and isinstance(self.get(key), list):
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


@pytest.fixture(scope="module")
def service() -> dict[str, list[str]]:
    parser = RawConfigParser(dict_type=_Lists, strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return {name: value.split("\n") for name, value in parser["Service"].items()}


def test_its_command_is_the_gateways_own(service: dict[str, list[str]]) -> None:
    program, name, *options = service["ExecStart"][0].split()
    assert Path(program).name == "gateway"
    commands = get_group(application).commands
    assert str(commands[name].make_context(name, options).params["config"]) == "/etc/fencing-gateway/gateway.toml"
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_it_waits_for_the_end_of_requests(service: dict[str, list[str]]) -> None:
    assert int(service["TimeoutStopSec"][0]) > Server().drain + KILLED_AFTER
    assert service["KillMode"] == ["mixed"]


def test_its_secrets_are_credentials(service: dict[str, list[str]]) -> None:
    named = [one.split(":")[0] for one in service["LoadCredential"]]
    assert [f"GATEWAY_POSTGRES__DSN_FILE=%d/{name}" for name in named] == service["Environment"][:1]


def test_older_systemd_knows_its_type(service: dict[str, list[str]]) -> None:
    """systemd 252, of Debian 12, ignores a type that it does not know, and then no notice counts."""
    assert service["Type"] == ["notify"]


@pytest.mark.installed
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_finds_nothing_wrong_and_little_exposed(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # Only the program is not there.
    unit.write_text(UNIT.read_text().replace("/opt/fencing-gateway/bin/gateway", "/bin/true"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"exposure level for \S+: ([\d.]+)", judged.stdout)
    assert found is not None, judged.stdout + judged.stderr
    assert float(found[1]) <= MOST_EXPOSURE
