"""Configuration errors name the file and the key, and never show a secret."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from gateway.auth.principal import ANONYMOUS
from gateway.config import load
from gateway.config.server import CallerKeys
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
    monkeypatch.setenv("GATEWAY_CALLERS", '[{"name": "worker", "api_key": "k"}]')
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
    assert is_own_name(ANONYMOUS.name)
    assert is_own_name(SWEEPER)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "postgres: Field required"),
        ("not toml", "not TOML"),
        ('[postgres]\ndns = "x"', "postgres.dns: unknown key"),
        ('[postgres]\ndsn = "x"\n[sever]\nlisten = "x"', "sever: unknown key"),
        ('[postgres]\ndsn = "x"\n[server]\nlisten = "nowhere"', "server.listen: must be host:port"),
        ('[postgres]\ndsn = "x"\nschemas = ["fencing"]', "postgres.schemas: fencing must not be exposed"),
        ('[postgres]\ndsn = "x"\nschemas = ["pg_catalog"]', "postgres.schemas: pg_catalog must not be exposed"),
        ('[postgres]\ndsn = "x"\npool_size = 0', "postgres.pool_size"),
        ('[postgres]\ndsn = "x"\nmax_rows = 0', "postgres.max_rows"),
        ('[postgres]\ndsn = "x"\nidempotency_retention = 0', "postgres.idempotency_retention"),
        ('[postgres]\ndsn = "x"\n[[tables]]\nname = "a.b"\nversion = ""', "tables.0.version"),
        ('[postgres]\ndsn = "x"\nfunctions = ["pay"]', "postgres.functions.0"),
        ('[postgres]\ndsn = "x"\nfunctions = ["fencing.claim"]', "the schema of fencing.claim is not exposed"),
        (
            '[postgres]\ndsn = "x"\n[server]\ncors_origins = ["https://a.b/c"]',
            "server.cors_origins: https://a.b/c must",
        ),
        ('[postgres]\ndsn = "x"\n[server]\ncors_origins = ["null"]', "server.cors_origins: null must be"),
        ('[postgres]\ndsn = "x"\n[server]\ncors_origins = ["https://A.b"]', "server.cors_origins"),
        ('[postgres]\ndsn = "x"\n[server]\ncors_origins = ["https://*.b"]', "server.cors_origins"),
        ('[postgres]\ndsn = "x"\n[[callers]]\nname = "a"', "callers.0: needs an api_key"),
        (
            '[postgres]\ndsn = "x"\n[[callers]]\nname = "anonymous"\napi_key = "k"',
            "callers.0.name: anonymous is reserved",
        ),
        (
            '[postgres]\ndsn = "x"\n[[callers]]\nname = "A"\napi_key = "k"\n[[callers]]\nname = "a"\napi_key = "l"',
            "[[callers]]: a is configured twice",
        ),
        (
            '[postgres]\ndsn = "x"\n[[callers]]\nname = "a"\napi_key = "k"\n[[callers]]\nname = "b"\napi_key = "k"',
            "[[callers]]: a and b have the same api_key",
        ),
        ('[postgres]\ndsn = "x"\n[[callers]]\nname = "a"\naccess_key_id = "b"', "belong together"),
        ('[postgres]\ndsn = "x"\n[[tables]]\nname = "orders"', "tables.0.name"),
        ('[postgres]\ndsn = "x"\n[[tables]]\nname = "a.b"\nmode = "maybe"', "tables.0.mode"),
        ('[postgres]\ndsn = "x"\n[[objects]]\nmatch = "a/b"\nresource = "{x}{y}"', "at most one field"),
        ('[postgres]\ndsn = "x"\n[[tables]]\nname = "a.b"\nunfiltered = true', "a resource without columns"),
        (
            '[postgres]\ndsn = "x"\n[[tables]]\nname = "a.b"\nresource = "b/{id}"\nunfiltered = true',
            "tables.0: a.b: unfiltered needs",
        ),
        ('[postgres]\ndsn = "x"\n[[tables]]\nname = "a.b"\n[[tables]]\nname = "a.b"', "a.b is configured twice"),
        (
            '[postgres]\ndsn = "x"\n[s3]\nendpoint = "s3.example.com"\naccess_key_id = "a"\nsecret_access_key = "b"',
            "s3.endpoint: must be an http",
        ),
        ('[postgres]\ndsn = "x"\n[fencing]\ntokens = "singed"', "fencing.tokens: Input should be 'any', 'issued'"),
        ('[postgres]\ndsn = "x"\n[fencing]\nmax_jump = 0', "fencing.max_jump"),
        ('[postgres]\ndsn = "x"\n[fencing]\nmax_jump = 9223372036854775808', "fencing.max_jump"),
        (
            '[postgres]\ndsn = "x"\n[fencing]\ntokens = "signed"',
            "[fencing]: tokens = 'signed' needs leases.signing_keys",
        ),
        ('[postgres]\ndsn = "x"\n[[resources]]\nmatch = "a/*"\ntokens = "signed"', "a/*: tokens = 'signed' needs"),
        ('[postgres]\ndsn = "x"\n[[resources]]\nmatch = "a/*"\ntoken = "live"', "resources.0.token: unknown key"),
        ('[postgres]\ndsn = "x"\n[[resources]]\nmatch = "a/*"\ntokens = "life"', "resources.0.tokens: Input should be"),
        ('[postgres]\ndsn = "x"\n[[resources]]\nmatch = "a*/b"', "resources.0.match: The segment 'a*'"),
        ('[postgres]\ndsn = "x"\n[[resources]]\nmatch = "a"\nunreachable = "pass"', "resources.0.unreachable"),
        ('[postgres]\ndsn = "x"\n[[resources]]\nmatch = "a"\nlock_delay = -1', "resources.0.lock_delay"),
        ('[postgres]\ndsn = "x"\n[leases]\nmax_ttl = inf', "leases.max_ttl"),
        ('[postgres]\ndsn = "x"\n[leases]\nmax_ttl = 1e9', "leases.max_ttl"),
        (
            '[postgres]\ndsn = "x"\n[[resources]]\nmatch = "a"\n[[resources]]\nmatch = "a"',
            "[[resources]]: a is configured twice",
        ),
        ('[postgres]\ndsn = "x"\n[leases]\nissuer = "https://a.b"', "issuer and issuer_api_key belong together"),
        ('[postgres]\ndsn = "x"\n[leases]\nissuer = "a.b"\nissuer_api_key = "k"', "leases.issuer: must be an http"),
        (
            '[postgres]\ndsn = "x"\n[leases]\nissuer = "https://u:p@a.b/x"\nissuer_api_key = "k"',
            "leases.issuer: must have only scheme, host and port",
        ),
        (
            '[postgres]\ndsn = "x"\n[leases]\nissuer = "https://a.b"\nissuer_api_key = "é"',
            "leases.issuer_api_key: must",
        ),
        ('[postgres]\ndsn = "x"\n[audit]\nretention = 6', "audit.retention"),
        ('[postgres]\ndsn = "x"\n[audit]\ncapture = 1048577', "audit.capture"),
        ('[postgres]\ndsn = "x"\n[audit]\nredact = ["users.email"]', "audit.redact: 'users.email' must be schema"),
        ('[postgres]\ndsn = "x"\n[audit]\nredact = ["public..email"]', "audit.redact: 'public..email' must be"),
    ],
)
def test_errors_name_the_file_and_the_key(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert str(file) in caught.value.message
    assert said in caught.value.message


def test_an_error_does_not_show_the_secret_beside_it(file: Path) -> None:
    file.write_text('[postgres]\ndsn = ["hunter2"]\n[[callers]]\nname = "a"\napi_key = 1234567')
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert "hunter2" not in caught.value.message
    assert "1234567" not in caught.value.message


def test_a_key_to_sign_with_is_long_and_never_shown(file: Path) -> None:
    file.write_text('[postgres]\ndsn = "x"\n[leases]\nsigning_keys = ["too-short-a-secret"]')
    with pytest.raises(ConfigurationError, match=r"leases.signing_keys.0: Value should have at least 32") as caught:
        load(file)
    assert "too-short-a-secret" not in caught.value.message
    file.write_text('[postgres]\ndsn = "x"\n[leases]\nsigning_keys = ["long-enough-a-secret-to-be-signed-with"]')
    assert "long-enough" not in repr(load(file))


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file"):
        load(file)
