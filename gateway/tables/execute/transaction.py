"""The slow path: one READ COMMITTED transaction for a write, or for a list of them.

Claim everything, carry out each, verify what it touched, keep the answer under its key if there is one, commit. A
refusal is on record before it is answered.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from gateway.admission import Admission
from gateway.db import idempotency, settings
from gateway.db.database import Database, Transaction
from gateway.db.fences import Claimed
from gateway.db.idempotency import Kept, Key
from gateway.errors import (
    AnswerTooLarge,
    GatewayError,
    OutcomeUnknown,
    TokenImplausible,
    Unavailable,
)
from gateway.fencing.policy import Implausible
from gateway.fencing.record import Attempt, Refusal, Rejection
from gateway.fencing.rules import Presented
from gateway.observe.events import Observe, StepReached, WriteAccepted
from gateway.observe.stages import staged
from gateway.record.audit import Audit
from gateway.tables.dialect import overrides, response
from gateway.tables.dialect.response import Accepted, Response, Written
from gateway.tables.dialect.transaction_document import of_write
from gateway.tables.execute.fenced_write import Claims, Note, Pending, Refused, apply, passed
from gateway.tables.execute.idempotency import SETTLE_ATTEMPTS, Replaying
from gateway.tables.execute.planning import Write
from gateway.tables.naming.plan import table_resource

CLAIM_AFTER = StepReached("tables.claim.after")
WRITE_AFTER = StepReached("tables.write.after")
COMMIT_AFTER = StepReached("tables.commit.after")

MOST_KEPT = 1024 * 1024
"""Bytes of an answer that is kept under a key."""

_SEND_AGAIN = (
    "Send the same request again with the same Idempotency-Key: if it has taken effect you get its answer, and if not, "
    "it is carried out now."
)


class Settle(Protocol):
    """Makes certain that no S3 mutation of an older holder can take effect any more: the barrier of the object plane.

    Raises a ``GatewayError`` where it cannot.
    """

    async def __call__(self, resource: str, presented: Presented, caller: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What is done in one transaction, all of it or nothing. ``writes`` has at least one.

    ``key``: the answer is kept under it. ``combine`` makes one answer of those of a list; None: there is no list.
    """

    writes: Sequence[Write]
    key: Key | None = None
    combine: Callable[[Sequence[Response]], Response] | None = None

    @property
    def caller(self) -> str:
        return self.writes[0].sender.caller

    def about(self, number: int) -> AbstractContextManager[None]:
        """Errors raised in here say about which write of a list they are."""
        return nullcontext() if self.combine is None else of_write(number)

    def claimant(self, resource: str) -> int:
        """The number of the first write that claims it."""
        return next(number for number, write in enumerate(self.writes) if resource in (write.claimed or ()))

    def attempt(self, resource: str) -> Attempt:
        """How it goes on record that the resource was refused."""
        return self.writes[self.claimant(resource)].attempts()(resource)

    def answer(self, answers: Sequence[Response]) -> Response:
        return answers[0] if self.combine is None else self.combine(answers)


class _DoneBefore(Exception):
    """What is asked for has been done under its key. Nothing of this attempt is."""

    def __init__(self, key: Key, kept: Kept) -> None:
        super().__init__()
        self.key, self.kept = key, kept


