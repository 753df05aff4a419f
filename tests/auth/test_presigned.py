"""A presigned URL permits exactly the signed request, for the signed time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import PayloadMode, RequestHead, StoreCredentials, presign, sign, verify
from gateway.errors import StoreError

# The example account of the S3 documentation.
ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
CREDENTIALS = StoreCredentials(ID, SECRET, "us-east-1")
THEN = datetime(2013, 5, 24, tzinfo=UTC)
HOUR = timedelta(hours=1)
OWNER = Principal("worker")
HOST = (b"host", b"gateway:8080")
SHA256 = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
MALFORMED = ("AuthorizationQueryParametersError", 400)
MISMATCH = ("SignatureDoesNotMatch", 403)

Headers = list[tuple[bytes, bytes]]


def secret_of(access_key_id: str, _session_token: str | None) -> tuple[Principal, str] | None:
    return (OWNER, SECRET) if access_key_id == ID else None


def presigned(
    method: str = "GET",
    path: bytes = b"/bucket/key",
    query: str = "",
    *headers: tuple[bytes, bytes],
    expires: timedelta = HOUR,
) -> RequestHead:
    """A request that is signed in its query, by us."""
    named = [HOST, *headers]
    signed = presign(RequestHead(method, path, query.encode(), named), CREDENTIALS, THEN, expires)
    return RequestHead(method, path, signed.encode(), named)


def refusal(request: RequestHead, now: datetime = THEN) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        verify(request, secret_of, now)
    assert SECRET not in str(caught.value)
    return caught.value.s3_code, caught.value.status


def with_query(request: RequestHead, change: Callable[[str], str]) -> RequestHead:
    changed = change(request.query_string.decode())
    assert changed.encode() != request.query_string
    return RequestHead(request.method, request.raw_path, changed.encode(), request.headers)


def test_the_published_example() -> None:
    host = [(b"host", b"examplebucket.s3.amazonaws.com")]
    query = presign(RequestHead("GET", b"/test.txt", b"", host), CREDENTIALS, THEN, timedelta(days=1))
    assert query == (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )
    verified = verify(RequestHead("GET", b"/test.txt", query.encode(), host), secret_of, THEN)
    assert (verified.principal, verified.mode, verified.sha256) == (OWNER, PayloadMode.UNSIGNED, None)


# Presigned by botocore, and by the gateway ----------------------------------------------------------------------------

KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
VALUES = st.text(st.sampled_from("abcXYZ019 -_.~!*'()/=&%+\"é"), max_size=12)
QUERIES = st.dictionaries(st.text(st.sampled_from("abc-XYZ é/"), min_size=1, max_size=6), VALUES, max_size=4)
METADATA = st.dictionaries(st.sampled_from(["a", "b", "zeta"]), st.text("abc  xyz", max_size=10), max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    method=st.sampled_from(["GET", "PUT", "DELETE", "HEAD"]),
    key=KEYS,
    query=QUERIES,
    metadata=METADATA,
    session=st.none() | st.just("fencing-token=7") | VALUES.filter(bool),
    seconds=st.integers(1, 604800),
)
def test_what_botocore_presigns_is_accepted(
    method: str, key: str, query: dict[str, str], metadata: dict[str, str], session: str | None, seconds: int
) -> None:
    path = "/bucket/" + quote(key, safe="/~")
    headers = {"Fencing-Token": "7"} | {f"x-amz-meta-{name}": value for name, value in metadata.items()}
    encoded = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
    theirs = AWSRequest(method, f"http://gateway:8080{path}{'?' * bool(encoded)}{encoded}", headers)
    S3SigV4QueryAuth(BotoCredentials(ID, SECRET, session), "s3", "eu-central-1", seconds).add_auth(theirs)
    head, now = received(theirs)
    seen: list[str | None] = []

    def recording(access_key_id: str, session_token: str | None) -> tuple[Principal, str] | None:
        seen.append(session_token)
        return secret_of(access_key_id, session_token)

    assert verify(head, recording, now + timedelta(seconds=seconds)).principal == OWNER
    # Query values are UTF-8; a token that is not ASCII would not be one of ours.
    assert seen == [session if session is None else session.encode().decode("latin-1")]
    assert refusal(head, now + timedelta(seconds=seconds + 1)) == ("AccessDenied", 403)
    other = RequestHead(method, head.raw_path + b"x", head.query_string, head.headers)
    assert refusal(other, now) == MISMATCH


@settings(max_examples=150, deadline=None)
@given(
    method=st.sampled_from(["GET", "PUT", "DELETE", "POST"]),
    key=KEYS,
    query=QUERIES,
    metadata=METADATA,
    seconds=st.integers(1, 604800),
    age=st.floats(0, 1),
)
def test_what_we_presign_is_accepted(
    method: str, key: str, query: dict[str, str], metadata: dict[str, str], seconds: int, age: float
) -> None:
    headers = [(f"x-amz-meta-{name}".encode(), value.encode()) for name, value in metadata.items()]
    encoded = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
    expires = timedelta(seconds=seconds)
    head = presigned(method, f"/bucket/{quote(key)}".encode(), encoded, *headers, expires=expires)
    assert head.query_string.startswith(encoded.encode())
    assert verify(head, secret_of, THEN + expires * age).principal == OWNER


@pytest.mark.parametrize("expires", [timedelta(0), timedelta(milliseconds=999), timedelta(days=7, seconds=1)])
def test_we_presign_for_one_second_to_seven_days(expires: timedelta) -> None:
    with pytest.raises(ValueError, match="604800"):
        presigned(expires=expires)


# The limits of a presigned URL ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "good"), [(-901, False), (-900, True), (0, True), (3600, True), (3601, False)])
def test_it_is_good_from_a_quarter_of_an_hour_before_until_it_expires(offset: int, good: bool) -> None:  # noqa: FBT001
    now = THEN + timedelta(seconds=offset)
    if good:
        verify(presigned(), secret_of, now)
    else:
        assert refusal(presigned(), now) == ("AccessDenied", 403)


def test_an_expired_one_says_so_as_s3_does() -> None:
    with pytest.raises(StoreError, match=r"^Request has expired$"):
        verify(presigned(), secret_of, THEN + 2 * HOUR)


def test_every_part_of_the_request_is_covered() -> None:
    request = presigned("PUT", b"/bucket/key", "partNumber=1&uploadId=u", (b"fencing-token", b"5"))
    verify(request, secret_of, THEN)
    method, path, query, headers = "PUT", request.raw_path, request.query_string, request.headers
    for other in (
        RequestHead("DELETE", path, query, headers),
        RequestHead(method, b"/bucket/key2", query, headers),
        RequestHead(method, b"/other/key", query, headers),
        RequestHead(method, path, query + b"&acl", headers),
        RequestHead(method, path, query + b"&fencing-token=9", headers),
        RequestHead(method, path, query.replace(b"partNumber=1", b"partNumber=2"), headers),
        RequestHead(method, path, query.replace(b"partNumber=1&", b""), headers),
        RequestHead(method, path, query.replace(b"Expires=3600", b"Expires=3601"), headers),
        RequestHead(method, path, query.replace(b"T000000Z", b"T000001Z"), headers),
        RequestHead(method, path, query.replace(b"us-east-1", b"us-east-2"), headers),
        RequestHead(method, path, query + b"&X-Amz-Security-Token=fencing-token%3D9", headers),
        RequestHead(method, path, query + f"&X-Amz-Content-Sha256={SHA256}".encode(), headers),
        RequestHead(method, path, query, [HOST, (b"fencing-token", b"6")]),
        RequestHead(method, path, query, [(b"host", b"elsewhere"), (b"fencing-token", b"5")]),
    ):
        assert refusal(other) == MISMATCH, other


def test_where_the_signature_stands_does_not_matter() -> None:
    request = presigned("GET", b"/bucket/key", "prefix=a")
    first = with_query(request, lambda query: "&".join(reversed(query.split("&"))))
    assert verify(first, secret_of, THEN).principal == OWNER


@pytest.mark.parametrize(
    "name",
    [
        *("fencing-token", "x-fencing-token", "fencing-resource", "fencing-holder", "if-match", "if-none-match"),
        *("if-modified-since", "content-md5", "x-amz-copy-source", "x-amz-acl", "x-amz-meta-fencing-token"),
        *("X-Amz-Tagging", "if-range"),
    ],
)
def test_headers_that_change_the_meaning_must_be_signed(name: str) -> None:
    request = presigned("PUT")
    added = RequestHead("PUT", request.raw_path, request.query_string, [HOST, (name.encode(), b"1")])
    assert refusal(added) == ("AccessDenied", 403)
    verify(presigned("PUT", b"/bucket/key", "", (name.lower().encode(), b"1")), secret_of, THEN)


@pytest.mark.parametrize(
    "name", ["range", "user-agent", "accept-encoding", "expect", "referer", "cookie", "if-none-match", "if-range"]
)
def test_other_headers_may_be_added_by_whoever_uses_the_url(name: str) -> None:
    request = presigned()
    verify(RequestHead("GET", request.raw_path, request.query_string, [HOST, (name.encode(), b"1")]), secret_of, THEN)


@pytest.mark.parametrize("name", ["host", "fencing-token", "x-amz-acl", "content-type"])
def test_no_header_that_counts_may_stand_twice(name: str) -> None:
    request = presigned("PUT", b"/b/k", "", (b"fencing-token", b"5"), (b"x-amz-acl", b"a"), (b"content-type", b"b"))
    again = next(header for header in request.headers if header[0] == name.encode())
    for copy in (again, (again[0].upper(), b"other")):
        twice = RequestHead("PUT", b"/b/k", request.query_string, [*request.headers, copy])
        assert refusal(twice) == ("InvalidRequest", 400)


def test_session_tokens_must_be_signed() -> None:
    request = presigned("PUT")
    session = (b"x-amz-security-token", b"fencing-token=34")
    assert refusal(RequestHead("PUT", request.raw_path, request.query_string, [HOST, session])) == ("AccessDenied", 403)
    added = sign(RequestHead("PUT", b"/b/k", b"", [HOST]), SHA256, CREDENTIALS, THEN)
    headers = [HOST, *((name.encode(), value.encode()) for name, value in added), session]
    assert refusal(RequestHead("PUT", b"/b/k", b"", headers)) == ("AccessDenied", 403)


# Its promise about the body -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        (SHA256, PayloadMode.EXACT),
        ("UNSIGNED-PAYLOAD", PayloadMode.UNSIGNED),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", PayloadMode.UNSIGNED_TRAILER),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", PayloadMode.SIGNED_CHUNKS),
    ],
)
def test_the_hash_of_the_body_may_be_signed(said: str, mode: PayloadMode) -> None:
    """As a header or as a parameter. The canonical request then ends with it, as in a signature in the headers."""
    for head, now in (covering(said, header=True), covering(said, header=False)):
        verified = verify(head, secret_of, now)
        assert verified.mode is mode
        assert verified.sha256 == (SHA256 if mode is PayloadMode.EXACT else None)
        assert (verified.chunks is not None) == (mode is PayloadMode.SIGNED_CHUNKS)


def test_a_hash_of_the_body_that_is_none() -> None:
    for head, now in (covering("nothing", header=True), covering("nothing", header=False)):
        assert refusal(head, now) == ("InvalidArgument", 400)


def test_a_hash_of_the_body_must_be_signed() -> None:
    request = presigned("PUT")
    headers = [HOST, (b"x-amz-content-sha256", SHA256.encode())]
    assert refusal(RequestHead("PUT", b"/bucket/key", request.query_string, headers)) == ("AccessDenied", 403)


def covering(said: str, *, header: bool) -> tuple[RequestHead, datetime]:
    """A request whose signature covers this hash, by another signer than ours, and when it was signed."""

    class Signer(S3SigV4QueryAuth):
        def payload(self, request: AWSRequest) -> str:
            return said

    query = "" if header else f"?X-Amz-Content-Sha256={said}"
    extra = {"X-Amz-Content-SHA256": said} if header else {}
    theirs = AWSRequest("PUT", f"http://gateway:8080/bucket/key{query}", extra)
    Signer(BotoCredentials(ID, SECRET), "s3", "us-east-1", 3600).add_auth(theirs)
    return received(theirs)


def received(theirs: AWSRequest) -> tuple[RequestHead, datetime]:
    """A request that botocore signed as the gateway gets it, and when it was signed."""
    parts = urlsplit(str(theirs.url))
    headers = [HOST, *((name.lower().encode(), str(value).encode()) for name, value in theirs.headers.items())]
    signed_at = datetime.strptime(theirs.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return RequestHead(str(theirs.method), parts.path.encode(), parts.query.encode(), headers), signed_at


# Invalid URLs ---------------------------------------------------------------------------------------------------------

PARAMETERS = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")


@pytest.mark.parametrize("name", PARAMETERS)
def test_all_parameters_are_needed_once_and_in_their_spelling(name: str) -> None:
    request = presigned()
    parts = request.query_string.decode().split("&")
    index = next(i for i, part in enumerate(parts) if part.startswith(f"X-Amz-{name}="))
    part = parts[index]
    for change in (
        [],
        [part, part],
        [part, f"X-Amz-{name}=other"],
        [part, part.replace("X-Amz-", "X%2DAmz-")],
        [part, part.replace("X-Amz-", "x-amz-")],
        [part.replace("X-Amz-", "x-amz-")],
        [part.replace(f"X-Amz-{name}", f"X-AMZ-{name.upper()}")],
    ):
        query = "&".join([*parts[:index], *change, *parts[index + 1 :]])
        assert refusal(RequestHead("GET", b"/bucket/key", query.encode(), [HOST])) == MALFORMED, change


@pytest.mark.parametrize("name", ["X-Amz-Security-Token", "X-Amz-Content-Sha256"])
def test_optional_parameters_stand_once_and_in_their_spelling(name: str) -> None:
    for added in (f"{name.lower()}=a", f"{name}=a&{name}=b", f"{name.upper()}=a"):
        assert refusal(with_query(presigned(), lambda query, added=added: f"{query}&{added}")) == MALFORMED  # type: ignore[misc]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", MALFORMED),
        ("AWS4-HMAC-SHA256", "aws4-hmac-sha256", MALFORMED),
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256", ("NotImplemented", 501)),
        ("%2Fs3%2F", "%2Fsts%2F", MALFORMED),
        ("aws4_request", "aws5_request", MALFORMED),
        ("20130524%2F", "20130525%2F", MALFORMED),
        ("%2F20130524%2F", "%2F", MALFORMED),
        ("Date=20130524T000000Z", "Date=2013-05-24T00:00:00Z", MALFORMED),
        ("Date=20130524T000000Z", "Date=2013524T0000000Z", MALFORMED),
        ("Date=20130524T000000Z", "Date=20130524T0000Z", MALFORMED),
        ("Date=20130524T000000Z", "Date=", MALFORMED),
        ("Expires=3600", "Expires=0", MALFORMED),
        ("Expires=3600", "Expires=-1", MALFORMED),
        ("Expires=3600", "Expires=604801", MALFORMED),
        ("Expires=3600", "Expires=9999999", MALFORMED),
        ("Expires=3600", "Expires=3600.5", MALFORMED),
        ("Expires=3600", "Expires=%D9%A3", MALFORMED),
        ("Expires=3600", "Expires=", MALFORMED),
        ("SignedHeaders=host", "SignedHeaders=", MALFORMED),
        ("SignedHeaders=host", "SignedHeaders=Host", MALFORMED),
        ("SignedHeaders=host", "SignedHeaders=host%3Bhost", MALFORMED),
        ("SignedHeaders=host", "SignedHeaders=range%3Bhost", MALFORMED),
        ("SignedHeaders=host", "SignedHeaders=host%3Bx-absent", MISMATCH),
        ("SignedHeaders=host", "SignedHeaders=range", ("AccessDenied", 403)),
        ("Signature=", "Signature=0", MISMATCH),
        (ID, "AKIANOBODY", ("InvalidAccessKeyId", 403)),
    ],
)
def test_what_is_not_a_signature_of_this_form(old: str, new: str, expected: tuple[str, int]) -> None:
    request = with_query(presigned(), lambda query: query.replace(old, new))
    headers = [*request.headers, (b"range", b"bytes=0-1")]
    assert refusal(RequestHead("GET", b"/bucket/key", request.query_string, headers)) == expected


def test_host_must_be_signed() -> None:
    query = presign(RequestHead("GET", b"/b/k", b"", [(b"range", b"bytes=0-1")]), CREDENTIALS, THEN, HOUR)
    for host in ([HOST], []):
        headers = [*host, (b"range", b"bytes=0-1")]
        assert refusal(RequestHead("GET", b"/b/k", query.encode(), headers)) == ("AccessDenied", 403)


def test_one_authorization_is_enough() -> None:
    request = presigned()
    added = sign(RequestHead("GET", b"/bucket/key", request.query_string, [HOST]), SHA256, CREDENTIALS, THEN)
    headers: Headers = [HOST, *((name.encode(), value.encode()) for name, value in added)]
    assert refusal(RequestHead("GET", b"/bucket/key", request.query_string, headers)) == ("InvalidArgument", 400)
    for query in (b"X-Amz-Expires=1", b"prefix=a&X-Amz-Security-Token=b"):
        added = sign(RequestHead("GET", b"/b", query, [HOST]), SHA256, CREDENTIALS, THEN)
        headers = [HOST, *((name.encode(), value.encode()) for name, value in added)]
        assert refusal(RequestHead("GET", b"/b", query, headers)) == ("InvalidArgument", 400)


@pytest.mark.parametrize("header", [b"x-amz-date", b"x-amz-security-token", b"x-amz-content-sha256"])
def test_nothing_of_the_signature_stands_in_both_places(header: bytes) -> None:
    query = f"X-Amz-Security-Token=a&X-Amz-Content-Sha256={SHA256}"
    assert refusal(presigned("PUT", b"/b/k", query, (header, b"a"))) == ("InvalidRequest", 400)


@pytest.mark.parametrize(
    "query",
    ["AWSAccessKeyId=x&Signature=y&Expires=1", "prefix=a&Signature=y", "awsaccesskeyid=x", "AWSAccessKey%49d=x"],
)
def test_signature_version_2_is_refused_with_advice(query: str) -> None:
    for request in (RequestHead("GET", b"/b/k", query.encode(), [HOST]), presigned("GET", b"/b/k", query)):
        with pytest.raises(StoreError, match=r'Config\(signature_version="s3v4"\)') as caught:
            verify(request, secret_of, THEN)
        assert (caught.value.s3_code, caught.value.status) == ("InvalidRequest", 400)


def test_signature_version_4a_is_refused_with_advice() -> None:
    request = with_query(presigned(), lambda query: query.replace("HMAC-SHA256", "ECDSA-P256-SHA256"))
    with pytest.raises(StoreError, match=r'Config\(signature_version="s3v4"\)'):
        verify(request, secret_of, THEN)
