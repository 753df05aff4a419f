"""Only signed requests get in, and outgoing requests are signed as S3 requires."""

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import PayloadMode, RequestHead, StoreCredentials, VerifiedSignature, sign, verify
from gateway.errors import StoreError

# The example account of the S3 documentation.
ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
CREDENTIALS = StoreCredentials(ID, SECRET, "us-east-1")
THEN = datetime(2013, 5, 24, tzinfo=UTC)
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
OWNER = Principal("worker")

Headers = list[tuple[bytes, bytes]]


def secret_of(access_key_id: str, _session_token: str | None) -> tuple[Principal, str] | None:
    return (OWNER, SECRET) if access_key_id == ID else None


def authorization(signed: str, signature: str) -> tuple[bytes, bytes]:
    credential = f"Credential={ID}/20130524/us-east-1/s3/aws4_request"
    value = f"AWS4-HMAC-SHA256 {credential},SignedHeaders={signed},Signature={signature}"
    return b"authorization", value.encode()


def signed_request(
    method: str = "PUT",
    path: bytes = b"/bucket/key",
    query: bytes = b"",
    *headers: tuple[bytes, bytes],
    payload: str = NOTHING,
) -> RequestHead:
    """A request that is signed as it should be."""
    named = [(b"host", b"gateway:8080"), *headers]
    added = sign(RequestHead(method, path, query, named), payload, CREDENTIALS, THEN)
    return RequestHead(method, path, query, named + [(name.encode(), value.encode()) for name, value in added])


def without(request: RequestHead, name: bytes) -> Headers:
    return [header for header in request.headers if header[0] != name]


def changed(request: RequestHead, name: bytes, value: bytes) -> RequestHead:
    headers = [*without(request, name), (name, value)]
    return RequestHead(request.method, request.raw_path, request.query_string, headers)


def refusal(request: RequestHead, now: datetime = THEN) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        verify(request, secret_of, now)
    assert SECRET not in str(caught.value)
    return caught.value.s3_code, caught.value.status


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "payload", "signed", "signature"),
    [
        pytest.param(
            "GET",
            b"/test.txt",
            b"",
            [(b"range", b"bytes=0-9")],
            NOTHING,
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            id="get an object",
        ),
        pytest.param(
            "PUT",
            b"/test$file.text",
            b"",
            [(b"date", b"Fri, 24 May 2013 00:00:00 GMT"), (b"x-amz-storage-class", b"REDUCED_REDUNDANCY")],
            "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            id="put an object",
        ),
        pytest.param(
            "GET",
            b"/",
            b"lifecycle",
            [],
            NOTHING,
            "host;x-amz-content-sha256;x-amz-date",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            id="get a lifecycle",
        ),
        pytest.param(
            "GET",
            b"/",
            b"max-keys=2&prefix=J",
            [],
            NOTHING,
            "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            id="list objects",
        ),
    ],
)
def test_published_examples(
    method: str, path: bytes, query: bytes, headers: Headers, payload: str, signed: str, signature: str
) -> None:
    named = [(b"host", b"examplebucket.s3.amazonaws.com"), *headers]
    added = dict(sign(RequestHead(method, path, query, named), payload, CREDENTIALS, THEN))
    assert added["authorization"].encode() == authorization(signed, signature)[1]
    received = named + [(name.encode(), value.encode()) for name, value in added.items()]
    verified = verify(RequestHead(method, path, query, received), secret_of, THEN)
    assert verified == VerifiedSignature(OWNER, PayloadMode.EXACT, payload)


