"""A pgbouncer before a PostgreSQL server, with the settings that Debian ships but for its mode."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.postgres import GATEWAY
from tests.processes import free_port
from tests.waiting import PATIENCE

PROGRAM = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")

_SETTINGS = """
[databases]
* = host={host}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = {mode}
default_pool_size = 40
{more}
"""


@contextmanager
def pgbouncer(server: EmbeddedPostgres, mode: str, more: str = "") -> Iterator[str]:
    """Run a pgbouncer; the host and port that it listens on. Skips the test where it is not installed."""
    if PROGRAM is None:
        pytest.skip("pgbouncer is not installed")
    with tempfile.TemporaryDirectory(prefix="pooler") as name:
        directory = Path(name)
        directory.chmod(0o777)
        port = free_port()
        users = directory / "users.txt"
        users.write_text(f'"postgres" ""\n"{GATEWAY}" ""\n')
        host = server.server.get_postmaster_info().socket_dir
        settings = directory / "pgbouncer.ini"
        settings.write_text(_SETTINGS.format(host=host, port=port, users=users, mode=mode, more=more))
        # It refuses to run as root.
        process = subprocess.Popen([PROGRAM, "-q", settings], user=server.server.system_user)
        try:
            _wait_for(port)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _wait_for(port: int) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < until, "pgbouncer does not start"
            time.sleep(0.02)
        else:
            return
