"""Which entries of the record somebody asks for. The same rules in SQL are in ``gateway.store.conditions``."""

from dataclasses import dataclass
from datetime import datetime

from gateway.fencing.record import Entry, Kind
from gateway.fencing.token import Token


@dataclass(frozen=True, slots=True)
class Filters:
    """All that are given must hold; None, or no kinds at all, means any.

    ``prefix`` is how the name of the resource begins, character by character. ``since`` and ``until`` are aware, and
    about when it happened: from ``since`` on, before ``until``. ``shown_to`` is the caller who asks where that one is
    shown its own entries only (``gateway.auth.viewing``): it holds beside ``caller``.
    """

    kinds: tuple[Kind, ...] = ()
    resource: str | None = None
    prefix: str | None = None
    holder: str | None = None
    caller: str | None = None
    reason: str | None = None
    plane: str | None = None
    rule: str | None = None
    enforced: bool | None = None
    token: Token | None = None
    since: datetime | None = None
    until: datetime | None = None
    shown_to: str | None = None

    def admit(self, entry: Entry) -> bool:
        """Whether the entry is one of those that are asked for."""
        asked = (
            (self.resource, entry.resource),
            (self.holder, entry.holder),
            (self.caller, entry.caller),
            (self.reason, entry.reason),
            (self.plane, entry.plane),
            (self.rule, entry.rule),
            (self.enforced, entry.enforced),
            (self.token, entry.token),
            (self.shown_to, entry.caller),
        )
        return (
            (not self.kinds or entry.kind in self.kinds)
            and all(wanted is None or wanted == found for wanted, found in asked)
            and (self.prefix is None or (entry.resource is not None and entry.resource.startswith(self.prefix)))
            and (self.since is None or self.since <= entry.at)
            and (self.until is None or entry.at < self.until)
        )
