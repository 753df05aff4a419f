"""The slow path: one READ COMMITTED transaction for a write, or for a list of them.

Claim everything, carry out each, verify what it touched, keep the answer under its key if there is one, commit. A
refusal is on record before it is answered.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.audit import Audit
from gateway.errors import AnswerTooLarge, GatewayError, IdempotencyMismatch, OutcomeUnknown, Unavailable
from gateway.fencing.record import Attempt, Rejection
from gateway.fencing.rules import Presented
from gateway.observe.events import Observe, StepReached
from gateway.store import idempotency, settings
from gateway.store.database import Database, Transaction
from gateway.store.fences import Claimed
from gateway.store.idempotency import Kept, Key
from gateway.tables import overrides, response
from gateway.tables.applying import Note, apply
from gateway.tables.claims import Claims, Pending, Refused, passed
from gateway.tables.entries import of_write
from gateway.tables.plan import table_resource
from gateway.tables.planning import Write
from gateway.tables.replays import REPLAYED
from gateway.tables.response import Accepted, Response, Written

CLAIM_AFTER = StepReached("tables.claim.after")
WRITE_AFTER = StepReached("tables.write.after")
COMMIT_AFTER = StepReached("tables.commit.after")

MOST_KEPT = 1024 * 1024
"""Bytes of an answer that is kept under a key."""

_SETTLE_ATTEMPTS = 3
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

    def answer(self, answers: Sequence[Response]) -> Response:
        return answers[0] if self.combine is None else self.combine(answers)


class _RolledBack(Exception):
    """The caller wants to know what a write would do. Its claims are undone as well, and nothing is on record."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


@dataclass(frozen=True, slots=True)
class _Done:
    answer: Response
    noted: Sequence[Rejection] = ()
    replayed: bool = False


