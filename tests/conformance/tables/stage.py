"""The tables behind the rows: made once, looked at after every row, and filled again whenever one was changed."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg

_FOLDER = Path(__file__).parent
SCHEMAS = ("cinema", "archive")

_TABLES = """
SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables
WHERE schemaname = ANY ($1) ORDER BY 1
"""
_SEQUENCES_AS_NEW = "TRUNCATE {} RESTART IDENTITY CASCADE"


class Stage:
    """A connection of its own to the database, for code that blocks. ``with`` makes the tables and drops them."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._runner = asyncio.Runner()
        self._data = (_FOLDER / "data.sql").read_text(encoding="utf-8")

    def __enter__(self) -> Self:
        self._connection = self._runner.run(asyncpg.connect(self._dsn, server_settings={"search_path": SCHEMAS[0]}))
        self._execute("".join(f"DROP SCHEMA IF EXISTS {schema} CASCADE;" for schema in SCHEMAS))
        self._execute((_FOLDER / "schema.sql").read_text(encoding="utf-8"))
        names = [row["name"] for row in self._runner.run(self._connection.fetch(_TABLES, list(SCHEMAS)))]
        self._empty = _SEQUENCES_AS_NEW.format(", ".join(names))
        everything = " UNION ALL ".join(
            f"SELECT '{name}' AS name, jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t)::text) AS rows FROM {name} AS t"
            for name in names
        )
        self._everything = f"SELECT jsonb_object_agg(name, rows)::text AS rows FROM ({everything}) AS one"
        self._fill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._execute("".join(f"DROP SCHEMA IF EXISTS {schema} CASCADE;" for schema in SCHEMAS))
        self._runner.run(self._connection.close())
        self._runner.close()

    def prepare(self, setup: str) -> None:
        """Fresh tables, but for what ``setup`` does to them."""
        if self._seen() != self._fresh:
            self._fill()
        if setup:
            self._execute(setup)
        self._before = self._seen() if setup else self._fresh

    def differences(self, after: Mapping[str, Any] | None) -> list[str]:
        """How the tables are not as they should be since ``prepare``. None: as they were."""
        if after is None:
            now = self._seen()
            if now == self._before:
                return []
            before, seen = json.loads(self._before), json.loads(now)
            return [f"{name} changed: {seen[name]}" for name in before if before[name] != seen[name]]
        found = []
        for query, rows in after.items():
            seen = self._rows(query)
            if seen != rows:
                found.append(f"{query}: {json.dumps(rows)} → {json.dumps(seen)}")
        return found

    def _rows(self, query: str) -> Any:
        text = self._value(f"SELECT coalesce(json_agg(to_json(r)), '[]')::text AS rows FROM ({query}) AS r")
        return json.loads(text)

    def _fill(self) -> None:
        self._execute(f"{self._empty};{self._data}")
        self._fresh = self._seen()

    def _seen(self) -> str:
        return self._value(self._everything)

    def _value(self, query: str) -> str:
        return str(self._runner.run(self._connection.fetchval(query)))

    def _execute(self, script: str) -> None:
        self._runner.run(self._connection.execute(script))
