"""Only an answer that is certain to mean "no effect" is read as such."""

import pytest

from gateway.objects.s3.answers import Applied, NotApplied, Rejected, Unknown, WriteAnswer, of_write, unquoted


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"", Applied("e")),
        (204, b"", Applied("e")),
        (200, b"<CompleteMultipartUploadResult/>", Applied("e")),
        (200, b"  " + error("InternalError"), Unknown("200 with the error InternalError")),
        (412, error("PreconditionFailed"), NotApplied(412, "PreconditionFailed")),
        (412, b"", NotApplied(412, "")),
        (409, error("ConditionalRequestConflict"), NotApplied(409, "ConditionalRequestConflict")),
        (404, error("NoSuchKey"), NotApplied(404, "NoSuchKey")),
        (404, error("NoSuchBucket"), Rejected(404, "NoSuchBucket", "m")),
        (403, error("AccessDenied"), Rejected(403, "AccessDenied", "m")),
        (400, b"", Rejected(400, "InvalidRequest", "The store answered with 400.")),
        (501, error("NotImplemented"), Rejected(501, "NotImplemented", "m")),
        (501, b"", Unknown("501")),
        (500, error("InternalError"), Unknown("500 InternalError")),
        (503, error("SlowDown"), Unknown("503 SlowDown")),
        (502, b"<html>", Unknown("502")),
        (408, b"", Unknown("408")),
        (202, b"", Unknown("202")),
    ],
)
def test_the_answer_to_a_write_is_interpreted(status: int, body: bytes, expected: WriteAnswer) -> None:
    assert of_write(status, '"e"', body) == expected


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_never_followed_and_never_passed_on(status: int) -> None:
    answer = of_write(status, None, error("PermanentRedirect"))
    assert isinstance(answer, Rejected)
    assert answer.status == 502


@pytest.mark.parametrize(
    ("given", "expected"), [('"e"', "e"), ("e-2", "e-2"), (None, None), ("", None), ('""', None), ('W/"e"', None)]
)
def test_etags_stand_without_quotes(given: str | None, expected: str | None) -> None:
    assert unquoted(given) == expected
