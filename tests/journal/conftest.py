"""A database with a journal in a bucket or in a second database, and gateways beside it."""

from collections.abc import AsyncIterator

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.journal.installation import Installation, in_a_bucket, in_rows, installed
from tests.postgres import fresh_database
from tests.tiers import first

KINDS = {"bucket": in_a_bucket, "rows": in_rows}


@pytest.fixture(params=first(KINDS))
async def installation(
    request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres
) -> AsyncIterator[Installation]:
    """With a journal of each kind; `make test` takes the first one."""
    async with (
        fresh_database(postgres_server) as second,
        KINDS[request.param](second) as (store, double),
        installed(postgres_server, store, double) as one,
    ):
        yield one
