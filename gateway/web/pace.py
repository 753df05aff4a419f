"""How fast entries are shown to a person: one by one while they are few, summed up when they come in a storm. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.fencing.record import Entry

A_SECOND = 20
"""So many entries are shown one by one in each second."""
_NAMED = 3


@dataclass(slots=True)
class Storm:
    """Entries that were not shown one by one. ``busiest`` are the resources with the most of them."""

    count: int = 0
    first: datetime | None = None
    last: datetime | None = None
    resources: Counter[str] = field(default_factory=Counter)

    def add(self, entries: Sequence[Entry]) -> None:
        self.count += len(entries)
        self.first = self.first or entries[0].at
        self.last = entries[-1].at
        self.resources.update(entry.resource for entry in entries if entry.resource is not None)

    @property
    def busiest(self) -> list[tuple[str, int]]:
        return self.resources.most_common(_NAMED)


class Pace:
    """Seconds are those of a monotonic clock, which is passed in."""

    def __init__(self, now: float) -> None:
        self._begun = now
        self._shown = 0
        self._storm = Storm()

    def take(self, entries: Sequence[Entry], now: float) -> Sequence[Entry]:
        """Those of some new entries that are shown at once; the others are for the sum at the end of the second."""
        if not entries:
            return ()
        if now - self._begun >= 1.0 and not self._storm.count:
            self._begun, self._shown = now, 0
        shown = entries[: max(0, A_SECOND - self._shown)] if not self._storm.count else ()
        self._shown += len(shown)
        if len(shown) < len(entries):
            self._storm.add(entries[len(shown) :])
        return shown

    def wait(self, now: float) -> float | None:
        """Seconds until a sum is due; None where there is none."""
        return max(0.0, self._begun + 1.0 - now) if self._storm.count else None

    def due(self, now: float) -> Storm | None:
        """The sum, if it is due. A new second begins with it."""
        if not self._storm.count or now - self._begun < 1.0:
            return None
        storm, self._storm = self._storm, Storm()
        self._begun, self._shown = now, 0
        return storm
