"""The headers of a request: what goes on to the store, conditions, tokens, and headers in a presigned query."""

from collections.abc import Callable
from typing import Any

import botocore.session
import pytest

from gateway.errors import RequestMalformed, ResourceMalformed, StoreError, TokenMalformed
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.token import Token
from gateway.objects.s3 import addressing
from gateway.objects.s3.operations import Operation, OperationKind
from gateway.objects.s3.request import (
    Expect,
    S3Request,
    WriteCondition,
    classify,
    condition_of_entry,
    forwarded,
    read_condition,
    read_fencing,
)

# The headers that go on to the store, by the model that S3's own clients use.

MODEL = botocore.session.get_session().get_service_model("s3")


EVALUATED = frozenset({"if-match", "if-none-match"})


OF_THE_BODY = frozenset({"content-length", "content-md5", "x-amz-sdk-checksum-algorithm"})


ENCRYPTED_BY_THE_CLIENT = frozenset(
    f"x-amz-{of}server-side-encryption-customer-{what}"
    for of in ("", "copy-source-")
    for what in ("algorithm", "key", "key-md5")
)


REFUSED = ENCRYPTED_BY_THE_CLIENT | {
    *("x-amz-if-match-initiated-time", "x-amz-if-match-last-modified-time", "x-amz-if-match-size", "x-amz-mfa"),
    *("x-amz-object-annotation-directive", "x-amz-object-if-match", "x-amz-write-offset-bytes"),
}


def refusal(attempt: Callable[..., object], *arguments: Any, **named: Any) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        attempt(*arguments, **named)
    return caught.value.s3_code, caught.value.status


def headers_of(operation: Operation) -> list[str]:
    shape = MODEL.operation_model(operation.value).input_shape
    members = [] if shape is None else shape.members.values()
    return [one.serialization["name"].lower() for one in members if one.serialization.get("location") == "header"]


def test_every_header_of_the_model_goes_on_or_is_accounted_for(subtests: pytest.Subtests) -> None:
    for operation in set(Operation) - {Operation.POST_OBJECT}:
        with subtests.test(operation=operation):
            for name in headers_of(operation):
                if operation.kind is not OperationKind.READ and name in REFUSED:
                    with pytest.raises(StoreError, match=name) as caught:
                        forwarded(operation, {name: "1"})
                    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
                    continue
                of_the_copy = operation.copies and name in addressing.COPY_HEADERS
                checksum = name.startswith("x-amz-checksum-") and operation in (
                    *(Operation.PUT_OBJECT, Operation.PUT_OBJECT_ANNOTATION, Operation.UPLOAD_PART),
                )
                evaluated = name in EVALUATED and operation.kind is not OperationKind.READ
                kept_here = of_the_copy or checksum or evaluated or name in OF_THE_BODY
                assert forwarded(operation, {name: "1"}) == (() if kept_here else ((name, "1"),)), name


def test_an_unknown_header_is_dropped_on_a_read_and_refused_else(subtests: pytest.Subtests) -> None:
    for operation in Operation:
        with subtests.test(operation=operation):
            for name in ("x-amz-anything-new", "x_amz_acl", "x-amz_acl", "x-amz-meta_a"):
                if operation.kind is OperationKind.READ:
                    assert forwarded(operation, {name: "1"}) == ()
                else:
                    assert refusal(forwarded, operation, {name: "1"})[1] == 501


def test_metadata_go_with_what_makes_an_object_and_the_gateways_own_never(subtests: pytest.Subtests) -> None:
    for operation in Operation:
        with subtests.test(operation=operation):
            makes = operation in (Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.CREATE_MULTIPART_UPLOAD)
            own = {"x-amz-meta-fencing-write-id": "forged", "x-amz-meta-fencing_tombstone": "true"}
            if makes:
                assert forwarded(operation, {"x-amz-meta-a": "1", **own}) == (("x-amz-meta-a", "1"),)
            elif operation.kind is OperationKind.READ:
                assert forwarded(operation, {"x-amz-meta-a": "1", **own}) == ()
            else:
                for name in ("x-amz-meta-a", *own):
                    with pytest.raises(StoreError):
                        forwarded(operation, {name: "1"})


