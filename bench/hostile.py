"""How long other clients wait while a hostile one sends bodies that are large, deep or slow, or hoards what is scarce.

The first table: one client reads a row by key again and again, alone and beside each attack by bodies. The second: a
writer and a reader with grants, alone and beside callers without credentials that take all they can get.
"""

import asyncio
import base64
import hashlib
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from bench.measure import MEBIBYTE, peak_memory, percentiles
from bench.memory import front
from bench.objects import BUCKET
from bench.raw_http import RawConnection
from bench.services import KEYS, Services
from gateway.auth.sigv4 import RequestHead, StoreCredentials, sign

SECONDS = 3.0
GOAL = "p99 < 100 ms"
READ = "/v1/tables/accounts?id=eq.1"
INSERT = "POST /v1/tables/shared"
JSON = "Content-Type: application/json"


class Attack(NamedTuple):
    """The bytes that one connection sends, over and over: a head without its length, a body, and unsent bytes."""

    name: str
    head: str
    body: bytes
    unsent: int = 0


def table() -> Iterator[str]:
    """Yield the lines of both tables, in Markdown."""
    yield "| another client reads a row, beside | p50 ms | p99 ms | slowest ms | gateway's memory at most | goal |"
    yield "|---|--:|--:|--:|--:|---|"
    with front() as services:
        yield _line(services, None)
        for attack in attacks():
            yield _line(services, attack)
    yield ""
    yield "| a writer and a reader, beside | writes | reads | p99 of writes | p99 of reads | gateway's memory at most |"
    yield "|---|--:|--:|--:|--:|--:|"
    with front() as services:
        for name, hoards in HOARDS.items():
            yield _beside(services, name, hoards)


def attacks() -> Iterator[Attack]:
    """Yield the attacks. The table plane lets this gateway's callers in without a key, so its bodies are parsed."""
    barrier, known = f"POST /v1/fences/order/5/barrier|{JSON}", f"{INSERT}|{JSON}|Fencing-Token: 1"
    lists = b"[" + b"[]," * (4 * MEBIBYTE) + b"[]]"
    yield Attack("24 MiB announced to the API, half sent", barrier, bytes(24 * MEBIBYTE), 24 * MEBIBYTE - 1000)
    yield Attack("12 MiB of tiny lists to the API", barrier, lists)
    yield Attack("12 MiB of tiny lists to a table", known, lists)
    yield Attack("12 MiB of tiny lists in one row", known, b'[{"note":' + lists + b"}]")
    yield Attack("100,000 rows for as many resources", known, _rows(100_000))
    yield Attack("1,000 rows", known, _rows(1_000))
    yield Attack("a list of 60 MiB, half sent", known, b"[" + b" " * (60 * MEBIBYTE), 30 * MEBIBYTE)
    for name, body in (
        ("4 MiB of XML tags", b"<Delete>" + b"<a/>" * (MEBIBYTE - 8) + b"</Delete>"),
        ("1,000 keys to delete, in 22,000 tags", _deletion()),
    ):
        yield Attack(name, "", body)


def _rows(count: int) -> bytes:
    rows = ",".join(f'{{"id":{1_000_000 + number},"owner":"x","balance":1}}' for number in range(count))
    return f"[{rows}]".encode()


def _deletion() -> bytes:
    filling = b"<a/>" * 18
    keys = b"".join(b"<Object><Key>%d</Key>%s</Object>" % (number, filling) for number in range(1000))
    return b"<Delete>" + keys + b"</Delete>"


async def _slow_uploads(origin: str) -> None:
    """Objects of 8 MiB by callers without any grant, a byte a second."""
    await _trickle(origin, f"PUT /{BUCKET}/slow HTTP/1.1", 8 * MEBIBYTE, connections=50)


async def _slow_writes(origin: str) -> None:
    """Rows of 60 MiB by callers with a grant, a byte a second."""
    await _trickle(origin, f"{INSERT} HTTP/1.1\r\n{JSON}\r\nFencing-Token: 1", 60 * MEBIBYTE, connections=50)


