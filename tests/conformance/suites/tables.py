"""The gateway in PostgREST's place, in front of the tables of a suite whose clients know of no tokens."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from gateway import serving
from gateway.app import build
from gateway.config import Config
from gateway.demo import embedded
from gateway.serving import ASGIApp
from tests.postgres import fresh, template_of_today
from tests.running import OPEN, Events

# All rows share one resource: PostgREST has no rule for the rows that a token covers.
_RESOURCE = "suite"
_PRESENTED = ((b"fencing-token", b"1"), (b"fencing-resource", _RESOURCE.encode()))

_TABLES = "SELECT table_schema || '.' || table_name FROM information_schema.tables WHERE table_schema = ANY ($1)"
_FUNCTIONS = """
SELECT DISTINCT pronamespace::regnamespace || '.' || proname FROM pg_proc
WHERE pronamespace::regnamespace::text = ANY ($1) AND prokind = 'f'
"""


@contextmanager
def in_place_of_postgrest(schemas: tuple[str, ...], script: str, port: int, prefix: str) -> Iterator[None]:
    """Serve tables and functions that ``script`` makes on ``port``. ``prefix`` is before each path of the suite."""
    with tempfile.TemporaryDirectory(prefix="suite") as name, embedded.postgres(Path(name)) as postgres:
        template_of_today(postgres)
        with fresh(postgres) as dsn:
            tables, functions = asyncio.run(_made(dsn, schemas, script))
            config = Config.model_validate({
                "postgres": {"dsn": dsn, "schemas": schemas, "functions": functions},
                "server": {"rest_v1": True},
                "grants": OPEN,
                "tables": [{"name": table, "resource": _RESOURCE} for table in tables],
            })  # fmt: skip
            listener = serving.bind("127.0.0.1", port)
            with serving.in_background(_presenting(build(config, Events()), prefix), listener):
                yield


async def _made(dsn: str, schemas: tuple[str, ...], script: str) -> tuple[list[str], list[str]]:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(script)
        tables, functions = [
            [name for (name,) in await connection.fetch(query, schemas)] for query in (_TABLES, _FUNCTIONS)
        ]
    finally:
        await connection.close()
    return tables, functions


def _presenting(app: ASGIApp, prefix: str) -> ASGIApp:
    """Add a token to each request, as a client of ours would, and find its path below ``/rest/v1``."""

    async def presenting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(prefix)
            raw = scope["raw_path"].removeprefix(prefix.encode())
            scope |= {"path": f"/rest/v1{path}", "raw_path": b"/rest/v1" + raw}
            scope["headers"] = [*scope["headers"], *_PRESENTED]
        await app(scope, receive, send)

    return presenting
