"""Planning: from the parsed head of a write to a planned write with the resources it claims.

A write is parsed first, which needs neither its body nor its table. It is planned when both are known. Every write is
planned this way, alone or in a list. Nothing is written by then.
"""

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self
from uuid import uuid4

from gateway.auth.grants import Rights
from gateway.auth.principal import OWN, Principal
from gateway.db import settings
from gateway.db.database import Database, Transaction
from gateway.errors import (
    DialectError,
    GatewayError,
    ResourceMalformed,
    ResourceMismatch,
    ResourceUnderivable,
    SideEffectRefused,
    TokenRequired,
)
from gateway.fencing.decision import Cascades, Enforcement, Equal, Tokens
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.record import Attempt, MissingGrant
from gateway.fencing.token import Token
from gateway.http.body import Body, offload
from gateway.http.head import Head
from gateway.record.payload_capture import NOTHING, Capture
from gateway.tables import naming
from gateway.tables.catalog import Column, Table, check_distributed
from gateway.tables.dialect import body, request, response
from gateway.tables.dialect.body import Payload
from gateway.tables.dialect.etags import check_preconditions
from gateway.tables.dialect.grammar import not_implemented
from gateway.tables.dialect.query import pins_exactly
from gateway.tables.dialect.request import Request, Target
from gateway.tables.dialect.response import Accepted, Response, Written
from gateway.tables.execute import acting
from gateway.tables.execute.acting import Role
from gateway.tables.naming import NOTHING_NAMED, Explicit, Naming, Rule
from gateway.tables.schema_cache import CachedTable
from gateway.tables.sql import statements

# Their texts are the same in all time zones.
_ZONELESS = frozenset((
    "bigint", "boolean", "bytea", "character", "character varying", "date", "integer", "numeric", "smallint", "text",
    "time without time zone", "timestamp without time zone", "uuid",
))  # fmt: skip


class Sender(NamedTuple):
    """The sender of a request, and what the record needs of the request.

    ``rights``: what its caller may do. ``keyring``: whose idempotency keys it uses. ``media_type``: of its body.
    ``program``: the name that the program gives itself.
    ``capture``: what the record keeps of the body if the write is refused. ``role``: the role of the database under
    which the request runs, None for the gateway's own. ``has_role``: whether it may run at all.
    """

    caller: str
    rights: Rights
    method: str
    path: str
    query: str
    client: str | None
    request_id: str
    keyring: str
    media_type: str = ""
    program: str | None = None
    capture: Capture = NOTHING
    role: Role | None = None
    has_role: bool = True

    @classmethod
    def of(cls, head: Head, state: Mapping[str, Any], principal: Principal, capture: Capture = NOTHING) -> Self:
        """Return the sender of a request. ``state`` is that of its ASGI scope, ``principal`` the proven caller."""
        return cls(
            caller=principal.name,
            rights=principal.rights,
            method=head.method,
            path=head.path,
            query=head.query_string.decode("latin-1"),
            client=state.get("client"),
            request_id=state.get("request_id", ""),
            # All anonymous callers share one keyring. No configured caller has an empty name.
            keyring="" if principal.is_anonymous else principal.name,
            media_type=(head.value(b"content-type") or b"").decode("latin-1"),
            program=head.program,
            capture=capture,
            role=acting.role_of(head, principal) if principal.role not in (None, OWN) else None,
            has_role=principal.role is not None,
        )

    def bound(self, fingerprint: bytes) -> bytes:
        """Return the fingerprint of a request under this role. An answer kept under one is no answer to another."""
        return fingerprint if self.role is None else request.digest([fingerprint, self.role.name.encode()])

    def target(self, table: str) -> str:
        """Return path and query of a write to ``table``, without values of redacted columns."""
        return "?".join(filter(None, (self.path, self.capture.query(self.query, table))))

    def attempt(self, token: Token | None, holder: str | None, content: bytes, table: str) -> Attempt:
        """Return a write with this body as the record shows it. ``table``: ``schema.name``, of a function in a call."""
        return Attempt(
            token=token,
            holder=holder,
            caller=self.caller,
            method=self.method,
            target=self.target(table),
            client=self.client,
            request_id=self.request_id,
            payload_size=len(content),
            payload_sha256=hashlib.sha256(content).hexdigest(),
            plane="tables",
            rule=table,
            captured=self.capture.of_table(content, self.media_type, table),
            program=self.program,
        )


