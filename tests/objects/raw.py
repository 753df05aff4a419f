"""Requests written by hand and sent over a bare socket: what no client library would send."""

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from gateway.auth.sigv4 import RequestHead, StoreCredentials, sign
from tests.running import ACCESS_KEY, SECRET_KEY
from tests.waiting import PATIENCE

Headers = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request. ``interim`` are the statuses before the final one."""

    status: int
    headers: dict[str, str]
    body: bytes
    interim: tuple[int, ...] = ()

    @property
    def code(self) -> str:
        """S3's error code."""
        found = re.search(rb"<Code>([^<]*)</Code>", self.body)
        return found[1].decode() if found else ""


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def head(
    origin: str,
    method: str,
    target: str,
    headers: Headers = (),
    *,
    payload: str = "UNSIGNED-PAYLOAD",
    unsigned: Headers = (),
    access_key: str = ACCESS_KEY,
    secret: str = SECRET_KEY,
    at: datetime | None = None,
) -> bytes:
    """The head of a request, with ``headers`` signed and ``unsigned`` not. ``target`` is path and query as they go."""
    path, _, query = target.partition("?")
    named = [("host", urlsplit(origin).netloc), *headers]
    encoded = [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in named]
    request = RequestHead(method, path.encode(), query.encode(), encoded)
    signature = sign(request, payload, StoreCredentials(access_key, secret, "us-east-1"), at or datetime.now(UTC))
    return lines(method, target, [*named, *signature, *unsigned])


def lines(method: str, target: str, headers: Headers) -> bytes:
    """The head as it stands on the wire."""
    written = [f"{method} {target} HTTP/1.1".encode()]
    for name, value in headers:
        written.append(name.encode() + b": " + (value.encode() if isinstance(value, str) else value))
    return b"\r\n".join(written) + b"\r\n\r\n"


def framed(*chunks: bytes, trailer: str = "") -> bytes:
    """A body in aws-chunked framing, unsigned."""
    whole = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks)
    return whole + b"0\r\n" + (f"{trailer}\r\n".encode() if trailer else b"") + b"\r\n"


async def connected(origin: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(origin)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def send(origin: str, data: bytes, *, half_close: bool = False) -> Reply | None:
    """Send the bytes and read one answer; None where the connection ended without one."""
    reader, writer = await connected(origin)
    try:
        writer.write(data)
        if half_close:
            writer.write_eof()
        return await receive(reader, bodiless=data.startswith(b"HEAD "))
    finally:
        writer.close()


async def ask(origin: str, data: bytes) -> Reply:
    """Send the bytes and read one answer, which must come."""
    reply = await send(origin, data)
    assert reply is not None
    return reply


async def receive(reader: asyncio.StreamReader, *, bodiless: bool = False) -> Reply | None:
    """Read one final answer, past interim ones."""
    interim: list[int] = []
    while True:
        try:
            async with asyncio.timeout(PATIENCE):
                text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None
        first, *rest = text.strip().split("\r\n")
        status = int(first.split(" ")[1])
        if status < 200:
            interim.append(status)
            continue
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        length = 0 if bodiless else int(headers.get("content-length", "0"))
        return Reply(status, headers, await reader.readexactly(length), tuple(interim))
