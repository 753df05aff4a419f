"""Configurations: what they say, how a wrong one is told without a secret, and targets that do not exist."""

import asyncio
import json
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from gateway import wiring
from gateway.config import former_keys, load, of, toml
from gateway.config.access import CallerKeys
from gateway.config.explanations import Places
from gateway.db.database import Database
from gateway.errors import ConfigurationError, Unavailable
from gateway.fencing.decision import Enforcement
from gateway.journal.journal import Journal
from gateway.observe.events import ignore
from gateway.tables.naming import Rule
from gateway.tables.schema_cache import SchemaCache
from tests.doubles.s3 import S3Double, serve
from tests.postgres import as_gateway
from tests.processes import called, called_in_a_terminal, run
from tests.running import GRANTS_TOML, OPERATOR_TOML, Events, config, running
from tests.waiting import PATIENCE

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
    assert config.default.postgres.schemas == ("public", "sales")
    assert config.tables[0].mode is Enforcement.OBSERVE
    assert config.callers[0].name == "worker"
    for secret in ("hunter2", "store-secret", "worker-secret", "worker-key"):
        assert secret not in repr(config)


def test_the_environment_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(COMPLETE)
    monkeypatch.setenv("GATEWAY_POSTGRES__DSN", "postgresql://elsewhere/app")
    monkeypatch.setenv("GATEWAY_SERVER__MAX_BODY", "1000")
    config = load(file)
    assert config.default.postgres.dsn.get_secret_value() == "postgresql://elsewhere/app"
    assert (config.server.max_body, config.server.port) == (1000, 9000)