@dataclass
class Incoming:
    """One request, whose body may be still to come. Plans and recipes come from its frozen ``head``, and nothing else.

    ``state`` is that of the ASGI scope. ``capture`` is as of ``Sender``. ``max_body``: the most bytes of the body.
    """

    head: Head
    state: dict[str, Any]
    principal: Principal
    body: Body
    capture: Capture
    max_body: int

    @cached_property
    def sender(self) -> Sender:
        return Sender.of(self.head, self.state, self.principal, self.capture)

    async def content(self) -> bytes:
        """Return the whole body. Raises what ``Body.whole`` raises."""
        return await self.body.whole(self.max_body)


@dataclass(frozen=True, slots=True)
class ParsedWrite:
    """A write as its sender asks for it. ``headers`` are those of the dialect, by lower-case name.

    ``rule``: that of the table, the ``target``.
    """

    request: Request
    target: Target
    rule: Rule
    headers: Mapping[bytes, str]
    shown: FencingHeaders
    tokens: Tokens | None
    sender: Sender
    body: bytes = b""
    payload: Payload | None = None

    @property
    def is_json(self) -> bool:
        """Whether the database gets the body as it comes."""
        return self.request.method == "DELETE" or request.body_type(self.headers) == "json"

    def size_as_json(self, content: bytes) -> int:
        """Return how many bytes the rows of this body have as JSON, at most."""
        return body.size_as_json(request.body_type(self.headers), content)

    def with_body(self, content: bytes, picked: Collection[str] = ()) -> Self:
        """Return it with its body. Raises ``DialectError`` for a body that is malformed, or that no such write has.

        ``picked``: columns whose values will be asked for.
        """
        if self.request.method == "DELETE":
            return replace(self, body=content)
        payload = body.read(request.body_type(self.headers), content, self.request.query.columns, picked)
        _check_rows(self.request, payload)
        return replace(self, body=content, payload=payload)


def parse(
    query_string: bytes, headers: Mapping[bytes, str], shown: FencingHeaders, rule: Rule, sender: Sender, target: Target
) -> ParsedWrite:
    """Parse the head of a write to ``target``, a table with this rule.

    Raises ``TokenRequired`` if the rule enforces and the write shows no token, ``DialectError`` for what no write may
    be, ``RequestMalformed`` for malformed headers.
    """
    tokens = tokens_of(shown, rule)
    if tokens is None and rule.mode is Enforcement.ENFORCE:
        raise TokenRequired(f"A write to {target.name} needs a fencing token.")
    parsed = request.parse(sender.method, query_string, headers)
    _check_filters(parsed)
    if parsed.method != "DELETE":
        request.body_type(headers)
    request.parse_key(headers)
    return ParsedWrite(parsed, target, rule, headers, shown, tokens, sender)


def tokens_of(shown: FencingHeaders, rule: Rule) -> Tokens | None:
    """Return the tokens that a writer shows, to be claimed as its rule says. None if it shows none."""
    if shown.token is None and not shown.pairs:
        return None
    # A strict resource lets each token write once. The id tells a retry of this write from another write.
    write_id = uuid4() if rule.equal is Equal.STRICT else None
    sequencers = {one.resource: one for one in shown.sequencers}
    return Tokens(shown.token, dict(shown.pairs), shown.holder, write_id, sequencers)


def explicit_of(shown: FencingHeaders) -> Explicit:
    if shown.pairs:
        return Explicit(tuple(name for name, _ in shown.pairs), paired=True)
    return NOTHING_NAMED if shown.resource is None else Explicit((shown.resource,))


