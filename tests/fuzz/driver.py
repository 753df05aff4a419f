"""Plays conversations over sockets in rounds, watches the gateways meanwhile, and makes what fails smaller."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count, islice
from threading import Event, Thread
from typing import TypeVar

import psutil

from tests.fuzz import reading
from tests.fuzz.grammar import Conversation, End, conversation
from tests.fuzz.invariants import Evidence, Fault, Judge, Played
from tests.fuzz.stage import Gateway, Stage, ask
from tests.waiting import PATIENCE

AT_ONCE = 12
"""Conversations that are under way at one time."""
ROUND = 60
"""Conversations that are judged together."""
GROWTH = 100 * 1024 * 1024
"""Bytes by which a gateway may grow in a run."""
SLOWEST = 5.0
"""Seconds that a gateway may work before it answers another client. Time without a processor does not count."""
_ANSWERED = 15.0
"""Seconds after which a client gives up waiting for its answers."""
_BROKEN_OFF = 0.5
_BEFORE_ABORT = 0.1
_LOGGED = 0.05
_Item = TypeVar("_Item")


@dataclass(slots=True)
class Result:
    """The faults that a run has found. ``failing``: the conversations that show them, made small where possible."""

    faults: list[Fault]
    failing: list[Conversation]
    counted: Counter[str]

    def report(self) -> str:
        lines = [*map(str, self.faults)]
        for one in self.failing:
            lines.append(f"conversation {one.name}, to the {one.port} gateway, which {one.end.value}:")
            lines += [f"  after {pause} s {piece!r}" for pause, piece in one.pieces()]
        return "\n".join(lines)


def run(
    stage: Stage, seed: int, over: Callable[[], bool], *, only: Sequence[int] = (), known: str | None = None
) -> Result:
    """Play conversations of the seed until it is over, or until an invariant is broken.

    ``only``: the numbers of those that are played. Faults in which the pattern ``known`` is found do not count.
    """
    judge = Judge(stage.secrets)
    numbers = iter(only) if only else count()

    def new(faults: list[Fault]) -> list[Fault]:
        return [fault for fault in faults if known is None or not re.search(known, str(fault))]

    with _probing(stage) as slowest:
        while not over() and (chosen := list(islice(numbers, ROUND))):
            conversations = [conversation(seed, number, stage.cookie) for number in chosen]
            if faults := new(_round(stage, judge, conversations) + _of_processes(stage, slowest)):
                return Result(faults, _smaller(stage, conversations, faults), judge.counted)
    return Result(new(judge.of_record(stage.record())), [], judge.counted)


def _round(stage: Stage, judge: Judge, conversations: list[Conversation]) -> list[Fault]:
    for one in conversations:
        judge.sending(one)
    played = asyncio.run(_play(stage.gateways, conversations))
    time.sleep(_LOGGED)  # a request is logged after it was answered
    lines = [line for gateway in stage.gateways.values() for line in gateway.lines()]
    return judge.round(played, Evidence(lines, stage.commits(), stage.mutations()))


def _of_processes(stage: Stage, slowest: list[float]) -> list[Fault]:
    faults = []
    for name, gateway in stage.gateways.items():
        if (code := gateway.running.process.poll()) is not None:
            faults.append(
                Fault(
                    "the process never ends", f"the {name} gateway ended with {code}: {gateway.running.said()[-2000:]}"
                )
            )
        elif (grown := gateway.memory() - gateway.resident) > GROWTH:
            faults.append(Fault("memory is bounded", f"the {name} gateway has grown by {grown // 2**20} MiB"))
    if slowest and max(slowest) > SLOWEST:
        faults.append(Fault("others are answered", f"another client waited for {max(slowest):.1f} s of work"))
        slowest.clear()
    return faults


@contextmanager
def _probing(stage: Stage) -> Iterator[list[float]]:
    """Ask each gateway again and again, as another client, and list how many seconds it worked before each answer.

    An answer that does not come at all counts as ``PATIENCE`` seconds.
    """
    waits: list[float] = []
    over = Event()

    def probe(gateway: Gateway) -> None:
        while not over.wait(0.1):
            with suppress(OSError, psutil.NoSuchProcess):  # a gateway that has ended is found by its process
                began = gateway.worked()
                try:
                    ask(gateway.port, "GET", "/ui/login")
                    waits.append(gateway.worked() - began)
                except TimeoutError:
                    waits.append(PATIENCE)

    threads = [Thread(target=probe, args=(gateway,)) for gateway in stage.gateways.values()]
    for thread in threads:
        thread.start()
    try:
        yield waits
    finally:
        over.set()
        for thread in threads:
            thread.join()


async def _play(gateways: dict[str, Gateway], conversations: list[Conversation]) -> list[Played]:
    room = asyncio.Semaphore(AT_ONCE)

    async def play(one: Conversation) -> Played:
        async with room:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateways[one.port].port, limit=2**20)
            return await _Client(one, reader, writer).converse()

    return list(await asyncio.gather(*map(play, conversations)))


class _Client:
    """One connection, and what comes back on it."""

    def __init__(self, conversation: Conversation, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._conversation, self._reader, self._writer = conversation, reader, writer
        messages = conversation.messages()
        self._methods = [message.method for message in messages]
        self._good = all(message.whole and not message.doubtful for message in messages)
        self._received = bytearray()
        self._enough = asyncio.Event()
        self._closed = False

    async def converse(self) -> Played:
        """Send everything, and wait for the answers for as long as it makes sense."""
        late = False
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(self._receive())
            try:
                with suppress(OSError):
                    await self._send()
                await asyncio.wait_for(self._enough.wait(), self._patience())
            except TimeoutError:
                late = True
            closed = self._closed
            if self._conversation.end is End.ABORT and not self._writer.is_closing():
                linger = struct.pack("ii", 1, 0)
                self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._writer.transport.abort()
            receiving.cancel()
        return Played(self._conversation, bytes(self._received), closed, late)

    async def _send(self) -> None:
        for pause, piece in self._conversation.pieces():
            await asyncio.sleep(pause)
            if self._closed:
                return
            self._writer.write(piece)
            await asyncio.wait_for(self._writer.drain(), _ANSWERED)
        if self._conversation.end is End.HALF_CLOSE:
            self._writer.write_eof()

    async def _receive(self) -> None:
        with suppress(OSError):
            while piece := await self._reader.read(2**18):
                self._received += piece
                got = reading.answers(bytes(self._received), self._methods)
                if len(got) >= len(self._methods) and got[-1].complete:
                    self._enough.set()
        self._closed = True
        self._enough.set()

    def _patience(self) -> float:
        if self._conversation.end is End.ABORT:
            return _BEFORE_ABORT
        # A request that is broken off gets no answer, nor does whatever lies behind it.
        return _ANSWERED if self._conversation.end is End.READ and self._good else _BROKEN_OFF


def _smaller(stage: Stage, conversations: list[Conversation], faults: list[Fault]) -> list[Conversation]:
    """Return the conversations that still break the invariant, as few and as small as possible."""
    invariant = faults[0].invariant

    def breaks(tried: list[Conversation]) -> bool:
        if any(gateway.running.process.poll() is not None for gateway in stage.gateways.values()):
            return False
        # A judge of its own: what the other conversations have done is not theirs.
        return any(fault.invariant == invariant for fault in _round(stage, Judge(stage.secrets), tried))

    blamed = [one for one in conversations if one.name == faults[0].conversation]
    found = next((tried for tried in (blamed, conversations) if tried and breaks(tried)), None)
    if found is None:
        return blamed
    left = _fewer(found, breaks)
    for number in range(len(left)):
        before, one, behind = left[:number], left[number], left[number + 1 :]
        for simpler in (replace(one, cuts=[]), replace(one, pauses=[0.0])):
            if breaks([*before, simpler, *behind]):
                one = simpler
                break
        parts = _fewer(one.parts, lambda parts: breaks([*before, replace(one, parts=parts), *behind]))  # noqa: B023
        left = [*before, replace(one, parts=parts), *behind]
    return left


def _fewer(items: list[_Item], breaks: Callable[[list[_Item]], bool]) -> list[_Item]:
    """Return a part of the items that still breaks it: ever smaller stretches are left out."""
    size = len(items) // 2
    while size:
        at = 0
        while at < len(items) > 1:
            tried = items[:at] + items[at + size :]
            if tried and breaks(tried):
                items = tried
            else:
                at += size
        size //= 2
    return items
