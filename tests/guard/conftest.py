"""The stage, with guards on it or not, and sessions of the role that writes beside the gateway."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from tests.guard.stage import TABLES, Session, Stage, logging_in_as, session


@pytest.fixture
async def stage(dsn: str) -> AsyncIterator[Stage]:
    gateway, app = f"gateway_{uuid4().hex[:12]}", f"app_{uuid4().hex[:12]}"
    made = Stage(dsn, logging_in_as(gateway, dsn), logging_in_as(app, dsn), gateway, app)
    await made.execute(f"""
        CREATE ROLE {gateway} LOGIN;
        CREATE ROLE {app} LOGIN;
        {TABLES}
        GRANT ALL ON ALL TABLES IN SCHEMA public TO {gateway}, {app};
        GRANT USAGE ON SCHEMA fencing TO {gateway};
        GRANT ALL ON ALL TABLES IN SCHEMA fencing TO {gateway};
    """)
    yield made
    await made.execute(f"DROP OWNED BY {gateway}, {app}; DROP ROLE {gateway}, {app}")


@pytest.fixture
async def guarded(stage: Stage) -> Stage:
    """The stage with a guard on its shipments."""
    await stage.install("shipments")
    return stage


@pytest.fixture
async def app(stage: Stage) -> AsyncIterator[Session]:
    """A session beside the gateway."""
    async with session(stage.app) as opened:
        yield opened


@pytest.fixture
async def other(stage: Stage) -> AsyncIterator[Session]:
    """Another one."""
    async with session(stage.app) as opened:
        yield opened
