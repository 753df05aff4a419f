"""Bodies: objects or arrays of like objects, and nothing else."""

import pytest

from gateway.errors import DialectError
from gateway.tables.body import parse


@pytest.mark.parametrize(
    ("body", "columns", "expected_columns", "rows"),
    [
        (b'{"b":1,"a":2}', None, ("a", "b"), 1),
        (b'[{"a":1},{"a":2}]', None, ("a",), 2),
        (b"[]", None, (), 0),
        (b"{}", None, (), 1),
        (b'[{"a":1},{"b":2}]', ("a", "b"), ("a", "b"), 2),
        (b'{"a":1,"ignored":2}', ("a",), ("a",), 1),
    ],
)
def test_bodies(body: bytes, columns: tuple[str, ...] | None, expected_columns: tuple[str, ...], rows: int) -> None:
    payload = parse(body, columns)
    assert (payload.columns, len(payload.rows)) == (expected_columns, rows)
    assert payload.text.startswith("[")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{'a':1}", b'{"a":NaN}', b"5", b'"x"', b"null", b"[1]", b"[[]]", b"\xff", b"[" * 5000, b'{"a":1}x'],
)
def test_broken_bodies(body: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        parse(body, None)
    assert (caught.value.code, caught.value.status, caught.value.message) == ("PGRST102", 400, "Empty or invalid json")


def test_rows_must_be_alike_unless_columns_are_named() -> None:
    with pytest.raises(DialectError, match="All object keys must match"):
        parse(b'[{"a":1},{"b":2}]', None)
