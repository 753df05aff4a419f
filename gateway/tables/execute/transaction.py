"""One READ COMMITTED transaction for a write that the fast path does not take, or for a list of writes.

Claim everything, execute each write, verify what it touched, keep the answer under its key if there is one, commit. A
refusal is recorded before it is answered.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

from gateway.db import settings
from gateway.db.database import Database, Transaction
from gateway.db.fences import ClaimResult
from gateway.errors import Denied, GatewayError, OutcomeUnknown, TokenImplausible, Unavailable
from gateway.fencing.decision import Presented
from gateway.fencing.record import Attempt, Refusal, Rejection
from gateway.observe.events import Observe, StepReached, WriteAccepted
from gateway.observe.stages import staged
from gateway.record.refusals import Audit
from gateway.tables.dialect.response import Response
from gateway.tables.dialect.transaction_document import of_write
from gateway.tables.execute import fenced_write, idempotency
from gateway.tables.execute.acting import Acting
from gateway.tables.execute.authorisation import TableAuthorisation
from gateway.tables.execute.fenced_write import Claims, ClaimsPending, ClaimsRefused, ObservedRefusal, accepted_under
from gateway.tables.execute.idempotency import SETTLE_ATTEMPTS, IdempotencyKey, IdempotentReplay
from gateway.tables.execute.planning import PlannedWrite
from gateway.tables.execute.reached_rows import concerns
from gateway.tables.execute.reads import AnswerLimit
from gateway.tables.naming import table_resource
from gateway.token_admission import Admission

CLAIM_AFTER = StepReached("tables.claim.after")
WRITE_AFTER = StepReached("tables.write.after")
COMMIT_AFTER = StepReached("tables.commit.after")

_SEND_AGAIN = (
    "Send the same request with the same Idempotency-Key. If it has taken effect you get its answer, and if not, "
    "it is carried out now."
)


Settle: TypeAlias = Callable[[str, Presented, str], Awaitable[None]]
"""The barrier of the object plane, for a resource, its token and a caller. No S3 mutation of an older holder can take
effect after it. Raises a ``GatewayError`` if it cannot ensure that.
"""


@dataclass(frozen=True, slots=True)
class UnitOfWork:
    """The writes of one transaction, at least one. All of them take effect, or none.

    ``key``: the answer is kept under it. ``combine`` makes one answer of those of a list. None: there is no list.
    """

    writes: Sequence[PlannedWrite]
    key: IdempotencyKey | None = None
    combine: Callable[[Sequence[Response]], Response] | None = None

    @property
    def caller(self) -> str:
        return self.writes[0].sender.caller

    def about(self, number: int) -> AbstractContextManager[None]:
        """Let errors that are raised in this context say which write of a list they are about."""
        return of_write(None if self.combine is None else number)

    def claimant(self, resource: str) -> int:
        """Return the number of the first write that claims a resource."""
        return next(number for number, write in enumerate(self.writes) if resource in write.claimable)

    def attempt(self, resource: str) -> Attempt:
        return self.writes[self.claimant(resource)].attempts()(resource)

    def answer(self, answers: Sequence[Response]) -> Response:
        return answers[0] if self.combine is None else self.combine(answers)


class _AlreadyDone(Exception):
    """A write with the key of this unit has been committed. This attempt is undone."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The answer of a unit of work, and the events to announce once it is committed."""

    answer: Response
    accepted: Sequence[WriteAccepted] = ()
    noted: Sequence[Rejection | Refusal] = ()


