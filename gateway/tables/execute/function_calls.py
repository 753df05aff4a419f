"""Function calls. A function that only reads runs in a READ ONLY transaction. One that may write needs a token.

The gateway can neither tell which rows a function will write nor verify it afterwards. So the caller names the resource
whose lock it holds, and the function runs under that claim. The author of the function ensures that it writes no other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.db.database import Transaction
from gateway.errors import DialectError, GatewayError, ResourceUnderivable, TokenRequired
from gateway.fencing import headers as fencing_headers
from gateway.fencing.decision import Enforcement
from gateway.fencing.headers import FencingHeaders
from gateway.http.body import offload
from gateway.http.head import Head
from gateway.tables.dialect import body, openapi, request, response
from gateway.tables.dialect.body import Arguments
from gateway.tables.dialect.errors import too_large
from gateway.tables.dialect.etags import check_preconditions
from gateway.tables.dialect.grammar import not_implemented
from gateway.tables.dialect.request import READS, Request, Target
from gateway.tables.dialect.response import Accepted, Response, Written, check_affected, check_single
from gateway.tables.execute.authorisation import TableAuthorisation
from gateway.tables.execute.idempotency import key_of
from gateway.tables.execute.planning import (
    EffectivePreferences,
    Incoming,
    PlannedWrite,
    Sender,
    explicit_of,
    tokens_of,
)
from gateway.tables.execute.reads import Reader
from gateway.tables.execute.transaction import FencedTransactions, UnitOfWork
from gateway.tables.functions import Choice, Functions
from gateway.tables.naming import Rule
from gateway.tables.schema_cache import CachedTable, FunctionCache
from gateway.tables.sql import statements
from gateway.tables.sql.shape import MOST, lower_read
from gateway.tables.sql.statements import CallShape, Statements


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: all that is decided before the database is asked to run it."""

    request: Request
    choice: Choice
    text: str
    arguments: list[object]
    reader: Reader

    async def carry_out(self, transaction: Transaction) -> Written:
        row = await transaction.fetchrow(self.text, *self.arguments)
        assert row is not None
        if row["body"] is None:
            raise too_large(self.reader.limit.most)
        function, touched = self.choice.function, row["touched"]
        if self.request.media.singular and function.returns_set:
            check_single(touched)
        check_affected(self.request, touched)
        return Written(touched, body=row["body"], total=row["total"])

    async def only_read(self, transaction: Transaction) -> Response:
        written = await self.carry_out(transaction)
        self.reader.limit.keep_text(written.body or "")
        return self.answer(written, Accepted())

    def answer(self, written: Written, under: Accepted) -> Response:
        function = self.choice.function
        return response.call(self.request, written, under, sets=function.returns_set, nothing=function.returns_nothing)


class FunctionCalls:
    """Answers calls. ``rule`` holds for functions that write: the rule of tables without one of their own."""

    def __init__(
        self,
        functions: FunctionCache,
        preferences: EffectivePreferences,
        reader: Reader,
        transactions: FencedTransactions,
        authorisation: TableAuthorisation,
        rule: Rule,
    ) -> None:
        self._functions, self._preferences, self._reader = functions, preferences, reader
        self._transactions, self._authorisation, self._rule = transactions, authorisation, rule

    async def answer(self, incoming: Incoming, target: Target, headers: Mapping[bytes, str]) -> Response:
        head, sender, name = incoming.head, incoming.sender, target.qualified
        await self._authorisation.calls(sender, name)
        if head.method == "OPTIONS":
            return await self._options(target)
        if head.method in READS:
            await self._authorisation.only_reads(sender, name)
            return await self._read(target, head, headers, sender)
        if head.method != "POST":
            raise DialectError("PGRST101", 405, f"Cannot use the {head.method[:20]} method on RPC")
        return await self._post(incoming, target, headers)

    async def _options(self, target: Target) -> Response:
        """Return which methods a function allows. Raises PGRST202 if there is none of this name."""
        functions = await self._functions.all()
        forms = functions.forms.get((target.schema, target.name), ())
        if not forms:
            functions.choose(target.schema, target.name, (), None)
        reads = any(not one.writes for one in forms)
        return openapi.allowed("OPTIONS", *(("GET", "HEAD") if reads else ()), "POST")

    async def _read(self, target: Target, head: Head, headers: Mapping[bytes, str], sender: Sender) -> Response:
        """Answer GET or HEAD, with the arguments in the query. A function that tries to write fails (25006, 405)."""
        given, rest = body.arguments_from_query(head.query_string)
        wanted = request.parse(head.method, rest, headers)

        async def work(functions: Functions) -> Response:
            choice = functions.choose(target.schema, target.name, given.names, None)
            call = await self._planned(wanted, headers, choice, given)
            return await self._reader.read_only(call.request, sender, call.only_read)

        return await self._functions.using(work)

    async def _post(self, incoming: Incoming, target: Target, headers: Mapping[bytes, str]) -> Response:
        """Answer POST, with the arguments in the body. A function that may write is a write, any other only reads."""
        shown, sender = fencing_headers.read(incoming.head.headers, pairs=True), incoming.sender
        wanted = request.parse("POST", sender.query.encode("latin-1"), headers)
        kind = request.body_type(headers)
        request.parse_key(headers)
        content = await incoming.content()
        given = await offload(len(content), body.arguments_from_body, kind, content, wanted.query.columns)
        key = await offload(len(content), key_of, sender, target.schema, headers, content)

        async def work(functions: Functions) -> Response:
            choice = functions.choose(target.schema, target.name, given.names, kind)
            call = await self._planned(wanted, headers, choice, given)
            if not choice.function.writes:
                await self._authorisation.only_reads(sender, target.qualified)
                return await self._reader.read_only(call.request, sender, call.only_read)
            write = await self._authorisation.claims(self._write(call, shown, sender, content))
            return await self._transactions.execute(UnitOfWork([write], key))

        return await self._functions.using(work)

    async def _planned(self, wanted: Request, headers: Mapping[bytes, str], choice: Choice, given: Arguments) -> _Call:
        wanted = self._reader.capped(await self._preferences.applied(wanted, headers))
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
        statement = statements.of_call(shape)
        values[MOST] = self._reader.limit.most
        values["payload"] = given.payload(choice.function, whole=choice.whole)
        return _Call(wanted, choice, statement.text, statement.arrange(values), self._reader)

    def _write(self, call: _Call, shown: FencingHeaders, sender: Sender, content: bytes) -> PlannedWrite:
        tokens, names = tokens_of(shown, self._rule), tuple(sorted(set(explicit_of(shown).names)))
        table = call.choice.function.result
        objection: GatewayError | None = None
        if tokens is None:
            objection = TokenRequired(f"A call of {table.name}, which may write, needs a fencing token.")
        elif not names:
            objection = ResourceUnderivable(
                f"The rows that {table.name} writes cannot be named, so the resource must be given.",
                advice="Name the resource whose lock you hold in Fencing-Resource.",
            )
        if objection is not None and self._rule.mode is Enforcement.ENFORCE:
            raise objection
        cached = CachedTable(table, self._rule, None, Statements(table, None))
        return PlannedWrite(
            request=call.request,
            payload=None,
            body=content,
            cached=cached,
            tokens=tokens,
            claimed=names or None,
            sender=sender,
            objection=objection,
            call=call,
            named=names,
        )
