"""The guides whose commands run in order in one shell. The output is compared with what the page shows.

``<!-- run: NAME -->`` stands before a block of commands that succeeds. ``<!-- refused: NAME -->`` stands before one
that fails. A block ``text`` behind it shows lines of its output, in order. There ``…`` is any text, and a space may be
a tab. The guide of TLS runs with a PostgreSQL of the system: the embedded one has no TLS.
"""

import os
import pwd
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

import psutil
import pytest

from examples.retrofit.__main__ import fill, old_service
from gateway.demo import embedded
from tests import ROOT
from tests.certificate_authority import SERVER, Authority
from tests.clients import formats
from tests.processes import PATIENCE, free_port
from tests.sources import servers
from tests.sources.conftest import started

_BLOCK = re.compile(
    r"^ *<!-- (run|refused): (\S+) -->\n *```sh\n(.*?)^ *```\n(?:\n *```text\n(.*?)^ *```\n)?", re.MULTILINE | re.DOTALL
)
_END = "\036"


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    refused: bool
    commands: str
    shown: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page. Each block of commands has to have a mark."""
    text = page.read_text()
    found = [
        Block(name, kind == "refused", dedent(commands), tuple(dedent(shown).splitlines()))
        for kind, name, commands, shown in _BLOCK.findall(text)
    ]
    assert len(found) == len(re.findall(r"^ *```sh$", text, re.MULTILINE)), "a block of commands that is not run"
    assert found
    return found


def play(page: Path, directory: Path, variables: Mapping[str, str], port: int, *within: str) -> None:
    """Run the blocks of a page in ``directory``. ``port`` stands for 8080. All processes that it starts are ended.

    ``within``: a command that runs the shell elsewhere.
    """
    listed = blocks(page)
    (directory / "examples").symlink_to(ROOT / "examples")
    script = "".join(f"{block.commands}printf '{_END}%s{_END}' $?\n" for block in listed).replace("8080", str(port))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        **variables,
        "PATH": f"{Path(sys.executable).parent}:{variables.get('PATH', os.environ['PATH'])}",
    }
    said = directory / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*within, "bash", "-u", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    try:
        # A busy machine takes a second for each command, and a page has thirty.
        process.wait(5 * PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the page does not end:\n{said.read_text()}")
    finally:
        _end(process)
    output_of_all = said.read_text()
    *parts, _ = output_of_all.split(_END)
    assert len(parts) == 2 * len(listed), output_of_all
    for block, answer, status in zip(listed, parts[::2], parts[1::2], strict=True):
        assert (status != "0") is block.refused, f"{block.name}: {status}\n{answer}"
        shown = tuple(line.replace("8080", str(port)) for line in block.shown)
        assert re.search(_pattern(shown), answer, re.MULTILINE | re.DOTALL), f"{block.name} said\n{answer}"


def _end(shell: "subprocess.Popen[bytes]") -> None:
    """End the group of the shell. A demo stops its database first, which is in no group of ours."""
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait()
        give_up = time.monotonic() + PATIENCE
        while _lives(shell.pid) and time.monotonic() < give_up:
            time.sleep(0.05)
        os.killpg(shell.pid, signal.SIGKILL)


def _lives(group: int) -> bool:
    for one in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getpgid(one.pid) == group and one.info["status"] != psutil.STATUS_ZOMBIE:
                return True
    return False


def _pattern(lines: tuple[str, ...]) -> str:
    """Return an expression for these lines in this order, with others between them."""
    return ".*".join(rf"^{_line(line)}$" for line in lines)


def _line(line: str) -> str:
    escaped = re.escape(line.strip()).replace(re.escape("…"), r"[^\n]*")
    return r"[ \t]*" + re.sub(r"(?:\\ )+", r"[ \\t]*", escaped)


GUIDES = ROOT / "docs/guides"
EXAMPLE = ROOT / "examples/retrofit"


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["retrofit", "backup"])
def test_every_command_in_order(page: str) -> None:
    with tempfile.TemporaryDirectory(prefix="guide-", dir="/tmp") as name:
        directory = Path(name)
        work, port = directory / "work", free_port()
        work.mkdir()
        with old_service(directory) as variables:
            programs = f"{Path(embedded.psql()).parent}:{os.environ['PATH']}"
            # The example's file has the port of the page, and this test another one.
            more = {"PATH": programs, "GATEWAY_SERVER__LISTEN": f"127.0.0.1:{port}"}
            play(GUIDES / f"{page}.md", work, {**variables, **more}, port)


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["cron", "leader-election"])
def test_every_command_with_a_demo_in_order(page: str) -> None:
    with_a_demo(page)


@pytest.mark.installed
def test_every_command_of_the_lake_in_order() -> None:
    formats.python()
    with_a_demo("lake")


@pytest.mark.installed
def test_every_command_of_leaders_in_order_where_etcd_elects_them(tmp_path: Path) -> None:
    with ExitStack() as stack:
        etcd = started(lambda: servers.etcd(tmp_path), stack)
        with_a_demo("leader-election", ETCD=f"http://{etcd.address}")


def with_a_demo(page: str, **variables: str) -> None:
    with tempfile.TemporaryDirectory(prefix="guide-", dir="/tmp") as name:
        work = Path(name) / "work"
        work.mkdir()
        play(GUIDES / f"{page}.md", work, {"TMPDIR": name, **variables}, free_port())


def test_the_loop_that_is_shown_is_that_of_the_worker() -> None:
    page = (GUIDES / "leader-election.md").read_text()
    (shown,) = re.findall(r"^ *```python\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    assert indent(dedent(shown), "    ") in (ROOT / "examples/worker/worker.py").read_text()


def test_the_rules_that_are_shown_are_those_of_the_example() -> None:
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", (GUIDES / "retrofit.md").read_text(), re.MULTILINE | re.DOTALL)
    for rule in shown.strip().split("\n\n"):
        assert rule in (EXAMPLE / "observe.toml").read_text()


PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{data}'
ssl = on
ssl_cert_file = 'tls.pem'
ssl_key_file = 'tls.pem'
fsync = off
"""
RIGHTS = """
local all all trust
hostssl all all 127.0.0.1/32 trust
"""


