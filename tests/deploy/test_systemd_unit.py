"""The unit of deploy/systemd fits the gateway, which tells a service manager when it is ready, reloads and stops."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from typer.main import get_group

from gateway.cli import application
from gateway.commands.environment import taken_from_environment
from gateway.commands.run import _is_dropped
from gateway.config.sections import Server
from gateway.service_manager import VARIABLES, ServiceManager
from gateway.workers.parent import KILLED_AFTER
from tests import ROOT
from tests.processes import free_port, started
from tests.test_reload import RULE, TABLES, Served

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


def test_it_fits_how_the_gateway_stops_starts_and_reads_secrets(service: dict[str, list[str]]) -> None:
    assert int(service["TimeoutStopSec"][0]) > Server().drain + KILLED_AFTER
    assert service["KillMode"] == ["mixed"]
    # systemd 252, of Debian 12, ignores a type that it does not know, and then no notice counts.
    assert service["Type"] == ["notify"]
    named = [one.split(":")[0] for one in service["LoadCredential"]]
    assert [f"GATEWAY_POSTGRES__DSN_FILE=%d/{name}" for name in named] == service["Environment"][:1]


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


PATIENCE = 60.0


@pytest.fixture
def dsn(dsn: str) -> str:
    """A database with the table of the rule."""

    async def made() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(TABLES)
        await connection.close()

    asyncio.run(made())
    return dsn


class Manager:
    """Plays the manager: it receives notices, with the process that each came from."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.settimeout(PATIENCE)
        self.socket.bind("\0" + path[1:] if path.startswith("@") else path)
        self.seen: list[tuple[int, dict[str, str]]] = []

    def next(self) -> tuple[int, dict[str, str]]:
        data, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(12))
        process = int.from_bytes(ancillary[0][2][:4], "little")
        self.seen.append((process, dict(line.split("=", 1) for line in data.decode().split("\n"))))
        return self.seen[-1]

    def until(self, name: str) -> tuple[int, dict[str, str]]:
        while True:
            process, notice = self.next()
            if name in notice:
                return process, notice


@contextmanager
def managed(
    tmp_path: Path, dsn: str, *more: str, address: str | None = None, watchdog: str = "2000000"
) -> Iterator[tuple[Manager, Served]]:
    """Run a gateway under a manager.

    A socket has room for few notices, ten as a rule. If signs of life fill it before the test reads them, the gateway
    drops other notices. So ``watchdog``, in microseconds, is not short.
    """
    address = address or str(tmp_path / "notify")
    manager, port = Manager(address), free_port()
    file = tmp_path / "gateway.toml"
    Served(None, file, dsn, port, "").write(RULE)  # type: ignore[arg-type]  # not running yet
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": watchdog}
    with started("serve", "--config", str(file), *more, more=environment) as process, manager.socket:
        yield manager, Served(process, file, dsn, port, "")


@pytest.mark.thorough
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.thorough)])
def test_start_reload_signs_of_life_and_stop(tmp_path: Path, dsn: str, workers: str) -> None:
    with managed(tmp_path, dsn, "--workers", workers) as (manager, gateway):
        own = gateway.process.process.pid
        process, ready = manager.until("READY")
        assert (process, ready["STATUS"]) == (own, f"Serving http://127.0.0.1:{gateway.port}")
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE):
            pass
        manager.until("WATCHDOG")

        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        gateway.write(RULE + 'mode = "observe"\n')
        os.kill(own, signal.SIGHUP)
        _, reloading = manager.until("RELOADING")
        assert before <= int(reloading["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        manager.until("READY")
        assert "configuration reloaded" in gateway.process.said()

        # A reload that is refused is over, too, and so is one that changes nothing.
        gateway.file.write_text("[nonsense]\n")
        os.kill(own, signal.SIGHUP)
        manager.until("RELOADING")
        manager.until("READY")
        assert "reload failed" in gateway.process.said()

        os.kill(own, signal.SIGTERM)
        _, stopping = manager.until("STOPPING")
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= 35_000_000
        assert gateway.process.process.wait(PATIENCE) == 0
        assert {one for one, _ in manager.seen} == {own}


@pytest.mark.thorough
def test_a_worker_that_hangs_in_a_reload_is_not_waited_for(tmp_path: Path, dsn: str) -> None:
    with managed(tmp_path, dsn, "--workers", "2") as (manager, gateway):
        manager.until("READY")
        workers = psutil.Process(gateway.process.process.pid).children()
        assert not any("NOTIFY_SOCKET" in one.environ() or "WATCHDOG_USEC" in one.environ() for one in workers)
        for one in workers:
            one.suspend()
        os.kill(gateway.process.process.pid, signal.SIGHUP)
        manager.until("RELOADING")
        for one in workers:
            one.kill()
        manager.until("READY")


@pytest.mark.thorough
def test_a_manager_that_is_gone_stops_nothing(tmp_path: Path, dsn: str) -> None:
    """Its address was an abstract one, which no file shows."""
    address = f"@fencing-{os.getpid()}-{time.monotonic_ns()}"
    with managed(tmp_path, dsn, address=address) as (manager, gateway):
        assert manager.until("READY")[0] == gateway.process.process.pid
        manager.socket.close()
        os.kill(gateway.process.process.pid, signal.SIGHUP)
        time.sleep(0.5)
        assert gateway.process.stop() == 0


def test_a_manager_that_does_not_read_holds_nothing_up(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    with manager.socket:
        sent = ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        began = time.monotonic()
        for _ in range(12):
            sent.ready("Serving")
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "address", ["", "@", "/", "relative", "vsock:2:1", "/no/such/folder/notify", "/" + 200 * "x", "/\udc80"]
)
def test_an_address_that_is_none(address: str) -> None:
    ServiceManager.of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1"}).ready("Serving")


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "much"}, None),
        ({}, None),
    ],
)
def test_a_watchdog_is_for_the_process_that_it_names(environment: dict[str, str], seconds: float | None) -> None:
    assert ServiceManager.of({"NOTIFY_SOCKET": "/notify", **environment}, process=7).watchdog == seconds


@pytest.mark.parametrize("fenced", [True, False])
def test_the_command_of_gateway_run_is_the_service(*, fenced: bool) -> None:
    """So it may speak to the manager, as after ``env``. ``gateway serve`` keeps the variables to itself."""
    assert not any(_is_dropped(name, fenced=fenced) for name in VARIABLES)


def test_the_variables_are_taken_away_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/notify")
    assert taken_from_environment(*VARIABLES) == {"NOTIFY_SOCKET": "/notify"}
    assert taken_from_environment(*VARIABLES) == {}
    assert "NOTIFY_SOCKET" not in os.environ


def test_lines_in_the_journal_have_priorities() -> None:
    """``JOURNAL_STREAM`` names the device and inode of the journal's stream, and ours is another one or that one."""
    script = (
        "import os; from gateway.observe import events, logs; s = os.fstat(2)\n"
        "for offset in (1, 0):\n"
        "    logs.to_journal(f'{s.st_dev}:{s.st_ino + offset}')\n"
        "    logs.log(events.Listening('http://here', 1024)); logs.log(events.ReloadFailed('no'))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [line[:4] for line in ended.stderr.splitlines()] == ['{"ur', '{"er', "<6>{", "<3>{"]
