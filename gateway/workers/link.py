"""A worker's link to its parent: connections that it gets, and questions and answers.

Both go over a pair of sockets that no other process has.
"""

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from gateway.config import Config
from gateway.errors import ReloadRefused
from gateway.http.crowd import CROWD
from gateway.http.server import AT_ONCE, HttpServer
from gateway.observe.gauges import Counted, Gathered, Snapshot

TAKEN = b"t"
"""A worker's answer to each connection that it gets."""
_REPORT = 1.0
"""Seconds between two reports. The parent keeps the last one of a worker that dies."""


@dataclass(frozen=True, slots=True)
class Report:
    """The state of one worker. A report with a higher ``number`` is newer."""

    number: int
    connections: int
    snapshot: Snapshot


@dataclass
class Link:
    """``number`` is this worker's, from 1 to ``count``."""

    number: int
    count: int
    talk: socket.socket
    connections: socket.socket

    def __post_init__(self) -> None:
        self._reports = count(1)
        self._channel = Channel(self.talk, self._answer)

    def attach(self, follow: Callable[[Config], Awaitable[None]], report: Callable[[], Snapshot]) -> None:
        """Say how this worker follows another one to a configuration, and what it reports."""
        self._follow, self._report = follow, report

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Let no other worker reload while the block runs. Raises ``ReloadRefused``."""
        await self._asked("begin")
        try:
            yield
        finally:
            with suppress(ReloadRefused):
                await self._asked("end")

    async def share(self, config: Config) -> None:
        """Put a configuration in force, to which the other workers begin to follow. Raises ``ReloadRefused``."""
        await self._asked("follow", config)

    async def followed(self) -> None:
        """Wait until the other workers have followed, or are replaced. Without a parent, this worker ends anyway."""
        with suppress(NoAnswer):
            await self._channel.ask("followed")

    async def gather(self) -> Gathered:
        """Return what all workers have counted. Raises ``NoAnswer``."""
        gathered: Gathered = await self._channel.ask("gather", self._state())
        return gathered

    async def publish(self, counted: Mapping[str | None, Counted]) -> None:
        """Let the worker that is asked next continue to count the record from here. Raises ``NoAnswer``."""
        await self._channel.ask("counted", counted)

    async def serve(self, server: HttpServer) -> None:
        """Run the server with the connections that the parent hands over. Stop when the parent has ended."""
        self._server, serves = server, asyncio.Event()
        server.on_start = serves.set
        async with asyncio.TaskGroup() as self._tasks:
            tasks = [self._tasks.create_task(self._talk()), self._tasks.create_task(self._serve(serves))]
            try:
                await server.serve(sockets=[])
            finally:
                asyncio.get_running_loop().remove_reader(self.connections)
                for task in tasks:
                    task.cancel()

    async def _asked(self, name: str, value: Any = None) -> None:
        try:
            await self._channel.ask(name, value)
        except NoAnswer as error:
            raise ReloadRefused(f"The parent of the workers does not answer: {error}") from error

    async def _talk(self) -> None:
        await self._channel.run()
        self._server.should_exit = True

    async def _serve(self, serves: asyncio.Event) -> None:
        await serves.wait()
        asyncio.get_running_loop().add_reader(self.connections, self._take)
        with suppress(NoAnswer):
            await self._channel.ask("ready")
            while True:
                await asyncio.sleep(_REPORT)
                await self._channel.ask("report", self._state())

    def _state(self) -> Report:
        return Report(next(self._reports), CROWD.open, self._report())

    def _take(self) -> None:
        """Take connections that wait here, few at one time: those that make way for them close in the next turn."""
        loop, server = asyncio.get_running_loop(), self._server
        for _ in range(AT_ONCE):
            if server.should_exit:
                loop.remove_reader(self.connections)
                self._tasks.create_task(self._stop_taking())
                return
            try:
                data, files, _, _ = socket.recv_fds(self.connections, 16, 1)
            except BlockingIOError:
                return
            except OSError:
                data, files = b"", []
            if not data:
                loop.remove_reader(self.connections)
                return
            # From here on the connection is this worker's, and ends with it. Nothing of it has been read before.
            with suppress(OSError):
                self.connections.send(TAKEN)
            for file in files:
                server.take(socket.socket(fileno=file))
            if not files:  # the limit of open files keeps them out
                server.make_room()

    async def _stop_taking(self) -> None:
        """Let the parent hand connections that wait here to another worker."""
        with suppress(NoAnswer):
            await self._channel.ask("stopping")

    async def _answer(self, name: str, value: Any) -> Any:
        match name:
            case "report":
                return self._state()
            case "follow":
                await self._follow(value)
        return None


Answer: TypeAlias = Callable[[str, Any], Awaitable[Any]]
"""Answers a question, given its name and its value."""

_LENGTH = 4
_FAILED = "failed"


class NoAnswer(Exception):
    """The other process has ended, or its answer failed."""


class Channel:
    """One end of the pair. Both ends may ask."""

    def __init__(self, end: socket.socket, answer: Answer) -> None:
        self._end, self._answer = end, answer
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Answer questions until the other process has ended."""
        reader, self._writer = await asyncio.open_connection(sock=self._end)
        async with asyncio.TaskGroup() as tasks:
            await self._read(reader, tasks)
            for task in self._answering:
                task.cancel()

    async def _read(self, reader: asyncio.StreamReader, tasks: asyncio.TaskGroup) -> None:
        assert self._writer is not None
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(_LENGTH), "big")
                # Only the parent and this worker have the sockets, so the bytes are this program's own.
                kind, number, name, value = pickle.loads(await reader.readexactly(size))  # noqa: S301
                if kind == "ask":
                    task = tasks.create_task(self._respond(number, name, value))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                elif (waiting := self._waiting.pop(number, None)) is not None and not waiting.done():
                    if kind == _FAILED:
                        waiting.set_exception(NoAnswer(value))
                    else:
                        waiting.set_result(value)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer, self._writer = self._writer, None
            writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(NoAnswer("The other process has ended."))
                    future.exception()  # it may be that nothing waits for it any more
            self._waiting.clear()

    async def ask(self, name: str, value: Any = None) -> Any:
        """Return the answer. Raises ``NoAnswer``."""
        number = next(self._numbers)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send("ask", number, name, value)
            return await answered
        finally:
            self._waiting.pop(number, None)

    async def _respond(self, number: int, name: str, value: Any) -> None:
        try:
            answer = await self._answer(name, value)
        except Exception as error:  # noqa: BLE001 - a bug must not end the channel
            kind, answer = _FAILED, type(error).__name__
        else:
            kind = "answer"
        try:
            self._send(kind, number, name, answer)
        except NoAnswer:
            return

    def _send(self, kind: str, number: int, name: str, value: Any) -> None:
        if self._writer is None:
            raise NoAnswer("The other process has ended.")
        sent = pickle.dumps((kind, number, name, value))
        self._writer.write(len(sent).to_bytes(_LENGTH, "big") + sent)
