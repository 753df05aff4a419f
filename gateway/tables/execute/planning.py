"""From a request to a planned write: checked, with the resources it claims, up to the point where it is carried out.

A request is asked first, which needs neither its body nor its table, and planned when both are known. Every write goes
this way, whether it comes alone or in a list.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self
from uuid import uuid4

from gateway.auth.principal import ANONYMOUS, Principal
from gateway.db import settings
from gateway.db.database import Database, Transaction
from gateway.db.idempotency import Key
from gateway.errors import DialectError, GatewayError, ResourceMismatch, ResourceUnderivable, TokenRequired
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.record import Attempt
from gateway.fencing.rules import Equal, Mode, Tokens
from gateway.fencing.token import Token
from gateway.http.body import offload
from gateway.http.head import Head
from gateway.record.capture import NOTHING, Capture
from gateway.tables.catalog.snapshot import Column, Table
from gateway.tables.dialect import body, media, request
from gateway.tables.dialect import request as replays
from gateway.tables.dialect.body import Payload
from gateway.tables.dialect.etags import check_preconditions
from gateway.tables.dialect.grammar import not_implemented
from gateway.tables.dialect.request import Request
from gateway.tables.dialect.response import Accepted, Response, Written
from gateway.tables.execute.recipes import Plain
from gateway.tables.naming import plan
from gateway.tables.naming.plan import NOTHING_NAMED, Explicit, Naming, Rule, pins_exactly
from gateway.tables.schema_cache import Known
from gateway.tables.sql import statements


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a request, and with what. ``keyring``: whose idempotency keys it uses; ``media_type``: of its body;
    ``capture``: what is to be kept of that, should it be refused.
    """

    caller: str
    method: str
    path: str
    query: str
    client: str | None
    request_id: str
    keyring: str
    media_type: str = ""
    capture: Capture = NOTHING

    @classmethod
    def of(cls, head: Head, state: Mapping[str, Any], principal: Principal, capture: Capture = NOTHING) -> Self:
        """Return the sender of a request. ``state`` is that of its ASGI scope, ``principal`` the proven caller."""
        return cls(
            caller=principal.name,
            method=head.method,
            path=head.path,
            query=head.query_string.decode("latin-1"),
            client=state.get("client"),
            request_id=state.get("request_id", ""),
            # All who show nothing are one, and no configured caller has an empty name.
            keyring="" if principal is ANONYMOUS else principal.name,
            media_type=(head.value(b"content-type") or b"").decode("latin-1"),
            capture=capture,
        )

    def target(self, table: str) -> str:
        """Path and query of a write to ``table``, without values of redacted columns."""
        return "?".join(filter(None, (self.path, self.capture.query(self.query, table))))

    def attempt(self, token: Token | None, holder: str | None, content: bytes, table: str) -> Attempt:
        """A write with this body to ``table`` (``schema.name``; of a call, the function's), as it goes on record."""
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
        )


# Their texts are the same in all time zones.
_ZONELESS = frozenset((
    "bigint", "boolean", "bytea", "character", "character varying", "date", "integer", "numeric", "smallint", "text",
    "time without time zone", "timestamp without time zone", "uuid",
))  # fmt: skip


def check_write(wanted: Request, *, unfiltered: bool) -> None:
    """What the query string alone tells. ``unfiltered``: the table's rule lets writes do without a filter."""
    query = wanted.query
    if wanted.method == "PUT":
        if query.is_limited:
            raise DialectError("PGRST114", 400, "limit/offset querystring parameters are not allowed for PUT")
        return
    if wanted.method == "POST":
        return
    if query.is_limited:
        raise not_implemented("A limit or offset on a write, which would not narrow it,")
    # "?id" may have been meant as a filter, also where a write may do without one.
    if not query.filters and (query.has_bare_keys or not unfiltered):
        verb = "UPDATE" if wanted.method == "PATCH" else "DELETE"
        raise DialectError(
            "21000", 400, f"{verb} requires a WHERE clause", hint="Add at least one filter, such as id=eq.1."
        )


def check_rows(wanted: Request, payload: Payload) -> None:
    """What the body tells: an update has one set of values, or none and changes nothing."""
    if wanted.method == "PATCH" and len(payload.rows) > 1:
        raise DialectError(
            "PGRST102",
            400,
            "An update takes exactly one object",
            details=f"The body is an array of {len(payload.rows)} rows; which of them is meant cannot be told.",
        )


