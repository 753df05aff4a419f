"""A journal's objects for tests, and a store in memory that can be broken."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from gateway.fencing.token import Token
from gateway.journal.contents import Entry, Flaw, Segment, Snapshot
from gateway.journal.protocol import Marker, Run

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OURS, THEIRS = UUID(int=1), UUID(int=2)
WRITER = UUID(int=7)
RUN = Run("7000000000000000001", 1, NOW, "16384/16390")
MARKER = Marker(OURS, 7, 6, RUN, NOW)


def entry(resource: str, value: int, *, at: datetime = NOW, objects: datetime | None = None, since: int = 0) -> Entry:
    return Entry(resource, Token(0, value), at, objects, since)


def segment(sequence: int, *entries: Entry, follows: int = 0, writer: UUID = WRITER, at: datetime = NOW) -> Segment:
    return Segment(OURS, writer, sequence, follows, 7, 3, at, entries)


def snapshot(number: int, **fields: object) -> Snapshot:
    given = {"complete_from": 0, "position": 0, "at": NOW, "fences": f"fences/{number:012}-x", **fields}
    return Snapshot(OURS, number, **given)  # type: ignore[arg-type]  # the fields of each test


class Broken(Exception):
    """The process ends here."""


@dataclass
class MemoryStore:
    """The objects of a journal in memory. ``left``: how many requests are answered before the process ends."""

    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    left: int = 1_000_000
    versions: int = 0

    async def add(self, name: str, content: bytes) -> bool:
        self._answer()
        if name in self.objects:
            return False
        self._write(name, content)
        return True

    async def replace(self, name: str, content: bytes, version: str) -> bool:
        self._answer()
        if self.objects.get(name, (b"", ""))[1] != version:
            return False
        self._write(name, content)
        return True

    async def read(self, name: str) -> tuple[bytes, str] | None:
        self._answer()
        return self.objects.get(name)

    async def names(self, prefix: str) -> list[str]:
        self._answer()
        return sorted(name for name in self.objects if name.startswith(prefix))

    async def remove(self, name: str) -> None:
        self._answer()
        self.objects.pop(name, None)

    async def find_unfit(self) -> Flaw | None:
        return None

    def damage(self, name: str, *, cut: bool = False) -> None:
        """Change the last byte of an object, or remove it."""
        content, version = self.objects[name]
        self.objects[name] = (content[:-1] if cut else content[:-1] + b"?", version)

    def _write(self, name: str, content: bytes) -> None:
        self.versions += 1
        self.objects[name] = (content, str(self.versions))

    def _answer(self) -> None:
        if self.left == 0:
            raise Broken
        self.left -= 1


def days(number: float) -> timedelta:
    return timedelta(days=number)
