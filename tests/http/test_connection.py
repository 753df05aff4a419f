"""No client holds a connection for nothing: incomplete heads, leftover bodies and unread answers end."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.http import connection
from gateway.http.crowd import CROWD
from tests.objects import raw
from tests.objects.object_gateway import staged
from tests.running import API_KEY
from tests.serving_app import served
from tests.waiting import PATIENCE

OK = b"HTTP/1.1 200 OK\r\n"
asked: list[bytes] = []
sent: list[int] = []
headers_seen: list[object] = []
gone = asyncio.Event()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once; ``/slow`` after a second, ``/body`` with the body's length, ``/large`` with 64 MiB.

    ``/endless`` sends while its client is connected; ``/waiting`` waits until its client is gone. ``/narrow`` answers
    with 128 KiB, of which the kernel takes little: the rest does not make the answer pause.
    """
    if scope["raw_path"] == b"/endless":
        await endless(scope, send)
        return
    if scope["raw_path"].startswith(b"/pieces/"):
        await pieces(scope, send)
        return
    asked.append(scope["raw_path"])
    if scope["raw_path"] == b"/waiting":
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        return
    body = b"short"
    if scope["raw_path"] == b"/slow":
        await asyncio.sleep(1)
    if scope["raw_path"] == b"/large":
        body = bytes(64 * 1024 * 1024)
    if scope["raw_path"] == b"/narrow":
        transport = scope["state"]["abort"].__self__
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        body = bytes(128 * 1024)
    if scope["raw_path"] == b"/body":
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        body = str(size).encode()
        headers_seen.append(scope["headers"])
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def pieces(scope: Any, send: Any) -> None:
    """Answer in pieces: with its path's second name the seconds between head and body, or the size of each piece."""
    _, name, value = scope["raw_path"].split(b"/")[1:]
    body = b"x" * int(value) if name == b"size" else b"late"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if name == b"pause":
        await asyncio.sleep(float(value))
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def endless(scope: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % 2**40)]})
    while not scope["state"]["gone"]():
        await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
        sent.append(65536)
        await asyncio.sleep(0)
    sent.append(0)