SAID_TO_THE_GATEWAY = (
    *("authorization", "fencing-token", "host", "x-amz-content-sha256", "x-amz-date", "x-amz-decoded-content-length"),
    *("x-amz-sdk-checksum-algorithm", "x-amz-security-token", "x-amz-trailer", "x-amz-user-agent"),
    *("amz-sdk-invocation-id", "amz-sdk-request", "x-forwarded-for"),
)


def test_what_is_said_to_the_gateway_never_goes_on() -> None:
    for operation in Operation:
        assert forwarded(operation, dict.fromkeys(SAID_TO_THE_GATEWAY, "1")) == (), operation


def test_the_one_version_of_s3_may_be_named() -> None:
    """The AWS SDK for C++ names it when it begins an upload."""
    for operation in Operation:
        assert forwarded(operation, {"x-amz-api-version": "2006-03-01"}) == (), operation
    with pytest.raises(StoreError, match="x-amz-api-version"):
        forwarded(Operation.CREATE_MULTIPART_UPLOAD, {"x-amz-api-version": "2027-01-01"})


# A client's own condition is read as S3 reads it, kept from the store, and evaluated here.

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
    assert refusal(classify, method, b"/bucket/k", query, [*others, *headers]) == ("NotImplemented", 501)


CONDITIONAL = (
    *(Operation.PUT_OBJECT, Operation.COPY_OBJECT),
    *(Operation.COMPLETE_MULTIPART_UPLOAD, Operation.DELETE_OBJECT),
)


@pytest.mark.parametrize("headers", [{"if-match": '"e"'}, {"if-match": "*"}, {"if-none-match": "*"}])
def test_no_condition_is_dropped_silently(headers: dict[str, str]) -> None:
    unconditional = [one for one in Operation if one.kind is not OperationKind.READ and one not in CONDITIONAL]
    for operation in unconditional:
        assert refusal(read_condition, operation, headers) == ("NotImplemented", 501), operation
        assert read_condition(operation, {}) is None, operation


@pytest.mark.parametrize("etag", ["", '"', '"a', 'W/"a"', '"a", "b"', "a b"])
def test_entries_that_s3_does_not_know_either(etag: str) -> None:
    assert refusal(condition_of_entry, etag) == ("NotImplemented", 501)


# A presigned request says in its query what others say in headers. All of it is signed.


AUTHENTICATION = (
    b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    b"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=600&X-Amz-SignedHeaders=host&X-Amz-Signature=00"
)


def presigned(query: bytes, *headers: tuple[bytes, bytes], method: str = "PUT") -> S3Request:
    return classify(method, b"/bucket/k", AUTHENTICATION + b"&" + query, headers)


def test_authentication_in_the_query_is_not_sent_on() -> None:
    request = presigned(b"versionId=3&x-id=GetObject&response-content-type=text%2Fplain", method="GET")
    assert request.operation is Operation.GET_OBJECT
    assert request.parameters == (("versionId", "3"), ("response-content-type", "text/plain"))


