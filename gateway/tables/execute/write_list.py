"""Several writes in one transaction: all of them under their tokens, or none.

Each is asked, planned and carried out as if it had come alone, so what is not allowed alone is not allowed in a list.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.db.idempotency import Key
from gateway.errors import DialectError, GatewayError, RequestMalformed
from gateway.fencing import headers as fencing_headers
from gateway.http.body import Body, offload
from gateway.http.head import Head
from gateway.tables.dialect import request, transaction_document
from gateway.tables.dialect import request as replays
from gateway.tables.dialect import request as route
from gateway.tables.dialect.request import Target
from gateway.tables.dialect.response import Response
from gateway.tables.dialect.transaction_document import Entry, of_write
from gateway.tables.execute.planning import Asked, Planner, Sender, ask
from gateway.tables.execute.transaction import Order, SlowPath
from gateway.tables.schema_cache import Known, KnownTables

_NO_SUCH_TABLE = "PGRST205"


@dataclass(frozen=True, slots=True)
class Terms:
    """The schemas and the path by which tables are served. ``max_body`` is in bytes."""

    schemas: tuple[str, ...]
    prefix: str
    max_body: int


class Transactions:
    """Carries out lists of writes."""

    def __init__(self, tables: KnownTables, planner: Planner, slow_path: SlowPath, terms: Terms) -> None:
        self._tables, self._planner, self._slow_path, self._terms = tables, planner, slow_path, terms

    async def execute(self, head: Head, body: Body, sender: Sender) -> Response:
        """Answer ``POST /v1/transaction``. Raises what refuses any of the writes, or all of them.

        The facts of an error say which write it is about, if it is about one.
        """
        headers = request.headings(head.headers)
        _check_head(headers)
        shown = fencing_headers.read(head.headers, pairs=True)
        name = replays.parse_key(headers)
        content = await body.whole(self._terms.max_body)
        listed = await offload(len(content), transaction_document.parse, content, shown)
        key = None if name is None else Key(sender.keyring, name, await offload(len(content), _fingerprint, listed))
        asked, targets = [], []
        for number, entry in enumerate(listed):
            with of_write(number):
                target = route.target(entry.table, entry.schema, self._terms.schemas)
                asked.append(await offload(len(entry.body), self._asked, entry, target, sender))
            targets.append((target.schema, target.name))
        shown_for = [one.tokens for one in asked]
        if key is not None and (again := await self._slow_path.replaying.answer(key, shown_for, sender.caller)):
            return again

        async def work(known: Mapping[tuple[str, str], Known]) -> Response:
            writes = []
            for number, (one, where) in enumerate(zip(asked, targets, strict=True)):
                with of_write(number):
                    writes.append(await self._planner.plan(one, known[where]))
            return await self._slow_path.carry_out(Order(writes, key, transaction_document.combined))

        return await self._with_tables(targets, work)

    def _asked(self, entry: Entry, target: Target, sender: Sender) -> Asked:
        """The write as if it had come alone."""
        path = f"{self._terms.prefix}{target.name}"
        alone = replace(sender, method=entry.method, path=path, query=entry.query.decode())
        rule = self._tables.rule(target.schema, target.name)
        asked = ask(entry.query, entry.headers, entry.shown, rule, alone, target.name).with_body(entry.body)
        if asked.request.preferences.tx is not None:
            raise RequestMalformed(
                "One write of a list cannot be committed or rolled back by itself.", advice="Leave out 'tx'."
            )
        return asked

    async def _with_tables(
        self,
        targets: Sequence[tuple[str, str]],
        work: Callable[[Mapping[tuple[str, str], Known]], Awaitable[Response]],
    ) -> Response:
        """Run ``work`` with what is known of all tables; again where that was out of date for one of them."""
        try:
            return await self._tables.using_all(list(dict.fromkeys(targets)), work)
        except DialectError as error:
            if error.code == _NO_SUCH_TABLE:
                for number, target in enumerate(targets):
                    with of_write(number):
                        await self._tables.table(*target)
            raise


def _check_head(headers: Mapping[bytes, str]) -> None:
    """A page of another origin cannot send this type of body without having been asked whether it may."""
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
    return replays.digest([b"transaction", transaction_document.fingerprint(listed)])


def with_details(error: GatewayError) -> GatewayError:
    """Return the error with the details of the dialect, if it has any, as a fact of a problem document."""
    if isinstance(error, DialectError) and error.details is not None:
        error.facts.setdefault("details", error.details)
    return error
