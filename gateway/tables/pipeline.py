"""The table plane: an ASGI app that speaks PostgREST's dialect and fences every write.

The stages of a request, in the order of this file:

1. Receive: authenticate the caller, before the body is read (``__call__``).
2. Fast path: answer a plain request of a known form by one statement (``_respond``, ``execute/fast_path.py``).
3. Parse: the path, the headers, the query and the body (``_answer`` and below, ``dialect/``). Authorise: what the
   caller's grants say about the table or function, before anything tells whether it exists (``authorisation.py``).
4. Plan: which resources the write claims, whether the table can do it, and whether grants cover these resources
   (``execute/planning.py``, ``naming/``).
5. Claim and execute: one statement that confirms the claim, or a transaction that claims, writes and verifies
   (``_execute``; ``execute/fast_path.py``, ``execute/transaction.py``, ``sql/``).
6. Respond: PostgREST's status, headers and body (``dialect/response.py``; errors: ``dialect/errors.py``).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from gateway import budget
from gateway.admission import Admission
from gateway.auth.grants import Rights
from gateway.auth.principal import OWN, Principal, Proof, Use
from gateway.budget import CALLER, Budget, Caller
from gateway.db import rights
from gateway.db.database import Database
from gateway.db.idempotency import IdempotencyKey
from gateway.db.notifications import Listen
from gateway.errors import DialectError, GatewayError, RequestMalformed, SqlError
from gateway.fencing import headers as fencing_headers
from gateway.http.body import Body, BodyReader, ClientGone, Message, Receive, Scope, offload
from gateway.http.direct import Origin
from gateway.http.head import LARGEST, REQUEST_ID, Head, Packet, client_request_id
from gateway.http.origins import origin_of
from gateway.observe.events import Observe
from gateway.record.audit import Audit
from gateway.record.denials import Denials
from gateway.record.payload_capture import NOTHING, Capture
from gateway.tables.dialect import errors, openapi, request
from gateway.tables.dialect.cors import Origins
from gateway.tables.dialect.overrides import Headers
from gateway.tables.dialect.request import READS, WRITES, Target
from gateway.tables.dialect.response import Response
from gateway.tables.execute import planning
from gateway.tables.execute.acting import KnownRole, known_role
from gateway.tables.execute.authorisation import Authorisation, concerns_table
from gateway.tables.execute.fast_path import Candidate, FastPath
from gateway.tables.execute.function_calls import FunctionCalls
from gateway.tables.execute.planning import EffectivePreferences, ParsedWrite, Planner, Sender
from gateway.tables.execute.reads import AnswerLimit, Description, Reader, ReadSettings
from gateway.tables.execute.recipes import PlainHead
from gateway.tables.execute.transaction import FencedTransactions, Settle, UnitOfWork
from gateway.tables.execute.write_list import ListSettings, WriteLists, with_details
from gateway.tables.naming.plan import Rule
from gateway.tables.schema_cache import CachedTable, FunctionCache, SchemaCache, watching

Send: TypeAlias = Callable[[Message], Awaitable[None]]
Authenticate: TypeAlias = Callable[[Head], Principal]


@dataclass(frozen=True, slots=True)
class Exposure:
    """The part of the database that is served, at ``{prefix}{table}`` for each of ``prefixes``.

    The first of ``schemas`` is the default. ``rules`` go by ``schema.table``. ``max_body``: bytes of a body.
    ``max_rows``: the most rows of one answer. ``functions``: those that can be called, as ``schema.name``.
    ``tx_override``: callers may have their writes rolled back. ``overrides``: code in the database may set status and
    headers of answers. ``verbose_errors``: answers repeat the database's details and hints. ``openapi``: the root
    describes what is served. ``origins``: the origins whose pages may read answers; ``*`` for all. ``required``: tables
    that must exist before any is served, as ``schema.table``.
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
    required: frozenset[str] = frozenset()


class Incoming(NamedTuple):
    """One request. Plans and recipes come from its frozen ``head``, and from nothing else.

    ``state`` is that of the ASGI scope.
    """

    head: Head
    state: dict[str, Any]
    principal: Principal
    body: Body
    candidate: Candidate


