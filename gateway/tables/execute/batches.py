"""Batches of fenced statements: statements of one text that arrive together are one transaction and one commit.

A sender sees no difference. A statement whose batch fails is sent again alone. If fences have to rise first, the first
statement of the batch claims for all others (docs/decisions/016).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from gateway.batching import Lane
from gateway.bounded import Bounded
from gateway.budget import CALLER, Caller
from gateway.db import fences
from gateway.db.database import Claims, Database, Record
from gateway.db.fences import Claim
from gateway.db.roles import ActingBatch
from gateway.errors import SqlError, Unavailable
from gateway.observe.events import BatchBegun, BatchSent, Observe, ignore
from gateway.observe.stages import ORIGIN
from gateway.tables.dialect.errors import is_of_answer
from gateway.tables.execute.acting import Role
from gateway.tables.sql.expressions import Statement
from gateway.tables.sql.shape import CHECKS, CLAIMS

What = TypeVar("What")
Answer = TypeVar("Answer")

SendOne: TypeAlias = Callable[..., Awaitable[Record | None]]
SendMany: TypeAlias = Callable[[str, Sequence[Sequence[object]]], Awaitable[list[Record]]]
ClaimMany: TypeAlias = Callable[
    [str, Sequence[Sequence[object]], Callable[[list[Record]], Claims]], Awaitable[list[Record]]
]

MOST = 64
# Seconds after which the next batch sets out beside a batch under way. That one may be waiting for a lock or for a slow
# disk, and both can be waited for side by side.
OVERLAP = 0.004
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
class _Asked(Generic[What]):
    """The values of one statement, when it was asked for, and the request that asked. ``what``: what it is about.

    ``resource``: that of its claim, if any. A batch has its statements in the order of these.
    ``caller``: of the request. A batch belongs to no caller, and a session for one statement counts in its share.
    """

    what: What
    arguments: list[object]
    resource: str | None
    since: float
    origin: object | None
    caller: Caller | None


class _Lanes(ABC, Generic[What, Answer]):
    """A lane for each text of a statement, and for each role under which it runs."""

    _writes = True
    # Whether a statement that is alone in its batch needs no batch.
    _lone_alone = False

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._lanes: dict[str | tuple[str, str], Lane[_Asked[What], Answer]] = {}
        # Statements whose last batch has raised a fence.
        self._rising: Bounded[str | tuple[str, str], None] = Bounded(_MOST_LANES)
        self._under_way = 0
        self._back = float("-inf")

    def expected(self, statement: Statement, role: str | None = None) -> bool:
        """Return whether fences have risen lately with such statements."""
        return (statement.text if role is None else (role, statement.text)) in self._rising

    def busy(self) -> bool:
        """Return whether a statement is under way, or was a moment ago: writers pause between two statements."""
        return self._under_way > 0 or perf_counter() - self._back < LULL

    def _ask(
        self,
        statement: Statement,
        what: What,
        arguments: list[object],
        resource: str | None,
        size: int,
        role: str | None = None,
    ) -> "asyncio.Future[Answer]":
        text = statement.text if role is None else (role, statement.text)
        lane = self._lanes.get(text)
        if lane is None:
            if len(self._lanes) >= _MOST_LANES or len(statement.text) > _LONG:
                self._lanes = {sql: lane for sql, lane in self._lanes.items() if not lane.idle()}
            lane = self._lanes[text] = self._lane(statement, role)
        return lane.ask(_asked(what, arguments, resource), key=resource, size=size)

    def _lane(self, statement: Statement, role: str | None) -> Lane[_Asked[What], Answer]:
        return Lane(
            partial(self._together, statement, role),
            partial(self._alone, statement, role),
            most=MOST,
            room=ROOM,
            order=lambda asked: asked.resource or "",
            lone_alone=self._lone_alone,
            overlap=OVERLAP,
        )

    @abstractmethod
    async def _together(
        self, statement: Statement, role: str | None, batch: Sequence[_Asked[What]]
    ) -> Sequence[Answer]: ...

    @abstractmethod
    async def _alone(self, statement: Statement, role: str | None, asked: _Asked[What]) -> Answer: ...

    def _note(self, text: str | tuple[str, str], claimed: Record, rows: Sequence[Record]) -> None:
        """Note whether the claims of a batch have raised fences. ``claimed``: the row that tells."""
        if claimed["risen"]:
            self._rising.remember(text, None)
        elif any(row["held"] for row in rows):  # stale tokens tell nothing about the next holder's
            self._rising.pop(text, None)

    def _begin(self, batch: Sequence[_Asked[What]]) -> float:
        self._under_way += 1
        self._observe(BatchBegun(self._writes, tuple(asked.origin for asked in batch)))
        return perf_counter()

    def _end(self, batch: Sequence[_Asked[What]], began: float) -> None:
        self._under_way -= 1
        self._back = perf_counter()
        waited = began - min(asked.since for asked in batch)
        self._observe(BatchSent(self._writes, len(batch), waited, self._back - began))


def _asked(what: What, arguments: list[object], resource: str | None) -> _Asked[What]:
    return _Asked(what, arguments, resource, perf_counter(), ORIGIN.get(), CALLER.get())


class Batches(_Lanes[None, Record]):
    """Sends statements that answer with exactly one row each: by itself with ``one``, or ``many`` in one round trip."""

    _lone_alone = True

    def __init__(self, one: SendOne, many: SendMany, *, writes: bool = True, observe: Observe = ignore) -> None:
        """Send by ``one`` and ``many``. ``writes`` tells ``observe`` whether the statements write."""
        super().__init__(observe)
        self._one, self._many, self._writes = one, many, writes

    def send(
        self, statement: Statement, arguments: list[object], resource: str | None, size: int
    ) -> "asyncio.Future[Record]":
        """Return the row to come of one statement. It fails with what sending the statement alone raises.

        ``size``: bytes of its values. Statements for one ``resource`` are sent in the order in which they come.
        """
        if size > LARGEST:
            return asyncio.ensure_future(self._alone(statement, None, _asked(None, arguments, resource)))
        return self._ask(statement, None, arguments, resource, size)

    async def _together(self, statement: Statement, _: str | None, batch: Sequence[_Asked[None]]) -> list[Record]:
        # The first statement of a transaction checks its table. The result holds until the transaction ends.
        checks = statement.names.index(CHECKS)
        for asked in batch[1:]:
            asked.arguments[checks] = False
        began = self._begin(batch)
        try:
            return await self._many(statement.text, [asked.arguments for asked in batch])
        finally:
            self._end(batch, began)

    async def _alone(self, statement: Statement, _: str | None, asked: _Asked[None]) -> Record:
        asked.arguments[statement.names.index(CHECKS)] = True
        CALLER.set(asked.caller)
        began = self._begin([asked])
        try:
            row = await self._one(statement.text, *asked.arguments)
        finally:
            self._end([asked], began)
        assert row is not None
        return row


class Raises(_Lanes[Claim, Record | None]):
    """Sends fenced statements whose fences may have to rise first, in one round trip and one transaction.

    The first statement of a batch claims for all others, and writes nothing. It waits for the writers that it
    overtakes. Each other statement has a snapshot of its own, looks at its fence, and writes.
    """

    def __init__(self, many: ClaimMany, observe: Observe) -> None:
        super().__init__(observe)
        self._many = many

    def send(
        self, statement: Statement, claim: Claim, arguments: list[object], size: int
    ) -> "asyncio.Future[Record | None] | None":
        """Return the row to come of one statement. The row is None if its batch has failed: nothing is written then.

        Return None for a statement that is too large. It fails with ``OutcomeUnknown`` only.
        """
        size += len(claim.resource) + len(claim.holder or "") + len(claim.caller)
        if size > LARGEST:
            return None
        return self._ask(statement, claim, arguments, claim.resource, size)

    async def _together(self, statement: Statement, _: str | None, batch: Sequence[_Asked[Claim]]) -> list[Record]:
        first: dict[str, object] = {CHECKS: True, CLAIMS: _claims(asked.what for asked in batch)}
        checks = statement.names.index(CHECKS)
        for asked in batch:
            asked.arguments[checks] = False

        def carried(rows: list[Record]) -> Claims:
            pairs = zip(batch, rows[1:], strict=True)
            return [(asked.what.resource, asked.what.token) for asked, row in pairs if row["held"]]

        began = self._begin(batch)
        try:
            sent = [[first.get(name) for name in statement.names], *(asked.arguments for asked in batch)]
            claimed, *rows = await self._many(statement.text, sent, carried)
        finally:
            self._end(batch, began)
        self._note(statement.text, claimed, rows)
        return rows

    async def _alone(self, statement: Statement, _: str | None, asked: _Asked[Claim]) -> None:
        """Leave a statement whose batch has failed to a transaction of its own."""


def _claims(claims: Iterable[Claim]) -> str:
    first: dict[str, Claim] = {}
    for claim in claims:
        first.setdefault(claim.resource, claim)
    return fences.write_claims(first.values())


class _Member(NamedTuple):
    """The settings of a request under a role. ``claim``: that of a write. ``raises``: its fence may have to rise."""

    settings: Mapping[str, str]
    claim: Claim | None
    raises: bool


class RoleBatches(_Lanes[_Member, Record | None]):
    """Sends statements of requests under roles of the database. Each batch is one statement, under one role.

    Only success counts. The row is None if the statement has failed, or cannot be sent so. Nothing is written then, and
    a transaction of its own finds out why. An answer that is too large fails, so that its sender can remember it.
    """

    def __init__(self, database: Database, observe: Observe, *, writes: bool) -> None:
        super().__init__(observe)
        self._database, self._writes = database, writes

    def send(
        self,
        statement: Statement,
        role: Role,
        arguments: list[object],
        size: int,
        claim: Claim | None = None,
        *,
        raises: bool = False,
    ) -> "asyncio.Future[Record | None]":
        """Return the row to come of one statement. ``size``: bytes of its values, but for those of the role.

        ``claim``: that of a write. Its fence has to carry the token, or ``raises`` and may have to rise.
        """
        member = _Member(role.settings, claim, raises)
        size += sum(map(len, role.settings.values()))
        resource = None
        if claim is not None:
            resource = claim.resource
            size += len(resource) + len(claim.holder or "") + len(claim.caller)
        if size > _LARGER * LARGEST:
            return asyncio.ensure_future(self._alone(statement, role.name, _asked(member, arguments, resource)))
        return self._ask(statement, member, arguments, resource, size, role.name)

    async def _together(
        self, statement: Statement, role: str | None, batch: Sequence[_Asked[_Member]]
    ) -> Sequence[Record | None]:
        assert role is not None
        try:
            rows = await self._sent(statement, role, batch)
        except SqlError as error:
            if len(batch) > 1 or is_of_answer(error):
                raise
            return [None]
        if any(asked.what.raises for asked in batch):
            self._note((role, statement.text), rows[0], rows)
        return rows

    async def _alone(self, statement: Statement, role: str | None, asked: _Asked[_Member]) -> Record | None:
        assert role is not None
        if asked.what.raises:
            return None
        CALLER.set(asked.caller)
        try:
            return (await self._sent(statement, role, [asked], alone=True))[0]
        except SqlError as error:
            if is_of_answer(error):
                raise
            return None
        except Unavailable:
            if self._writes:
                raise
            return None  # such as a policy that writes

    async def _sent(
        self, statement: Statement, role: str, batch: Sequence[_Asked[_Member]], *, alone: bool = False
    ) -> list[Record]:
        names = list(batch[0].what.settings)
        raised = [asked.what.claim for asked in batch if asked.what.raises and asked.what.claim is not None]

        def carried(rows: list[Record]) -> Claims:
            claims = [asked.what.claim for asked, row in zip(batch, rows, strict=True) if row["held"]]
            return [(claim.resource, claim.token) for claim in claims if claim is not None]

        members = [
            [
                *_fence(asked.what.claim),
                *(asked.what.settings[name] for name in names),
                *map(as_text, asked.arguments),
            ]
            for asked in batch
        ]
        checks = len(members[0]) - len(statement.names) + statement.names.index(CHECKS) + 1
        claims = _claims(raised) if raised else None
        sent = ActingBatch(statement.text, role, names, checks, members, claims)
        began = self._begin(batch)
        try:
            if self._writes:
                return await self._database.write_acting(sent, carried, alone=alone)
            return await self._database.read_acting(sent, alone=alone)
        finally:
            self._end(batch, began)


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
