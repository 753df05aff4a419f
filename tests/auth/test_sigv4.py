"""Only signed requests get in, with a signature in their headers or in a presigned URL; outgoing ones are signed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.auth import signature_claims
from gateway.auth.principal import Principal
from gateway.auth.sigv4 import PayloadMode, RequestHead, StoreCredentials, presign, sign, verify
from gateway.errors import StoreError

# The example account of the S3 documentation.
ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
CREDENTIALS = StoreCredentials(ID, SECRET, "us-east-1")
THEN = datetime(2013, 5, 24, tzinfo=UTC)
HOUR = timedelta(hours=1)
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SHA256 = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
OWNER = Principal("worker")
HOST = (b"host", b"gateway:8080")
DENIED, MISMATCH = ("AccessDenied", 403), ("SignatureDoesNotMatch", 403)
INVALID, ARGUMENT, LATER = ("InvalidRequest", 400), ("InvalidArgument", 400), ("NotImplemented", 501)
MALFORMED_HEADER, MALFORMED = ("AuthorizationHeaderMalformed", 400), ("AuthorizationQueryParametersError", 400)
Headers = list[tuple[bytes, bytes]]


def secret_of(access_key_id: str, _session_token: str | None) -> tuple[Principal, str] | None:
    return (OWNER, SECRET) if access_key_id == ID else None


def encoded(headers: list[tuple[str, str]]) -> Headers:
    return [(name.encode(), value.encode()) for name, value in headers]


def in_headers(
    method: str = "PUT",
    path: bytes = b"/bucket/key",
    query: bytes = b"",
    *headers: tuple[bytes, bytes],
    payload: str = NOTHING,
) -> RequestHead:
    """A request that is signed in its headers as it should be."""
    named = [HOST, *headers]
    added = sign(RequestHead(method, path, query, named), payload, CREDENTIALS, THEN)
    return RequestHead(method, path, query, named + encoded(added))


def in_query(
    method: str = "PUT",
    path: bytes = b"/bucket/key",
    query: bytes = b"",
    *headers: tuple[bytes, bytes],
    expires: timedelta = HOUR,
) -> RequestHead:
    """A request that is signed in its query as it should be."""
    named = [HOST, *headers]
    signed = presign(RequestHead(method, path, query, named), CREDENTIALS, THEN, expires)
    return RequestHead(method, path, signed.encode(), named)


both = pytest.mark.parametrize("signed", [in_headers, in_query])
Signed = Callable[..., RequestHead]


def other(request: RequestHead, **changes: Any) -> RequestHead:
    """The same request with other parts."""
    parts = {name: getattr(request, name) for name in ("method", "raw_path", "query_string", "headers")}
    return RequestHead(**{**parts, **changes})


def plus(request: RequestHead, *headers: tuple[bytes, bytes]) -> RequestHead:
    return other(request, headers=[*request.headers, *headers])


def without(request: RequestHead, name: bytes) -> RequestHead:
    return other(request, headers=[header for header in request.headers if header[0] != name])


def changed(request: RequestHead, name: bytes, value: bytes) -> RequestHead:
    return plus(without(request, name), (name, value))


def asked(request: RequestHead, old: str, new: str) -> RequestHead:
    """The same request with another query."""
    query = request.query_string.decode()
    assert old in query
    return other(request, query_string=query.replace(old, new).encode())


def refusal(request: RequestHead, now: datetime = THEN) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        verify(request, secret_of, now)
    assert SECRET not in str(caught.value)
    return caught.value.s3_code, caught.value.status


# Signed by botocore, and by the gateway ------------------------------------------------------------------------------


def authorization(signed: str, signature: str) -> tuple[bytes, bytes]:
    credential = f"Credential={ID}/20130524/us-east-1/s3/aws4_request"
    value = f"AWS4-HMAC-SHA256 {credential},SignedHeaders={signed},Signature={signature}"
    return b"authorization", value.encode()


# Requests of the S3 documentation, with its signatures: method, path, query, headers, hash of the body.
PUBLISHED: list[tuple[str, bytes, bytes, Headers, str, str]] = [
    (
        "GET",
        b"/test.txt",
        b"",
        [(b"range", b"bytes=0-9")],
        NOTHING,
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    (
        "PUT",
        b"/test$file.text",
        b"",
        [(b"date", b"Fri, 24 May 2013 00:00:00 GMT"), (b"x-amz-storage-class", b"REDUCED_REDUNDANCY")],
        SHA256,
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ),
    ("GET", b"/", b"lifecycle", [], NOTHING, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    (
        "GET",
        b"/",
        b"max-keys=2&prefix=J",
        [],
        NOTHING,
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ),
]


def test_published_examples() -> None:
    host = (b"host", b"examplebucket.s3.amazonaws.com")
    for method, path, query, headers, payload, signature in PUBLISHED:
        added = dict(sign(RequestHead(method, path, query, [host, *headers]), payload, CREDENTIALS, THEN))
        assert added["authorization"].endswith(f",Signature={signature}")
        received = RequestHead(method, path, query, [host, *headers, *encoded(list(added.items()))])
        assert verify(received, secret_of, THEN).sha256 == payload
    presigned = presign(RequestHead("GET", b"/test.txt", b"", [host]), CREDENTIALS, THEN, timedelta(days=1))
    assert presigned.endswith("&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")
    assert verify(RequestHead("GET", b"/test.txt", presigned.encode(), [host]), secret_of, THEN).principal == OWNER


KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
VALUES = st.text(st.sampled_from("abcXYZ019 -_.~!*'()/=&%+\"é"), max_size=12)
ANY = {
    "method": st.sampled_from(["GET", "PUT", "DELETE", "HEAD"]),
    "key": KEYS,
    "query": st.dictionaries(st.text(st.sampled_from("abc-XYZ é/"), min_size=1, max_size=6), VALUES, max_size=4),
    "metadata": st.dictionaries(st.sampled_from(["a", "b", "zeta"]), st.text("abc  xyz", max_size=10), max_size=3),
}


def request_of(method: str, key: str, query: dict[str, str], metadata: dict[str, str], body: bytes = b"") -> AWSRequest:
    asked = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
    headers = {"Fencing-Token": "7"} | {f"x-amz-meta-{name}": value for name, value in metadata.items()}
    address = f"http://gateway:8080/bucket/{quote(key, safe='/~')}{'?' * bool(asked)}{asked}"
    return AWSRequest(method, address, headers, body)


def received(theirs: AWSRequest) -> RequestHead:
    """A request of botocore as the gateway gets it."""
    parts = urlsplit(str(theirs.url))
    headers = encoded([(name.lower(), str(value)) for name, value in theirs.headers.items()])
    return RequestHead(str(theirs.method), parts.path.encode(), parts.query.encode(), [HOST, *headers])


def moment_of(theirs: AWSRequest) -> datetime:
    return datetime.strptime(theirs.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


@settings(max_examples=150, deadline=None)
@given(**ANY, body=st.binary(max_size=20))
def test_agrees_with_botocore(**parts: Any) -> None:
    theirs = request_of(**parts)
    unsigned = received(theirs)
    S3SigV4Auth(BotoCredentials(ID, SECRET), "s3", "eu-central-1").add_auth(theirs)
    head, now = received(theirs), moment_of(theirs)
    assert verify(head, secret_of, now).principal == OWNER
    assert refusal(changed(head, b"fencing-token", b"8"), now) == MISMATCH
    payload = theirs.headers["X-Amz-Content-SHA256"]
    ours = dict(sign(unsigned, payload, StoreCredentials(ID, SECRET, "eu-central-1"), now))
    assert ours["authorization"].replace(",", ", ") == theirs.headers["Authorization"]


@settings(max_examples=150, deadline=None)
@given(
    **ANY,
    session=st.none() | st.just("fencing-token=7") | VALUES.filter(bool),
    seconds=st.integers(1, 604800),
    age=st.floats(0, 1),
)
def test_what_botocore_presigns_is_accepted_and_so_is_what_we_presign(
    session: str | None, seconds: int, age: float, **parts: Any
) -> None:
    theirs, expires = request_of(**parts), timedelta(seconds=seconds)
    unsigned = received(theirs)
    S3SigV4QueryAuth(BotoCredentials(ID, SECRET, session), "s3", "eu-central-1", seconds).add_auth(theirs)
    head, now = received(theirs), moment_of(theirs)
    seen: list[str | None] = []

    def recording(access_key_id: str, session_token: str | None) -> tuple[Principal, str] | None:
        seen.append(session_token)
        return secret_of(access_key_id, session_token)

    assert verify(head, recording, now + expires).principal == OWNER
    # Query values are UTF-8; a token that is not ASCII would not be one of ours.
    assert seen == [session if session is None else session.encode().decode("latin-1")]
    assert refusal(head, now + expires + timedelta(seconds=1)) == DENIED
    assert refusal(other(head, raw_path=head.raw_path + b"x"), now) == MISMATCH
    query = presign(unsigned, CREDENTIALS, THEN, expires).encode()
    assert query.startswith(unsigned.query_string)
    assert verify(other(unsigned, query_string=query), secret_of, THEN + expires * age).principal == OWNER


@pytest.mark.parametrize("expires", [timedelta(0), timedelta(milliseconds=999), timedelta(days=7, seconds=1)])
def test_we_presign_for_one_second_to_seven_days(expires: timedelta) -> None:
    with pytest.raises(ValueError, match="604800"):
        in_query(expires=expires)


# Covered by a signature -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "same"),
    [(b"/b/a%2fb", b"/b/a/b"), (b"/b/%7Ex", b"/b/~x"), (b"/b/a+b", b"/b/a%2Bb"), (b"/b/\xc3\xa9", b"/b/%C3%A9")],
)
def test_one_key_has_one_canonical_form(wire: bytes, same: bytes) -> None:
    verify(other(in_headers("GET", wire), raw_path=same), secret_of, THEN)


@pytest.mark.parametrize(
    ("path", "sent"), [(b"/b/a/../c", b"/b/c"), (b"/b//a", b"/b/a"), (b"/b/./a", b"/b/a"), (b"/b/a/", b"/b/a")]
)
def test_paths_are_not_normalised(path: bytes, sent: bytes) -> None:
    request = in_headers("GET", path)
    verify(request, secret_of, THEN)
    assert refusal(other(request, raw_path=sent)) == MISMATCH


@both
def test_every_part_of_the_request_is_covered(signed: Signed) -> None:
    request = signed("PUT", b"/bucket/key", b"a=1&b=2", (b"fencing-token", b"5"), (b"content-type", b"text/plain"))
    verify(request, secret_of, THEN)
    query = request.query_string
    own = {
        in_headers: [
            changed(request, b"x-amz-date", b"20130524T000001Z"),
            changed(request, b"x-amz-content-sha256", NOTHING.replace("e3", "e4").encode()),
            changed(request, b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD"),
        ],
        in_query: [
            other(request, query_string=query.replace(old, new))
            for old, new in ((b"=3600", b"=3601"), (b"T000000Z", b"T000001Z"), (b"us-east-1", b"us-east-2"))
        ]
        + [
            other(request, query_string=query + added)
            for added in (b"&X-Amz-Security-Token=fencing-token%3D9", f"&X-Amz-Content-Sha256={SHA256}".encode())
        ],
    }
    for one in (
        other(request, method="DELETE"),
        other(request, raw_path=b"/bucket/key2"),
        other(request, raw_path=b"/other/key"),
        other(request, query_string=query + b"&acl"),
        other(request, query_string=query + b"&fencing-token=9"),
        other(request, query_string=query.replace(b"a=1", b"a=2")),
        other(request, query_string=query.replace(b"a=1&", b"")),
        changed(request, b"fencing-token", b"6"),
        changed(request, b"content-type", b"text/html"),
        changed(request, b"host", b"elsewhere"),
        *own[signed],
    ):
        assert refusal(one) == MISMATCH, one


def test_where_the_signature_stands_in_a_query_does_not_matter() -> None:
    request = in_query("GET", b"/bucket/key", b"prefix=a")
    reversed_query = b"&".join(reversed(request.query_string.split(b"&")))
    assert verify(other(request, query_string=reversed_query), secret_of, THEN).principal == OWNER


@both
@pytest.mark.parametrize(
    "name",
    [
        *("fencing-token", "x-fencing-token", "fencing-resource", "fencing-holder", "fencing-anything-new"),
        *("content-md5", "x-amz-copy-source", "x-amz-copy-source-if-match", "x-amz-meta-fencing-token", "x-amz-acl"),
        *("x-amz-decoded-content-length", "x-amz-trailer", "X-Amz-Tagging"),
    ],
)
def test_headers_that_change_the_meaning_must_be_signed(signed: Signed, name: str) -> None:
    assert refusal(plus(signed(), (name.encode(), b"1"))) == DENIED
    verify(signed("PUT", b"/bucket/key", b"", (name.lower().encode(), b"1")), secret_of, THEN)


@both
@pytest.mark.parametrize("name", ["range", "user-agent", "accept-encoding", "expect", "x-amzn-trace-id", "cookie"])
def test_other_headers_may_be_added_on_the_way(signed: Signed, name: str) -> None:
    verify(plus(signed(), (name.encode(), b"1")), secret_of, THEN)


@both
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
@pytest.mark.parametrize(
    "name", ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "If-None-Match"]
)
def test_a_condition_may_be_unsigned_and_stands_once(signed: Signed, method: str, name: str) -> None:
    """A browser revalidates what it has read by a URL, and object_store adds one to a completion that is signed."""
    request = plus(signed(method), (name.encode(), b"1"))
    verify(request, secret_of, THEN)
    assert refusal(plus(request, (name.upper().encode(), b"2"))) == INVALID


@both
@pytest.mark.parametrize(
    "name",
    ["host", "x-amz-date", "authorization", "x-amz-content-sha256", "fencing-token", "content-type", "x-amz-acl"],
)
def test_nothing_that_counts_may_stand_twice(signed: Signed, name: str) -> None:
    request = signed("PUT", b"/b/k", b"", (b"fencing-token", b"5"), (b"content-type", b"a"), (b"x-amz-acl", b"a"))
    for again in [header for header in request.headers if header[0] == name.encode()]:
        for copy in (again, (again[0].upper(), b"other")):
            assert refusal(plus(request, copy)) == INVALID


@pytest.mark.parametrize(
    "name",
    ["x_amz_copy_source", "x-amz_acl", "fencing_token", "if_match", "x_fencing_token", "x-amz-meta-fencing_token"],
)
def test_misspelt_names_of_sensitive_headers_are_refused(name: str) -> None:
    assert refusal(in_headers("PUT", b"/b/k", b"", (name.encode(), b"1"))) == INVALID


def test_metadata_may_have_underscores() -> None:
    verify(in_headers("PUT", b"/b/k", b"", (b"x-amz-meta-my_key", b"1")), secret_of, THEN)


def test_host_and_date_must_be_signed() -> None:
    for names in ("x-amz-content-sha256;x-amz-date", "host;x-amz-content-sha256"):
        assert refusal(changed(in_headers(), *authorization(names, HEX))) == DENIED
    part = (b"range", b"bytes=0-1")
    query = presign(RequestHead("GET", b"/b/k", b"", [part]), CREDENTIALS, THEN, HOUR).encode()
    for host in ([HOST], []):
        assert refusal(RequestHead("GET", b"/b/k", query, [*host, part])) == DENIED


def test_session_tokens_must_be_signed() -> None:
    session = (b"x-amz-security-token", b"fencing-token=34")
    assert refusal(plus(in_query(), session)) == DENIED
    assert refusal(plus(in_headers("PUT", b"/b/k", payload=SHA256), session)) == DENIED


# Times ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signed", "seconds", "expected"),
    [
        *((in_headers, seconds, None) for seconds in (-900, 0, 900)),
        *((in_headers, seconds, ("RequestTimeTooSkewed", 403)) for seconds in (-901, 901)),
        *((in_query, seconds, None) for seconds in (-900, 0, 3600)),
        *((in_query, seconds, DENIED) for seconds in (-901, 3601)),
    ],
)
def test_clocks_may_differ_by_fifteen_minutes_and_a_url_expires(
    signed: Signed, seconds: int, expected: tuple[str, int] | None
) -> None:
    now = THEN + timedelta(seconds=seconds)
    if expected is None:
        verify(signed(), secret_of, now)
    else:
        assert refusal(signed(), now) == expected


@both
def test_a_proven_head_is_good_while_its_owner_has_the_secret_and_the_time_is_right(signed: Signed) -> None:
    request = signed(method="GET")
    first = verify(request, secret_of, THEN)
    assert first.proven is not None
    assert SECRET not in repr(first)
    promoted = Principal("worker", groups=("admins",))
    again = verify(request, lambda *_: (promoted, SECRET), THEN, first.proven)
    assert again == replace(first, principal=promoted), "the caller is the one of now"
    for keys, now, expected in (
        ((OWNER, "another secret"), THEN, MISMATCH),
        (None, THEN, ("InvalidAccessKeyId", 403)),
        ((OWNER, SECRET), THEN + timedelta(days=1), DENIED if signed is in_query else ("RequestTimeTooSkewed", 403)),
        ((replace(OWNER, expires=THEN), SECRET), THEN, ("ExpiredToken", 400)),
    ):
        with pytest.raises(StoreError) as caught:
            verify(request, lambda *_, keys=keys: keys, now, first.proven)
        assert (caught.value.s3_code, caught.value.status) == expected


@pytest.mark.parametrize(
    "value",
    [b"2013-05-24T00:00:00Z", b"20130524T000000", b"20130524T996000Z", b"20130524T0000Z", b"", b"2013524T0000000Z"],
)
def test_dates_that_cannot_be_read(value: bytes) -> None:
    assert refusal(changed(in_headers(), b"x-amz-date", value)) == DENIED


def test_a_request_without_a_date_or_a_signature_is_denied() -> None:
    for name in (b"x-amz-date", b"authorization"):
        assert refusal(without(in_headers(), name)) == DENIED


# The promise about the body -------------------------------------------------------------------------------------------


def covering(said: str, *, header: bool) -> tuple[RequestHead, datetime]:
    """A URL whose signature covers this hash, by another signer than ours, and when it was signed."""

    class Signer(S3SigV4QueryAuth):
        def payload(self, request: AWSRequest) -> str:
            return said

    query = "" if header else f"?X-Amz-Content-Sha256={said}"
    extra = {"X-Amz-Content-SHA256": said} if header else {}
    theirs = AWSRequest("PUT", f"http://gateway:8080/bucket/key{query}", extra)
    Signer(BotoCredentials(ID, SECRET), "s3", "us-east-1", 3600).add_auth(theirs)
    return received(theirs), moment_of(theirs)


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        (SHA256, PayloadMode.EXACT),
        ("UNSIGNED-PAYLOAD", PayloadMode.UNSIGNED),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", PayloadMode.UNSIGNED_TRAILER),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", PayloadMode.SIGNED_CHUNKS),
    ],
)
def test_a_verified_signature_tells_what_it_says_about_the_body(said: str, mode: PayloadMode) -> None:
    """In a URL the hash is a header or a parameter. The canonical request then ends with it, as in headers."""
    for head, now in ((in_headers(payload=said), THEN), covering(said, header=True), covering(said, header=False)):
        verified = verify(head, secret_of, now)
        assert verified.mode is mode
        assert verified.sha256 == (SHA256 if mode is PayloadMode.EXACT else None)
        assert (verified.chunks is not None) == (mode is PayloadMode.SIGNED_CHUNKS)
        assert SECRET not in repr(verified)
        if verified.chunks is not None:
            assert repr(verified.chunks.signing_key) not in repr(verified)
    assert mode.chunked == said.startswith("STREAMING")


@pytest.mark.parametrize(
    "value", [b"EXACT", b"abc", b"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", NOTHING.upper().encode()]
)
def test_a_hash_of_the_body_that_is_none(value: bytes) -> None:
    assert refusal(changed(in_headers(), b"x-amz-content-sha256", value)) == ARGUMENT
    for header in (True, False):
        assert refusal(*covering(value.decode(), header=header)) == ARGUMENT


def test_a_hash_of_the_body_must_be_there_and_signed() -> None:
    request = changed(in_headers(), *authorization("host;x-amz-date", HEX))
    assert refusal(without(request, b"x-amz-content-sha256")) == INVALID
    assert refusal(plus(in_query(), (b"x-amz-content-sha256", SHA256.encode()))) == DENIED


# No signatures --------------------------------------------------------------------------------------------------------


SCOPE = f"{ID}/20130524/us-east-1/s3/aws4_request"
SIGNED = "SignedHeaders=host;x-amz-date"
HEX = "0" * 64


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"AWS {ID}:c2lnbmF0dXJl", INVALID),
        (f"AWS4-ECDSA-P256-SHA256 Credential={SCOPE}, {SIGNED}, Signature={HEX}", LATER),
        ("Bearer abc", ARGUMENT),
        ("", ARGUMENT),
        (f"AWS4-HMAC-SHA256x Credential={SCOPE}, {SIGNED}, Signature={HEX}", ARGUMENT),
        (f"aws4-hmac-sha256 Credential={SCOPE}, {SIGNED}, Signature={HEX}", ARGUMENT),
        ("AWS4-HMAC-SHA256", ARGUMENT),
        (f"AWS4-HMAC-SHA256 Credential={SCOPE}, {SIGNED}", MALFORMED_HEADER),
        (f"AWS4-HMAC-SHA256 Credential={SCOPE}, {SIGNED}, Signature=00", MALFORMED_HEADER),
        *(
            (f"AWS4-HMAC-SHA256 Credential={SCOPE.replace(old, new)}, {SIGNED}, Signature={HEX}", MALFORMED_HEADER)
            for old, new in (("/s3/", "/sts/"), ("aws4", "aws5"), ("0524", "0525"))
        ),
        *(
            (f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders={names}, Signature={HEX}", expected)
            for names, expected in (
                ("x-amz-date;host", MALFORMED_HEADER),
                ("host;host;x-amz-date", MALFORMED_HEADER),
                ("host;x-absent;x-amz-date", MISMATCH),
            )
        ),
    ],
)
def test_a_header_that_is_not_a_signature_of_this_form(value: str, expected: tuple[str, int]) -> None:
    assert refusal(changed(in_headers(), b"authorization", value.encode())) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (f"{SCOPE.replace('/s3/', '/sts/')}", 'incorrect service "sts". This endpoint belongs to "s3".'),
        (f"{SCOPE.replace('aws4', 'aws5')}", 'incorrect terminal "aws5_request". This endpoint uses "aws4_request".'),
        (f"{ID}/1/us-east-1/s3/aws4_request", 'incorrect date format "1". This date in the credential must be'),
        (f"{ID}/1/2/us-east-1/s3/aws4_request", "the Credential is mal-formed; expecting"),
        ("AKIA", "the Credential is mal-formed; expecting"),
    ],
)
def test_what_is_wrong_with_a_credential_is_said_in_the_words_of_s3(value: str, words: str) -> None:
    authorization = f"AWS4-HMAC-SHA256 Credential={value}, {SIGNED}, Signature={HEX}"
    header = changed(in_headers(), b"authorization", authorization.encode())
    with pytest.raises(StoreError) as raised:
        verify(header, secret_of, THEN)
    assert raised.value.message.startswith(f"The authorization header is malformed; {words}")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [("x", "should be a number"), ("-1", "must be non-negative"), ("604801", "must be less than a week")],
)
def test_what_is_wrong_with_a_lifetime_is_said_in_the_words_of_s3(seconds: str, words: str) -> None:
    with pytest.raises(StoreError, match=f"X-Amz-Expires {words}"):
        signature_claims._lifetime(seconds)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", MALFORMED),
        ("AWS4-HMAC-SHA256", "aws4-hmac-sha256", MALFORMED),
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256", LATER),
        ("%2Fs3%2F", "%2Fsts%2F", MALFORMED),
        ("aws4_request", "aws5_request", MALFORMED),
        ("20130524%2F", "20130525%2F", MALFORMED),
        ("%2F20130524%2F", "%2F", MALFORMED),
        *(
            ("Date=20130524T000000Z", f"Date={date}", MALFORMED)
            for date in ("2013-05-24T00:00:00Z", "2013524T0000000Z", "20130524T0000Z", "")
        ),
        *(
            ("Expires=3600", f"Expires={seconds}", MALFORMED)
            for seconds in ("0", "-1", "604801", "9999999", "3600.5", "%D9%A3", "")
        ),
        *(
            ("SignedHeaders=host", f"SignedHeaders={names}", MALFORMED)
            for names in ("", "Host", "host%3Bhost", "range%3Bhost")
        ),
        ("SignedHeaders=host", "SignedHeaders=host%3Bx-absent", MISMATCH),
        ("SignedHeaders=host", "SignedHeaders=range", DENIED),
        ("Signature=", "Signature=0", MISMATCH),
        (ID, "AKIANOBODY", ("InvalidAccessKeyId", 403)),
    ],
)
def test_a_query_that_is_not_a_signature_of_this_form(old: str, new: str, expected: tuple[str, int]) -> None:
    assert refusal(plus(asked(in_query("GET"), old, new), (b"range", b"bytes=0-1"))) == expected


PARAMETERS = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")


@pytest.mark.parametrize("name", PARAMETERS)
def test_all_parameters_are_needed_once_and_in_their_spelling(name: str) -> None:
    request = in_query("GET")
    [part] = [one for one in request.query_string.decode().split("&") if one.startswith(f"X-Amz-{name}=")]
    for change in (
        "",
        f"{part}&{part}",
        f"{part}&X-Amz-{name}=other",
        f"{part}&{part.replace('X-Amz-', 'X%2DAmz-')}",
        f"{part}&{part.replace('X-Amz-', 'x-amz-')}",
        part.replace("X-Amz-", "x-amz-"),
        part.replace(f"X-Amz-{name}", f"X-AMZ-{name.upper()}"),
    ):
        assert refusal(asked(request, part, change)) == MALFORMED, change


@pytest.mark.parametrize("name", ["X-Amz-Security-Token", "X-Amz-Content-Sha256"])
def test_optional_parameters_stand_once_and_in_their_spelling(name: str) -> None:
    request = in_query("GET")
    for added in (f"{name.lower()}=a", f"{name}=a&{name}=b", f"{name.upper()}=a"):
        assert refusal(other(request, query_string=request.query_string + f"&{added}".encode())) == MALFORMED


def test_one_authorization_is_enough() -> None:
    for query in (in_query("GET").query_string, b"X-Amz-Expires=1", b"prefix=a&X-Amz-Security-Token=b"):
        assert refusal(in_headers("GET", b"/bucket/key", query, payload=SHA256)) == ARGUMENT


@pytest.mark.parametrize("header", [b"x-amz-date", b"x-amz-security-token", b"x-amz-content-sha256"])
def test_nothing_of_the_signature_stands_in_both_places(header: bytes) -> None:
    query = f"X-Amz-Security-Token=a&X-Amz-Content-Sha256={SHA256}".encode()
    assert refusal(in_query("PUT", b"/b/k", query, (header, b"a"))) == INVALID


@pytest.mark.parametrize(
    "query",
    [b"AWSAccessKeyId=x&Signature=y&Expires=1", b"prefix=a&Signature=y", b"awsaccesskeyid=x", b"AWSAccessKey%49d=x"],
)
def test_signature_version_2_is_refused_with_advice(query: bytes) -> None:
    for request in (RequestHead("GET", b"/b/k", query, [HOST]), in_query("GET", b"/b/k", query)):
        with pytest.raises(StoreError) as raised:
            verify(request, secret_of, THEN)
        assert "aws configure set default.s3.signature_version s3v4" in raised.value.advice
        assert 'Config(signature_version="s3v4")' in raised.value.advice
        assert refusal(request) == INVALID


def test_what_is_kept_of_strangers_signatures_is_short() -> None:
    """Keys and times are kept, and a head has room for sixty thousand characters of each."""
    with pytest.raises(StoreError):
        signature_claims.credential(f"AKIA1/20260101/{'r' * 60_000}/s3/aws4_request", "InvalidArgument")
    before = signature_claims._moment.cache_info().currsize
    assert signature_claims.moment("2" * 60_000) is None
    assert signature_claims._moment.cache_info().currsize == before
