"""A description of the tables and functions of a schema as OpenAPI 2.0 (Swagger), from the catalog.

Beside what PostgREST's has, every write has the headers of the fence, and the answers a writer gets from it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

import orjson

from gateway.tables.catalog import Column, Table
from gateway.tables.dialect.request import OPENAPI
from gateway.tables.dialect.response import Response
from gateway.tables.functions import Function, Parameter


def options(table: Table) -> Response:
    return allowed("OPTIONS", "GET", "HEAD", *permitted(table))


def permitted(table: Table) -> Iterable[str]:
    """Return the writes a table permits. PUT needs a primary key. A foreign table permits none: no fence reaches its
    rows.
    """
    if table.reaches_foreign:
        return
    if table.insertable:
        yield "POST"
    if table.insertable and table.changeable and table.primary_key:
        yield "PUT"
    if table.changeable:
        yield "PATCH"
    if table.deletable:
        yield "DELETE"


def allowed(*methods: str) -> Response:
    return Response(200, [(b"allow", ",".join(methods).encode()), (b"content-length", b"0")])


def root(body: bytes, *, with_body: bool) -> Response:
    headers = [OPENAPI.content_type, (b"content-length", str(len(body)).encode())]
    return Response(200, headers, body if with_body else b"")


Document: TypeAlias = dict[str, Any]

_FORMATS = {
    "smallint": "integer", "integer": "integer", "bigint": "integer", "boolean": "boolean",
    "numeric": "number", "real": "number", "double precision": "number",
}  # fmt: skip
_PREFERENCES = {
    "GET": ("count",),
    "POST": ("return", "resolution", "missing"),
    "PUT": ("return",),
    "PATCH": ("return", "missing", "max-affected"),
    "DELETE": ("return", "max-affected"),
}
_SUCCESS = {"GET": ("200", "206"), "POST": ("201",), "PUT": ("201", "204"), "PATCH": ("204",), "DELETE": ("204",)}
_MEANING = {"200": "OK", "201": "Created", "204": "No Content", "206": "Partial Content"}
_FENCED = {
    "403": "The policy of the resource does not take the token (token-implausible), or the database refuses.",
    "412": "The fence refuses the token: a newer holder has taken over (token-stale). Retrying cannot succeed.",
    "422": "The write touches something its token does not cover (resource-mismatch). Or it reaches such rows by "
    "foreign keys, triggers or rules (side-effect-refused). Or its resource is unknown (resource-underivable).",
    "428": "A write needs a fencing token (token-required).",
}
# Each parameter by its name in references: its own name, where it stands, and its meaning.
_PARAMETERS: Document = {
    name: {"name": shown, "in": place, "type": "string", "description": meaning}
    for name, shown, place, meaning in (
        ("select", "select", "query", "Columns of the answer"),
        ("order", "order", "query", "Order of the rows"),
        ("limit", "limit", "query", "The most rows of the answer"),
        ("offset", "offset", "query", "Rows to leave out first"),
        ("on_conflict", "on_conflict", "query", "Columns in conflict"),
        ("range", "Range", "header", "Rows of the answer, such as 0-9"),
        ("fencing_token", "Fencing-Token", "header",
         "The token that came with the lock: digits, or epoch.value; or several as resource=token, …"),
        ("fencing_sequencer", "Fencing-Sequencer", "header",
         "What proves the token, as resource:mode:token:signature, where its resource wants a proof"),
        ("fencing_resource", "Fencing-Resource", "header",
         "The resource the lock is for, where the request itself does not tell"),
        ("fencing_holder", "Fencing-Holder", "header", "Who holds the lock: two holders with one token are told apart"),
        ("idempotency_key", "Idempotency-Key", "header",
         "Sent again with the same key, a write takes effect once, and its first answer comes again"),
        ("if_match", "If-Match", "header",
         "Write only if this still is the ETag of the row, which the filters name by its whole key"),
        ("if_none_match", "If-None-Match", "header",
         "Of a read: nothing new if this is the ETag; of a PUT, as *: only create"),
    )
}  # fmt: skip
_PARAMETERS["fencing_token"]["required"] = True
_OF_WRITES = ("fencing_token", "fencing_sequencer", "fencing_resource", "fencing_holder", "idempotency_key")
_CONDITIONS = {"PATCH": ("if_match",), "PUT": ("if_match", "if_none_match"), "DELETE": ("if_match",)}


def document(tables: Sequence[Table], functions: Sequence[Function], prefix: str) -> Document:
    """Return the description of these tables and functions, which are served below ``prefix``."""
    return {
        "swagger": "2.0",
        "info": {
            "title": "Tables behind a fencing gateway",
            "description": "PostgREST's dialect. Every write carries the fencing token of its writer's lock.",
            "version": "1",
        },
        "basePath": prefix.rstrip("/") or "/",
        "schemes": ["http", "https"],
        "consumes": ["application/json", "text/csv", "application/x-www-form-urlencoded"],
        "produces": [
            "application/json", "application/vnd.pgrst.object+json", "application/vnd.pgrst.object+json;nulls=stripped",
            "application/vnd.pgrst.array+json;nulls=stripped", "text/csv",
        ],
        "securityDefinitions": {"key": {"type": "apiKey", "name": "Authorization", "in": "header"}},
        "security": [{"key": []}],
        "paths": {
            "/": {"get": {"produces": ["application/openapi+json"], "responses": _ok("200")}},
            **{f"/{quote(table.name, safe='')}": _path(table) for table in tables},
            **_calls(functions),
        },
        "definitions": {table.name: _definition(table) for table in tables},
        "parameters": {
            **_PARAMETERS,
            **{f"prefer_{method}": _prefer(method) for method in _PREFERENCES},
            **{f"body.{table.name}": _body(table) for table in tables if table.insertable or table.changeable},
            **{
                f"filter.{table.name}.{column.name}": _filter(column)
                for table in tables
                for column in table.columns.values()
            },
        },
    }  # fmt: skip


def as_json(tables: Sequence[Table], functions: Sequence[Function], prefix: str) -> bytes:
    return orjson.dumps(document(tables, functions, prefix))


def _path(table: Table) -> Document:
    methods = ("GET", *permitted(table))
    return {method.lower(): _operation(table, method) for method in methods}


def _operation(table: Table, method: str) -> Document:
    filters = [_reference(f"filter.{table.name}.{name}") for name in table.columns]
    parameters = [] if method == "POST" else filters
    if method == "GET":
        parameters += map(_reference, ("select", "order", "limit", "offset", "range", "if_none_match"))
    else:
        parameters += map(_reference, (*_OF_WRITES, "select"))
    if method in ("POST", "PUT", "PATCH"):
        parameters.append(_reference(f"body.{table.name}"))
    if method == "POST":
        parameters.append(_reference("on_conflict"))
    else:
        parameters += map(_reference, _CONDITIONS.get(method, ()))
    responses = _ok(*_SUCCESS[method])
    if method == "GET":
        responses["200"]["schema"] = {"type": "array", "items": {"$ref": f"#/definitions/{_pointer(table.name)}"}}
    else:
        responses |= _refusals()
    operation: Document = {
        "tags": [table.name],
        "parameters": [*parameters, _reference(f"prefer_{method}")],
        "responses": responses,
    }
    if table.description:
        summary, _, description = table.description.partition("\n")
        operation |= {"summary": summary, "description": description.strip()}
    return operation


def _definition(table: Table) -> Document:
    required = [one.name for one in table.columns.values() if not one.nullable and one.default is None]
    return _described(
        {
            "type": "object",
            "properties": {one.name: _property(table, one) for one in table.columns.values()},
            # An empty list is none that the specification knows.
            **({"required": required} if required else {}),
        },
        table.description,
    )


def _property(table: Table, column: Column) -> Document:
    notes = [column.description] if column.description else []
    if column.name in table.primary_key:
        notes.append("Note:\nThis is a Primary Key.<pk/>")
    for key in table.foreign_keys:
        if len(key.columns) == 1 and key.columns[0] == column.name:
            target, name = key.target_table, key.target_columns[0]
            notes.append(f"Note:\nThis is a Foreign Key to `{target}.{name}`.<fk table='{target}' column='{name}'/>")
    found = _typed(column.exact_type, column.base_type)
    if column.default is not None:
        found["default"] = column.default
    return _described(found, "\n\n".join(notes) or None)


def _typed(shown: str, base: str) -> Document:
    """Return JSON's type for a type of PostgreSQL. A type that can be anything has none."""
    if base.endswith("[]"):
        return {"type": "array", "format": shown, "items": _typed(base[:-2], base[:-2])}
    if base in ("json", "jsonb"):
        return {"format": shown}
    return {"type": _FORMATS.get(base, "string"), "format": shown}


