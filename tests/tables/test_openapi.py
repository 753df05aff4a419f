"""The descriptions of what is served: requests made up from them get answers that they describe."""

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from unittest.mock import ANY
from urllib.parse import unquote

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    positive_data_acceptance,
    response_schema_conformance,
)

from gateway.api import ROUTES
from gateway.demo.embedded import EmbeddedPostgres
from gateway.tables.catalog import ForeignKey, Table
from gateway.tables.dialect import openapi
from gateway.tables.dialect.openapi import document
from gateway.tables.functions import Function, Parameter
from tests import ROOT
from tests.running import API_KEY, GRANTS, KEYS
from tests.tables.asking import column, table
from tests.tables.raw_http import Watched, watched_gateway
from tests.tables.test_fuzz import EXAMPLES
from tests.waiting import PATIENCE

USERS = replace(
    table(
        column("id", nullable=False, description="The number"),
        column("name", "text", nullable=False),
        column("team", "bigint"),
        column("state", "text", nullable=False, default="'new'::text"),
        column("tags", "text[]"),
        column("extra", "jsonb", is_json=True),
        name="users",
    ),
    description="Users\nAll of them",
    foreign_keys=(ForeignKey("f", ("team",), "public", "teams", ("id",)),),
)

PAY = Function(
    "public", "pay", "v", returns_set=False, type="void", composite=False,
    parameters=(Parameter("amount", "bigint"), Parameter("note", "text", required=False)),
)  # fmt: skip

FIND = Function(
    "public", "find", "s", returns_set=True, type="integer", composite=False,
    parameters=(Parameter("ids", "integer[]", variadic=True),),
)  # fmt: skip


def described(*tables: Table, functions: tuple[Function, ...] = ()) -> Any:
    return document(tables, functions, "/v1/tables/")


def references(found: Any) -> set[str]:
    if isinstance(found, dict):
        return {found["$ref"]} if "$ref" in found else {ref for value in found.values() for ref in references(value)}
    return {ref for value in found for ref in references(value)} if isinstance(found, list) else set()


def test_a_definition() -> None:
    found = described(USERS)["definitions"]["users"]
    assert found["description"] == "Users\nAll of them"
    assert found["required"] == ["id", "name"]
    properties = found["properties"]
    assert properties["id"] == {
        "type": "integer", "format": "bigint", "description": "The number\n\nNote:\nThis is a Primary Key.<pk/>",
    }  # fmt: skip
    assert properties["team"]["description"] == (
        "Note:\nThis is a Foreign Key to `teams.id`.<fk table='teams' column='id'/>"
    )
    assert properties["state"]["default"] == "'new'::text"
    assert properties["tags"] == {"type": "array", "format": "text[]", "items": {"type": "string", "format": "text"}}
    assert properties["extra"] == {"format": "jsonb"}


def test_every_write_has_a_token_and_the_answers_of_the_fence() -> None:
    path = described(USERS)["paths"]["/users"]
    assert path.keys() == {"get", "post", "put", "patch", "delete"}
    for method, operation in path.items():
        token = {"$ref": "#/parameters/fencing_token"} in operation["parameters"]
        assert token is (method != "get")
        assert {"412", "422", "428"} <= operation["responses"].keys() or method == "get"
    assert described(USERS)["parameters"]["fencing_token"]["required"] is True


def test_only_what_is_permitted_is_described() -> None:
    assert described(replace(USERS, updatable=0))["paths"]["/users"].keys() == {"get"}
    assert described(replace(USERS, reaches_foreign=True))["paths"]["/users"].keys() == {"get"}
    assert "put" not in described(replace(USERS, primary_key=()))["paths"]["/users"]


def test_calls() -> None:
    paths = described(functions=(PAY, FIND))["paths"]
    assert paths["/rpc/pay"].keys() == {"post"}
    assert paths["/rpc/find"].keys() == {"get", "post"}
    pay = paths["/rpc/pay"]["post"]
    body = next(one for one in pay["parameters"] if one.get("in") == "body")
    assert body["schema"]["required"] == ["amount"]
    resource = next(one for one in pay["parameters"] if one.get("name") == "Fencing-Resource")
    assert resource["required"] is True
    assert {"204", "403", "412", "422", "428"} == pay["responses"].keys()
    (ids,) = paths["/rpc/find"]["get"]["parameters"]
    assert (ids["type"], ids["collectionFormat"]) == ("array", "multi")


def test_every_reference_leads_somewhere() -> None:
    awkward = replace(USERS, name="a/b ~c")
    for name in ("users", awkward.name):
        found = described(replace(USERS, name=name), functions=(PAY, FIND))
        for ref in references(found):
            here: Any = found
            for part in ref.removeprefix("#/").split("/"):
                here = here[unquote(part).replace("~1", "/").replace("~0", "~")]


OF_THE_FENCE = {"Fencing-Token", "Fencing-Sequencer", "Fencing-Resource", "Fencing-Holder"}