def check_columns(wanted: Request, payload: Payload | None, table: Table) -> None:
    """What the catalog tells: the columns that are named exist, and PUT names its row by the whole key."""
    if table.reaches_foreign:
        raise not_implemented("A write that may reach a foreign table, whose rows are written by another transaction,")
    named = (*(payload.columns if payload else ()), *wanted.query.on_conflict)
    for name in named:
        if name not in table.columns:
            raise DialectError(
                "PGRST204", 400, f"Could not find the '{name}' column of '{table.name}' in the schema cache"
            )
    if wanted.method == "PUT" and not (table.primary_key and pins_exactly(wanted.query.filters, table.primary_key)):
        raise DialectError("PGRST105", 405, "Filters must include all and only primary key columns with 'eq' operators")


def check_zone(wanted: Request, table: Table, named: Naming | None) -> None:
    """Resource names are made in UTC, inside the very statement that would run in the caller's time zone.

    So a zone is refused where it could show in a name: a view may compute anything from it, and points in time are
    written in it. Otherwise a row could be called by the name of another one, whose token the caller holds.
    """
    if wanted.preferences.timezone is None or named is None or not named.columns:
        return
    if table.is_view or not all(_is_zoneless(column) for column in named.columns):
        raise not_implemented("A time zone for a write of rows that are named after points in time, or through a view,")


def _is_zoneless(column: Column) -> bool:
    return column.is_enum or column.base_type in _ZONELESS


class Honouring:
    """``tx_override``: callers may have their writes rolled back."""

    def __init__(self, database: Database, *, tx_override: bool) -> None:
        self._database, self._tx_override = database, tx_override
        self._zones: frozenset[str] | None = None

    async def settled(self, wanted: Request, headers: Mapping[bytes, str]) -> Request:
        """The request with what can be honoured of its preferences. ``headers`` by lower-case name.

        Raises PGRST122 for preferences that strict handling refuses, PGRST107 where no form of answer is acceptable.
        """
        zones: frozenset[str] = frozenset()
        if wanted.preferences.timezone is not None:
            zones = await self._known_zones()
        return request.settled(wanted, headers, tx_override=self._tx_override, zones=zones)

    async def _known_zones(self) -> frozenset[str]:
        """Asked for once: they come with the server's software, and asking takes it a while."""
        if self._zones is None:
            self._zones = await settings.zones(self._database)
        return self._zones


class Call(Protocol):
    """A write that is none to a table, and whose effects nobody can verify: it is done under the claims it names."""

    async def carry_out(self, transaction: Transaction) -> Written:
        """Whatever is raised undoes the transaction."""
        ...

    def answer(self, written: Written, under: Accepted) -> Response: ...


@dataclass(frozen=True, slots=True)
class Write:
    """One write, decided up to the point where the database is asked.

    ``claimed`` None: no resource could be derived; ``objection`` is then why. Without a token ``tokens`` is None.
    Both exist in observe mode only, where the objection is put on record beside the write. ``plain``: the form of the
    request, where it has one that the fast path may learn; ``tried``: the fast path has been tried, in vain.
    ``guarded``: the statement must look at the names of rows before it changes them, see
    ``gateway.tables.naming.plan.Claim``.
    ``call``: what is done in place of a statement of the table.
    """

    request: Request
    payload: Payload | None
    body: bytes
    known: Known
    tokens: Tokens | None
    claimed: tuple[str, ...] | None
    sender: Sender
    objection: GatewayError | None = None
    plain: Plain | None = None
    tried: bool = False
    guarded: bool = False
    call: Call | None = None

    def attempts(self) -> Callable[[str], Attempt]:
        """The write as it stands on record beside each resource, with the token that was shown for it, if one was."""
        tokens = self.tokens or Tokens()
        attempt = self.sender.attempt(tokens.token, tokens.holder, self.body, self.known.name)
        return lambda resource: replace(attempt, token=tokens.pairs.get(resource, tokens.token))


@dataclass(frozen=True, slots=True)
class Asked:
    """A write as it was asked for. ``headers`` are those of the dialect, by lower-case name."""

    request: Request
    headers: Mapping[bytes, str]
    shown: FencingHeaders
    tokens: Tokens | None
    sender: Sender
    body: bytes = b""
    payload: Payload | None = None

    def with_body(self, content: bytes) -> Self:
        """The whole of it. Raises ``DialectError`` for a body that cannot be read, or that no such write may have."""
        if self.request.method == "DELETE":
            return replace(self, body=content)
        payload = body.read(media.body_type(self.headers), content, self.request.query.columns)
        check_rows(self.request, payload)
        return replace(self, body=content, payload=payload)


