"""An API key proves its owner, and no other caller."""

import pytest
from pydantic import SecretStr

from gateway.auth.callers import Callers
from gateway.auth.grants import Action
from gateway.auth.principal import Principal
from gateway.config.access import CallerKeys, GrantRule
from gateway.errors import Unauthenticated

CALLERS = (
    CallerKeys(name="worker", api_key=SecretStr("worker-key")),
    CallerKeys(
        name="batch",
        api_key=SecretStr("batch-key"),
        access_key_id="AKBATCH",
        secret_access_key=SecretStr("batch-secret"),
    ),
)
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
        [(b"apikey", b"")],
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
    keys = Callers([CallerKeys(name="hollow", api_key=SecretStr(""))], ANYBODY_READS)
    with pytest.raises(Unauthenticated):
        keys.by_bearer([(b"apikey", b"")])


def test_no_credentials_are_anonymous_only_where_that_is_allowed() -> None:
    assert Callers(CALLERS, ANYBODY_READS).by_bearer([(b"host", b"h")]).is_anonymous
    with pytest.raises(Unauthenticated):
        Callers(CALLERS).by_bearer([])


def test_a_secret_is_found_by_its_id_and_never_shown() -> None:
    keys = Callers(CALLERS)
    assert keys.secret_of("AKBATCH", None) == (Principal("batch"), "batch-secret")
    assert keys.secret_of("worker", None) is None
    assert "secret" not in repr(keys)
