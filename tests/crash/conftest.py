"""The stage of the crash tests: everything in processes of its own, shared by all cases, each at its own place."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from gateway.db import rights
from tests.crash.clients import BUCKET, Client
from tests.crash.kinds import SOURCE, SOURCE_BODY
from tests.crash.processes import Gateway, Nursery, Victims
from tests.crash.stage import Postgres, Stage
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, DoubleProcess
from tests.patience import LIMITS
from tests.postgres import GATEWAY, Server, as_gateway, fresh

# A victim that is to be paused inside a transaction is thrown out of it after this many seconds. All others may sleep
# there for longer, as they do on a busy machine.
IDLE_TIMEOUT = 0.5


@pytest.fixture(scope="session")
def crash_dsn(postgres_server: Server) -> Iterator[str]:
    with fresh(postgres_server) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def crash_postgres(crash_dsn: str) -> Iterator[Postgres]:
    with _with_accounts(crash_dsn) as postgres:
        yield postgres


@contextmanager
def _with_accounts(dsn: str) -> Iterator[Postgres]:
    postgres = Postgres(dsn)
    postgres.rows("CREATE TABLE accounts (id bigint PRIMARY KEY, note text)")
    yield postgres
    postgres.close()


@pytest.fixture(scope="session")
def stage(crash_dsn: str, crash_postgres: Postgres) -> Iterator[Stage]:
    with DoubleProcess.start(buckets=["bucket"]) as double, _staged(crash_dsn, crash_postgres, double, 1) as staged:
        yield staged


@pytest.fixture(scope="session")
def weak_stage(crash_dsn: str, crash_postgres: Postgres) -> Iterator[Stage]:
    """The store ignores the condition of a completion, and the gateways have found that out."""
    with DoubleProcess.start(buckets=["bucket"]) as double:
        double.behave(ignored_conditions=["CompleteMultipartUpload"])
        with _staged(crash_dsn, crash_postgres, double, 1_000_000) as staged:
            yield staged


@pytest.fixture(scope="session")
def role_stage(postgres_server: Server) -> Iterator[Stage]:
    """All requests to tables run under a role of the database, which policies bind.

    Its database is its own: with policies, writes of the other stages would take another path.
    """
    role = f"member_{uuid4().hex[:12]}"
    with fresh(postgres_server) as dsn, _with_accounts(dsn) as postgres:
        for statement in (
            f"CREATE ROLE {role}",
            f"GRANT {role} TO {GATEWAY}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON accounts TO {role}",
            f"CREATE POLICY bound ON accounts TO {role} USING (note <> 'hidden')",
            "ALTER TABLE accounts ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY free ON accounts TO PUBLIC USING (true)",
        ):
            postgres.rows(statement)
        asyncio.run(rights.let_act(dsn, [role]))
        roles = [{"callers": ["*"], "role": role}]
        with (
            DoubleProcess.start(buckets=["bucket"]) as double,
            _staged(dsn, postgres, double, 2_000_000, roles=roles) as staged,
        ):
            yield staged
        postgres.rows(f"DROP OWNED BY {role}")
        postgres.rows(f"DROP ROLE {role}")


@contextmanager
def _staged(dsn: str, postgres: Postgres, double: DoubleProcess, first: int, **of_database: Any) -> Iterator[Stage]:
    """``of_database``: more settings of the section ``postgres``."""
    database = {"dsn": as_gateway(dsn), **LIMITS, **of_database}
    # The timeout is longer than any test holds a request, and no request waits long for another write of its own.
    limits = {"timeout": 60, "pending_wait": 0.3, "memory_threshold": 1024 * 1024, "sweep_interval": 0}
    given = {
        "dsn": dsn,
        "postgres": database,
        "objects": [{"match": "bucket/accounts/{id}/**", "resource": "public.accounts/{id}"}],
        "s3": {"endpoint": double.endpoint, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, **limits},
    }
    with Nursery(given) as nursery:

        def hatch(known: str | None = BUCKET, **sections: Any) -> Gateway:
            """A gateway that has written before. Of several hundred, not each has to find out what the store does."""
            gateway = nursery.hatch(known, **sections)
            assert Client(gateway.port, 1).put("warm", b"").succeeded
            return gateway

        def hatch_sleeper() -> Gateway:
            return hatch(postgres={**database, "idle_timeout": IDLE_TIMEOUT})

        healthy = hatch(known=None)
        assert Client(healthy.port, 1).put(SOURCE, SOURCE_BODY).succeeded
        built = Stage(double, postgres, healthy, Victims(hatch), Victims(hatch_sleeper, ahead=False), given, first)
        yield built
        built.close()