def test_the_address_of_gateway_run_is_no_section(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(COMPLETE)
    dsn = load(file).default.postgres.dsn
    monkeypatch.setenv("GATEWAY_POSTGRES", "postgresql://app@localhost/shop")
    assert load(file).default.postgres.dsn == dsn
    assert former_keys(file) == []
    monkeypatch.setenv("GATEWAY_POSTGRES", '{"dsn": "postgresql://elsewhere/app"}')
    assert load(file).default.postgres.dsn.get_secret_value() == "postgresql://elsewhere/app"


def test_an_operators_address_is_enough_where_none_is_configured(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, dsn in (
        ("", "postgresql://owner@/shop"),
        ('[postgres]\nschemas = ["shop"]\n', "postgresql://owner@/shop"),
        ('[postgres]\ndsn = "postgresql://gateway@/shop"\n', "postgresql://gateway@/shop"),
    ):
        file.write_text(text)
        found = load(file, "postgresql://owner@/shop").default
        assert (found.postgres.dsn.get_secret_value(), found.has_gateway) == (dsn, "gateway" in dsn)
    monkeypatch.setenv("GATEWAY_POSTGRES", "postgresql://app@localhost/shop")
    assert not load(None, "postgresql://owner@/shop").default.has_gateway
    with pytest.raises(ConfigurationError) as missing:
        load(None)
    assert missing.value.message.startswith("the environment: [postgres]: the section is missing")
    assert missing.value.message.endswith("; GATEWAY_POSTGRES is for gateway run")


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
        CallerKeys(name=name, api_key=(SecretStr("k"),))


@pytest.mark.parametrize("name", [" anonymous", "worker ", "wor\u200bker", "worker\n", "\0", " ", "x" * 201, ""])
def test_the_name_of_a_caller_is_what_it_looks_like(name: str) -> None:
    with pytest.raises(ValidationError):
        CallerKeys(name=name, api_key=(SecretStr("k"),))


def test_a_journal_is_kept_as_long_as_the_operator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[timedelta] = []
    real = Journal

    def noted(store: Any, *, retention: timedelta, observe: Any) -> Any:
        made.append(retention)
        return real(store, retention=retention, observe=observe)

    monkeypatch.setattr(wiring, "Journal", noted)
    for days in (7, 90):
        wiring.storage(
            config("postgresql:///a", journal={"dsn": "postgresql:///b", "retention_days": days}).default, ignore, None
        )
    assert made == [timedelta(days=7), timedelta(days=90)]


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file"):
        load(file)


KEY = "a-key-of-the-writer"


TABLE = '[[tables]]\nname = "public.accounts"\nresource = "account/{id}"\n'


TABLES = "CREATE TABLE accounts (id int PRIMARY KEY, owner text, changed xid8)"


FUNCTION = "CREATE FUNCTION pay(n int) RETURNS int LANGUAGE sql AS 'SELECT n'"


WEBHOOK = (
    '[[webhooks]]\nname = "hook"\nurl = "https://a/secret-in-the-path"\n'
    'secret = "whsec_Y2hhbmdlLW1lLWNoYW5nZS1tZS1jaGFuZ2UtbWU="\n'
)


WRONG = [
    ('[[tables]]\nname = "public.acounts"', ('[[tables]] "public.acounts", name: there is no table', "accounts?")),
    ('[[tables]]\nname = "pubic.accounts"', ("the schema pubic is not exposed", "Did you mean public.accounts?")),
    ('[[tables]]\nname = "public.zebra"', ("there is no table public.zebra", "--allow-missing")),
    (TABLE.replace("{id}", "{idd}"), ('[[tables]] "public.accounts", resource: ', "has no column idd", "mean id?")),
    (TABLE + 'version = "chnged"', ('"public.accounts", version: public.accounts has no column', "mean changed?")),
    ('[audit]\nredact = ["ownr"]', ("[audit], redact: no exposed table has a column ownr", "Did you mean owner?")),
    ('[audit]\nredact = ["public.acounts.owner"]', ("there is no table public.acounts", "public.accounts?")),
    ('[[objects]]\nmatch = "reports/{a}/**"\nresource = "job/{b}"', ('[[objects]] "reports/{a}/**": ', "{b} is not a")),
]


@pytest.fixture
async def filled(dsn: str, database: Database) -> str:
    """A database with the table and the function of these configurations."""
    await database.fetch(TABLES)
    await database.fetch(FUNCTION)
    return dsn


def written(path: Path, dsn: str, text: str = "", postgres: str = "", port: int = 0) -> Path:
    file = path / "gateway.toml"
    file.write_text(
        f'[server]\nlisten = "127.0.0.1:{port}"\n[postgres]\ndsn = "{as_gateway(dsn)}"\n{postgres}\n'
        f'[[callers]]\nname = "writer"\napi_key = "{KEY}"\n{GRANTS_TOML}{text}\n'
    )
    return file


async def command(*arguments: str) -> Any:
    return await asyncio.to_thread(called, *arguments)


@pytest.mark.thorough
async def test_a_name_that_nothing_has_stops_the_start(filled: str, tmp_path: Path) -> None:
    """A misspelt rule would leave its table under the default name, with fences of its own."""
    for text, said in WRONG:
        file = written(tmp_path, filled, text)
        checked = await command("config", "check", "--config", str(file))
        assert (checked.returncode, checked.stdout) == (78, "")
        assert f"{file}, line " in checked.stderr
        for words in said:
            assert words in checked.stderr
    served = await asyncio.to_thread(run, "serve", "--config", str(written(tmp_path, filled, WRONG[0][0])))
    assert served.returncode == 2
    assert "Did you mean public.accounts?" in served.stderr
    address = written(tmp_path, "postgresql://ann:hunter2@host:port/app")
    checked = await command("config", "check", "--config", str(address))
    assert (checked.returncode, "hunter2" in checked.stderr) == (78, False)
    assert "line 4: [postgres], dsn: is not the address of a database" in checked.stderr
    for postgres, expected in (
        ('schemas = ["pubic"]', "[postgres], schemas: there is no schema pubic. Did you mean public?"),
        ('functions = ["public.pya"]', "[postgres], functions: there is no function public.pya. Did you mean public.p"),
    ):
        checked = await command("config", "check", "--config", str(written(tmp_path, filled, "", postgres)))
        assert expected in checked.stderr


async def test_what_may_come_later_is_a_warning(filled: str, tmp_path: Path) -> None:
    file = written(tmp_path, filled, '[[tables]]\nname = "public.later"', 'functions = ["public.later"]')
    checked = await command("config", "check", "--allow-missing", "--config", str(file))
    assert checked.returncode == 0
    assert "there is no table public.later" in checked.stderr
    assert "there is no function public.later" in checked.stderr
    facts = json.loads((await command("config", "check", "--json", "--allow-missing", "--config", str(file))).stdout)
    assert (facts["usable"], len(facts["warnings"])) == (True, 2)
    column = written(tmp_path, filled, TABLE.replace("{id}", "{idd}"))
    assert (await command("config", "check", "--allow-missing", "--config", str(column))).returncode == 78
    wrong = await command("config", "check", "--json", "--config", str(column))
    assert (wrong.returncode, wrong.stderr, json.loads(wrong.stdout)["usable"]) == (78, "", False)


async def test_a_rule_without_its_table_keeps_every_table_closed(filled: str, database: Database) -> None:
    """A gateway that starts without its database finds the misspelt rule with the catalog, before any write."""
    cache = SchemaCache(database, ["public"], {}, Rule(), Events(), ["public.acounts"])
    with pytest.raises(Unavailable, match=r"a rule for public\.acounts, and there is no such table"):
        await cache.table("public", "accounts")
    await database.fetch("CREATE TABLE acounts (id int PRIMARY KEY)")
    assert (await cache.table("public", "accounts")).name == "public.accounts"
    await database.fetch("DROP TABLE acounts")
    await cache.renew()
    assert (await cache.table("public", "accounts")).name == "public.accounts"


async def test_an_unknown_bucket_is_found(filled: str, tmp_path: Path) -> None:
    async with serve(S3Double(buckets=["reports"])) as endpoint:
        store = f'[s3]\nendpoint = "{endpoint}"\naccess_key_id = "AKIADOUBLE"\nsecret_access_key = "double-secret"\n'
        rule = '[[objects]]\nmatch = "reprots/{job}/**"\nresource = "job/{job}"\n'
        file = written(tmp_path, filled, store + rule)
        wrong = await command("config", "check", "--config", str(file))
        later = await command("config", "check", "--allow-missing", "--config", str(file))
    assert wrong.returncode == 78
    assert '[[objects]] "reprots/{job}/**", match: there is no bucket reprots. Did you mean reports?' in wrong.stderr
    assert later.returncode == 0
    assert "there is no bucket reprots" in later.stderr


def test_a_command_may_have_values_of_its_own_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_POSTGRES__POOL_SIZE", "3")
    monkeypatch.setenv("GATEWAY_FENCING__MODE", "observe")
    settings = of({"postgres": {"dsn": "postgresql://x"}}, "the demo")
    assert settings == of({"postgres": {"dsn": "postgresql://x", "pool_size": 16}, "fencing": {"mode": "enforce"}}, "")


async def test_the_configuration_in_force_is_shown_without_secrets(filled: str, tmp_path: Path) -> None:
    file = written(tmp_path, filled, TABLE)
    shown = await command("config", "show", "--config", str(file))
    assert shown.returncode == 0
    values = tomllib.loads(shown.stdout)
    assert values["tables"] == [{"name": "public.accounts", "resource": "account/{id}"}]
    assert values["audit"]["retention"] == 400
    assert values["postgres"]["dsn"] == "(redacted)"
    assert values["callers"][0]["api_key"] == ["(redacted)"]
    assert KEY not in shown.stdout
    assert json.loads((await command("config", "show", "--json", "--config", str(file))).stdout) == values


async def test_a_file_is_compared_with_what_a_gateway_has(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only administrators may see a configuration, and no secret is in it."""
    file = written(tmp_path, filled, TABLE)
    file.write_text(
        file.read_text()
        + f'[[callers]]\nname = "root"\napi_key = "root-{KEY}"\n{OPERATOR_TOML.format("root")}{WEBHOOK}'
    )
    monkeypatch.setenv("GATEWAY_API_KEY", f"root-{KEY}")
    async with running(load(file)) as origin, httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client:
        asked = [await client.get("/v1/config", headers={"apikey": key}) for key in (KEY, f"root-{KEY}")]
        assert [answer.status_code for answer in asked] == [403, 200]
        for secret in (KEY, "secret-in-the-path", WEBHOOK.split('"')[5]):
            assert secret not in asked[1].text
        same = await command("config", "diff", "--config", str(file), "--url", origin)
        file.write_text(file.read_text().replace("account/{id}", "accounts/{id}"))
        changed = await command("config", "diff", "--config", str(file), "--url", origin)
        facts = json.loads((await command("config", "diff", "--json", "--config", str(file), "--url", origin)).stdout)
        words = ("config", "diff", "--config", str(file), "--url", origin)
        shown = await asyncio.to_thread(called_in_a_terminal, *words)
    assert (same.returncode, same.stdout) == (0, "")
    assert changed.returncode == 1
    assert shown == changed.stdout.splitlines()
    assert max(map(len, shown)) > 80
    assert '-resource = "account/{id}"\n+resource = "accounts/{id}"' in changed.stdout
    assert (facts["url"], facts["differs"]) == (origin, True)
    assert '+resource = "accounts/{id}"' in facts["diff"]


OBSERVING = """# Orders are observed.
fencing.mode = "observe"

[[tables]]
name = "public.orders"   # of the shop
mode = 'observe'         # until the clerks have locks
[[tables]]
resource = "job/{id}"
name = "public.jobs"
[[objects]]
match = "a/**"
mode = "enforce"
"""


def known(text: str) -> Places:
    return Places("gateway.toml", text, tomllib.loads(text), {})


def test_a_mode_is_changed_or_added_in_its_line_and_nothing_else_is() -> None:
    changed = toml.enforcing(known(OBSERVING), [("fencing",), ("tables", 0), ("tables", 1)])
    assert changed == (
        OBSERVING.replace('fencing.mode = "observe"', 'fencing.mode = "enforce"')
        .replace("mode = 'observe'         #", 'mode = "enforce"         #')
        .replace('"public.jobs"\n', '"public.jobs"\nmode = "enforce"\n')
    )
    windows = OBSERVING.replace("\n", "\r\n")
    assert toml.enforcing(known(windows), [("tables", 1)]) == windows.replace(
        '"public.jobs"\r\n', '"public.jobs"\r\nmode = "enforce"\r\n'
    )
    assert toml.enforcing(known("[[tables]]\nname = 'a.b'"), [("tables", 0)]).endswith(
        "\nname = 'a.b'\nmode = \"enforce\"\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        'tables = [{name = "a.a", mode = "observe"}, {name = "a.b", mode = "observe"}]\n',
        '[[tables]]\nname = """\na.a"""\n[[tables]]\nname = "a.b"\nmode = """observe"""\n',
    ],
)
def test_a_file_that_is_written_otherwise_is_left_alone(text: str) -> None:
    with pytest.raises(ConfigurationError, match="changed one by one") as caught:
        toml.enforcing(known(text), [("tables", 1)])
    assert "gateway.toml" in str(caught.value.advice)
