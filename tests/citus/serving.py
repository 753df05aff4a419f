"""A table plane with a gateway's rights on one node, and questions to the node itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx

from gateway.db.database import Database
from gateway.tables.pipeline import Exposure, TablePlane
from tests.callers import known
from tests.postgres import GATEWAY, as_gateway
from tests.tables.asking import over_asgi

# Tests on the coordinator may have made it there alone, in a database without Citus.
ROLE = f"""
SET citus.enable_ddl_propagation = off;
DO $$ BEGIN
    IF to_regrole('{GATEWAY}') IS NULL THEN
        CREATE ROLE {GATEWAY} LOGIN;
    END IF;
END $$
"""


@asynccontextmanager
async def serving(dsn: str, schemas: tuple[str, ...] = ("public",)) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a plane whose rows have the names that they have without rules."""
    database = Database(as_gateway(dsn))
    exposure = Exposure(schemas=schemas)
    plane = TablePlane(database, exposure, authenticate=lambda _: known("tester"), observe=lambda _: None)
    async with over_asgi(plane) as opened:
        yield opened
    await database.close()


async def asked(dsn: str, sql: str) -> list[Any]:
    """Return the first column of a query to a node."""
    session = await asyncpg.connect(dsn)
    try:
        return [row[0] for row in await session.fetch(sql)]
    finally:
        session.terminate()
