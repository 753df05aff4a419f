"""Statements of several requests under a role of the database, in one trip and one transaction (decision 016)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import asyncpg

from gateway.db.pool import Session, load

_SQL = load("roles")
RIGHTS = _SQL["rights"]
"""A text that is another one once other policies may bind the role."""
WRITE, READ, _TOGETHER = (_SQL[name].format(rights=RIGHTS) for name in ("write", "read", "write_together"))
"""READ ends with an error if code in the database tries to write."""

_MOST = 256
"""Statements that a session keeps prepared."""

_PLANNED_FOR: WeakKeyDictionary[Session, dict[str, str | None]] = WeakKeyDictionary()


def planned_for(session: Session) -> dict[str, str | None]:
    """Return the rights for which the session has its plans, by role.

    The server puts policies into a plan, and keeps it though the role loses a membership or BYPASSRLS.
    """
    return _PLANNED_FOR.setdefault(session, {})


class ActingBatch(NamedTuple):
    """One statement for several requests, its members, under one role.

    ``settings``: the names of those that each member has. ``checks``: the place of the argument that asks the statement
    to check its table. ``members``: for each one the values of its settings, then the arguments of the statement, all
    as texts. A member of a write begins with its fence: resource, epoch, value and holder. ``claims``: those of writes
    whose fences may have to rise, as ``gateway.db.fences.write_claims`` returns them.
    """

    statement: str
    role: str
    settings: Sequence[str]
    checks: int
    members: Sequence[Sequence[str | None]]
    claims: str | None = None


class ActingTogether(NamedTuple):
    """One statement that does the writes of several requests, each under another resource, under one role.

    ``held``: the place of the argument that tells the statement which fences carry their tokens. ``fences``: resource,
    epoch, value and holder of all requests, a list of each. ``arguments``: those of the statement, as texts.
    """

    statement: str
    role: str
    held: int
    fences: Sequence[Sequence[object]]
    arguments: Sequence[str | None]
    claims: str | None = None

    @property
    def members(self) -> Sequence[object]:
        """Return the resources of the requests."""
        return self.fences[0]


class RoleStatements:
    """Runs such batches, on sessions that are pinned to the same settings."""

    def __init__(self, pinned: Mapping[str, str]) -> None:
        self._pins, self._pinned = list(pinned), list(pinned.values())
        self._prepared: WeakKeyDictionary[Session, dict[tuple[str, str], str]] = WeakKeyDictionary()

    async def fetch(self, session: Session, sql: str, batch: ActingBatch | ActingTogether) -> list[asyncpg.Record]:
        """Return a row for each member, by ``WRITE`` or ``READ``. An error has undone all."""
        statement = await self._name(session, batch.statement, batch.role)
        if isinstance(batch, ActingTogether):
            return await session.fetch(
                *(_TOGETHER, batch.role, statement, planned_for(session)[batch.role], self._pins, self._pinned),
                *(batch.held, *batch.fences, batch.arguments, batch.claims),
            )
        claims = (batch.claims,) if sql is WRITE else ()
        rights = planned_for(session)[batch.role]
        return await session.fetch(
            *(sql, batch.role, statement, rights, batch.settings, self._pins, self._pinned, batch.checks),
            *(batch.members, *claims),
        )

    async def _name(self, session: Session, statement: str, role: str) -> str:
        """Return the name of the statement on a session. The first call prepares it, in a trip of its own.

        Each role has its own: the server makes a new plan whenever another role takes a statement with policies.
        """
        names = self._prepared.setdefault(session, {})
        rights = planned_for(session)
        if role not in rights:
            rights[role] = await session.fetchval(RIGHTS, role)
        name = names.get((statement, role))
        if name is None:
            if len(names) >= _MOST:
                oldest = next(iter(names))
                await session.execute(f"DEALLOCATE {names[oldest]}")
                del names[oldest]
            # The freed name is taken again.
            name = next(one for number in range(_MOST) if (one := f"gw_{number}") not in names.values())
            await session.execute(f"PREPARE {name} AS {statement}")
            names[statement, role] = name
        return name
