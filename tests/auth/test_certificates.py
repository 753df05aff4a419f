"""The names of a client certificate, and the caller that they belong to."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.auth.callers import Callers
from gateway.auth.certificates import ClientCertificate, check_name
from gateway.auth.sigv4 import RequestHead, Signers
from gateway.config.access import CallerKeys
from gateway.errors import StoreError, Unauthenticated
from tests.running import GRANT_RULES

NOW = datetime(2026, 1, 31, tzinfo=UTC)
DECODED = {
    "subject": ((("organizationName", "Shop"),), (("commonName", "ann"),)),
    "notAfter": "Feb  1 00:00:00 2026 GMT",
    "subjectAltName": (
        ("URI", "spiffe://shop/ann"),
        ("DNS", "ann.shop"),
        ("email", "DNS:bob.shop"),
        ("IP Address", "10.0.0.1"),
        ("DirName", ((("commonName", "bob"),),)),
        ("othername", "<unsupported>"),
    ),
}
NAMES = frozenset(("URI:spiffe://shop/ann", "DNS:ann.shop", "CN:ann"))


def certificate(*names: str, expires: datetime = NOW + timedelta(days=1)) -> ClientCertificate:
    return ClientCertificate(frozenset(names), expires, b"")


def callers(*owned: dict[str, Any]) -> Callers:
    return Callers([CallerKeys.model_validate(one) for one in owned], GRANT_RULES, clock=lambda: NOW)


ANN = {"name": "ann", "certificates": ["URI:spiffe://shop/ann", "CN:ann"]}
BOB = {"name": "bob", "certificates": ["DNS:bob.shop"], "api_key": "a-key-of-bob"}


def test_names_are_those_of_two_kinds_and_the_only_common_name() -> None:
    found = ClientCertificate.of(DECODED, b"encoded")
    assert (found.names, found.expires) == (NAMES, datetime(2026, 2, 1, tzinfo=UTC))
    assert found.digest != ClientCertificate.of(DECODED, b"other").digest
    twice = {**DECODED, "subject": ((("commonName", "ann"), ("commonName", "bob")),), "subjectAltName": ()}
    assert ClientCertificate.of(twice, b"").names == frozenset()
    assert ClientCertificate.of({"notAfter": DECODED["notAfter"]}, b"").names == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        *("", "ann", "URI:", "CN:", "cn:ann", "uri:spiffe://a", "email:a@b.c", "subject:CN=ann", "URI:ann"),
        *("DNS:*.shop", "URI:spiffe://shop/*", "CN: ann", "CN:ann ", "CN:a\0b", "DNS:a\nb", " CN:ann"),
    ],
)
def test_other_forms_of_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"must|has a"):
        check_name(name)


def test_names_are_compared_exactly() -> None:
    known = callers(ANN, BOB)
    for name, owner in (("URI:spiffe://shop/ann", "ann"), ("CN:ann", "ann"), ("DNS:bob.shop", "bob")):
        found = known.by_bearer((), certificate(name, "CN:other"))
        assert (found.name, found.is_anonymous) == (owner, False)
    for other in (
        "URI:spiffe://shop/ann/",
        "URI:spiffe://shop/Ann",
        "CN:Ann",
        "CN:bob.shop",
        "DNS:ann",
        "DNS:a.bob.shop",
    ):
        assert known.by_certificate(certificate(other)) is None
        with pytest.raises(Unauthenticated, match="not that of any caller") as refused:
            known.by_bearer((), certificate(other))
        assert other in (refused.value.advice or "")
    assert known.by_certificate(certificate()) is None


def test_two_names_of_one_caller_are_that_caller_and_of_two_are_none() -> None:
    assert callers(ANN, BOB).by_bearer((), certificate(*ANN["certificates"])).name == "ann"
    with pytest.raises(Unauthenticated, match="two callers"):
        callers(ANN, BOB).by_bearer((), certificate("CN:ann", "DNS:bob.shop"))


def test_a_key_counts_first_and_a_wrong_one_is_an_error() -> None:
    known, shown = callers(ANN, BOB), certificate("CN:ann")
    assert known.by_bearer([(b"authorization", b"Bearer a-key-of-bob")], shown).name == "bob"
    for headers in ([(b"authorization", b"Bearer x")], [(b"apikey", b"")], [(b"authorization", b"")]):
        with pytest.raises(Unauthenticated):
            known.by_bearer(headers, shown)


def test_it_proves_nothing_after_its_end_nor_without_a_clock() -> None:
    ends = certificate("CN:ann", expires=NOW)
    with pytest.raises(Unauthenticated, match="has expired"):
        callers(ANN).by_bearer((), ends)
    proof = callers(ANN).by_bearer((), certificate("CN:ann")).proof
    assert proof is not None
    assert proof.holds()
    assert Callers([CallerKeys.model_validate(ANN)]).by_certificate(certificate("CN:ann")) is None


def test_an_unsigned_request_to_a_bucket_is_that_of_the_certificate() -> None:
    known = callers(ANN, BOB)
    signers = Signers(known.secret_of, lambda: NOW, known.anonymous, known.by_certificate)
    request = RequestHead("GET", b"/bucket/key", b"", [(b"host", b"gateway")])
    assert signers.verify(request, certificate("CN:ann")).principal.name == "ann"
    for shown in (None, certificate("CN:eve")):
        with pytest.raises(StoreError):
            signers.verify(request, shown)
    for credentials in ([(b"authorization", b"AWS4-HMAC-SHA256 x")], [(b"x-amz-security-token", b"x")]):
        with pytest.raises(StoreError):
            signers.verify(RequestHead("GET", b"/b/k", b"", [(b"host", b"g"), *credentials]), certificate("CN:ann"))
