"""Which pages may send requests that change something."""

import pytest

from gateway.errors import Forbidden
from gateway.http.origins import SAFE, Headers, Sender, check, origin_of, sender

APP, EVIL = (b"origin", b"https://app.example"), (b"origin", b"https://evil.example")
HOST = (b"host", b"gateway.example:8080")
OWN = (b"origin", b"http://gateway.example:8080")
CROSS, SAME_SITE, SAME, TYPED = (
    (b"sec-fetch-site", site) for site in (b"cross-site", b"same-site", b"same-origin", b"none")
)
FOREIGN = [
    [HOST, EVIL],
    [HOST, (b"origin", b"null")],
    [HOST, (b"origin", b"")],
    [HOST, (b"origin", b"http://gateway.example")],
    [HOST, (b"origin", b"http://gateway.example:8080.evil.example")],
    [HOST, (b"origin", b"http://evil.example/gateway.example:8080")],
    [HOST, (b"origin", b"http://[")],
    [HOST, (b"origin", b"\xff")],
    [HOST, OWN, EVIL],
    [(b"origin", b"null"), (b"host", b"")],
    [HOST, (b"host", b"evil.example"), EVIL],
    [EVIL],
    [HOST, CROSS],
    [HOST, SAME_SITE],
    [HOST, (b"sec-fetch-site", b"")],
    [HOST, SAME, CROSS],
    [HOST, OWN, CROSS],
]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "FORGET"])
def test_a_foreign_page_changes_nothing(subtests: pytest.Subtests, method: str) -> None:
    for headers in FOREIGN:
        with subtests.test(headers=headers):
            assert sender(headers) is Sender.FOREIGN
            with pytest.raises(Forbidden):
                check(method, headers)
            with pytest.raises(Forbidden):
                check(method, headers, ["https://app.example"])


@pytest.mark.parametrize("method", sorted(SAFE))
def test_a_foreign_page_may_ask(method: str) -> None:
    check(method, [HOST, EVIL, CROSS])


@pytest.mark.parametrize(
    "headers",
    [
        [HOST, OWN],
        [HOST, (b"origin", b"https://gateway.example:8080")],
        [(b"host", b"GATEWAY.example:8080"), OWN],
        [HOST, SAME],
        [HOST, TYPED],
        # A proxy in front has changed Host. The browser's own word still holds.
        [(b"host", b"10.0.0.7"), OWN, SAME],
    ],
)
def test_a_page_of_the_gateway_passes(headers: Headers) -> None:
    assert sender(headers) is Sender.OWN
    check("POST", headers)


@pytest.mark.parametrize("headers", [[], [HOST], [HOST, (b"referer", b"https://evil.example/")]])
def test_a_program_passes(headers: Headers) -> None:
    assert sender(headers) is Sender.PROGRAM
    check("POST", headers)


def test_a_page_of_an_allowed_origin_passes() -> None:
    for headers in ([HOST, APP], [HOST, APP, CROSS], [HOST, APP, SAME_SITE]):
        check("POST", headers, ["https://app.example"])
        check("POST", headers, ["*"])
    check("POST", [HOST, CROSS, (b"origin", b"null")], ["*"])


def test_the_origin_of_a_request() -> None:
    assert origin_of([(b"a", b"b"), APP]) == APP[1]
    assert origin_of([]) is None
    assert origin_of([APP, EVIL]) is None
