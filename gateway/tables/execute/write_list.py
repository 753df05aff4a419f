"""A list of writes in one transaction: all of them take effect under their tokens, or none.

Each write is parsed and planned as if it were alone, so a list allows nothing that is not allowed alone.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from gateway.errors import DialectError, GatewayError, RequestMalformed
from gateway.fencing import headers as fencing_headers
from gateway.http.body import offload
from gateway.tables.dialect import request, transaction_document
from gateway.tables.dialect.request import Target
from gateway.tables.dialect.response import Response
from gateway.tables.dialect.transaction_document import Entry, of_write
from gateway.tables.execute.authorisation import TableAuthorisation
from gateway.tables.execute.planning import IdempotencyKey, Incoming, ParsedWrite, Planner, Sender, parse
from gateway.tables.execute.transaction import FencedTransactions, UnitOfWork
from gateway.tables.schema_cache import CachedTable, Name, SchemaCache

_NO_SUCH_TABLE = "PGRST205"


class WriteLists:
    """Executes lists of writes. ``schemas`` are the exposed ones, ``prefix`` that of paths to tables.

    Each write is parsed and planned as if it were alone, so a list allows nothing that is not allowed alone.
    """

    def __init__(
        self,
        schema_cache: SchemaCache,
        planner: Planner,
        transactions: FencedTransactions,
        authorisation: TableAuthorisation,
        schemas: Sequence[str],
        prefix: str,
    ) -> None:
        self._schema_cache, self._planner, self._authorisation = schema_cache, planner, authorisation
        self._transactions, self._schemas, self._prefix = transactions, schemas, prefix

    async def execute(self, incoming: Incoming) -> Response:
        """Answer ``POST /v1/transaction``. Raises the error that refuses a write; none has taken effect then.

        The facts of the error have the number of the write, if it is about one.
        """
        sender, headers = incoming.sender, request.headings(incoming.head.headers)
        _check_head(headers)
        shown = fencing_headers.read(incoming.head.headers, pairs=True)
        name = request.parse_key(headers)
        await self._authorisation.writes_anything(sender)
        content = await incoming.content()
        listed = await offload(len(content), transaction_document.parse, content, shown)
        key = (
            None
            if name is None
            else IdempotencyKey(sender.keyring, name, sender.bound(await offload(len(content), _fingerprint, listed)))
        )
        parsed, targets = [], []
        for number, entry in enumerate(listed):
            with of_write(number):
                target = request.target(entry.table, entry.schema, self._schemas)
                await self._authorisation.writes(sender, f"{target.schema}.{target.name}")
                parsed.append(await offload(len(entry.body), self._parsed, entry, target, sender))
            targets.append((target.schema, target.name))
        tokens = [one.tokens for one in parsed]

        async def authorise(number: int, resources: Sequence[str]) -> Sequence[str]:
            return await self._authorisation.replays(parsed[number], resources)

        if key is not None and (kept := await self._transactions.replay.kept(key, tokens, sender.caller, authorise)):
            return kept

        async def work(tables: Mapping[Name, CachedTable]) -> Response:
            writes = []
            for number, (one, where) in enumerate(zip(parsed, targets, strict=True)):
                with of_write(number):
                    writes.append(await self._planner.plan(one, tables[where]))
            return await self._transactions.execute(UnitOfWork(writes, key, transaction_document.combined))

        return await self._with_tables(targets, work)

    def _parsed(self, entry: Entry, target: Target, sender: Sender) -> ParsedWrite:
        path = f"{self._prefix}{target.name}"
        role = None if sender.role is None else sender.role.at(entry.method, path)
        alone = replace(sender, method=entry.method, path=path, query=entry.query.decode(), role=role)
        rule = self._schema_cache.rule(target.schema, target.name)
        parsed = parse(entry.query, entry.headers, entry.shown, rule, alone, target).with_body(entry.body)
        if parsed.request.preferences.tx is not None:
            raise RequestMalformed(
                "One write of a list cannot be committed or rolled back by itself.", advice="Leave out 'tx'."
            )
        return parsed

    async def _with_tables(
        self,
        targets: Sequence[Name],
        work: Callable[[Mapping[Name, CachedTable]], Awaitable[Response]],
    ) -> Response:
        """Run ``work`` with all tables. Run it again if the cache was out of date for one of them."""
        try:
            return await self._schema_cache.using_all(list(dict.fromkeys(targets)), work)
        except DialectError as error:
            if error.code == _NO_SUCH_TABLE:
                for number, target in enumerate(targets):
                    with of_write(number):
                        await self._schema_cache.table(*target)
            raise


def _check_head(headers: Mapping[bytes, str]) -> None:
    """Refuse other types of bodies. A page of another origin can send JSON only after a preflight request."""
    if headers.get(b"content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestMalformed(
            "The body of a transaction must be JSON.", advice="Send it with Content-Type: application/json."
        )
    if b"if-match" in headers or b"if-none-match" in headers:
        raise RequestMalformed(
            "A transaction has no ETag of its own.",
            advice="Put the condition into the write it is about, as 'if_match' or 'if_none_match'.",
        )


def _fingerprint(listed: tuple[Entry, ...]) -> bytes:
    return request.digest([b"transaction", transaction_document.fingerprint(listed)])


def with_details(error: GatewayError) -> GatewayError:
    """Return the error. If it has details of the dialect, they become a fact of the problem document."""
    if isinstance(error, DialectError) and error.details is not None:
        error.facts.setdefault("details", error.details)
    return error
