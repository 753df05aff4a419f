"""The shared fixtures: a server of PostgreSQL that lasts a session, and a fresh database."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest

from gateway.db.database import Database
from gateway.objects.store import probe
from tests.patience import patient
from tests.postgres import Server, a_server, fresh

# Hypothesis' own profile for gates. The duration of an example depends more on the machine and its load than on the
# tested code. With the same examples each time, chance refuses no change.
hypothesis.settings.load_profile("ci")

# Each new httpx client, and each gateway, reads the authorities of the whole world, 20 ms each time, though no test
# needs them. This authority vouches for no server: its key is gone.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("nobody.pem"))

# A shell's background job ignores SIGINT, and so would each process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    with a_server() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def short_probe() -> Iterator[None]:
    """A gateway sends 150 requests to a bucket before its first write there, most of them in races.

    Gateways in the process of a test race two requests, once. Tests of the probe, and those of real stores, override
    this fixture.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, number in {"_ROUNDS": 1, "_WRITERS": 2, "_UPLOADS": 1, "_DELETES": 1, "_LARGE": 0}.items():
            patch.setattr(probe, name, number)
        yield


@pytest.fixture
def dsn(postgres_server: Server) -> Iterator[str]:
    """A fresh database with the fencing schema."""
    with fresh(postgres_server) as dsn:
        yield dsn


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    # Tests of the time-outs have databases of their own.
    opened = patient(dsn)
    yield opened
    await opened.close()
