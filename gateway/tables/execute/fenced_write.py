"""The two steps of a write inside its transaction: claim its resources, then write and verify the touched rows."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby

from gateway.db import fences, settings
from gateway.db.database import Transaction
from gateway.db.fences import ClaimResult
from gateway.errors import ConditionUnsupported, RequestMalformed, SideEffectRefused, TokenImplausible
from gateway.fencing.decision import Enforcement, Equal, Fence, Presented, Tokens
from gateway.fencing.record import MissingGrant
from gateway.tables.dialect.errors import mismatch
from gateway.tables.dialect.etags import row_changed
from gateway.tables.dialect.grammar import not_implemented
from gateway.tables.dialect.request import Request
from gateway.tables.dialect.response import Accepted, Row, Written, check_affected, check_put, check_single
from gateway.tables.execute import reached_rows
from gateway.tables.execute.acting import Acting
from gateway.tables.execute.planning import PlannedWrite
from gateway.tables.execute.reached_rows import Located
from gateway.tables.naming import table_resource
from gateway.tables.sql.expressions import unchanged
from gateway.tables.sql.shape import MOST, lower_filters, lower_write


class ClaimsRefused(Exception):
    """Fences have refused their tokens. The refusal is recorded once this has undone the transaction."""

    def __init__(self, claims: Sequence[ClaimResult]) -> None:
        super().__init__()
        self.claims = claims


class ClaimsPending(Exception):
    """S3 mutations of older holders are under way on these resources, and must be settled first."""

    def __init__(self, resources: Sequence[str]) -> None:
        super().__init__()
        self.resources = resources


@dataclass(frozen=True, slots=True)
class ClaimGroup:
    """Resources that one statement claims, in the order of their names."""

    resources: tuple[str, ...]
    tokens: Tokens
    equal: Equal


@dataclass(frozen=True, slots=True)
class Claims:
    """All claims of a transaction. It claims ``groups`` one after the other, in the order of their names."""

    groups: tuple[ClaimGroup, ...]
    enforced: frozenset[str]
    """Resources whose fences are obeyed, because an enforcing rule has led to them."""

    @classmethod
    def of(cls, writes: Sequence[PlannedWrite]) -> "Claims":
        """Return the claims of writes.

        Raises ``RequestMalformed`` if two writes show different tokens, or holders, for one resource.
        """
        enforced = (write.claimable for write in writes if write.cached.rule.mode is Enforcement.ENFORCE)
        return cls(tuple(_groups(writes)), frozenset(name for names in enforced for name in names))

    def presented(self, resource: str) -> Presented:
        return next(group.tokens.presented(resource) for group in self.groups if resource in group.resources)

    def shown(self) -> Iterator[tuple[str, Presented]]:
        """Yield each resource, and what is shown to its fence."""
        return ((resource, group.tokens.presented(resource)) for group in self.groups for resource in group.resources)

    def without(self, resources: AbstractSet[str]) -> "Claims":
        """Return all claims but these, whose fences are neither raised nor waited for."""
        kept = (
            replace(group, resources=tuple(name for name in group.resources if name not in resources))
            for group in self.groups
        )
        return replace(self, groups=tuple(group for group in kept if group.resources))

    async def lock(self, transaction: Transaction) -> None:
        """Wait for other claims of these resources, and exclude new ones until the transaction ends."""
        await fences.lock(transaction, [resource for group in self.groups for resource in group.resources])

    async def claim(self, transaction: Transaction, caller: str) -> list[ClaimResult]:
        """Claim everything, and return the claims that need attention. Fences stay locked until the transaction ends.

        Raises ``ClaimsRefused``.
        """
        await self._secure(transaction)
        claims: list[ClaimResult] = []
        for group in self.groups:
            claims += await fences.claim(transaction, group.resources, group.tokens, group.equal, caller)
        refused = [one for one in claims if not one.decision.passes]
        if any(one.resource in self.enforced for one in refused):
            raise ClaimsRefused([one for one in refused if one.resource in self.enforced])
        return claims

    async def declare(self, transaction: Transaction) -> None:
        """Tell guards what this transaction holds. They judge its cascades and triggers by that."""
        held = {name: {"token": str(one.token), "holder": one.holder} for name, one in self.shown()}
        await settings.declare(transaction, held)

    async def raise_fences(self, transaction: Transaction, caller: str) -> list[str]:
        """Raise the fences that are lower, for a request that writes nothing. A stale token is not refused.

        Return the resources on which an S3 mutation of a holder older than the caller is under way.
        """
        await self._secure(transaction)
        claims = [
            await fences.claim(transaction, group.resources, group.tokens, Equal.ACCEPT, caller, writes=False)
            for group in self.groups
        ]
        return [one.resource for group in claims for one in group if one.pending]

    async def _secure(self, transaction: Transaction) -> None:
        """Have raises of several groups stored together. Each claim does it for its own."""
        if len(self.groups) > 1:
            await fences.secure(transaction, {name: one.token for name, one in self.shown()})


@dataclass(frozen=True, slots=True)
class ObservedRefusal:
    """Why an enforcing rule would have refused a write that observe mode lets pass."""

    resource: str
    reason: str
    fence: Fence | None = None
    missing: MissingGrant | None = None


def unenforced(claims: Sequence[ClaimResult]) -> list[ObservedRefusal]:
    """Return the refusals of fences that are not obeyed. Raises ``ClaimsPending``."""
    pending = [one.resource for one in claims if one.pending and one.decision.passes]
    if pending:
        raise ClaimsPending(pending)
    return [ObservedRefusal(one.resource, one.decision.value, one.fence) for one in claims if not one.decision.passes]


def accepted_under(write: PlannedWrite, passed: Sequence[ObservedRefusal] = ()) -> Accepted:
    """Return the fences that a write was accepted under.

    They carry its tokens, except higher ones that it has ``passed`` in observe mode. If its token is implausible, it
    wrote under no fence.
    """
    tokens = write.tokens
    unclaimed = {one.resource for one in passed if one.reason == TokenImplausible.code}
    names = tuple(name for name in write.claimable if name not in unclaimed)
    if tokens is None or not names:
        return Accepted()
    tokens_above = {one.resource: one.fence.token for one in passed if one.fence and one.resource not in unclaimed}
    if tokens.token is not None:
        return Accepted(max([tokens.token, *tokens_above.values()]), names)
    fences_now = [(resource, tokens_above.get(resource) or tokens.of(resource)) for resource in names]
    return Accepted(resources=names, pairs=fences_now)


@dataclass(frozen=True, slots=True)
class _Demand:
    """The token and holder that writes show for one resource. ``strict``: a write to a strict table claims it."""

    shown: Presented
    strict: bool


def _groups(writes: Sequence[PlannedWrite]) -> Iterator[ClaimGroup]:
    """Group resources that are claimed alike and are neighbours in the order of names."""
    if len(writes) == 1:
        (write,) = writes
        if write.tokens is not None and write.claimable:
            yield ClaimGroup(write.claimable, write.tokens, write.cached.rule.equal)
        return
    demands = _demands(writes)

    def alike(resource: str) -> tuple[str, bool]:
        return demands[resource].shown.holder or "", demands[resource].strict

    # To a strict resource, the transaction is one write, however many of its rows it writes.
    write_id = next((write.tokens.write_id for write in writes if write.tokens and write.tokens.write_id), None)
    for (_, strict), group in groupby(sorted(demands), key=alike):
        resources = tuple(group)
        pairs = {resource: demands[resource].shown.token for resource in resources}
        proofs = {name: one for name in resources if (one := demands[name].shown.sequencer) is not None}
        tokens = Tokens(None, pairs, demands[resources[0]].shown.holder, write_id, proofs)
        yield ClaimGroup(resources, tokens, Equal.STRICT if strict else Equal.ACCEPT)


def _demands(writes: Sequence[PlannedWrite]) -> dict[str, _Demand]:
    demands: dict[str, _Demand] = {}
    for number, write in enumerate(writes):
        if write.tokens is None:
            continue
        strict = write.cached.rule.equal is Equal.STRICT
        for resource in write.claimable:
            proof = write.tokens.sequencers.get(resource)
            shown = Presented(write.tokens.of(resource), write.tokens.holder, sequencer=proof)
            before = demands.setdefault(resource, _Demand(shown, strict))
            if before.shown != shown:
                raise RequestMalformed(
                    f"Two writes show different tokens or holders for {resource}.",
                    advice="A holder has one token for a resource: send the same with all writes that belong to it.",
                    facts={"resource": resource, "write": number},
                )
            if (strict and not before.strict) or (proof is not None and before.shown.sequencer is None):
                proof = before.shown.sequencer or proof
                demands[resource] = _Demand(replace(shown, sequencer=proof), strict or before.strict)
    return demands


_NOTHING: Row = {"touched": 0, "inserted": 0, "body": None, "location": None, "etag": None, "strays": 0}


def written_columns(write: PlannedWrite) -> tuple[tuple[str, ...], bool]:
    """Return the columns that a statement writes, and whether it inserts one row of nothing but defaults."""
    payload = write.payload
    if payload is None or not payload.number:
        return (), False
    if payload.columns or write.request.method == "PATCH":
        return payload.columns, False
    if payload.number > 1 or write.request.method == "PUT":
        raise not_implemented("A body of several rows without any column")
    return (), True


async def execute(
    transaction: Transaction, write: PlannedWrite, acting: Acting, most: int
) -> tuple[Written, list[ObservedRefusal]]:
    """Write, and verify the touched rows. It may end acting under the role of the sender.

    ``most``: bytes that the answer may have.

    Any error has to undo the transaction: ``RowChanged``, ``ResourceMismatch``, ``DialectError`` or ``SqlError``.
    """
    role = write.sender.role
    await acting.as_(role)
    if write.call is not None:
        if write.request.preferences.timezone is not None:
            await settings.set_zone(transaction, write.request.preferences.timezone)
        return await write.call.carry_out(transaction), []
    # Before the time zone is the caller's: in another one the same row has another text, and another ETag.
    conditional = write.request.preconditions is not None
    current = await _locked_version(transaction, write) if conditional else None
    creates = write.request.method == "PUT" and conditional and current is None
    if write.request.preferences.timezone is not None:
        await settings.set_zone(transaction, write.request.preferences.timezone)
    reaches = write.cached.reach is not None
    located = await reached_rows.locate(transaction, write, acting) if reaches else None
    await acting.as_(role)
    row = await _row(transaction, write, located, most, creates=creates)
    if reaches:
        await acting.as_(None)
        await reached_rows.verify(transaction, write, located)
    written = Written.from_row(row)
    if creates and not written.touched:
        await acting.as_(role)
        await _check_absent(transaction, write)
    _check_touched(write.request, written.touched)
    if row is _NOTHING:
        written = replace(written, etag=current)
    reached = located.missing if located else ()
    beyond = [ObservedRefusal(name, SideEffectRefused.code) for name in reached]
    if write.claimed is None or not row["strays"]:
        return written, beyond
    failure = mismatch(row["stray"], write.mismatch_advice())
    if write.cached.rule.mode is Enforcement.ENFORCE:
        raise failure
    return written, [ObservedRefusal(row["stray"] or table_resource(write.cached.table), failure.code), *beyond]


async def _locked_version(transaction: Transaction, write: PlannedWrite) -> str | None:
    """Lock the one row and return its ETag, which cannot change any more. None if there is no row.

    Raises ``RowChanged`` if the ETag does not meet the preconditions.
    """
    current = await _version(transaction, write)
    if write.request.preconditions is not None and not write.request.preconditions.met_by(current):
        raise row_changed(current)
    return current


async def _version(transaction: Transaction, write: PlannedWrite) -> str | None:
    filters, values = lower_filters(write.request.query.filters)
    statement = write.cached.statements.version_of(filters)
    rows = await transaction.fetch(statement.text, *statement.arrange(values))
    if len(rows) > 1:
        raise ConditionUnsupported("Tables that inherit from this one have more rows with this key.")
    return rows[0]["etag"] if rows else None


async def _check_absent(transaction: Transaction, write: PlannedWrite) -> None:
    """Raise ``RowChanged`` if another session has created, meanwhile, the row that this write was to create."""
    current = await _version(transaction, write)
    if current is not None:
        raise row_changed(current)


async def _row(
    transaction: Transaction, write: PlannedWrite, located: Located | None, most: int, *, creates: bool
) -> Row:
    """Return the row in which the statement reports what it did.

    ``located``: it writes only these rows. ``creates``: it leaves an existing row alone.
    """
    cached = write.cached
    columns, default_row = written_columns(write)
    if write.request.method != "DELETE" and not columns and not default_row:
        # There is nothing to write, but the claims must have been derived from the table as it is.
        await transaction.execute(f"SELECT {unchanged(cached.table, cached.generation)}")
        return _NOTHING
    guarded = write.guarded and cached.rule.mode is Enforcement.ENFORCE
    shape, values = lower_write(
        write.request, cached.table, columns, default_row=default_row, fenced=False, guarded=guarded
    )
    if creates:
        shape = shape._replace(conflict=("ignore", cached.table.primary_key))
    if located is not None:
        shape = shape._replace(located=True)
        values["relations"], values["places"] = located.relations, located.places
    values["claimed"], values[MOST] = list(write.claimed or ()), most
    values["payload"] = write.payload.text if write.payload else None
    statement = cached.statements.write(shape)
    row = await transaction.fetchrow(statement.text, *statement.arrange(values))
    assert row is not None
    return row


def _check_touched(request: Request, touched: int) -> None:
    check_put(request, touched)
    if request.media.singular:
        check_single(touched)
    if request.method in ("PATCH", "DELETE"):
        check_affected(request, touched)