@contextmanager
def over_tls(directory: Path, programs: Path) -> Iterator[Mapping[str, str]]:
    """Run the old service's database, which answers over TCP by TLS alone; the variables of the page."""
    data, port, authority = directory / "data", free_port(), Authority("database")
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None

    def run(name: str, *arguments: str | Path) -> None:
        subprocess.run(
            [programs / name, "-D", data, *arguments],
            check=True,
            user=None if user is None else user.pw_uid,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    data.mkdir()
    directory.chmod(0o755)
    if user is not None:
        os.chown(data, user.pw_uid, user.pw_gid)
    run("initdb", "--auth=trust", "--username=postgres", "--no-sync")
    certificate = authority.issue(data / "tls.pem", "DNS:localhost", "IP:127.0.0.1", purposes=(SERVER,))
    certificate.chmod(0o600)
    if user is not None:
        os.chown(certificate, user.pw_uid, user.pw_gid)
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(SETTINGS.format(port=port, data=data))
    (data / "pg_hba.conf").write_text(RIGHTS)
    known = directory / "database.crt"
    known.write_bytes(authority.certificate)
    run("pg_ctl", "-w", "-l", data / "log", "start")
    try:
        superuser = f"postgresql://postgres@/postgres?host={data}&port={port}"
        fill(superuser)
        yield {
            "DATABASE": f"postgresql://gateway@localhost:{port}/shop?application_name=guide",
            "DATABASE_AUTHORITY": str(known),
            "ADMIN": superuser,
            "OWNER": f"postgresql://owner@/shop?host={data}&port={port}",
            "PGHOST": str(data),
            "PGPORT": str(port),
            "PGDATABASE": "shop",
            "PGUSER": "app",
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
    finally:
        run("pg_ctl", "-w", "-m", "immediate", "stop")


@pytest.mark.installed
@pytest.mark.skipif(not PROGRAMS, reason="no PostgreSQL of the system, and the embedded one has no TLS")
def test_every_command_over_tls_in_order() -> None:
    with tempfile.TemporaryDirectory(prefix="guide-", dir="/tmp") as name:
        work = Path(name) / "work"
        work.mkdir()
        with over_tls(Path(name), PROGRAMS[-1].parent) as variables:
            play(ROOT / "docs/guides/tls.md", work, variables, free_port())