class Prepared(NamedTuple):
    """The known part of all requests with one head: their caller, and all but the values of their form.

    ``headers``: of all answers to them. ``proof``: that of the caller, if it can end. ``use``: of its key, if any.
    ``role``: of the database, if not the gateway's own. ``caller``: all anonymous ones of such requests share a share.
    """

    fast_path: FastPath
    plain: PlainHead
    rights: Rights
    headers: Headers
    origin: Origin
    proof: Proof | None
    use: Use | None
    role: KnownRole | None
    caller: Caller

    def begin(self, packet: Packet) -> Candidate | None:
        """Send the statement of a plain request of a known form. None if the request needs a task."""
        if self.proof is not None and not self.proof.holds():
            return None
        if self.use is not None:
            self.use.note()
        CALLER.set(self.caller)  # for a statement that takes a session of its own
        plain = self.plain.with_query(packet.query_string, packet.changing)
        role = self.role and partial(self.role.of, packet.changing)
        candidate = Candidate(plain, self.origin.caller, self.rights, role=role)
        self.fast_path.begin(candidate, packet.query_string, packet.content)
        return None if candidate.match is None else candidate

    def answer(self, begun: Candidate) -> Response | None:
        """Return the answer to a request whose row has come. None if the row does not confirm it, or has failed.

        Raises ``GatewayError`` for a row that contradicts the request.
        """
        answer = self.fast_path.confirmed(begun)
        if answer is not None:
            answer.headers.extend(self.headers)
        return answer


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
        authorisation: Authorisation | None = None,
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
        self._fast_path = FastPath(
            *(database, admission, audit, observe, exposure.schemas),
            overrides=exposure.overrides,
        )
        preferences = EffectivePreferences(database, tx_override=exposure.tx_override)
        authorisation = self._authorisation = authorisation or Authorisation(Denials(database, observe))
        self._planner = Planner(database, preferences, authorisation.claims)
        limit = AnswerLimit(exposure.max_body, self._bodies.memory)
        self._transactions = FencedTransactions(
            database, admission, authorisation, observe, settle, audit, limit, overrides=exposure.overrides
        )
        self._preferences = preferences
        settings = ReadSettings(limit, exposure.max_rows, exposure.overrides)
        self._reader = Reader(database, self._fast_path, authorisation, settings)
        self._function_calls = FunctionCalls(
            functions, preferences, self._reader, self._transactions, authorisation, exposure.default_rule
        )
        lists = ListSettings(exposure.schemas, exposure.prefixes[0], exposure.max_body)
        self._write_lists = WriteLists(self._schema_cache, self._planner, self._transactions, authorisation, lists)

    def running(self, listen: Listen | None) -> AbstractAsyncContextManager[None]:
        """Keep the schema cache up to date in the background. Without ``listen``, load it once."""
        return watching(self._schema_cache, listen, self._observe)

    def prepare(self, head: Head) -> Prepared | None:
        """Prepare for requests with this head, whatever their queries are. None if all of them have to be planned.

        Raises ``GatewayError`` if such requests are refused.
        """
        principal = self._authenticate(head)
        acting = principal.role != OWN
        plain = self._fast_path.plain_head(head, acting=acting)
        if plain is None or principal.role is None or self._exposure.max_body < LARGEST:
            return None
        if acting and head.value(b"cookie") is not None:
            return None  # policies see cookies, and a cookie may be a secret
        role = known_role(head, principal) if acting else None
        headers = self._cors.headers(origin_of(head.headers)) if self._cors else []
        origin = Origin("tables", head.method, head.path, principal.name, client_request_id(head.value(REQUEST_ID)))
        plain = plain.without_secrets()
        return Prepared(
            *(self._fast_path, plain, principal.rights, headers, origin, principal.proof, principal.use, role),
            Caller(principal.name, is_anonymous=principal.is_anonymous),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive one request and send its answer. A client that hangs up before its body is complete gets none."""
        head, body, state = Head.of(scope), self._bodies.of(scope, receive), scope["state"]
        origin = origin_of(head.headers) if self._cors else None
        try:
            answer = self._cors.preflight(head.method, head.headers) if self._cors and origin is not None else None
            if answer is None:
                principal = self._authenticate(head)
                budget.serve(state, principal.name)
                candidate = state.get("begun") or self._fast_path.candidate(head, principal)
                answer = await self._respond(Incoming(head, state, principal, body, candidate))
        except ClientGone:
            return
        except GatewayError as error:
            state["error"], answer = error, errors.answer(error, verbose=self._exposure.verbose_errors)
        headers = answer.headers + self._cors.headers(origin) if self._cors else answer.headers
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _respond(self, incoming: Incoming) -> Response:
        """Answer by the fast path if it knows the form of this request and confirms it. Else parse the request."""
        content, sender = partial(self._content, incoming), partial(self._sender, incoming)
        try:
            answer = await self._fast_path.answer(incoming.candidate, incoming.head, content, sender)
            return answer or await self._answer(incoming)
        except SqlError as error:
            raise await self._of_database(incoming.principal, error) from error

    async def _answer(self, incoming: Incoming) -> Response:
        """Parse what the request is for, and answer it."""
        head = incoming.head
        kind, name = request.name_of(head.path, self._exposure.prefixes)
        headers = request.headings(head.headers)
        target = request.target(name, request.profile_of(head.method, headers), self._exposure.schemas)
        qualified = f"{target.schema}.{target.name}"
        if kind == "function":
            content, sender = partial(self._content, incoming), partial(self._sender, incoming)
            answer = await self._function_calls.answer(head, target, headers, sender, content)
        elif kind == "root":
            answer = await self._description.answer(head.method, target.schema, headers, incoming.principal.rights)
        elif head.method in WRITES:
            await self._authorisation.writes(self._sender(incoming), qualified)
            answer = await self._write(incoming, target, headers)
        elif head.method in READS:
            await self._authorisation.reads(self._sender(incoming), (qualified,))
            answer = await self._read(incoming, target, headers)
        elif head.method == "OPTIONS":
            if not concerns_table(incoming.principal.rights, qualified):
                await self._authorisation.reads(self._sender(incoming), (qualified,))
            answer = openapi.options((await self._schema_cache.table(target.schema, target.name)).table)
        else:
            raise request.unsupported(head.method)
        if target.shown_schema:
            answer.headers.append((b"content-profile", target.schema.encode()))
        return answer

    async def _write(self, incoming: Incoming, target: Target, headers: Mapping[bytes, str]) -> Response:
        """Parse a write; replay the answer kept under its key, if there is one; else execute it."""
        head, sender = incoming.head, self._sender(incoming)
        rule = self._schema_cache.rule(target.schema, target.name)
        shown = fencing_headers.read(head.headers, pairs=True)
        parsed = planning.parse(head.query_string, headers, shown, rule, sender, target.name)
        content = await self._content(incoming)
        parsed = await offload(len(content), parsed.with_body, content)
        key = await offload(len(content), planning.key_of, sender, target.schema, headers, content)

        async def authorise(_: int, resources: Sequence[str]) -> Sequence[str]:
            name, shows_rows = f"{target.schema}.{target.name}", parsed.request.wants_rows
            return await self._authorisation.replays(sender, name, resources, rule.mode, shows_rows=shows_rows)

        replay = self._transactions.replay
        if key is not None and (kept := await replay.kept(key, [parsed.tokens], sender.caller, authorise)):
            return kept
        work = partial(self._execute, incoming.candidate, parsed, key)
        return await self._schema_cache.using(target.schema, target.name, work)

    async def _execute(
        self, candidate: Candidate, parsed: ParsedWrite, key: IdempotencyKey | None, cached: CachedTable
    ) -> Response:
        """Plan a write. Then claim and execute it: by one statement, or in a transaction."""
        write = await self._planner.plan(parsed, cached)
        confirmed = await self._fast_path.execute(candidate, write, key)
        return confirmed or await self._transactions.execute(UnitOfWork([write], key))

    async def _read(self, incoming: Incoming, target: Target, headers: Mapping[bytes, str]) -> Response:
        head = incoming.head
        parsed = request.parse(head.method, head.query_string, headers)

        async def work(cached: CachedTable) -> Response:
            wanted = await self._preferences.applied(parsed, headers)
            return await self._reader.execute(incoming.candidate, wanted, cached, self._sender(incoming))

        return await self._schema_cache.using(target.schema, target.name, work)

    async def transact(self, scope: Scope, receive: Receive, principal: Principal) -> Response:
        """Execute a list of writes and return the answer. Raises ``GatewayError`` if none has taken effect."""
        head, body = Head.of(scope), self._bodies.of(scope, receive)
        sender = Sender.of(head, scope["state"], principal, self._capture)
        try:
            return await self._write_lists.execute(head, body, sender)
        except SqlError as error:
            told = await self._of_database(principal, error)
            told.facts.update(error.facts)
            raise with_details(told) from error
        except DialectError as error:
            raise with_details(error) from error.__cause__
        except ClientGone:
            raise RequestMalformed("The request ended before its body was complete.") from None

    async def _content(self, incoming: Incoming) -> bytes:
        return await incoming.body.whole(self._exposure.max_body)

    def _sender(self, incoming: Incoming) -> Sender:
        return Sender.of(incoming.head, incoming.state, incoming.principal, self._capture)

    async def _of_database(self, principal: Principal, error: SqlError) -> GatewayError:
        if (lacking := await rights.of_fencing(self._database, error)) is not None:
            return lacking
        known = not principal.is_anonymous
        return errors.of_database(error, known_caller=known, verbose=self._exposure.verbose_errors)
