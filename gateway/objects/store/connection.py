"""HTTP/1.1 to the object store: connections that are kept while they are idle, and a parser of answers.

A request is sent once, exactly as it stands. Only a read is sent again, if the store has closed a kept connection
meanwhile. A connection carries one request at a time: behind one that gets lost, all would have unknown outcomes.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

READS = frozenset({"GET", "HEAD", "OPTIONS"})
# Stores close idle connections after 5 seconds or more. A request that meets the closing has an unknown outcome, so the
# gateway closes first.
_KEEP_ALIVE = 4.0
_LOOKED_UP = 10.0
"""Seconds for which the addresses of the store's name are good for further connections."""
_MAX_HEAD = 256 * 1024
_READ_AHEAD = 256 * 1024
"""Bytes of an answer that wait for a slow reader before the connection reads no more."""
_JOINED = 64 * 1024
"""Bytes of a body that go out with their head. To copy more would cost more than a packet."""
_PIECE = 256 * 1024
_BODILESS = (204, 304)
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class NotConnectedError(Exception):
    """There is no connection, so nothing was sent. Its cause is what the system says."""


class BrokenOffError(Exception):
    """The connection broke, or went silent, after the request may have been sent."""


@dataclass(frozen=True, slots=True)
class BodyStream:
    """A body of ``length`` bytes, known beforehand. An error in ``chunks`` breaks the request off unfinished."""

    chunks: AsyncIterator[bytes]
    length: int


