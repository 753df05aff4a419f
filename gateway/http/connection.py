"""A client's connection: uvicorn's, with limits on the size and the time of heads, trailers and idling.

uvicorn's parser collects heads of any size, and stops its only clock at the first byte of a head. It appends trailers
to the headers of a request that is already running. It leaves out the body of a request that asks for another protocol,
and reads these bytes as the next request. ``gateway.http.body`` limits bodies.
"""

from asyncio import Event, TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

MAX_HEAD = 64 * 1024
"""Bytes of a request's line, headers and trailers. S3's come to 8 KiB at most, metadata included."""
HEAD_TIMEOUT = 20.0
"""Seconds until a head must be complete, and until the rest of the body of an answered request must have arrived."""
KEEP_ALIVE = 75
"""Seconds for which an idle connection is kept. Load balancers keep theirs shorter, so they close it first."""
STALL_TIMEOUT = 300.0
"""Seconds in which a client must take some of its answer."""
# Bytes that are buffered for a slow client before the answer pauses. At uvloop's 64 KiB every piece of a large answer
# waits, which costs a third more processor time. More than this gains nothing.
_WRITE_AHEAD = 256 * 1024
_CODING = b"transfer-encoding"


class Connection(HttpToolsProtocol):
    """One connection. The deadline runs while no request is being served."""

    open = 0
    """The number of open connections of this process."""

    _deadline: TimerHandle | None = None
    _stall: TimerHandle | None = None
    _in_head = False
    _head_size = 0  # of the fields that are complete
    _arrived = 0  # bytes since the head began or a piece of the body came, from the second packet on
    _given_up = False
    _active: RequestResponseCycle | None = None
    """The request that is being served. Later ones of the same connection wait for it."""
    _is_last = False  # the last request of the connection: nothing after it is read

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        Connection.open += 1
        transport.set_write_buffer_limits(high=_WRITE_AHEAD)
        self._stopping = Event()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        Connection.open -= 1
        if self._active is not None and self._active is not self.cycle and not self._active.response_complete:
            # uvicorn notifies the newest request only, which need not have begun.
            self._active.disconnected = True
            self._active.message_event.set()
        self._clear_deadline()
        self._clear_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._given_up or self._is_last:
            return
        self._arrived += len(data)
        super().data_received(data)
        # No body came of it: a head, trailers, or extensions of chunks, which the parser collects.
        if self._arrived > MAX_HEAD:
            self._give_up(431 if self._in_head else None)
        elif self._deadline is None and (self._in_head or self._is_idle()):
            self._set_deadline()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_size = self._arrived = 0
        super().on_message_begin()
        # uvicorn silently drops bytes for a client that is gone. A handler that sends much can check.
        self.scope["state"]["gone"] = self.transport.is_closing
        self.scope["state"]["abort"] = self.transport.abort
        self.scope["state"]["stopping"] = self._stopping

    def shutdown(self) -> None:
        """Tell the requests that only wait that the server stops, because it waits for pending requests."""
        self._stopping.set()
        super().shutdown()

    def on_url(self, url: bytes) -> None:
        # No client sends a fragment. The parser would cut it off, and the request would be for something else.
        if b"#" in url:
            self._give_up(400)
        elif self._fits(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        fits = self._fits(len(name) + len(value) + 4)
        if self._in_head:
            if len(name) == len(_CODING) and name.lower() == _CODING and value.lower() != b"chunked":
                self._give_up(400)  # a coding of the body that the gateway does not decode
            if fits:
                super().on_header(name, value)
        elif not fits:
            # The request may be running. Closing leaves its outcome unknown; a refusal would promise more.
            self._give_up(None)

    def on_headers_complete(self) -> None:
        self._in_head = False
        upgrade = self.parser.should_upgrade()
        if self._head_size > MAX_HEAD:
            self._give_up(431)
        elif upgrade and self._announces_more():
            self._give_up(400)
        if not self._given_up:
            self._clear_deadline()
            # From here on the head cannot change. Trailers have no meaning here: they are counted and dropped.
            self.scope["headers"] = tuple(self.headers)
            super().on_headers_complete()
            if upgrade:
                # The gateway ignores the upgrade. The parser has lost its place, so this must be the last request.
                self._is_last, self.cycle.keep_alive = True, False

    def on_body(self, body: bytes) -> None:
        self._arrived = 0
        if not self._given_up:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._given_up:
            self.cycle.scope["state"]["whole"] = True
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn calls it with its own text
        """Refuse bytes that cannot be parsed. A running request must not take the refusal for its own answer."""
        self._give_up(400)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def _announces_more(self) -> bool:
        """Return whether the request has more than a head: a body, or the traffic of a tunnel."""
        framing = (b"content-length", b"transfer-encoding")
        return self.parser.get_method() == b"CONNECT" or any(
            name in framing and (name, value) != (b"content-length", b"0") for name, value in self.headers
        )

    def _fits(self, size: int) -> bool:
        self._head_size += size
        return self._head_size <= MAX_HEAD

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEAD_TIMEOUT, self._expire)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if self._is_idle():
            self._give_up(408 if self._in_head else None)
        else:  # an answer is being sent, and a next request began meanwhile
            self._set_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_stall()

    def _watch_stall(self) -> None:
        self._clear_stall()
        left = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(STALL_TIMEOUT, self._check_stall, left)

    def _check_stall(self, left: int) -> None:
        if self.transport.get_write_buffer_size() < left:
            self._watch_stall()
        else:
            self.transport.abort()

    def _clear_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _give_up(self, status: int | None) -> None:
        """Close the connection. Send ``status`` first, unless it could pass for the answer to another request."""
        self._given_up = True
        if status is not None and self._is_idle():
            self.transport.write(STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
