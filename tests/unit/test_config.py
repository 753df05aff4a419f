"""Configuration errors name the file and the key, and never show a secret."""

import re
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from gateway.auth.principal import ANONYMOUS
from gateway.config import load
from gateway.config.fencing import Leases
from gateway.config.observability import Webhook
from gateway.config.problems import lines_of
from gateway.config.server import CallerKeys, KeyPair
from gateway.config.stores import ObjectStore, Postgres
from gateway.errors import ConfigurationError
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import SWEEPER, is_own_name

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
    monkeypatch.setenv("GATEWAY_CALLERS", '[{"name": "worker", "api_key": "k-longer"}]')
    assert load(None).callers[0].name == "worker"


@pytest.mark.parametrize(
    "name", ["anonymous", "Anonymous", "ANONYMOUS", "ａnonymous", "sweeper", "Sweeper", "role:app", "ROLE:postgres"]
)
def test_no_caller_has_a_name_of_the_gateways_own(name: str) -> None:
    """Locks and entries of the record belong to a name, so a reserved name would share them with the gateway."""
    with pytest.raises(ValidationError, match="reserved"):
        CallerKeys(name=name, api_key=SecretStr("k-longer"))


@pytest.mark.parametrize("name", [" anonymous", "worker ", "wor\u200bker", "worker\n", "\0", " ", "x" * 201, ""])
def test_the_name_of_a_caller_is_what_it_looks_like(name: str) -> None:
    with pytest.raises(ValidationError):
        CallerKeys(name=name, api_key=SecretStr("k-longer"))


@pytest.mark.parametrize("name", ["worker", "Ann Other", "anonymous-batch", "sweeper2", "rôle", "café"])
def test_other_names_are_taken(name: str) -> None:
    assert CallerKeys(name=name, api_key=SecretStr("k-longer")).name == name


def test_the_gateways_own_names_are_reserved() -> None:
    assert is_own_name(ANONYMOUS.name)
    assert is_own_name(SWEEPER)


WRONG = [
    tuple(case.rsplit("=> ", 1))
    for case in Path(__file__).with_name("wrong_configurations.txt").read_text().split("----\n")
]
"""Configurations and the last line of their errors, without the name of the file."""
JARGON = re.compile(
    r"Input should|Field required|Value error|value_error|pydantic|[a-z]\.[0-9]+[.:]|type=|string_|extra_"
)


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_a_wrong_configuration_says_where_what_and_what_to_do(file: Path, text: str, said: str) -> None:
    """Each line of the error has the file and the line, the entry by its name, and the problem."""
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert caught.value.message.splitlines()[-1] == f"{file}{said.rstrip()}"
    assert not JARGON.search(caught.value.message)


def test_there_are_forty_of_them() -> None:
    assert len(set(WRONG)) >= 40


def test_an_error_does_not_show_the_secret_beside_it(file: Path) -> None:
    file.write_text('[postgres]\ndsn = ["hunter2"]\n[[callers]]\nname = "a"\napi_key = 1234567')
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert "hunter2" not in caught.value.message
    assert "1234567" not in caught.value.message


def test_a_key_to_sign_with_is_long_and_never_shown(file: Path) -> None:
    file.write_text('[postgres]\ndsn = "x"\n[leases]\nsigning_keys = ["too-short-a-secret"]')
    with pytest.raises(ConfigurationError, match=r"signing_keys, first item: must have at least 32") as caught:
        load(file)
    assert "too-short-a-secret" not in caught.value.message
    file.write_text('[postgres]\ndsn = "x"\n[leases]\nsigning_keys = ["long-enough-a-secret-to-be-signed-with"]')
    assert "long-enough" not in repr(load(file))


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file"):
        load(file)


def test_each_secret_can_come_from_a_file(file: Path, tmp_path: Path) -> None:
    for name, content in (
        ("dsn", "postgresql://gateway:hunter2@db/app\n"),
        ("store", "store-secret\r\n"),
        ("api", "worker-api-key"),
        ("more", "second-api-key\nthird-api-key\n"),
        ("signing", f"{'a' * 32}\n{'b' * 32}\n"),
    ):
        (tmp_path / name).write_bytes(content.encode())
    file.write_text(
        f"""[postgres]
dsn_file = "{tmp_path}/dsn"
[s3]
endpoint = "https://s3.example.com"
access_key_id = "store"
secret_access_key_file = "{tmp_path}/store"
[leases]
signing_keys_file = "{tmp_path}/signing"
[[callers]]
name = "worker"
api_key_file = "{tmp_path}/api"
further_api_keys_file = "{tmp_path}/more"
"""
    )
    config = load(file)
    assert config.postgres.dsn.get_secret_value() == "postgresql://gateway:hunter2@db/app"
    assert config.s3 is not None
    assert config.s3.secret_access_key.get_secret_value() == "store-secret"
    assert [key.get_secret_value() for key in config.leases.signing_keys] == ["a" * 32, "b" * 32]
    assert config.callers[0].bearer_keys == ["worker-api-key", "second-api-key", "third-api-key"]
    assert "hunter2" not in repr(config)


def test_these_are_all_secrets() -> None:
    assert Postgres.secrets() == ["dsn"]
    assert ObjectStore.secrets() == ["secret_access_key"]
    assert CallerKeys.secrets() == ["secret_access_key", "api_key", "further_api_keys"]
    assert KeyPair.secrets() == ["secret_access_key"]
    assert Leases.secrets() == ["signing_keys", "issuer_api_key"]
    assert Webhook.secrets() == ["secret", "former_secret"]


def test_a_file_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dsn").write_text("postgresql://db/app\n")
    monkeypatch.setenv("GATEWAY_POSTGRES__DSN_FILE", str(tmp_path / "dsn"))
    assert load(None).postgres.dsn.get_secret_value() == "postgresql://db/app"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file or directory). Correct the path, or its rights."),
        (b"", "is empty. Write the secret into it."),
        (b"\n", "is empty. Write the secret into it."),
        (b"hunter2\xff", "is not UTF-8. Write the secret as text."),
    ],
)
def test_a_file_without_a_secret(file: Path, tmp_path: Path, content: bytes | None, said: str) -> None:
    secret = tmp_path / "dsn"
    if content is not None:
        secret.write_bytes(content)
    file.write_text(f'[postgres]\ndsn_file = "{secret}"')
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert caught.value.message == f"{file}:1: [postgres]: dsn_file: {secret} {said}"


def test_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_POSTGRES__DSN", "postgresql://db/app")
    monkeypatch.setenv("GATEWAY_CALLERS", "worker")
    with pytest.raises(ConfigurationError, match="GATEWAY_CALLERS must be JSON"):
        load(None)


def test_a_line_is_found_beside_texts_of_several_lines() -> None:
    text = 'a = """\n[no.section]\nb = 1\n"""\n[[c."d e"]]\nf . g = 1 # [x]\n[[c."d e"]]\n'
    assert lines_of(text) == {
        ("a",): 1, ("c", "d e"): 5, ("c", "d e", 0): 5, ("c", "d e", 0, "f", "g"): 6, ("c", "d e", 1): 7,
    }  # fmt: skip
