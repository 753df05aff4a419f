"""The pack for a stock PostgREST. The tests send settings, role, pre-request and query in one transaction.

No PostgREST runs here. The tests take its transactions from its documentation. First come the settings of the request
by ``set_config(…, true)``, among them the role. Then come the pre-request function and the query of the request.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

import asyncpg
import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.guard.script import FUNCTION, pack
from tests.guard.stage import Session, Stage, hold, logging_in_as, refused, session
from tests.processes import called

PATCH = "WITH src AS (UPDATE shipments SET state = 'sent' WHERE order_id = 5 RETURNING 1) SELECT count(*) FROM src"


@dataclass(frozen=True)
class PostgREST:
    """One session of its authenticator, which takes on ``role`` for each request."""

    session: Session
    role: str

    async def ask(self, method: str, headers: dict[str, str], query: str = PATCH) -> object:
        async with self.session.transaction():
            await self.session.fetchrow(
                "SELECT set_config('search_path', 'public', true), set_config('role', $1, true), "
                "set_config('request.method', $2, true), set_config('request.path', '/shipments', true), "
                "set_config('request.headers', $3, true)",
                self.role,
                method,
                json.dumps({"host": "localhost", **headers}),
            )
            await self.session.fetchrow(f"SELECT {FUNCTION}()")
            return await self.session.fetchval(query)


@pytest.fixture
async def postgrest(guarded: Stage, postgres_server: EmbeddedPostgres) -> AsyncIterator[PostgREST]:
    authenticator, web = f"authenticator_{uuid4().hex[:8]}", f"web_{uuid4().hex[:8]}"
    await guarded.execute(f"""
        CREATE ROLE {authenticator} LOGIN NOINHERIT;
        CREATE ROLE {web};
        GRANT {web} TO {authenticator};
        GRANT ALL ON ALL TABLES IN SCHEMA public TO {web};
    """)
    await guarded.execute(pack([web]))
    await guarded.execute(pack([web]))
    async with session(logging_in_as(authenticator, guarded.owner)) as opened:
        yield PostgREST(opened, web)
    await guarded.execute(f"DROP OWNED BY {web}, {authenticator}; DROP ROLE {web}, {authenticator}")


def token(value: object, resource: str | None = "order/5", holder: str | None = None) -> dict[str, str]:
    named = {"fencing-token": str(value), "fencing-resource": resource, "fencing-holder": holder}
    return {name: text for name, text in named.items() if text is not None}


async def test_a_request_with_its_token_writes(guarded: Stage, postgrest: PostgREST) -> None:
    for headers in (token(34, holder="ann"), {"x-fencing-token": "34", "fencing-resource": "order/5"}):
        assert await postgrest.ask("PATCH", headers) == 2
    (fence,) = await guarded.rows("SELECT value, holder, caller FROM fencing.fence")
    assert fence == (34, "ann", f"role:{postgrest.role}")


async def test_refusals_have_the_statuses_of_postgrest(
    guarded: Stage, postgrest: PostgREST, app: Session, subtests: pytest.Subtests
) -> None:
    await hold(app, "order/5", 34, "ann")
    cases: list[tuple[dict[str, str], str, str]] = [
        ({}, "PT428", "holds no fencing token"),
        ({"fencing-resource": "order/5"}, "PT428", "holds no fencing token"),
        (token(33), "PT412", "has been overtaken by 34, raised by ann"),
        (token(34, holder="bob"), "PT412", "Another holder, ann"),
        (token(34, "order/6"), "PT422", "touches order/5"),
        (token("034"), "PT400", "is not a fencing token"),
        (token(34, "order 5"), "PT400", "not in canonical form"),
        (token(34, "order=5"), "PT400", "is not a fencing token"),
        (token(34, holder=" "), "PT400", "name of the holder"),
        (token(34, None), "PT422", "is not named"),
        ({**token(34), "x-fencing-token": "35"}, "PT400", "carries fencing-token twice"),
        ({**token(34), "fencing_token": "35"}, "PT400", "carries fencing-token twice"),
        ({**token(34), "fencing_resource": "order/6"}, "PT400", "carries fencing-resource twice"),
        (token("order/5=34"), "PT400", "name their resources themselves"),
        (token("order/5=34, order/5=35", None), "PT400", "two fencing tokens for order/5"),
        (token("order/5=34, 35", None), "PT400", "mixes pairs"),
        (token("order/5=34,", None), "PT400", "mixes pairs"),
        (token("order/5=33, order/6=1", None), "PT412", "has been overtaken"),
    ]
    for headers, sqlstate, words in cases:
        with subtests.test(**headers):
            async with refused(sqlstate, words):
                await postgrest.ask("PATCH", headers)
            assert await guarded.rows("SELECT FROM shipments WHERE state <> 'new'") == []
    assert await guarded.rows("SELECT resource FROM fencing.fence") == [("order/5",)]


async def test_several_resources(guarded: Stage, postgrest: PostgREST) -> None:
    headers = token("order/6=2.12,\torder/5=34", None, "ann")
    assert await postgrest.ask("PATCH", headers, PATCH.replace("order_id = 5", "order_id < 7")) == 3


async def test_reads_claim_nothing(guarded: Stage, postgrest: PostgREST) -> None:
    for method in ("GET", "HEAD", "OPTIONS"):
        assert await postgrest.ask(method, token("nonsense"), "SELECT count(*) FROM shipments") == 4
    assert await guarded.rows("SELECT FROM fencing.fence") == []


async def test_tables_without_a_guard_are_written_as_ever(guarded: Stage, postgrest: PostgREST) -> None:
    await guarded.execute(f"CREATE TABLE free (v integer); GRANT ALL ON free TO {postgrest.role}")
    write = "WITH src AS (INSERT INTO free VALUES (1) RETURNING 1) SELECT count(*) FROM src"
    assert await postgrest.ask("POST", {}, write) == 1
    assert await postgrest.ask("POST", token(34), write) == 1


async def test_the_role_of_a_request_can_claim_in_no_other_way(guarded: Stage, postgrest: PostgREST) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await postgrest.ask("POST", {}, "SELECT fencing.hold('order/5', '99')")


def test_the_command_prints_it() -> None:
    printed = called("guard", "pack", "--grants", "web")
    assert (printed.returncode, printed.stdout, printed.stderr) == (0, pack(["web"]) + "\n", "")


def test_without_roles_the_grants_are_comments() -> None:
    assert "-- GRANT USAGE ON SCHEMA fencing TO authenticated;" in pack(()).replace('"', "")
    assert 'TO "odd ""role""";' in pack(['odd "role"'])
