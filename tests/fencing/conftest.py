"""A gateway with one resource policy of each kind, over a table and a bucket that share their resources."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from tests.fencing.policy_gateway import World, opened


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a module share its gateway, and so its loop."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(postgres_server: EmbeddedPostgres) -> AsyncIterator[World]:
    async with opened(postgres_server) as one:
        yield one


@pytest.fixture
def name() -> str:
    """Return a unique part of a resource such as ``signed/{name}``."""
    return uuid4().hex[:12]
