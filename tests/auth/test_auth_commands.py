"""``gateway auth``: which grant allows something to a caller, and which keys of callers are used."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.callers import digest_of, fingerprint
from gateway.db import traffic
from gateway.db.database import Database
from tests.processes import called

OLD, NEW = "the-old-key-of-billing", "the-new-key-of-billing"
CONFIGURATION = f"""
[postgres]
dsn = "{{dsn}}"
functions = ["public.reckon"]

[[callers]]
name = "billing"
groups = ["services"]
api_key = ["{NEW}", "{OLD}"]
access_key_id = ["AKIANEW", "AKIAOLD"]
secret_access_key = ["secret-of-the-new-pair", "secret-of-the-old-pair"]

[[callers]]
name = "reports"
api_key = "the-key-of-reports"

[[issuers]]
name = "keycloak"
secret = "0123456789abcdef0123456789abcdef"
caller_claim = ["sub"]
groups_claim = ["groups"]

[[objects]]
match = "reports/{{{{job}}}}/**"
resource = "job/{{{{job}}}}"

[[grants]]
callers = ["billing"]
actions = ["write", "lock"]
tables = ["public.orders"]
resources = ["order/*"]

[[grants]]
callers = ["group:services"]
actions = ["read", "call"]
tables = ["public.*"]
functions = ["public.reckon"]

[[grants]]
callers = ["keycloak:robot-*"]
actions = ["write"]
buckets = ["reports"]
resources = ["job/**"]

[[grants]]
callers = ["group:keycloak:clerks"]
actions = ["audit"]
everything = true

[[grants]]
callers = ["*"]
actions = ["barrier"]
resources = ["job/*"]

[[grants]]
callers = ["anonymous"]
actions = ["read"]
buckets = ["site/public/**"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.toml"
    file.write_text(CONFIGURATION.format(dsn="postgresql://nobody@127.0.0.1:1/none"))
    return file


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("billing lock order/5", 1),
        ("billing read --table public.lines", 2),
        ("billing barrier job/7", 5),
        ("keycloak:robot-7 write --object reports/7/a", 3),
        ("keycloak:ann audit --group keycloak:guests --group keycloak:clerks", 4),
        ("anonymous read --object site/public/page", 6),
    ],
)
def test_the_answer_names_the_grant_that_decides(path: Path, words: str, number: int) -> None:
    said = can(path, words)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"Yes, by [[grants]] number {number}: ")


@pytest.mark.parametrize(
    ("words", "half", "near"),
    [
        ("reports read --table public.lines", "table public.lines", ""),
        (
            "billing write --table public.lines",
            "table public.lines",
            "2 covers table public.lines, but only with call, read",
        ),
        (
            "billing write job/7 --table public.orders",
            "resource job/7 at table public.orders",
            "1 covers table public.orders, but only under order/*",
        ),
        (
            "billing write order/7 --table private.orders",
            "table private.orders",
            "1 covers table public.orders, but not table private.orders",
        ),
        (
            "billing call --function public.pay",
            "function public.pay",
            "2 covers function public.reckon, but not function public.pay",
        ),
        ("billing lock job/7", "resource job/7", "1 covers order/*, but not job/7"),
        ("billing epoch order/7", "resource order/7", "1 covers order/7, but only with lock, write"),
        ("billing audit", "everything", ""),
        (
            "keycloak:robot-7 write --object other/7/a",
            "object other/7/a",
            "3 covers bucket reports, but not object other/7/a",
        ),
        (
            "keycloak:robot-7 write --object reports/a",
            "resource s3/reports/a at object reports/a",
            "3 covers object reports/a, but only under job/**",
        ),
        (
            "keycloak:robot-7 administer --bucket reports",
            "bucket reports",
            "3 covers bucket reports, but only with write",
        ),
        ("keycloak:ann read --table public.lines --group keycloak:services", "table public.lines", "No grant"),
        # The star is for callers of the configuration.
        ("keycloak:ann barrier job/7", "resource job/7", "No grant"),
        ("anonymous barrier job/7", "resource job/7", ""),
    ],
)
def test_the_answer_names_the_half_that_fails(path: Path, words: str, half: str, near: str) -> None:
    """Behind it stands the grant that comes nearest."""
    caller, action, _ = words.split(maxsplit=2) if words.count(" ") > 1 else (*words.split(), "")
    said = can(path, words)
    told = "No grant names this caller." if near == "No grant" else near and f"[[grants]] number {near}."
    assert (said.returncode, said.stdout) == (
        1,
        f"No: {caller} lacks the grant {action} for {half}. {told}".rstrip() + "\n",
    )


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ("billing write job/7 --table public.orders", True),
        ("billing write job/7 --table private.orders", False),
        ("keycloak:robot-7 write --object reports/a", True),
        ("anonymous write --object site/public/a", False),
        ("billing lock job/7", False),
        # Its rule enforces.
        ("keycloak:robot-8 write --object reports/b", False),
    ],
)
def test_the_answer_tells_of_observe_mode(path: Path, words: str, passes: bool) -> None:  # noqa: FBT001 - by position
    path.write_text(path.read_text() + OBSERVING)
    said = can(path, words)
    assert said.returncode == 1
    assert ("Its rule observes" in said.stdout) == passes, said.stdout


