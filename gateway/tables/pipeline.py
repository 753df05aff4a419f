"""The table plane: an ASGI app that speaks PostgREST's dialect and fences every write.

The stages of a request, in the order of this file:

1. Receive: authenticate the caller, before the body is read (``__call__``).
2. Fast path: answer a plain request of a known form by one statement (``_respond``, ``execute/fast_path.py``).
3. Route: by its path and method, to the one that carries out such requests (``_answer``). Each of them parses
   (``dialect/``), authorises (``execute/authorisation.py``), plans and executes in an order of its own:
   ``execute/writes.py``, ``execute/reads.py``, ``execute/function_calls.py``.
4. Respond: PostgREST's status, headers and body (``dialect/response.py``; errors: ``dialect/errors.py``).
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from starlette.types import Message, Receive, Scope

from gateway import budget
from gateway.auth.principal import Principal
from gateway.budget import Budget
from gateway.db import rights
from gateway.db.database import Database
from gateway.db.notifications import Listen
from gateway.errors import DialectError, GatewayError, RequestMalformed, SqlError
from gateway.http.body import BodyReader, ClientGone
from gateway.http.head import LARGEST, Head
from gateway.http.origins import origin_of
from gateway.observe.events import Observe
from gateway.record.payload_capture import NOTHING, Capture
from gateway.record.refusals import Audit, Denials
from gateway.tables.dialect import errors, openapi, request
from gateway.tables.dialect.request import READS, WRITES
from gateway.tables.dialect.response import Origins, Response
from gateway.tables.execute.authorisation import TableAuthorisation, concerns_table
from gateway.tables.execute.fast_path import Candidate, FastPath, Prepared
from gateway.tables.execute.function_calls import FunctionCalls
from gateway.tables.execute.planning import EffectivePreferences, Incoming, Planner
from gateway.tables.execute.reads import AnswerLimit, Description, Reader
from gateway.tables.execute.transaction import FencedTransactions, Settle
from gateway.tables.execute.writes import Writes, with_details
from gateway.tables.naming import Rule
from gateway.tables.schema_cache import FunctionCache, SchemaCache, watching
from gateway.token_admission import Admission

Send: TypeAlias = Callable[[Message], Awaitable[None]]
Authenticate: TypeAlias = Callable[[Head], Principal]


@dataclass(frozen=True, slots=True)
class Exposure:
    """The part of the database that is served, at ``{prefix}{table}`` for each of ``prefixes``.

    The first of ``schemas`` is the default. ``rules`` go by ``schema.table``. ``max_body``: bytes of a body.
    ``max_rows``: the most rows of one answer. ``functions``: those that can be called, as ``schema.name``.
    ``verbose_errors``: answers repeat the database's details and hints. ``openapi``: the root describes what is served.
    ``origins``: the origins whose pages may read answers; ``*`` for all. ``required``: tables that must exist before
    any is served, as ``schema.table``.
    """

    schemas: tuple[str, ...] = ("public",)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    default_rule: Rule = field(default_factory=Rule)
    prefixes: tuple[str, ...] = ("/v1/tables/",)
    max_body: int = 64 * 1024 * 1024
    max_rows: int | None = None
    functions: frozenset[str] = frozenset()
    verbose_errors: bool = True
    openapi: bool = True
    origins: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()


class TablePlane:
    """The ASGI app. Construct it before the database is reachable: it connects when the first request needs it."""

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
        authorisation: TableAuthorisation | None = None,
        bodies: BodyReader | None = None,
    ) -> None:
        """``authenticate`` proves the caller of a request from its head.

        ``settle`` is None if there is no object plane.
        ``capture``: what the record keeps of the bodies of refused writes. ``bodies`` reads the bodies of requests.
        Without ``admission``, any token within the largest jump is taken.
        """
        admission = admission or Admission(database)
        self._exposure, self._authenticate, self._observe, self._capture = exposure, authenticate, observe, capture
        self._database = database
        self._bodies = bodies or BodyReader(Budget(8 * exposure.max_body, "bytes of memory"))
        # None if no page of another origin may read answers.
        self._cors = Origins(exposure.origins) if exposure.origins else None
        self._schema_cache = SchemaCache(
            database, exposure.schemas, exposure.rules, exposure.default_rule, observe, exposure.required
        )
        functions = FunctionCache(database, exposure.functions)
        self._description = Description(self._schema_cache, functions, exposure.prefixes[0], enabled=exposure.openapi)
        audit = Audit(database, observe, "tables")
        self._fast_path = FastPath(database, admission, audit, observe, exposure.schemas)
        preferences = EffectivePreferences(database)
        authorisation = self._authorisation = authorisation or TableAuthorisation(Denials(database, observe).refuse)
        planner = Planner(database, preferences, authorisation.claims)
        limit = AnswerLimit(exposure.max_body, self._bodies.memory)
        transactions = FencedTransactions(database, admission, authorisation, observe, settle, audit, limit)
        self._reader = Reader(
            database, self._schema_cache, preferences, self._fast_path, authorisation, limit, exposure.max_rows
        )
        self._function_calls = FunctionCalls(
            functions, preferences, self._reader, transactions, authorisation, exposure.default_rule
        )
        self._writes = Writes(
            self._schema_cache, planner, self._fast_path, transactions, authorisation, exposure.schemas,
            exposure.prefixes[0],
        )  # fmt: skip

    def running(self, listen: Listen | None) -> AbstractAsyncContextManager[None]:
        """Keep the schema cache up to date in the background. Without ``listen``, load it once."""
        return watching(self._schema_cache, listen, self._observe)

    def prepare(self, head: Head) -> Prepared | None:
        """Prepare for requests with this head, whatever their queries are. None if all of them have to be planned.

        Raises ``GatewayError`` if such requests are refused.
        """
        principal = self._authenticate(head)
        if self._exposure.max_body < LARGEST:
            return None
        headers = self._cors.headers(origin_of(head.headers)) if self._cors else []
        return self._fast_path.prepare(head, principal, headers, self._capture)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive one request and send its answer. A client that hangs up before its body is complete gets none."""
        head, body, state = Head.of(scope), self._bodies.of(scope, receive), scope["state"]
        origin = origin_of(head.headers) if self._cors else None
        try:
            answer = self._cors.preflight(head.method, head.headers) if self._cors and origin is not None else None
            if answer is None:
                principal = self._authenticate(head)
                budget.serve(state, principal.name)
                incoming = Incoming(head, state, principal, body, self._capture, self._exposure.max_body)
                answer = await self._respond(incoming, state.get("begun"))
        except ClientGone:
            return
        except GatewayError as error:
            state["error"], answer = error, errors.answer(error, verbose=self._exposure.verbose_errors)
        headers = answer.headers + self._cors.headers(origin) if self._cors else answer.headers
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _respond(self, incoming: Incoming, begun: Candidate | None) -> Response:
        """Answer by the fast path if it knows the form of this request and confirms it. Else parse the request."""
        candidate = begun or self._fast_path.candidate(incoming.head, incoming.principal)
        try:
            answer = await self._fast_path.answer(candidate, incoming)
            return answer or await self._answer(incoming, candidate)
        except SqlError as error:
            raise await self._of_database(incoming.principal, error) from error

    async def _answer(self, incoming: Incoming, candidate: Candidate) -> Response:
        head, sender = incoming.head, incoming.sender
        kind, name = request.name_of(head.path, self._exposure.prefixes)
        headers = request.headings(head.headers)
        target = request.target(name, request.profile_of(head.method, headers), self._exposure.schemas)
        if kind == "function":
            answer = await self._function_calls.answer(incoming, target, headers)
        elif kind == "root":
            answer = await self._description.answer(head.method, target.schema, headers, sender.rights)
        elif head.method in WRITES:
            answer = await self._writes.one(incoming, candidate, target, headers)
        elif head.method in READS:
            answer = await self._reader.answer(incoming, candidate, target, headers)
        elif head.method == "OPTIONS":
            if not concerns_table(sender.rights, target.qualified):
                await self._authorisation.reads(sender, (target.qualified,))
            answer = openapi.options((await self._schema_cache.table(target.schema, target.name)).table)
        else:
            raise request.unsupported(head.method)
        if target.shown_schema:
            answer.headers.append((b"content-profile", target.schema.encode()))
        return answer

    async def transact(self, scope: Scope, receive: Receive, principal: Principal) -> Response:
        """Execute a list of writes and return the answer. Raises ``GatewayError`` if none has taken effect."""
        head, body = Head.of(scope), self._bodies.of(scope, receive)
        incoming = Incoming(head, scope["state"], principal, body, self._capture, self._exposure.max_body)
        try:
            return await self._writes.listed(incoming)
        except SqlError as error:
            told = await self._of_database(principal, error)
            told.facts.update(error.facts)
            raise with_details(told) from error
        except DialectError as error:
            raise with_details(error) from error.__cause__
        except ClientGone:
            raise RequestMalformed("The request ended before its body was complete.") from None

    async def _of_database(self, principal: Principal, error: SqlError) -> GatewayError:
        if (lacking := await rights.of_fencing(self._database, error)) is not None:
            return lacking
        known = not principal.is_anonymous
        return errors.of_database(error, known_caller=known, verbose=self._exposure.verbose_errors)