class PlannedCall(Protocol):
    """A function call that may write. The gateway cannot verify its effects, so it runs under the claims it names."""

    async def carry_out(self, transaction: Transaction) -> Written:
        """Call the function. Any error undoes the transaction."""
        ...

    def answer(self, written: Written, under: Accepted) -> Response: ...


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """One planned write: all that is decided before the database is asked to write.

    In observe mode ``tokens`` is None if the write shows none, and ``claimed`` is None if no resource can be derived.
    ``objection`` is the error that an enforcing rule would raise. It is recorded beside the write.
    ``guarded``: the statement must look at the names of rows before it changes them, see
    ``gateway.tables.naming.DerivedNames``.
    ``call``: the function to call, in place of a statement of the table. ``named``: the resources that the writer
    names itself. ``ungranted``: in observe mode, the missing grant of each resource that the caller may not claim. No
    token is shown to its fence.
    """

    request: Request
    payload: Payload | None
    body: bytes
    cached: CachedTable
    tokens: Tokens | None
    claimed: tuple[str, ...] | None
    sender: Sender
    objection: GatewayError | None = None
    guarded: bool = False
    call: PlannedCall | None = None
    named: tuple[str, ...] = ()
    ungranted: Mapping[str, MissingGrant] = field(default_factory=dict)

    @property
    def claimable(self) -> tuple[str, ...]:
        """Return the resources to whose fences its tokens are shown."""
        return tuple(name for name in self.claimed or () if name not in self.ungranted)

    @property
    def shows_rows(self) -> bool:
        """Return whether the answer has the written rows, as ``return=representation`` asks for."""
        return self.call is None and self.request.wants_rows

    @property
    def change(self) -> tuple[str, frozenset[str]] | None:
        """Return the write as ``Reach`` takes it: whether it deletes or updates, and the columns it may change.

        An upsert is an update of rows that are there already. None for an insert.
        """
        request, table, reach = self.request, self.cached.table, self.cached.reach
        columns = frozenset(self.payload.columns if self.payload else ())
        if self.call is not None or reach is None:
            return None
        if request.method == "DELETE":
            return "DELETE", frozenset()
        # A generated column follows others.
        generated = {name for name in reach.keys if name in table.columns and table.columns[name].generated}
        if request.method != "PATCH":
            kept = {*naming.conflict_target(request, table), *(self.cached.named.fields if self.cached.named else ())}
            return ("PATCH", columns - kept | generated) if naming.upserts(request, table) else None
        # Code may set any column of the row.
        return "PATCH", columns | (reach.keys if table.triggers or table.has_rules else generated)

    def attempts(self) -> Callable[[str], Attempt]:
        """Return the write as the record shows it beside each resource, with the token that was shown for it."""
        tokens = self.tokens or Tokens()
        attempt = self.sender.attempt(tokens.token, tokens.holder, self.body, self.cached.name)
        return lambda resource: replace(attempt, token=tokens.pairs.get(resource, tokens.token))

    def answer(self, written: Written, under: Accepted) -> Response:
        if self.call is not None:
            return self.call.answer(written, under)
        return response.write(self.request, self.cached.table, written, under, self.sender.path)

    def mismatch_advice(self) -> str | None:
        """Return the advice if a touched row has no claim; None for the usual one."""
        if self.request.method != "POST" or self.payload is None or self.cached.named is None:
            return None
        return naming.computed_key_advice(self.cached.named, self.payload.columns)


