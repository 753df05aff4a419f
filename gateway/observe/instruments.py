"""Counters, gauges and histograms as plain objects: counted at their events, read by a scrape. Pure.

prometheus_client has its own, which look up labels and take a lock each time. A write is counted several times, and all
of this runs in one event loop. So a count is an entry of a dict here. The output is the same.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Labels: TypeAlias = tuple[str, ...]
"""Values, in the order of the names."""

SECONDS = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Upper bounds, from a statement that found everything in memory to a client that has given up."""

OTHER = "other"
"""The value of a label in place of all that have no place of their own."""


@dataclass(slots=True)
class Counter:
    """A value that only grows. ``known`` labels exist from the beginning, so that their first event is a change."""

    name: str
    text: str
    labels: Labels = ()
    known: Iterable[Labels] = ()
    values: dict[Labels, float] = field(init=False)

    def __post_init__(self) -> None:
        self.values = dict.fromkeys(self.known if self.labels else ((),), 0)

    def add(self, *labels: str, by: float = 1) -> None:
        self.values[labels] = self.values.get(labels, 0) + by


@dataclass(slots=True)
class Gauge:
    """A value that goes up and down. Empty while it is unknown."""

    name: str
    text: str
    labels: Labels = ()
    values: Mapping[Labels, float] = field(default_factory=dict)

    def set(self, value: float | None) -> None:
        """Return the one value of a gauge without labels."""
        self.values = {} if value is None else {(): value}


@dataclass(slots=True)
class Distribution:
    """The counts of one histogram: of each bucket by itself, the last one for what is above all bounds."""

    buckets: list[int]
    total: float = 0.0


@dataclass(slots=True)
class Histogram:
    """How many of what size: seconds, unless ``bounds`` are given."""

    name: str
    text: str
    labels: Labels = ()
    known: Iterable[Labels] = ()
    bounds: tuple[float, ...] = SECONDS
    values: dict[Labels, Distribution] = field(init=False)

    def __post_init__(self) -> None:
        self.values = {labels: self._empty() for labels in (self.known if self.labels else ((),))}

    def at(self, labels: Labels) -> Distribution:
        """Return the counts for these labels, for callers of ``add`` that have many to add."""
        counts = self.values.get(labels)
        if counts is None:
            counts = self.values[labels] = self._empty()
        return counts

    def add(self, counts: Distribution, value: float) -> None:
        counts.buckets[bisect_left(self.bounds, value)] += 1
        counts.total += value

    def observe(self, labels: Labels, value: float) -> None:
        self.add(self.at(labels), value)

    def _empty(self) -> Distribution:
        return Distribution([0] * (len(self.bounds) + 1))


class LabelNames:
    """The values that a label may have: those that are known, and the first others that come, at most ``most``."""

    def __init__(self, known: Iterable[str] = (), most: int = 0) -> None:
        self._known = {name: name for name in known}
        self._room = most

    def of(self, name: str | None) -> str:
        """Return the name itself, or ``OTHER``."""
        if name is None:
            return OTHER
        found = self._known.get(name)
        if found is None:
            if self._room <= 0:
                return OTHER
            self._room -= 1
            found = self._known[name] = name
        return found