class FencedTransactions:
    """Executes units of work, each in one transaction.

    Without ``settle`` no object store is configured, but mutations from before may still be pending.
    """

    def __init__(
        self,
        database: Database,
        admission: Admission,
        authorisation: TableAuthorisation,
        observe: Observe,
        settle: Settle | None,
        audit: Audit,
        limit: AnswerLimit,
    ) -> None:
        self._database, self._observe, self._settle = database, observe, settle
        self._authorisation = authorisation
        self._admission = admission
        self._audit = audit
        self._limit = limit
        self.replay = IdempotentReplay(database, admission, self._settle_claims)

    async def execute(self, unit: UnitOfWork) -> Response:
        """Return the answer, once it is durable. Raises the error that refuses the writes; then none has taken effect.

        None has after ``Unavailable`` either. After ``OutcomeUnknown`` the commit may have taken effect.
        """

        async def authorise(number: int, resources: Sequence[str]) -> Sequence[str]:
            return await self._authorisation.claimed(unit.writes[number], resources)

        claims = Claims.of(unit.writes)
        passed = await self._admit(unit, claims)
        claims = claims.without({one.resource for one in passed}) if passed else claims

        cause = ""
        for _ in range(SETTLE_ATTEMPTS):
            try:
                with staged(self._observe, "tables", "transaction"):
                    outcome = await self._database.run(
                        lambda transaction: self._in_transaction(transaction, unit, claims, passed)
                    )
            except ClaimsRefused as refused:
                raise await self._refusal(unit, refused.claims) from None
            except ClaimsPending as pending:
                await self._settle_claims(claims, pending.resources, unit.caller)
                cause = "Writes of an older holder are still being settled on this resource."
                continue
            except _AlreadyDone:
                assert unit.key is not None
                shown = [write.tokens for write in unit.writes]
                # Read again: this transaction was undone, so it has waited for no standby.
                if (answer := await self.replay.kept(unit.key, shown, unit.caller, authorise)) is not None:
                    return answer
                cause = f"The answer under the Idempotency-Key {unit.key.text!r} is removed again and again."
                continue
            except OutcomeUnknown as lost:
                if unit.key is None:
                    raise
                raise OutcomeUnknown(lost.message, advice=_SEND_AGAIN) from lost
            self._announce(outcome)
            return outcome.answer
        raise Unavailable(cause)

    def _announce(self, outcome: _Outcome) -> None:
        self._observe(COMMIT_AFTER)
        for accepted in outcome.accepted:
            self._observe(accepted)
        if outcome.noted:
            self._audit.tell(outcome.noted)

    async def _admit(self, unit: UnitOfWork, claims: Claims) -> list[ObservedRefusal]:
        """Return the refusals of tokens that policies do not take, if their rules only observe.

        Raises ``TokenImplausible`` (recorded) if a rule enforces.
        """
        with staged(self._observe, "tables", "admission"):
            found = await self._admission.admit(claims.shown(), claims.enforced)
        refused = sorted(
            (one for one in found if one.resource in claims.enforced), key=lambda one: unit.claimant(one.resource)
        )
        if refused:
            error = await self._audit.implausible(refused, unit.attempt)
            if unit.combine is not None:
                error.facts["write"] = unit.claimant(refused[0].resource)
            raise error
        return [ObservedRefusal(one.resource, TokenImplausible.code, one.fence) for one in found]

    async def _in_transaction(
        self,
        transaction: Transaction,
        unit: UnitOfWork,
        claims: Claims,
        passed: Sequence[ObservedRefusal],
    ) -> _Outcome:
        """Claim, write and keep the answer. Any error undoes everything, claims and key included.

        ``passed``: refusals of tokens that are not claimed. The database calls it again after it has undone a first
        attempt.
        """
        if unit.key is not None and await idempotency.take(transaction, unit.key) is not None:
            raise _AlreadyDone
        if transaction.again:
            # Writers under one token share its fences. If they take the same rows in opposite orders they would
            # deadlock time and again, so each now runs alone.
            await claims.lock(transaction)
        claimed = await claims.claim(transaction, unit.caller)
        if claims.groups:
            self._observe(CLAIM_AFTER)
        passed = [*fenced_write.unenforced(claimed), *passed]
        acting = Acting(transaction)
        outcome = await self._write_all(transaction, acting, unit, claims, passed)
        if any(map(_runs_code, unit.writes)):
            await claims.declare(transaction)
            # Deferred triggers would run at the commit, and nothing could take back the settings they change.
            await acting.as_(unit.writes[0].sender.role)
            await settings.check_constraints(transaction)
            await acting.restore()
        if unit.key is not None:
            claimants = [(resource, unit.claimant(resource)) for resource, _ in claims.shown()]
            await idempotency.store_answer(transaction, unit.key, outcome.answer, claimants)
        return outcome

    async def _write_all(
        self,
        transaction: Transaction,
        acting: Acting,
        unit: UnitOfWork,
        claims: Claims,
        passed: Sequence[ObservedRefusal],
    ) -> _Outcome:
        answers: list[Response] = []
        accepted: list[WriteAccepted] = []
        noted: list[Rejection | Refusal] = []
        for number, write in enumerate(unit.writes):
            if _runs_code(write):
                await claims.declare(transaction)
            with unit.about(number):
                answer, notes = await self._write(transaction, acting, write, passed, alone=unit.combine is None)
                answers.append(answer)
                self._limit.keep_size(sum(len(one.body) for one in answers))
            noted += notes
            if not notes:
                accepted.append(WriteAccepted("tables", write.cached.name, "transaction"))
        return _Outcome(unit.answer(answers), accepted, noted)

    async def _write(
        self,
        transaction: Transaction,
        acting: Acting,
        write: PlannedWrite,
        passed: Sequence[ObservedRefusal],
        *,
        alone: bool,
    ) -> tuple[Response, Sequence[Rejection | Refusal]]:
        """Execute one write. Return its answer and its notes, if observe mode lets it pass."""
        written, observed = await fenced_write.execute(transaction, write, acting, self._limit.most)
        self._observe(WRITE_AFTER)
        if _runs_code(write) or write.sender.role is not None:
            await acting.restore()
        elif write.request.preferences.timezone is not None and not alone:
            await settings.set_zone(transaction, "UTC")
        own = [one for one in passed if one.resource in write.claimable]
        observed += own
        if write.objection is not None:
            names = write.claimed or (table_resource(write.cached.table),)
            observed += [ObservedRefusal(name, write.objection.code) for name in names]
        observed += [ObservedRefusal(name, Denied.code, missing=one) for name, one in write.ungranted.items()]
        under = replace(accepted_under(write, own), would_refuse=[(one.reason, one.fence) for one in observed])
        return write.answer(written, under), await self._noted(transaction, write, observed)

    async def _noted(
        self, transaction: Transaction, write: PlannedWrite, observed: Sequence[ObservedRefusal]
    ) -> Sequence[Rejection | Refusal]:
        if not observed:
            return []
        attempt = write.attempts()
        return await self._audit.noted(
            transaction,
            [
                Refusal(one.resource, one.reason, attempt(one.resource), one.fence, enforced=False, missing=one.missing)
                for one in observed
            ],
        )

    async def _refusal(self, unit: UnitOfWork, claims: Sequence[ClaimResult]) -> GatewayError:
        """Record why each resource was refused, and return the error to answer with, which is about the first."""
        refusals = sorted(claims, key=lambda one: unit.claimant(one.resource))
        error = await self._audit.refused([(one.decision, one.fence) for one in refusals], unit.attempt)
        if unit.combine is not None:
            error.facts["write"] = unit.claimant(refusals[0].resource)
        return error

    async def _settle_claims(self, claims: Claims, resources: Sequence[str], caller: str) -> None:
        if self._settle is None:
            raise Unavailable(
                f"An object write of an older holder is pending on {resources[0]}, and no object store is configured.",
                advice="Ask the operator to configure [s3] again until everything pending is settled.",
            )
        with staged(self._observe, "tables", "settle"):
            for resource in resources:
                await self._settle(resource, claims.presented(resource), caller)


def _runs_code(write: PlannedWrite) -> bool:
    """Return whether a write may run code of the database. Tables that foreign keys lead to may have triggers, too."""
    return write.cached.table.runs_code_when_written or (write.cached.reach is not None and concerns(write))
