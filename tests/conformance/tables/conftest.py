"""One gateway, in a thread, and one set of tables for all rows. A row that changes them has them filled again."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway import serving
from gateway.app import build
from gateway.config import Config
from gateway.demo.embedded import EmbeddedPostgres
from tests.conformance.tables.asking import Asker
from tests.conformance.tables.stage import SCHEMAS, Stage
from tests.patience import limited
from tests.postgres import fresh
from tests.running import OPEN, Events

# The rows of each other table share one resource, so that the gateway accepts a write with any filter.
# PostgREST has no rule for the rows that a token covers.
TABLES = (
    "actors", "alarms", "badges", "directors", "films", "folders", "invoices", "notes", "papers", "pledges",
    "premieres", "recent", "remakes", "roles", "screens", "seats", "sheets", "showings", "stays", "tallies", "tickets",
    "Odd Names",
)  # fmt: skip

FUNCTIONS = (
    *(f"cinema.{name}" for name in (
        "add", "films_of", "film", "greet", "sum_all", "retitle", "close_all", "take_seats", "whole", "either", "sly",
        "teapot", "sealed", "garbled", "spoken", "numbered",
    )),
    "archive.boxed",
)  # fmt: skip
"""All but ``unlisted``."""


def configuration(dsn: str, mode: str = "enforce") -> Config:
    """Return a configuration with all options for PostgREST's defaults on. ``mode`` observe: writes need no token."""
    return limited(Config.model_validate({
        "postgres": {
            "dsn": dsn, "schemas": SCHEMAS, "functions": FUNCTIONS,
        },
        "server": {"rest_v1": True, "cors_origins": ["*"]},
        "grants": OPEN,
        "fencing": {"mode": mode},
        "tables": [
            {"name": f"cinema.{name}", "resource": f"cinema/{name.replace(' ', '-').lower()}"} for name in TABLES
        ],
    }))  # fmt: skip


@contextmanager
def served(config: Config) -> Iterator[str]:
    """Serve until the end; the address tables are at."""
    listener = serving.bind("127.0.0.1", 0)
    with serving.in_background(build(config, Events()), listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/rest/v1"


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark the tests of this folder: `make test` shows the dialect with fewer requests."""
    item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="module")
def dsn(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    with fresh(postgres_server) as address:
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
