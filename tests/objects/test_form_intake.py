"""The file of a form comes out as it went in, and ends only with a form that is whole."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from gateway.errors import BodyTooLarge, StoreError
from gateway.http.body import ArrivingBody, ClientGone, Pace
from gateway.objects.body.checksums import Algorithm, Declared
from gateway.objects.body.form import FormBody, is_form_upload
from gateway.objects.writes.staging import _pieces

HEAD = (
    b'--b\r\nContent-Disposition: form-data; name="key"\r\n\r\nk\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
)
END = b"\r\n--b--\r\n"


def arriving(body: bytes, places: list[int], *, gone: bool = False) -> ArrivingBody:
    ends = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    cut = [body[start:end] for start, end in pairwise(ends)] or [b""]
    messages: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in cut]
    messages.append({"type": "http.disconnect"} if gone else {"type": "http.request"})
    left = iter(messages)

    async def receive() -> Message:
        return next(left)

    return ArrivingBody(receive, Pace())


def form(body: bytes, places: list[int], *, gone: bool = False, max_size: int = 10_000) -> FormBody:
    headers = [(b"content-type", b"multipart/form-data; boundary=b"), (b"content-length", str(len(body)).encode())]
    return FormBody(arriving(body, places, gone=gone), headers, max_size)


CONTENT = st.lists(st.sampled_from([b"\r\n--", b"b-", b"\r", b"x" * 100]), max_size=20).map(b"".join)
PLACES = st.lists(st.integers(0, 5000), max_size=12)


@given(CONTENT, PLACES)
def test_however_it_is_cut_the_file_comes_out_whole(content: bytes, places: list[int]) -> None:
    content = content.replace(b"--b", b"")
    body = HEAD + content + END

    async def take() -> None:
        one = form(body, places)
        assert await one.fields() == ([("key", "k")], "")
        assert len(content) <= one.most <= len(content + END)
        taken = await one.whole()
        assert taken.content == content
        assert taken.digests.md5 == hashlib.md5(content).hexdigest()
        assert one.proof.size == len(content)

    asyncio.run(take())


@given(st.binary(min_size=1, max_size=300), PLACES, st.sampled_from(["end", "gone", "crc", "small", "large"]))
def test_the_file_of_an_invalid_form_never_becomes_whole(content: bytes, places: list[int], fault: str) -> None:
    body = HEAD + content + (END[:-3] if fault == "end" else END)

    async def take() -> None:
        one = form(body, places, gone=fault == "gone")
        await one.fields()
        one.expect(
            Declared(Algorithm.SHA1, b"\0" * 20) if fault == "crc" else Declared(),
            len(content) + 1 if fault == "small" else 0,
            len(content) - 1 if fault == "large" else None,
        )
        async for _ in one.chunks():
            pass

    with pytest.raises((StoreError, ClientGone)):
        asyncio.run(take())


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 40))
def test_parts_of_a_body_of_unknown_length(chunks: list[bytes], size: int) -> None:
    async def arrive() -> AsyncGenerator[bytes, None]:
        for chunk in chunks:
            yield chunk

    async def cut() -> list[bytes]:
        return [bytes(piece) async for piece in _pieces(arrive(), size) if isinstance(piece, bytes)]

    pieces = asyncio.run(cut())
    assert b"".join(pieces) == b"".join(chunks)
    assert all(len(piece) == size for piece in pieces[:-1])
    assert 0 < len(pieces[-1]) <= size or (len(pieces) == 1 and not any(chunks))


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([(b"content-type", b"multipart/form-data; boundary=b")], "MissingContentLength"),
        ([(b"content-type", b"multipart/form-data"), (b"content-length", b"1")], "MalformedPOSTRequest"),
        ([(b"content-type", b"multipart/form-data; boundary=b"), (b"content-length", b"-1")], "InvalidArgument"),
        ([(b"content-type", b"multipart/form-data; boundary=b")] * 2 + [(b"content-length", b"1")], "InvalidRequest"),
    ],
)
def test_a_contradictory_head_is_refused(headers: list[tuple[bytes, bytes]], code: str) -> None:
    with pytest.raises(StoreError) as caught:
        FormBody(arriving(b"", []), headers, 100)
    assert caught.value.s3_code == code


async def test_bytes_that_may_be_a_boundary_are_counted() -> None:
    one = form(HEAD + b"\r\n--" + b"x" + END, [len(HEAD) + 4])
    await one.fields()
    assert one.most >= 5
    assert (await one.whole()).content == b"\r\n--x"


async def test_a_form_that_is_too_large_is_not_asked_for() -> None:
    with pytest.raises(BodyTooLarge):
        form(b"x" * 200_000, [], max_size=100)
    one = form(HEAD + b"x" * 101 + END, [], max_size=100)
    await one.fields()
    with pytest.raises(BodyTooLarge):
        await one.whole()


def test_a_form_is_told_by_its_media_type() -> None:
    assert is_form_upload([(b"Content-Type", b"Multipart/Form-Data; boundary=b")])
    assert not is_form_upload([(b"content-type", b"application/xml"), (b"accept", b"multipart/form-data")])
