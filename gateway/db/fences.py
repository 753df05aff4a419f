"""The fences: claim them inside the caller's transaction, and read them. ``intents`` raises them for a barrier."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from uuid import uuid4

import orjson

from gateway.db.database import Claims, Database, Record, Transaction
from gateway.db.pool import columns, load
from gateway.fencing.decision import Decision, Equal, Fence, Tokens
from gateway.fencing.lease import LockMode
from gateway.fencing.token import Token, pair

_SQL = load("fences")


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The claim of one resource that does not simply pass.

    ``fence`` is the row after the claim. For a refusal, it is the fence that refuses. ``pending``: S3 mutations with a
    lower token are still under way on this resource and must be settled before an answer.
    """

    resource: str
    decision: Decision
    fence: Fence
    pending: bool


async def claim(
    transaction: Transaction,
    resources: Sequence[str],
    tokens: Tokens,
    equal: Equal,
    caller: str,
    *,
    writes: bool = True,
) -> list[ClaimResult]:
    """Claim every resource for this write, in one order; the rows stay locked until the transaction ends.

    Return the claims that do not pass or have something pending, in the order of names. The fences of all others carry
    the tokens shown. ``resources`` differ from each other. After a decision that does not pass, the caller must leave
    the transaction with an error, so that raises are rolled back.

    A request that ``writes`` nothing does not use up its token. A decision that does not pass rolls back nothing then.
    """
    # One token goes but once, for all of them.
    shown = [tokens.token] if tokens.token else [tokens.pairs[resource] for resource in resources]
    rows = await transaction.fetch(
        _SQL["claim_many"],
        ",".join(resources),
        *columns(map(pair, shown), 2),
        tokens.holder,
        caller,
        equal is Equal.STRICT,
        (tokens.write_id or uuid4()) if writes else None,
    )
    claims = [
        ClaimResult(row["fence"]["resource"], Decision(row["decision"]), fence_from_row(row["fence"]), row["pending"])
        for row in rows
    ]
    refused = {one.resource for one in claims if not one.decision.passes}
    transaction.claimed += [
        (resource, tokens.token or tokens.pairs[resource]) for resource in resources if resource not in refused
    ]
    return claims


class Claim(NamedTuple):
    """A claim of one resource, by a write that has no other."""

    resource: str
    token: Token
    holder: str | None
    caller: str


def write_claims(claims: Iterable[Claim]) -> str:
    """Return the claims of several senders as ``fencing.claim_each_v1`` takes them."""
    return orjson.dumps(
        [
            {"resource": resource, "epoch": token.epoch, "value": token.value, "holder": holder, "caller": caller}
            for resource, token, holder, caller in claims
        ]
    ).decode()


async def secure(transaction: Transaction, tokens: Mapping[str, Token]) -> None:
    """Have all raises stored in the journal together, where its mode needs it, before several claims. ``tokens``: by
    resource.
    """
    await transaction.fetch(_SQL["secure"], list(tokens), *columns(map(pair, tokens.values()), 2))


async def lock(transaction: Transaction, resources: Sequence[str]) -> None:
    """Lock every fence there is of these for this transaction alone, in the order in which they are claimed."""
    await transaction.fetch(_SQL["lock"], resources)


async def read(database: Database, resource: str) -> Fence | None:
    """Return the fence of one resource; None if it has seen no token yet."""
    row = await database.fetchrow(_SQL["read"], resource)
    return None if row is None else fence_from_row(row["fence"])


async def list_fences(database: Database, prefix: str, after: str, limit: int) -> list[Fence]:
    """At most ``limit`` fences whose name starts with ``prefix`` and sorts after ``after``, in the order of names."""
    return [fence_from_row(row["fence"]) for row in await database.fetch(_SQL["list"], prefix, after, limit)]


def fence_or_none(row: Record | None) -> Fence | None:
    """Return the fence of a row; None if there is no row, or only an empty one."""
    return None if row is None or row["resource"] is None else fence_from_row(row)


def fence_from_row(row: Record) -> Fence:
    return Fence(
        row["resource"],
        Token(row["epoch"], row["value"]),
        row["holder"],
        row["caller"],
        row["raised_at"],
        row["write_id"],
    )


@dataclass(frozen=True, slots=True)
class TokenState:
    """The database's knowledge of a token. ``fence``: the fence of its resource, None if there is none.

    ``issued``: the counter of the lease service has reached it. ``held``: a lease of exactly this token lasts, by the
    database's clock.
    """

    fence: Fence | None
    issued: bool
    held: bool


async def read_token_states(
    database: Database, shown: Sequence[tuple[str, Token]], mode: LockMode | None = None, *, confirmed: bool = False
) -> list[TokenState]:
    """How each token stands with its resource, in the same order. ``mode``: leases of another one do not count.

    ``confirmed``: wait until the database's standby has what the answer rests on. Raises ``OutcomeUnknown`` if it
    cannot be known whether it has.
    """
    asked = columns(((resource, token.epoch, token.value) for resource, token in shown), 3)
    rows = await database.fetch(_SQL["standing"], *asked, mode, confirmed)
    return [TokenState(fence_or_none(row["fence"]), row["issued"], row["held"]) for row in rows]


class BumpOutcome(StrEnum):
    """The outcome of a request for a new epoch. ``EXHAUSTED``: the current epoch is the last one."""

    DONE = "done"
    MISMATCH = "mismatch"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True)
class BumpResult:
    """``fence`` is the one there is afterwards, None where there never was any. ``ended``: leases that had to end."""

    outcome: BumpOutcome
    fence: Fence | None
    ended: int


async def bump_epoch(database: Database, resource: str, expected: Token, caller: str, reason: str) -> BumpResult:
    """Raise the fence to the beginning of the next epoch, if it carries exactly the expected token; on record.

    Raises ``OutcomeUnknown`` where the database was lost under way.
    """

    def claims(rows: Sequence[Record]) -> Claims:
        fences = (row["fence"] for row in rows if BumpOutcome(row["outcome"]) is BumpOutcome.DONE)
        return [(resource, Token(fence["epoch"], fence["value"])) for fence in fences]

    asked = (resource, *pair(expected), caller, reason)
    (row,) = await database.fetchmany_claim(_SQL["bump"], [asked], claims, patient=True)
    return BumpResult(BumpOutcome(row["outcome"]), fence_or_none(row["fence"]), row["ended"])