def _filter(column: Column) -> Document:
    return _described(_parameter(column.name, "query", type="string", format=column.type), column.description)


def _body(table: Table) -> Document:
    return _parameter(table.name, "body", required=False, schema={"$ref": f"#/definitions/{_pointer(table.name)}"})


def _prefer(method: str) -> Document:
    known = ", ".join((*_PREFERENCES[method], "handling", "timezone", "count"))
    return _parameter("Prefer", "header", type="string", description=f"Any of: {known}")


def _calls(functions: Iterable[Function]) -> Document:
    """One path for each name; of several forms the first is described."""
    paths: Document = {}
    for function in functions:
        path = f"/rpc/{quote(function.name, safe='')}"
        if path not in paths:
            methods = ("post",) if function.writes else ("get", "post")
            paths[path] = {method: _call(function, method) for method in methods}
    return paths


def _call(function: Function, method: str) -> Document:
    named = [one for one in function.parameters if one.name]
    if method == "get":
        parameters = [_argument(one) for one in named]
    else:
        properties = {one.name: _typed(one.type, one.type) for one in named}
        required = [one.name for one in named if one.required]
        schema = {"type": "object", "properties": properties, **({"required": required} if required else {})}
        parameters = [_parameter("args", "body", required=bool(required), schema=schema)]
    responses = _ok("204" if function.returns_nothing else "200")
    if function.writes:
        resource = {**_PARAMETERS["fencing_resource"], "required": True}
        parameters += [resource, *(_reference(name) for name in _OF_WRITES if name != "fencing_resource")]
        responses |= _refusals()
    operation: Document = {"tags": [f"(rpc) {function.name}"], "parameters": parameters, "responses": responses}
    return _described(operation, function.description)


def _argument(parameter: Parameter) -> Document:
    name, required = parameter.name, parameter.required
    kind = _typed(parameter.type, parameter.type).get("type", "string")
    if kind != "array":
        return _parameter(name, "query", required=required, type=kind, format=parameter.type)
    several = {"items": {"type": "string"}, "collectionFormat": "multi" if parameter.variadic else "csv"}
    return _parameter(name, "query", required=required, type=kind, **several)


def _parameter(name: str, place: str, **more: Any) -> Document:
    return {"name": name, "in": place, **more}


def _ok(*statuses: str) -> Document:
    return {status: {"description": _MEANING[status]} for status in statuses}


def _refusals() -> Document:
    return {status: {"description": text} for status, text in _FENCED.items()}


def _reference(name: str) -> Document:
    return {"$ref": f"#/parameters/{_pointer(name)}"}


def _pointer(name: str) -> str:
    """Return a name as a part of a JSON pointer in a URL's fragment."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


def _described(found: Document, description: str | None) -> Document:
    return found if description is None else {**found, "description": description}
