"""Several writes to tables in one transaction. This module describes the request; the table plane executes it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gateway.api.authorisation import About, Rule
from gateway.api.description import Subject
from gateway.api.requests import HOLDER, OF_NAMES, pattern_of
from gateway.api.routes import Call, Routes
from gateway.auth.grants import Action
from gateway.fencing import sequencer, token
from gateway.fencing.ownership import Ownership
from gateway.tables.dialect import etags
from gateway.tables.dialect.body import in_pieces
from gateway.tables.dialect.request import KEY_GRAMMAR, MOST_OF_KEY
from gateway.tables.dialect.transaction_document import LONGEST, MOST_WRITES

routes = Routes(Subject.WRITES)


def _list_of(item: str) -> str:
    return rf"{item}([ \t]*,[ \t]*{item})*"


# The table plane reads all of these, and refuses more than a schema can say.
_PATTERNS: Mapping[str, Mapping[str, Any]] = {
    "table": {"minLength": 1, **pattern_of(r"[^/\x00]+")},
    "token": pattern_of(f"({token.GRAMMAR}|{_list_of(f'[^=, ]+={token.FORM}')})"),
    "sequencer": pattern_of(_list_of(sequencer.FORM)),
    "resource": OF_NAMES,
    "holder": HOLDER,
    "if_match": pattern_of(etags.GRAMMAR),
    "if_none_match": pattern_of(etags.GRAMMAR),
}


_LONGEST_HEADER = 16 * 1024
"""Characters. All headers of a request together have room for four times as many."""


def _text(name: str, longest: int = LONGEST["query"]) -> Any:
    """Return a text of a write, as its schema has it."""
    return Field(json_schema_extra={"maxLength": min(longest, LONGEST[name]), **_PATTERNS.get(name, {})})


class TransactionWrite(BaseModel):
    """One write, as the parts of a request to ``/v1/tables/{table}``."""

    model_config = ConfigDict(extra="forbid")

    method: Literal["POST", "PATCH", "PUT", "DELETE"]
    table: Annotated[str, _text("table")]
    table_schema: Annotated[str, _text("schema")] | None = Field(
        None, alias="schema", description="Instead of the header Content-Profile."
    )
    query: Annotated[str, _text("query")] | None = Field(None, examples=["id=eq.1"])
    body: Any = Field(None, examples=[{"balance": 120}])
    token: Annotated[str, _text("token")] | None = Field(
        None, description="Instead of the header Fencing-Token.", examples=["34"]
    )
    sequencer: Annotated[str, _text("sequencer")] | None = Field(
        None, description="Instead of the header Fencing-Sequencer."
    )
    resource: Annotated[str, _text("resource")] | None = Field(
        None, description="Instead of the header Fencing-Resource."
    )
    holder: Annotated[str, _text("holder")] | None = Field(None, description="Instead of the header Fencing-Holder.")
    prefer: Annotated[str, _text("prefer")] | None = Field(None, examples=["return=representation"])
    if_match: Annotated[str, _text("if_match")] | None = Field(None, description="Instead of the header If-Match.")
    if_none_match: Annotated[str, _text("if_none_match")] | None = Field(
        None, description="Instead of the header If-None-Match."
    )


class TransactionRequest(BaseModel):
    """Writes, executed in this order."""

    model_config = ConfigDict(extra="forbid")

    writes: list[TransactionWrite] = Field(min_length=1, max_length=MOST_WRITES)


class TransactionResult(BaseModel):
    """The answer that the write would have got on its own."""

    status: int
    headers: dict[str, str]
    body: Any


class TransactionAnswer(BaseModel):
    results: list[TransactionResult]


_DESCRIPTION = """
The gateway claims the resources of all writes first, in one order, then executes the writes one by one and commits. If
one of them is refused, nothing is written, and `write` in the answer is its number, counted from 0. A write without a
token or holder of its own uses those of the request's headers. With an `Idempotency-Key` the gateway keeps the answer,
and a repeated request gets it instead of being executed again.
"""


class TransactionHeaders(BaseModel):
    """The headers for all writes. The table plane reads them from the request."""

    token: Annotated[str, _text("token", _LONGEST_HEADER)] | None = Field(None, alias="Fencing-Token")
    holder: Annotated[str, _text("holder", _LONGEST_HEADER)] | None = Field(None, alias="Fencing-Holder")
    sequencer: Annotated[str, _text("sequencer", _LONGEST_HEADER)] | None = Field(None, alias="Fencing-Sequencer")
    key: Annotated[str, Field(json_schema_extra={"maxLength": MOST_OF_KEY, **pattern_of(KEY_GRAMMAR)})] | None = Field(
        None, alias="Idempotency-Key"
    )


def _owners(ownership: Ownership, content: bytes) -> list[str]:
    """Return the owners of the schemas that the writes name. A list that is unreadable has none."""
    try:
        document = in_pieces(content, orjson.loads)
    except (orjson.JSONDecodeError, RecursionError):
        return []
    writes = document.get("writes") if isinstance(document, dict) else None
    listed = writes if isinstance(writes, list) else []
    schemas = [one.get("schema") if isinstance(one, dict) else None for one in listed]
    return [ownership.of_schema(one if isinstance(one, str) else None) for one in schemas]


@routes.add(
    "POST /v1/transaction",
    Rule(About.BODY, (Action.WRITE,)),
    "Write to several tables, all or nothing",
    description=_DESCRIPTION,
    body=TransactionRequest,
    limit=None,
    owners=_owners,
    answer=TransactionAnswer,
    answers={
        **dict.fromkeys((403, 404, 409, 412, 413, 422, 428), ""),
        "default": "The answer that the failing write would have got on its own.",
    },
)
async def transaction(call: Call, headers: TransactionHeaders) -> Response:  # noqa: ARG001 - the description lists them
    answer = await call.services.transact(call.request.scope, call.request.receive, call.principal)
    return Response(
        answer.body, answer.status, {name.decode(): value.decode("latin-1") for name, value in answer.headers}
    )