class EffectivePreferences:
    """Decides which preferences of a request the gateway applies."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The server's. They come with its software and take long to list: it is asked once.
        self._zones: frozenset[str] | None = None

    async def applied(self, wanted: Request, headers: Mapping[bytes, str]) -> Request:
        """Return the request with the preferences that take effect. ``headers`` by lower-case name.

        Raises PGRST122 for preferences that strict handling refuses, PGRST107 if no form of answer is acceptable.
        """
        if wanted.preferences.timezone is not None and self._zones is None:
            self._zones = await settings.list_zones(self._database)
        return request.settled(wanted, headers, zones=self._zones or ())


class Planner:
    """Plans writes. ``authorise`` raises ``Denied`` for a planned write that no grant covers.

    If its rule only observes, ``authorise`` returns the write with the grants that it lacks.
    """

    def __init__(
        self,
        database: Database,
        preferences: EffectivePreferences,
        authorise: Callable[[PlannedWrite], Awaitable[PlannedWrite]],
    ) -> None:
        self._database, self._preferences, self._authorise = database, preferences, authorise

    async def plan(self, parsed: ParsedWrite, cached: CachedTable) -> PlannedWrite:
        """Return the planned write.

        Raises ``Denied``, ``DialectError``, ``ConditionUnsupported``, ``ResourceUnderivable``, ``ResourceMismatch`` or
        ``SqlError``; nothing is written by then.
        """
        _check_columns(parsed.request, parsed.payload, cached.table)
        wanted = await self._preferences.applied(parsed.request, parsed.headers)
        _check_zone(wanted, cached.table, cached.named)
        check_preconditions(wanted.preconditions, wanted.method, wanted.query, cached.table)
        explicit = explicit_of(parsed.shown)
        claimed, guarded, objection = await self._claimed(wanted, parsed.payload, cached, explicit)
        if parsed.tokens is None:
            objection = TokenRequired("The write carries no fencing token.")
        write = PlannedWrite(
            request=wanted,
            payload=parsed.payload,
            body=parsed.body,
            cached=cached,
            tokens=parsed.tokens,
            claimed=claimed,
            sender=parsed.sender,
            objection=objection,
            guarded=guarded,
            named=explicit.names,
        )
        write = await self._authorise(write)
        refusal = _refused_beforehand(write)
        if refusal is not None and cached.rule.mode is Enforcement.ENFORCE:
            raise refusal
        return write if refusal is None else replace(write, objection=write.objection or refusal)

    async def _claimed(
        self, wanted: Request, payload: Payload | None, cached: CachedTable, explicit: Explicit
    ) -> tuple[tuple[str, ...] | None, bool, GatewayError | None]:
        """Return the resources of the write, and whether it is guarded. In observe mode None, and the reason."""
        try:
            named = cached.naming()
            size = len(payload.text) if payload else 0
            claim = await offload(size, naming.derive, wanted, payload, named, explicit)
            asked = await offload(size, naming.questions, claim, named) if claim.rows else None
            answers = await self._answers(asked) if asked else {}
            # The statement may read such a value otherwise than it was read here: "today", in the caller's time zone.
            guarded = claim.guarded or (wanted.method == "PATCH" and bool(asked))
            return await offload(size, naming.resources, claim, named, answers), guarded, None
        except (ResourceUnderivable, ResourceMalformed, ResourceMismatch, TokenRequired) as failure:
            if cached.rule.mode is Enforcement.ENFORCE:
                raise
            return None, False, failure

    async def _answers(self, asked: Mapping[Any, set[str]]) -> dict[tuple[str, str], str]:
        """Return the canonical forms that only the database knows. ``SqlError`` for a value that it cannot read."""
        answers = {}
        for column, values in asked.items():
            for row in await self._database.fetch(statements.canonical(column), sorted(values)):
                answers[column.name, row["value"]] = row["escaped"]
        return answers


def _refused_beforehand(write: PlannedWrite) -> SideEffectRefused | None:
    """Return the error for a write whose side effects can be told without looking at a row."""
    reach, method, name = write.cached.reach, write.request.method, write.cached.name
    if reach is None or reach.cascades is Cascades.ALLOW:
        return None
    accept = f'accept such effects unfenced: cascades = "allow" for {name}.'
    upserts = naming.upserts(write.request, reach.table)
    events = {"PATCH": ("update",), "DELETE": ("delete",)}.get(method, ("insert", "update") if upserts else ("insert",))
    what = next((what for event in events for what in reach.written_by_code(event)), None)
    if what is not None:
        return SideEffectRefused(
            f"The write of {name} is refused, because {what}: rows of other resources.",
            advice="Nothing was written. Ask the operator to give both tables one resource by a template, to change "
            f"the {what.split()[1]}, or to {accept}",
        )
    if write.change is None or not (reach.table.is_view or upserts):
        return None
    step = next(iter(reach.steps(*write.change)), None)
    if step is None:
        return None
    kind = "through a view" if reach.table.is_view else "that may change a key of an existing row"
    return SideEffectRefused(
        f"A write {kind} is refused: by {step.reference.name} it may reach rows of {step.relation.title}, and the "
        "gateway cannot tell which.",
        advice=f"Nothing was written. Write the table itself, by PATCH or DELETE. Or ask the operator to {accept}",
        facts={"foreign_key": step.reference.name, "table": step.relation.title},
    )


def _check_filters(wanted: Request) -> None:
    """Check the query string of a write."""
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
    """Check the body. An update has one set of values, or none and changes nothing."""
    if wanted.method == "PATCH" and payload.number > 1:
        raise DialectError(
            "PGRST102",
            400,
            "An update takes exactly one object",
            details=f"The body is an array of {payload.number} rows; which of them is meant cannot be told.",
        )


def _check_columns(wanted: Request, payload: Payload | None, table: Table) -> None:
    """Check against the catalog: the named columns exist, and PUT names its row by the whole key."""
    check_distributed(table)
    if table.reaches_foreign:
        raise not_implemented(
            "A write that may reach a foreign table, or one that Citus manages, whose rows another transaction writes,"
        )
    named = (*(payload.columns if payload else ()), *wanted.query.on_conflict)
    for name in named:
        if name not in table.columns:
            raise DialectError(
                "PGRST204", 400, f"Could not find the '{name}' column of '{table.name}' in the schema cache"
            )
    if wanted.method == "PUT" and not (table.primary_key and pins_exactly(wanted.query.filters, table.primary_key)):
        raise DialectError("PGRST105", 405, "Filters must include all and only primary key columns with 'eq' operators")


def _check_zone(wanted: Request, table: Table, named: Naming | None) -> None:
    """Refuse a time zone that could show in a resource name: a view may compute anything from it.

    Resource names are made in UTC, but by the very statement that would run in the caller's time zone. A row could then
    get the name of another row, whose token the caller holds.
    """
    if wanted.preferences.timezone is None or named is None or not named.columns:
        return
    if table.is_view or not all(_is_zoneless(column) for column in named.columns):
        raise not_implemented("A time zone for a write of rows that are named after points in time, or through a view,")


def _is_zoneless(column: Column) -> bool:
    return column.is_enum or column.base_type in _ZONELESS
