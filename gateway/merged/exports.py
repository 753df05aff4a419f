"""Exports of all records as one file, by time: each line names its database, whose own chain it belongs to.

The days of the records come one after the other. Within a day the lines of all are merged, as many as are in memory.
So the statement of a day waits for the others at most as long as that day takes.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import date

from gateway.api.exports import TYPES, ExportWriter, attachment
from gateway.db.export import HEADER, ExportFormat
from gateway.errors import OutcomeUnknown, SqlError, TooManyReaders, Unavailable
from gateway.fencing.merging import Cursor, named_line
from gateway.http.streaming import BodyWriter, StreamedResponse
from gateway.merged.asking import Databases, Pairs


def export(databases: Databases, pairs: Pairs, cursor: Cursor, name: str, form: ExportFormat) -> StreamedResponse:
    """Return the export of all, after a cursor. When it is opened, it raises ``Unavailable`` if it would lack one."""
    return StreamedResponse(_opened(databases, pairs, cursor, form), TYPES[form], attachment(name, form))


@asynccontextmanager
async def _opened(databases: Databases, pairs: Pairs, cursor: Cursor, form: ExportFormat) -> AsyncIterator["_Merged"]:
    async with AsyncExitStack() as stack:

        async def opened(name: str) -> ExportWriter:
            try:
                response = await databases.open(name, [*pairs, ("after", str(cursor.get(name, 0)))])
                async with asyncio.timeout(databases.wait):
                    writer = await stack.enter_async_context(response.opening)
            except TooManyReaders:
                raise
            except (TimeoutError, Unavailable, OutcomeUnknown, SqlError) as error:
                others = "&".join(f"database={other}" for other in databases.names if other != name)
                raise Unavailable(
                    f"The database {name} does not answer, and an export without it would look complete.",
                    advice=f"Send the request again, or name the databases of the export: ?{others}",
                ) from error
            assert isinstance(writer, ExportWriter)
            return writer

        found = await asyncio.gather(*map(opened, databases.names), return_exceptions=True)
        if failures := [one for one in found if isinstance(one, BaseException)]:
            raise failures[0]
        writers = {name: one for name, one in zip(databases.names, found, strict=True) if isinstance(one, ExportWriter)}
        yield _Merged(writers, form)


class _Merged:
    """Writes the exports of several databases as one."""

    def __init__(self, writers: Mapping[str, ExportWriter], form: ExportFormat) -> None:
        self._writers, self._form = writers, form

    async def __call__(self, outlet: BodyWriter) -> None:
        """Write all days. Raises ``Unavailable`` if a database is lost, and the answer breaks off then."""
        if self._form is ExportFormat.CSV:
            await outlet.write(b"database," + HEADER)
        for day in sorted({day for one in self._writers.values() for day in one.export.days}):
            rows = [
                _Rows(name, writer, self._form, day)
                for name, writer in sorted(self._writers.items())
                if day in writer.export.days
            ]
            try:
                await _write_merged(rows, outlet)
            finally:
                for one in rows:
                    one.reading.cancel()
                await asyncio.gather(*(one.reading for one in rows), return_exceptions=True)


async def _write_merged(sources: Sequence["_Rows"], outlet: BodyWriter) -> None:
    """Write the rows of all by time, as far as the next row of each is in memory. At one time, names decide."""
    while True:
        left = [one for one in sources if await one.fill()]
        if not left:
            return
        rows: list[bytes] = []
        while all(one.rows for one in left):
            first = min(left, key=lambda one: one.rows[0][0])
            rows.append(first.rows.popleft()[1])
        await outlet.write(b"".join(rows))


class _Rows:
    """The rows of a day of one database, some at a time, each with its time and the name of the database."""

    def __init__(self, name: str, writer: ExportWriter, form: ExportFormat, day: date) -> None:
        self._name, self._writer, self._form, self._day = name, writer, form, day
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._rest, self._ended = b"", False
        self.rows: deque[tuple[bytes, bytes]] = deque()
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            await self._writer.export.write_day(self._form, self._day, self._pieces.put)
        except Exception:
            await self._pieces.put(None)
            raise
        await self._pieces.put(None)

    async def fill(self) -> bool:
        """Return whether there is a next row, which is in ``rows`` then. Raises what reading raises."""
        while not self.rows and not self._ended:
            piece = await self._pieces.get()
            if piece is None:
                self._ended = True
                await self.reading
            else:
                self._take(piece)
        return bool(self.rows)

    def _take(self, piece: bytes) -> None:
        whole, self._rest = split_rows(self._rest + piece, self._form)
        for row in whole:
            if self._form is ExportFormat.CSV:
                self.rows.append((row.split(b",", 3)[2], b"%b,%b" % (self._name.encode(), row)))
            else:
                time = row.partition(b'"at":"')[2].partition(b'"')[0]
                self.rows.append((time, named_line(self._name, row)))


def split_rows(text: bytes, form: ExportFormat) -> tuple[list[bytes], bytes]:
    """Return the whole rows in a part of an export, and the rest. A row of CSV may have line feeds in quotes."""
    *lines, rest = text.split(b"\n")
    if form is ExportFormat.NDJSON:
        return [line + b"\n" for line in lines], rest
    rows: list[bytes] = []
    begun: list[bytes] = []
    quotes = 0
    for line in lines:
        begun.append(line + b"\n")
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            rows.append(b"".join(begun))
            begun, quotes = [], 0
    return rows, b"".join(begun) + rest
