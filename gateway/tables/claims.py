"""Claims the resources of all writes of a transaction, in one order, before the first of them is carried out."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby

from gateway.errors import RequestMalformed
from gateway.fencing.rules import Equal, Mode, Presented, Tokens
from gateway.store import fences
from gateway.store.database import Transaction
from gateway.store.fences import Claimed
from gateway.tables.planning import Write


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
