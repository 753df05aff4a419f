"""The form that acknowledges an incident: from our own pages only, by callers with the grant, within bounds."""

from typing import Any

import asyncpg
import httpx
import pytest

from gateway.fencing.incident import LONGEST_NOTE
from tests import running
from tests.tiers import first
from tests.web.page_gateway import log_in, origin, put_on_record, serving

BREAK = {"callers": ["auditor"], "actions": ["break"], "resources": ["public.orders/**"]}
GRANTED = {"grants": [*running.GRANTS, BREAK]}


async def on_record(dsn: str, kind: str) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        sql = "SELECT id::text, caller, reason, details FROM fencing.record WHERE kind = $1"
        rows = await connection.fetch(sql, kind)
        return [dict(row) for row in rows]
    finally:
        await connection.close()


async def incident(dsn: str) -> str:
    """The path of an incident's page."""
    await put_on_record(dsn)
    return f"/ui/incidents/{(await on_record(dsn, 'rejection'))[0]['id']}"


async def send(client: httpx.AsyncClient, path: str, note: str = "on it", **headers: str) -> httpx.Response:
    return await client.post(f"{path}/acknowledge", data={"note": note}, headers=headers)


async def test_a_note_is_put_on_record_and_leads_back(dsn: str) -> None:
    path = await incident(dsn)
    async with serving(dsn, **GRANTED) as client:
        await log_in(client)
        assert "<textarea" in (await client.get(path)).text
        answer = await send(client, path, **origin(client))
        assert (answer.status_code, answer.headers["location"]) == (303, path)
        assert "on it" in (await client.get(path)).text
    (entry,) = await on_record(dsn, "incident-acknowledged")
    assert entry["caller"] == "auditor"


@pytest.mark.parametrize("sent", first([{}, {"Origin": "https://evil.example"}, {"Origin": "null"}]))
async def test_forms_of_other_sites_are_refused(dsn: str, sent: dict[str, str]) -> None:
    path = await incident(dsn)
    async with serving(dsn, **GRANTED) as client:
        await log_in(client)
        assert (await send(client, path, **sent)).status_code == 403
        assert (await client.get(f"{path}/acknowledge")).status_code == 405
    assert await on_record(dsn, "incident-acknowledged") == []


async def test_readers_without_the_grant_have_no_form_and_are_denied_on_record(dsn: str) -> None:
    path = await incident(dsn)
    async with serving(dsn) as client:
        assert (await send(client, path, **origin(client))).status_code == 303
        await log_in(client)
        page = await client.get(path)
        assert "<textarea" not in page.text
        assert "needs the grant <code>break</code> on this resource" in page.text
        assert (await send(client, path, **origin(client))).status_code == 403
    assert await on_record(dsn, "incident-acknowledged") == []
    assert [one["caller"] for one in await on_record(dsn, "rejection") if one["reason"] == "denied"] == ["auditor"]


@pytest.mark.parametrize("note", first(["x" * (LONGEST_NOTE + 1), "a\0b"]))
async def test_a_note_that_cannot_be_kept_comes_back_with_the_problem(dsn: str, note: str) -> None:
    path = await incident(dsn)
    async with serving(dsn, **GRANTED) as client:
        await log_in(client)
        answer = await send(client, path, note, **origin(client))
        assert answer.status_code == 400
        assert 'role="alert"' in answer.text
        assert (await send(client, path, "x" * 20_000, **origin(client))).status_code == 400
        assert (await client.get("/ui/incidents/nonsense")).status_code == 404
    assert await on_record(dsn, "incident-acknowledged") == []
