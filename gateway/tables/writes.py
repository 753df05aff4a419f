"""Carries out one planned write under its fence: the fast path in one statement, or claim, write, verify and commit.

The fast path only ever confirms: it writes if the fence already carries exactly the presented token, and whatever
else is the case is found out in a transaction. A refusal is on record before it is answered.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote_plus

from gateway.audit import Audit
from gateway.errors import DialectError, GatewayError, SqlError, Unavailable
from gateway.fencing.record import Attempt, Rejection
from gateway.fencing.rules import Equal, Fence, Mode, Presented
from gateway.observe.events import Observe, StepReached
from gateway.store import fences
from gateway.store.database import Database, Transaction
from gateway.store.fences import Claimed
from gateway.tables.batch import Batches
from gateway.tables.body import Payload
from gateway.tables.grammar import not_implemented
from gateway.tables.known import Known
from gateway.tables.plan import table_resource
from gateway.tables.request import Request
from gateway.tables.response import Accepted, Row, Written, check_single, mismatch
from gateway.tables.shape import lower_write

CLAIM_AFTER = StepReached("tables.claim.after")
WRITE_AFTER = StepReached("tables.write.after")
COMMIT_AFTER = StepReached("tables.commit.after")
FAST_BEFORE = StepReached("tables.fast.before")
FAST_AFTER = StepReached("tables.fast.after")

_SETTLE_ATTEMPTS = 3
_MAX_TARGET = 2048
_NOTHING: Row = {"touched": 0, "inserted": 0, "body": None, "location": None, "strays": 0}


class Settle(Protocol):
    """Makes certain that no S3 mutation of an older holder can take effect any more: the barrier of the object plane.

    Raises a ``GatewayError`` where it cannot.
    """

    async def __call__(self, resource: str, presented: Presented, caller: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent the request, for the record."""

    caller: str
    path: str
    query: str
    client: str | None
    request_id: str

    @property
    def target(self) -> str:
        """Path and query, bounded. An API key that some clients repeat in the query does not go on record."""
        kept = [part for part in self.query.split("&") if unquote_plus(part.partition("=")[0]) != "apikey"]
        return "?".join(filter(None, (self.path, "&".join(kept))))[:_MAX_TARGET]


@dataclass(frozen=True, slots=True)
class Write:
    """One write, decided up to the point where the database is asked.

    ``claimed`` None: no resource could be derived; ``objection`` is then why. Without a token ``presented`` is None.
    Both exist in observe mode only, where the objection is put on record beside the write.
    """

    request: Request
    payload: Payload | None
    body: bytes
    known: Known
    presented: Presented | None
    claimed: tuple[str, ...] | None
    sender: Sender
    objection: GatewayError | None = None

    def attempt(self) -> Attempt:
        return Attempt(
            token=self.presented.token if self.presented else None,
            holder=self.presented.holder if self.presented else None,
            caller=self.sender.caller,
            method=self.request.method,
            target=self.sender.target,
            client=self.sender.client,
            request_id=self.sender.request_id,
            payload_size=len(self.body),
            payload_sha256=hashlib.sha256(self.body).hexdigest(),
        )


class _Refused(Exception):
    def __init__(self, claims: Sequence[Claimed]) -> None:
        super().__init__()
        self.claims = claims


class _Pending(Exception):
    def __init__(self, resources: Sequence[str]) -> None:
        super().__init__()
        self.resources = resources


@dataclass(slots=True)
class _Note:
    """What a write in observe mode would have been refused for."""

    resource: str
    reason: str
    fence: Fence | None = None


@dataclass(slots=True)
class _Done:
    written: Written
    accepted: Accepted
    noted: list[Rejection] = field(default_factory=list)