@pytest.fixture
def impatient(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits less than half a second. Only for what does not come: all else may take longer than that."""
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.4)
    monkeypatch.setattr(connection, "STALL_TIMEOUT", 0.4)


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 2 * PATIENCE)
    asked.clear()
    sent.clear()
    headers_seen.clear()
    gone.clear()
    async with served(app) as port:
        yield port


async def exchange(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Send the pieces as long as the server listens, and read until it closes, for as long as a test waits at most."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(until_closed(reader))
        for piece in pieces:
            if reading.done():
                break
            writer.write(piece)
            await asyncio.sleep(pause)
    writer.close()
    return reading.result()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    came = b""
    try:
        async with asyncio.timeout(PATIENCE):
            while piece := await reader.read(65536):
                came += piece
    except ConnectionError:
        pass
    except TimeoutError:
        came += b"<still open>"
    return came


def head(size: int, path: bytes = b"/") -> bytes:
    return b"GET %s HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: %s\r\n\r\n" % (path, b"a" * size)


COOKIES = [
    ([b'a="\\054\\"x\\""; b=c'], 200),
    ([b'a="%s"' % (b'\\"' * 30_000)], 431),
    ([b'a="%s"' % (b'\\"' * 60)] * 2, 431),
]


async def test_cookies_with_many_escapes_are_refused_before_anything_reads_them(port: int) -> None:
    """Python takes seconds to read them, and the page and the API let frameworks read the cookies of any stranger."""
    for cookies, status in COOKIES:
        fields = b"".join(b"Cookie: %s\r\n" % one for one in cookies)
        answer = await exchange(port, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n%s\r\n" % fields)
        assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.thorough
@pytest.mark.parametrize("step", [10_000, 10_000_000])
async def test_heads_of_any_size(port: int, step: int) -> None:
    """Bytes that arrive while the connection closes may discard the answer. The app gets no request all the same."""
    for request_head, status in (
        (head(60_000), 200),
        (head(70_000), 431),
        (head(10, b"/" + b"a" * 70_000), 431),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 1_000_000, 431),
    ):
        asked.clear()
        answer = await exchange(port, *(request_head[at : at + step] for at in range(0, len(request_head), step)))
        assert answer.startswith(b"HTTP/1.1 %d " % status) or (status == 431 and answer == b"")
        assert bool(asked) is (status == 200)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "pieces",
    [[b""], [b"GET / HT"], [b"GET / HTTP/1.1\r\n", *[b"x: y\r\n"] * 30], [b"\r\n"] * 30],
    ids=["nothing", "the beginning of one", "one that trickles", "empty lines"],
)
@pytest.mark.usefixtures("impatient")
async def test_a_head_has_to_come(port: int, pieces: list[bytes]) -> None:
    answer = await exchange(port, *pieces, pause=0.05)
    assert answer in (b"", b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    assert not asked


@pytest.mark.thorough
@pytest.mark.usefixtures("impatient")
async def test_an_answer_a_body_and_a_connection_in_use_may_take_their_time(port: int) -> None:
    answer = await exchange(port, head(10, b"/slow"))
    assert answer.startswith(OK)
    assert answer.endswith(b"short")
    start = b"PUT /body HTTP/1.1\r\nconnection: close\r\ncontent-length: 100\r\n\r\n"
    answer = await exchange(port, start, *[b"x" * 5] * 20, pause=0.05)
    assert answer.endswith(b"\r\n\r\n100")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.readuntil(b"short")).startswith(OK)
        await asyncio.sleep(0.5)
    writer.close()


@pytest.mark.usefixtures("impatient")
async def test_what_is_left_of_a_body_after_the_answer_has_to_come(port: int) -> None:
    """The answer came early; a client that goes on for ever would keep its connection for ever."""
    start = b"PUT / HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n"
    answer = await exchange(port, start, *[b"x"] * 30, pause=0.05)
    assert answer.startswith(OK)
    assert answer.endswith(b"short")


async def test_after_the_rest_of_a_body_the_connection_can_be_used_again(port: int) -> None:
    start = b"PUT / HTTP/1.1\r\ncontent-length: 10\r\n\r\n"
    answer = await exchange(port, start, b"x" * 5, b"x" * 5, head(10, b"/again"), pause=0.05)
    assert answer.count(OK) == 2
    assert asked == [b"/", b"/again"]


CHUNKED = b"PUT /body HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [b"0\r\n", *[b"x: " + b"y" * 9_000 + b"\r\n"] * 100],
        [b"0\r\n", b"x: ", *[b"y" * 9_000] * 100],
        [b"5;x=", *[b"y" * 9_000] * 100],
    ],
    ids=["many trailers", "one long trailer", "the extension of a chunk"],
)
async def test_trailers_count_against_the_limit_of_the_head(port: int, pieces: list[bytes]) -> None:
    """The request may be under way, so the connection ends without an answer: its outcome is unknown."""
    assert await exchange(port, CHUNKED, *pieces, pause=0.001) == b""


async def test_a_request_under_way_does_not_get_the_refusal_of_what_follows_it(port: int) -> None:
    """It may take effect. Its client must not read in a 400 that it does not. That goes for a broken body, too."""
    for garbage in (b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"):
        assert await exchange(port, b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n" + garbage) == b""
        assert (await exchange(port, garbage)).startswith(b"HTTP/1.1 400 ")
    broken = b"DELETE /slow HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n"
    assert await exchange(port, broken) == b""


async def test_so_many_requests_may_wait_on_a_connection_and_no_more(port: int) -> None:
    """Each takes memory. They may be carried out already, so they are answered before the connection ends."""
    first, waiting = b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
    most = waiting * (connection.MOST_PIPELINED - 1)
    assert (await exchange(port, first + most + head(1))).count(b"HTTP/1.1 200 ") == connection.MOST_PIPELINED + 1
    for more in (waiting, waiting + b"GET /#fragment HTTP/1.1\r\n", waiting + b"no HTTP\r\n\r\n", waiting * 100):
        answers = await exchange(port, first + waiting + most + more)
        assert answers.count(b"HTTP/1.1 200 ") == connection.MOST_PIPELINED + 1
        assert answers.count(b"connection: close") == 1, "the last one says so"


async def test_a_coding_of_the_body_that_is_not_served_is_refused(port: int) -> None:
    for coding in (b"gzip, chunked", b"identity, chunked", b"chunked, chunked", b"x"):
        answer = await exchange(port, CHUNKED.replace(b"chunked", coding) + b"5\r\nhello\r\n0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
    assert not asked


async def test_a_request_learns_that_its_client_is_gone_though_others_follow_it(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /waiting HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await asyncio.sleep(0.1)
    writer.transport.abort()
    async with asyncio.timeout(PATIENCE):
        await gone.wait()


async def test_trailers_are_dropped(port: int) -> None:
    answer = await exchange(
        port, CHUNKED + b"5\r\nhello\r\n0\r\nexpect: 100-continue\r\nx: y\r\n\r\n", head(10, b"/again")
    )
    assert answer.count(OK) == 2
    assert headers_seen[0] == ((b"host", b"a"), (b"transfer-encoding", b"chunked"))


@pytest.mark.thorough
@pytest.mark.usefixtures("impatient")
async def test_an_unread_answer_ends_the_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(head(10, b"/large"))
    await asyncio.sleep(1)
    assert len(await until_closed(reader)) < 64 * 1024 * 1024
    writer.close()


@pytest.mark.usefixtures("impatient")
async def test_an_unread_rest_of_an_answer_ends_the_connection(port: int) -> None:
    """The request is over for the gateway. Its connection must not wait for ever until the rest can be sent."""
    for fields in (b"", b"connection: close\r\n"):
        with socket.socket() as narrow:
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            narrow.setblocking(False)  # noqa: FBT003 - the signature of the standard library
            await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", port))
            before = CROWD.open
            reader, writer = await asyncio.open_connection(sock=narrow, limit=1024)
            writer.write(b"GET /narrow HTTP/1.1\r\nhost: a\r\n%s\r\n" % fields)
            async with asyncio.timeout(PATIENCE):
                while CROWD.open >= max(before, 1):
                    await asyncio.sleep(0.01)
            assert len(await until_closed(reader)) < 128 * 1024
            writer.close()


async def test_a_client_that_goes_before_its_body_leaves_nothing_to_collect(port: int) -> None:
    """The process collects rarely, so no object of a connection may refer to itself once it is lost."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            gone.clear()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /waiting HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf")
            async with asyncio.timeout(PATIENCE):
                while not asked:
                    await asyncio.sleep(0.01)
                asked.clear()
                writer.transport.abort()
                while not gone.is_set() or any(
                    issubclass(type(one), connection.Connection) for one in gc.get_objects()
                ):
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_a_handler_that_sends_much_learns_that_its_client_is_gone(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(10, b"/endless"))
    await reader.readexactly(1_000_000)
    writer.close()
    async with asyncio.timeout(PATIENCE):
        while not sent or sent[-1]:
            await asyncio.sleep(0.01)


