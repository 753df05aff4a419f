"""The ``Prefer`` header: how the caller wants a request carried out and answered."""

import re
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Literal

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import kept_if_short


@dataclass(frozen=True, slots=True)
class Preferences:
    """The ``Prefer`` header, reduced to what is known. ``invalid`` are its other members, as they were sent.

    ``timezone`` is as sent: only the database knows which zones there are. ``tx`` has no effect: writes are committed.
    """

    returns: Literal["minimal", "headers-only", "representation"] | None = None
    resolution: Literal["merge-duplicates", "ignore-duplicates"] | None = None
    missing: Literal["default", "null"] | None = None
    count: Literal["exact", "planned", "estimated"] | None = None
    tx: Literal["commit", "rollback"] | None = None
    strict: bool | None = None
    max_affected: int | None = None
    timezone: str | None = None
    invalid: tuple[str, ...] = ()

    @property
    def need_a_transaction(self) -> bool:
        """Whether a write must have a transaction of its own: to be undone by its result, or to have a setting."""
        return self.max_affected is not None or self.timezone is not None


_CHOICES: dict[str, tuple[str, frozenset[str]]] = {
    "return": ("returns", frozenset(("minimal", "headers-only", "representation"))),
    "resolution": ("resolution", frozenset(("merge-duplicates", "ignore-duplicates"))),
    "missing": ("missing", frozenset(("default", "null"))),
    "count": ("count", frozenset(("exact", "planned", "estimated"))),
    "tx": ("tx", frozenset(("commit", "rollback"))),
    "handling": ("strict", frozenset(("strict", "lenient"))),
}
# Characters of time zone names; any other text is an unknown preference.
_ZONE = re.compile(r"[A-Za-z0-9_+:/-]{1,64}")


@kept_if_short
def parse_preferences(header: str) -> Preferences:
    """Read ``Prefer``; the first of a kind wins. Nothing is refused yet: that is up to ``honoured``."""
    chosen: dict[str, object] = {}
    unknown: list[str] = []
    for item in filter(None, (part.strip() for part in header.split(","))):
        kind, _, value = (part.strip() for part in item.partition("="))
        name, values = _CHOICES.get(kind, ("", frozenset()))
        if value in values:
            chosen.setdefault(name, value == "strict" if name == "strict" else value)
        elif kind == "max-affected" and re.fullmatch(r"[0-9]{1,9}", value):
            chosen.setdefault("max_affected", int(value))
        elif kind == "timezone" and _ZONE.fullmatch(value):
            chosen.setdefault("timezone", value)
        else:
            unknown.append(item)
    if not chosen.get("strict"):
        chosen.pop("max_affected", None)
    return Preferences(**chosen, invalid=tuple(unknown))  # type: ignore[arg-type]  # the table above pairs every name with its values


def honoured(preferences: Preferences, *, zones: Container[str]) -> Preferences:
    """Return the preferences that can be honoured. ``zones`` are the existing time zones.

    Raise PGRST122 if handling is strict and a preference cannot be honoured: a caller that insists on a rollback must
    not get a commit. A caller that insists on a commit gets it in any case.
    """
    exists = preferences.timezone is None or preferences.timezone in zones
    if not preferences.invalid and preferences.tx is None and exists:
        return preferences
    if preferences.strict:
        invalid = [*preferences.invalid]
        invalid += ["tx=rollback"] if preferences.tx == "rollback" else []
        invalid += [] if exists else [f"timezone={preferences.timezone}"]
        if invalid:
            raise DialectError(
                "PGRST122", 400, "Invalid preferences given with handling=strict",
                details=f"Invalid preferences: {', '.join(invalid)[:200]}",
            )  # fmt: skip
    return replace(preferences, tx=None, timezone=preferences.timezone if exists else None)