def ask(
    query_string: bytes, headers: Mapping[bytes, str], shown: FencingHeaders, rule: Rule, sender: Sender, name: str
) -> Asked:
    """What the head of a request tells. ``rule`` and ``name`` are those of the table.

    Raises ``TokenRequired`` where the rule wants a token and none is shown, ``DialectError`` for what no write may be,
    ``RequestMalformed`` for headers that cannot be read.
    """
    tokens = tokens_of(shown, rule)
    if tokens is None and rule.mode is Mode.ENFORCE:
        raise TokenRequired(f"A write to {name} needs a fencing token.")
    wanted = request.parse(sender.method, query_string, headers)
    # A key without a value is no filter, but somebody may have meant it to be one.
    meant = all(b"=" in part for part in query_string.split(b"&") if part)
    check_write(wanted, unfiltered=rule.unfiltered and meant)
    if wanted.method != "DELETE":
        media.body_type(headers)
    replays.parse_key(headers)
    return Asked(wanted, headers, shown, tokens, sender)


def key_of(sender: Sender, schema: str, headers: Mapping[bytes, str], content: bytes) -> Key | None:
    """The key the answer is kept under, if there is one. ``schema`` is the one it is for, named or not.

    Raises ``RequestMalformed`` for what is no key.
    """
    text = replays.parse_key(headers)
    if text is None:
        return None
    query = sender.query.encode("latin-1")
    return Key(sender.keyring, text, replays.fingerprint(sender.method, sender.path, schema, query, headers, content))


class Planner:
    """Plans writes."""

    def __init__(self, database: Database, honouring: Honouring) -> None:
        self._database, self._honouring = database, honouring

    async def plan(self, asked: Asked, known: Known) -> Write:
        """The write. Raises ``DialectError``, ``ConditionUnsupported``, ``ResourceUnderivable``, ``ResourceMismatch``
        or ``SqlError``; nothing is written by then.
        """
        check_columns(asked.request, asked.payload, known.table)
        wanted = await self._honouring.settled(asked.request, asked.headers)
        check_zone(wanted, known.table, known.named)
        check_preconditions(wanted.preconditions, wanted.method, wanted.query, known.table)
        claimed, guarded, objection = await self._claimed(wanted, asked.payload, known, explicit_of(asked.shown))
        if asked.tokens is None:
            objection = TokenRequired("The write carries no fencing token.")
        return Write(
            wanted, asked.payload, asked.body, known, asked.tokens, claimed, asked.sender, objection, guarded=guarded
        )

    async def _claimed(
        self, wanted: Request, payload: Payload | None, known: Known, explicit: Explicit
    ) -> tuple[tuple[str, ...] | None, bool, GatewayError | None]:
        """The resources of the write, and whether it is guarded; in observe mode None and the reason for none."""
        try:
            named = known.naming()
            size = len(payload.text) if payload else 0
            claim = await offload(size, plan.derive, wanted, payload, named, explicit)
            asked = await offload(size, plan.questions, claim, named) if claim.rows else None
            answers = await self._answers(asked) if asked else {}
            # The statement may read such a value otherwise than it was read here: "today", in the caller's time zone.
            guarded = claim.guarded or (wanted.method == "PATCH" and bool(asked))
            return await offload(size, plan.resources, claim, named, answers), guarded, None
        except (ResourceUnderivable, ResourceMismatch, TokenRequired) as failure:
            if known.rule.mode is Mode.ENFORCE:
                raise
            return None, False, failure

    async def _answers(self, asked: Mapping[Any, set[str]]) -> dict[tuple[str, str], str]:
        """Canonical forms only the database knows. A value it cannot read is an ``SqlError``, as in a filter."""
        answers = {}
        for column, values in asked.items():
            for row in await self._database.fetch(statements.canonical(column), sorted(values)):
                answers[column.name, row["value"]] = row["escaped"]
        return answers


def tokens_of(shown: FencingHeaders, rule: Rule) -> Tokens | None:
    """What a writer shows, as its rule wants it claimed; None where it shows no token."""
    if shown.token is None and not shown.pairs:
        return None
    # A strict resource lets each token write once: the id tells a retry of this write from another write.
    write_id = uuid4() if rule.equal is Equal.STRICT else None
    sequencers = {one.resource: one for one in shown.sequencers}
    return Tokens(shown.token, dict(shown.pairs), shown.holder, write_id, sequencers)


def explicit_of(shown: FencingHeaders) -> Explicit:
    """The resources a writer names itself."""
    if shown.pairs:
        return Explicit(tuple(name for name, _ in shown.pairs), paired=True)
    return NOTHING_NAMED if shown.resource is None else Explicit((shown.resource,))
