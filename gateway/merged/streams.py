"""The records of all databases as one stream of server-sent events, which a client resumes at its last event.

The id of an event has a position for each database. A database that goes away leaves the stream, which says so, and
comes back at its position.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from gateway.api.record_stream import HEADERS, RETRY, TYPE, EntryWriter, event, progress
from gateway.errors import GatewayError, OutcomeUnknown, SqlError, Unavailable
from gateway.fencing.merging import Cursor, write_cursor
from gateway.http.streaming import BodyWriter, StreamedResponse
from gateway.merged.asking import Databases, Pairs, Refused

MISSING, BACK = "database-missing", "database-back"
"""The events that are no entries: a database has left the stream, or is in it again."""
_LONGEST_PAUSE = 15.0


class Source:
    """The stream of one database. ``position``: the client has all of its entries up to here; None: not yet known."""

    def __init__(self, databases: Databases, name: str, pairs: Pairs, position: int | None) -> None:
        self.name, self.position = name, position
        self._databases, self._pairs = databases, pairs
        self._stack = AsyncExitStack()
        self.entries: EntryWriter | None = None

    async def open(self) -> None:
        """Open it after its position, or at the end of the record.

        Raises ``Unavailable``, ``Refused``, or the error with which the stream cannot begin.
        """
        after = [] if self.position is None else [("after", str(self.position))]
        response = await self._databases.open(self.name, [*self._pairs, *after])
        try:
            async with asyncio.timeout(self._databases.wait):
                entries = await self._stack.enter_async_context(response.opening)
        except (TimeoutError, OutcomeUnknown, SqlError) as error:
            raise Unavailable(f"The database {self.name} does not answer.") from error
        assert isinstance(entries, EntryWriter)
        self.entries = entries
        self.position = entries.subscription.position

    async def close(self) -> None:
        self.entries = None
        await self._stack.aclose()


class MergedStream:
    """Writes the entries of all sources, those of each in its order."""

    def __init__(self, sources: Sequence[Source], ending: Callable[[], bool]) -> None:
        self._sources, self._ending = sources, ending
        self._writing = asyncio.Lock()

    @property
    def cursor(self) -> str:
        positions = {one.name: one.position for one in self._sources}
        return write_cursor({name: position for name, position in positions.items() if position is not None})

    async def __call__(self, outlet: BodyWriter) -> None:
        """Write until one source ends: its caller is no longer proven, or this gateway is retired."""
        await outlet.write(RETRY + progress(self.cursor))
        # Before any entry: a client that has one knows which databases it has none of.
        for source in self._sources:
            if source.entries is None:
                await self._tell(outlet, MISSING, source)
        following = [asyncio.ensure_future(self._follow(one, outlet)) for one in self._sources]
        try:
            done, _ = await asyncio.wait(following, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _follow(self, source: Source, outlet: BodyWriter) -> None:
        pause, told = 1.0, source.entries is None
        while not self._ending():
            try:
                if source.entries is None:
                    await source.open()
                    await self._tell(outlet, BACK, source)
                assert source.entries is not None
                pause, told = 1.0, False
                await self._hand_on(source, source.entries, outlet)
                return
            except (Unavailable, OutcomeUnknown, SqlError):
                await source.close()
            except (Refused, GatewayError):
                return  # the client gets the error when it connects again
            if not told:
                await self._tell(outlet, MISSING, source)
            told = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _hand_on(self, source: Source, entries: EntryWriter, outlet: BodyWriter) -> None:
        subscription = entries.subscription
        while entries.is_proven:
            try:
                async with asyncio.timeout(entries.heartbeat):
                    found = await subscription.next(waits=False)
            except TimeoutError:
                async with self._writing:
                    source.position = subscription.position
                    await outlet.write(progress(self.cursor))
                continue
            if not found or not entries.is_proven:
                return
            async with self._writing:
                # The id is what the client has once it has read the event: so far no other source writes.
                pieces = []
                for one in found:
                    source.position = one.position
                    data = entries.view(one).model_dump_json()
                    pieces.append(event(self.cursor, one.kind, f'{{"database":"{source.name}",{data[1:]}'))
                await outlet.write(b"".join(pieces))

    async def _tell(self, outlet: BodyWriter, kind: str, source: Source) -> None:
        async with self._writing:
            await outlet.write(event(self.cursor, kind, f'{{"database":"{source.name}"}}'))


def stream(databases: Databases, pairs: Pairs, cursor: Cursor) -> StreamedResponse:
    """Return the stream of all, after a cursor. A database without a position begins with its next entry.

    When it is opened, it raises ``Unavailable`` if no database answers, and what the databases refuse.
    """
    return StreamedResponse(_opened(databases, pairs, cursor), TYPE, HEADERS, endless=True)


@asynccontextmanager
async def _opened(databases: Databases, pairs: Pairs, cursor: Cursor) -> AsyncIterator[MergedStream]:
    sources = [Source(databases, name, pairs, cursor.get(name)) for name in databases.names]
    try:
        opened = await asyncio.gather(*(one.open() for one in sources), return_exceptions=True)
        failures = [one for one in opened if one is not None]
        if refusals := [one for one in failures if not isinstance(one, Unavailable)]:
            raise refusals[0]
        if len(failures) == len(sources):
            raise Unavailable(f"None of the databases {', '.join(databases.names)} answers.")
        yield MergedStream(sources, databases.ending)
    finally:
        for one in sources:
            await one.close()
