"""The stage of the crash tests: everything in processes of its own, shared by all cases, each at its own place."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.crash.clients import BUCKET, Client
from tests.crash.kinds import SOURCE, SOURCE_BODY
from tests.crash.processes import Gateway, Nursery, Victims
from tests.crash.stage import Postgres, Stage
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, DoubleProcess
from tests.postgres import Server, fresh

# A victim that is to be paused inside a transaction is thrown out of it after this many seconds. All others may sleep
# there for longer, as they do on a busy machine.
IDLE_TIMEOUT = 0.5


@pytest.fixture(scope="session")
def crash_dsn(postgres_server: Server) -> Iterator[str]:
    with fresh(postgres_server) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def crash_postgres(crash_dsn: str) -> Iterator[Postgres]:
    postgres = Postgres(crash_dsn)
    postgres.rows("CREATE TABLE accounts (id bigint PRIMARY KEY, note text)")
    yield postgres
    postgres.close()


@pytest.fixture(scope="session")
def stage(crash_dsn: str, crash_postgres: Postgres) -> Iterator[Stage]:
    # The timeout is longer than any test holds a request, and no request waits long for another write of its own.
    limits = {"store_timeout": 60, "pending_wait": 0.3, "memory_threshold": 1024 * 1024}
    with ExitStack() as stack:
        double = stack.enter_context(DoubleProcess.start(buckets=["bucket"]))
        s3 = {"endpoint": double.endpoint, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
        objects = [{"match": "bucket/accounts/{id}/**", "resource": "public.accounts/{id}"}]
        given = {"dsn": crash_dsn, "limits": limits, "objects": objects, "s3": s3}
        nursery = stack.enter_context(Nursery(given))

        def hatch(known: str | None = BUCKET, **sections: Any) -> Gateway:
            """A gateway that has written before. Of several hundred, not each has to find out what the store does."""
            gateway = nursery.hatch(known, **sections)
            assert Client(gateway.port, 1).put("warm", b"").succeeded
            return gateway

        def hatch_sleeper() -> Gateway:
            return hatch(limits={**limits, "idle_timeout": IDLE_TIMEOUT})

        healthy = hatch(known=None)
        assert Client(healthy.port, 1).put(SOURCE, SOURCE_BODY).succeeded
        built = Stage(double, crash_postgres, healthy, Victims(hatch), Victims(hatch_sleeper, ahead=False))
        yield built
        built.close()