async def _unread_answers(origin: str) -> None:
    """Tables of which forty copies of a column are asked for, and not a byte is read."""
    aliases = ",".join(f"a{number}:owner" for number in range(40))
    await _hold(origin, f"GET /v1/tables/accounts?select={aliases} HTTP/1.1\r\n\r\n", connections=16)


async def _slow_reads(origin: str) -> None:
    """Reads that sort all rows by a computed text, many times over."""
    columns = ",".join(f"o{number}:owner" for number in range(20))
    query = f"select={columns}&order=note.desc,owner.desc,balance&owner=imatch.(a|b|c)*(1|2)*9&limit=10"
    await _hold(origin, f"GET /v1/tables/accounts?{query} HTTP/1.1\r\n\r\n", connections=32, again=True)


async def _idle_connections(origin: str) -> None:
    """Connections that ask for nothing."""
    await _hold(origin, "", connections=2000)


async def _long_headers(origin: str) -> None:
    """Heads of 60 KB, each with another value."""
    number = 0

    async def ask() -> None:
        nonlocal number
        connection = await RawConnection.open(origin)
        while True:
            number += 1
            await connection.ask("GET", READ, headers=f"Prefer: x={number}{'y' * 60_000}\r\n")

    await asyncio.gather(*(ask() for _ in range(8)))


async def _descriptions(origin: str) -> None:
    """The description of the API, again and again."""

    async def ask() -> None:
        connection = await RawConnection.open(origin)
        while True:
            await connection.ask("GET", "/v1/openapi.json")

    await asyncio.gather(*(ask() for _ in range(8)))


Hoard: TypeAlias = Callable[[str], Coroutine[Any, Any, None]]
ALL: tuple[Hoard, ...] = (
    *(_slow_uploads, _slow_writes, _unread_answers, _slow_reads),
    *(_idle_connections, _long_headers, _descriptions),
)
HOARDS: dict[str, Sequence[Hoard]] = {
    **{(hoard.__doc__ or "").rstrip(".").lower(): (hoard,) for hoard in ALL},
    "all of these at one time": ALL,
}


async def _hold(origin: str, request: str, *, connections: int, again: bool = False) -> None:
    """Send the head of a request on each connection, and read nothing. ``again``: once more when it is answered."""
    address = urlsplit(origin)
    head = request.replace("\r\n\r\n", f"\r\nHost: {address.netloc}\r\n\r\n").encode()

    async def one() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.write(head)
                if not again:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has only the base class
                    await asyncio.sleep(2 * SECONDS)
                await reader.read(65536)
                writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))


async def _trickle(origin: str, head: str, size: int, *, connections: int) -> None:
    address = urlsplit(origin)

    async def one() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.write(f"{head}\r\nHost: {address.netloc}\r\nContent-Length: {size}\r\n\r\n".encode())
                answer = asyncio.ensure_future(reader.read(1))
                while not answer.done():
                    writer.write(b" ")
                    await asyncio.wait((answer,), timeout=1)
                writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))


def _run(hoards: Sequence[Hoard], origin: str) -> None:
    os.nice(19)  # attackers have computers of their own

    async def run() -> None:
        await asyncio.gather(*(hoard(origin) for hoard in hoards))

    asyncio.run(run())


def _beside(services: Services, name: str, hoards: Sequence[Hoard]) -> str:
    """Return the line of an attack: what a writer and a reader get beside it, as parts of what they get alone."""
    alone = asyncio.run(_work(services.gateway))
    attackers = [
        multiprocessing.get_context("spawn").Process(target=_run, args=((hoard,), services.gateway), daemon=True)
        for hoard in hoards
    ]
    with peak_memory(services.gateway_pid) as seen:
        for one in attackers:
            one.start()
        time.sleep(SECONDS)
        beside = asyncio.run(_work(services.gateway))
        for one in attackers:
            one.kill()
            one.join()
    rates = [len(during) / len(before) for before, during in zip(alone, beside, strict=True)]
    slower = [percentiles(during)[1] / percentiles(before)[1] for before, during in zip(alone, beside, strict=True)]
    shown = " | ".join(f"{rate:.2f} (≥ 0.7)" for rate in rates)
    times = " | ".join(f"{ratio:.1f} times (≤ 3)" for ratio in slower)
    return f"| {name} | {shown} | {times} | {seen.mebibytes:.0f} MiB (≤ 512) |"


