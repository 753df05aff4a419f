"""A cluster for all tests, and a fresh database on all its nodes for each of them."""

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.citus.cluster import CitusMissing, Cluster, a_cluster


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark the tests that need Citus on this machine."""
    if "cluster" in item.fixturenames:
        item.add_marker(pytest.mark.installed)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    try:
        running = a_cluster()
        cluster = running.__enter__()
    except CitusMissing as missing:
        pytest.skip(str(missing))
    try:
        yield cluster
    finally:
        running.__exit__(None, None, None)


@pytest.fixture
async def name(cluster: Cluster) -> AsyncIterator[str]:
    """The name of a fresh database, which all nodes have."""
    name = f"test_{uuid.uuid4().hex}"
    await cluster.create_database(name)
    yield name
    await cluster.drop_database(name)
