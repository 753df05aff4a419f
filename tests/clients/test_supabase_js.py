"""postgrest-js by itself and inside supabase-js, on Node: fenced by one more header, and held to row-level security."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.db import rights
from gateway.demo.embedded import EmbeddedPostgres
from tests.clients.commands import Conversation, Shell, conversation, javascript
from tests.clients.gateway import NEWER, Lock
from tests.clients.lossy import unavailable
from tests.clients.sdks import Tables, tables
from tests.guard.stage import session
from tests.identity_provider import claims, shared_key
from tests.identity_provider import token as signed
from tests.postgres import GATEWAY, fresh
from tests.running import config, running
from tests.waiting import PATIENCE

KINDS = ("postgrest-js", "supabase-js")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    with tables(Shell(tmp_path_factory.mktemp("node"), {})) as one:
        yield one


def succeeded(seen: dict[str, Any]) -> bool:
    return seen["error"] is None and seen["status"] < 300


@pytest.mark.installed
def test_what_tables_can_do(node: Tables, kind: str, lock: Lock) -> None:
    assert "error" not in node.do(kind, "everything", lock)  # it asks for many things, and looks at each answer itself
    assert lock.rows() == [("dora", 7, None)]
    assert lock.rejections() == []


@pytest.mark.installed
@pytest.mark.parametrize("deed", ["insertInto", "upsert", "update", "updateAndSelect", "delete", "perRequest"])
def test_after_a_takeover_every_write_is_refused(node: Tables, kind: str, deed: str, lock: Lock) -> None:
    if deed != "insertInto":
        assert succeeded(node.do(kind, "insertInto", lock))
    with lock.overtaken():
        seen = node.do(kind, deed, lock)
        assert (seen["status"], seen["error"]["code"]) == (412, "token-stale")
        assert seen["error"]["message"] == f"The fencing token 33 of {lock.resource} has been overtaken by 34."
        assert "raised by successor" in seen["error"]["details"]
        assert "retrying cannot succeed" in seen["error"]["hint"]
        assert len(lock.rejections()) == len(seen["asking"]) == 1, "a refusal is final: nothing is tried again"
    assert succeeded(node.do(kind, "upsert", lock, token=NEWER))
    assert lock.rows()[0][0] == "zoe"


@pytest.mark.installed
def test_without_a_token(node: Tables, kind: str, lock: Lock) -> None:
    seen = node.do(kind, "withoutToken", lock)
    assert (seen["status"], seen["error"]["code"]) == (428, "token-required")


@pytest.mark.installed
def test_no_write_is_tried_again_by_itself(node: Tables, kind: str, lock: Lock) -> None:
    with unavailable() as origin:
        seen = node.do(kind, "update", lock, origin=origin)
    assert (seen["status"], seen["asking"]) == (503, ["PATCH"])


# postgrest-js and supabase-js with tokens of users: row-level security holds, and so do the fences.


SECRET = "the-secret-that-supabase-and-the-gateway-share"
# As Supabase's documentation writes them.
SCHEMA = f"""
CREATE ROLE authenticated NOINHERIT;
CREATE ROLE anon NOINHERIT;
GRANT authenticated, anon TO {GATEWAY};
CREATE SCHEMA auth;
CREATE FUNCTION auth.uid() RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub' $$;
GRANT USAGE ON SCHEMA auth TO authenticated, anon;
CREATE TABLE notes (id bigint PRIMARY KEY, owner text NOT NULL DEFAULT auth.uid(), text text);
INSERT INTO notes VALUES (1, 'ann', 'of ann'), (2, 'bob', 'of bob');
ALTER TABLE notes ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON notes FOR ALL TO authenticated USING (owner = auth.uid()) WITH CHECK (owner = auth.uid());
CREATE POLICY whole ON notes FOR ALL TO {GATEWAY} USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON notes TO authenticated;
GRANT SELECT ON notes TO anon;
"""
USERS = {"issuer": None, "name": "app", "secret": SECRET, "caller_claim": ["sub"]}
PUBLIC = {"issuer": "https://supabase.example", "name": "public", "secret": SECRET, "caller_claim": ["role"]}
GRANT = {"actions": ["read", "write"], "tables": ["public.notes"]}


def jwt(user: str) -> str:
    content = claims(user, role="authenticated", iss=None, aud=None)
    return signed(shared_key(SECRET), content, "HS256", kid=None)


ANON = signed(
    shared_key(SECRET), claims(sub=None, role="anon", iss="https://supabase.example", aud=None), "HS256", kid=None
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    node, directory = javascript()
    with conversation([node, str(directory / "rows.mjs")], Shell(tmp_path_factory.mktemp("node"), {})) as one:
        yield one


@pytest.fixture(scope="module")
def dsn(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    with fresh(postgres_server) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def origin(dsn: str) -> AsyncIterator[str]:
    await rows(dsn, SCHEMA)
    await rights.let_act(dsn, ["authenticated", "anon"])
    act = {"callers": ["app:*", "public:*"], "claim": ["role"], "role": ["authenticated", "anon"]}
    settings = config(
        dsn,
        server={"rest_v1": True},
        postgres={"roles": [act]},
        issuers=[USERS, PUBLIC],
        grants=[{"callers": ["app:*"], **GRANT}, {"callers": ["public:anon"], **GRANT, "actions": ["read"]}],
    )
    async with running(settings) as address:
        async with httpx.AsyncClient(base_url=address, headers={"apikey": jwt("ann")}) as client:
            async with asyncio.timeout(PATIENCE):
                while (await client.get("/rest/v1/notes")).status_code != 200:
                    await asyncio.sleep(0.05)
        yield address
    await rows(dsn, f"DROP OWNED BY authenticated, anon; REVOKE authenticated, anon FROM {GATEWAY}")
    await rows(dsn, "DROP ROLE authenticated; DROP ROLE anon")


async def rows(dsn: str, sql: str) -> list[tuple[Any, ...]]:
    async with session(dsn) as owner:
        if sql.startswith("SELECT"):
            return [tuple(row) for row in await owner.fetch(sql)]
        await owner.execute(sql)
        return []


@dataclass(frozen=True, slots=True)
class User:
    """A user of one client library."""

    ask: Callable[..., Any]
    jwt: str

    async def __call__(self, deed: str, **what: Any) -> tuple[int, str | None, Any]:
        """Status, code of the error, and rows."""
        done = await asyncio.to_thread(partial(self.ask, deed=deed, jwt=self.jwt, **what))
        return done["status"], done["code"], done["data"]


@pytest.fixture(params=["postgrest-js", "supabase-js"])
def user(request: pytest.FixtureRequest, program: Conversation, origin: str) -> Callable[[str], User]:
    ask = partial(program.ask, client=str(request.param), origin=origin, anon=ANON)
    return lambda name: User(ask, jwt(name))


@pytest.mark.installed
@pytest.mark.asyncio(loop_scope="module")
async def test_each_user_sees_its_own_rows(user: Callable[[str], User]) -> None:
    for name, number in (("ann", 1), ("bob", 2)):
        status, _, found = await user(name)("see")
        assert (status, [(row["id"], row["owner"]) for row in found]) == (200, [(number, name)])
    assert await user("eve")("see") == (200, None, [])


@pytest.mark.installed
@pytest.mark.asyncio(loop_scope="module")
async def test_each_user_writes_its_own_rows_and_no_others(user: Callable[[str], User], dsn: str) -> None:
    ann, bob = user("ann"), user("bob")
    assert await ann("change", id=1, text="by ann", token="5") == (200, None, [{"id": 1, "text": "by ann"}])
    assert await bob("change", id=1, text="by bob", token="5") == (200, None, [])
    assert (await bob("remove", id=1, token="5"))[2] == []
    assert await ann("add", id=10, owner="ann", text="new", token="5") == (201, None, [{"id": 10}])
    status, code, _ = await bob("add", id=11, owner="ann", text="forged", token="5")
    assert (status, code) == (403, "42501")
    assert await ann("remove", id=10, token="5") == (200, None, [{"id": 10}])
    assert await rows(dsn, "SELECT id, owner, text FROM notes ORDER BY id") == [
        (1, "ann", "by ann"),
        (2, "bob", "of bob"),
    ]


@pytest.mark.installed
@pytest.mark.asyncio(loop_scope="module")
async def test_a_user_is_fenced_all_the_same(user: Callable[[str], User], dsn: str) -> None:
    ann = user("ann")
    ((before,),) = await rows(
        dsn, "SELECT coalesce(max(value), 0) FROM fencing.fence WHERE resource = 'public.notes/1'"
    )
    newer, stale = str(before + 10), str(before + 9)
    assert (await ann("change", id=1, text="newer", token=newer))[0] == 200
    assert (await ann("change", id=1, text="stale", token=stale))[:2] == (412, "token-stale")
    assert (await ann("remove", id=1, token=stale))[:2] == (412, "token-stale")
    assert (await ann("change", id=1, text="none"))[:2] == (428, "token-required")
    assert (await ann("change", id=1, text="by ann", token=newer))[0] == 200
    assert await rows(dsn, "SELECT text FROM notes WHERE id = 1") == [("by ann",)]