def test_the_headers_of_each_request_are_described(subtests: pytest.Subtests) -> None:
    for method, headers in (
        ("get", {"Range", "If-None-Match", "Prefer"}), ("post", OF_THE_FENCE | {"Idempotency-Key", "Prefer"}),
        ("patch", OF_THE_FENCE | {"Idempotency-Key", "If-Match", "Prefer"}),
        ("delete", OF_THE_FENCE | {"Idempotency-Key", "If-Match", "Prefer"}),
    ):  # fmt: skip
        with subtests.test(method=method):
            found = described(USERS)
            parameters = found["paths"]["/users"][method]["parameters"]
            named = [found["parameters"][one["$ref"].rpartition("/")[2]] for one in parameters if "$ref" in one]
            assert {one["name"] for one in named if one["in"] == "header"} == headers


TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(12, 2) DEFAULT 0, extra jsonb);
INSERT INTO accounts VALUES (1, 'ann', 10, '{"a": 1}'), (2, 'bob', 20, NULL);
CREATE VIEW rich AS SELECT * FROM accounts WHERE balance > 15;
CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql IMMUTABLE RETURN n * 2;
"""

# The description of tables leaves errors out, as its model does.
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def gateway(postgres_server: EmbeddedPostgres) -> Iterator[Watched]:
    with watched_gateway(postgres_server, TABLES) as watched:
        yield watched


def test_a_description_is_made_once_for_each_state_of_the_catalog(
    gateway: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making that of a large schema takes longer than many requests do."""
    made = []

    def counted(*described: Any) -> Any:
        made.append(described)
        return document(*described)

    monkeypatch.setattr(openapi, "document", counted)
    gateway.execute("CREATE TABLE later (id bigint PRIMARY KEY)")
    deadline = monotonic() + PATIENCE
    while "/later" not in (first := gateway.client.ask("GET", b"/v1/tables/")).document["paths"]:
        assert monotonic() < deadline
        sleep(0.01)
    before = 0
    while len(made) != before:  # the catalog may be read once more for the statement
        assert monotonic() < deadline
        before = len(made)
        for _ in range(3):
            assert gateway.client.ask("GET", b"/v1/tables/") == replace(first, headers=ANY)


@pytest.mark.thorough
def test_any_request_to_a_table_gets_an_answer_of_its_description(gateway: Watched) -> None:
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{gateway.client.port}/v1/tables/")
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert operations
    cases = st.one_of([operation.as_strategy() for operation in operations])

    @settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def ask(case: schemathesis.Case[Any]) -> None:
        gateway.events.clear()
        response = case.call(timeout=PATIENCE)
        assert not gateway.failures()
        case.validate_response(response, checks=CHECKS)

    ask()


# Schemathesis itself on the document of the API, with all its checks. It imports this module, for one check of ours.

STATES = {410, 412, 428}
"""Refusals on account of a fence or a lease, whatever the form of the request."""

BEYOND = {
    "A slash between two parts": "a name of a row has encoded slashes, and only the rules of tables know which",
    "between the years": "JSON Schema has no bounds of times",
    "since must be before until": "nor does it compare two parameters",
    " seconds here.": "a gateway may be set to shorter leases and waits",
    "sequencer": "its resource may be too long, and its token another one than the token beside it",
}
"""Requests that the document allows and the gateway refuses, by words of the refusal, each with the reason."""


@schemathesis.check
def document_says_what_is_refused(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> bool | None:
    """As ``positive_data_acceptance``, with the exceptions above."""
    # The query and the body of a write are PostgREST's, and so are their refusals.
    if response.status_code in STATES or case.operation.path == "/v1/transaction":
        return None
    is_beyond = response.status_code == 400 and any(one in response.text for one in BEYOND)
    return None if is_beyond else positive_data_acceptance(ctx, response, case)


@pytest.mark.nightly
def test_schemathesis_finds_nothing(postgres_server: EmbeddedPostgres, tmp_path: Path) -> None:
    """``FUZZ_EXAMPLES=1000`` makes the nightly run longer, with other requests each time."""
    faulthandler.cancel_dump_traceback_later()  # it may take long on purpose
    caller = {"name": "writer", "groups": ["admins", "auditors"], **KEYS}
    seed = [] if EXAMPLES else ["--seed=7"]
    # The document's own example waits for ten seconds if its lock is taken.
    with watched_gateway(postgres_server, TABLES, callers=[caller], grants=GRANTS, limits={"max_wait": 10}) as gateway:
        described = gateway.client.ask("GET", b"/v1/openapi.json").document
        # No grant of this gateway is for callers without credentials.
        for one in ROUTES:
            if one.summary:
                operation = described["paths"][one.short][one.method.lower()]
                operation["security"] = [{"api_key": []}] if one.rule.actions else []
        (tmp_path / "openapi.json").write_text(json.dumps(described))
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--no-color", *seed),
            f"--url=http://127.0.0.1:{gateway.client.port}",
            f"--header=Authorization: Bearer {API_KEY}",
            # Streams' answers have no end: tests/record/test_stream.py.
            "--exclude-path-regex=/stream$",
            *("--checks=all", "--exclude-checks=positive_data_acceptance", "--continue-on-failure"),
            *(f"--max-examples={EXAMPLES or 40}", "--generation-database=none", f"--request-timeout={PATIENCE}"),
        ]
        # It keeps the failures of earlier runs where it runs.
        checks = {"SCHEMATHESIS_HOOKS": "tests.tables.test_openapi", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | checks, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not gateway.failures()