def test_a_verified_signature_tells_what_it_says_about_the_body() -> None:
    unsigned = verify(signed_request(payload="UNSIGNED-PAYLOAD"), secret_of, THEN)
    assert (unsigned.mode, unsigned.sha256, unsigned.chunks) == (PayloadMode.UNSIGNED, None, None)
    trailing = verify(signed_request(payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER"), secret_of, THEN)
    assert (trailing.mode, trailing.mode.chunked, trailing.chunks) == (PayloadMode.UNSIGNED_TRAILER, True, None)
    chunked = verify(signed_request(payload="STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), secret_of, THEN)
    assert chunked.chunks is not None
    assert SECRET not in repr(chunked)
    assert repr(chunked.chunks.signing_key) not in repr(chunked)


PATHS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
VALUES = st.text(st.sampled_from("abcXYZ019 -_.~!*'()/=&%+\"é"), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    method=st.sampled_from(["GET", "PUT", "DELETE", "HEAD"]),
    key=PATHS,
    query=st.dictionaries(st.text(st.sampled_from("abc-XYZ é/"), min_size=1, max_size=6), VALUES, max_size=4),
    metadata=st.dictionaries(st.sampled_from(["a", "b", "zeta"]), st.text("abc  xyz", max_size=10), max_size=3),
    body=st.binary(max_size=20),
)
def test_agrees_with_botocore(
    method: str, key: str, query: dict[str, str], metadata: dict[str, str], body: bytes
) -> None:
    path = "/bucket/" + quote(key, safe="/~")
    encoded = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
    headers = {"Fencing-Token": "7"} | {f"x-amz-meta-{name}": value for name, value in metadata.items()}
    theirs = AWSRequest(method, f"http://gateway:8080{path}{'?' * bool(encoded)}{encoded}", headers, body)
    S3SigV4Auth(BotoCredentials(ID, SECRET), "s3", "eu-central-1").add_auth(theirs)
    received = [(b"host", b"gateway:8080"), *((k.lower().encode(), v.encode()) for k, v in theirs.headers.items())]
    now = datetime.strptime(theirs.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    head = RequestHead(method, path.encode(), encoded.encode(), received)
    assert verify(head, secret_of, now).principal == OWNER
    assert refusal(changed(head, b"fencing-token", b"8"), now) == ("SignatureDoesNotMatch", 403)

    to_sign = [(b"host", b"gateway:8080"), *((k.lower().encode(), v.encode()) for k, v in headers.items())]
    ours = dict(
        sign(
            RequestHead(method, path.encode(), encoded.encode(), to_sign),
            theirs.headers["X-Amz-Content-SHA256"],
            StoreCredentials(ID, SECRET, "eu-central-1"),
            now,
        )
    )
    assert ours["authorization"].replace(",", ", ") == theirs.headers["Authorization"]


@pytest.mark.parametrize(
    ("wire", "same"),
    [(b"/b/a%2fb", b"/b/a/b"), (b"/b/%7Ex", b"/b/~x"), (b"/b/a+b", b"/b/a%2Bb"), (b"/b/\xc3\xa9", b"/b/%C3%A9")],
)
def test_one_key_has_one_canonical_form(wire: bytes, same: bytes) -> None:
    request = signed_request("GET", wire)
    verify(RequestHead("GET", same, b"", request.headers), secret_of, THEN)


@pytest.mark.parametrize(
    ("signed", "sent"), [(b"/b/a/../c", b"/b/c"), (b"/b//a", b"/b/a"), (b"/b/./a", b"/b/a"), (b"/b/a/", b"/b/a")]
)
def test_paths_are_not_normalised(signed: bytes, sent: bytes) -> None:
    request = signed_request("GET", signed)
    verify(request, secret_of, THEN)
    assert refusal(RequestHead("GET", sent, b"", request.headers)) == ("SignatureDoesNotMatch", 403)


def test_every_part_of_the_request_is_covered() -> None:
    request = signed_request("PUT", b"/bucket/key", b"a=1", (b"fencing-token", b"5"), (b"content-type", b"text/plain"))
    verify(request, secret_of, THEN)
    for other in (
        RequestHead("DELETE", request.raw_path, request.query_string, request.headers),
        RequestHead("PUT", b"/bucket/key2", request.query_string, request.headers),
        RequestHead("PUT", request.raw_path, b"a=2", request.headers),
        RequestHead("PUT", request.raw_path, b"a=1&b=2", request.headers),
        changed(request, b"fencing-token", b"6"),
        changed(request, b"content-type", b"text/html"),
        changed(request, b"host", b"other"),
        changed(request, b"x-amz-date", b"20130524T000001Z"),
        changed(request, b"x-amz-content-sha256", NOTHING.replace("e3", "e4").encode()),
        changed(request, b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD"),
    ):
        assert refusal(other) == ("SignatureDoesNotMatch", 403)


@pytest.mark.parametrize(
    "name",
    [
        "fencing-token",
        "x-fencing-token",
        "fencing-resource",
        "fencing-holder",
        "fencing-anything-new",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
        "if-range",
        "content-md5",
        "x-amz-copy-source",
        "x-amz-meta-fencing-token",
        "x-amz-acl",
        "x-amz-trailer",
        "x-amz-decoded-content-length",
        "X-Amz-Tagging",
    ],
)
def test_headers_that_change_the_meaning_must_be_signed(name: str) -> None:
    request = signed_request()
    headers = [*request.headers, (name.encode(), b"1")]
    assert refusal(RequestHead("PUT", b"/bucket/key", b"", headers)) == ("AccessDenied", 403)
    verify(signed_request("PUT", b"/bucket/key", b"", (name.lower().encode(), b"1")), secret_of, THEN)


@pytest.mark.parametrize("name", ["range", "user-agent", "accept-encoding", "expect", "x-amzn-trace-id"])
def test_other_headers_may_be_added_on_the_way(name: str) -> None:
    request = signed_request()
    verify(RequestHead("PUT", b"/bucket/key", b"", [*request.headers, (name.encode(), b"1")]), secret_of, THEN)


@pytest.mark.parametrize("missing", ["host", "x-amz-date"])
def test_host_and_date_must_be_signed(missing: str) -> None:
    names = [name for name in ("host", "x-amz-content-sha256", "x-amz-date") if name != missing]
    request = changed(signed_request(), *authorization(";".join(names), "0" * 64))
    assert refusal(request) == ("AccessDenied", 403)


@pytest.mark.parametrize(
    "name", ["host", "x-amz-date", "authorization", "x-amz-content-sha256", "fencing-token", "content-type"]
)
def test_nothing_that_counts_may_stand_twice(name: str) -> None:
    request = signed_request("PUT", b"/b/k", b"", (b"fencing-token", b"5"), (b"content-type", b"a"))
    again = next(header for header in request.headers if header[0] == name.encode())
    for copy in (again, (again[0].upper(), b"other")):
        assert refusal(RequestHead("PUT", b"/b/k", b"", [*request.headers, copy])) == ("InvalidRequest", 400)


@pytest.mark.parametrize(
    "name",
    ["x_amz_copy_source", "x-amz_acl", "fencing_token", "if_match", "x_fencing_token", "x-amz-meta-fencing_token"],
)
def test_misspelt_names_of_sensitive_headers_are_refused(name: str) -> None:
    assert refusal(signed_request("PUT", b"/b/k", b"", (name.encode(), b"1"))) == ("InvalidRequest", 400)


def test_metadata_may_have_underscores() -> None:
    verify(signed_request("PUT", b"/b/k", b"", (b"x-amz-meta-my_key", b"1")), secret_of, THEN)


@pytest.mark.parametrize("minutes", [-15, 0, 15])
def test_clocks_may_differ_by_fifteen_minutes(minutes: int) -> None:
    verify(signed_request(), secret_of, THEN + timedelta(minutes=minutes))
    late = THEN + timedelta(minutes=minutes, seconds=1 if minutes > 0 else -1)
    if minutes:
        assert refusal(signed_request(), late) == ("RequestTimeTooSkewed", 403)


def test_an_unknown_key_id_and_a_wrong_secret() -> None:
    with pytest.raises(StoreError) as caught:
        verify(signed_request(), lambda *_: None, THEN)
    assert caught.value.s3_code == "InvalidAccessKeyId"

    with pytest.raises(StoreError) as caught:
        verify(signed_request(), lambda *_: (OWNER, "other"), THEN)
    assert caught.value.s3_code == "SignatureDoesNotMatch"


SCOPE = f"{ID}/20130524/us-east-1/s3/aws4_request"
SIGNED = "SignedHeaders=host;x-amz-date"
HEX = "0" * 64


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"AWS {ID}:c2lnbmF0dXJl", ("InvalidRequest", 400)),
        (f"AWS4-ECDSA-P256-SHA256 Credential={SCOPE}, {SIGNED}, Signature={HEX}", ("NotImplemented", 501)),
        ("Bearer abc", ("InvalidArgument", 400)),
        ("", ("InvalidArgument", 400)),
        (f"AWS4-HMAC-SHA256x Credential={SCOPE}, {SIGNED}, Signature={HEX}", ("InvalidArgument", 400)),
        (f"aws4-hmac-sha256 Credential={SCOPE}, {SIGNED}, Signature={HEX}", ("InvalidArgument", 400)),
        ("AWS4-HMAC-SHA256", ("AuthorizationHeaderMalformed", 400)),
        (f"AWS4-HMAC-SHA256 Credential={SCOPE}, {SIGNED}", ("AuthorizationHeaderMalformed", 400)),
        (f"AWS4-HMAC-SHA256 Credential={SCOPE}, {SIGNED}, Signature=00", ("AuthorizationHeaderMalformed", 400)),
        (
            f"AWS4-HMAC-SHA256 Credential={SCOPE.replace('/s3/', '/sts/')}, {SIGNED}, Signature={HEX}",
            ("AuthorizationHeaderMalformed", 400),
        ),
        (
            f"AWS4-HMAC-SHA256 Credential={SCOPE.replace('aws4', 'aws5')}, {SIGNED}, Signature={HEX}",
            ("AuthorizationHeaderMalformed", 400),
        ),
        (
            f"AWS4-HMAC-SHA256 Credential={SCOPE.replace('0524', '0525')}, {SIGNED}, Signature={HEX}",
            ("AuthorizationHeaderMalformed", 400),
        ),
        (
            f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=x-amz-date;host, Signature={HEX}",
            ("AuthorizationHeaderMalformed", 400),
        ),
        (
            f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=host;host;x-amz-date, Signature={HEX}",
            ("AuthorizationHeaderMalformed", 400),
        ),
        (
            f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=host;x-absent;x-amz-date, Signature={HEX}",
            ("SignatureDoesNotMatch", 403),
        ),
    ],
)
def test_what_is_not_a_signature_of_this_form(value: str, expected: tuple[str, int]) -> None:
    assert refusal(changed(signed_request(), b"authorization", value.encode())) == expected


def test_unsigned_requests_are_denied() -> None:
    request = signed_request()
    headers = without(request, b"authorization")
    assert refusal(RequestHead("GET", b"/", b"", headers)) == ("AccessDenied", 403)


@pytest.mark.parametrize(
    "value",
    [b"2013-05-24T00:00:00Z", b"20130524T000000", b"20130524T996000Z", b"20130524T0000Z", b"", b"2013524T0000000Z"],
)
def test_dates_that_cannot_be_read(value: bytes) -> None:
    assert refusal(changed(signed_request(), b"x-amz-date", value)) == ("AccessDenied", 403)


def test_a_request_without_a_date() -> None:
    headers = without(signed_request(), b"x-amz-date")
    assert refusal(RequestHead("PUT", b"/bucket/key", b"", headers)) == ("AccessDenied", 403)


@pytest.mark.parametrize(
    "value", [b"EXACT", b"abc", b"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", NOTHING.upper().encode()]
)
def test_payload_modes_that_are_none(value: bytes) -> None:
    assert refusal(changed(signed_request(), b"x-amz-content-sha256", value)) == ("InvalidArgument", 400)


def test_a_request_that_says_nothing_about_its_body() -> None:
    request = changed(signed_request(), *authorization("host;x-amz-date", HEX))
    headers = without(request, b"x-amz-content-sha256")
    assert refusal(RequestHead("PUT", b"/bucket/key", b"", headers)) == ("InvalidRequest", 400)
