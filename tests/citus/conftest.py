"""A cluster for all tests, and a fresh database on all its nodes for each of them."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.citus.cluster import CitusMissing, Cluster, a_cluster


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark the tests that need Citus on this machine."""
    if {"cluster", "own_cluster"} & set(item.fixturenames):
        item.add_marker(pytest.mark.installed)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with _running() as cluster:
        yield cluster


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster for one test, which may leave anything on it."""
    with _running() as cluster:
        yield cluster


@contextmanager
def _running() -> Iterator[Cluster]:
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(a_cluster())
        except CitusMissing as missing:
            pytest.skip(str(missing))
        yield cluster


@pytest.fixture
async def name(cluster: Cluster) -> AsyncIterator[str]:
    """The name of a fresh database, which all nodes have."""
    name = f"test_{uuid.uuid4().hex}"
    await cluster.create_database(name)
    yield name
    await cluster.drop_database(name)
