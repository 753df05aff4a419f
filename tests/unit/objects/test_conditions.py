"""A client's own condition is read as S3 reads it, kept from the store, and evaluated here."""

import pytest

from gateway.errors import StoreError
from gateway.objects.conditions import Condition, Expect
from gateway.objects.request import classify

Headers = list[tuple[bytes, bytes]]


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("PUT", [(b"if-none-match", b"*")], Condition(Expect.ABSENT)),
        ("PUT", [(b"if-match", b'"abc"')], Condition(Expect.ETAG, "abc")),
        ("PUT", [(b"If-Match", b"abc-2")], Condition(Expect.ETAG, "abc-2")),
        ("DELETE", [(b"if-match", b'"abc"')], Condition(Expect.ETAG, "abc")),
        ("DELETE", [(b"if-match", b"*")], Condition(Expect.EXISTS)),
        ("PUT", [], None),
    ],
)
def test_conditions_of_the_client(method: str, headers: Headers, expected: Condition | None) -> None:
    request = classify(method, b"/bucket/k", b"", headers)
    assert request.condition == expected
    assert request.headers == ()


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("PUT", [(b"if-none-match", b'"abc"')]),
        ("PUT", [(b"if-match", b"*")]),
        ("PUT", [(b"if-match", b'"abc"'), (b"if-none-match", b"*")]),
        ("PUT", [(b"if-match", b'"a", "b"')]),
        ("PUT", [(b"if-match", b'W/"a"')]),
        ("PUT", [(b"if-match", b"")]),
        ("PUT", [(b"if-match", b'"abc')]),
        ("PUT", [(b"if-modified-since", b"Fri, 24 May 2013 00:00:00 GMT")]),
        ("PUT", [(b"if-unmodified-since", b"Fri, 24 May 2013 00:00:00 GMT")]),
        ("DELETE", [(b"if-none-match", b"*")]),
    ],
)
def test_conditions_that_s3_does_not_know_either(method: str, headers: Headers) -> None:
    with pytest.raises(StoreError) as caught:
        classify(method, b"/bucket/k", b"", headers)
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)


@pytest.mark.parametrize(
    ("condition", "current", "status"),
    [
        (Condition(Expect.ABSENT), None, None),
        (Condition(Expect.ABSENT), "e", 412),
        (Condition(Expect.EXISTS), "e", None),
        (Condition(Expect.EXISTS), None, 404),
        (Condition(Expect.ETAG, "e"), "e", None),
        (Condition(Expect.ETAG, "e"), "f", 412),
        (Condition(Expect.ETAG, "e"), None, 404),
    ],
)
def test_what_a_condition_comes_to(condition: Condition, current: str | None, status: int | None) -> None:
    broken = condition.broken(current)
    assert (broken and broken.status) == status
