"""The OpenAPI document, from the table of routes."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from http.client import responses
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.json_schema import models_json_schema

from gateway import errors
from gateway.api.description import EXAMPLES, INTRODUCTION, TAGS
from gateway.api.routes import Answers, Home, Route
from gateway.errors import GatewayError

_REFERENCE = "#/components/schemas/{model}"


class Problem(BaseModel):
    """RFC 9457. A refusal by a fence has the optional members. Other errors may have members of their own."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    advice: str
    resource: str | None = None
    token: str | None = None
    fence: str | None = None
    raised_by: str | None = None
    raised_at: datetime | None = None
    rejection: UUID | None = Field(None, description="The id of the refusal on record.")


_EVERYWHERE: Answers = dict.fromkeys((400, 401, 404, 503), "")
_OF_BODIES: Answers = dict.fromkeys((408, 413), "")
LACKS = "The caller lacks the grant."
_HEADERS = {
    401: {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}},
    409: {"Retry-After": {"description": "Only if a retry can help.", "schema": {"type": "integer", "minimum": 1}}},
}
_HEADERS[503] = _HEADERS[409]
_EXAMPLES: Mapping[int | str, type[GatewayError]] = {
    one.status: one
    for one in (
        *(errors.RequestMalformed, errors.Unauthenticated, errors.Denied, errors.NotFound, errors.BodyTooSlow),
        *(errors.ExpectedMismatch, errors.LeaseLost, errors.BodyTooLarge, errors.CrossesDatabases),
        *(errors.TokenRequired, errors.Unavailable),
    )
}
"""An error of each status, to be shown. The example of ``Problem`` is that of a stale token."""
_DATABASE = {
    "name": "database",
    "in": "query",
    "required": False,
    "description": "The database, if the gateway serves several. It is needed then.",
    "schema": {"type": "string", "title": "Database"},
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document of all routes with a summary."""
    described = [one for one in routes if one.summary]
    schemas = _schemas(described)
    paths: dict[str, dict[str, Any]] = {}
    for one in described:
        # OpenAPI has no parameter of a path whose slashes stay as they are, and generated clients encode them.
        paths.setdefault(one.short, {})[one.method.lower()] = _operation(one, schemas)
    for name, schema in schemas.items():
        if name in EXAMPLES:
            schema["examples"] = [EXAMPLES[name]]
    for one in described:
        body = one.body or one.reads
        for model in (*_parameters_of(one).values(), *([] if body is None else [body])):
            if model is not body or _has_defaults(schemas.get(model.__name__, {})):
                schemas.pop(model.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fencing gateway", "description": INTRODUCTION, "version": "1"},
        "servers": [{"url": "/", "description": "The gateway that this document is from."}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "examples": {str(status): {"value": _problem(error)} for status, error in _EXAMPLES.items()},
            "securitySchemes": {"api_key": {"type": "http", "scheme": "bearer"}},
        },
        "tags": TAGS,
        "security": [{"api_key": []}, {}],  # {}: public routes, and gateways that let anonymous callers in
    }


def _parameters_of(route: Route) -> Mapping[str, type[BaseModel]]:
    return {place: route.takes[place] for place in ("query", "headers") if place in route.takes}


def _answers_of(route: Route) -> Answers:
    """Return the answers of a route by their status: a problem with its description, or a model."""
    returned = route.takes.get("return")
    model = route.answer or (returned if isinstance(returned, type) and issubclass(returned, BaseModel) else None)
    success: Answers = {} if model is None else {route.status: (model, "Successful Response")}
    granted: Answers = {403: LACKS} if route.rule.actions else {}
    read: Answers = _OF_BODIES if route.body or route.reads else {}
    return {**success, **_EVERYWHERE, **granted, **read, **route.answers}


def _schemas(routes: Iterable[Route]) -> dict[str, dict[str, Any]]:
    """Return the schemas of all models by their names. No model is both sent and received."""
    models: list[tuple[type[BaseModel], Any]] = [(Problem, "serialization")]
    for one in routes:
        models += [(model, "validation") for model in _parameters_of(one).values()]
        if body := one.body or one.reads:
            models.append((body, "validation"))
        models += [(answer[0], "serialization") for answer in _answers_of(one).values() if isinstance(answer, tuple)]
    _, definitions = models_json_schema(list(dict.fromkeys(models)), ref_template=_REFERENCE)
    schemas: dict[str, dict[str, Any]] = definitions["$defs"]
    for schema in schemas.values():
        for one in schema.get("properties", {}).values():
            if one.get("default", "") is None:
                del one["default"]  # a field without a value is left out
    return schemas


def _operation(route: Route, schemas: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {"tags": [route.subject.title], "summary": route.summary}
    if route.description:
        operation["description"] = route.description.strip()
    # Generated clients have functions of these names. Exports of one list differ by their format.
    operation["operationId"] = "_".join([route.endpoint.__name__, *route.path.split(".")[1:]])
    parameters = [
        _parameter(name, "query" if name == "resource" else "path", _of_path(kind), required=True)
        for name, kind in route.takes.items()
        if f"{{{name}" in route.path
    ]
    for place, model in _parameters_of(route).items():
        parameters += [
            _parameter(name, place.removesuffix("s"), schema)
            for name, schema in schemas[model.__name__]["properties"].items()
        ]
    if route.home is Home.QUERY:
        parameters.append(_DATABASE)
    if parameters:
        operation["parameters"] = parameters
    if body := route.body or route.reads:
        schema = schemas[body.__name__]
        told = {"application/json": {"schema": schema if _has_defaults(schema) else _of(body)}}
        operation["requestBody"] = {"required": "required" in schema, "content": told}
    described = {str(status): _answer(status, answer) for status, answer in _answers_of(route).items()}
    if str(route.status) not in described:
        content = {} if route.content is None else {"content": {route.content: {"schema": {"type": "string"}}}}
        described = {str(route.status): {"description": "Successful Response", **content}, **described}
    operation["responses"] = described
    return operation


def _has_defaults(body: Mapping[str, Any]) -> bool:
    """Return whether a body stands inside its operation: generators take a default in a named schema for required."""
    return any("default" in one for one in body.get("properties", {}).values())


def _of(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def _of_path(kind: Any) -> dict[str, Any]:
    return dict(TypeAdapter(kind).json_schema())


def _parameter(name: str, place: str, schema: Mapping[str, Any], *, required: bool = False) -> dict[str, Any]:
    told = {"description": schema["description"]} if "description" in schema else {}
    shown = {"title": name.replace("_", " ").title(), **schema}
    # A parameter is there or not, and never null.
    match [one for one in shown.get("anyOf", ()) if one != {"type": "null"}]:
        case [only]:
            del shown["anyOf"]
            shown = {**only, **shown}
    return {"name": name, "in": place, "required": required, "schema": shown, **told}


def _answer(status: int | str, answer: str | tuple[type[BaseModel], str]) -> dict[str, Any]:
    if isinstance(answer, tuple):
        model, told = answer
        return {"description": told, "content": {"application/json": {"schema": _of(model)}}}
    told = answer or responses[int(status)]
    headers = {"headers": _HEADERS[status]} if status in _HEADERS else {}
    shown = {"examples": {"problem": {"$ref": f"#/components/examples/{status}"}}} if status in _EXAMPLES else {}
    content = {"application/problem+json": {"schema": _of(Problem), **shown}}
    return {"description": told, **headers, "content": content}


def _problem(error: type[GatewayError]) -> dict[str, Any]:
    return {
        "type": f"urn:fencing-gateway:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": f"{error.title}.",
        "code": error.code,
        "advice": error.default_advice,
    }
