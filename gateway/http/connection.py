"""A client's connection: uvicorn's, with limits on the size and the time of heads, trailers and idling.

uvicorn's parser collects heads of any size, and stops its only clock at the first byte of a head. It appends trailers
to the headers of a request that is already running. It leaves out the body of a request that asks for another protocol,
and reads these bytes as the next request. ``gateway.http.body`` limits bodies.
"""

from asyncio import AbstractEventLoop, Event, Handle, TimerHandle, Transport
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any, cast

from httptools import HttpRequestParser
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.auth.principal import ClientCertificate
from gateway.errors import Overloaded
from gateway.fencing.record import ANONYMOUS
from gateway.http import head
from gateway.http.crowd import Seat
from gateway.http.middleware import Middleware
from gateway.http.turns import Credentials, Timed, Turn, Turns

MAX_HEAD = 64 * 1024
"""Bytes of a request's line, headers and trailers. S3's come to 8 KiB at most, metadata included."""
HEAD_TIMEOUT = 20.0
"""Seconds until a head must be complete, and until the rest of the body of an answered request must have arrived.
The handshake of TLS has as long."""
HOLD = 0.02
"""Seconds until a request gets a task whose body did not come with its head."""
KEEP_ALIVE = 75
"""Seconds for which an idle connection is kept. Load balancers keep theirs shorter, so they close it first."""
MOST_PIPELINED = 64
"""Requests of a connection that wait for the answer before theirs. One packet can have thousands, of several
kilobytes each. The connection ends after the answers to so many."""
STALL_TIMEOUT = 30.0
"""Seconds in which a client must take some of its answer."""
# Bytes that are buffered for a slow client before the answer pauses. At uvloop's 64 KiB every piece of a large answer
# waits, which costs a third more processor time. More than this gains nothing.
_WRITE_AHEAD = 256 * 1024
_JOINED = 64 * 1024
"""Bytes of a body that are joined with the head before them. To copy more would cost more than a packet."""
_CONTINUE = b"HTTP/1.1 100 Continue"
_CODING, _COOKIE = b"transfer-encoding", b"cookie"
_CREDENTIALS = frozenset((b"authorization", b"apikey", _COOKIE))
MOST_ESCAPES = 100
"""Backslashes in the cookies of a request. Older releases of Python 3.11 to 3.13 read many in quadratic time, which
takes seconds (CVE-2024-7592). The gateway's own cookies have none."""


def _is_named(cycle: RequestResponseCycle) -> bool:
    """Return whether the caller of a request has proven a name."""
    return bool(cycle.scope["state"].get("caller", ANONYMOUS) != ANONYMOUS)


class Answers(Transport):
    """The transport of a connection's answers. A head leaves with the body that follows in the same turn of the loop.

    Some clients read once, and take what has arrived for the whole of a small answer. uvicorn writes the head alone.
    """

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        super().__init__()
        self._transport, self._loop = transport, loop
        self._is_head, self._head = True, b""
        self._held: Handle | None = None

    def write(self, data: Any) -> None:
        if self._held is not None:
            joined = len(data) <= _JOINED
            self._send_head(data if joined else b"")
            if joined:
                return
        elif self._is_head and not data.startswith(_CONTINUE):
            self._is_head, self._head = False, data
            self._held = self._loop.call_soon(self._send_head)
            return
        self._transport.write(data)

    def end(self) -> None:
        """Note that an answer is complete: what comes next is another head."""
        self._send_head()
        self._is_head = True

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _send_head(self, more: bytes = b"") -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None
            if not self._transport.is_closing():
                self._transport.write(self._head + more)


