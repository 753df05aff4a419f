"""Authorisation: what grants let a caller do with tables and functions, before its token is shown to any fence.

A table or function is checked by its name, before the gateway looks for it. So a denial does not tell whether it
exists. The resources of a write are checked once they are known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gateway.auth.grants import NOTHING, Action, Authorisation, Missing, Place, PlaceKind, Rights
from gateway.errors import GatewayError
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import MissingGrant
from gateway.fencing.resource import escape
from gateway.tables.execute.planning import ParsedWrite, PlannedWrite, Sender


def concerns_table(rights: Rights, name: str) -> bool:
    """Return whether anything is granted at a table, so that its existence is no secret.

    A grant to read resources shows no rows of tables, but their fences.
    """
    return rights.table(Action.READ, name).placed or rights.table(Action.WRITE, name) != NOTHING


class TableAuthorisation(Authorisation):
    """The checks of requests to tables and functions."""

    async def reads(self, sender: Sender, names: Iterable[str]) -> None:
        for name in names:
            place = Place(PlaceKind.TABLE, name)
            await self._may(sender, Action.READ, place, granted=sender.rights.may_read((name,)))

    async def writes(self, sender: Sender, name: str) -> None:
        """Check that the caller writes to a table at all. ``claims`` checks its resources."""
        place = Place(PlaceKind.TABLE, name)
        await self._may(sender, Action.WRITE, place, granted=sender.rights.may_write_to(name))

    async def writes_anything(self, sender: Sender) -> None:
        """Check that the caller writes to any table at all, before the body says to which."""
        if not sender.rights.have(Action.WRITE):
            raise await self._denied(sender, Action.WRITE, Place(PlaceKind.TABLE, "*"))

    async def calls(self, sender: Sender, name: str) -> None:
        limits = sender.rights.function(name)
        granted = bool(limits.placed or limits.patterns)
        await self._may(sender, Action.CALL, Place(PlaceKind.FUNCTION, name), granted=granted)

    async def only_reads(self, sender: Sender, name: str) -> None:
        """Check a call that claims nothing."""
        if not sender.rights.function(name).placed:
            raise await self._denied(sender, Action.CALL, Place(PlaceKind.FUNCTION, name))

    async def claims(self, write: PlannedWrite) -> PlannedWrite:
        """Check the resources of a planned write, and whether its answer may show rows.

        Return the write, with the grants that it lacks if its rule only observes.
        """
        resources = write.claimed
        claimable = await self.claimed(write, resources)
        if write.shows_rows:
            await self._shows(write.sender, write.cached.name, resources)
        ungranted = set(resources or ()).difference(claimable)
        if not ungranted:
            return write
        action, place = _written(write)
        return replace(write, ungranted={one: MissingGrant(action.value, place.under(one)) for one in ungranted})

    async def claimed(self, write: PlannedWrite, resources: Sequence[str] | None) -> Sequence[str]:
        """Check resources of a write or call, perhaps those that it claimed when its answer was kept.

        Return those that it may claim: all of them, unless its rule observes.
        """
        # The names of rows are its own by the rules that were checked at start. A caller can name any others.
        self.owns(resources or ())
        mode = write.cached.rule.mode
        claimable = await self._covered(write.sender, *_written(write), resources, mode)
        if mode is Enforcement.ENFORCE:
            # A write that touches no row, and a call, compare the name with nothing afterwards.
            await self.check_spelling(write.named)
        return claimable

    async def replays(self, write: ParsedWrite, resources: Sequence[str]) -> Sequence[str]:
        """Check the resources of a write to a table that has been answered before, perhaps with rows.

        Return the resources that it may claim.
        """
        place = Place(PlaceKind.TABLE, write.target.qualified)
        claimable = await self._covered(write.sender, Action.WRITE, place, resources, write.rule.mode)
        if write.request.wants_rows:
            await self._shows(write.sender, write.target.qualified, resources)
        return claimable

    async def _shows(self, sender: Sender, name: str, resources: Sequence[str] | None) -> None:
        limits = sender.rights.table(Action.READ, name)
        if not (limits.placed or limits.cover_all(resources)):
            raise await self._denied(sender, Action.READ, Place(PlaceKind.TABLE, name))

    async def _may(self, sender: Sender, action: Action, place: Place, *, granted: bool) -> None:
        """Deny a caller without a grant, or without a role of the database if callers have such roles."""
        if not granted:
            raise await self._denied(sender, action, place)
        if not sender.has_role:
            denied = await self._refused(sender, place, Missing(action, str(place), _filed(place)))
            denied.message = f"No rule of postgres.roles names a role of the database for {sender.caller}."
            denied.advice = "Ask the operator of the gateway for a rule or a role claim (docs/database-roles.md)."
            raise denied

    async def _covered(
        self, sender: Sender, action: Action, place: Place, resources: Sequence[str] | None, mode: Enforcement
    ) -> Sequence[str]:
        """Return the resources that grants cover here, as ``covered`` does."""
        found = self.covered(place.limits(sender.rights, action), resources, mode, sender.caller)
        if found is None:
            raise await self._denied(sender, action, place, resources)
        return found

    async def _denied(
        self, sender: Sender, action: Action, place: Place, resources: Sequence[str] | None = None
    ) -> GatewayError:
        return await self._refused(sender, place, Missing.at(sender.rights, action, place, resources, _filed(place)))

    async def _refused(self, sender: Sender, place: Place, missing: Missing) -> GatewayError:
        attempt = sender.attempt(None, None, b"", place.name)
        attempt = replace(attempt, payload_size=None, payload_sha256=None, captured=None)
        return await self._refuse(missing, attempt)


def _filed(place: Place) -> str:
    """Return the resource under which the record files a denial of a whole table or function."""
    return ".".join(map(escape, place.name.split(".", 1)))


def _written(write: PlannedWrite) -> tuple[Action, Place]:
    if write.call is not None:
        return Action.CALL, Place(PlaceKind.FUNCTION, write.cached.name)
    return Action.WRITE, Place(PlaceKind.TABLE, write.cached.name)
