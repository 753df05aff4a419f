"""The reader that the gateway is held against reads as RFC 9112 has it."""

import pytest

from tests.fuzz.reading import Message, answers, requests

HOST = b"Host: a\r\n"
GET = b"GET /next HTTP/1.1\r\n" + HOST + b"\r\n"


def only(data: bytes) -> Message:
    (message,) = requests(data)
    return message


def post(fields: bytes, body: bytes = b"", start: bytes = b"POST /x HTTP/1.1\r\n") -> bytes:
    return start + HOST + fields + b"\r\n" + body


def test_requests_behind_one_another() -> None:
    length = post(b"Content-Length: 5\r\n", b"hello")
    chunked = post(b"Transfer-Encoding: chunked\r\n", b'2;a="b;c"\r\nhe\r\n03\r\nllo\r\n0\r\nAuthorization: x\r\n\r\n')
    found = requests(length + chunked + GET)
    assert [(one.method, one.target, one.body, one.whole, one.doubtful) for one in found] == [
        ("POST", "/x", b"hello", True, False),
        ("POST", "/x", b"hello", True, False),
        ("GET", "/next", b"", True, False),
    ]
    assert found[-1].end == len(length + chunked + GET)


def test_trailers_are_no_headers() -> None:
    message = only(post(b"Transfer-Encoding: chunked\r\n", b"0\r\nAuthorization: x\r\n\r\n"))
    assert message.whole
    assert message.header("authorization") is None


@pytest.mark.parametrize(
    "data",
    [
        post(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello"),
        post(b"Content-Length: 5, 5\r\n", b"hello"),
        post(b"Content-Length: -1\r\n"),
        post(b"Content-Length: +5\r\n", b"hello"),
        post(b"Transfer-Encoding: gzip\r\n", b"0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked\r\n", b"-1\r\n"),
        post(b"Transfer-Encoding: chunked\r\n", b"0x1\r\na\r\n0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked\r\n", b"1\r\nab\r\n0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked\r\n", b"1\na\r\n0\r\n\r\n"),
        post(b"X : y\r\n"),
        post(b"X: a\0b\r\n"),
        post(b"X: a\rb\r\n"),
        post(b"", start=b"POST /x y HTTP/1.1\r\n"),
        post(b"", start=b"CONNECT a:80 HTTP/1.1\r\n"),
        post(b"X: " + b"a" * 70_000 + b"\r\n"),
    ],
)
def test_faulty_framing_ends_a_connection(data: bytes) -> None:
    message = only(data + GET)
    assert message.fault is not None
    assert not message.whole


@pytest.mark.parametrize(
    "data",
    [
        GET.replace(b"\r\n", b"\n"),
        GET.replace(HOST, b""),
        post(b"X: a\r\n b\r\n"),
        post(b"Transfer-Encoding: chunked\r\n", b"0\r\nContent-Length: 5\r\n\r\n"),
        post(b"Connection: upgrade\r\nUpgrade: h2c\r\n"),
    ],
)
def test_what_a_server_may_refuse_is_doubtful(data: bytes) -> None:
    message = only(data)
    assert message.whole
    assert message.doubtful


@pytest.mark.parametrize("data", [post(b"Connection: close\r\n"), GET.replace(b"1.1", b"1.0")])
def test_nothing_is_served_behind_the_last(data: bytes) -> None:
    assert only(data + GET).last


@pytest.mark.parametrize(
    "data", [GET[:-1], post(b"Content-Length: 5\r\n", b"hell"), post(b"Transfer-Encoding: chunked\r\n", b"5\r\nhe")]
)
def test_what_is_broken_off_is_not_whole(data: bytes) -> None:
    message = only(data)
    assert not message.whole
    assert message.fault is None


def test_answers() -> None:
    interim, empty = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"
    said = interim + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\nok" + empty
    assert [(one.status, one.body, one.complete) for one in answers(said, ["GET", "GET"])] == [
        (200, b"ok", True),
        (204, b"", True),
    ]
    (head,) = answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", ["HEAD"])
    assert head.complete


@pytest.mark.parametrize(
    "said",
    [b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 200 OK\nA: b\r\n\r\n", b"HTTP/1.1 200 OK\r\nA b\r\n\r\n", b"rubbish\r\n"],
)
def test_what_is_no_answer(said: bytes) -> None:
    (answer,) = answers(said, ["GET"])
    assert answer.fault is not None
