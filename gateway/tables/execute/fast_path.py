"""The fast path: one statement that writes only if the fence carries exactly the token of the write.

This statement only confirms a claim, and decides nothing else. If fences may have to rise, a claim goes before it, in
the same transaction and round trip. If the fence does not confirm the token, nothing is written. The request takes a
transaction of its own then, as does everything that is out of the ordinary.

A write can take the fast path in two ways, and this module alone decides which:

1. By a recipe, before it is parsed. The request is plain, and a request of the same form has taken the second way.
2. By a statement, after it is planned, if one statement can do all of it (``_is_eligible``). A plain request leaves its
   recipe behind.

Statements of concurrent requests share round trips (``batches.py``). Reads of one row by its key have recipes, too.

Each decision has its place:

- Is a request plain, and what are its values? ``FormReader`` and ``WriteRecipe.resource`` (``recipes.py``).
- Which plans are remembered? ``_learn_write`` and ``learn_read``.
- Does a claim go before the statement? ``_send``, and ``_confirm`` if the fence was lower.
- Is the token stale? The statement tells, and ``_refuse_stale`` puts it on record. For a fence that is known to be
  higher nothing is sent, and ``_begin_write`` puts it on record if the request has no task.
"""

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

from gateway.auth.grants import Rights
from gateway.auth.principal import OWN, Principal, Proof, Use
from gateway.batching import Lane, shielded
from gateway.bounded import Bounded
from gateway.budget import CALLER, Caller
from gateway.db.database import Database, Record
from gateway.db.fences import Claim
from gateway.db.pool import wants_retry
from gateway.errors import FenceRefusal, GatewayError, SqlError, Unavailable
from gateway.fencing.decision import Enforcement, Equal, Fence
from gateway.fencing.record import Attempt, Rejection, refusal_error, shown_program
from gateway.fencing.token import Token
from gateway.http.body import LARGE, SMALL
from gateway.http.direct import Origin
from gateway.http.head import REQUEST_ID, Head, Packet, client_request_id
from gateway.observe.events import Observe, StepReached, WriteAccepted
from gateway.record import refusals
from gateway.record.payload_capture import Capture
from gateway.record.refusals import MOST_TOGETHER, Audit
from gateway.tables.dialect import body, errors, response
from gateway.tables.dialect.body import Payload
from gateway.tables.dialect.errors import MISMATCH, is_of_answer
from gateway.tables.dialect.request import Request
from gateway.tables.dialect.response import Accepted, Headers, Response, Row, Written, check_put
from gateway.tables.execute import recipes
from gateway.tables.execute.acting import KnownRole, Role, known_role, role_of
from gateway.tables.execute.batches import HALF_FROM, Asked, Batches
from gateway.tables.execute.fenced_write import accepted_under, written_columns
from gateway.tables.execute.idempotency import IdempotencyKey
from gateway.tables.execute.planning import Incoming, PlannedWrite, Sender
from gateway.tables.execute.reached_rows import concerns
from gateway.tables.execute.recipes import (
    FormReader,
    PlainHead,
    PlainRequest,
    ReadRecipe,
    RequestForm,
    WriteRecipe,
    WriteRecipes,
)
from gateway.tables.schema_cache import CachedTable
from gateway.tables.sql.expressions import Statement
from gateway.tables.sql.shape import MOST, lower_write
from gateway.token_admission import Admission

FAST_BEFORE = StepReached("tables.fast.before")
FAST_AFTER = StepReached("tables.fast.after")
RAISE_BEFORE = StepReached("tables.raise.before")
RAISE_AFTER = StepReached("tables.raise.after")

_MOST_RECIPES = 4096
# Bytes of all recipes, roughly.
_LARGEST_RECIPES = 8 * 1024 * 1024
_MOST_FENCES = 4096
_MOST_REFUSALS = 256
_ANY_ENTRY = uuid4()
_ANY = str(_ANY_ENTRY).encode()

