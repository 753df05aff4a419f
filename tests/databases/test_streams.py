"""A merged stream tells which databases are missing before it hands on an entry of the others."""

from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

from gateway.api.record_stream import EntryWriter
from gateway.errors import Unavailable
from gateway.merged.asking import Databases
from gateway.merged.streams import MergedStream, Source


class View(BaseModel):
    """An entry as clients see it."""

    resource: str = "job/1"


@dataclass
class Entry:
    position: int = 7
    kind: str = "barrier"


class Subscription:
    """It has one entry, and ends."""

    def __init__(self) -> None:
        self.position, self._left = 6, [[Entry()]]

    async def next(self, *, waits: bool) -> list[Entry]:
        return self._left.pop() if self._left else []


class Down(Source):
    """The stream of a database that is down."""

    async def open(self) -> None:
        raise Unavailable("It is down.")


class Written:
    """Keeps all that a client has received."""

    def __init__(self) -> None:
        self.text = ""

    async def write(self, data: bytes) -> None:
        self.text += data.decode()


async def test_a_missing_database_is_told_of_before_an_entry_that_waits_already() -> None:
    databases = cast(Databases, None)
    up, down = Source(databases, "north", [], 6), Down(databases, "south", [], None)
    up.entries = EntryWriter(cast(Any, Subscription()), 15.0, lambda _: View(), None)
    written = Written()
    await MergedStream([up, down], lambda: False)(cast(Any, written))
    lines = [line for line in written.text.splitlines() if line.startswith("event: ")]
    assert lines == ["event: database-missing", "event: barrier"]