UPGRADE = b"host: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "framed",
    [
        b"POST /body HTTP/1.1\r\n" + UPGRADE + b"content-length: 39\r\n\r\n",
        b"GET /body HTTP/1.1\r\n" + UPGRADE + b"content-length: 39\r\n\r\n",
        b"POST /body HTTP/1.1\r\n" + UPGRADE + b"transfer-encoding: chunked\r\n\r\n",
        b"CONNECT /body HTTP/1.1\r\nhost: a\r\ncontent-length: 39\r\n\r\n",
        b"CONNECT /body HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
)
@pytest.mark.parametrize("pause", [0.0, 0.1])
@pytest.mark.usefixtures("impatient")
async def test_the_body_of_a_request_that_asks_for_an_upgrade_is_no_request(
    port: int, framed: bytes, pause: float
) -> None:
    """The parser leaves such a body out, and would take it for what comes next."""
    inner = b"GET /inner HTTP/1.1\r\nhost: a\r\nx: abcd\r\n\r\n"
    answer = await exchange(port, framed, inner, pause=pause)
    assert asked == []
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert not answer.endswith(b"<still open>")


@pytest.mark.thorough
@pytest.mark.parametrize("pieces", [[b"content-length: 0\r\n\r\n"], [b"\r\n"], [b"\r\n", head(1)], [b"\r\n" + head(1)]])
@pytest.mark.usefixtures("impatient")
async def test_a_request_that_asks_for_an_upgrade_is_answered_and_is_the_last(port: int, pieces: list[bytes]) -> None:
    answer = await exchange(port, b"GET /plain HTTP/1.1\r\n" + UPGRADE + pieces[0], *pieces[1:], pause=0.1)
    assert asked == [b"/plain"]
    assert answer.startswith(OK)
    assert b"connection: close" in answer
    assert answer.endswith(b"short")