class Writer:
    """Executes writes. Without ``settle`` (no S3) nothing of an older holder can be pending, but left-overs might."""

    def __init__(self, database: Database, observe: Observe, settle: Settle | None) -> None:
        self._database, self._observe, self._settle = database, observe, settle
        self._audit = Audit(database, observe, "tables")
        self._batches = Batches(database)

    async def execute(self, write: Write) -> tuple[Written, Accepted]:
        """Write, durably. Raises ``FenceRefusal`` (recorded), ``ResourceMismatch``, ``SqlError`` or ``DialectError``.

        After these nothing is written; after ``Unavailable`` neither; ``OutcomeUnknown`` says what it says.
        """
        columns, default_row = _written_columns(write)
        if _may_be_fast(write, columns):
            done = await self._fast(write, columns)
            if done is not None:
                return done
        return await self._slow(write, columns, default_row=default_row)

    async def _fast(self, write: Write, columns: tuple[str, ...]) -> tuple[Written, Accepted] | None:
        """One autocommitted statement. None: the fence does not carry this token, or the database wants a retry."""
        assert write.presented is not None
        assert write.claimed is not None
        known = write.known
        shape, values = lower_write(write.request, known.table, columns, default_row=False, fenced=True)
        token = write.presented.token
        values["resource"], values["claimed"] = write.claimed[0], write.claimed
        values["epoch"], values["value"], values["holder"] = token.epoch, token.value, write.presented.holder
        values["payload"] = write.payload.text if write.payload else None
        statement = known.statements.write(shape)
        self._observe(FAST_BEFORE)
        try:
            size = len(write.body) + len(write.sender.target)
            row = await self._batches.send(statement.text, statement.arrange(values), write.claimed[0], size)
        except SqlError as error:
            if error.sqlstate.startswith("40"):
                return None
            raise
        self._observe(FAST_AFTER)
        if not row["held"]:
            return None
        written = Written.from_row(row)
        _check_put(write.request, written.touched)
        return written, Accepted(token, write.claimed)

    async def _slow(self, write: Write, columns: tuple[str, ...], *, default_row: bool) -> tuple[Written, Accepted]:
        async def work(transaction: Transaction) -> _Done:
            return await self._in_transaction(transaction, write, columns, default_row=default_row)

        for _ in range(_SETTLE_ATTEMPTS):
            try:
                done = await self._database.run(work)
            except _Refused as refused:
                refusals = [(one.decision, one.fence) for one in refused.claims]
                raise await self._audit.refused(refusals, write.attempt()) from None
            except _Pending as pending:
                await self._settled(write, pending.resources)
                continue
            self._observe(COMMIT_AFTER)
            self._audit.tell(done.noted)
            return done.written, done.accepted
        raise Unavailable("Writes of an older holder are still being settled on this resource.")

    async def _in_transaction(
        self, transaction: Transaction, write: Write, columns: tuple[str, ...], *, default_row: bool
    ) -> _Done:
        """Claim, write, verify. Whatever raises in here undoes the claim as well."""
        claims = await self._claim(transaction, write)
        written, notes = await self._write(transaction, write, columns, default_row=default_row)
        self._observe(WRITE_AFTER)
        notes += [_Note(one.resource, one.decision.value, one.fence) for one in claims if not one.decision.passes]
        if write.objection is not None:
            names = write.claimed or (table_resource(write.known.table),)
            notes += [_Note(name, write.objection.code) for name in names]
        noted = [
            await self._audit.noted(transaction, note.resource, note.reason, note.fence, write.attempt())
            for note in notes
        ]
        token = max((one.fence.token for one in claims), default=None)
        return _Done(written, Accepted(token, [one.resource for one in claims]), noted)

    async def _claim(self, transaction: Transaction, write: Write) -> list[Claimed]:
        if write.presented is None or not write.claimed:
            return []
        rule = write.known.rule
        claims = await fences.claim(transaction, write.claimed, write.presented, rule.equal, write.sender.caller)
        self._observe(CLAIM_AFTER)
        refused = [one for one in claims if not one.decision.passes]
        if refused and rule.mode is Mode.ENFORCE:
            raise _Refused(refused)
        pending = [one.resource for one in claims if one.pending and one.decision.passes]
        if pending:
            raise _Pending(pending)
        return claims

    async def _write(
        self, transaction: Transaction, write: Write, columns: tuple[str, ...], *, default_row: bool
    ) -> tuple[Written, list[_Note]]:
        """The statement itself, and the check of the rows it has touched."""
        request, known = write.request, write.known
        row = _NOTHING
        if request.method == "DELETE" or columns or default_row:
            shape, values = lower_write(request, known.table, columns, default_row=default_row, fenced=False)
            values["claimed"] = list(write.claimed or ())
            values["payload"] = write.payload.text if write.payload else None
            statement = known.statements.write(shape)
            fetched = await transaction.fetchrow(statement.text, *statement.arrange(values))
            assert fetched is not None
            row = fetched
        written = Written.from_row(row)
        _check_put(request, written.touched)
        if request.singular:
            check_single(written.touched)
        _check_affected(request, written.touched)
        if write.claimed is None or not row["strays"]:
            return written, []
        failure = mismatch(row["stray"])
        if known.rule.mode is Mode.ENFORCE:
            raise failure
        return written, [_Note(row["stray"] or table_resource(known.table), failure.code)]

    async def _settled(self, write: Write, resources: Sequence[str]) -> None:
        assert write.presented is not None
        if self._settle is None:
            raise Unavailable(
                f"An object write of an older holder is pending on {resources[0]}, and no object store is configured.",
                advice="Ask the operator to configure [s3] again until everything pending is settled.",
            )
        for resource in resources:
            await self._settle(resource, write.presented, write.sender.caller)


def _written_columns(write: Write) -> tuple[tuple[str, ...], bool]:
    """The columns a statement writes, and whether it inserts one row of nothing but defaults."""
    payload = write.payload
    if payload is None or not payload.rows:
        return (), False
    if payload.columns or write.request.method == "PATCH":
        return payload.columns, False
    if len(payload.rows) > 1 or write.request.method == "PUT":
        raise not_implemented("A body of several rows without any column")
    return (), True


def _may_be_fast(write: Write, columns: tuple[str, ...]) -> bool:
    """Whether one statement can do it all: one resource, nothing to undo after the statement has committed."""
    request, rule = write.request, write.known.rule
    return (
        rule.mode is Mode.ENFORCE
        and rule.equal is Equal.ACCEPT
        and write.claimed is not None
        and len(write.claimed) == 1
        and not request.singular
        and request.preferences.max_affected is None
        and (bool(columns) or request.method == "DELETE")
        # A statement that finds its fence overtaken commits all the same, and such triggers have fired by then.
        and not write.known.table.has_statement_triggers
    )


def _check_put(request: Request, touched: int) -> None:
    if request.method == "PUT" and touched != 1:
        raise DialectError("PGRST115", 400, "Payload values do not match URL in primary key column(s)")


def _check_affected(request: Request, touched: int) -> None:
    limit = request.preferences.max_affected
    if limit is not None and request.method in ("PATCH", "DELETE") and touched > limit:
        raise DialectError(
            "PGRST124",
            400,
            "Query result exceeds max-affected preference constraint",
            details=f"The query affects {touched} rows",
        )