class Connection(HttpToolsProtocol):
    """One connection. The deadline runs while no request is being served."""

    _awaits_body = False
    _certificate: ClientCertificate | None = None
    _seal = b""
    _deadline: TimerHandle | None = None
    _stall: TimerHandle | None = None
    _in_head = False
    _head_size = 0  # of the fields that are complete
    _escapes = 0  # in its cookies
    _arrived = 0  # bytes since the head began or a piece of the body came, from the second packet on
    _given_up = False
    _shown: Credentials = ()
    _active: RequestResponseCycle | None = None
    """The request that is being served. Later ones of the same connection wait for it."""
    _is_between = True  # the parser has seen no byte of a next request
    _direct: bytes | None = None
    """The request that is being answered without a task, and that the parser has not seen."""
    _held = b""
    """A request with a known head that has no task yet, because the rest of its body may be there in a moment."""
    _hold: TimerHandle | None = None
    _behind = b""  # the bytes after it
    _handed_over: Mapping[str, Any] | None = None  # the state of the next request that the parser sees
    _is_last = False  # the last request of the connection: nothing after it is read
    _answered = float("-inf")  # when the last request without a task was answered, by the clock of the loop

    def __init__(self, seat: Seat, **options: Any) -> None:
        """``options``: those of uvicorn's."""
        super().__init__(**options)
        self._seat = seat

    def _make_way(self) -> None:
        """Close at once. To wait until the client has read or said goodbye would make no room.

        A request whose body is not complete has written nothing, and its handler learns that the client is gone.
        Bodies for tables, locks and forms of the API are read whole first. A streamed object is an upload, which is
        completed once its body is proven, and aborted here. The last piece of a part that a client uploads goes to the
        store only with this proof. A write whose answer is not read has its outcome: the client does not know it, as
        after any lost connection.
        """
        self._given_up = True
        self.transport.abort()

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._seat.close, self._given_up = self._make_way, self._seat.has_made_way
        transport.set_write_buffer_limits(high=_WRITE_AHEAD)
        self._answers = Answers(transport, self.loop)
        self._stopping = Event()
        # TLS has verified a certificate that has contents here. It is the connection's for as long as that lasts.
        if decoded := transport.get_extra_info("peercert"):
            tls: Any = transport.get_extra_info("ssl_object")
            self._certificate = ClientCertificate.of(decoded, tls.getpeercert(binary_form=True))
            self._seal = head.seal(self._certificate)
            if tls.context.authorities != cast("Any", self.config.ssl).authorities:
                self._give_up(None)  # the authorities were replaced during its handshake
        self._serving = self.app if isinstance(self.app, Middleware) else None
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._parse_held()
        if self._active is not None and self._active is not self.cycle and not self._active.response_complete:
            # uvicorn notifies the newest request only, which need not have begun.
            self._active.disconnected = True
            self._active.message_event.set()
        self._behind = b""
        if self.cycle is not None:  # without this, objects that refer to each other would wait for a collection
            self.cycle.scope["state"].pop("await_body", None)
        self._seat.leave()
        self._clear_deadline()
        self._clear_stall()
        self._unset_keepalive_if_required()  # uvicorn lets it run after an error
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._given_up or self._is_last:
            return
        if self._direct is not None:  # requests are answered in their order
            self._behind += data
            self.flow.pause_reading()
            return
        held = b"" if self._hold is None else self._released()
        data = held + data
        serving, packet = self._serving, None
        if serving is not None and self._is_between and self._is_idle() and not self.flow.write_paused:
            packet = serving.read(data, self._seal)
        if serving is None or packet is None:
            self._parse(data)
        elif packet.prepared is None:
            self._parse(data)
            if not (self._in_head or self._given_up) and self.cycle.keep_alive:
                serving.learn(packet, cast("Scope", self.cycle.scope))
        elif packet.missing:
            self._held, self._hold = data, self.loop.call_later(0 if held else HOLD, self._parse_held)
            self._seat.busy()
        else:
            self._direct = data
            if serving.begin(packet.prepared, packet, self):
                self._set_busy()
            else:
                self._direct = None
                self._parse(data)

    def _released(self) -> bytes:
        """Return the bytes that are held, which are not held any more."""
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
        data, self._held = self._held, b""
        return data

    def _parse_held(self) -> None:
        """Let the parser have the bytes that are held: the rest does not come soon enough."""
        if self._held:
            self._parse(self._released())

    def _parse(self, data: bytes) -> None:
        self._arrived += len(data)
        super().data_received(data)
        # No body came of it: a head, trailers, or extensions of chunks, which the parser collects.
        if self._arrived > MAX_HEAD:
            self._give_up(431 if self._in_head else None)
        elif self._deadline is None and (self._in_head or self._is_idle()):
            self._set_deadline()
        if self.cycle is not None and self.cycle.more_body:
            self.cycle.scope["state"]["await_body"] = self._await_body

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the whole answer to the request that has no task, as uvicorn sends those of tasks."""
        is_last = self._stopping.is_set() and not self._behind
        last = ((b"connection", b"close"),) if is_last else ()
        lines = b"\r\n".join(map(b": ".join, (*self.server_state.default_headers, *headers, *last)))
        self._direct = None
        if self.parser is not None:
            self.transport.write(b"%b%b\r\n\r\n%b" % (STATUS_LINE[status], lines, body))
        if is_last:
            self.transport.close()
        self.server_state.total_requests += 1
        self._answered = self.loop.time()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.timeout_keep_alive_task is None:
                self._keep_alive(self.timeout_keep_alive)
        self._note_idle()
        if self._behind or self._stopping.is_set():
            self._go_on()

    def start_task(self, state: Mapping[str, Any]) -> None:
        """Let a task answer the request that has none yet. ``state`` goes into its scope."""
        assert self._direct is not None
        data, self._direct, self._handed_over = self._direct, None, state
        is_lost = self.parser is None
        if is_lost:  # its client is gone, and it goes on nevertheless, as in a task from the start
            self.parser = HttpRequestParser(self)
        self._parse(data)
        if is_lost:
            self.parser, self.cycle.disconnected = None, True  # type: ignore[assignment]  # as uvicorn has it
        self._go_on()

    def _go_on(self) -> None:
        """Read what has come after a request without a task, which is over."""
        data, self._behind = self._behind, b""
        if data:
            self.data_received(data)
        if self._stopping.is_set():
            self.shutdown()

    def on_message_begin(self) -> None:
        self._in_head, self._is_between = True, False
        self._head_size = self._arrived = self._escapes = 0
        super().on_message_begin()
        if self._handed_over is not None:
            self.scope["state"].update(self._handed_over)
            self._handed_over = None
        if self._certificate is not None:
            self.scope["state"]["certificate"] = self._certificate
        # uvicorn silently drops bytes for a client that is gone. A handler that sends much can check.
        self.scope["state"]["gone"] = self.transport.is_closing
        self.scope["state"]["abort"] = self.transport.abort
        self.scope["state"]["stopping"] = self._stopping

    def shutdown(self) -> None:
        """Tell the requests that only wait that the server stops, because it waits for pending requests."""
        self._stopping.set()
        self._parse_held()
        if self._direct is None:
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
            if len(name) == len(_COOKIE) and name.lower() == _COOKIE:
                self._escapes += value.count(b"\\")
                fits = fits and self._escapes <= MOST_ESCAPES
                if not fits:
                    self._give_up(431)
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
        elif len(self.pipeline) >= MOST_PIPELINED:
            # To end it at once would take the answers from requests that may have been carried out.
            self._given_up, self.cycle.keep_alive = True, False
        elif upgrade and self._announces_more():
            self._give_up(400)
        if not self._given_up:
            self._set_busy()
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
        self._is_between = True
        if not self._given_up:
            state = self.cycle.scope["state"]
            state["whole"] = True
            if state.pop("await_body", None) is not None:
                self._await_body(is_over=True)
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn calls it with its own text
        """Refuse bytes that cannot be parsed. A running request must not take the refusal for its own answer."""
        self._give_up(400)

    def on_response_complete(self) -> None:
        self._answers.end()
        super().on_response_complete()
        if self._is_idle():
            self._note_idle()

    def _note_idle(self) -> None:
        """Note that no request is under way."""
        if self._seat.idle() and self.transport.get_write_buffer_size():
            self._watch_stall()  # the connection would last until the client reads

    def _keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for so long.

        uvicorn stops this clock at each request, and starts it again. Requests without a task let it run: a look now
        and then costs less.
        """
        self.timeout_keep_alive_task = None
        if self._direct is not None or self._held:
            return  # its answer starts the clock
        left = self._answered + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._keep_alive(left)
        else:
            super().timeout_keep_alive_handler()

    def _set_busy(self) -> None:
        """Note that a request is being served."""
        if self._deadline is not None:
            self._clear_deadline()
        is_unread = self.flow.write_paused  # the answer before
        self._seat.busy(awaits_client=is_unread)
        if self._stall is not None and not is_unread:
            self._clear_stall()

    def _await_body(self, *, is_over: bool = False) -> None:
        """Note that the request under way waits for more of its body, or does so no more."""
        self._awaits_body = not is_over
        self._note_waiting()

    def _note_waiting(self) -> None:
        """Note whether the request under way waits for its client."""
        if not self._is_idle():
            self._seat.busy(awaits_client=self._awaits_body or self.flow.write_paused)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        before, self._active = self._active, cycle
        cycle.transport = self._answers
        shown, self._shown = self._shown, self._credentials(cycle)
        serving = self._serving
        if serving is None or "arrival" in cycle.scope["state"]:  # it began without a task, and may have written
            super()._start_asgi_task(cycle, app)
        elif before is not None and _is_named(before) and shown and shown == self._shown:
            serving.turns.named = perf_counter()
            super()._start_asgi_task(cycle, app)
        else:
            self._take_turn(cycle, app, serving.turns)

    def _take_turn(self, cycle: RequestResponseCycle, app: Any, turns: Turns) -> None:
        """Start the task of a request in its turn: its caller is not known. Until then its connection may make way."""
        start_task, is_waiting = super()._start_asgi_task, True

        def start(turn: Turn, late: Overloaded | None) -> None:
            nonlocal is_waiting
            is_waiting = False

            def count(seconds: float) -> None:
                turn.count(seconds)
                if _is_named(cycle):
                    turn.prove()

            async def timed(scope: Scope, receive: Receive, send: Send) -> None:
                try:
                    await Timed(app(scope, receive, send), count)
                finally:
                    turn.end()

            if cycle.disconnected:
                turn.end()
                return
            if late is not None:
                cycle.scope["state"]["overloaded"] = late
            self._note_waiting()
            start_task(cycle, cast("Any", timed))

        turns.enter(self.client and self.client[0], self._shown, start)
        if is_waiting:
            self._seat.busy(awaits_client=True)

    def _credentials(self, cycle: RequestResponseCycle) -> Credentials:
        """Return the credentials of a request that are the same in each one of its owner. Signatures are not."""
        shown = [value for name, value in cycle.scope["headers"] if name in _CREDENTIALS]
        shown = [value.partition(b"/")[0] if value.startswith(b"AWS4-") else value for value in shown]
        if self._certificate is not None:
            shown.append(self._seal)
        return tuple(shown)

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
        return self._direct is None and (self.cycle is None or self.cycle.response_complete)

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
        self._note_waiting()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_stall()
        self._note_waiting()

    def _watch_stall(self) -> None:
        self._clear_stall()
        left = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(STALL_TIMEOUT, self._check_stall, left)

    def _check_stall(self, left: int) -> None:
        size = self.transport.get_write_buffer_size()
        if not size:
            self._stall = None
        elif size < left:
            self._watch_stall()
        else:
            self.transport.abort()

    def _clear_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _give_up(self, status: int | None) -> None:
        """Close the connection. Send ``status`` first, unless it could pass for the answer to another request."""
        if self._given_up:
            return  # it ends already, perhaps after answers that are still to come
        self._given_up = True
        if status is not None and self._is_idle():
            self.transport.write(STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self._answers.close()
