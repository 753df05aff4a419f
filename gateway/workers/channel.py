"""Questions and answers between a parent and a worker, over a pair of sockets that no other process has."""

import asyncio
import pickle
import socket
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, TypeAlias

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
