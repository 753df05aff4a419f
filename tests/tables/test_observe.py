"""Observe mode: what would be refused passes and is put on record with the write; some things are never allowed."""

import pytest

from gateway.db.database import Database
from gateway.observe.events import Event, WriteRefused
from tests.tables.asking import Send, answered, row, rows

ON_RECORD = "SELECT resource, reason, enforced, fence_value FROM fencing.rejection ORDER BY at"


async def test_a_stale_write_passes_and_is_noted(write: Send, tables: Database, events: list[Event]) -> None:
    answered(accepted := await write("PATCH", "/watched?id=eq.1", {"v": 5}, token=5), 204)
    answered(stale := await write("PATCH", "/watched?id=eq.1", {"v": 4}, token=4), 204)
    assert "fencing-would-refuse" not in accepted.headers
    assert stale.headers["fencing-would-refuse"] == "token-stale; fence=5"
    assert await rows(tables, ON_RECORD) == [("public.watched/1", "token-stale", False, 5)]
    assert (await row(tables, "SELECT v FROM watched WHERE id = 1"))[0] == 4
    assert [event.rejection.enforced for event in events if isinstance(event, WriteRefused)] == [False]


@pytest.mark.parametrize(
    ("target", "token", "resource", "noted"),
    [
        ("/watched?id=eq.1", None, None, ("public.watched/1", "token-required", False, None)),
        ("/watched?v=eq.1", None, None, ("public.watched", "token-required", False, None)),
        ("/watched?v=eq.1", 5, None, ("public.watched", "resource-underivable", False, None)),
        ("/watched?id=eq.1", 5, "job/1", ("public.watched/1", "resource-mismatch", False, None)),
    ],
)
async def test_other_objections_are_noted(
    write: Send, tables: Database, target: str, token: int | None, resource: str | None, noted: tuple[object, ...]
) -> None:
    response = await write("PATCH", target, {"v": 7}, token=token, resource=resource)
    assert (response.status_code, response.headers["content-range"]) == (204, "0-0/*")
    assert response.headers["fencing-would-refuse"] == noted[1]
    assert await rows(tables, ON_RECORD) == [noted]


async def test_a_moved_row_is_noted(write: Send, tables: Database) -> None:
    answered(await write("PATCH", "/watched?id=eq.2", {"id": 8}, token=5), 204)  # both names are claimed
    answered(await write("PATCH", "/watched?id=eq.1", {"id": 9}, token=5, resource="public.watched/1"), 204)
    assert await rows(tables, ON_RECORD) == [("public.watched/9", "resource-mismatch", False, None)]


async def test_a_table_whose_rows_have_no_names(write: Send, tables: Database) -> None:
    for resource, status in ((None, 201), ("job/1", 201)):
        answered(await write("POST", "/unnamed", {"v": 1}, token=5, resource=resource), status)
    assert await rows(tables, ON_RECORD) == [("public.unnamed", "resource-underivable", False, None)] * 2
    assert await rows(tables, "SELECT count(*) FROM fencing.fence") == [(0,)]


async def test_what_is_refused_in_either_mode(write: Send, tables: Database) -> None:
    answered(await write("DELETE", "/watched"), 400, "21000")
    answered(await write("DELETE", "/watched?id=eq.1", token="05"), 400, "token-malformed")
    answered(await write("POST", "/watched", {"id": 1}, token=5), 409, "23505")
    assert await rows(tables, ON_RECORD) == []
    assert (await row(tables, "SELECT count(*) FROM watched"))[0] == 2
