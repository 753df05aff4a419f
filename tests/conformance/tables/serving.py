"""The gateway in front of the tables of the rows, in a thread, for code that blocks."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway import serving
from gateway.app import build
from gateway.config import Config
from gateway.demo.embedded import EmbeddedPostgres
from tests.conformance.tables.stage import SCHEMAS
from tests.patience import LIMITS
from tests.postgres import fresh_database
from tests.running import OPEN, Events

# The rows of each other table share one resource, so that the gateway accepts a write with any filter.
# PostgREST has no rule for the rows that a token covers.
OWN_RESOURCES = frozenset(("accounts", "pairs", "days", "renumbered"))
TABLES = (
    "actors", "alarms", "badges", "directors", "films", "folders", "invoices", "notes", "papers", "pledges",
    "premieres", "recent", "remakes", "roles", "screens", "seats", "sheets", "showings", "stays", "tallies", "tickets",
    "Odd Names",
)  # fmt: skip

FUNCTIONS = (
    *(f"cinema.{name}" for name in (
        "add", "films_of", "film", "greet", "sum_all", "retitle", "close_all", "take_seats", "whole", "either", "sly",
        "teapot", "sealed", "garbled",
    )),
    "archive.boxed",
)  # fmt: skip
"""All but ``unlisted``."""


def configuration(dsn: str, mode: str = "enforce") -> Config:
    """Return a configuration with all options for PostgREST's defaults on. ``mode`` observe: writes need no token."""
    return Config.model_validate({
        "postgres": {
            "dsn": dsn, "schemas": SCHEMAS, "functions": FUNCTIONS, "overrides": True,
            **LIMITS,
        },
        "server": {"rest_v1": True, "cors_origins": ["*"]},
        "grants": OPEN,
        "fencing": {"mode": mode},
        "tables": [
            {"name": f"cinema.{name}", "resource": f"cinema/{name.replace(' ', '-').lower()}"} for name in TABLES
        ],
    })  # fmt: skip


@contextmanager
def database(server: EmbeddedPostgres) -> Iterator[str]:
    """A fresh database with the fencing schema; its address."""
    with asyncio.Runner() as runner:
        opened = fresh_database(server)
        dsn = runner.run(opened.__aenter__())
        try:
            yield dsn
        finally:
            runner.run(opened.__aexit__(None, None, None))


@contextmanager
def served(config: Config) -> Iterator[str]:
    """Serve until the end; the address tables are at."""
    listener = serving.bind("127.0.0.1", 0)
    with serving.in_background(build(config, Events()), listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/rest/v1"
