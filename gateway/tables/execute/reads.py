"""Reads: one statement, or a READ ONLY transaction if the request needs more or code in the database could run.

Views and policies can call functions that write, and no read may become an unfenced write.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from sys import getsizeof
from typing import Any, TypeVar

from gateway.auth.grants import NOTHING, Rights
from gateway.bounded import Bounded
from gateway.budget import Budget
from gateway.db import settings
from gateway.db.database import Database, Transaction
from gateway.errors import DialectError
from gateway.fencing.record import ANONYMOUS
from gateway.http.body import SMALL, twice
from gateway.tables.catalog import Snapshot, check_distributed
from gateway.tables.dialect import openapi, request, response
from gateway.tables.dialect.errors import too_large
from gateway.tables.dialect.etags import check_preconditions, names_one_row
from gateway.tables.dialect.request import READS, Request, unsupported
from gateway.tables.dialect.response import Response, Row
from gateway.tables.execute.acting import Acting
from gateway.tables.execute.authorisation import TableAuthorisation, concerns_table
from gateway.tables.execute.fast_path import Candidate, FastPath
from gateway.tables.execute.planning import Sender
from gateway.tables.functions import Functions
from gateway.tables.schema_cache import CachedTable, FunctionCache, SchemaCache
from gateway.tables.sql.expressions import Statement
from gateway.tables.sql.shape import MOST, ReadShape, lower_read

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AnswerLimit:
    """``most``: bytes that an answer may have. It takes of its caller's share of ``memory`` until it is sent."""

    most: int
    memory: Budget

    def keep(self, row: Row) -> None:
        """Take memory for the answer in a row that has come. Raises what ``keep_size`` raises."""
        if row["body"] is None:
            raise too_large(self.most)
        self.keep_text(row["body"])

    def keep_text(self, text: str) -> None:
        """Take memory for a text that has come. Raises what ``keep_size`` raises."""
        # Python keeps a text with one to four bytes for each character.
        self._keep(len(text), getsizeof(text))

    def keep_size(self, size: int) -> None:
        """Take memory for answers that have come. Raises ``BodyTooLarge``, and ``Overloaded`` without waiting.

        To wait would keep them in memory without a share, and the fences of a write with them.
        """
        self._keep(size, size)

    def _keep(self, size: int, memory: int) -> None:
        if size > self.most:
            raise too_large(self.most)
        if memory > SMALL:
            self.memory.keep_now(twice(memory))


ANONYMOUS_TIMEOUT = 3.0
"""Seconds that a statement of an anonymous caller may take, if no less is configured."""


