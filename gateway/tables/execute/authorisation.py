"""Authorisation: what grants let a caller do with tables and functions, before its token is shown to any fence.

A table or function is checked by its name, before the gateway looks for it. So a denial does not tell whether it
exists. The resources of a write are checked once they are known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gateway.auth.grants import NOTHING, Action, Limits, Missing, Rights
from gateway.db.spelling import Spellings
from gateway.errors import GatewayError
from gateway.fencing.decision import Enforcement
from gateway.fencing.ownership import Owned
from gateway.fencing.resource import escape
from gateway.record.denials import Denials
from gateway.tables.execute.planning import PlannedWrite, Sender


def concerns_table(rights: Rights, name: str) -> bool:
    """Return whether anything is granted at a table, so that its existence is no secret.

    A grant to read resources shows no rows of tables, but their fences.
    """
    return rights.table(Action.READ, name).placed or rights.table(Action.WRITE, name) != NOTHING


def _may_see(limits: Limits, resources: Sequence[str] | None) -> bool:
    return limits.placed or limits.cover_all(resources)


class Authorisation:
    """Each method raises ``Denied``, once the denial is on record, or ``Unavailable`` if it cannot be recorded.

    ``owned``: the resources whose fences are in this database, None for all. A write that names one of another database
    raises ``CrossesDatabases``. A name in the request that may stand for another one raises ``ResourceMalformed``.
    """

    def __init__(self, denials: Denials, owned: Owned | None = None, spellings: Spellings | None = None) -> None:
        self._denials, self._owned, self._spellings = denials, owned, spellings

    async def reads(self, sender: Sender, names: Iterable[str]) -> None:
        """Check a read of the rows of these tables."""
        for name in names:
            if not sender.rights.may_read((name,)):
                raise await self._denied(sender, Action.READ, "table", name)
            await self._has_role(sender, Action.READ, "table", name)

    async def writes(self, sender: Sender, name: str) -> None:
        """Check that the caller writes to a table at all. ``claims`` checks its resources."""
        if not sender.rights.may_write_to(name):
            raise await self._denied(sender, Action.WRITE, "table", name)
        await self._has_role(sender, Action.WRITE, "table", name)

    async def writes_anything(self, sender: Sender) -> None:
        """Check that the caller writes to any table at all, before the body says to which."""
        if not sender.rights.have(Action.WRITE):
            raise await self._denied(sender, Action.WRITE, "table", "*")

    async def calls(self, sender: Sender, name: str) -> None:
        """Check that the caller calls a function at all."""
        limits = sender.rights.function(name)
        if not (limits.placed or limits.patterns):
            raise await self._denied(sender, Action.CALL, "function", name)
        await self._has_role(sender, Action.CALL, "function", name)

    async def only_reads(self, sender: Sender, name: str) -> None:
        """Check a call that claims nothing."""
        if not sender.rights.function(name).placed:
            raise await self._denied(sender, Action.CALL, "function", name)

    async def claims(self, write: PlannedWrite) -> None:
        """Check the resources of a planned write, and whether its answer may show rows."""
        sender, name, resources = write.sender, write.cached.name, write.claimed
        await self.claimed(write, resources)
        if write.shows_rows:
            await self._shows(sender, name, resources)

    async def claimed(self, write: PlannedWrite, resources: Sequence[str] | None) -> None:
        """Check resources of a write or call, perhaps those that it claimed when its answer was kept."""
        if self._owned is not None:
            # The names of rows are its own by the rules that were checked at start. A caller can name any others.
            self._owned.check(resources or ())
        if write.call is not None:
            await self._covers(write.sender, Action.CALL, "function", write.cached.name, resources)
        else:
            await self._covers(write.sender, Action.WRITE, "table", write.cached.name, resources)
        if self._spellings is not None and write.cached.rule.mode is Enforcement.ENFORCE:
            # A write that touches no row, and a call, compare the name with nothing afterwards.
            await self._spellings.check(write.named)

    async def replays(self, sender: Sender, name: str, resources: Sequence[str], *, shows_rows: bool) -> None:
        """Check the resources of a write to a table that has been answered before, perhaps with rows."""
        await self._covers(sender, Action.WRITE, "table", name, resources)
        if shows_rows:
            await self._shows(sender, name, resources)

    async def _shows(self, sender: Sender, name: str, resources: Sequence[str] | None) -> None:
        if not _may_see(sender.rights.table(Action.READ, name), resources):
            raise await self._denied(sender, Action.READ, "table", name)

    async def _has_role(self, sender: Sender, action: Action, kind: str, name: str) -> None:
        """Deny a caller without a role of the database, if callers have such roles."""
        if not sender.has_role:
            denied = await self._denied(sender, action, kind, name)
            denied.message = f"No rule of postgres.roles names a role of the database for {sender.caller}."
            denied.advice = "Ask the operator of the gateway for a rule or a role claim (docs/database-roles.md)."
            raise denied

    async def _covers(
        self, sender: Sender, action: Action, kind: str, name: str, resources: Sequence[str] | None
    ) -> None:
        limits = sender.rights.function(name) if action is Action.CALL else sender.rights.table(action, name)
        if limits.cover_all(resources):
            return
        uncovered = next((one for one in resources or () if not limits.cover(one)), None)
        raise await self._denied(sender, action, kind, name, uncovered)

    async def _denied(
        self, sender: Sender, action: Action, kind: str, name: str, resource: str | None = None
    ) -> GatewayError:
        on = f"{kind} {name}" if resource is None else f"{kind} {name} under {resource}"
        attempt = replace(sender.attempt(None, None, b"", name), payload_size=None, payload_sha256=None, captured=None)
        filed = ".".join(map(escape, name.split(".", 1))) if resource is None else resource
        return await self._denials.refuse(Missing(action, on, filed), attempt)