class _RolledBack(Exception):
    """The caller wants to know what a write would do. Its claims are undone as well, and nothing is on record."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


@dataclass(frozen=True, slots=True)
class _Done:
    answer: Response
    accepted: Sequence[WriteAccepted] = ()
    noted: Sequence[Rejection] = ()


@dataclass(frozen=True, slots=True)
class _Unenforced:
    """What would have been refused, were the rules enforced: by fences, or because a token was not taken at all."""

    refused: Sequence[Claimed]
    implausible: Mapping[str, Implausible]

    def of(self, write: Write) -> "_Unenforced":
        """What of it is about one write."""
        own = set(write.claimed or ())
        implausible = {name: one for name, one in self.implausible.items() if name in own}
        return _Unenforced([one for one in self.refused if one.resource in own], implausible)

    def notes(self) -> list[Note]:
        return [
            *(Note(one.resource, one.decision.value, one.fence) for one in self.refused),
            *(Note(one.resource, TokenImplausible.code, one.fence) for one in self.implausible.values()),
        ]


class SlowPath:
    """Without ``settle`` (no S3) nothing of an older holder can be pending, but left-overs might.

    ``overrides``: code in the database may set parts of answers.
    """

    def __init__(
        self, database: Database, admission: Admission, observe: Observe, settle: Settle | None, *, overrides: bool
    ) -> None:
        self._database, self._observe, self._settle = database, observe, settle
        self._admission = admission
        self._audit = Audit(database, observe, "tables")
        self._overrides = overrides
        self.replaying = Replaying(database, admission, self._settled)

    async def carry_out(self, order: Order) -> Response:
        """The answer, once it is durable. Raises what refuses the writes; then nothing of them is.

        After ``Unavailable`` nothing is written either; ``OutcomeUnknown`` says what it says.
        """
        claims = Claims.of(order.writes)
        implausible = await self._implausible(order, claims)
        claims = claims.without(implausible.keys()) if implausible else claims

        for _ in range(SETTLE_ATTEMPTS):
            try:
                with staged(self._observe, "tables", "transaction"):
                    done = await self._database.run(self._work(order, claims, implausible))
            except Refused as refused:
                raise await self._refusal(order, refused.claims) from None
            except Pending as pending:
                await self._settled(claims, pending.resources, order.caller)
                continue
            except _RolledBack as rolled_back:
                return rolled_back.answer
            except _DoneBefore as before:
                shown = [write.tokens for write in order.writes]
                return await self.replaying.again(before.key, before.kept, shown, order.caller)
            except OutcomeUnknown as lost:
                if order.key is None:
                    raise
                raise OutcomeUnknown(lost.message, advice=_SEND_AGAIN) from lost
            self._observe(COMMIT_AFTER)
            for accepted_write in done.accepted:
                self._observe(accepted_write)
            self._audit.tell(done.noted)
            return done.answer
        raise Unavailable("Writes of an older holder are still being settled on this resource.")

    async def _implausible(self, order: Order, claims: Claims) -> dict[str, Implausible]:
        """The tokens that are not taken, by resource, where rules only observe. Raises ``TokenImplausible`` (recorded)
        where one enforces.
        """
        with staged(self._observe, "tables", "admission"):
            found = await self._admission.admit(claims.shown())
        refused = sorted(
            (one for one in found if one.resource in claims.enforced), key=lambda one: order.claimant(one.resource)
        )
        if refused:
            error = await self._audit.implausible(refused, order.attempt)
            if order.combine is not None:
                error.facts["write"] = order.claimant(refused[0].resource)
            raise error
        return {one.resource: one for one in found}

    def _work(
        self, order: Order, claims: Claims, implausible: Mapping[str, Implausible]
    ) -> Callable[[Transaction], Awaitable[_Done]]:
        """What is done in a transaction, and in another one where the database has undone that."""
        attempts = count()

        async def work(transaction: Transaction) -> _Done:
            return await self._in_transaction(transaction, order, claims, implausible, again=next(attempts) > 0)

        return work

    async def _in_transaction(
        self,
        transaction: Transaction,
        order: Order,
        claims: Claims,
        implausible: Mapping[str, Implausible],
        *,
        again: bool,
    ) -> _Done:
        """Whatever raises in here undoes everything, claims and key included.

        ``again``: the database has undone it once, for a deadlock most likely.
        """
        if order.key is not None:
            kept = await idempotency.take(transaction, order.key)
            if kept is not None:
                raise _DoneBefore(order.key, kept)
        if again:
            # Writers under one token share its fences, and those that take the same rows in opposite orders would meet
            # there time and again. Each goes alone now.
            await claims.lock(transaction)
        claimed = await claims.claim(transaction, order.caller)
        if claims.runs:
            self._observe(CLAIM_AFTER)
        unenforced = _Unenforced(passed(claimed), implausible)
        answers: list[Response] = []
        accepted_writes: list[WriteAccepted] = []
        noted: list[Rejection] = []
        for number, write in enumerate(order.writes):
            with order.about(number):
                answer, notes = await self._one(transaction, write, unenforced, alone=order.combine is None)
            answers.append(answer)
            noted += notes
            if not notes:
                accepted_writes.append(WriteAccepted("tables", write.known.name, "transaction"))
        if any(write.known.table.runs_code_when_written for write in order.writes):
            # What is deferred would be carried out at the end, when nobody can take back what it sets.
            await settings.check_constraints(transaction)
            await settings.pin_again(transaction)
        answer = order.answer(answers)
        if order.key is not None:
            await _keep(transaction, order, order.key, claims, answer)
        return _Done(answer, accepted_writes, noted)

    async def _one(
        self, transaction: Transaction, write: Write, unenforced: "_Unenforced", *, alone: bool
    ) -> tuple[Response, list[Rejection]]:
        """One write and its answer."""
        written, notes = await apply(transaction, write)
        self._observe(WRITE_AFTER)
        preferences = write.request.preferences
        runs_code = write.known.table.runs_code_when_written
        if alone and self._overrides and runs_code and write.call is None:
            written = replace(written, said=overrides.read(*await settings.answer(transaction)))
        if preferences.tx == "rollback":
            await settings.check_constraints(transaction)
            raise _RolledBack(_answer(write, written, Accepted()))
        if runs_code:
            await settings.pin_again(transaction)
        elif preferences.timezone is not None and not alone:
            await settings.set_zone(transaction, "UTC")
        unenforced = unenforced.of(write)
        notes += unenforced.notes()
        if write.objection is not None:
            names = write.claimed or (table_resource(write.known.table),)
            notes += [Note(name, write.objection.code) for name in names]
        under = accepted(write, unenforced.refused, unenforced.implausible.keys())
        return _answer(write, written, under), await self._noted(transaction, write, notes)

    async def _noted(self, transaction: Transaction, write: Write, notes: Sequence[Note]) -> list[Rejection]:
        if not notes:
            return []
        attempt = write.attempts()
        return await self._audit.noted(
            transaction,
            [Refusal(one.resource, one.reason, attempt(one.resource), one.fence, enforced=False) for one in notes],
        )

    async def _refusal(self, order: Order, claims: Sequence[Claimed]) -> GatewayError:
        """Put on record why each of the resources was refused; the error to answer with is about the first."""
        refusals = sorted(claims, key=lambda one: order.claimant(one.resource))
        error = await self._audit.refused([(one.decision, one.fence) for one in refusals], order.attempt)
        if order.combine is not None:
            error.facts["write"] = order.claimant(refusals[0].resource)
        return error

    async def _settled(self, claims: Claims, resources: Sequence[str], caller: str) -> None:
        if self._settle is None:
            raise Unavailable(
                f"An object write of an older holder is pending on {resources[0]}, and no object store is configured.",
                advice="Ask the operator to configure [s3] again until everything pending is settled.",
            )
        with staged(self._observe, "tables", "settle"):
            for resource in resources:
                await self._settle(resource, claims.presented(resource), caller)


def accepted(write: Write, unenforced: Sequence[Claimed] = (), unclaimed: AbstractSet[str] = frozenset()) -> Accepted:
    """The fences the write was accepted under: they carry its tokens, except for those it passed in observe mode.

    ``unclaimed``: resources it has written under no fence.
    """
    tokens = write.tokens
    names = tuple(name for name in write.claimed or () if name not in unclaimed)
    if tokens is None or not names:
        return Accepted()
    higher = {one.resource: one.fence.token for one in unenforced}
    if tokens.token is not None:
        return Accepted(max([tokens.token, *higher.values()]), names)
    fences_now = [(resource, higher.get(resource) or tokens.of(resource)) for resource in names]
    return Accepted(resources=names, pairs=fences_now)


def _answer(write: Write, written: Written, under: Accepted) -> Response:
    if write.call is not None:
        return write.call.answer(written, under)
    return response.write(write.request, write.known.table, written, under, write.sender.path)


async def _keep(transaction: Transaction, order: Order, key: Key, claims: Claims, answer: Response) -> None:
    if len(answer.body) > MOST_KEPT:
        raise AnswerTooLarge(f"The answer has {len(answer.body)} bytes; at most {MOST_KEPT} are kept under a key.")
    claimed = [(resource, order.claimant(resource)) for resource, _ in claims.shown()]
    kept = Kept(key.fingerprint, answer.status, answer.headers, answer.body, claimed)
    await idempotency.keep(transaction, key, kept)
