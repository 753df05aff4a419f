"""The description of what is served."""

from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest

from gateway.tables.catalog.functions import Function, Parameter
from gateway.tables.catalog.snapshot import ForeignKey, Table
from gateway.tables.dialect.openapi import document
from tests.tables.samples import column, table

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


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("get", {"Range", "If-None-Match", "Prefer"}),
        ("post", OF_THE_FENCE | {"Idempotency-Key", "Prefer"}),
        ("patch", OF_THE_FENCE | {"Idempotency-Key", "If-Match", "Prefer"}),
        ("delete", OF_THE_FENCE | {"Idempotency-Key", "If-Match", "Prefer"}),
    ],
)
def test_the_headers_of_each_request_are_described(method: str, headers: set[str]) -> None:
    found = described(USERS)
    parameters = found["paths"]["/users"][method]["parameters"]
    named = [found["parameters"][one["$ref"].rpartition("/")[2]] for one in parameters if "$ref" in one]
    assert {one["name"] for one in named if one["in"] == "header"} == headers
