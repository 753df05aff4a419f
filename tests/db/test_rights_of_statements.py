"""The rights that are granted are those that the text of the queries and functions needs, no more and no fewer."""

import re

import httpx
import pytest

from gateway.db import rights
from gateway.db.database import Database
from gateway.db.pool import load
from gateway.doctor.examination import examine
from gateway.findings import CheckStatus
from tests.doctor.test_doctor import execute, found
from tests.postgres import GATEWAY, as_gateway
from tests.running import API_KEY, config, running

# Statements that Python code puts together, and the views that searches read.
IN_CODE = {
    "migration": {"SELECT"},
    "compatibility": {"SELECT"},
    "fence": {"SELECT", "UPDATE"},
    **{view: {"SELECT"} for view in ("administration", "event", "record", "rejection")},
}
# Functions that only the owner of the schema calls, or a trigger that runs with the owner's rights.
OF_THE_OWNER = ("guard_installed_v1", "guard_removed_v1", "stamp_v1", "keep_refusal_v1", "record_counted_v1")

_COMMENT = re.compile(r"--[^\n]*")
_TEXT = re.compile(r"'(?:[^']|'')*'")
_RELATION = re.compile(r"\bfencing\.(\w+)")
_VERBS = {
    "INSERT": re.compile(r"\binsert\s+into\s+fencing\.(\w+)"),
    "UPDATE": re.compile(r"\bupdate\s+(?:only\s+)?fencing\.(\w+)"),
    "DELETE": re.compile(r"\bdelete\s+from\s+(?:only\s+)?fencing\.(\w+)"),
}
_INSERT = r"\binsert\s+into\b"
_UPSERT = re.compile(
    rf"{_INSERT}\s+fencing\.(\w+)(?:(?!{_INSERT}).)*?\bon\s+conflict\b(?:(?!{_INSERT}).)*?\bdo\s+update\b", re.DOTALL
)
_LOCKED = re.compile(
    r"\bfrom\s+((?:(?!\b(?:select|insert|update|delete)\b).)*?)"
    r"\bfor\s+(?:no\s+key\s+update|update|key\s+share|share)\b",
    re.DOTALL,
)


def needed(text: str, relations: set[str]) -> set[tuple[str, str]]:
    """Return which privileges on which relations the text of some statements needs."""
    found: set[tuple[str, str]] = set()
    for statement in _TEXT.sub("''", _COMMENT.sub("", text)).lower().split(";"):
        found |= {(name, "SELECT") for name in _RELATION.findall(statement)}
        for privilege, verb in _VERBS.items():
            found |= {(name, privilege) for name in verb.findall(statement)}
        found |= {(name, "UPDATE") for name in _UPSERT.findall(statement)}
        found |= {(name, "UPDATE") for span in _LOCKED.findall(statement) for name in _RELATION.findall(span)}
    return {(name, privilege) for name, privilege in found if name in relations}


async def test_the_rights_are_those_that_the_statements_need(database: Database) -> None:
    rows = await database.fetch(
        "SELECT relname::text AS name FROM pg_class WHERE relnamespace = 'fencing'::regnamespace "
        "AND relkind IN ('r', 'p', 'v')"
    )
    relations = {row["name"] for row in rows}
    functions = await database.fetch(
        "SELECT pg_get_functiondef(oid) AS text FROM pg_proc "
        "WHERE pronamespace = 'fencing'::regnamespace AND prokind = 'f' AND NOT prosecdef "
        "AND proname <> ALL ($1::text[])",
        list(OF_THE_OWNER),
    )
    modules = {name.partition(".")[0] for name, _ in rights.queries()}
    texts = [text for module in modules for text in load(module).values()] + [row["text"] for row in functions]
    expected = {(name, privilege) for name, privileges in IN_CODE.items() for privilege in privileges}
    for text in texts:
        expected |= needed(text, relations)
    assert {(table, privilege) for table, given in rights.TABLES.items() for privilege in given} == expected


@pytest.mark.parametrize(
    ("privilege", "named"),
    [("UPDATE ON fencing.forbidden", "intents.forbid"), ("DELETE ON fencing.intent", "intents."), (None, "")],
)
async def test_the_doctor_tries_each_statement(dsn: str, privilege: str | None, named: str) -> None:
    if privilege is not None:
        await execute(dsn, f"REVOKE {privilege} FROM {GATEWAY}")
        opened = Database(as_gateway(dsn), pool_size=1)
        refused = await rights.refused_statements(opened)
        await opened.close()
        assert [name for name in refused if name.startswith(named)], refused
        check = found(await examine(config(dsn).default), "schema")
        assert privilege.replace("ON", "on") in check.detail
        assert f"--grant-to {GATEWAY}" in check.advice
    else:
        assert found(await examine(config(dsn).default), "statements").status is CheckStatus.OK


async def test_a_missing_right_is_503_and_says_who_can_help(dsn: str) -> None:
    await execute(dsn, f"REVOKE INSERT, UPDATE ON fencing.fence FROM {GATEWAY}")
    async with running(config(dsn)) as origin, httpx.AsyncClient(base_url=origin) as client:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        answer = await client.post("/v1/fences/order/5/barrier", json={"token": "1"}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (503, "right-missing")
    assert "gateway doctor" in answer.json()["advice"]
    assert "permission" not in answer.text