class Reader:
    """Executes reads, which need no token and claim nothing. ``max_rows``: the most of one answer; None: no limit."""

    def __init__(
        self,
        database: Database,
        fast_path: FastPath,
        authorisation: TableAuthorisation,
        limit: AnswerLimit,
        max_rows: int | None,
    ) -> None:
        self._database, self._fast_path, self._max_rows = database, fast_path, max_rows
        self._authorisation, self.limit = authorisation, limit

    async def execute(self, candidate: Candidate, wanted: Request, cached: CachedTable, sender: Sender) -> Response:
        """Return the answer. A read of one statement leaves its recipe behind.

        Raises ``Denied``, ``SqlError``, ``DialectError`` or ``Unavailable``.
        """
        path, query_string = sender.path, sender.query.encode("latin-1")
        wanted = self.capped(wanted)
        check_distributed(cached.table)
        check_preconditions(wanted.preconditions, wanted.method, wanted.query, cached.table)
        # In another time zone the same row has another text.
        tagged = wanted.preferences.timezone is None and names_one_row(wanted.query, cached.table)
        shape, values = lower_read(wanted, counted=self._counts_exactly(wanted), tagged=tagged)
        values[MOST] = self.limit.most
        statement = cached.statements.read(shape)
        await self._authorisation.reads(sender, statement.tables)
        needs_more = self._estimates(wanted) or wanted.preferences.timezone is not None
        plain = not needs_more and not statement.runs_code and sender.role is None
        if plain and sender.caller != ANONYMOUS:
            self._fast_path.learn_read(candidate, wanted, cached, statement, values)
            row = await self._database.fetchrow_read(statement.text, *statement.arrange(values))
            assert row is not None
            self.limit.keep(row)
            return response.read(wanted, row, path, query_string)

        async def work(transaction: Transaction) -> Response:
            row = await self._row(transaction, wanted, cached, shape, statement, values)
            return response.read(wanted, row, path, query_string)

        answer = await self.read_only(wanted, sender, work)
        if plain or (sender.role is not None and not needs_more):
            self._fast_path.learn_read(candidate, wanted, cached, statement, values)
        return answer

    def capped(self, wanted: Request) -> Request:
        """Limit the request to the most rows of one answer, and of each embedded table in a row."""
        most = self._max_rows
        return wanted if most is None else replace(wanted, query=wanted.query.capped(most))

    async def read_only(
        self, wanted: Request, sender: Sender, work: Callable[[Transaction], Awaitable[Result]]
    ) -> Result:
        """Run ``work`` in a transaction that cannot write, under a role and in the time zone of the request.

        A statement of an anonymous caller has less time. The transaction is rolled back: code in it may change settings
        of the session, and the names of the next request depend on these settings.
        """

        async def inside(transaction: Transaction) -> Result:
            await settings.make_read_only(transaction, self._timeout(sender))
            if wanted.preferences.timezone is not None:
                await settings.set_zone(transaction, wanted.preferences.timezone)
            await Acting(transaction).as_(sender.role)
            return await work(transaction)

        return await self._database.read(inside)

    def _timeout(self, sender: Sender) -> float | None:
        """Return the seconds that a statement may take; None for those of the session."""
        return min(ANONYMOUS_TIMEOUT, self._database.read_timeout) if sender.caller == ANONYMOUS else None

    async def _row(
        self,
        transaction: Transaction,
        wanted: Request,
        cached: CachedTable,
        shape: ReadShape,
        statement: Statement,
        values: dict[str, object],
    ) -> Row:
        row = await transaction.fetchrow(statement.text, *statement.arrange(values))
        assert row is not None
        self.limit.keep(row)
        if not self._estimates(wanted):
            return row
        matching = cached.statements.matching(shape)
        total = await self._estimate(transaction, wanted, matching.text, matching.arrange(values))
        return {"touched": row["touched"], "body": row["body"], "total": total, "etag": row["etag"]}

    async def _estimate(self, transaction: Transaction, wanted: Request, matching: str, arguments: list[object]) -> int:
        """Return how many rows match: count up to the most of an answer, beyond that use the planner's estimate."""
        counted = 0
        if wanted.preferences.count == "estimated":
            most = self._max_rows
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
        return count == "planned" or (count == "estimated" and self._max_rows is not None)

    def _counts_exactly(self, wanted: Request) -> bool:
        return wanted.preferences.count is not None and not self._estimates(wanted)


def planned_rows(plan: str) -> int:
    """Return how many rows the planner expects, from EXPLAIN's JSON."""
    document: list[dict[str, Any]] = json.loads(plan)
    rows: int = document[0]["Plan"]["Plan Rows"]
    return rows


_MOST_DOCUMENTS, _LARGEST_DOCUMENTS = 10_000, 16 * 1024 * 1024
"""Number and bytes of the descriptions that are kept. The newest one is, whatever its size."""


class Description:
    """Answers requests for the root, which describe a schema as OpenAPI, unless that is not ``enabled``."""

    def __init__(self, tables: SchemaCache, functions: FunctionCache, prefix: str, *, enabled: bool) -> None:
        self._tables, self._functions, self._prefix, self._enabled = tables, functions, prefix, enabled
        # Callers with the same rights get the same document. Making that of a large schema takes long.
        self._of: tuple[Snapshot, Functions] | None = None
        self._documents: Bounded[tuple[str, ...], bytes] = Bounded(_MOST_DOCUMENTS, _LARGEST_DOCUMENTS)

    async def answer(self, method: str, schema: str, headers: Mapping[bytes, str], rights: Rights) -> Response:
        """Return the answer, with the tables and functions that ``rights`` are about. ``headers`` by lower-case name.

        Raises ``DialectError`` or ``Unavailable``.
        """
        if method == "OPTIONS":
            return openapi.allowed("OPTIONS", "GET", "HEAD")
        if method not in READS:
            raise unsupported(method)
        if not self._enabled:
            raise DialectError("PGRST126", 404, "Root endpoint metadata is disabled")
        accept = headers.get(b"accept", "")
        if request.root_accepted(accept) is None:
            raise request.not_acceptable(accept)
        snapshot, known = await self._tables.snapshot(), await self._functions.all()
        tables = [
            one
            for one in snapshot.tables.values()
            if one.schema == schema and concerns_table(rights, f"{schema}.{one.name}")
        ]
        functions = [
            form
            for forms in known.forms.values()
            for form in forms
            if form.schema == schema and rights.function(f"{schema}.{form.name}") != NOTHING
        ]
        if self._of is None or self._of[0] is not snapshot or self._of[1] is not known:
            self._of = snapshot, known
            self._documents.clear()
        key = (schema, *(one.name for one in tables), "", *(one.name for one in functions))
        body = self._documents.get(key)
        if body is None:
            body = openapi.as_json(tables, functions, self._prefix)
            self._documents.remember(key, body, len(body))
        return openapi.root(body, with_body=method == "GET")