# Classes of SQLSTATE: invalid values, unknown names, unknown schemas.
_OF_NAMES_AND_VALUES = frozenset(("22", "42", "3F"))

Values: TypeAlias = Mapping[str, object]

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Candidate:
    """A request that may take the fast path. ``plain`` is None if the request has no form.

    ``recipe``: that of its form, once it has begun, and ``content`` the body that it began with. ``asked``: its
    statement by that recipe. ``row``: the row to come of that statement. If the fence is known to be higher, none is
    sent. Then ``row`` is None, or the entry to come of the refusal if the request has no task. ``sent``: the statement
    wrote nothing, so no second one is sent. ``role``: makes the role of the database that the request runs under; None
    for the gateway's own. ``role_name``: its name. ``sender``: makes the sender of a request without a task.
    """

    plain: PlainRequest | None
    caller: str
    rights: Rights
    recipe: WriteRecipe | ReadRecipe | None = None
    query_string: bytes = b""
    content: bytes = b""
    asked: Asked | None = None
    row: "Future[Record | None] | Future[Rejection | None] | None" = None
    sent: bool = False
    role: Callable[[], Role] | None = None
    role_name: str = ""
    sender: Callable[[], Sender] | None = None

    @property
    def path(self) -> str:
        assert self.plain is not None
        return self.plain.form.path


class Prepared(NamedTuple):
    """The known part of all requests with one head: their caller, and all but the values of their form.

    ``headers``: of all answers to them. ``role``: of the database, if not the gateway's own. ``caller``: all anonymous
    ones of such requests share a share. ``changing``: the headers that not all of them have in common. ``sender``: that
    of each request, but for its query, its id and the address of its client.
    """

    fast_path: "FastPath"
    plain: PlainHead
    rights: Rights
    headers: Headers
    origin: Origin
    proof: Proof | None
    use: Use
    role: KnownRole | None
    caller: Caller
    sender: Sender
    changing: Mapping[bytes, bytes] = MappingProxyType({})

    def with_values(self, changing: Mapping[bytes, bytes]) -> "Prepared":
        """Return what is known of those whose ``changing`` headers are these."""
        return self._replace(plain=self.plain.with_values(changing), changing=changing)

    def begin(self, packet: Packet[Any], request_id: str, client: str | None) -> Candidate | None:
        """Send the statement of a plain request of a known form. None if the request needs a task."""
        CALLER.set(self.caller)  # for a statement that takes a session of its own
        plain = self.plain.with_query(packet.query_string)
        role = self.role and partial(self.role.of, self.changing)
        sender = partial(self._sender, packet, request_id, client)
        name = self.role.role.name if self.role else ""
        candidate = Candidate(plain, self.origin.caller, self.rights, role=role, role_name=name, sender=sender)
        self.fast_path.begin(candidate, packet.query_string, packet.content)
        return None if candidate.recipe is None else candidate

    def _sender(self, packet: Packet[Any], request_id: str, client: str | None) -> Sender:
        return self.sender._replace(query=packet.query_string.decode("latin-1"), client=client, request_id=request_id)

    def answer(self, begun: Candidate) -> Response | None:
        """Return the answer to a request whose row has come. None if the row does not confirm it, or has failed.

        Raises ``GatewayError`` for a row that contradicts the request.
        """
        answer = self.fast_path.confirmed(begun)
        if answer is not None:
            answer.headers.extend(self.headers)
        return answer


