"""A form is read the same however it is cut. Its fields stand for a request, its file ends only with a whole form."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from gateway.errors import GatewayError, StoreError
from gateway.http.body import ArrivingBody, Pace
from gateway.objects.form import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    FormBody,
    FormParser,
    is_form,
    named_fields,
    read_form,
    redirect_address,
)

BOUNDARY = "a-boundary"


TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def part(name: str, value: bytes, more: str = "", headers: str = "") -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"{more}\r\n{headers}\r\n'
    return f"--{BOUNDARY}\r\n".encode() + disposition.encode() + value + b"\r\n"


LAST = f"--{BOUNDARY}--\r\n".encode()


FILE = part("file", b"content", '; filename="a.txt"')


def parsed(*pieces: bytes) -> tuple[FormParser, bytes]:
    parser = FormParser(TYPE)
    content = b"".join([parser.feed(piece) for piece in pieces])
    parser.finish()
    return parser, content


@given(
    st.lists(st.tuples(st.from_regex(r"[a-z$-]{1,20}", fullmatch=True), st.text(max_size=50)), max_size=5),
    # Bytes that resemble a boundary, but are none.
    st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"--", b"-", BOUNDARY.encode(), b"\0", b"x"]), max_size=30),
    st.lists(st.integers(0, 2000), max_size=15),
)
def test_however_a_form_is_cut_it_says_the_same(
    fields: list[tuple[str, str]], pieces: list[bytes], places: list[int]
) -> None:
    fields = [(name, value.replace(BOUNDARY, "")) for name, value in fields if name != "file"]
    content = b"".join(pieces).replace(b"--" + BOUNDARY.encode(), b"")
    form = b"".join(part(name, value.encode()) for name, value in fields) + part("file", content) + LAST
    ends = sorted({0, len(form), *(place % len(form) for place in places)})
    parser, taken = parsed(*(form[start:end] for start, end in pairwise(ends)))
    assert parser.fields == fields
    assert taken == content


@given(st.integers(0, 400))
def test_a_form_that_ends_early_is_no_form(place: int) -> None:
    form = part("key", b"k") + FILE + LAST
    whole = len(form) - 2  # the line end after the closing boundary may be missing
    with pytest.raises(StoreError) as caught:
        parsed(form[: place % whole])
    assert caught.value.s3_code == "MalformedPOSTRequest"


@pytest.mark.parametrize(
    ("given", "filename"),
    [
        ('; filename="a.txt"', "a.txt"),
        (r'; filename="C:\dir\a.txt"', "a.txt"),
        ('; filename="../../a.txt"', "a.txt"),
        ('; filename="ä.txt"', "ä.txt"),
    ],
)
def test_the_name_of_the_file_has_no_folders(given: str, filename: str) -> None:
    assert parsed(part("file", b"", given) + LAST)[0].filename == filename


@pytest.mark.parametrize(
    ("form", "code"),
    [
        (part("key", b"k") + LAST, "IncorrectNumberOfFilesInPostRequest"),
        (LAST, "IncorrectNumberOfFilesInPostRequest"),
        (FILE + part("File", b"again") + LAST, "IncorrectNumberOfFilesInPostRequest"),
        (b"", "MalformedPOSTRequest"),
        (f"--{BOUNDARY}\r\n\r\nnameless\r\n".encode() + FILE + LAST, "MalformedPOSTRequest"),
        (f"--{BOUNDARY}\r\nContent-Disposition form-data\r\n\r\n".encode() + LAST, "MalformedPOSTRequest"),
        (part("key", b"k", headers='Content-Disposition: form-data; name="b"\r\n') + LAST, "MalformedPOSTRequest"),
        (part("file", b"YQ==", headers="Content-Transfer-Encoding: base64\r\n") + LAST, "MalformedPOSTRequest"),
        (part("key", b"k", headers=f"X-Long: {'x' * 5000}\r\n") + FILE + LAST, "MalformedPOSTRequest"),
        (part("key", b"k", headers="".join(f"X-{n}: x\r\n" for n in range(9))) + LAST, "MalformedPOSTRequest"),
        (b"".join(part(f"x{n}", b"") for n in range(MAX_FIELDS + 1)) + FILE + LAST, "MalformedPOSTRequest"),
        (part("key", b"k" * MAX_FIELD_BYTES) + FILE + LAST, "MaxPostPreDataLengthExceededError"),
        (b"".join(part(f"x{n}", b"v" * 1000) for n in range(21)) + FILE + LAST, "MaxPostPreDataLengthExceededError"),
        (part("key", b"\xff") + FILE + LAST, "InvalidArgument"),
    ],
)
def test_what_is_refused(form: bytes, code: str) -> None:
    with pytest.raises(StoreError) as caught:
        parsed(form)
    assert (caught.value.s3_code, caught.value.status) == (code, 400)


def test_a_field_that_never_ends_is_not_kept() -> None:
    parser = FormParser(TYPE)
    parser.feed(part("key", b"")[:-2])
    for _ in range(MAX_FIELD_BYTES // 1000):
        parser.feed(b"x" * 1000)
    with pytest.raises(StoreError, match="too large"):
        parser.feed(b"x" * 1000)


@pytest.mark.parametrize("boundary", ["", "; boundary=", f"; boundary={'x' * 71}", '; boundary="a "', "; boundary=ä"])
def test_an_invalid_boundary_is_refused(boundary: str) -> None:
    with pytest.raises(StoreError) as raised:
        FormParser(f"multipart/form-data{boundary}")
    assert "boundary" in str(raised.value.facts["reason"])


def test_only_multipart_form_data_is_a_form() -> None:
    assert is_form(TYPE)
    assert is_form("Multipart/Form-Data")
    assert not any(map(is_form, ["", "multipart/mixed; boundary=x", "text/plain", "x-multipart/form-data"]))


async def nothing() -> Message:
    return {"type": "http.request"}


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
        FormBody(ArrivingBody(nothing, Pace()), headers, 100)
    assert caught.value.s3_code == code


# The request that the fields of a form stand for.


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"success_action_status": "200"}, (200, None)),
        ({"success_action_status": "302"}, (204, None)),
        ({"success_action_redirect": "https://a/?b=c#d"}, (204, "https://a/?b=c&bucket=bucket&key=k%20%C3%A4&etag=%22e%22#d")),
        ({"success_action_redirect": "http://a/ä\r\nSet-Cookie: x"}, (204, "http://a/%C3%A4Set-Cookie:%20x?bucket=bucket&key=k%20%C3%A4&etag=%22e%22")),
        ({"success_action_redirect": "javascript:alert(1)"}, (204, None)),
        ({"success_action_redirect": "http://[broken"}, (204, None)),
    ],
)  # fmt: skip
def test_a_form_names_the_status_or_the_redirect_of_its_answer(fields: dict[str, str], expected: Any) -> None:
    given = [("key", "k ä"), *fields.items()]
    form = read_form(named_fields(given, "", "bucket"))
    assert (form.status, redirect_address(form, "e")) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"key": ""}, (400, "UserKeyMustBeSpecified")),
        ({"key": "a\0"}, (400, "UserKeyMustBeSpecified")),
        ({"key": "k" * 1025}, (400, "KeyTooLongError")),
        ({"content_type": "text/plain\r\nx-amz-acl: public-read"}, (400, "InvalidArgument")),
        ({"x_amz_meta_a b": "c"}, (400, "InvalidArgument")),
        ({"acl": "private", "x_amz_acl": "private"}, (400, "InvalidArgument")),
        ({"tagging": "a=b"}, (400, "MalformedXML")),
        ({"tagging": "<Tagging><TagSet><Tag><Value>1</Value></Tag></TagSet></Tagging>"}, (400, "MalformedXML")),
        ({"x_amz_checksum_crc32": "nonsense"}, (400, "InvalidRequest")),
        *(
            ({name: "x"}, (501, "NotImplemented"))
            for name in ("x_amz_content_sha256", "x_amz_trailer", "x_amz_copy_source", "x_amz_something_new")
        ),
        ({"if_match": '"e"'}, (501, "NotImplemented")),
        ({"fencing_token": "-1"}, (400, "FencingTokenMalformed")),
        ({"fencing_token": "1", "x_fencing_token": "2"}, (400, "FencingTokenMalformed")),
    ],
)
def test_fields_that_are_refused(fields: dict[str, str], expected: tuple[int, str]) -> None:
    given = {"key": "k", **{name.replace("_", "-"): value for name, value in fields.items()}}
    with pytest.raises(GatewayError) as caught:
        read_form(named_fields(given.items(), "", "bucket"))
    assert (caught.value.status, caught.value.s3_code) == expected


@pytest.mark.parametrize(
    "fields", [[("key", "a"), ("Key", "b")], [("key", "a"), ("bucket", "other")], [("acl", "private")]]
)
def test_contradictory_fields_are_refused(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(StoreError) as caught:
        read_form(named_fields(fields, "", "bucket"))
    assert caught.value.s3_code == "InvalidArgument"
