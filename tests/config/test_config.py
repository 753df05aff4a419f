"""Configuration errors name the file and the key, and never show a secret."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from gateway.config import load
from gateway.config.access import CallerKeys
from gateway.errors import ConfigurationError
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import ANONYMOUS, SWEEPER, is_own_name

COMPLETE = """
[server]
listen = "127.0.0.1:9000"
[postgres]
dsn = "postgresql://gateway:hunter2@db/app"
schemas = ["public", "sales"]
[s3]
endpoint = "https://s3.example.com"
access_key_id = "store"
secret_access_key = "store-secret"
[[callers]]
name = "worker"
access_key_id = "worker"
secret_access_key = "worker-secret"
api_key = "worker-key"
[[tables]]
name = "public.shipments"
resource = "order/{order_id}"
mode = "observe"
[[objects]]
match = "reports/{job}/**"
resource = "job/{job}"
equal = "strict"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.toml"


def test_reads_a_complete_file(file: Path) -> None:
    file.write_text(COMPLETE)
    config = load(file)
    assert (config.server.host, config.server.port) == ("127.0.0.1", 9000)
    assert config.postgres.schemas == ("public", "sales")
    assert config.tables[0].mode is Enforcement.OBSERVE
    assert config.callers[0].name == "worker"
    for secret in ("hunter2", "store-secret", "worker-secret", "worker-key"):
        assert secret not in repr(config)


def test_the_environment_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(COMPLETE)
    monkeypatch.setenv("GATEWAY_POSTGRES__DSN", "postgresql://elsewhere/app")
    monkeypatch.setenv("GATEWAY_SERVER__MAX_BODY", "1000")
    config = load(file)
    assert config.postgres.dsn.get_secret_value() == "postgresql://elsewhere/app"
    assert (config.server.max_body, config.server.port) == (1000, 9000)


def test_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_POSTGRES__DSN", "postgresql://db/app")
    monkeypatch.setenv("GATEWAY_CALLERS", '[{"name": "worker", "api_key": "worker-key"}]')
    assert load(None).callers[0].name == "worker"


@pytest.mark.parametrize(
    "name", ["anonymous", "Anonymous", "ANONYMOUS", "ａnonymous", "sweeper", "Sweeper", "role:app", "ROLE:postgres"]
)
def test_no_caller_has_a_name_of_the_gateways_own(name: str) -> None:
    """Locks and entries of the record belong to a name, so a reserved name would share them with the gateway."""
    with pytest.raises(ValidationError, match="reserved"):
        CallerKeys(name=name, api_key=SecretStr("k"))


@pytest.mark.parametrize("name", [" anonymous", "worker ", "wor\u200bker", "worker\n", "\0", " ", "x" * 201, ""])
def test_the_name_of_a_caller_is_what_it_looks_like(name: str) -> None:
    with pytest.raises(ValidationError):
        CallerKeys(name=name, api_key=SecretStr("k"))


@pytest.mark.parametrize("name", ["worker", "Ann Other", "anonymous-batch", "sweeper2", "rôle", "café"])
def test_other_names_are_taken(name: str) -> None:
    assert CallerKeys(name=name, api_key=SecretStr("k")).name == name


def test_the_gateways_own_names_are_reserved() -> None:
    assert is_own_name(ANONYMOUS)
    assert is_own_name(SWEEPER)


def test_an_error_does_not_show_the_secret_beside_it(file: Path) -> None:
    file.write_text('[postgres]\ndsn = ["hunter2"]\n[[callers]]\nname = "a"\napi_key = 1234567')
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert "hunter2" not in caught.value.message
    assert "1234567" not in caught.value.message


def test_a_key_to_sign_with_is_long_and_never_shown(file: Path) -> None:
    file.write_text('[postgres]\ndsn = "x"\n[leases]\nsigning_keys = ["too-short-a-secret"]')
    with pytest.raises(ConfigurationError, match=r"line 4: \[leases\], signing_keys: must have at least 32") as caught:
        load(file)
    assert "too-short-a-secret" not in caught.value.message
    file.write_text('[postgres]\ndsn = "x"\n[leases]\nsigning_keys = ["long-enough-a-secret-to-be-signed-with"]')
    assert "long-enough" not in repr(load(file))


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file"):
        load(file)
