"""A token is found wherever a client can put it; of two, the one said most clearly counts."""

import pytest

from gateway.errors import GatewayError, RequestMalformed, ResourceMalformed, StoreError, TokenMalformed
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.token import Token
from gateway.objects.s3.operations import Operation, OperationKind
from gateway.objects.s3.request import S3Request, classify, read_fencing

Headers = list[tuple[bytes, bytes]]


def put(*headers: tuple[bytes, bytes]) -> S3Request:
    return classify("PUT", b"/bucket/key", b"", headers)


def refusal(method: str, path: bytes, query: bytes = b"", headers: Headers | None = None) -> tuple[str, int, str]:
    with pytest.raises(StoreError) as caught:
        classify(method, path, query, headers or [])
    return caught.value.s3_code, caught.value.status, caught.value.message


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], FencingHeaders()),
        ([(b"fencing-token", b"2.7"), (b"fencing-holder", b"w1")], FencingHeaders(Token(2, 7), None, "w1")),
        ([(b"x-amz-meta-fencing-token", b"7")], FencingHeaders(Token(0, 7))),
        (
            [(b"X-Amz-Meta-Fencing-Token", b"7"), (b"x-amz-meta-fencing-holder", b"w1")],
            FencingHeaders(Token(0, 7), None, "w1"),
        ),
        (
            [(b"x-amz-meta-fencing-token", b"7"), (b"fencing-resource", b"s3/bucket/key")],
            FencingHeaders(Token(0, 7), "s3/bucket/key"),
        ),
        ([(b"fencing-token", b"9"), (b"x-amz-meta-fencing-token", b"7")], FencingHeaders(Token(0, 9))),
        (
            [(b"fencing-token", b"9"), (b"x-amz-meta-fencing-token", b"7"), (b"x-amz-meta-fencing-holder", b"old")],
            FencingHeaders(Token(0, 9)),
        ),
        ([(b"x-amz-meta-fencing-token", b"7"), (b"fencing-holder", b"w1")], FencingHeaders(Token(0, 7), None, "w1")),
    ],
)
def test_the_token_comes_by_header_or_by_metadata(headers: Headers, expected: FencingHeaders) -> None:
    request = put(*headers)
    assert request.fencing == expected
    assert request.headers == ()


@pytest.mark.parametrize(
    "headers",
    [
        [(b"fencing-token", b"5"), (b"fencing-token", b"6")],
        [(b"fencing-token", b"5"), (b"x-fencing-token", b"5")],
        [(b"fencing-token", b"5"), (b"fencing_token", b"5")],
        [(b"fencing-token", b"05")],
        [(b"fencing-token", b"-5")],
        [(b"fencing-token", b"s3/bucket/k=5")],
        [(b"fencing-token", b"s3/bucket/k=5, order/5=6")],
        [(b"x-amz-meta-fencing-token", b"s3/bucket/k=5")],
        [(b"x-amz-meta-fencing-token", b"five")],
        [(b"x-amz-meta-fencing-token", b"5"), (b"X-Amz-Meta-Fencing-Token", b"6")],
    ],
)
def test_tokens_that_cannot_be_read(headers: Headers) -> None:
    with pytest.raises(GatewayError) as caught:
        put(*headers)
    assert caught.value.status == 400
    assert isinstance(caught.value, TokenMalformed | StoreError)


def test_metadata_are_no_token_on_other_operations() -> None:
    assert classify("GET", b"/bucket/k", b"", [(b"x-amz-meta-fencing-token", b"7")]).fencing == FencingHeaders()
    assert refusal("DELETE", b"/bucket/k", b"", [(b"x-amz-meta-fencing-token", b"7")])[0] == "NotImplemented"


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize(
    ("headers", "token", "holder"),
    [
        ([(b"x-amz-security-token", b"fencing-token=34")], 34, None),
        ([(b"x-amz-security-token", b"fencing-token=34&fencing-holder=host%207")], 34, "host 7"),
        ([(b"x-amz-security-token", b"fencing-token=34&fencing-holder=a"), (b"fencing-token", b"35")], 35, None),
    ],
)
def test_a_session_token_can_carry_the_fencing_token(
    method: str, headers: list[tuple[bytes, bytes]], token: int, holder: str | None
) -> None:
    fencing = classify(method, b"/bucket/k", b"", headers).fencing
    assert fencing.token is not None
    assert (fencing.token.value, fencing.holder) == (token, holder)


