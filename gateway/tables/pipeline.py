"""The table plane: an ASGI app that speaks PostgREST's dialect and fences every write."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from gateway.admission import Admission
from gateway.auth.principal import ANONYMOUS, Principal
from gateway.db.database import Database
from gateway.db.notifications import Listen
from gateway.errors import DialectError, GatewayError, RequestMalformed, SqlError
from gateway.fencing import headers as fencing_headers
from gateway.http.body import Body, BodyReader, ClientGone, Memory, Message, Receive, Scope, offload
from gateway.http.head import Head
from gateway.http.origins import origin_of
from gateway.observe.events import Observe
from gateway.record.audit import Audit
from gateway.record.capture import NOTHING, Capture
from gateway.tables.dialect import errors, media, openapi, request
from gateway.tables.dialect import openapi as abilities
from gateway.tables.dialect import request as route
from gateway.tables.dialect.cors import Origins
from gateway.tables.dialect.request import READS, WRITES, Target, unsupported
from gateway.tables.dialect.response import Response
from gateway.tables.execute import planning
from gateway.tables.execute.fast_path import FastPath, InVain
from gateway.tables.execute.function_calls import Caller, KnownFunctions, not_callable
from gateway.tables.execute.planning import Honouring, Planner, key_of
from gateway.tables.execute.reads import Reader, ReadSettings
from gateway.tables.execute.recipes import Plain
from gateway.tables.execute.sender import Sender
from gateway.tables.execute.transaction import Settle, SlowPath
from gateway.tables.execute.write_list import Terms, Transactions, with_details
from gateway.tables.execute.writes import Writer
from gateway.tables.naming.plan import Rule
from gateway.tables.schema_cache import Known, KnownTables, following

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


class Incoming(NamedTuple):
    """One request. Plans and recipes come from its frozen ``head``, and from nothing else.

    ``state`` is that of the ASGI scope; ``plain`` is the head as a form and its values, None if it is not plain.
    """

    head: Head
    state: dict[str, Any]
    principal: Principal
    body: Body
    plain: Plain | None


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
        bodies: BodyReader | None = None,
    ) -> None:
        """``authenticate`` proves the caller from raw headers; ``settle`` is None where there is no object plane;
        ``capture`` is what is kept of the payloads of refused writes; ``bodies`` reads the bodies of requests.

        Without ``admission``, what holds by default: any token, within the largest jump.
        """
        admission = admission or Admission(database)
        self._database, self._authenticate, self._observe = database, authenticate, observe
        self._capture = capture
        self._bodies = bodies or BodyReader(Memory(4 * exposure.max_body))
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
        terms = Terms(exposure.schemas, exposure.prefixes[0], exposure.max_body)
        self._transactions = Transactions(self._tables, self._planner, self._slow, terms)

    def following(self, listen: Listen | None) -> AbstractAsyncContextManager[None]:
        """While this lasts, changes of the tables are followed, and what is to be warned of is announced."""
        return following(self._tables, listen, self._observe)

    async def transact(self, scope: Scope, receive: Receive, principal: Principal) -> Response:
        """Carry out a list of writes and return the answer. Raises a ``GatewayError`` if none has taken effect."""
        head, body = Head.of(scope), self._bodies.of(scope, receive)
        sender = Sender.of(head, scope["state"], principal, self._capture)
        try:
            return await self._transactions.execute(head, body, sender)
        except SqlError as error:
            told = self._of_database(principal, error)
            told.facts.update(error.facts)
            raise with_details(told) from error
        except DialectError as error:
            raise with_details(error) from error.__cause__
        except ClientGone:
            raise RequestMalformed("The request ended before its body was complete.") from None
        finally:
            body.release()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head, body, state = Head.of(scope), self._bodies.of(scope, receive), scope["state"]
        origin = origin_of(head.headers)
        try:
            answer = None if origin is None else self._origins.preflight(head.method, head.headers)
            if answer is None:
                principal = self._authenticate(head.headers)
                state["caller"] = principal.name
                answer = await self._respond(Incoming(head, state, principal, body, self._fast.plain(head)))
        except ClientGone:
            return
        except GatewayError as error:
            state["code"], answer = error.code, errors.answer(error, verbose=self._exposure.verbose_errors)
        finally:
            body.release()
        headers = answer.headers + self._origins.headers(origin)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def _of_database(self, principal: Principal, error: SqlError) -> GatewayError:
        known = principal is not ANONYMOUS
        return errors.of_database(error, known_caller=known, verbose=self._exposure.verbose_errors)

    async def _respond(self, incoming: Incoming) -> Response:
        """Answer by the fast path if requests of this form have taken it before, else by the whole way."""
        try:
            answer, tried = await self._by_recipe(incoming)
            return answer or await self._answer(incoming, tried=tried)
        except SqlError as error:
            raise self._of_database(incoming.principal, error) from error

    async def _by_recipe(self, incoming: Incoming) -> tuple[Response | None, bool]:
        """Return the answer of the fast path, if it has one, and whether it has sent a write in vain."""
        head, plain = incoming.head, incoming.plain
        if plain is None or not self._fast.knows(plain):
            return None, False
        reads = head.method in READS
        try:
            if reads:
                answer = await self._fast.read(plain, head.query_string)
            else:
                content = await incoming.body.whole(self._max_body)
                answer = await self._fast.write(plain, content, partial(self._sender, incoming))
        except InVain:
            return None, True
        except SqlError as error:
            # What the catalog says of the table may be out of date; the whole way finds that out.
            if error.sqlstate[:2] not in _OF_NAMES_AND_VALUES:
                raise
            return None, False
        if answer is not None:
            profile = plain.headers.get(b"accept-profile" if reads else b"content-profile")
            if profile is not None or len(self._schemas) > 1:
                answer.headers.append((b"content-profile", profile or self._schemas[0].encode()))
        return answer, False

    async def _answer(self, incoming: Incoming, *, tried: bool) -> Response:
        """Answer by the whole way. ``tried``: the fast path has sent the write, in vain."""
        head = incoming.head
        method = head.method
        kind, name = route.name_of(head.path, self._prefixes)
        headers = request.headings(head.headers)
        target = route.target(name, request.profile_of(method, headers), self._schemas)
        if kind == "function":
            answer = await self._call(incoming, target, headers)
        elif kind == "root":
            answer = await self._describe(method, target, headers)
        elif method in WRITES:
            answer = await self._write(incoming, target, headers, tried=tried)
        elif method in READS:
            answer = await self._read(incoming, target, headers)
        elif method == "OPTIONS":
            answer = abilities.options((await self._tables.table(target.schema, target.name)).table)
        else:
            raise unsupported(method)
        if target.shown_schema:
            answer.headers.append((b"content-profile", target.schema.encode()))
        return answer

    def _sender(self, incoming: Incoming) -> Sender:
        return Sender.of(incoming.head, incoming.state, incoming.principal, self._capture)

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

    async def _call(self, incoming: Incoming, target: Target, headers: Mapping[bytes, str]) -> Response:
        head = incoming.head
        if head.method == "OPTIONS":
            return await self._caller.options(target)
        if head.method in READS:
            return await self._caller.read(target, head.method, head.query_string, headers)
        if head.method != "POST":
            raise not_callable(head.method)
        shown = fencing_headers.read(head.headers, pairs=True)
        body = partial(incoming.body.whole, self._max_body)
        return await self._caller.post(target, headers, shown, self._sender(incoming), body)

    async def _read(self, incoming: Incoming, target: Target, headers: Mapping[bytes, str]) -> Response:
        head = incoming.head
        wanted = request.parse(head.method, head.query_string, headers)

        async def work(known: Known) -> Response:
            asked = await self._honouring.settled(wanted, headers)
            return await self._reader.execute(asked, known, head.path, head.query_string, incoming.plain)

        return await self._tables.using(target.schema, target.name, work)

    async def _write(
        self, incoming: Incoming, target: Target, headers: Mapping[bytes, str], *, tried: bool
    ) -> Response:
        head, sender = incoming.head, self._sender(incoming)
        rule = self._tables.rule(target.schema, target.name)
        shown = fencing_headers.read(head.headers, pairs=True)
        asked = planning.ask(head.query_string, headers, shown, rule, sender, target.name)
        content = await incoming.body.whole(self._max_body)
        asked = await offload(len(content), asked.with_body, content)
        key = await offload(len(content), key_of, sender, target.schema, headers, content)
        if key is not None and (again := await self._slow.replaying.answer(key, [asked.tokens], sender.caller)):
            return again

        async def work(known: Known) -> Response:
            write = await self._planner.plan(asked, known)
            return await self._writer.execute(replace(write, plain=incoming.plain, tried=tried), key)

        return await self._tables.using(target.schema, target.name, work)