class FastPath:
    """Answers requests by one statement, and learns recipes from those that were planned."""

    def __init__(
        self,
        database: Database,
        admission: Admission,
        audit: Audit,
        observe: Observe,
        schemas: Sequence[str],
    ) -> None:
        self._observe = observe
        self._several_schemas = len(schemas) > 1
        # None if no policy ever looks at a token that its fence carries: the hot path then need not ask.
        self._admission = admission if admission.asks_about_any else None
        self._takes = admission.takes
        self._writes = Batches(database, observe, writes=True)
        self._reads = Batches(database, observe, writes=False)
        # Refusals of zombies, one batch at a time. They give way while holders write.
        self._storms: Lane[tuple[str, Attempt], Rejection | None] = Lane(
            audit.overtaken,
            most=MOST_TOGETHER,
            half_from=HALF_FROM,
            pause=lambda: refusals.GIVING_WAY if self._writes.busy() else 0.0,
        )
        # Fences that were higher than a token shown to them. A fence never goes down, so a write with a lower token is
        # not sent again. Its answer is what the database says when the refusal is recorded.
        self._overtaken: Bounded[str, Token] = Bounded(_MOST_FENCES)
        # Answers to refused writes without a task, each with the fence that it tells of.
        self._refusals: Bounded[tuple[str, Token | None], tuple[Fence | None, Response]] = Bounded(_MOST_REFUSALS)
        # Tokens that fences carry since a write of this gateway has raised them.
        self._raised: Bounded[str, Token] = Bounded(_MOST_FENCES)
        # Statements, with their resources, whose answer was too large for a shared trip: it undid the whole batch.
        self._large: Bounded[tuple[str, str], None] = Bounded(_MOST_FENCES)
        self._forms = FormReader()
        self._learnt: Bounded[RequestForm, WriteRecipes | ReadRecipe] = Bounded(_MOST_RECIPES, _LARGEST_RECIPES)

    def candidate(self, head: Head, principal: Principal) -> Candidate:
        if principal.role is None:
            return Candidate(None, principal.name, principal.rights)
        acting = principal.role != OWN
        plain = self._forms.read(head, acting=acting)
        role = partial(role_of, head, principal) if acting else None
        return Candidate(plain, principal.name, principal.rights, role=role, role_name=principal.role)

    def prepare(self, head: Head, principal: Principal, headers: Headers, capture: Capture) -> Prepared | None:
        """Prepare for requests with this head, whatever their queries are. None if all of them have to be planned.

        ``headers``: of all answers to them. ``capture``: what the record keeps of their bodies if they are refused.
        """
        acting = principal.role != OWN
        plain = self._forms.head(head, acting=acting)
        if plain is None or principal.role is None:
            return None
        if acting and head.value(b"cookie") is not None:
            return None  # policies see cookies, and a cookie may be a secret
        return Prepared(
            fast_path=self,
            plain=plain.without_secrets(),
            rights=principal.rights,
            headers=headers,
            origin=Origin("tables", head.method, principal.name, client_request_id(head.value(REQUEST_ID))),
            proof=principal.proof,
            use=principal.use,
            role=known_role(head, principal) if acting else None,
            caller=Caller(principal.name, is_anonymous=principal.is_anonymous),
            sender=Sender.of(head, {}, principal, capture)._replace(
                query="", role=None, program=head.program and shown_program(head.program)
            ),
        )

    def begin(self, candidate: Candidate, query_string: bytes, content: bytes) -> None:
        """Send the statement of a request by its recipe, if it has one."""
        plain = candidate.plain
        learnt = None if plain is None else self._learnt.get(plain.form)
        if plain is None or learnt is None:
            return
        if isinstance(learnt, WriteRecipes):
            self._begin_write(candidate, plain, learnt, content)
        elif learnt.cached.current and candidate.rights.may_read(learnt.statement.tables):
            candidate.recipe, candidate.query_string = learnt, query_string
            role = candidate.role and candidate.role()
            arguments = learnt.arguments(plain.values)
            candidate.asked = Asked(learnt.statement, arguments, size=len(query_string), role=role)
            candidate.row = self._reads.send(candidate.asked)

    def _begin_write(self, candidate: Candidate, plain: PlainRequest, learnt: WriteRecipes, content: bytes) -> None:
        """Send the statement of a write by a recipe of its form, unless the write has to be planned."""
        if len(content) > LARGE:
            return
        try:
            payload = None if plain.form.method == "DELETE" else body.parse(content, learnt.columns)
            shown = plain.shown()
        except GatewayError:
            return
        recipe, token = learnt.by_body.get(payload.columns if payload else ()), shown.token
        if recipe is None or token is None or not recipe.cached.current:
            return
        if payload is not None and payload.number != 1:
            return
        resource = recipe.resource(plain.values, payload)
        if resource is None or shown.resource not in (None, resource) or self._admits_each_time(resource, token):
            return
        if not candidate.rights.may_write(recipe.cached.name, resource, shows=recipe.shows_rows):
            return
        if self._is_large(recipe.statement, resource):
            return
        claim = Claim(resource, token, shown.holder, candidate.caller)
        candidate.recipe, candidate.content = recipe, content
        candidate.asked = Asked(
            recipe.statement,
            recipe.arguments(plain.values, _values(claim, payload)),
            size=len(content) + len(resource),
            claim=claim,
            may_raise=recipe.may_raise,
            role=candidate.role
            and _acting(candidate.role, candidate.role_name, recipe.statement, recipe.cached, claim),
            together=recipe.statement.together,
        )
        candidate.row = self._send(candidate.asked, claim)
        if candidate.row is None and candidate.sender is not None:
            attempt = candidate.sender().attempt(token, shown.holder, content, recipe.cached.name)
            candidate.row = self._storms.ask((resource, attempt))

    def confirmed(self, candidate: Candidate) -> Response | None:
        """Return the answer to a request whose row has come. None if the row does not confirm it, or has failed.

        Raises ``DialectError`` for a row that contradicts the request.
        """
        row, asked = candidate.row, candidate.asked
        assert row is not None
        assert asked is not None
        if row.cancelled() or row.exception() is not None:
            return None
        found = row.result()
        if found is None:
            return None
        if isinstance(found, Rejection):
            return self._refused(found)
        if asked.claim is None:
            return self._read(candidate, found)
        if not found["held"]:
            return None
        self._observe(RAISE_AFTER if asked.claimed else FAST_AFTER)
        self._remember(asked, asked.claim)
        return self._written(candidate, asked.claim, found)

    async def answer(self, candidate: Candidate, incoming: Incoming) -> Response | None:
        """Answer by a recipe. Return None if there is none, or if the fence does not confirm the token.

        Raises what ``_confirm`` raises.
        """
        plain = candidate.plain
        if plain is None:
            return None
        if candidate.recipe is None:
            learnt, sent = self._learnt.get(plain.form), b""
            if isinstance(learnt, WriteRecipes):
                if not candidate.rights.may_write_to(learnt.table):
                    return None  # the planned request is denied, before its body is read
                sent = await incoming.content()
            self.begin(candidate, incoming.head.query_string, sent)
        asked = candidate.asked
        if asked is None:
            return None
        claim = asked.claim
        try:
            if claim is None:
                assert candidate.row is not None
                found = await candidate.row
                assert not isinstance(found, Rejection)
                return None if found is None else self._read(candidate, found)
            assert isinstance(candidate.recipe, WriteRecipe)
            rule = candidate.recipe.cached.name
            row = await self._confirm(
                asked,
                claim,
                candidate.row,
                lambda: incoming.sender.attempt(claim.token, claim.holder, candidate.content, rule),
            )
        except SqlError as error:
            # The schema cache may be out of date. The planned request finds that out.
            if error.sqlstate[:2] not in _OF_NAMES_AND_VALUES and not is_of_answer(error):
                raise
            candidate.sent = is_of_answer(error)  # a second statement would be undone as well
            return None
        if row is None:
            candidate.sent = True
            return None
        return self._written(candidate, claim, row)

    async def execute(self, candidate: Candidate, write: PlannedWrite, key: IdempotencyKey | None) -> Response | None:
        """Execute a planned write by one statement, and keep its recipe if it is plain. ``key``: to keep the answer by.

        Return None if the write is not eligible, or if the fence does not confirm the token. Raises what ``_confirm``
        raises.
        """
        columns, _ = written_columns(write)
        if candidate.sent or key is not None or not self._is_eligible(write, columns):
            return None
        assert write.tokens is not None
        assert write.claimed is not None
        cached, resource = write.cached, write.claimed[0]
        token = write.tokens.of(resource)
        if self._admits_each_time(resource, token):
            return None
        role = write.sender.role
        shape, values = lower_write(
            write.request, cached.table, columns, default_row=False, fenced=role is None, guarded=write.guarded
        )
        claim = Claim(resource, token, write.tokens.holder, write.sender.caller)
        values |= {**_values(claim, write.payload), MOST: SMALL}
        statement = cached.statements.write(shape) if role is None else cached.statements.write_acting(shape)
        if self._is_large(statement, resource):
            return None
        if candidate.plain is not None:
            self._learn_write(candidate.plain, write, columns, statement, values)
        asked = Asked(
            statement,
            statement.arrange(values),
            size=len(write.body) + len(write.sender.query),
            claim=claim,
            may_raise=_may_share_a_raise(write),
            role=role and _acting(lambda: role, role.name, statement, cached, claim),
            together=statement.together if role is not None and _writes_one_row(write) else None,
        )
        try:
            row = await self._confirm(asked, claim, self._send(asked, claim), lambda: write.attempts()(resource))
        except SqlError as error:
            if is_of_answer(error):
                return None
            if error.sqlstate == MISMATCH:
                error.hint = write.mismatch_advice()
            raise
        if row is None:
            return None
        written = Written.from_row(row)
        check_put(write.request, written.touched)
        self._observe(WriteAccepted("tables", cached.name, "statement"))
        return write.answer(written, accepted_under(write))

    def learn_read(
        self, candidate: Candidate, request: Request, cached: CachedTable, statement: Statement, values: Values
    ) -> None:
        """Keep the recipe of a read that was planned, if it is plain and reads one row by its key."""
        plain = candidate.plain
        if plain is None:
            return
        profile = self._profile(plain, b"accept-profile", cached)
        recipe = recipes.read_recipe(plain, request, cached, statement, values, profile)
        if recipe is not None:
            size = 0 if plain.form in self._learnt else plain.form.size + statement.size
            self._learnt.remember(plain.form, recipe, size)

    def _learn_write(
        self, plain: PlainRequest, write: PlannedWrite, columns: tuple[str, ...], statement: Statement, values: Values
    ) -> None:
        cached = write.cached
        recipe = recipes.write_recipe(
            plain,
            write.request,
            columns,
            cached,
            statement,
            values,
            profile=self._profile(plain, b"content-profile", cached),
            may_raise=_may_share_a_raise(write),
        )
        if recipe is None:
            return
        learnt = self._learnt.get(plain.form)
        if not isinstance(learnt, WriteRecipes):
            learnt = WriteRecipes(cached.name, write.request.query.columns)
        size = 0 if columns in learnt.by_body else plain.form.size + statement.size
        learnt.by_body.remember(columns, recipe)
        self._learnt.remember(plain.form, learnt, size)

    def _profile(self, plain: PlainRequest, header: bytes, cached: CachedTable) -> Headers:
        """Return the header of an answer that names its schema, if the request names one or several are exposed."""
        shown = self._several_schemas or header in plain.headers
        return [(b"content-profile", cached.table.schema.encode())] if shown else []

    def _written(self, candidate: Candidate, claim: Claim, row: Row) -> Response:
        recipe = candidate.recipe
        assert isinstance(recipe, WriteRecipe)
        is_brief = row["body"] is None and row["location"] is None and row["etag"] is None
        known = recipe.answers.get((row["touched"], row["inserted"])) if is_brief else None
        if known is None:
            written = Written.from_row(row)
            check_put(recipe.request, written.touched)
            assert candidate.plain is not None
            path = candidate.plain.form.path
            known = response.write(recipe.request, recipe.cached.table, written, Accepted(), path)
            known.headers.extend(recipe.profile)
            if is_brief and written.touched <= 1:
                recipe.answers[written.touched, written.inserted] = known
        self._observe(recipe.accepted)
        return Response(known.status, response.fence(claim.token, claim.resource) + known.headers, known.body)

    def _read(self, candidate: Candidate, row: Row) -> Response | None:
        """Return the answer to a read. None if it is too large to share a trip."""
        if row["body"] is None:
            return None
        recipe, plain = candidate.recipe, candidate.plain
        assert isinstance(recipe, ReadRecipe)
        assert plain is not None
        answer = response.read(recipe.request, row, plain.form.path, candidate.query_string)
        answer.headers.extend(recipe.profile)
        return answer

    def _refused(self, rejection: Rejection) -> Response:
        """Return the answer to a stale write that is on record.

        A zombie repeats itself, and so do the answers, but for the id of the entry. They are written once, with an id
        in its place that no caller knows.
        """
        about = rejection.resource, rejection.attempt.token
        known = self._refusals.get(about)
        if known is None or known[0] != rejection.fence:
            answer = errors.answer(self._overtaken_by(replace(rejection, id=_ANY_ENTRY)))
            known = self._refusals.remember(about, (rejection.fence, answer))
        status, headers, body, code = known[1]
        body = body.replace(_ANY, str(rejection.id).encode())
        return Response(status, [*headers], body, code)

    def _admits_each_time(self, resource: str, token: Token) -> bool:
        """Return whether a policy has to look at this token although the fence carries it."""
        return self._admission is not None and self._admission.asks_about(resource, token)

    def _send(self, asked: Asked, claim: Claim) -> "Future[Record | None] | None":
        """Send a fenced statement: behind a claim, if fences have risen lately with such statements.

        Return None if the fence is known to be higher.
        """
        overtaken_by = self._overtaken.get(claim.resource)
        if overtaken_by is not None and claim.token < overtaken_by:
            return None
        if self._writes.expected(asked) and self._raised.get(claim.resource) != claim.token:
            sent = self._send_behind_claim(asked, claim)
            if sent is not None:
                return sent
        self._observe(FAST_BEFORE)
        return self._writes.send(asked)

    def _send_behind_claim(self, asked: Asked, claim: Claim) -> "Future[Record | None] | None":
        """Send a fenced statement behind a claim. Return None if that is not possible."""
        if not asked.may_raise or not self._takes(claim.resource, claim.token):
            return None
        asked.claimed = True
        sent = self._writes.send(asked)
        if sent is None:
            asked.claimed = False
        else:
            self._observe(RAISE_BEFORE)
        return sent

    async def _confirm(
        self,
        asked: Asked,
        claim: Claim,
        sent: "Future[Record | None] | Future[Rejection | None] | None",
        attempt: Callable[[], Attempt],
    ) -> Row | None:
        """Return the row of a fenced statement that was sent. ``sent``: as ``Candidate.row``.

        If the fence is lower, the statement is sent once more, behind a claim. Return None if the fence does not carry
        the token, or the database asks for a retry: nothing is written then. ``attempt`` makes the entry of a refusal.

        Raises ``FenceRefusal`` (recorded) if the fence carries a higher token, ``SqlError`` if the database refuses the
        write, ``Unavailable`` (nothing is written) or ``OutcomeUnknown``.
        """
        while sent is not None:
            row = await self._arrived(asked, claim, sent)
            if row is None:
                return None
            self._observe(RAISE_AFTER if asked.claimed else FAST_AFTER)
            if row["held"]:
                self._remember(asked, claim)
                return row
            if row["overtaken"]:
                break
            sent = None if asked.claimed else self._send_behind_claim(asked, claim)
            if sent is None:
                return None
        await self._refuse_stale(claim.resource, attempt())
        return None

    async def _arrived(
        self, asked: Asked, claim: Claim, sent: "Future[Record | None] | Future[Rejection | None]"
    ) -> Record | None:
        """Return the row of a statement that was sent, and None where the database asks for a retry.

        Raises what ``_confirm`` raises.
        """
        try:
            row = await sent
        except Unavailable as error:
            if wants_retry(error):
                return None
            raise
        except SqlError as error:
            if is_of_answer(error):
                self._large.remember((asked.statement.text, claim.resource), None)
            raise
        if isinstance(row, Rejection):
            raise self._overtaken_by(row)
        return row

    def _remember(self, asked: Asked, claim: Claim) -> None:
        """Remember that the fence carries the token, if a claim went before the statement."""
        if asked.claimed:
            self._raised.remember(claim.resource, claim.token)

    def _is_large(self, statement: Statement, resource: str) -> bool:
        """Return whether the answer of such a write was too large for a shared trip. The next one shares none."""
        return bool(self._large) and (statement.text, resource) in self._large

    async def _refuse_stale(self, resource: str, attempt: Attempt) -> None:
        """Record the refusal and raise it. Return if the fence carries no higher token after all."""
        # The write was refused, whether its sender waits for the answer or not.
        rejection = await shielded(self._storms.ask((resource, attempt)))
        if rejection is not None:
            raise self._overtaken_by(rejection)

    def _overtaken_by(self, rejection: Rejection) -> FenceRefusal:
        """Return the error of a stale write that is on record, and remember the fence that refused it."""
        assert rejection.fence is not None
        self._overtaken.remember(rejection.resource, rejection.fence.token)
        return refusal_error(rejection)

    def _is_eligible(self, write: PlannedWrite, columns: tuple[str, ...]) -> bool:
        """Return whether one statement can do all of a planned write: one resource, and nothing to undo afterwards."""
        request, rule, table = write.request, write.cached.rule, write.cached.table
        # Such code may change the settings in which the next write of this batch or session makes its names. And a
        # trigger for each statement fires even if the statement finds its fence overtaken. Policies are looked after
        # where they bind a role (docs/decisions/016).
        runs_code = table.runs_code_when_written if write.sender.role is None else table.runs_more_than_policies
        return (
            rule.mode is Enforcement.ENFORCE
            and rule.equal is Equal.ACCEPT
            and write.claimed is not None
            and len(write.claimed) == 1
            and not request.media.singular
            and not request.preferences.need_a_transaction
            and request.preconditions is None
            and (bool(columns) or request.method == "DELETE")
            and not runs_code
            # The rows that it reaches are looked for in a transaction. A guard of their table asks there what is held.
            and (write.cached.reach is None or not concerns(write))
        )


def _may_share_a_raise(write: PlannedWrite) -> bool:
    """Return whether a claim may go before the statement of an eligible write, in a transaction with others.

    A PUT can fail after its statement, by its answer, and would have to undo the raise. A guarded write asks for the
    names of rows as they were.
    """
    return write.request.method != "PUT" and not write.guarded


def _values(claim: Claim, payload: Payload | None) -> dict[str, object]:
    """Return what a fenced statement needs beside the values of its filters."""
    return {
        "resource": claim.resource,
        "claimed": (claim.resource,),
        "epoch": claim.token.epoch,
        "value": claim.token.value,
        "holder": claim.holder,
        "payload": payload.text if payload else None,
    }


def _writes_one_row(write: PlannedWrite) -> bool:
    return write.payload is None or write.payload.number == 1


def _acting(role: Callable[[], Role], name: str, statement: Statement, cached: CachedTable, claim: Claim) -> Role:
    """Return the role of a write. It has no settings if several share a statement, because no code reads them."""
    if statement.together is not None:
        return Role(name, _NO_SETTINGS)
    if not cached.table.row_security:
        return role()
    return role().holding({claim.resource: {"token": str(claim.token), "holder": claim.holder}})
