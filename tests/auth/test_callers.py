"""API keys and client certificates prove their owners, and no other caller."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.auth.callers import Callers
from gateway.auth.grants import Action
from gateway.auth.principal import ClientCertificate, Principal, check_name
from gateway.config.access import CallerKeys, GrantRule
from gateway.errors import Unauthenticated
from tests.running import GRANT_RULES

BATCH = {"name": "batch", "api_key": "batch-key", "access_key_id": "AKBATCH", "secret_access_key": "batch-secret"}
CALLERS = (CallerKeys(name="worker", api_key=(SecretStr("worker-key"),)), CallerKeys.model_validate(BATCH))
ANYBODY_READS = (GrantRule(callers=("anonymous",), actions=(Action.READ,), everything=True),)
Headers = list[tuple[bytes, bytes]]


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([(b"authorization", b"Bearer worker-key")], "worker"),
        ([(b"Authorization", b"bearer  batch-key ")], "batch"),
        ([(b"apikey", b"batch-key")], "batch"),
        ([(b"apikey", b"worker-key"), (b"authorization", b"Bearer worker-key")], "worker"),
    ],
)
def test_a_key_proves_its_owner(headers: Headers, name: str) -> None:
    for grants in ((), ANYBODY_READS):
        assert Callers(CALLERS, grants).by_bearer(headers) == Principal(name)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"")],
        [(b"authorization", b"Basic d29ya2VyOndvcmtlci1rZXk=")],
        [(b"authorization", b"worker-key")],
        [(b"authorization", b"Bearer worker-key"), (b"authorization", b"Bearer worker-key")],
        [(b"apikey", b"wrong")],
        [(b"apikey", b"worker-key"), (b"ApiKey", b"worker-key")],
        [(b"apikey", b"worker-key"), (b"authorization", b"Bearer batch-key")],
        [(b"apikey", b"worker-key"), (b"authorization", b"Bearer wrong")],
        [(b"authorization", b"Bearer w\xc3\xb6rker")],
    ],
)
def test_a_wrong_key_is_refused_even_if_anonymous_callers_are_admitted(headers: Headers) -> None:
    for grants in ((), ANYBODY_READS):
        with pytest.raises(Unauthenticated) as refusal:
            Callers(CALLERS, grants).by_bearer(headers)
        assert "worker-key" not in refusal.value.message


def test_an_empty_configured_key_admits_no_caller() -> None:
    keys = Callers([CallerKeys.model_construct(name="hollow", api_key=(SecretStr(""),))], ANYBODY_READS)
    with pytest.raises(Unauthenticated):
        keys.by_bearer([(b"apikey", b"")])


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


def test_names_are_compared_exactly_and_those_of_two_callers_prove_none() -> None:
    known = callers(ANN, BOB)
    for names, owner in ((ANN["certificates"], "ann"), (["CN:ann"], "ann"), (["DNS:bob.shop"], "bob")):
        found = known.by_bearer((), certificate(*names, "CN:other"))
        assert (found.name, found.is_anonymous) == (owner, False)
    with pytest.raises(Unauthenticated, match="two callers"):
        known.by_bearer((), certificate("CN:ann", "DNS:bob.shop"))
    for other in ("URI:spiffe://shop/ann/", "URI:spiffe://shop/Ann", "CN:Ann", "CN:bob.shop", "DNS:a.bob.shop"):
        assert known.by_certificate(certificate(other)) is None
        with pytest.raises(Unauthenticated, match="not that of any caller") as refused:
            known.by_bearer((), certificate(other))
        assert other in (refused.value.advice or "")
    assert known.by_certificate(certificate()) is None
