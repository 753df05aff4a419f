"""The table plane: an ASGI app that speaks PostgREST's dialect and fences every write."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

from gateway.auth.principal import Principal
from gateway.errors import (
    BodyTooLarge,
    DialectError,
    GatewayError,
    ResourceMismatch,
    ResourceUnderivable,
    SqlError,
    TokenRequired,
)
from gateway.fencing import headers as fencing_headers
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.rules import Equal, Mode, Presented
from gateway.observe.events import Observe
from gateway.store.database import Database, Record, Transaction
from gateway.tables import body, plan, request, response, sql
from gateway.tables.body import Payload
from gateway.tables.grammar import not_implemented
from gateway.tables.known import Known, KnownTables
from gateway.tables.plan import Rule
from gateway.tables.request import READS, WRITES, Request
from gateway.tables.response import Response
from gateway.tables.shape import lower_read
from gateway.tables.writes import Sender, Settle, Write, Writer

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Authenticate: TypeAlias = Callable[[Iterable[tuple[bytes, bytes]]], Principal]
Answer = TypeVar("Answer")

_STALE_CODES = frozenset(("PGRST204", "PGRST205", "42703"))
_STALE_SQLSTATES = frozenset(("42P01", "42703", "42883", "42804", "42704", "3F000"))


class _ClientGone(Exception):
    """The client hung up before its body was complete."""


@dataclass(frozen=True, slots=True)
class _Target:
    """The table a request is for, as the client names it."""

    schema: str
    name: str
    shown_schema: bool


@dataclass(frozen=True, slots=True)
class Exposure:
    """What of the database is served, and where: ``{prefix}{table}`` for each of ``prefixes``.

    The first of ``schemas`` is the default. ``rules`` go by ``schema.table``; ``max_body`` is in bytes.
    """

    schemas: tuple[str, ...] = ("public",)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    default_rule: Rule = field(default_factory=Rule)
    prefixes: tuple[str, ...] = ("/v1/tables/",)
    max_body: int = 64 * 1024 * 1024


class TablePlane:
    """The ASGI app. Construct it before the database is reachable; it connects when the first request needs it."""

    def __init__(
        self,
        database: Database,
        exposure: Exposure,
        *,
        authenticate: Authenticate,
        observe: Observe,
        settle: Settle | None = None,
    ) -> None:
        """``authenticate`` proves the caller from raw headers; ``settle`` is None where there is no object plane."""
        self._database, self._authenticate = database, authenticate
        self._schemas, self._prefixes, self._max_body = exposure.schemas, exposure.prefixes, exposure.max_body
        self._tables = KnownTables(database, exposure.schemas, exposure.rules, exposure.default_rule)
        self._writer = Writer(database, observe, settle)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive)
        except _ClientGone:
            return
        except SqlError as error:
            answer = response.error(response.sql_error(error))
        except GatewayError as error:
            answer = response.error(error)
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        method: str = scope["method"]
        principal = self._authenticate(scope["headers"])
        name = self._table_name(scope["path"])
        headers = request.headings(scope["headers"])
        target = self._target(name, request.profile_of(method, headers))
        if method in WRITES:
            answer = await self._write(scope, receive, target, headers, principal)
        elif method in READS:
            answer = await self._read(scope, target, headers)
        elif method == "OPTIONS":
            answer = response.options((await self._tables.table(target.schema, target.name)).table)
        else:
            raise DialectError("PGRST117", 405, f"Unsupported HTTP method: {method[:20]}")
        if target.shown_schema:
            answer.headers.append((b"content-profile", target.schema.encode()))
        return answer

    async def _read(self, scope: Scope, target: _Target, headers: Mapping[bytes, str]) -> Response:
        wanted = request.parse(scope["method"], scope["query_string"], headers)

        async def work(known: Known) -> Response:
            shape, values = lower_read(wanted, counted=wanted.preferences.count is not None)
            statement = known.statements.read(shape)
            row = await self._fetched(known, statement.text, statement.arrange(values))
            return response.read(wanted, row, scope["path"], scope["query_string"])

        return await self._with_table(target, work)

    async def _fetched(self, known: Known, text: str, arguments: list[object]) -> Record:
        """The one row of a read. Views can call functions that write: no read may become an unfenced write."""

        async def read_only(transaction: Transaction) -> Record | None:
            await transaction.execute("SET TRANSACTION READ ONLY")
            return await transaction.fetchrow(text, *arguments)

        if known.table.is_view:
            row = await self._database.run(read_only)
        else:
            row = await self._database.fetchrow(text, *arguments)
        assert row is not None
        return row

    async def _write(
        self, scope: Scope, receive: Receive, target: _Target, headers: Mapping[bytes, str], principal: Principal
    ) -> Response:
        shown = fencing_headers.read(scope["headers"])
        rule = self._tables.rule(target.schema, target.name)
        if shown.token is None and rule.mode is Mode.ENFORCE:
            raise TokenRequired(f"A write to {target.name} needs a fencing token.")
        wanted = request.parse(scope["method"], scope["query_string"], headers)
        _check_write(wanted)
        sender = _sender(scope, principal)
        if wanted.method == "DELETE":
            content, payload = await self._body(receive, wanted), None
        else:
            request.check_content_type(headers)
            content = await self._body(receive, wanted)
            payload = body.parse(content, wanted.query.columns)
            _check_rows(wanted, payload)
        presented = _presented(shown, rule)

        async def work(known: Known) -> Response:
            _check_columns(wanted, payload, known)
            claimed, objection = await self._claimed(wanted, payload, known, shown.resource)
            if presented is None:
                objection = TokenRequired("The write carries no fencing token.")
            write = Write(wanted, payload, content, known, presented, claimed, sender, objection)
            written, accepted = await self._writer.execute(write)
            return response.write(wanted, known.table, written, accepted, scope["path"])

        return await self._with_table(target, work)

    async def _claimed(
        self, wanted: Request, payload: Payload | None, known: Known, explicit: str | None
    ) -> tuple[tuple[str, ...] | None, GatewayError | None]:
        """The resources of the write; in observe mode None and the reason where there are none."""
        try:
            named = known.naming()
            claim = plan.derive(wanted, payload, named, explicit)
            asked = plan.questions(claim, named) if claim.rows else None
            answers = await self._answers(asked) if asked else {}
            return plan.resources(claim, named, answers), None
        except (ResourceUnderivable, ResourceMismatch) as failure:
            if known.rule.mode is Mode.ENFORCE:
                raise
            return None, failure

    async def _answers(self, asked: Mapping[Any, set[str]]) -> dict[tuple[str, str], str]:
        """Canonical forms only the database knows. A value it cannot read is an ``SqlError``, as in a filter."""
        answers = {}
        for column, values in asked.items():
            for row in await self._database.fetch(sql.canonical(column), sorted(values)):
                answers[column.name, row["value"]] = row["escaped"]
        return answers

    async def _with_table(self, target: _Target, work: Callable[[Known], Awaitable[Answer]]) -> Answer:
        """Run ``work`` with what is known of the table; once more if that turns out to be out of date.

        Only errors that undo everything lead here a second time.
        """
        before: Known | None = None
        try:
            before = await self._tables.table(target.schema, target.name)
            return await work(before)
        except (DialectError, SqlError) as error:
            if not _tells_of_change(error):
                raise
            await self._tables.reload()
            now = await self._tables.table(target.schema, target.name)
            if before is not None and now.table == before.table:
                raise
        return await work(now)

    async def _body(self, receive: Receive, wanted: Request) -> bytes:
        """The whole body. Nothing is written unless it has arrived in full."""
        if wanted.content_length is not None and wanted.content_length > self._max_body:
            raise self._too_large()
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            content: bytes = message.get("body", b"")
            if len(content) > self._max_body:
                raise self._too_large()
            return content
        chunks, size = [], 0
        while True:
            if message["type"] != "http.request":
                raise _ClientGone
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._max_body:
                raise self._too_large()
            if not message.get("more_body"):
                return b"".join(chunks)
            message = await receive()

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body has more than {self._max_body} bytes.")

    def _table_name(self, path: str) -> str:
        for prefix in self._prefixes:
            if path.startswith(prefix):
                name = path[len(prefix) :].removesuffix("/")
                if not name:
                    raise DialectError("PGRST126", 404, "Root endpoint metadata is disabled")
                if "/" not in name and "\0" not in name:
                    return name
        raise DialectError("PGRST125", 404, "Invalid path specified in request URL")

    def _target(self, name: str, profile: str | None) -> _Target:
        if profile is None:
            return _Target(self._schemas[0], name, len(self._schemas) > 1)
        if profile not in self._schemas:
            raise DialectError(
                "PGRST106",
                406,
                f"Invalid schema: {profile[:100]}",
                hint=f"Only the following schemas are exposed: {', '.join(self._schemas)}",
            )
        return _Target(profile, name, shown_schema=True)


def _presented(shown: FencingHeaders, rule: Rule) -> Presented | None:
    if shown.token is None:
        return None
    # A strict resource lets each token write once: the id tells a retry of this write from another write.
    return Presented(shown.token, shown.holder, uuid4() if rule.equal is Equal.STRICT else None)


def _sender(scope: Scope, principal: Principal) -> Sender:
    state = scope.get("state") or {}
    query = scope["query_string"].decode("latin-1")
    return Sender(principal.name, scope["path"], query, state.get("client"), state.get("request_id", ""))


def _check_write(wanted: Request) -> None:
    """What no write may be, in either mode: unbounded, or bounded by something that does not bound it."""
    query = wanted.query
    if wanted.method == "PUT":
        if query.is_limited:
            raise DialectError("PGRST114", 400, "limit/offset querystring parameters are not allowed for PUT")
        return
    if wanted.method == "POST":
        return
    if query.is_limited:
        raise not_implemented("A limit or offset on a write, which would not narrow it,")
    if not query.filters:
        verb = "UPDATE" if wanted.method == "PATCH" else "DELETE"
        raise DialectError(
            "21000", 400, f"{verb} requires a WHERE clause", hint="Add at least one filter, such as id=eq.1."
        )


def _check_rows(wanted: Request, payload: Payload) -> None:
    if wanted.method == "PATCH" and len(payload.rows) != 1:
        raise DialectError(
            "PGRST102",
            400,
            "An update takes exactly one object",
            details=f"The body is an array of {len(payload.rows)} rows; which of them is meant cannot be told.",
        )


def _check_columns(wanted: Request, payload: Payload | None, known: Known) -> None:
    table = known.table
    if table.kind == "f":
        raise not_implemented("A write to a foreign table, whose rows are in another database than the fence,")
    named = (*(payload.columns if payload else ()), *wanted.query.on_conflict)
    for name in named:
        if name not in table.columns:
            raise DialectError(
                "PGRST204", 400, f"Could not find the '{name}' column of '{table.name}' in the schema cache"
            )
    if wanted.method == "PUT" and not (
        table.primary_key and request.pins_exactly(wanted.query.filters, table.primary_key)
    ):
        raise DialectError("PGRST105", 405, "Filters must include all and only primary key columns with 'eq' operators")


def _tells_of_change(error: DialectError | SqlError) -> bool:
    if isinstance(error, SqlError):
        return error.sqlstate in _STALE_SQLSTATES
    return error.code in _STALE_CODES
