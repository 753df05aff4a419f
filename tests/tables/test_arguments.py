"""The arguments of a call."""

import pytest

from gateway.errors import DialectError
from gateway.tables.catalog.functions import Function, Parameter
from gateway.tables.dialect.arguments import from_body, from_query

FORM = Function(
    "public", "f", "i", returns_set=False, type="integer", composite=False,
    parameters=(Parameter("a", "integer"), Parameter("v", "integer[]", variadic=True)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("query", "names", "rest"),
    [
        (b"", set(), b""),
        (b"a=1&b=x%20y", {"a", "b"}, b""),
        (b"a=1&id=eq.5&select=x&limit=2", {"a"}, b"id=eq.5&select=x&limit=2"),
        (b"a=not.eq.5", set(), b"a=not.eq.5"),
        (b"a=eq(any).{1}", set(), b"a=eq(any).{1}"),
        (b"a=fts(english).x", set(), b"a=fts(english).x"),
        (b"a=in.(1)", set(), b"a=in.(1)"),
        (b"a=inside.x", {"a"}, b""),
        (b"a=1.5", {"a"}, b""),
        (b"or=(a.eq.1)", set(), b"or=(a.eq.1)"),
        (b"apikey=k&a=1", {"a"}, b"apikey=k"),
        (b"a", set(), b""),
    ],
)
def test_arguments_and_filters_in_a_query(query: bytes, names: set[str], rest: bytes) -> None:
    given, left = from_query(query)
    assert given.names is not None
    assert (set(given.names), left) == (set(names), rest)


def test_several_values_are_for_a_variadic_parameter() -> None:
    given, _ = from_query(b"a=1&a=2&v=3&v=4")
    assert given.payload(FORM, whole=False) == '{"a":"2","v":["3","4"]}'


def test_bodies() -> None:
    assert from_body("json", b"", None).names == frozenset()
    assert from_body("json", b'{"a": 1, "b": 2}', ["a"]).names == frozenset("a")
    assert from_body("json", b"[1]", None).names is None
    assert from_body("json", b'{"a": 1.10}', None).payload(FORM, whole=False) == '{"a": 1.10}'
    assert from_body("urlencoded", b"a=1&v=2", None).payload(FORM, whole=False) == '{"a":"1","v":["2"]}'
    assert from_body("text", "é".encode(), None).payload(FORM, whole=True) == "é"
    assert from_body("binary", b"\x00\xff", None).payload(FORM, whole=True) == "00ff"


@pytest.mark.parametrize(
    ("kind", "content"), [("json", b"{"), ("text", b"\xff"), ("urlencoded", b"a=%FF"), ("csv", b"a\n1")]
)
def test_broken_bodies(kind: str, content: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        from_body(kind, content, None)  # type: ignore[arg-type]  # one of them
    assert (caught.value.code, caught.value.status) == ("PGRST102", 400)
