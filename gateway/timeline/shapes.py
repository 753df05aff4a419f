"""The shapes of a picture of the timeline. Data; units are those of the SVG's view box."""

from dataclasses import dataclass
from uuid import UUID

from gateway.fencing.record import Kind
from gateway.timeline.axis import Tick
from gateway.timeline.history import Span
from gateway.timeline.lanes import Lane
from gateway.timeline.sentences import Clock, Sentence


@dataclass(frozen=True, slots=True)
class Mark:
    """Refused writes. One links to its entry ``id``, several to their ``span``. ``noted``: all passed."""

    x: float
    width: float
    text: str | None
    label: str
    noted: bool
    id: UUID
    span: Span | None


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line along a lane. ``begins`` and ``ends`` are False if it continues beyond the picture."""

    x1: float
    x2: float
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Band:
    """A lease. ``end`` tells in one word how it ended; None if it runs, or ends outside the picture."""

    x1: float
    x2: float
    label: str
    end: str | None

    @property
    def wide(self) -> bool:
        """Return whether a few words fit below it."""
        return self.x2 - self.x1 > 90


@dataclass(frozen=True, slots=True)
class Row:
    """A lane around ``y``: its texts, and the lines ``held``, and ``late`` for the time after it was overtaken."""

    lane: Lane
    y: float
    height: float
    name: str
    token: str
    note: str | None
    label: str
    held: Stroke | None
    late: Stroke | None
    bands: tuple[Band, ...]
    marks: tuple[Mark, ...]
    leases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arrow:
    """A takeover, down from lane to lane. ``from_lane`` is False if the overtaken party is not drawn."""

    x: float
    y1: float
    y2: float
    time: str
    flipped: bool
    label: str
    from_lane: bool
    inferred: bool


@dataclass(frozen=True, slots=True)
class Upright:
    """A moment that concerns every lane: a new epoch."""

    x: float
    text: str
    flipped: bool


@dataclass(frozen=True, slots=True)
class Flag:
    """A warning at the foot of the picture, with a link to its entry."""

    x: float
    label: str
    kind: Kind
    id: UUID


@dataclass(frozen=True, slots=True)
class Bar:
    """Activity of a part of the time, as heights, with a link to its ``span``."""

    x: float
    width: float
    refused: float
    takeovers: float
    label: str
    span: Span


@dataclass(frozen=True, slots=True)
class Present:
    """The shapes that the legend has to explain, beside those of every picture."""

    several: bool
    noted: bool
    leases: bool
    bypass: bool
    guarded: bool
    settled: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole picture with its texts. ``strip`` is empty if every party is drawn."""

    span: Span
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    ticks: tuple[Tick, ...]
    rows: tuple[Row, ...]
    arrows: tuple[Arrow, ...]
    uprights: tuple[Upright, ...]
    flags: tuple[Flag, ...]
    flags_y: float | None
    strip: tuple[Bar, ...]
    headline: tuple[Sentence, ...]
    summary: str
    rest: str | None
    has: Present
    clock: Clock
    counted: int = 0

    @property
    def troubled(self) -> bool:
        """Return whether any write was refused, or would have been."""
        return self.counted > 0 or any(row.lane.tally.refused for row in self.rows)