def test_headers_in_the_query_of_a_presigned_request_are_headers() -> None:
    request = presigned(
        b"x-amz-acl=private&X-Amz-Meta-Owner=a+b&x-amz-tagging=a%3Db&X-Amz-Storage-Class=STANDARD_IA"
        b"&x-amz-server-side-encryption=AES256&x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32"
        b"&X-Amz-Content-Sha256=UNSIGNED-PAYLOAD&x-amz-meta-fencing-write-id=forged&If-None-Match=*",
        (b"content-type", b"text/plain"),
    )
    assert request.headers == (
        ("content-type", "text/plain"),
        ("x-amz-acl", "private"),
        ("x-amz-meta-owner", "a b"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-storage-class", "STANDARD_IA"),
        ("x-amz-server-side-encryption", "AES256"),
    )
    assert dict(request.hoisted)["x-amz-checksum-crc32"] == "AAAAAA=="
    assert request.condition == WriteCondition(Expect.ABSENT)
    assert request.parameters == ()


def test_a_copy_can_be_presigned() -> None:
    request = presigned(b"x-amz-copy-source=bucket%2Fa%252Fb&x-amz-metadata-directive=REPLACE")
    assert request.operation is Operation.COPY_OBJECT
    assert request.source is not None
    assert (request.source.key, request.source.replace_metadata) == ("a/b", True)
    with pytest.raises(StoreError):
        presigned(b"x-amz-copy-source=bucket%2Fk", method="GET")


@pytest.mark.parametrize("name", ["if-match", "If-None-Match", "If-Modified-Since", "if-unmodified-since"])
def test_conditions_of_a_presigned_read_go_to_the_store(name: str) -> None:
    assert presigned(f"{name}=%22e%22".encode(), method="GET").headers == ((name.lower(), '"e"'),)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_no_other_request_has_headers_in_its_query(method: str) -> None:
    for query in (
        *(b"x-amz-acl=private", b"X-Amz-Meta-Owner=a", b"x-amz-copy-source=bucket%2Fother"),
        *(b"x-amz-meta-fencing-token=9", b"If-Match=%22e%22", b"if-none-match=*", b"X-Amz-Date=20130524T000000Z"),
        *(b"X-Amz-Signature=00", b"X-Amz-Security-Token=fencing-token%3D9"),
        b"x-amz-algorithm=AWS4-HMAC-SHA256&x-amz-acl=private",
    ):
        assert refusal(classify, method, b"/bucket/k", query, []) == ("NotImplemented", 501), query


def test_a_request_signed_in_its_headers_is_not_presigned() -> None:
    assert refusal(presigned, b"x-amz-acl=private", (b"Authorization", b"AWS4-HMAC-SHA256 Credential=..."))[1] == 501


def test_a_header_in_the_query_and_in_the_head_is_refused() -> None:
    acl, token = b"x-amz-acl=private", b"x-amz-meta-fencing-token"
    session = b"fencing-token=4"
    for query, *headers in (
        *((b"fencing-token=5&" * 2,), (b"X-Amz-Security-Token=" + session, (b"x-amz-security-token", session))),
        *((acl, (b"X-Amz-Acl", b"public-read")), (acl.upper(), (b"x-amz-acl", b"private"))),
        *((b"If-Match=a", (b"if-match", b"a")), (token + b"=5", (token, b"5"))),
        *((acl + b"&X-Amz-Acl=private",), (b"x-amz-meta-a=1&x-amz-meta-%61=1",), (b"If-Match=a&if-match=a",)),
    ):
        assert refusal(presigned, query, *headers)[1] == 400, query


UNSENDABLE = {
    ("InvalidArgument", 400): [
        *(b"x-amz-meta-a=1%0D%0AHost:%20other", b"x-amz-meta-a=1%0A", b"x-amz-meta-a=%7F", b"If-Match=%0D%0Aa"),
        *(b"x-amz-meta-a%0D%0AHost:other%0D%0Ab=1", b"x-amz-meta-a:b=1", b"x-amz-meta-%C3%A9=1", b"x-amz-meta-a%20b=1"),
    ],
    ("NotImplemented", 501): [
        *(b"x-amz-signature=00", b"x-amz-expires=1", b"X-AMZ-DATE=20130524T000000Z", b"x-amz-mfa=1", b"Host=other"),
        *(b"x-amz-security-token=fencing-token%3D9", b"x-amz-content-sha256=UNSIGNED-PAYLOAD"),
        *(b"X-Amz-Anything-New=1", b"x_amz_acl=private", b"content-type=text%2Fplain", b"Content-MD5=x"),
        *(b"Fencing-Token=5", b"fencing_token=5", b"x-fencing-token=5", b"AWSAccessKeyId=AK&Signature=s&Expires=1"),
    ],
}


@pytest.mark.parametrize("error", UNSENDABLE, ids=str)
def test_parameters_that_cannot_be_headers_of_a_presigned_write(error: tuple[str, int]) -> None:
    for query in UNSENDABLE[error]:
        assert refusal(presigned, query) == error, query


# A token is found wherever a client can put it; of two, the one said most clearly counts.


META = b"x-amz-meta-fencing-token"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_the_query_of_a_presigned_request_can_carry_the_token(method: str) -> None:
    request = presigned(b"fencing-token=3.4&fencing-holder=host+7&fencing-resource=job%2F7", method=method)
    assert request.fencing == FencingHeaders(Token(3, 4), "job/7", "host 7")
    assert (request.parameters, request.headers, request.hoisted) == ((), (), ())


@pytest.mark.parametrize("name", ["fencing-token", "fencing-holder", "fencing-resource"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_the_query_of_any_other_request_cannot(method: str, name: str) -> None:
    with pytest.raises(RequestMalformed) as caught:
        classify(method, b"/bucket/key", f"{name}=5".encode(), [])
    assert name.title() in caught.value.advice
    with pytest.raises(RequestMalformed):
        presigned(f"{name}=5".encode(), (b"authorization", b"AWS4-HMAC-SHA256 Credential=..."), method=method)


SAID = {
    "header": (b"fencing-token", b"1"),
    "metadata": (b"x-amz-meta-fencing-token", b"2"),
    "session": (b"x-amz-security-token", b"fencing-token=4&fencing-holder=four"),
}


@pytest.mark.parametrize(
    ("said", "query", "value", "holder"),
    [
        (["header", "metadata", "session"], b"fencing-token=3&fencing-holder=three", 1, None),
        (["metadata", "session"], b"fencing-token=3&fencing-holder=three", 2, None),
        (["session"], b"fencing-token=3&fencing-holder=three", 3, "three"),
        (["session"], b"fencing-token=3", 3, None),
        (["session"], b"fencing-holder=three", 4, "four"),
        (["session"], b"", 4, "four"),
        ([], b"x-amz-meta-fencing-token=2&x-amz-meta-fencing-holder=two&fencing-token=3", 2, "two"),
        ([], b"X-Amz-Meta-Fencing-Token=2", 2, None),
        (["header"], b"X-Amz-Meta-Fencing-Token=2", 1, None),
        ([], b"X-Amz-Security-Token=fencing-token%3D4%26fencing-holder%3Dfour", 4, "four"),
        ([], b"X-Amz-Security-Token=fc1.opaque&fencing-token=3", 3, None),
    ],
)
def test_the_first_of_header_metadata_query_and_session_counts(
    said: list[str], query: bytes, value: int, holder: str | None
) -> None:
    fencing = presigned(query, *(SAID[one] for one in said)).fencing
    assert fencing == FencingHeaders(Token(0, value), None, holder)


def test_a_holder_beside_a_token_from_elsewhere() -> None:
    request = presigned(b"fencing-token=3&fencing-holder=three", (b"fencing-holder", b"mine"))
    assert request.fencing == FencingHeaders(Token(0, 3), None, "mine")


@pytest.mark.parametrize(
    ("said", "query"),
    [
        (b"five", b"fencing-token=5"),
        (b"5", b"fencing-token=05"),
        (b"5", b"fencing-token=%D9%A5"),
        (b"5", b"x-amz-meta-fencing-token=five"),
        (b"5", b"X-Amz-Security-Token=fencing-token%3Dfive"),
    ],
)
def test_an_unreadable_token_is_an_error_in_every_location(said: bytes, query: bytes) -> None:
    with pytest.raises(TokenMalformed):
        presigned(query, (b"fencing-token", said))


def test_one_resource_only() -> None:
    same = presigned(b"fencing-resource=job%2F7", (b"fencing-resource", b"job/7"), (b"fencing-token", b"5"))
    assert same.fencing.resource == "job/7"
    with pytest.raises(ResourceMalformed):
        presigned(b"fencing-resource=job%2F8", (b"fencing-resource", b"job/7"))


@pytest.mark.parametrize("token", [b"opaque", b"", b"fencing-token%3D1%26role%3Dadmin", b"FC1.x", b"fc2.x"])
def test_other_session_tokens_in_a_query_are_refused(token: bytes) -> None:
    assert refusal(presigned, b"X-Amz-Security-Token=" + token) == ("InvalidToken", 400)


def test_metadata_speak_where_an_object_is_made_with_them() -> None:
    makes = {Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.CREATE_MULTIPART_UPLOAD, Operation.POST_OBJECT}
    said = FencingHeaders(Token(0, 7))
    for operation in Operation:
        fencing = read_fencing(operation, [(META, b"7")])
        assert fencing == (said if operation in makes else FencingHeaders()), operation
        if operation.kind in (OperationKind.WRITE, OperationKind.STAGING):
            assert read_fencing(operation, [(b"Fencing-Token", b"7")]) == said, operation
