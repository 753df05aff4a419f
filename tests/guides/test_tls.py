"""docs/guides/tls.md: its commands run in order, with a PostgreSQL that answers over TLS. The embedded one cannot."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.retrofit.__main__ import fill
from tests import ROOT
from tests.certificate_authority import SERVER, Authority
from tests.guides.pages import play
from tests.processes import free_port

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
def test_every_command_in_order() -> None:
    with tempfile.TemporaryDirectory(prefix="guide-", dir="/tmp") as name:
        work = Path(name) / "work"
        work.mkdir()
        with over_tls(Path(name), PROGRAMS[-1].parent) as variables:
            play(ROOT / "docs/guides/tls.md", work, variables, free_port())