async def _work(origin: str) -> tuple[list[float], list[float]]:
    """Return the seconds of each write and of each read of callers with grants, for a while."""
    key = "Authorization: Bearer key-of-granted\r\n"
    seconds: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS

    async def ask(of: list[float], method: str, path: str, body: bytes, headers: str) -> None:
        connection = await RawConnection.open(origin)
        while (begun := time.perf_counter()) < end:
            status, answer = await connection.ask(method, path, body, headers)
            assert status in (200, 204), answer
            of.append(time.perf_counter() - begun)
        connection.close()

    await asyncio.gather(
        ask(seconds[0], "PATCH", "/v1/tables/accounts?id=eq.7", b'{"balance":1}', f"{key}Fencing-Token: 1\r\n"),
        ask(seconds[1], "GET", "/v1/tables/accounts?id=eq.8", b"", key),
    )
    return seconds


def _line(services: Services, attack: Attack | None) -> str:
    stop = threading.Event()
    attacker = threading.Thread(target=_send, args=(services.gateway, attack, stop)) if attack else None
    with peak_memory(services.gateway_pid) as seen:
        if attacker is not None:
            attacker.start()
        seconds = asyncio.run(_read(services.gateway))
        stop.set()
        if attacker is not None:
            attacker.join()
    p50, p99 = percentiles(seconds)
    name = "nothing" if attack is None else attack.name
    return f"| {name} | {p50:.1f} | {p99:.1f} | {1000 * max(seconds):.0f} | {seen.mebibytes:.0f} MiB | {GOAL} |"


async def _read(origin: str) -> list[float]:
    connection, seconds = await RawConnection.open(origin), []
    end = time.perf_counter() + SECONDS
    while (begun := time.perf_counter()) < end:
        status, _ = await connection.ask("GET", READ)
        assert status == 200
        seconds.append(time.perf_counter() - begun)
        await asyncio.sleep(0.002)
    connection.close()
    return seconds


def _send(origin: str, attack: Attack, stop: threading.Event) -> None:
    """Send the attack over and over. Connections that wait for their answer stay open until the end."""
    address = urlsplit(origin)
    waiting = []
    while not stop.is_set():
        connection = socket.create_connection((str(address.hostname), address.port or 80))
        connection.settimeout(SECONDS)
        waiting.append(connection)
        try:
            connection.sendall(_head(origin, attack) + attack.body[: len(attack.body) - attack.unsent])
            if not attack.unsent:
                connection.recv(65536)
        except OSError:
            pass
        stop.wait(0.2 if attack.unsent else 0.01)
    for connection in waiting:
        connection.close()


def _head(origin: str, attack: Attack) -> bytes:
    host, length = urlsplit(origin).netloc, str(len(attack.body))
    if attack.head:
        line, *own = attack.head.split("|")
        return "\r\n".join([f"{line} HTTP/1.1", f"Host: {host}", *own, f"Content-Length: {length}", "", ""]).encode()
    digest = base64.b64encode(hashlib.md5(attack.body, usedforsecurity=False).digest()).decode()
    headers = [("host", host), ("content-md5", digest), ("fencing-token", "1")]
    pairs = [(name.encode(), value.encode()) for name, value in headers]
    request = RequestHead("POST", f"/{BUCKET}".encode(), b"delete=", pairs)
    signed = sign(
        request, hashlib.sha256(attack.body).hexdigest(), StoreCredentials(*KEYS, "us-east-1"), datetime.now(UTC)
    )
    lines = [f"{name}: {value}" for name, value in [*headers, *signed, ("content-length", length)]]
    return "\r\n".join([f"POST /{BUCKET}?delete= HTTP/1.1", *lines, "", ""]).encode()
