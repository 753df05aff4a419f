"""Carries out one read: one statement, or a READ ONLY transaction where more is asked or code could run.

Views and policies can call functions that write, and no read may become an unfenced write.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gateway.db import settings
from gateway.db.database import Database, Transaction
from gateway.tables.dialect import overrides, response
from gateway.tables.dialect.etags import check_preconditions, names_one_row
from gateway.tables.dialect.overrides import Overrides
from gateway.tables.dialect.request import Request
from gateway.tables.dialect.response import Response, Row
from gateway.tables.execute.fast_path import FastPath
from gateway.tables.execute.recipes import Plain
from gateway.tables.schema_cache import Known
from gateway.tables.sql.expressions import Statement
from gateway.tables.sql.shape import ReadShape, lower_read

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """``max_rows``: the most rows one answer has; None for no limit. ``overrides``: code may set parts of answers."""

    max_rows: int | None = None
    overrides: bool = False


class _AllRead(Exception):
    """The transaction has served its purpose."""


class Reader:
    """Executes reads. They need no token and claim nothing."""

    def __init__(self, database: Database, fast_path: FastPath, settings: ReadSettings) -> None:
        self._database, self._fast_path, self._settings = database, fast_path, settings

    async def execute(
        self, wanted: Request, known: Known, path: str, query_string: bytes, plain: Plain | None
    ) -> Response:
        """The finished answer. Raises ``SqlError``, ``DialectError`` or ``Unavailable``."""
        wanted = self.capped(wanted)
        check_preconditions(wanted.preconditions, wanted.method, wanted.query, known.table)
        # In another time zone the same row has another text.
        tagged = wanted.preferences.timezone is None and names_one_row(wanted.query, known.table)
        shape, values = lower_read(wanted, counted=self._counts_exactly(wanted), tagged=tagged)
        statement = known.statements.read(shape)
        needs_more = self._estimates(wanted) or wanted.preferences.timezone is not None
        if not needs_more and not statement.runs_code:
            if plain is not None:
                self._fast_path.learn_read(plain, wanted, known, statement, values)
            row = await self._database.fetchrow(statement.text, *statement.arrange(values))
            assert row is not None
            return response.read(wanted, row, path, query_string)

        async def work(transaction: Transaction) -> Response:
            row, said = await self._row(transaction, wanted, known, shape, statement, values)
            return response.overridden(response.read(wanted, row, path, query_string), said)

        return await self.read_only(wanted, work)

    def capped(self, wanted: Request) -> Request:
        """The request for no more rows than one answer may have, nor more of them inside any of its rows."""
        most = self._settings.max_rows
        return wanted if most is None else replace(wanted, query=wanted.query.capped(most))

    async def read_only(self, wanted: Request, work: Callable[[Transaction], Awaitable[Result]]) -> Result:
        """Run ``work`` in a transaction that cannot write, in the time zone that was asked for.

        It is rolled back in the end: code that runs in it may change settings of the session, in which names of
        resources are made by the next request.
        """
        found: list[Result] = []

        async def inside(transaction: Transaction) -> None:
            await settings.read_only(transaction)
            if wanted.preferences.timezone is not None:
                await settings.set_zone(transaction, wanted.preferences.timezone)
            found.append(await work(transaction))
            raise _AllRead

        with suppress(_AllRead):
            await self._database.run(inside)
        return found[0]

    async def said(self, transaction: Transaction) -> Overrides | None:
        """What code in the database has said about the answer, where it may."""
        return overrides.read(*await settings.answer(transaction)) if self._settings.overrides else None

    async def _row(
        self,
        transaction: Transaction,
        wanted: Request,
        known: Known,
        shape: ReadShape,
        statement: Statement,
        values: dict[str, object],
    ) -> tuple[Row, Overrides | None]:
        row = await transaction.fetchrow(statement.text, *statement.arrange(values))
        assert row is not None
        said = await self.said(transaction) if statement.runs_code else None
        if not self._estimates(wanted):
            return row, said
        matching = known.statements.matching(shape)
        total = await self._estimate(transaction, wanted, matching.text, matching.arrange(values))
        return {"touched": row["touched"], "body": row["body"], "total": total, "etag": row["etag"]}, said

    async def _estimate(self, transaction: Transaction, wanted: Request, matching: str, arguments: list[object]) -> int:
        """How many rows match: by counting no more than an answer may have, then by the planner's guess."""
        counted = 0
        if wanted.preferences.count == "estimated":
            most = self._settings.max_rows
            assert most is not None
            row = await transaction.fetchrow(
                f"SELECT count(*) AS total FROM ({matching} LIMIT {most + 1}) AS gw_page",  # noqa: S608 - our own text
                *arguments,
            )
            assert row is not None
            counted = int(row["total"])
            if counted <= most:
                return counted
        plan = await transaction.fetchrow(f"EXPLAIN (FORMAT JSON) {matching}", *arguments)
        assert plan is not None
        return max(counted, planned_rows(plan["QUERY PLAN"]))

    def _estimates(self, wanted: Request) -> bool:
        count = wanted.preferences.count
        return count == "planned" or (count == "estimated" and self._settings.max_rows is not None)

    def _counts_exactly(self, wanted: Request) -> bool:
        return wanted.preferences.count is not None and not self._estimates(wanted)


def planned_rows(plan: str) -> int:
    """How many rows the planner expects, from EXPLAIN's JSON."""
    document: list[dict[str, Any]] = json.loads(plan)
    rows: int = document[0]["Plan"]["Plan Rows"]
    return rows
