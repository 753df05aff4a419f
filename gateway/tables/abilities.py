"""What can be done with an object: as the answer to OPTIONS, and as the description of all there is."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gateway.tables.catalog import Table
from gateway.tables.media import OPENAPI
from gateway.tables.response import Response


def options(table: Table) -> Response:
    """Return what the table permits, and the gateway."""
    return allowed("OPTIONS", "GET", "HEAD", *permitted(table))


def permitted(table: Table) -> Iterable[str]:
    """The writes a table permits. PUT needs a primary key. Rows of a foreign table are out of reach of the fences."""
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
    """The answer to OPTIONS."""
    return Response(200, [(b"allow", ",".join(methods).encode()), (b"content-length", b"0")])


def root(document: Mapping[str, Any], *, with_body: bool) -> Response:
    """The description of all that is served."""
    body = orjson.dumps(document)
    headers = [OPENAPI.content_type, (b"content-length", str(len(body)).encode())]
    return Response(200, headers, body if with_body else b"")
