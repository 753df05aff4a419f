"""The table plane: an ASGI app that speaks PostgREST's dialect and fences every write."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from gateway.admission import Admission
from gateway.auth.principal import ANONYMOUS, Principal
from gateway.errors import DialectError, GatewayError, SqlError
from gateway.fencing import headers as fencing_headers
from gateway.observe.events import Observe
from gateway.origins import origin_of
from gateway.record.audit import Audit
from gateway.record.capture import NOTHING, Capture
from gateway.store.database import Database
from gateway.store.notifications import Listen
from gateway.tables import abilities, failures, media, openapi, planning, request, route
from gateway.tables.calls import Caller, KnownFunctions, not_callable
from gateway.tables.cors import Origins
from gateway.tables.fast import FastPath, InVain
from gateway.tables.following import following
from gateway.tables.honouring import Honouring
from gateway.tables.intake import ClientGone, Message, Receive, whole_body
from gateway.tables.known import Known, KnownTables
from gateway.tables.plan import Rule
from gateway.tables.planning import Planner, key_of
from gateway.tables.reads import Reader, ReadSettings
from gateway.tables.request import READS, WRITES, Request, unsupported
from gateway.tables.response import Response
from gateway.tables.route import Target
from gateway.tables.sender import Sender
from gateway.tables.slow import Settle, SlowPath
from gateway.tables.transactions import Terms, Transactions
from gateway.tables.writes import Writer

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Authenticate: TypeAlias = Callable[[Iterable[tuple[bytes, bytes]]], Principal]

# Classes of SQLSTATE: invalid values, unknown names, unknown schemas.
_OF_NAMES_AND_VALUES = frozenset(("22", "42", "3F"))


@dataclass(frozen=True, slots=True)
class Exposure:
    """What of the database is served, and where: ``{prefix}{table}`` for each of ``prefixes``.

    The first of ``schemas`` is the default. ``rules`` go by ``schema.table``; ``max_body`` is in bytes, ``max_rows``
    the most rows of one answer. ``functions`` are those that can be called, as ``schema.name``. ``tx_override``:
    callers may have their writes rolled back. ``overrides``: code in the database may set status and headers of
    answers. ``verbose_errors``: answers repeat the database's details and hints. ``openapi``: the root describes what
    is served. ``origins`` are those whose pages may read answers; ``*`` for all.
    """

    schemas: tuple[str, ...] = ("public",)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    default_rule: Rule = field(default_factory=Rule)
    prefixes: tuple[str, ...] = ("/v1/tables/",)
    max_body: int = 64 * 1024 * 1024
    max_rows: int | None = None
    functions: frozenset[str] = frozenset()
    tx_override: bool = False
    overrides: bool = False
    verbose_errors: bool = True
    openapi: bool = True
    origins: tuple[str, ...] = ()


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
        admission: Admission | None = None,
        capture: Capture = NOTHING,
    ) -> None:
        """``authenticate`` proves the caller from raw headers; ``settle`` is None where there is no object plane;
        ``capture`` is what is kept of the payloads of refused writes.

        Without ``admission``, what holds by default: any token, within the largest jump.
        """
        admission = admission or Admission(database)
        self._database, self._authenticate, self._observe = database, authenticate, observe
        self._capture = capture
        self._schemas, self._prefixes, self._max_body = exposure.schemas, exposure.prefixes, exposure.max_body
        self._tables = KnownTables(database, exposure.schemas, exposure.rules, exposure.default_rule, observe)
        self._fast = FastPath(database, self._tables, admission, Audit(database, observe, "tables"), observe)
        self._exposure, self._origins = exposure, Origins(exposure.origins)
        self._reader = Reader(database, self._fast, ReadSettings(exposure.max_rows, exposure.overrides))
        self._honouring = Honouring(database, tx_override=exposure.tx_override)
        self._planner = Planner(database, self._honouring)
        self._slow = SlowPath(database, admission, observe, settle, overrides=exposure.overrides)
        self._writer = Writer(self._fast, self._slow, observe)
        self._functions = KnownFunctions(database, exposure.functions)
        self._caller = Caller(self._functions, self._honouring, self._reader, self._slow, exposure.default_rule)
        terms = Terms(exposure.schemas, exposure.prefixes[0], exposure.max_body, capture)
        self._transactions = Transactions(self._tables, self._planner, self._slow, terms, self._of_database)

    def following(self, listen: Listen | None) -> AbstractAsyncContextManager[None]:
        """While this lasts, changes of the tables are followed, and what is to be warned of is announced."""
        return following(self._tables, listen, self._observe)

    async def transact(self, scope: Scope, receive: Receive, principal: Principal) -> Response:
        """The answer to a list of writes, all of which have taken effect. Raises a ``GatewayError`` where none has."""
        return await self._transactions.execute(scope, receive, principal)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = origin_of(scope["headers"])
        told = scope.setdefault("state", {})
        try:
            answer = None if origin is None else self._origins.preflight(scope["method"], scope["headers"])
            if answer is None:
                answer = await self._respond(scope, receive)
        except ClientGone:
            return
        except SqlError as error:
            failure = self._of_database(scope, error)
            told["code"], answer = failure.code, self._failure(failure)
        except GatewayError as error:
            told["code"], answer = error.code, self._failure(error)
        headers = answer.headers + self._origins.headers(origin)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def _failure(self, error: GatewayError) -> Response:
        return failures.answer(error, verbose=self._exposure.verbose_errors)

    def _of_database(self, scope: Mapping[str, Any], error: SqlError) -> GatewayError:
        known = self._authenticate(scope["headers"]) != ANONYMOUS
        return failures.of_database(error, known_caller=known, verbose=self._exposure.verbose_errors)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        """By the fast path, if requests of this form have taken it before; or else the whole way, from the start."""
        plain = self._fast.plain(scope)
        if plain is None or not self._fast.knows(plain):
            return await self._answer(scope, receive)
        principal = self._caller_of(scope)
        answer, tried = None, False
        try:
            if plain.form.method in READS:
                answer = await self._fast.read(plain, scope["query_string"])
            else:
                content = await whole_body(receive, None, self._max_body)
                receive = _again(content)
                answer = await self._fast.write(plain, content, partial(Sender.of, scope, principal, self._capture))
        except InVain:
            tried = True
        except SqlError as error:
            # What the catalog says of the table may be out of date; the whole way finds that out.
            if error.sqlstate[:2] not in _OF_NAMES_AND_VALUES:
                raise
        if answer is None:
            return await self._answer(scope, receive, tried=tried)
        profile = plain.headers.get(b"accept-profile" if plain.form.method in READS else b"content-profile")
        if profile is not None or len(self._schemas) > 1:
            answer.headers.append((b"content-profile", profile or self._schemas[0].encode()))
        return answer

    async def _answer(self, scope: Scope, receive: Receive, *, tried: bool = False) -> Response:
        """The whole way. ``tried``: the fast path has been tried, in vain."""
        method: str = scope["method"]
        principal = self._caller_of(scope)
        kind, name = route.name_of(scope["path"], self._prefixes)
        headers = request.headings(scope["headers"])
        target = route.target(name, request.profile_of(method, headers), self._schemas)
        if kind == "function":
            answer = await self._call(scope, receive, target, headers, principal)
        elif kind == "root":
            answer = await self._describe(method, target, headers)
        elif method in WRITES:
            answer = await self._write(scope, receive, target, headers, principal, tried=tried)
        elif method in READS:
            answer = await self._read(scope, target, headers)
        elif method == "OPTIONS":
            answer = abilities.options((await self._tables.table(target.schema, target.name)).table)
        else:
            raise unsupported(method)
        if target.shown_schema:
            answer.headers.append((b"content-profile", target.schema.encode()))
        return answer

    def _caller_of(self, scope: Scope) -> Principal:
        principal = self._authenticate(scope["headers"])
        scope["state"]["caller"] = principal.name
        return principal

    async def _describe(self, method: str, target: Target, headers: Mapping[bytes, str]) -> Response:
        """All there is in a schema, as OpenAPI."""
        if method == "OPTIONS":
            return abilities.allowed("OPTIONS", "GET", "HEAD")
        if method not in READS:
            raise unsupported(method)
        if not self._exposure.openapi:
            raise DialectError("PGRST126", 404, "Root endpoint metadata is disabled")
        accept = headers.get(b"accept", "")
        if media.root_accepted(accept) is None:
            raise media.not_acceptable(accept)
        tables = (await self._tables.snapshot()).tables.values()
        functions = (await self._functions.all()).forms.values()
        described = openapi.document(
            [one for one in tables if one.schema == target.schema],
            [form for forms in functions for form in forms if form.schema == target.schema],
            self._prefixes[0],
        )
        return abilities.root(described, with_body=method == "GET")

    async def _call(
        self, scope: Scope, receive: Receive, target: Target, headers: Mapping[bytes, str], principal: Principal
    ) -> Response:
        method = scope["method"]
        if method == "OPTIONS":
            return await self._caller.options(target)
        if method in READS:
            return await self._caller.read(target, method, scope["query_string"], headers)
        if method != "POST":
            raise not_callable(method)
        shown = fencing_headers.read(scope["headers"], pairs=True)

        async def body(wanted: Request) -> bytes:
            return await whole_body(receive, wanted.content_length, self._max_body)

        return await self._caller.post(target, headers, shown, Sender.of(scope, principal, self._capture), body)

    async def _read(self, scope: Scope, target: Target, headers: Mapping[bytes, str]) -> Response:
        wanted = request.parse(scope["method"], scope["query_string"], headers)

        async def work(known: Known) -> Response:
            plain = self._fast.plain(scope)
            asked = await self._honouring.settled(wanted, headers)
            return await self._reader.execute(asked, known, scope["path"], scope["query_string"], plain)

        return await self._tables.using(target.schema, target.name, work)

    async def _write(
        self,
        scope: Scope,
        receive: Receive,
        target: Target,
        headers: Mapping[bytes, str],
        principal: Principal,
        *,
        tried: bool,
    ) -> Response:
        rule = self._tables.rule(target.schema, target.name)
        shown = fencing_headers.read(scope["headers"], pairs=True)
        sender = Sender.of(scope, principal, self._capture)
        asked = planning.ask(scope["query_string"], headers, shown, rule, sender, target.name)
        asked = asked.with_body(await whole_body(receive, asked.request.content_length, self._max_body))
        key = key_of(sender, target.schema, headers, asked.body)
        if key is not None and (again := await self._slow.replaying.answer(key, [asked.tokens], sender.caller)):
            return again

        async def work(known: Known) -> Response:
            write = await self._planner.plan(asked, known)
            return await self._writer.execute(replace(write, plain=self._fast.plain(scope), tried=tried), key)

        return await self._tables.using(target.schema, target.name, work)


def _again(content: bytes) -> Receive:
    """What gives a body that has been read once more."""

    async def receive() -> Message:
        return {"type": "http.request", "body": content}

    return receive
