"""A pooler between gateway and PostgreSQL: session pooling is served, and a gateway refuses to start with any other."""

import pytest

from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import ConfigurationError, SessionsShared
from gateway.serving import check_schema
from tests.doctor.test_doctor import execute
from tests.poolers import pgbouncer
from tests.postgres import GATEWAY, Server
from tests.tiers import first

pytestmark = pytest.mark.installed


@pytest.fixture
def embedded(postgres_server: Server) -> EmbeddedPostgres:
    if not isinstance(postgres_server, EmbeddedPostgres):
        pytest.skip("the pooler stands before the embedded server")
    return postgres_server


@pytest.fixture
def name(dsn: str) -> str:
    """The database behind the pooler."""
    return dsn.partition("?")[0].rpartition("/")[2]


PINNED = """
SELECT current_setting('TimeZone') AS zone, current_setting('statement_timeout') AS statement,
    current_setting('idle_in_transaction_session_timeout') AS idle, current_setting('synchronous_commit') AS commits,
    current_setting('application_name') AS application
"""


@pytest.mark.parametrize("more", ["", "ignore_startup_parameters = extra_float_digits,timezone,statement_timeout"])
async def test_a_session_pooler_keeps_the_pins(embedded: EmbeddedPostgres, name: str, more: str) -> None:
    with pgbouncer(embedded, "session", more) as place:
        setting = f"ALTER ROLE {GATEWAY} IN DATABASE {name} SET"
        owner = f"postgresql://postgres@{place}/{name}"
        await execute(owner, f"{setting} TimeZone = 'Asia/Tokyo'", f"{setting} synchronous_commit = off")
        dsn = f"postgresql://{GATEWAY}@{place}/{name}"
        await check_schema(dsn)
        async with Database(dsn, statement_timeout=7, idle_timeout=6) as database:
            row = await database.fetchrow(PINNED)
        assert row is not None
        assert tuple(row.values()) == ("UTC", "7s", "6s", "on", "fencing-gateway")


@pytest.mark.parametrize("more", first(["", "server_round_robin = 1", "max_client_conn = 100\ndefault_pool_size = 1"]))
@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_any_other_is_refused_at_the_start(embedded: EmbeddedPostgres, name: str, mode: str, more: str) -> None:
    with pgbouncer(embedded, mode, more) as place:
        dsn = f"postgresql://{GATEWAY}@{place}/{name}"
        with pytest.raises(ConfigurationError, match="gives the gateway's sessions to other clients") as refused:
            await check_schema(dsn)
        assert "pool_mode = session" in refused.value.advice
        # One that was started before its pooler was there writes nothing.
        async with Database(dsn) as database:
            with pytest.raises(SessionsShared):
                await database.fetchrow_write("CREATE TABLE nothing ()")
