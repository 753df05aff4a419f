"""One write in a transaction that has claimed: its condition, its statement, the check of the rows it has touched."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby

from gateway.db import fences, settings
from gateway.db.database import Transaction
from gateway.db.fences import Claimed
from gateway.errors import ConditionUnsupported, RequestMalformed
from gateway.fencing.rules import Equal, Fence, Mode, Presented, Tokens
from gateway.tables.dialect.errors import mismatch
from gateway.tables.dialect.etags import row_changed
from gateway.tables.dialect.grammar import not_implemented
from gateway.tables.dialect.request import Request
from gateway.tables.dialect.response import Row, Written, check_affected, check_put, check_single
from gateway.tables.execute.planning import Write
from gateway.tables.naming.plan import table_resource
from gateway.tables.sql.schema_check import unchanged
from gateway.tables.sql.shape import lower_filters, lower_write

_NOTHING: Row = {"touched": 0, "inserted": 0, "body": None, "location": None, "etag": None, "strays": 0}


@dataclass(frozen=True, slots=True)
class Note:
    """What a write in observe mode would have been refused for."""

    resource: str
    reason: str
    fence: Fence | None = None


def written_columns(write: Write) -> tuple[tuple[str, ...], bool]:
    """The columns a statement writes, and whether it inserts one row of nothing but defaults."""
    payload = write.payload
    if payload is None or not payload.rows:
        return (), False
    if payload.columns or write.request.method == "PATCH":
        return payload.columns, False
    if len(payload.rows) > 1 or write.request.method == "PUT":
        raise not_implemented("A body of several rows without any column")
    return (), True


async def apply(transaction: Transaction, write: Write) -> tuple[Written, list[Note]]:
    """Carry it out. Whatever is raised has to undo the transaction: ``RowChanged``, ``ResourceMismatch``,
    ``DialectError`` or ``SqlError``.
    """
    if write.call is not None:
        if write.request.preferences.timezone is not None:
            await settings.set_zone(transaction, write.request.preferences.timezone)
        return await write.call.carry_out(transaction), []
    # Before the time zone is the caller's: in another one the same row has another text, and another ETag.
    current = await _locked_version(transaction, write) if write.request.preconditions else None
    creates = write.request.method == "PUT" and bool(write.request.preconditions) and current is None
    if write.request.preferences.timezone is not None:
        await settings.set_zone(transaction, write.request.preferences.timezone)
    row = await _row(transaction, write, creates=creates)
    written = Written.from_row(row)
    if creates and not written.touched:
        await _check_absent(transaction, write)
    _check_touched(write.request, written.touched)
    if row is _NOTHING:
        written = replace(written, etag=current)
    if write.claimed is None or not row["strays"]:
        return written, []
    failure = mismatch(row["stray"])
    if write.known.rule.mode is Mode.ENFORCE:
        raise failure
    return written, [Note(row["stray"] or table_resource(write.known.table), failure.code)]


async def _locked_version(transaction: Transaction, write: Write) -> str | None:
    """The ETag of the one row, which stays as it is from here on; None where there is none.

    Raises ``RowChanged`` where it does not meet the conditions.
    """
    current = await _version(transaction, write)
    if not write.request.preconditions.met_by(current):
        raise row_changed(current)
    return current


async def _version(transaction: Transaction, write: Write) -> str | None:
    filters, values = lower_filters(write.request.query.filters)
    statement = write.known.statements.version_of(filters)
    rows = await transaction.fetch(statement.text, *statement.arrange(values))
    if len(rows) > 1:
        raise ConditionUnsupported("Tables that inherit from this one have more rows with this key.")
    return rows[0]["etag"] if rows else None


async def _check_absent(transaction: Transaction, write: Write) -> None:
    """``RowChanged``, where a row that was to be created has been created by somebody else at the same moment."""
    current = await _version(transaction, write)
    if current is not None:
        raise row_changed(current)


async def _row(transaction: Transaction, write: Write, *, creates: bool) -> Row:
    """What the statement says it has done. ``creates``: a row that has come to be there is left as it is."""
    known = write.known
    columns, default_row = written_columns(write)
    if write.request.method != "DELETE" and not columns and not default_row:
        # Nothing to write, but what it claims must have been worked out from the table as it is.
        await transaction.execute(f"SELECT {unchanged(known.table)}")
        return _NOTHING
    guarded = write.guarded and known.rule.mode is Mode.ENFORCE
    shape, values = lower_write(
        write.request, known.table, columns, default_row=default_row, fenced=False, guarded=guarded
    )
    if creates:
        shape = shape._replace(conflict=("ignore", known.table.primary_key))
    values["claimed"] = list(write.claimed or ())
    values["payload"] = write.payload.text if write.payload else None
    statement = known.statements.write(shape)
    row = await transaction.fetchrow(statement.text, *statement.arrange(values))
    assert row is not None
    return row


def _check_touched(request: Request, touched: int) -> None:
    check_put(request, touched)
    if request.singular:
        check_single(touched)
    if request.method in ("PATCH", "DELETE"):
        check_affected(request, touched)


class Refused(Exception):
    """Fences have refused their tokens. To be recorded, once this has undone the transaction."""

    def __init__(self, claims: Sequence[Claimed]) -> None:
        super().__init__()
        self.claims = claims


class Pending(Exception):
    """S3 mutations of older holders are under way on these resources, and must be settled first."""

    def __init__(self, resources: Sequence[str]) -> None:
        super().__init__()
        self.resources = resources


@dataclass(frozen=True, slots=True)
class Run:
    """Resources that are claimed with one statement, in the order of their names."""

    resources: tuple[str, ...]
    tokens: Tokens
    equal: Equal


@dataclass(frozen=True, slots=True)
class Claims:
    """All that a transaction claims. ``runs`` go one after the other, in the order of the names in them."""

    runs: tuple[Run, ...]
    enforced: frozenset[str]
    """Resources whose fences are obeyed, because a rule that enforces has led to them."""

    @classmethod
    def of(cls, writes: Sequence[Write]) -> "Claims":
        """Raises ``RequestMalformed`` where two writes show different tokens, or holders, for one resource."""
        enforced = (write.claimed or () for write in writes if write.known.rule.mode is Mode.ENFORCE)
        return cls(tuple(_runs(writes)), frozenset(name for names in enforced for name in names))

    def presented(self, resource: str) -> Presented:
        """What is shown to the fence of a resource that is claimed."""
        return next(run.tokens.presented(resource) for run in self.runs if resource in run.resources)

    def shown(self) -> Iterator[tuple[str, Presented]]:
        """Every resource that is claimed, and what is shown to its fence."""
        return ((resource, run.tokens.presented(resource)) for run in self.runs for resource in run.resources)

    def without(self, resources: AbstractSet[str]) -> "Claims":
        """All but these: nothing is raised there, and nothing waited for."""
        kept = (
            replace(run, resources=tuple(name for name in run.resources if name not in resources)) for run in self.runs
        )
        return replace(self, runs=tuple(run for run in kept if run.resources))

    async def lock(self, transaction: Transaction) -> None:
        """Wait until nobody else has claimed any of it, and keep the others from it until the transaction ends."""
        await fences.lock(transaction, [resource for run in self.runs for resource in run.resources])

    async def claim(self, transaction: Transaction, caller: str) -> list[Claimed]:
        """Claim everything; the fences stay locked until the transaction ends. Returns what needs attention.

        Raises ``Refused``.
        """
        claims: list[Claimed] = []
        for run in self.runs:
            claims += await fences.claim(transaction, run.resources, run.tokens, run.equal, caller)
        refused = [one for one in claims if not one.decision.passes]
        if any(one.resource in self.enforced for one in refused):
            raise Refused([one for one in refused if one.resource in self.enforced])
        return claims

    async def raise_fences(self, transaction: Transaction, caller: str) -> list[str]:
        """Raise the fences that are lower, for a request that writes nothing; a token that is too old is not refused.

        Returns the resources on which something of a holder older than the one that asks is under way.
        """
        claims = [await fences.raise_all(transaction, run.resources, run.tokens, caller) for run in self.runs]
        return [one.resource for run in claims for one in run if one.pending]


def passed(claims: Sequence[Claimed]) -> list[Claimed]:
    """Those that would have been refused, were their rules enforced. Raises ``Pending``."""
    pending = [one.resource for one in claims if one.pending and one.decision.passes]
    if pending:
        raise Pending(pending)
    return [one for one in claims if not one.decision.passes]


@dataclass(frozen=True, slots=True)
class _Demand:
    """What is shown for one resource. ``strict``: a write to a strict table claims it."""

    shown: Presented
    strict: bool


def _runs(writes: Sequence[Write]) -> Iterator[Run]:
    """Neighbours in the order of names that are claimed alike go together."""
    if len(writes) == 1:
        (write,) = writes
        if write.tokens is not None and write.claimed:
            yield Run(write.claimed, write.tokens, write.known.rule.equal)
        return
    demands = _demands(writes)

    def alike(resource: str) -> tuple[str, bool]:
        return demands[resource].shown.holder or "", demands[resource].strict

    # All of the transaction is one write to a strict resource, however many of its rows it writes.
    write_id = next((write.tokens.write_id for write in writes if write.tokens and write.tokens.write_id), None)
    for (_, strict), group in groupby(sorted(demands), key=alike):
        resources = tuple(group)
        pairs = {resource: demands[resource].shown.token for resource in resources}
        proofs = {name: one for name in resources if (one := demands[name].shown.sequencer) is not None}
        tokens = Tokens(None, pairs, demands[resources[0]].shown.holder, write_id, proofs)
        yield Run(resources, tokens, Equal.STRICT if strict else Equal.ACCEPT)


def _demands(writes: Sequence[Write]) -> dict[str, _Demand]:
    demands: dict[str, _Demand] = {}
    for number, write in enumerate(writes):
        if write.tokens is None:
            continue
        strict = write.known.rule.equal is Equal.STRICT
        for resource in write.claimed or ():
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