class Answer:
    """An answer whose head is here. Read its body to the end, or ``close`` it."""

    def __init__(self, connection: "_Connection") -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """As on the wire: a body is neither decompressed nor decoded."""
        self.is_whole = False
        """Whether all of it has arrived."""
        self.is_early = False
        """Whether it came before the whole body of the request was out."""
        self._connection = connection
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._failure: BrokenOffError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raises ``BrokenOffError`` where it breaks off."""
        while True:
            while self._pieces:
                yield self._next()
            if self.is_whole:
                return
            await self.progress()

    def rest(self) -> bytes:
        """Return what has arrived of the body and was not read."""
        rest = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        return rest

    def close(self) -> None:
        """Leave the rest unread, and the connection with it."""
        if not self.is_whole:
            self._connection.abort()

    async def progress(self) -> None:
        """Wait until more has arrived. Raises ``BrokenOffError``."""
        if self._failure is not None:
            raise self._failure
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def add(self, piece: bytes) -> bool:
        """Take a piece of the body. Return whether the reader is behind."""
        self._pieces.append(piece)
        self._buffered += len(piece)
        self.wake()
        return self._buffered > _READ_AHEAD

    def fail(self, failure: BrokenOffError) -> None:
        if not self.is_whole and self._failure is None:
            self._failure = failure
            self.wake()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            if self._failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(self._failure)

    def _next(self) -> bytes:
        piece = self._pieces.popleft()
        self._buffered -= len(piece)
        if self._buffered <= _READ_AHEAD // 2:
            self._connection.read_on(self)
        return piece


class Connections:
    """The connections to one origin. ``host`` and ``port`` are its own, ``secure`` for TLS."""

    def __init__(self, host: str, port: int, *, secure: bool) -> None:
        self._host, self._port = host, port
        self._tls = ssl.create_default_context() if secure else None
        if self._tls is not None:
            self._tls.set_alpn_protocols(["http/1.1"])
        self._loop = asyncio.get_running_loop()
        self._open: set[_Connection] = set()
        self._idle: dict[_Connection, float] = {}
        self._cleaning: asyncio.TimerHandle | None = None
        self._addresses: list[str] = []
        self._looked_up = 0.0

    async def ask(self, method: str, head: bytes, body: bytes | BodyStream, *, connect: float, limit: float) -> Answer:
        """Send a request and return its answer. ``connect`` and ``limit`` are in seconds.

        A stream, and the answer to a GET, may take longer than ``limit`` as long as they make progress. An error of the
        stream is raised as it is. Raises ``NotConnectedError`` or ``BrokenOffError``.
        """
        kept = self._kept()
        if kept is not None:
            try:
                return await kept.ask(method, head, body, limit)
            except BrokenOffError:
                if method not in READS or not kept.closed_early:
                    raise
        return await (await self._connect(connect)).ask(method, head, body, limit)

    async def close(self) -> None:
        if self._cleaning is not None:
            self._cleaning.cancel()
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # lets the transports close

    def add(self, connection: "_Connection") -> None:
        self._open.add(connection)

    def keep(self, connection: "_Connection") -> None:
        self._idle[connection] = self._loop.time()
        if self._cleaning is None:
            self._cleaning = self._loop.call_later(_KEEP_ALIVE, self._clean)

    def forget(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def _kept(self) -> "_Connection | None":
        """Return the connection that was used last. The others become old, and are closed."""
        while self._idle:
            connection, since = self._idle.popitem()
            if self._loop.time() - since < _KEEP_ALIVE and not connection.is_closing():
                return connection
            connection.abort()
        return None

    def _clean(self) -> None:
        now = self._loop.time()
        for connection, since in list(self._idle.items()):
            if now - since >= _KEEP_ALIVE:
                connection.abort()
        oldest = next(iter(self._idle.values()), None)
        self._cleaning = None if oldest is None else self._loop.call_at(oldest + _KEEP_ALIVE, self._clean)

    async def _connect(self, seconds: float) -> "_Connection":
        try:
            async with asyncio.timeout(seconds):
                return await self._connected(self._loop.time() + seconds)
        except OSError as error:
            raise NotConnectedError("timed out" if isinstance(error, TimeoutError) else "no connection") from error

    async def _connected(self, end: float) -> "_Connection":
        """Try one address after the other. Each gets its share of the time, and one that works is the first to try."""
        addresses = await self._look_up()
        for number, address in enumerate(addresses):
            share = (end - self._loop.time()) / (len(addresses) - number)
            try:
                async with asyncio.timeout(share):
                    _, connection = await self._loop.create_connection(
                        lambda: _Connection(self, self._loop),
                        *(address, self._port),
                        ssl=self._tls,
                        server_hostname=self._host if self._tls else None,
                    )
            except OSError:
                if number == len(addresses) - 1:
                    raise
            else:
                self._addresses = [address, *(other for other in addresses if other != address)]
                return connection
        raise OSError("its name has no address")

    async def _look_up(self) -> list[str]:
        if not self._addresses or self._loop.time() - self._looked_up > _LOOKED_UP:
            found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
            self._looked_up = self._loop.time()
        return self._addresses


class _Connection(asyncio.Protocol):
    """One connection, with a parser that calls it back. It carries one request at a time."""

    _transport: asyncio.Transport
    _answer: Answer | None = None
    """That of the request under way."""
    _timer: asyncio.TimerHandle | None = None
    _drained: asyncio.Future[None] | None = None
    _failure = "it closed the connection"
    closed_early = False
    """Whether it was closed before a byte of the answer came."""

    def __init__(self, pool: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._pool, self._loop = pool, loop
        self._parser = HttpResponseParser(self)

    async def ask(self, method: str, head: bytes, body: bytes | BodyStream, limit: float) -> Answer:
        if self._transport.is_closing():
            raise NotConnectedError(self._failure)
        answer = self._answer = Answer(self)
        self.closed_early = True
        self._is_head, self._unread, self._ends_by_closing = method == "HEAD", 0, False
        self._is_interim = self._is_over = self._is_spoilt = self._is_paused = self._stays = False
        self._needs_progress = method == "GET" or isinstance(body, BodyStream)
        self._awaits_source, self._since, self._limit = False, self._loop.time(), limit
        self._timer = self._loop.call_later(limit, self._check_time)
        try:
            if isinstance(body, BodyStream):
                await self._send(answer, head, body)
            elif len(body) > _JOINED:
                await self._send(answer, head, BodyStream(_pieces(body), len(body)))
            else:
                self._transport.write(head + body)  # as one packet
            while not answer.status:
                await answer.progress()
        except BaseException:
            answer.close()  # a whole one has left the connection to another request already
            raise
        return answer

    async def _send(self, answer: Answer, head: bytes, body: BodyStream) -> None:
        """Send a body, until the store has all of it, or has answered already, or the connection is gone."""
        answer.is_early = True
        self._transport.write(head)
        pump = self._loop.create_task(self._pump(answer, body))
        pump.add_done_callback(lambda _: answer.wake())
        try:
            while not pump.done() and not answer.status:
                await answer.progress()
        finally:
            # Nothing waits for the source any more then, so that it can be closed.
            if not pump.done():
                pump.cancel()
                await asyncio.wait({pump})
            failure = None if pump.cancelled() else pump.exception()
        if failure is not None:
            raise failure

    async def _pump(self, answer: Answer, body: BodyStream) -> None:
        """Hand the pieces of a body over, as fast as the store takes them."""
        missing = body.length
        while True:
            self._awaits_source = True
            try:
                chunk = await anext(body.chunks, None)
            finally:
                self._awaits_source, self._since = False, self._progressed()
            if chunk is None:
                break
            missing -= len(chunk)
            if missing < 0:
                raise ValueError("a stream is longer than its length")
            self._transport.write(chunk)
            if self._drained is not None:
                await self._drained
            if self._transport.is_closing():
                return
        if missing:
            raise ValueError("a stream is shorter than its length")
        answer.is_early = False

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._pool.forget(self)
        self._transport.abort()

    def read_on(self, answer: Answer) -> None:
        """Read more of an answer, once its reader has caught up."""
        if self._answer is answer and self._is_paused and not self._transport.is_closing():
            self._is_paused, self._since = False, self._progressed()
            self._transport.resume_reading()

    def _progressed(self) -> float:
        """Return the time since which the store is silent. For most requests, only their begin counts."""
        return self._loop.time() if self._needs_progress else self._since

    def _check_time(self) -> None:
        """Break the request off if its time is over. The time of the source and of the reader is not the store's."""
        if self._needs_progress and (self._awaits_source or self._is_paused):
            self._since = self._loop.time()
        left = self._since + self._limit - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_time)
        else:
            self._break_off("timed out")

    def _break_off(self, reason: str) -> None:
        self.closed_early, self._failure = False, reason
        if self._answer is not None:
            self._answer.fail(BrokenOffError(reason))
        self.abort()

    # The callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pool.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._pool.forget(self)
        self.resume_writing()
        self._stop_timer()
        if self._answer is not None:
            self._answer.fail(BrokenOffError(self._failure))

    def eof_received(self) -> None:
        # The store has ended its side, and reads no more of a request.
        if self._answer is not None and self._ends_by_closing:
            self._end(self._answer)
        self._transport.abort()

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            self._since = self._progressed()
            if not drained.done():
                drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # nothing was asked
            self.abort()
            return
        self.closed_early, self._since = False, self._progressed()
        self._unread += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self._is_over:
                self._break_off("it does not speak HTTP")
                return
            self._is_spoilt = True
        if self._is_over:
            # Ceph ends the answer to some HEADs as if it had a body. The next answer would begin there.
            self._is_spoilt = self._is_spoilt or (self._is_head and data.split(b"\r\n\r\n", 1)[1:] != [b""])
            self._end(answer)
        # No body came of it: heads of interim answers, too, trailers, or extensions of chunks. The parser keeps them.
        elif self._unread > _MAX_HEAD:
            self._break_off("its head or its trailer has no end")

    def _end(self, answer: Answer) -> None:
        """Let the answer go: it is whole. Keep the connection if it is good for another request."""
        self._stop_timer()
        self._answer, answer.is_whole = None, True
        answer.wake()
        unsent = answer.is_early or self._transport.get_write_buffer_size()
        if self._is_spoilt or unsent or not self._stays or self._transport.is_closing():
            self.abort()
            return
        if self._is_head:
            self._parser = HttpResponseParser(self)  # the last one waits for a body
        if self._is_paused:
            self._transport.resume_reading()
        self._pool.keep(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The callbacks of the parser.

    def on_message_begin(self) -> None:
        self._is_spoilt = self._is_spoilt or self._is_over

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._answer
        if answer is not None and not answer.status:  # else a trailer
            answer.headers.append((name, value.strip()))

    def on_headers_complete(self) -> None:
        answer = self._answer
        if answer is None or answer.status:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._is_interim = True
            answer.headers.clear()
            return
        answer.status = status
        self._is_over, self._stays = self._is_head, self._parser.should_keep_alive()
        if not self._stays:
            named = {name.lower(): value.lower() for name, value in answer.headers}
            framed = self._is_head or status in _BODILESS or not _FRAMING.isdisjoint(named)
            self._ends_by_closing = not framed
            # The parser expects a body of the answer to a HEAD, which only its connection could end.
            closes = b"close" in named.get(b"connection", b"") or self._parser.get_http_version() != "1.1"
            self._stays = self._is_head and not closes
        answer.wake()

    def on_body(self, piece: bytes) -> None:
        self._unread = 0
        if self._answer is not None and not self._is_over and self._answer.add(piece) and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
        else:
            self._is_over = True


async def _pieces(body: bytes) -> AsyncGenerator[bytes, None]:
    """Cut a body from memory into pieces: other requests run in between."""
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]