def test_metadata_come_before_the_session_token() -> None:
    headers = [(b"x-amz-security-token", b"fencing-token=34"), (b"x-amz-meta-fencing-token", b"35")]
    fencing = classify("PUT", b"/bucket/k", b"", headers).fencing
    assert fencing.token is not None
    assert fencing.token.value == 35


@pytest.mark.parametrize(
    "token", [b"t", b"", b"fencing-token", b"fencing-token=1&fencing-token=2&x=3", b"fencing-token=1&role=admin"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_session_tokens_are_refused(method: str, token: bytes) -> None:
    assert refusal(method, b"/bucket/k", b"", [(b"x-amz-security-token", token)])[:2] == ("InvalidToken", 400)


PRESIGNED = (
    b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    b"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=600&X-Amz-SignedHeaders=host&X-Amz-Signature=00"
)


def presigned(query: bytes, *headers: tuple[bytes, bytes], method: str = "PUT") -> S3Request:
    return classify(method, b"/bucket/key", PRESIGNED + b"&" + query, headers)


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


@pytest.mark.parametrize("name", ["Fencing-Token", "fencing_token", "x-fencing-token", "FENCING-TOKEN"])
def test_the_names_in_a_query_have_one_spelling(name: str) -> None:
    with pytest.raises(StoreError) as caught:
        presigned(f"{name}=5".encode())
    assert caught.value.status == 501


@pytest.mark.parametrize(
    "query", [b"fencing-token=", b"fencing-token=05", b"fencing-token=+5", b"fencing-token=%D9%A5"]
)
def test_a_token_in_a_query_that_cannot_be_read(query: bytes) -> None:
    with pytest.raises(TokenMalformed):
        presigned(query)


def test_a_token_twice_in_a_query() -> None:
    with pytest.raises(StoreError) as caught:
        presigned(b"fencing-token=5&fencing-token=5")
    assert caught.value.status == 400


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
        (b"5", b"fencing-token=five"),
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


def test_the_session_token_stands_in_one_place() -> None:
    with pytest.raises(StoreError) as caught:
        presigned(b"X-Amz-Security-Token=fencing-token%3D4", SAID["session"])
    assert (caught.value.s3_code, caught.value.status) == ("InvalidRequest", 400)


@pytest.mark.parametrize("token", [b"opaque", b"", b"fencing-token%3D1%26role%3Dadmin", b"FC1.x", b"fc2.x"])
def test_other_session_tokens_in_a_query_are_refused(token: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        presigned(b"X-Amz-Security-Token=" + token)
    assert (caught.value.s3_code, caught.value.status) == ("InvalidToken", 400)


def test_fenced_credentials_are_not_read_here() -> None:
    assert put((b"x-amz-security-token", b"fc1.fencing-token=9")).fencing == FencingHeaders()


def test_metadata_speak_where_an_object_is_made_with_them(subtests: pytest.Subtests) -> None:
    for operation in Operation:
        with subtests.test(operation=operation):
            makes = {
                Operation.PUT_OBJECT,
                Operation.COPY_OBJECT,
                Operation.CREATE_MULTIPART_UPLOAD,
                Operation.POST_OBJECT,
            }
            fencing = read_fencing(operation, [(b"x-amz-meta-fencing-token", b"7")])
            assert fencing == (FencingHeaders(Token(0, 7)) if operation in makes else FencingHeaders())


@pytest.mark.parametrize(
    ("method", "query", "headers"),
    [
        ("PUT", b"partNumber=1&uploadId=u", []),
        ("POST", b"uploadId=u", []),
        ("PUT", b"tagging", []),
        ("PUT", b"partNumber=1&uploadId=u", [(b"x-amz-copy-source", b"bucket/other")]),
    ],
)
def test_metadata_are_refused_where_there_are_none(method: str, query: bytes, headers: Headers) -> None:
    metadata = [(b"x-amz-meta-fencing-token", b"7")]
    assert refusal(method, b"/bucket/k", query, headers + metadata)[0] == "NotImplemented"


def test_every_kind_of_write_reads_the_header() -> None:
    for operation in Operation:
        if operation.kind in (OperationKind.WRITE, OperationKind.STAGING):
            assert read_fencing(operation, [(b"Fencing-Token", b"7")]) == FencingHeaders(Token(0, 7))
