"""One gateway and one set of tables for all rows; a row that changes them has them filled again."""

from collections.abc import Iterator

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.conformance.tables.asking import Asker
from tests.conformance.tables.serving import configuration, database, served
from tests.conformance.tables.stage import Stage


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark the tests of this folder: `make test` shows the dialect with fewer requests."""
    item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="module")
def dsn(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    with database(postgres_server) as address:
        yield address


@pytest.fixture(scope="module")
def stage(dsn: str) -> Iterator[Stage]:
    with Stage(dsn) as opened:
        yield opened


@pytest.fixture(scope="module")
def asker(dsn: str, stage: Stage) -> Iterator[Asker]:
    with served(configuration(dsn)) as address:
        opened = Asker(address)
        yield opened
        opened.close()
