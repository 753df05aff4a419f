"""A client's own condition is read as S3 reads it, kept from the store, and evaluated here."""

import pytest

from gateway.errors import StoreError
from gateway.objects.s3.conditions import Expect, WriteCondition, condition_of_entry, read_condition
from gateway.objects.s3.operations import Operation, OperationKind
from gateway.objects.s3.request import classify

Headers = list[tuple[bytes, bytes]]

CREATES = [("PUT", b"", []), ("PUT", b"", [(b"x-amz-copy-source", b"bucket/other")]), ("POST", b"uploadId=u", [])]
"""The method, query and headers of all that make an object."""


@pytest.mark.parametrize(("method", "query", "others"), CREATES)
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ((b"if-none-match", b"*"), WriteCondition(Expect.ABSENT)),
        ((b"if-match", b'"abc"'), WriteCondition(Expect.ETAG, "abc")),
        ((b"If-Match", b"abc-2"), WriteCondition(Expect.ETAG, "abc-2")),
    ],
)
def test_conditions_of_what_makes_an_object(
    method: str, query: bytes, others: Headers, header: tuple[bytes, bytes], expected: WriteCondition
) -> None:
    request = classify(method, b"/bucket/k", query, [*others, header])
    assert (request.condition, request.headers) == (expected, ())


def test_conditions_of_a_delete() -> None:
    for value, expected in ((b'"abc"', WriteCondition(Expect.ETAG, "abc")), (b"*", WriteCondition(Expect.EXISTS))):
        assert classify("DELETE", b"/bucket/k", b"", [(b"if-match", value)]).condition == expected
    assert classify("DELETE", b"/bucket/k", b"", []).condition is None
    broken = WriteCondition(Expect.EXISTS).broken(None)
    assert broken is not None
    assert (broken.status, WriteCondition(Expect.EXISTS).broken("e")) == (404, None)


UNKNOWN_CONDITIONS: list[Headers] = [
    *([(b"if-none-match", value)] for value in (b'"abc"', b"")),
    *([(b"if-match", value)] for value in (b"*", b'"a", "b"', b'W/"a"', b"", b'"abc')),
    *([(name, b"Fri, 24 May 2013 00:00:00 GMT")] for name in (b"if-modified-since", b"if-unmodified-since")),
    [(b"if-match", b'"abc"'), (b"if-none-match", b"*")],
]


@pytest.mark.parametrize(
    ("method", "query", "others", "headers"),
    [
        *((*create, headers) for create in CREATES for headers in UNKNOWN_CONDITIONS),
        ("DELETE", b"", [], [(b"if-none-match", b"*")]),
        ("DELETE", b"versionId=3", [], [(b"if-match", b'"e"')]),
        ("DELETE", b"versionId=3", [], [(b"if-match", b"*")]),
    ],
)
def test_conditions_that_s3_does_not_know_either(method: str, query: bytes, others: Headers, headers: Headers) -> None:
    with pytest.raises(StoreError, match="is not implemented"):
        classify(method, b"/bucket/k", query, [*others, *headers])


CONDITIONAL = (
    *(Operation.PUT_OBJECT, Operation.COPY_OBJECT),
    *(Operation.COMPLETE_MULTIPART_UPLOAD, Operation.DELETE_OBJECT),
)


@pytest.mark.parametrize("headers", [{"if-match": '"e"'}, {"if-match": "*"}, {"if-none-match": "*"}])
def test_no_condition_is_dropped_silently(headers: dict[str, str]) -> None:
    unconditional = [one for one in Operation if one.kind is not OperationKind.READ and one not in CONDITIONAL]
    for operation in unconditional:
        with pytest.raises(StoreError, match=f"{operation} .*is not implemented"):
            read_condition(operation, headers)
        assert read_condition(operation, {}) is None, operation


@pytest.mark.parametrize("etag", ["", '"', '"a', 'W/"a"', '"a", "b"', "a b"])
def test_entries_that_s3_does_not_know_either(etag: str) -> None:
    with pytest.raises(StoreError, match="is not implemented"):
        condition_of_entry(etag)
