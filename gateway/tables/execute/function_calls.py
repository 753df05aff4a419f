"""Calls of functions. What only reads runs in a READ ONLY transaction; what may write needs a token and a name.

Nobody can tell which rows a function is going to write, nor verify it afterwards. So the caller names the resource
whose lock it holds, and the function runs under that claim; that it writes nothing else is up to its author.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gateway.db import catalog
from gateway.db.database import Database, Transaction
from gateway.errors import DialectError, GatewayError, ResourceUnderivable, SqlError, TokenRequired
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.rules import Mode
from gateway.http.body import offload
from gateway.tables.catalog.functions import Choice, Functions
from gateway.tables.dialect import arguments, media, openapi, request, response
from gateway.tables.dialect import request as replays
from gateway.tables.dialect.arguments import Arguments
from gateway.tables.dialect.etags import check_preconditions
from gateway.tables.dialect.grammar import not_implemented
from gateway.tables.dialect.request import Request, Target
from gateway.tables.dialect.response import Accepted, Response, Written, check_affected, check_single
from gateway.tables.execute.planning import Honouring, Sender, Write, explicit_of, key_of, tokens_of
from gateway.tables.execute.reads import Reader
from gateway.tables.execute.transaction import Order, SlowPath
from gateway.tables.naming.plan import Rule
from gateway.tables.schema_cache import Known
from gateway.tables.sql import function_call
from gateway.tables.sql.function_call import CallShape
from gateway.tables.sql.shape import lower_read
from gateway.tables.sql.statements import Statements

Answer = TypeVar("Answer")

_PAUSE_BETWEEN_RELOADS = 1.0
_STALE_CODES = frozenset(("PGRST202", "PGRST203", "42703"))


class KnownFunctions:
    """The functions that can be called, read when they are first asked for and again where they seem to have changed.

    What is out of date never lets anything through: PostgreSQL itself judges whether a transaction that reads writes.
    """

    def __init__(self, database: Database, names: frozenset[str]) -> None:
        """``names`` as ``schema.name``: all others do not exist, as far as callers can tell."""
        self._database, self._names = database, sorted(names)
        self._functions: Functions | None = None
        self._read_at = 0.0
        self._reading = asyncio.Lock()

    async def all(self) -> Functions:
        """Raises ``Unavailable`` where the catalog cannot be read."""
        if self._functions is None:
            await self._reload()
        assert self._functions is not None
        return self._functions

    async def using(self, work: Callable[[Functions], Awaitable[Answer]]) -> Answer:
        """Run ``work``; once more if it fails in a way that could come from a change, and there was one."""
        functions = await self.all()
        try:
            return await work(functions)
        except (DialectError, SqlError) as error:
            stale = error.sqlstate.startswith("42") if isinstance(error, SqlError) else error.code in _STALE_CODES
            if not stale:
                raise
            await self._reload()
            if self._functions == functions:
                raise
        return await work(await self.all())

    async def _reload(self) -> None:
        now = asyncio.get_running_loop().time
        async with self._reading:
            if self._functions is not None and now() - self._read_at < _PAUSE_BETWEEN_RELOADS:
                return
            rows = await catalog.functions(self._database, self._names) if self._names else []
            self._functions, self._read_at = Functions.from_rows(rows), now()


@dataclass(frozen=True, slots=True)
class _Planned:
    """One call, up to the point where the database is asked."""

    wanted: Request
    choice: Choice
    text: str
    arguments: list[object]
    reader: Reader

    async def carry_out(self, transaction: Transaction) -> Written:
        row = await transaction.fetchrow(self.text, *self.arguments)
        assert row is not None
        function, touched = self.choice.function, row["touched"]
        if self.wanted.singular and function.returns_set:
            check_single(touched)
        check_affected(self.wanted, touched)
        said = await self.reader.said(transaction)
        return Written(touched, body=row["body"], total=row["total"], said=said)

    async def only_read(self, transaction: Transaction) -> Response:
        return self.answer(await self.carry_out(transaction), Accepted())

    def answer(self, written: Written, under: Accepted) -> Response:
        function = self.choice.function
        return response.call(self.wanted, written, under, sets=function.returns_set, nothing=function.returns_nothing)


class Caller:
    """Answers calls. ``rule`` is what holds for functions that write: that of tables without a rule of their own."""

    def __init__(
        self, functions: KnownFunctions, honouring: Honouring, reader: Reader, slow_path: SlowPath, rule: Rule
    ) -> None:
        self._functions, self._honouring, self._reader = functions, honouring, reader
        self._slow_path, self._rule = slow_path, rule

    async def options(self, target: Target) -> Response:
        """What can be done with a function. Raises PGRST202 where there is none of this name."""
        functions = await self._functions.all()
        forms = functions.forms.get((target.schema, target.name), ())
        if not forms:
            functions.choose(target.schema, target.name, (), None)
        reads = any(not one.writes for one in forms)
        return openapi.allowed("OPTIONS", *(("GET", "HEAD") if reads else ()), "POST")

    async def read(self, target: Target, method: str, query_string: bytes, headers: Mapping[bytes, str]) -> Response:
        """A call by GET or HEAD: the arguments stand in the query. Whatever tries to write fails (25006, 405)."""
        given, rest = arguments.from_query(query_string)
        wanted = request.parse(method, rest, headers)

        async def work(functions: Functions) -> Response:
            choice = functions.choose(target.schema, target.name, given.names, None)
            call = await self._planned(wanted, headers, choice, given)
            return await self._reader.read_only(call.wanted, call.only_read)

        return await self._functions.using(work)

    async def post(
        self,
        target: Target,
        headers: Mapping[bytes, str],
        shown: FencingHeaders,
        sender: Sender,
        body: Callable[[], Awaitable[bytes]],
    ) -> Response:
        """A call by POST: the arguments are the body. A function that may write is a write; the others only read."""
        wanted = request.parse("POST", sender.query.encode("latin-1"), headers)
        kind = media.body_type(headers)
        replays.parse_key(headers)
        content = await body()
        given = await offload(len(content), arguments.from_body, kind, content, wanted.query.columns)
        key = await offload(len(content), key_of, sender, target.schema, headers, content)

        async def work(functions: Functions) -> Response:
            choice = functions.choose(target.schema, target.name, given.names, kind)
            call = await self._planned(wanted, headers, choice, given)
            if not choice.function.writes:
                return await self._reader.read_only(call.wanted, call.only_read)
            write = self._write(call, shown, sender, content)
            return await self._slow_path.carry_out(Order([write], key))

        return await self._functions.using(work)

    async def _planned(
        self, wanted: Request, headers: Mapping[bytes, str], choice: Choice, given: Arguments
    ) -> _Planned:
        wanted = self._reader.capped(await self._honouring.settled(wanted, headers))
        check_preconditions(wanted.preconditions, wanted.method, wanted.query, choice.function.result)
        if wanted.query.embeds:
            raise not_implemented("Embedding in the result of a function")
        if wanted.preferences.max_affected is not None and not choice.function.returns_set:
            raise DialectError(
                "PGRST128", 400,
                "Function must return SETOF or TABLE when max-affected preference is used with handling=strict",
            )  # fmt: skip
        read, values = lower_read(wanted, counted=wanted.preferences.count is not None)
        shape = CallShape(choice.function, tuple(sorted(given.names or ())), choice.whole, read)
        statement = function_call.statement(shape)
        values["payload"] = given.payload(choice.function, whole=choice.whole)
        return _Planned(wanted, choice, statement.text, statement.arrange(values), self._reader)

    def _write(self, call: _Planned, shown: FencingHeaders, sender: Sender, content: bytes) -> Write:
        tokens, names = tokens_of(shown, self._rule), tuple(sorted(set(explicit_of(shown).names)))
        table = call.choice.function.result
        objection: GatewayError | None = None
        if tokens is None:
            objection = TokenRequired(f"A call of {table.name}, which may write, needs a fencing token.")
        elif not names:
            objection = ResourceUnderivable(
                f"What {table.name} writes cannot be told, so the resource must be named.",
                advice="Name the resource whose lock you hold in Fencing-Resource.",
            )
        if objection is not None and self._rule.mode is Mode.ENFORCE:
            raise objection
        known = Known(table, self._rule, None, Statements(table, None))
        return Write(call.wanted, None, content, known, tokens, names or None, sender, objection, call=call)


def not_callable(method: str) -> DialectError:
    """PGRST101: functions are called by POST, and by GET or HEAD if they only read."""
    return DialectError("PGRST101", 405, f"Cannot use the {method[:20]} method on RPC")
