"""Former keys: a configuration that has one starts, and tells what to write instead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import former_keys, load
from gateway.errors import ConfigurationError
from gateway.fencing.record import EntryReason
from gateway.journal.contents import PREFIX
from tests.processes import called, started

DSN = '[postgres]\ndsn = "postgresql://gateway@db/app"\n'
BOTH = (
    '[[databases]]\nname = "north"\ndsn = "postgresql://north"\n'
    '[[databases]]\nname = "south"\nschemas = ["south"]\ndsn = "postgresql://south"\n'
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.toml"


def warnings(file: Path, text: str) -> list[str]:
    """Load a configuration that works, and return its warnings."""
    file.write_text(text)
    load(file)
    return former_keys(file)


def test_a_key_that_has_no_effect_is_a_warning(file: Path) -> None:
    (line,) = warnings(file, DSN + "connect_timeout = 7\n")
    assert line.startswith(f"{file}, line 3: [postgres], connect_timeout: is a former key.")
    assert line.endswith("It has no effect: the value is 5 seconds; remove it.")


def test_entries_of_several_databases_have_the_same_former_keys(file: Path) -> None:
    (line,) = warnings(file, BOTH + "listen = false\n")
    assert '[[databases]] "south", listen: is a former key' in line


def test_a_former_default_comes_first(file: Path) -> None:
    """Other names would be fenced in another database, so its place must not decide before it is written there."""
    (line,) = warnings(file, BOTH + "default = true\n")
    assert '[[databases]] "south", default: is a former key. It is that of the first database' in line
    assert load(file).default.name == "south"
    file.write_text(BOTH.replace("dsn", "default = true\ndsn"))
    with pytest.raises(ConfigurationError, match="exactly one database owns what no rule names"):
        load(file)


def test_variables_have_the_same_former_keys(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_POSTGRES__LOCK_TIMEOUT", "10")
    monkeypatch.setenv("GATEWAY_UI__LOG_URL", "https://a/{request_id}")
    of_postgres, of_ui = warnings(file, DSN)
    assert of_postgres.startswith(
        "the environment, GATEWAY_POSTGRES__LOCK_TIMEOUT: [postgres], lock_timeout: is a former key."
    )
    assert of_ui.startswith("the environment, GATEWAY_UI__LOG_URL: [ui], log_url: is a former key.")


FOLLOWED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "[postgres] openapi = false": (lambda one: one.postgres.verbose, False),
    "[postgres] verbose_errors = true": (lambda one: one.postgres.verbose, True),
    '[journal] bucket = "b"\nprefix = "p/q/"': (
        lambda one: (one.journal.bucket, one.journal.prefix),
        ("b/p/q/", "p/q/"),
    ),
    '[journal] bucket = "b"': (lambda one: one.journal.prefix, PREFIX),
    '[fencing] max_jump = 5\n[[resources]]\nmatch = "a/*"\n[[resources]]\nmatch = "b/*"\nmax_jump = 9': (
        lambda one: [(rule.match, rule.max_jump) for rule in one.resources],
        [("a/*", 5), ("b/*", 9), ("**", 5)],
    ),
    '[fencing] tokens = "issued"\nmax_jump = 5\n[[resources]]\nmatch = "a/*"\ntokens = "any"': (
        lambda one: [(rule.match, str(rule.tokens), rule.max_jump) for rule in one.resources],
        [("a/*", "any", 5), ("**", "issued", 5)],
    ),
    '[[webhooks]] reasons = ["denied"]\nexcept_reasons = ["denied"]': (
        lambda one: set(one.webhooks[0].except_reasons),
        set(EntryReason),
    ),
    '[[webhooks]] reasons = ["denied"]\nobserved = true': (
        lambda one: (set(EntryReason) - set(one.webhooks[0].except_reasons), one.webhooks[0].observed),
        ({EntryReason.DENIED}, True),
    ),
    '[[webhooks]] kinds = ["bypass"]\nobserved = false': (
        lambda one: one.webhooks[0].kinds,
        ("bypass", "not observed"),
    ),
    "[[webhooks]] kinds = []\nobserved = false": (lambda one: one.webhooks[0].kinds, ()),
    '[[grants]] actions = ["read"]\ntables = ["a.b"]\ngroups = ["x"]': (
        lambda one: one.grants[0].callers,
        ("group:x",),
    ),
    '[[grants]] actions = ["read"]\ntables = ["a.b"]\ncallers = ["*"]\ngroups = ["x"]': (
        lambda one: one.grants[0].groups,
        ("x",),
    ),
    '[[postgres.roles]] groups = ["x"]\nclaim = ["role"]\nallowed = ["a", "b"]': (
        lambda one: (one.postgres.roles[0].callers, one.postgres.roles[0].role),
        (("group:x",), ("a", "b")),
    ),
    '[ui] log_url = "https://a/{request_id}"': (lambda one: one.audit.retention, 400),
}
UNTOUCHED = '[journal] bucket = "b"'
TRUSTED = '[[issuers]] name = "id"\nissuer = "https://a"\naudiences = ["g"]\n'
FOLLOWED |= {
    f'{TRUSTED}keys_url = "https://a/keys"': (lambda one: one.issuers[0].keys, "https://a/keys"),
    f'{TRUSTED}keys_path = "keys.json"': (lambda one: one.issuers[0].keys, "keys.json"),
}
HOOK = 'name = "a"\nurl = "https://a"\nsecret = "whsec_aHVudGVyMi1zZWNyZXQtaHVudGVyMi1zZWNyZXQ="\n'
STORE = '[s3]\nendpoint = "http://s3"\naccess_key_id = "a"\nsecret_access_key = "b"\n'


@pytest.mark.parametrize("text", FOLLOWED)
def test_a_key_that_has_another_name_is_read(file: Path, text: str) -> None:
    header, _, keys = text.partition(" ")
    written = DSN + (keys if header == "[postgres]" else STORE + f"{header}\n{HOOK * (header == '[[webhooks]]')}{keys}")
    assert bool(warnings(file, written)) == (text != UNTOUCHED)
    value, expected = FOLLOWED[text]
    assert value(load(file)) == expected


ISSUER = '[[issuers]]\nname = "id"\nissuer = "https://a"\naudiences = ["g"]\nkeys = "https://a/keys"\n'


def test_former_secrets_are_read_with_their_files(file: Path) -> None:
    """Without one of them, a client or a receiver that has not changed yet is shut out."""
    for name in ("new", "old"):
        file.with_name(name).write_text(f"the-{name}-api-key\n")
    keys = f'api_key_file = "{file.with_name("new")}"\napi_keys = ["the-third-api-key"]\n'
    assert len(warnings(file, DSN + f'[[callers]]\nname = "a"\n{keys}api_keys_file = "{file.with_name("old")}"\n')) == 2
    read = {key.get_secret_value() for key in load(file).callers[0].api_key}
    assert read == {"the-new-api-key", "the-old-api-key", "the-third-api-key"}
    file.with_name("first").write_text("the-first-secret\n")
    file.with_name("pair").write_text("the-third-secret\n")
    pairs = (
        f'access_key_id = "A"\nsecret_access_key_file = "{file.with_name("first")}"\n'
        'keys = [{ access_key_id = "B", secret_access_key = "the-second-secret" }, '
        f'{{ access_key_id = "C", secret_access_key_file = "{file.with_name("pair")}" }}]\n'
    )
    assert len(warnings(file, DSN + f'[[callers]]\nname = "a"\n{pairs}')) == 1
    assert {pair.access_key_id: pair.secret_access_key for pair in load(file).callers[0].pairs} == {
        "A": "the-first-secret",
        "B": "the-second-secret",
        "C": "the-third-secret",
    }
    secrets = [f"whsec_{sign * 32}" for sign in "ab"]
    hook = f'[[webhooks]]\nname = "a"\nurl = "https://a"\nsecret = "{secrets[0]}"\nformer_secret = "{secrets[1]}"\n'
    assert len(warnings(file, DSN + hook)) == 1
    assert [one.get_secret_value() for one in load(file).webhooks[0].secret] == secrets


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (ISSUER + "leeway = 5", ISSUER + "leeway = 60"),
        (ISSUER + 'algorithms = ["ES256"]', ISSUER),
        ("idempotency_retention = 90000", "idempotency_retention = 5"),
        ("max_body = 1000000", "max_body = 67108864"),
        (STORE + "sweep_interval = 0", STORE + "sweep_interval = 10"),
        (STORE + 'evidence_keys = ["hunter2-secret"]', STORE + "evidence_keys = []"),
        ("[telemetry]\nsample = 0.01", "[telemetry]\nsample = 1.0"),
    ],
)
def test_a_value_that_cannot_be_kept_is_an_error(file: Path, text: str, kept: str) -> None:
    """With the fixed value, a promise would be lost, or more would be accepted, sent or done than before."""
    file.write_text(DSN + text)
    with pytest.raises(ConfigurationError, match=r"is a former key, and .* cannot be kept") as refused:
        load(file)
    assert "hunter2" not in str(refused.value)
    file.write_text(DSN + kept)
    load(file)


@pytest.mark.parametrize(
    "text",
    [
        f'[[webhooks]]\n{HOOK}reasons = ["token-stal"]',
        'resources = ["x"]\n[fencing]\nmax_jump = 5',
        '[[grants]]\nactions = ["read"]\neverything = true\ngroups = "ops"',
    ],
)
def test_a_value_that_cannot_be_read_is_an_error(file: Path, text: str) -> None:
    file.write_text((text + "\n" + DSN) if text.startswith("resources") else DSN + text)
    with pytest.raises(ConfigurationError, match="is a former key, and its value cannot be read"):
        load(file)


@pytest.mark.parametrize(
    "text",
    [
        '[[postgres.roles]]\ncallers = ["*"]\nallowed = ["admin"]',
        '[[postgres.roles]]\ncallers = ["*"]\nclaim = ["role"]\nrole = "one"\nallowed = ["admin"]',
        '[[grants]]\nactions = ["read"]\neverything = true\ncallers = ["group:"]',
        '[[callers]]\nname = "a"\nkeys = [{ access_key_id = "A" }, { secret_access_key = "the-other-secret" }]',
    ],
)
def test_what_was_refused_gives_no_wider_rights(file: Path, text: str) -> None:
    file.write_text(DSN + text)
    with pytest.raises(ConfigurationError) as refused:
        load(file)
    assert "secret" not in str(refused.value).replace("secret_access_key", "")


def test_the_check_and_the_log_tell(dsn: str, file: Path) -> None:
    file.write_text(f'[server]\nlisten = "127.0.0.1:0"\nbody_timeout = 20\n[postgres]\ndsn = "{dsn}"\n')
    told = "[server], body_timeout: is a former key. It has no effect"
    checked = called("config", "check", "--config", str(file))
    assert (checked.returncode, told in checked.stderr) == (0, True), checked.stderr
    with started("serve", "--config", str(file)) as gateway:
        gateway.wait_for(lambda: '"listening"' in gateway.errors.read_text())
        assert told in gateway.errors.read_text()
