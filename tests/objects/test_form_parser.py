"""A form is read the same however it is cut, and what is no whole form never ends well."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import StoreError
from gateway.objects.body.form import MAX_FIELD_BYTES, MAX_FIELDS, FormParser, is_form

BOUNDARY = "a-boundary"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def part(name: str, value: bytes, more: str = "", headers: str = "") -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"{more}\r\n{headers}\r\n'
    return f"--{BOUNDARY}\r\n".encode() + disposition.encode() + value + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
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
    form = b"".join(part(name, value.encode()) for name, value in fields) + part("file", content) + END
    ends = sorted({0, len(form), *(place % len(form) for place in places)})
    parser, taken = parsed(*(form[start:end] for start, end in pairwise(ends)))
    assert parser.fields == fields
    assert taken == content


@given(st.integers(0, 400))
def test_a_form_that_ends_early_is_no_form(place: int) -> None:
    form = part("key", b"k") + FILE + END
    whole = len(form) - 2  # the line end after the closing boundary may be missing
    with pytest.raises(StoreError) as caught:
        parsed(form[: place % whole])
    assert caught.value.s3_code == "MalformedPOSTRequest"


def test_fields_after_the_file_have_no_effect() -> None:
    parser, content = parsed(part("key", b"k") + FILE + part("acl", b"public-read") + END + b"epilogue")
    assert (parser.fields, content) == ([("key", "k")], b"content")


@pytest.mark.parametrize(
    ("given", "filename"),
    [
        ('; filename="a.txt"', "a.txt"),
        (r'; filename="C:\dir\a.txt"', "a.txt"),
        ('; filename="../../a.txt"', "a.txt"),
        ('; filename="ä.txt"', "ä.txt"),
        ("", ""),
    ],
)
def test_the_name_of_the_file_has_no_folders(given: str, filename: str) -> None:
    assert parsed(part("file", b"", given) + END)[0].filename == filename


@pytest.mark.parametrize(
    ("form", "code"),
    [
        (part("key", b"k") + END, "IncorrectNumberOfFilesInPostRequest"),
        (END, "IncorrectNumberOfFilesInPostRequest"),
        (FILE + FILE + END, "IncorrectNumberOfFilesInPostRequest"),
        (FILE + part("File", b"again") + END, "IncorrectNumberOfFilesInPostRequest"),
        (b"", "MalformedPOSTRequest"),
        (b"no form at all", "MalformedPOSTRequest"),
        (part("", b"k") + FILE + END, "MalformedPOSTRequest"),
        (f"--{BOUNDARY}\r\n\r\nnameless\r\n".encode() + FILE + END, "MalformedPOSTRequest"),
        (f"--{BOUNDARY}\r\nContent-Disposition form-data\r\n\r\n".encode() + END, "MalformedPOSTRequest"),
        (part("key", b"k", headers='Content-Disposition: form-data; name="b"\r\n') + END, "MalformedPOSTRequest"),
        (part("file", b"YQ==", headers="Content-Transfer-Encoding: base64\r\n") + END, "MalformedPOSTRequest"),
        (part("key", b"k", headers=f"X-Long: {'x' * 5000}\r\n") + FILE + END, "MalformedPOSTRequest"),
        (part("key", b"k", headers="".join(f"X-{n}: x\r\n" for n in range(9))) + END, "MalformedPOSTRequest"),
        (b"".join(part(f"x{n}", b"") for n in range(MAX_FIELDS + 1)) + FILE + END, "MalformedPOSTRequest"),
        (part("key", b"k" * MAX_FIELD_BYTES) + FILE + END, "MaxPostPreDataLengthExceeded"),
        (b"".join(part(f"x{n}", b"v" * 1000) for n in range(21)) + FILE + END, "MaxPostPreDataLengthExceeded"),
        (part("key", b"\xff") + FILE + END, "InvalidArgument"),
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
    with pytest.raises(StoreError, match="boundary"):
        FormParser(f"multipart/form-data{boundary}")


def test_only_multipart_form_data_is_a_form() -> None:
    assert is_form(TYPE)
    assert is_form("Multipart/Form-Data")
    assert not any(map(is_form, ["", "multipart/mixed; boundary=x", "text/plain", "x-multipart/form-data"]))
