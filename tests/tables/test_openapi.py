"""The descriptions of what is served: requests made up from them get answers that they describe."""

from collections.abc import Iterator
from dataclasses import replace
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
    response_schema_conformance,
    status_code_conformance,
)

from gateway.demo.embedded import EmbeddedPostgres
from gateway.tables.catalog import ForeignKey, Table
from gateway.tables.dialect import openapi
from gateway.tables.dialect.openapi import document
from gateway.tables.functions import Function, Parameter
from tests.tables.asking import column, table
from tests.tables.raw_http import Watched, watched_gateway
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

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]

# That of the tables leaves errors out, as its model does.
DOCUMENTS = {"/v1/openapi.json": [*CHECKS, status_code_conformance], "/v1/tables/": CHECKS}


@pytest.fixture(scope="module")
def gateway(postgres_server: EmbeddedPostgres) -> Iterator[Watched]:
    # The document's own example waits for ten seconds if its lock is taken.
    with watched_gateway(postgres_server, TABLES, limits={"max_wait": 10}) as watched:
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
@pytest.mark.parametrize("document", DOCUMENTS)
def test_any_request_of_the_document_gets_an_answer_of_the_document(gateway: Watched, document: str) -> None:
    everything = schemathesis.openapi.from_url(f"http://127.0.0.1:{gateway.client.port}{document}")
    # Streams' answers have no end: tests/record/test_stream.py.
    schema = everything.exclude(path_regex="/stream$")
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert operations
    cases = st.one_of([operation.as_strategy() for operation in operations])

    @settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def ask(case: schemathesis.Case[Any]) -> None:
        gateway.events.clear()
        response = case.call(timeout=PATIENCE)
        assert not gateway.failures()
        case.validate_response(response, checks=DOCUMENTS[document])
        if document == "/v1/openapi.json" and response.status_code == 400:
            # No schema says all of it: the dialect of tables, NUL, the years, the largest token, the longest lease. Nor
            # does one know whether token and sequencer agree, and which slashes the client has encoded once more.
            beyond = ["A slash between two parts", "NUL", "9999", "2199", "out of range", "sequencer", "pattern"]
            beyond.append(" seconds here.")
            known = case.operation.path == "/v1/transaction" or any(one in response.text for one in beyond)
            assert known, (case.as_curl_command(), response.text)

    ask()
