"""Writes: one request for one table, or a list of them in one transaction. All take effect under their tokens, or none.

The order of each, as ``Writes`` calls it:

1. Authorise the table, by its name alone. Parse the head: a write without a token is refused before its body is read.
2. Read the body, and parse it.
3. Replay the answer that is kept under the idempotency key, if there is one.
4. Plan: the resources that the write claims, and whether grants cover them (``planning.py``).
5. Execute: one statement that confirms the claim (``fast_path.py``), or a transaction that claims, writes and verifies
   (``transaction.py``).

A list allows nothing that is not allowed alone. A table or its naming may have changed since it was planned: the schema
cache then runs the last two once more.
"""

from collections.abc import Callable, Mapping, Sequence

from gateway.errors import DialectError, GatewayError, RequestMalformed
from gateway.fencing import headers as fencing_headers
from gateway.http.body import GROWTH, offload
from gateway.tables.dialect import request, transaction_document
from gateway.tables.dialect.request import Target
from gateway.tables.dialect.response import Response
from gateway.tables.dialect.transaction_document import Entry, of_write
from gateway.tables.execute import planning
from gateway.tables.execute.authorisation import TableAuthorisation
from gateway.tables.execute.fast_path import Candidate, FastPath
from gateway.tables.execute.idempotency import IdempotencyKey, key_of
from gateway.tables.execute.planning import Incoming, ParsedWrite, Planner, Sender
from gateway.tables.execute.transaction import FencedTransactions, UnitOfWork
from gateway.tables.schema_cache import CachedTable, SchemaCache

_NO_SUCH_TABLE = "PGRST205"


class Writes:
    """Executes writes. ``schemas`` are the exposed ones, ``prefix`` that of paths to tables."""

    def __init__(
        self,
        schema_cache: SchemaCache,
        planner: Planner,
        fast_path: FastPath,
        transactions: FencedTransactions,
        authorisation: TableAuthorisation,
        schemas: Sequence[str],
        prefix: str,
    ) -> None:
        self._schema_cache, self._planner, self._authorisation = schema_cache, planner, authorisation
        self._fast_path, self._transactions = fast_path, transactions
        self._schemas, self._prefix = schemas, prefix

    async def one(
        self, incoming: Incoming, candidate: Candidate, target: Target, headers: Mapping[bytes, str]
    ) -> Response:
        """Answer one write. Raises the error that refuses it."""
        head, sender = incoming.head, incoming.sender
        await self._authorisation.writes(sender, target.qualified)
        shown = fencing_headers.read(head.headers, pairs=True)
        rule = self._schema_cache.rule(target.schema, target.name)
        parsed = planning.parse(head.query_string, headers, shown, rule, sender, target)
        if not parsed.is_json:
            incoming.body.growth = GROWTH
        content = await incoming.content()
        if not parsed.is_json:
            await incoming.body.grow(parsed.size_as_json(content))
        picked = self._schema_cache.name_columns(target.schema, target.name)
        parsed = await offload(len(content), parsed.with_body, content, picked)
        key = await offload(len(content), key_of, sender, target.schema, headers, content)
        return await self._execute([parsed], key, candidate=candidate)

    async def listed(self, incoming: Incoming) -> Response:
        """Answer ``POST /v1/transaction``. Raises the error that refuses a write; none has taken effect then.

        The facts of the error have the number of the write, if it is about one.
        """
        sender, headers = incoming.sender, request.headings(incoming.head.headers)
        _check_head(headers)
        shown = fencing_headers.read(incoming.head.headers, pairs=True)
        name = request.parse_key(headers)
        await self._authorisation.writes_anything(sender)
        content = await incoming.content()
        entries = await offload(len(content), transaction_document.parse, content, shown)
        key = None
        if name is not None:
            fingerprint = await offload(len(content), _fingerprint, entries)
            key = IdempotencyKey(sender.keyring, name, sender.bound(fingerprint))
        parsed = []
        for number, entry in enumerate(entries):
            with of_write(number):
                target = request.target(entry.table, entry.schema, self._schemas)
                await self._authorisation.writes(sender, target.qualified)
                parsed.append(await offload(len(entry.body), self._parsed, entry, target, sender))
        try:
            return await self._execute(parsed, key, combine=transaction_document.combined)
        except DialectError as error:
            if error.code == _NO_SUCH_TABLE:
                for number, one in enumerate(parsed):
                    with of_write(number):
                        await self._schema_cache.table(one.target.schema, one.target.name)
            raise

    def _parsed(self, entry: Entry, target: Target, sender: Sender) -> ParsedWrite:
        path = f"{self._prefix}{target.name}"
        role = None if sender.role is None else sender.role.at(entry.method, path)
        alone = sender._replace(method=entry.method, path=path, query=entry.query.decode(), role=role)
        rule = self._schema_cache.rule(target.schema, target.name)
        parsed = planning.parse(entry.query, entry.headers, entry.shown, rule, alone, target)
        parsed = parsed.with_body(entry.body, self._schema_cache.name_columns(target.schema, target.name))
        if parsed.request.preferences.tx is not None:
            raise RequestMalformed(
                "One write of a list cannot be committed or rolled back by itself.", advice="Leave out 'tx'."
            )
        return parsed

    async def _execute(
        self,
        parsed: Sequence[ParsedWrite],
        key: IdempotencyKey | None,
        *,
        candidate: Candidate | None = None,
        combine: Callable[[Sequence[Response]], Response] | None = None,
    ) -> Response:
        """Replay, or plan and execute. ``candidate``: that of the one write. ``combine``: as of ``UnitOfWork``."""

        async def authorise(number: int, resources: Sequence[str]) -> Sequence[str]:
            return await self._authorisation.replays(parsed[number], resources)

        async def work(tables: Sequence[CachedTable]) -> Response:
            planned = []
            for number, (one, cached) in enumerate(zip(parsed, tables, strict=True)):
                with of_write(None if combine is None else number):
                    planned.append(await self._planner.plan(one, cached))
            confirmed = candidate and await self._fast_path.execute(candidate, planned[0], key)
            return confirmed or await self._transactions.execute(UnitOfWork(planned, key, combine))

        if key is not None:
            tokens = [one.tokens for one in parsed]
            if kept := await self._transactions.replay.kept(key, tokens, parsed[0].sender.caller, authorise):
                return kept
        return await self._schema_cache.using([(one.target.schema, one.target.name) for one in parsed], work)


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


def _fingerprint(entries: tuple[Entry, ...]) -> bytes:
    return request.digest([b"transaction", transaction_document.fingerprint(entries)])


def with_details(error: GatewayError) -> GatewayError:
    """Return the error. If it has details of the dialect, they become a fact of the problem document."""
    if isinstance(error, DialectError) and error.details is not None:
        error.facts.setdefault("details", error.details)
    return error