# A client that reads once has a small answer whole.


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The writes to the transports of connections. Each is a packet."""
    pieces, made = list[bytes](), connection.Connection.connection_made

    def watched(self: connection.Connection, transport: Any) -> None:
        write = transport.write

        def recorded(data: bytes) -> None:
            pieces.append(bytes(data))
            write(data)

        transport.write = recorded
        made(self, transport)

    monkeypatch.setattr(connection.Connection, "connection_made", watched)
    return pieces


async def test_head_and_body_are_one_write(port: int, written: list[bytes]) -> None:
    got = await exchange(port, b"GET /one HTTP/1.1\r\nhost: a\r\n\r\nGET /two HTTP/1.1\r\nhost: a\r\n\r\n", head(0))
    assert got.count(b"short") == 3
    assert [each.startswith(OK) and each.endswith(b"\r\n\r\nshort") for each in written] == [True] * 3


async def test_an_answer_without_a_body_is_one_write(port: int, written: list[bytes]) -> None:
    await exchange(port, b"HEAD / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    (only,) = written
    assert only.startswith(OK)
    assert only.endswith(b"\r\n\r\n")


async def test_a_head_does_not_wait_for_a_late_body(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(0, b"/pieces/pause/%d" % (2 * PATIENCE)))
    async with asyncio.timeout(PATIENCE):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)
    writer.close()


async def test_a_large_piece_is_not_copied_for_its_head(port: int, written: list[bytes]) -> None:
    got = await exchange(port, head(0, b"/pieces/size/100000"))
    assert got.count(b"x") >= 100_000
    assert len(written[0]) < 1000
    written.clear()
    await exchange(port, head(0, b"/pieces/size/1000"))
    assert len(written[0]) > 1000
    assert b"".join(written[1:]) == b"0\r\n\r\n"
    assert len(written) == 2


async def test_a_body_is_asked_for_before_there_is_a_head(port: int, written: list[bytes]) -> None:
    asking = b"PUT /body HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    await exchange(port, asking, b"abc", pause=0.2)
    assert written[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(written) == 2
    assert written[1].endswith(b"\r\n\r\n3")


async def test_on_each_plane(postgres_server: EmbeddedPostgres, written: list[bytes]) -> None:
    async with staged(postgres_server) as stage:
        await stage.rows("CREATE TABLE words (id bigint PRIMARY KEY, word text)")
        await stage.rows("INSERT INTO words VALUES (1, 'hello')")
        await stage.knows("words")
        token, key = ("fencing-token", "1"), f"Bearer {API_KEY}"

        def signed(method: str, target: str, *headers: tuple[str, str]) -> bytes:
            return raw.head(stage.origin, method, target, headers)

        def plain(method: str, target: str, *headers: tuple[str, str]) -> bytes:
            return raw.lines(method, target, [("host", "a"), ("authorization", key), *headers])

        for request, status in (
            (signed("PUT", "/bucket/key", token, ("content-length", "3")) + b"abc", 200),
            (signed("GET", "/bucket/key"), 200),
            (signed("HEAD", "/bucket/key"), 200),
            (signed("GET", "/bucket?list-type=2"), 200),
            (signed("GET", "/bucket/absent"), 404),
            (signed("PUT", "/bucket/key", ("content-length", "0")), 428),
            (signed("DELETE", "/bucket/key", token), 204),
            *[(plain("GET", "/v1/tables/words?id=eq.1"), 200)] * 3,
            (plain("GET", "/v1/tables/words?nothing=eq.1"), 400),
            *[(plain("DELETE", "/v1/tables/words?id=eq.1", token), 204)] * 3,
            (plain("GET", "/v1/fences/a/b"), 200),
            (plain("GET", "/v1/rejections.ndjson"), 200),
            (plain("GET", "/v1/nothing"), 404),
        ):
            written.clear()
            reply = await raw.ask(stage.origin, request)
            assert (reply.status, len([one for one in written if one])) == (status, 1), request
