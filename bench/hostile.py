"""How long another client waits while a hostile one sends bodies that are large, deep, half sent or slow.

One client reads a row by key again and again; its latency alone is compared with its latency beside each attack.
"""

import asyncio
import base64
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple
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
    """Yield the lines of the table, in Markdown."""
    yield "| another client reads a row, beside | p50 ms | p99 ms | slowest ms | gateway's memory at most | goal |"
    yield "|---|--:|--:|--:|--:|---|"
    with front() as services:
        yield _line(services, None)
        for attack in attacks():
            yield _line(services, attack)


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