OBSERVING = """
[fencing]
mode = "observe"

[[objects]]
match = "reports/b"
mode = "enforce"
"""


def can(path: Path, words: str) -> Any:
    return called("auth", "can", *words.split(), "--config", str(path))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("billling read job/7", "there is no caller billling; there are billing, reports, keycloak:…, anonymous"),
        ("keycloack:ann read job/7", "there is no caller keycloack:ann"),
        ("billing write --group keycloak:clerks", "--group is for callers of issuers"),
        ("keycloak:ann read --group services", "begin with keycloak:, and services does not"),
        ("billing reed", "there is no action reed"),
        ("billing read", "Name a resource, --table, --function, --object or --bucket"),
        ("billing write order/5 --table orders", "--table needs the schema: public.orders"),
        ("billing call --function reckon", "--function needs the schema: public.reckon"),
    ],
)
def test_a_wrong_question_is_told(path: Path, words: str, told: str) -> None:
    said = can(path, words)
    assert said.returncode == 2
    assert told in " ".join(re.sub(r"[│╭╰─╮╯]", " ", said.stderr).split())


ROLES = """
[[postgres.roles]]
callers = ["billing"]
role = "accountant"

[[postgres.roles]]
callers = ["keycloak:*"]
claim = ["realm", "role"]
role = ["clerk", "auditor"]

[[grants]]
callers = ["keycloak:ann", "reports"]
actions = ["read"]
tables = ["public.orders"]
"""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("billing read --table public.orders", 0, "The request runs under the role accountant.\n"),
        (
            "keycloak:ann read --table public.orders",
            0,
            "one of clerk, auditor, the request runs under that role. Otherwise it is denied.\n",
        ),
        ("reports read --table public.orders", 1, "But no role of the database is for this caller, so it is denied.\n"),
        ("billing lock order/5", 0, "order/*.\n"),
    ],
)
def test_the_role_of_the_database_is_told(path: Path, words: str, code: int, told: str) -> None:
    path.write_text(path.read_text() + ROLES)
    said = can(path, words)
    assert said.returncode == code, said.stderr
    assert said.stdout.startswith("Yes, by ")
    assert said.stdout.endswith(told)
    facts = json.loads(can(path, f"{words} --json").stdout)
    assert (facts["allowed"], facts["told"]) == (code == 0, said.stdout.splitlines())


@pytest.mark.thorough
async def test_the_last_use_of_each_key_is_shown(dsn: str, database: Database, tmp_path: Path) -> None:
    """Former keys, too. No secret is shown."""
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIGURATION.format(dsn=dsn))
    shown = {key: fingerprint("billing", digest_of(key.encode())) for key in (NEW, OLD)}
    await traffic.note_key_uses(
        database,
        [("billing", "api", shown[OLD], 3600.0), ("billing", "s3", "AKIANEW", 60.0), ("gone", "s3", "AKIAGONE", 5.0)],
    )
    said = await asyncio.to_thread(called, "auth", "keys", "--config", str(path))
    assert said.returncode == 0, said.stderr
    title, *lines = (line.split("\t") for line in said.stdout.splitlines())
    assert title == ["caller", "kind", "key", "setting", "last used"]
    other = fingerprint("reports", digest_of(b"the-key-of-reports"))
    assert [line[:4] for line in lines] == [
        ["billing", "api", shown[NEW], "api_key"],
        ["billing", "api", shown[OLD], "api_key, number 2"],
        ["billing", "s3", "AKIANEW", "access_key_id"],
        ["billing", "s3", "AKIAOLD", "access_key_id, number 2"],
        ["reports", "api", other, "api_key"],
        ["gone", "s3", "AKIAGONE", "not configured"],
    ]
    assert [line[4] == "never" for line in lines] == [True, False, False, True, True, False]
    ago = datetime.now(UTC) - datetime.fromisoformat(lines[1][4]).replace(tzinfo=UTC)
    assert timedelta(minutes=59) < ago < timedelta(minutes=61)
    for secret in (OLD, NEW, "secret-of-the-new-pair", "secret-of-the-old-pair"):
        assert secret not in said.stdout
    documents = await asyncio.to_thread(called, "auth", "keys", "--config", str(path), "--json")
    rows = [list(json.loads(line).values()) for line in documents.stdout.splitlines()]
    assert [row[:4] for row in rows] == [line[:4] for line in lines]


async def test_without_a_database_the_command_says_so(path: Path) -> None:
    said = await asyncio.to_thread(called, "auth", "keys", "--config", str(path))
    assert said.returncode != 0
    assert "never" not in said.stdout
    assert said.stderr
