"""How the tests ask a table plane, and tables as the catalog would show them."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import httpx

from gateway.auth.principal import Principal
from gateway.db.database import Database, Record
from gateway.observe.events import Observe, ignore
from gateway.tables.catalog import Column, Table
from gateway.tables.pipeline import Exposure, TablePlane
from tests.callers import known

TESTER = known("tester")

Send: TypeAlias = Callable[..., Coroutine[Any, Any, httpx.Response]]


def over_asgi(plane: TablePlane) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(plane), base_url="http://gateway/v1/tables", timeout=30)


def client_of(
    database: Database, exposure: Exposure, *, caller: Principal = TESTER, observe: Observe = ignore, **more: Any
) -> httpx.AsyncClient:
    """A client of a plane of its own."""
    return over_asgi(TablePlane(database, exposure, authenticate=lambda _: caller, observe=observe, **more))


async def send(
    client: httpx.AsyncClient,
    method: str,
    target: str,
    rows: Any = None,
    *,
    token: object = None,
    resource: str | None = None,
    holder: str | None = None,
    prefer: str | None = None,
    accept: str | None = None,
) -> httpx.Response:
    """Send one write. ``rows`` is its JSON body, ``token`` its fencing token."""
    named = {
        "fencing-token": None if token is None else str(token),
        "fencing-resource": resource,
        "fencing-holder": holder,
        "prefer": prefer,
        "accept": accept,
    }
    headers = {name: value for name, value in named.items() if value is not None}
    return await client.request(method, target, headers=headers, json=rows)


def answered(response: httpx.Response, status: int, code: str | None = None) -> None:
    """The status and, for an error, the code of an answer; errors have PostgREST's four keys."""
    assert response.status_code == status, response.text
    if code is not None:
        document = response.json()
        assert document["code"] == code, response.text
        assert list(document) == ["code", "message", "details", "hint"]
        assert all(value is None or isinstance(value, str) for value in document.values())


async def change(database: Database, sql: str) -> None:
    """Carry out some statements in one transaction."""
    await database.run(lambda transaction: transaction.execute(sql))


async def rows(database: Database, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await database.fetch(sql)]


async def row(database: Database, sql: str) -> Record:
    found = await database.fetchrow(sql)
    assert found is not None
    return found


def column(name: str, type_: str = "bigint", **more: object) -> Column:
    return Column(name, type_, type_, type_, **more)  # type: ignore[arg-type]  # the flags of a column are all booleans or texts


def table(*columns: Column, name: str = "accounts", key: tuple[str, ...] = ("id",), kind: str = "r") -> Table:
    return Table("public", name, kind, {one.name: one for one in columns}, key)


ACCOUNTS = table(
    column("id"),
    column("owner", "text"),
    column("balance", default="0"),
    column("note", "text"),
    column("extra", "jsonb", is_json=True),
)