class SlowPath:
    """Without ``settle`` (no S3) nothing of an older holder can be pending, but left-overs might.

    ``overrides``: code in the database may set parts of answers.
    """

    def __init__(self, database: Database, observe: Observe, settle: Settle | None, *, overrides: bool) -> None:
        self._database, self._observe, self._settle = database, observe, settle
        self._audit = Audit(database, observe, "tables")
        self._overrides = overrides

    async def replayed(self, key: Key) -> Response | None:
        """The answer kept under the key; None: there is none yet. Raises ``IdempotencyMismatch``."""
        kept = await idempotency.kept(self._database, key)
        return None if kept is None else _replayed(key, kept)

    async def carry_out(self, order: Order) -> Response:
        """The answer, once it is durable. Raises what refuses the writes; then nothing of them is.

        After ``Unavailable`` nothing is written either; ``OutcomeUnknown`` says what it says.
        """
        claims = Claims.of(order.writes)

        async def work(transaction: Transaction) -> _Done:
            return await self._in_transaction(transaction, order, claims)

        for _ in range(_SETTLE_ATTEMPTS):
            try:
                done = await self._database.run(work)
            except Refused as refused:
                raise await self._refusal(order, refused.claims) from None
            except Pending as pending:
                await self._settled(claims, pending.resources, order.caller)
                continue
            except _RolledBack as rolled_back:
                return rolled_back.answer
            except OutcomeUnknown as lost:
                if order.key is None:
                    raise
                raise OutcomeUnknown(lost.message, advice=_SEND_AGAIN) from lost
            if not done.replayed:
                self._observe(COMMIT_AFTER)
                self._audit.tell(done.noted)
            return done.answer
        raise Unavailable("Writes of an older holder are still being settled on this resource.")

    async def _in_transaction(self, transaction: Transaction, order: Order, claims: Claims) -> _Done:
        """Whatever raises in here undoes everything, claims and key included."""
        if order.key is not None:
            kept = await idempotency.take(transaction, order.key)
            if kept is not None:
                return _Done(_replayed(order.key, kept), replayed=True)
        claimed = await claims.claim(transaction, order.caller)
        if claims.runs:
            self._observe(CLAIM_AFTER)
        unenforced = passed(claimed)
        answers, noted = [], []
        for number, write in enumerate(order.writes):
            with order.about(number):
                answer, notes = await self._one(transaction, write, unenforced, alone=order.combine is None)
            answers.append(answer)
            noted += notes
        if any(write.known.table.runs_code_when_written for write in order.writes):
            # What is deferred would be carried out at the end, when nobody can take back what it sets.
            await settings.check_constraints(transaction)
            await settings.pin_again(transaction)
        answer = order.answer(answers)
        if order.key is not None:
            await _keep(transaction, order.key, answer)
        return _Done(answer, noted)

    async def _one(
        self, transaction: Transaction, write: Write, unenforced: Sequence[Claimed], *, alone: bool
    ) -> tuple[Response, list[Rejection]]:
        """One write and its answer. ``unenforced``: fences that would have refused their tokens, were they obeyed."""
        written, notes = await apply(transaction, write)
        self._observe(WRITE_AFTER)
        preferences, own = write.request.preferences, set(write.claimed or ())
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
        unenforced = [one for one in unenforced if one.resource in own]
        notes += [Note(one.resource, one.decision.value, one.fence) for one in unenforced]
        if write.objection is not None:
            names = write.claimed or (table_resource(write.known.table),)
            notes += [Note(name, write.objection.code) for name in names]
        return _answer(write, written, accepted(write, unenforced)), await self._noted(transaction, write, notes)

    async def _noted(self, transaction: Transaction, write: Write, notes: Sequence[Note]) -> list[Rejection]:
        if not notes:
            return []
        attempt = write.attempts()
        return [
            await self._audit.noted(transaction, note.resource, note.reason, note.fence, attempt(note.resource))
            for note in notes
        ]

    async def _refusal(self, order: Order, claims: Sequence[Claimed]) -> GatewayError:
        """Put on record why each of the resources was refused; the error to answer with is about the first."""

        def attempt(resource: str) -> Attempt:
            return order.writes[order.claimant(resource)].attempts()(resource)

        refusals = sorted(claims, key=lambda one: order.claimant(one.resource))
        error = await self._audit.refused([(one.decision, one.fence) for one in refusals], attempt)
        if order.combine is not None:
            error.facts["write"] = order.claimant(refusals[0].resource)
        return error

    async def _settled(self, claims: Claims, resources: Sequence[str], caller: str) -> None:
        if self._settle is None:
            raise Unavailable(
                f"An object write of an older holder is pending on {resources[0]}, and no object store is configured.",
                advice="Ask the operator to configure [s3] again until everything pending is settled.",
            )
        for resource in resources:
            await self._settle(resource, claims.presented(resource), caller)


def accepted(write: Write, unenforced: Sequence[Claimed]) -> Accepted:
    """The fences the write was accepted under: they carry its tokens, except for those it passed in observe mode."""
    tokens = write.tokens
    if tokens is None or not write.claimed:
        return Accepted()
    higher = {one.resource: one.fence.token for one in unenforced}
    if tokens.token is not None:
        return Accepted(max([tokens.token, *higher.values()]), write.claimed)
    fences_now = [(resource, higher.get(resource) or tokens.of(resource)) for resource in write.claimed]
    return Accepted(resources=write.claimed, pairs=fences_now)


def _answer(write: Write, written: Written, under: Accepted) -> Response:
    if write.call is not None:
        return write.call.answer(written, under)
    return response.write(write.request, write.known.table, written, under, write.sender.path)


def _replayed(key: Key, kept: Kept) -> Response:
    if kept.fingerprint != key.fingerprint:
        raise IdempotencyMismatch(f"The Idempotency-Key {key.text!r} came with another request before.")
    return Response(kept.status, [*kept.headers, REPLAYED], kept.body)


async def _keep(transaction: Transaction, key: Key, answer: Response) -> None:
    if len(answer.body) > MOST_KEPT:
        raise AnswerTooLarge(f"The answer has {len(answer.body)} bytes; at most {MOST_KEPT} are kept under a key.")
    await idempotency.keep(transaction, key, answer.status, answer.headers, answer.body)
