"""A client's own condition is read as S3 reads it, kept from the store, and evaluated here."""

import pytest

from gateway.errors import StoreError
from gateway.objects.s3 import conditions
from gateway.objects.s3.conditions import Expect, WriteCondition, for_entry
from gateway.objects.s3.operations import Operation, OperationKind
from gateway.objects.s3.request import classify

Headers = list[tuple[bytes, bytes]]


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("PUT", [(b"if-none-match", b"*")], WriteCondition(Expect.ABSENT)),
        ("PUT", [(b"if-match", b'"abc"')], WriteCondition(Expect.ETAG, "abc")),
        ("PUT", [(b"If-Match", b"abc-2")], WriteCondition(Expect.ETAG, "abc-2")),
        ("DELETE", [(b"if-match", b'"abc"')], WriteCondition(Expect.ETAG, "abc")),
        ("DELETE", [(b"if-match", b"*")], WriteCondition(Expect.EXISTS)),
        ("PUT", [], None),
    ],
)
def test_conditions_of_the_client(method: str, headers: Headers, expected: WriteCondition | None) -> None:
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
        (WriteCondition(Expect.ABSENT), None, None),
        (WriteCondition(Expect.ABSENT), "e", 412),
        (WriteCondition(Expect.EXISTS), "e", None),
        (WriteCondition(Expect.EXISTS), None, 404),
        (WriteCondition(Expect.ETAG, "e"), "e", None),
        (WriteCondition(Expect.ETAG, "e"), "f", 412),
        (WriteCondition(Expect.ETAG, "e"), None, 404),
    ],
)
def test_a_condition_is_evaluated(condition: WriteCondition, current: str | None, status: int | None) -> None:
    broken = condition.broken(current)
    assert (broken and broken.status) == status


CREATES = [
    ("PUT", b"", []),
    ("PUT", b"", [(b"x-amz-copy-source", b"bucket/other")]),
    ("POST", b"uploadId=u", []),
]


@pytest.mark.parametrize(("method", "query", "others"), CREATES)
def test_every_operation_that_makes_an_object_takes_a_condition(method: str, query: bytes, others: Headers) -> None:
    absent = classify(method, b"/bucket/k", query, [*others, (b"if-none-match", b"*")])
    same = classify(method, b"/bucket/k", query, [*others, (b"if-match", b'"e-2"')])
    assert (absent.condition, absent.headers) == (WriteCondition(Expect.ABSENT), ())
    assert (same.condition, same.headers) == (WriteCondition(Expect.ETAG, "e-2"), ())


@pytest.mark.parametrize(("method", "query", "others"), CREATES)
@pytest.mark.parametrize(
    "headers",
    [
        [(b"if-match", b"*")],
        [(b"if-none-match", b'"e"')],
        [(b"if-none-match", b"")],
        [(b"if-match", b'"e"'), (b"if-none-match", b"*")],
        [(b"if-unmodified-since", b"Fri, 24 May 2013 00:00:00 GMT")],
    ],
)
def test_conditions_that_no_put_takes(method: str, query: bytes, others: Headers, headers: Headers) -> None:
    with pytest.raises(StoreError) as caught:
        classify(method, b"/bucket/k", query, [*others, *headers])
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)


CONDITIONAL = {
    Operation.PUT_OBJECT,
    Operation.COPY_OBJECT,
    Operation.COMPLETE_MULTIPART_UPLOAD,
    Operation.DELETE_OBJECT,
}


@pytest.mark.parametrize("headers", [{"if-match": '"e"'}, {"if-match": "*"}, {"if-none-match": "*"}])
def test_no_condition_is_dropped_silently(subtests: pytest.Subtests, headers: dict[str, str]) -> None:
    unconditional = [one for one in Operation if one.kind is not OperationKind.READ and one not in CONDITIONAL]
    for operation in unconditional:
        with subtests.test(operation=operation):
            with pytest.raises(StoreError) as caught:
                conditions.read(operation, headers)
            assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
            assert conditions.read(operation, {}) is None


@pytest.mark.parametrize("value", [b'"e"', b"*"])
def test_one_version_is_deleted_under_no_condition(value: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        classify("DELETE", b"/bucket/k", b"versionId=3", [(b"if-match", value)])
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)


@pytest.mark.parametrize(
    ("etag", "expected"),
    [
        ('"abc"', WriteCondition(Expect.ETAG, "abc")),
        ("abc-2", WriteCondition(Expect.ETAG, "abc-2")),
        (' "abc"\n', WriteCondition(Expect.ETAG, "abc")),
        ("*", WriteCondition(Expect.EXISTS)),
    ],
)
def test_the_condition_of_an_entry(etag: str, expected: WriteCondition) -> None:
    assert for_entry(etag) == expected


@pytest.mark.parametrize("etag", ["", '"', '"a', 'W/"a"', '"a", "b"', "a b"])
def test_entries_that_s3_does_not_know_either(etag: str) -> None:
    with pytest.raises(StoreError) as caught:
        for_entry(etag)
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
