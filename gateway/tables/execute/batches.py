"""Batches of statements: those of one text that arrive together are one transaction and one commit.

A sender sees no difference. Writes of different resources become one statement. One whose batch fails is sent again
alone. If fences have to rise first, the first statement of the batch claims for all others (docs/decisions/016).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias, TypeVar

from gateway.batching import Lane
from gateway.bounded import Bounded
from gateway.budget import CALLER, Caller
from gateway.db import fences
from gateway.db.database import Claims, Database, Record
from gateway.db.fences import Claim
from gateway.db.roles import ActingBatch, ActingTogether
from gateway.errors import SqlError, Unavailable
from gateway.observe.events import BatchBegun, BatchSent, Observe
from gateway.observe.stages import ORIGIN
from gateway.tables.dialect.errors import is_of_answer
from gateway.tables.execute.acting import Role
from gateway.tables.sql.expressions import Statement, tells_of_change
from gateway.tables.sql.shape import CHECKS, CLAIMS, HELD

Answer = TypeVar("Answer")

MOST = 64
# Seconds after which the next batch sets out beside a batch under way. That one may be waiting for a lock or for a slow
# disk, and both can be waited for side by side.
OVERLAP = 0.004
# A batch of writes that would be smaller is not halved, which would cost a commit. Reads gain nothing by halves.
HALF_FROM = 8
# Seconds without any statement after which no writer seems to be there.
LULL = 0.05
# Bytes of the values of one statement, and of a whole batch. A batch has to fit into the socket's buffer: a gateway
# paused half-way through sending would hold the locks of the half that has arrived.
LARGEST = 1024
ROOM = 32 * LARGEST

_MOST_LANES = 256
# Characters of a statement whose lane does not stay beside another one of such size.
_LONG = 32 * 1024
# Claims and headers are among the values of a statement under a role: it may be so many times larger.
_LARGER = 8


@dataclass(slots=True)
class Asked:
    """One statement of a request, with its values. ``size``: bytes of these.

    ``claim``: that of a write. Its fence has to carry the token. If it ``may_raise``, it can be ``claimed``: sent
    behind a claim, which raises the fence. ``role``: it runs under this one. The statement looks at no fence then, and
    what carries it out does. ``together``: the statement for several such requests of different resources. It is None
    unless the values alone name the resource: no row is of two resources then.

    From its sending on, ``since`` tells when that was, ``origin`` the request that asked, and ``caller`` its caller. A
    batch belongs to no caller, and a session for one statement counts in its share.
    """

    statement: Statement
    arguments: list[object]
    size: int
    claim: Claim | None = None
    may_raise: bool = False
    role: Role | None = None
    together: Statement | None = None
    claimed: bool = False
    since: float = 0.0
    origin: object | None = None
    caller: Caller | None = None


_Kind: TypeAlias = str | tuple[str, str]
"""Statements of one kind share a lane: one text, with its role. That is empty for a claim without a role."""


class Batches:
    """Sends statements that answer with exactly one row each, in a lane for each text and role.

    The row is None if a statement behind a claim, or under a role, has failed or cannot be sent so. Nothing is written
    then, and a transaction of its own finds out why. An answer that is too large fails in any case, so that its sender
    can remember it. All other statements fail with what sending them alone raises.
    """

    def __init__(self, database: Database, observe: Observe, *, writes: bool) -> None:
        self._database, self._observe, self._writes = database, observe, writes
        self._one = database.fetchrow_write if writes else database.fetchrow_read
        self._many = database.fetchmany_write if writes else database.fetchmany
        self._lanes: dict[_Kind, Lane[Asked, Record | None]] = {}
        # Kinds whose last batch has raised a fence.
        self._rising: Bounded[_Kind, None] = Bounded(_MOST_LANES)
        self._under_way = 0
        self._back = float("-inf")

    def expected(self, asked: Asked) -> bool:
        """Return whether fences have risen lately with such statements."""
        return (asked.statement.text if asked.role is None else _kind_under_role(asked)) in self._rising

    def busy(self) -> bool:
        """Return whether a statement is under way, or was a moment ago: writers pause between two statements."""
        return self._under_way > 0 or perf_counter() - self._back < LULL

    def send(self, asked: Asked) -> "asyncio.Future[Record | None] | None":
        """Return the row to come of one statement. None for one behind a claim that is too large for a batch.

        Writes under one resource are sent in the order in which they come.
        """
        claim, role, size, most = asked.claim, asked.role, asked.size, LARGEST
        kind: _Kind = asked.statement.text
        if role is not None or asked.claimed:
            kind = ("", asked.statement.text)
            if claim is not None:
                size += len(claim.resource) + len(claim.holder or "") + len(claim.caller)
            if role is not None:
                kind, most = _kind_under_role(asked), _LARGER * LARGEST
                size += sum(map(len, role.settings.values()))
        asked.since, asked.origin, asked.caller = perf_counter(), ORIGIN.get(), CALLER.get()
        if size > most:
            return None if asked.claimed else asyncio.ensure_future(self._alone(asked))
        lane = self._lanes.get(kind)
        if lane is None:
            lane = self._lane(kind, asked)
        return lane.ask(asked, key=None if claim is None else claim.resource, size=size)

    def _lane(self, kind: _Kind, asked: Asked) -> Lane[Asked, Record | None]:
        if len(self._lanes) >= _MOST_LANES or len(asked.statement.text) > _LONG:
            self._lanes = {one: lane for one, lane in self._lanes.items() if not lane.idle()}
        lane = self._lanes[kind] = Lane(
            self._together,
            self._alone,
            most=MOST,
            room=ROOM,
            order=lambda asked: asked.claim.resource if asked.claim else "",
            lone_alone=isinstance(kind, str),
            overlap=OVERLAP,
            half_from=HALF_FROM if self._writes else None,
        )
        return lane

    async def _together(self, batch: Sequence[Asked]) -> Sequence[Record | None]:
        first = batch[0]
        if first.role is not None:
            return await self._under_role(first.role.name, batch)
        statement, arguments = first.statement, [asked.arguments for asked in batch]
        together = _one_for_all(batch)
        if together is not None:
            arguments = [_arrays(batch, together)]
            statement = together
        # The first statement of a transaction checks its table. The result holds until the transaction ends.
        checks = statement.names.index(CHECKS)
        for one in arguments if first.claimed else arguments[1:]:
            one[checks] = False
        if not first.claimed:
            return await self._trip(batch, self._many(statement.text, arguments))
        # The first statement claims for all others, and writes nothing. It waits for no fence that a writer has locked.
        # The ones behind it have newer snapshots, look at fences, and write.
        own: dict[str, object] = {CHECKS: True, CLAIMS: _claims(batch)}
        nothing = None if together is None else [None]
        arguments.insert(0, [own.get(name, nothing) for name in statement.names])
        rows = await self._trip(batch, self._database.fetchmany_claim(statement.text, arguments, _carried(batch)))
        claimed = rows.pop(0)
        self._note(first.statement.text, claimed, rows)
        return rows

    async def _alone(self, asked: Asked) -> Record | None:
        if asked.claimed:
            return None
        CALLER.set(asked.caller)
        if asked.role is not None:
            return (await self._under_role(asked.role.name, [asked], alone=True))[0]
        asked.arguments[asked.statement.names.index(CHECKS)] = True
        return await self._trip([asked], self._one(asked.statement.text, *asked.arguments))

    async def _under_role(self, role: str, batch: Sequence[Asked], *, alone: bool = False) -> Sequence[Record | None]:
        """Send a batch as one statement under one role."""
        claims = _claims(batch)
        sent: ActingBatch | ActingTogether = _acting_together(role, batch, claims) or _acting(role, batch, claims)
        try:
            if isinstance(sent, ActingTogether) or self._writes:
                rows = await self._trip(batch, self._database.write_acting(sent, _carried(batch), alone=alone))
            else:
                rows = await self._trip(batch, self._database.read_acting(sent, alone=alone))
        except SqlError as error:
            if len(batch) > 1 or is_of_answer(error) or tells_of_change(error):
                raise
            return [None]
        except Unavailable:
            if self._writes or not alone:
                raise
            return [None]  # such as a policy that writes
        if claims is not None:
            self._note(_kind_under_role(batch[0]), rows[0], rows)
        return rows

    def _note(self, kind: _Kind, claimed: Record, rows: Sequence[Record]) -> None:
        """Note whether the claims of a batch have raised fences. ``claimed``: the row that tells."""
        if claimed["risen"]:
            self._rising.remember(kind, None)
        elif any(row["held"] for row in rows):  # stale tokens tell nothing about the next holder's
            self._rising.pop(kind, None)

    async def _trip(self, batch: Sequence[Asked], answer: Awaitable[Answer]) -> Answer:
        self._under_way += 1
        self._observe(BatchBegun(self._writes, tuple(asked.origin for asked in batch)))
        began = perf_counter()
        try:
            return await answer
        finally:
            self._under_way -= 1
            self._back = perf_counter()
            waited = began - min(asked.since for asked in batch)
            self._observe(BatchSent(self._writes, len(batch), waited, self._back - began))


def _kind_under_role(asked: Asked) -> tuple[str, str]:
    """Return the kind of a statement under a role. One that has a statement for several has no settings."""
    assert asked.role is not None
    return asked.role.name, (asked.together or asked.statement).text


def _acting(role: str, batch: Sequence[Asked], claims: str | None) -> ActingBatch:
    """Return a batch whose members each have settings of their own."""
    statement, names = batch[0].statement, list(_settings(batch[0]))
    members = [
        [*_fence(asked.claim), *map(_settings(asked).__getitem__, names), *map(as_text, asked.arguments)]
        for asked in batch
    ]
    checks = len(members[0]) - len(statement.names) + statement.names.index(CHECKS) + 1
    return ActingBatch(statement.text, role, names, checks, members, claims)


def _acting_together(role: str, batch: Sequence[Asked], claims: str | None) -> ActingTogether | None:
    """Return the one statement of a batch. None if there is none, or if two of its writes might be of one row."""
    together = batch[0].together
    if together is None or len({asked.claim and asked.claim.resource for asked in batch}) < len(batch):
        return None
    held = [asked.claim for asked in batch if asked.claim]
    columns = zip(*(asked.arguments for asked in batch), strict=True)
    values: dict[str, object] = dict(zip(batch[0].statement.names, map(list, columns), strict=True))
    resources = [claim.resource for claim in held]
    values |= {CHECKS: True, HELD: None, "resource": resources}
    fences: Sequence[Sequence[object]] = (
        resources,
        [claim.token.epoch for claim in held],
        [claim.token.value for claim in held],
        [claim.holder for claim in held],
    )
    arguments = [as_text(values[name]) for name in together.names]
    return ActingTogether(together.text, role, together.names.index(HELD) + 1, fences, arguments, claims)


def _one_for_all(batch: Sequence[Asked]) -> Statement | None:
    """Return the one statement of a batch. None if two of its writes might be of one row."""
    if len({asked.claim and asked.claim.resource for asked in batch}) < len(batch) or len(batch) == 1:
        return None
    return batch[0].together if all(asked.together for asked in batch) else None


def _arrays(batch: Sequence[Asked], together: Statement) -> list[object]:
    """Return the values of a batch as the one statement takes them."""
    columns = zip(*(asked.arguments for asked in batch), strict=True)
    values: dict[str, object] = dict(zip(batch[0].statement.names, map(list, columns), strict=True))
    values |= {CHECKS: True, CLAIMS: None}
    return [values[name] for name in together.names]


def _claims(batch: Iterable[Asked]) -> str | None:
    """Return the claims that go before the statements of a batch, each once. None without any."""
    first: dict[str, Claim] = {}
    for asked in batch:
        if asked.claimed and asked.claim is not None:
            first.setdefault(asked.claim.resource, asked.claim)
    return fences.write_claims(first.values()) if first else None


def _carried(batch: Sequence[Asked]) -> Callable[[list[Record]], Claims]:
    """Return what tells the tokens that fences carry, by the rows of a batch. A row of its claims stands before."""

    def carried(rows: list[Record]) -> Claims:
        pairs = zip(batch, rows[-len(batch) :], strict=True)
        return [asked.claim[:2] for asked, row in pairs if asked.claim and row["held"]]

    return carried


def _settings(asked: Asked) -> Mapping[str, str]:
    assert asked.role is not None
    return asked.role.settings


def _fence(claim: Claim | None) -> tuple[str | None, ...]:
    if claim is None:
        return ()
    return (claim.resource, str(claim.token.epoch), str(claim.token.value), claim.holder)


def as_text(value: object) -> str | None:
    """Return a value of a statement as PostgreSQL reads it from a text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return f"{{{','.join(map(_element, value))}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _element(value: object) -> str:
    text = as_text(value)
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
