"""Requests under roles of the database share trips. No member of a batch changes what another one may do or sees."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from gateway.auth.grants import Rights
from gateway.auth.principal import Principal
from gateway.db import database as store
from gateway.db import rights
from gateway.db.database import Database, Record
from gateway.db.pool import Session
from gateway.db.roles import ActingBatch, ActingTogether, RoleStatements
from gateway.http.head import Head
from gateway.observe.events import Event, StepReached
from gateway.tables.execute.batches import as_text
from gateway.tables.execute.fast_path import Candidate, FastPath
from gateway.tables.pipeline import Exposure, TablePlane
from tests.tables.asking import answered, change, row, rows
from tests.tables.test_differential import _differing, _play, history
from tests.tiers import first
from tests.waiting import PATIENCE, waiting

ROLES = ("member_a", "member_b")
SCHEMA = """
DO $$ BEGIN CREATE ROLE member_a; CREATE ROLE member_b; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
CREATE FUNCTION uid() RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub' $$;
CREATE FUNCTION seen() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN concat_ws('|', current_user, uid(), current_setting('TimeZone'), current_setting('DateStyle'),
        current_setting('search_path'), coalesce(current_setting('app.user', true), ''),
        current_setting('synchronous_commit'), coalesce(current_setting('fencing.secured', true), ''),
        current_setting('client_min_messages'),
        current_setting('request.headers', true)::json ->> 'x-number');
END $$;
CREATE FUNCTION mischief(said text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE name text; value text;
BEGIN
    IF said LIKE 'set %' THEN
        SELECT split_part(said, ' ', 3), split_part(said, ' ', 4) INTO name, value;
        PERFORM set_config(name, value, split_part(said, ' ', 2) = 'local');
    ELSIF said LIKE 'do %' THEN
        EXECUTE substr(said, 4);
    ELSIF said = 'raise' THEN
        RAISE EXCEPTION 'no' USING ERRCODE = '23514';
    ELSIF said = 'sleep' THEN
        PERFORM pg_sleep(0.05);
    END IF;
    RETURN true;
END $$;
CREATE TABLE notes (id bigint PRIMARY KEY, owner text NOT NULL DEFAULT uid(), said text, seen text DEFAULT seen());
ALTER TABLE notes ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON notes FOR ALL TO member_a, member_b USING (owner = uid())
    WITH CHECK (owner = uid() AND mischief(said));
GRANT SELECT, INSERT, UPDATE, DELETE ON notes TO member_a, member_b;
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance bigint NOT NULL DEFAULT 0, note text);
GRANT SELECT, INSERT, UPDATE, DELETE ON accounts TO member_a;
CREATE SCHEMA evil;
CREATE FUNCTION evil.uid() RETURNS text LANGUAGE sql AS $$ SELECT 'bob'::text $$;
GRANT USAGE ON SCHEMA evil TO member_a, member_b;
"""


# All that code of a policy may do to its session or transaction.
MISCHIEF = [
    *(
        f"set {scope} {name} {value}"
        for scope in ("local", "session")
        for name, value in (
            ("role", "member_b"), ("role", "none"), ("request.jwt.claims", '{"sub":"bob"}'), ("TimeZone", "Asia/Tokyo"),
            ("DateStyle", "SQL,DMY"), ("search_path", "evil,public"), ("app.user", "eve"),
            ("synchronous_commit", "off"), ("fencing.secured", "x"),
            ("fencing.held", '{"public.notes/1":{"token":"9"}}'), ("client_min_messages", "error"),
            ("statement_timeout", "1ms"),
        )
    ),
    "do SET CONSTRAINTS ALL DEFERRED",
    "do SET TRANSACTION READ ONLY",
    "do DEALLOCATE ALL",
    "do RESET ALL",
    "raise",
    "sleep",
]  # fmt: skip


def principal(head: Head) -> Principal:
    name = (head.value(b"x-caller") or b"ann").decode()
    role = {"plain": "none", "clerk": "member_b"}.get(name, name if name.startswith("member_") else "member_a")
    return Principal(name, Rights.all(), role=role)


@pytest.fixture
async def tables(database: Database, dsn: str) -> Database:
    await change(database, SCHEMA)
    await rights.let_act(dsn, ROLES)
    return database


@pytest.fixture
def plane(database: Database, events: list[Event]) -> TablePlane:
    return TablePlane(database, Exposure(max_body=100_000), authenticate=principal, observe=events.append)


@pytest.fixture
def trips(tables: Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests in each trip under a role."""
    sizes: list[int] = []
    real = RoleStatements.fetch

    async def counted(
        self: RoleStatements, session: Session, sql: str, batch: ActingBatch | ActingTogether
    ) -> list[Record]:
        sizes.append(len(batch.members))
        return await real(self, session, sql, batch)

    monkeypatch.setattr(RoleStatements, "fetch", counted)
    return sizes


async def ask(
    client: httpx.AsyncClient,
    caller: str,
    method: str,
    target: str,
    body: Any = None,
    token: int | None = 5,
    **more: str,
) -> httpx.Response:
    headers = {"x-caller": caller, **({} if token is None else {"fencing-token": str(token)}), **more}
    return await client.request(method, target, json=body, headers=headers)


def beside(number: int, caller: str) -> str:
    role = {"clerk": "member_b"}.get(caller, "member_a")
    return f'{role}|{caller}|UTC|ISO, YMD|"$user", public||on||warning|{number}'


async def insert(client: httpx.AsyncClient, caller: str, number: int, said: str = "") -> httpx.Response:
    body = {"id": number, "said": said}
    return await ask(client, caller, "POST", "/notes", body, 1, **{"x-number": str(number)})


async def test_nothing_leaks_between_hostile_neighbours(
    client: httpx.AsyncClient, tables: Database, trips: list[int]
) -> None:
    number = 100
    for caller in ("ann", "clerk"):  # later requests are learnt
        for _ in range(2):
            answered(await insert(client, caller, number), 201)
            number += 1
    trips.clear()
    for said in MISCHIEF:
        callers = ["ann", "eve", "bob", "eve", "ann", "bob", "clerk", "eve", "clerk", "bob"]
        numbers = range(number, number + len(callers))
        number += len(callers)
        answers = await asyncio.gather(
            *(insert(client, one, n, said if one == "eve" else "") for n, one in zip(numbers, callers, strict=True))
        )
        for one, answer in zip(callers, answers, strict=True):
            if one != "eve":
                answered(answer, 201)
        found = await rows(tables, f"SELECT id, owner, seen FROM notes WHERE id >= {numbers[0]} ORDER BY id")
        honest = [(n, one, beside(n, one)) for n, one in zip(numbers, callers, strict=True) if one != "eve"]
        assert [one for one in found if one[1] != "eve"] == honest, said
        # The next ones on all sessions, under a role and without.
        after = await asyncio.gather(*(insert(client, "bob", number + n) for n in range(3)))
        assert [one.status_code for one in after] == [201] * 3, said
        found = await rows(tables, f"SELECT id, owner, seen FROM notes WHERE id >= {number} ORDER BY id")
        assert found == [(number + n, "bob", beside(number + n, "bob")) for n in range(3)], said
        number += 3
        for caller, expected in (("ann", [{"owner": "ann"}]), ("bob", []), ("ann", [{"owner": "ann"}])):
            read = await ask(client, caller, "GET", "/notes?id=eq.100&select=owner", token=None)
            assert read.json() == expected, said
    assert max(trips) >= 7, "they did share trips"


async def test_a_held_token_takes_one_trip_and_others_share_it(
    client: httpx.AsyncClient, tables: Database, trips: list[int], events: list[Event]
) -> None:
    await change(tables, "INSERT INTO notes (id, owner) SELECT n, 'ann' FROM generate_series(1, 20) n")
    for n in range(1, 21):
        answered(await ask(client, "ann", "PATCH", f"/notes?id=eq.{n}", {"said": "x"}), 204)
    events.clear()
    trips.clear()
    answered(await ask(client, "ann", "PATCH", "/notes?id=eq.1", {"said": "y"}), 204)
    assert trips == [1]
    answers = await asyncio.gather(
        *(ask(client, "ann", "PATCH", f"/notes?id=eq.{n}", {"said": "z"}) for n in range(1, 21))
    )
    assert [one.status_code for one in answers] == [204] * 20
    assert trips == [1, 20]
    takeovers = (ask(client, "ann", "PATCH", f"/notes?id=eq.{n}", {"said": "n"}, 6) for n in range(1, 21))
    assert [one.status_code for one in await asyncio.gather(*takeovers)] == [204] * 20
    assert len(trips) <= 4
    assert "tables.claim.after" not in [one.name for one in events if isinstance(one, StepReached)]
    assert await rows(tables, "SELECT DISTINCT value FROM fencing.fence") == [(6,)]
    stale = await ask(client, "ann", "PATCH", "/notes?id=eq.1", {"said": "late"}, 5)
    answered(stale, 412, "token-stale")
    assert (await row(tables, "SELECT said FROM notes WHERE id = 1"))["said"] == "n"
    assert await rows(tables, "SELECT reason, value FROM fencing.rejection") == [("token-stale", 5)]


async def test_a_foreign_row_is_out_of_reach_and_a_foreign_owner_refused(
    client: httpx.AsyncClient, tables: Database, trips: list[int]
) -> None:
    await change(tables, "INSERT INTO notes (id, owner) VALUES (1, 'ann'), (2, 'bob')")
    for _ in range(3):
        for n, caller in ((1, "ann"), (2, "bob"), (1, "bob"), (2, "ann")):
            answer = await ask(client, caller, "PATCH", f"/notes?id=eq.{n}", {"said": caller}, prefer="count=exact")
            answered(answer, 204)
            assert answer.headers["content-range"] == ("0-0/1" if (n == 1) == (caller == "ann") else "*/0")
        stolen = await ask(client, "bob", "PATCH", "/notes?id=eq.2", {"owner": "ann"})
        answered(stolen, 403, "42501")
    assert trips
    assert await rows(tables, "SELECT owner, said FROM notes ORDER BY id") == [("ann", "ann"), ("bob", "bob")]


async def test_reads_share_trips_and_a_policy_cannot_write_by_them(
    client: httpx.AsyncClient, tables: Database, trips: list[int]
) -> None:
    await change(tables, "INSERT INTO notes (id, owner) SELECT n, 'ann' FROM generate_series(1, 9) n")
    await ask(client, "ann", "GET", "/notes?id=eq.1&select=id", token=None)
    trips.clear()
    answers = await asyncio.gather(
        *(ask(client, ("ann", "bob")[n % 2], "GET", f"/notes?id=eq.{n}&select=id", token=None) for n in range(1, 10))
    )
    assert [one.json() for one in answers] == [[{"id": n}] if n % 2 == 0 else [] for n in range(1, 10)]
    assert trips == [9]
    await change(
        tables,
        "CREATE FUNCTION spy() RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS "
        "$$ BEGIN INSERT INTO accounts (id) SELECT count(*) FROM accounts; RETURN true; END $$; "
        "CREATE POLICY spying ON notes AS RESTRICTIVE FOR SELECT TO member_a USING (spy())",
    )
    refused = await ask(client, "ann", "GET", "/notes?id=eq.1&select=id", token=None)
    assert (refused.status_code, refused.json()["code"]) == (405, "25006")
    assert await rows(tables, "SELECT count(*) FROM accounts") == [(0,)]


@pytest.mark.parametrize("way", first(["shared", "by itself"]))
async def test_a_lost_membership_takes_its_policies_along(
    client: httpx.AsyncClient, tables: Database, dsn: str, trips: list[int], way: str
) -> None:
    """Sessions keep plans, and plans contain the policies of the role. REVOKE does not end them."""
    role = f"member_{uuid4().hex[:12]}"  # roles are those of the whole server, and tests run side by side
    every = f"{role}_every"
    await change(tables, f"""
            CREATE ROLE {role}; CREATE ROLE {every}; GRANT {every} TO {role};
            GRANT SELECT, UPDATE ON notes TO {role};
            CREATE POLICY every ON notes TO {every} USING (true) WITH CHECK (true);
            INSERT INTO notes (id, owner, said) VALUES (1, 'bob', 'first')""")  # fmt: skip
    await rights.let_act(dsn, [role])
    query = {"shared": "id=eq.1&select=said", "by itself": "owner=eq.bob&select=said"}[way]
    prefer = {"shared": "return=minimal", "by itself": "handling=strict,max-affected=1"}[way]

    async def read_and_write(said: str) -> object:
        answered(await ask(client, role, "PATCH", "/notes?id=eq.1", {"said": said}, prefer=prefer), 204)
        return (await ask(client, role, "GET", f"/notes?{query}", token=None)).json()

    for altered, sees in (
        ("SELECT", True),
        (f"REVOKE {every} FROM {role}", False),
        (f"ALTER ROLE {role} BYPASSRLS", True),
        (f"ALTER ROLE {role} NOBYPASSRLS", False),
        (f"GRANT {every} TO {role}", True),
    ):
        await tables.fetch_write(altered)
        before = (await row(tables, "SELECT said FROM notes"))["said"]
        for _ in range(4):
            assert await read_and_write(altered) == ([{"said": altered}] if sees else [])
        assert (await row(tables, "SELECT said FROM notes"))["said"] == (altered if sees else before)
    assert bool(trips) == (way == "shared")
    await change(tables, f"DROP OWNED BY {role}, {every}; DROP ROLE {role}, {every}")


async def test_the_successor_waits_though_it_does_not_see_the_row(
    client: httpx.AsyncClient, tables: Database, stranger: asyncpg.Connection, trips: list[int]
) -> None:
    """Nothing but the fence can make it wait: its policy hides the row that the old holder is about to write."""
    await change(tables, "INSERT INTO notes (id, owner) VALUES (1, 'ann')")
    for _ in range(2):
        answered(await ask(client, "ann", "PATCH", "/notes?id=eq.1", {"said": "raised"}), 204)
    async with asyncio.TaskGroup() as tasks, stranger.transaction():
        await stranger.execute("SELECT FROM notes WHERE id = 1 FOR UPDATE")
        trips.clear()
        old = tasks.create_task(ask(client, "ann", "PATCH", "/notes?id=eq.1", {"said": "old"}))
        async with asyncio.timeout(PATIENCE):
            while len(trips) < 2:  # its shared trip has given up, and it goes alone
                await asyncio.sleep(0.01)
        await waiting(tables, 1)  # it keeps its lock of the fence
        new = tasks.create_task(ask(client, "bob", "DELETE", "/notes?id=eq.1", None, 6))
        await asyncio.sleep(0.5)
        assert not new.done()
    answered(old.result(), 204)
    answered(new.result(), 204)


async def test_commits_are_durable_whatever_the_default_of_the_database_is(
    client: httpx.AsyncClient, tables: Database, dsn: str
) -> None:
    await change(
        tables,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$",
    )
    for number in range(1, 4):
        answered(await insert(client, "ann", number), 201)
    answers = await asyncio.gather(*(insert(client, "ann", number) for number in range(4, 12)))
    assert [one.status_code for one in answers] == [201] * 8
    found = await rows(tables, "SELECT id, seen FROM notes ORDER BY id")
    assert found == [(number, beside(number, "ann")) for number in range(1, 12)]


async def test_a_changed_table_is_noticed_though_the_first_member_is_not_held(
    client: httpx.AsyncClient, tables: Database, stranger: asyncpg.Connection, trips: list[int]
) -> None:
    await change(tables, "INSERT INTO accounts SELECT n, 'ann', 0 FROM generate_series(1, 5) n")
    for n in range(1, 6):
        answered(await ask(client, "ann", "PATCH", f"/accounts?id=eq.{n}", {"balance": 1}), 204)
    await stranger.execute(
        "CREATE TRIGGER late BEFORE UPDATE ON accounts "
        "FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    trips.clear()
    writes = ((n, 4 if n == 1 else 5) for n in range(1, 6))
    answers = await asyncio.gather(
        *(ask(client, "ann", "PATCH", f"/accounts?id=eq.{n}", {"balance": 2}, token) for n, token in writes)
    )
    assert [one.status_code for one in answers] == [412, 204, 204, 204, 204]
    assert max(trips) == 5
    # A table with a trigger does not take this way: the gateway has learnt of it by that batch.
    trips.clear()
    answered(await ask(client, "ann", "PATCH", "/accounts?id=eq.2", {"balance": 3}), 204)
    assert trips == []


@pytest.fixture
def shared(tables: Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests in each statement that does the writes of several."""
    sizes: list[int] = []
    real = RoleStatements.fetch

    async def counted(
        self: RoleStatements, session: Session, sql: str, batch: ActingBatch | ActingTogether
    ) -> list[Record]:
        if isinstance(batch, ActingTogether):
            sizes.append(len(batch.members))
        return await real(self, session, sql, batch)

    monkeypatch.setattr(RoleStatements, "fetch", counted)
    return sizes


async def _write(client: httpx.AsyncClient, balances: dict[int, int], token: int = 5) -> list[int]:
    writes = (
        ask(client, ("ann", "bob")[n % 2], "PATCH", f"/accounts?id=eq.{n}", {"balance": balance}, token)
        for n, balance in balances.items()
    )
    return [one.status_code for one in await asyncio.gather(*writes)]


async def test_writes_of_one_role_are_one_statement_in_which_each_answers_for_itself(
    client: httpx.AsyncClient, tables: Database, shared: list[int]
) -> None:
    await change(tables, "INSERT INTO accounts SELECT n, 'ann', 0 FROM generate_series(1, 9) n")
    await change(tables, "ALTER TABLE accounts ADD CHECK (balance < 100)")
    for _ in range(2):
        assert await _write(client, dict.fromkeys(range(1, 10), 1)) == [204] * 9
    assert shared[-1] == 9
    await change(tables, "UPDATE fencing.fence SET value = 6 WHERE resource = 'public.accounts/3'")
    assert await _write(client, dict.fromkeys(range(1, 10), 2)) == [204, 204, 412, *[204] * 6]
    # One that breaks a check fails alone. Its neighbours go again, by themselves.
    expected = dict.fromkeys((1, 2, 4, 5, 6), 204) | {5: 400}
    assert await _write(client, {n: 100 if n == 5 else 7 for n in expected}) == list(expected.values())
    found = await rows(tables, "SELECT id, balance FROM accounts ORDER BY id")
    assert found == [(1, 7), (2, 7), (3, 1), (4, 7), (5, 2), (6, 7), (7, 2), (8, 2), (9, 2)]
    # A new holder's writes share one, too. Each sees its own rows, and the session is the gateway's again.
    assert await _write(client, dict.fromkeys(range(1, 10), 8), 7) == [204] * 9
    assert await rows(tables, "SELECT count(*) FROM accounts WHERE balance = 8") == [(9,)]
    assert await rows(tables, "SELECT current_user = session_user") == [(True,)]
    for n in (21, 22):
        answered(await ask(client, "ann", "POST", "/accounts", {"id": n, "balance": 1}, 7), 201)
    answers = await asyncio.gather(
        *(ask(client, "ann", "POST", "/accounts", {"id": n, "balance": 1}, 7) for n in (31, 32, 33, 1, 34))
    )
    assert [one.status_code for one in answers] == [201, 201, 201, 409, 201]


async def test_a_right_that_a_role_has_lost_counts_at_once(
    client: httpx.AsyncClient, tables: Database, shared: list[int]
) -> None:
    await change(tables, "INSERT INTO accounts SELECT n, 'ann', 0 FROM generate_series(1, 4) n")
    for _ in range(2):
        assert await _write(client, dict.fromkeys(range(1, 5), 1)) == [204] * 4
    await change(tables, "REVOKE UPDATE ON accounts FROM member_a")
    assert await _write(client, dict.fromkeys(range(1, 5), 2)) == [403] * 4
    await change(tables, "GRANT UPDATE ON accounts TO member_a")
    assert await _write(client, dict.fromkeys(range(1, 5), 3)) == [204] * 4
    assert shared


async def _settings(session: Session) -> dict[str, str]:
    """All settings of a session, with the role that it acts under."""
    found = await session.fetch("SELECT name, setting FROM pg_settings UNION ALL SELECT 'current_user', current_user")
    return {one["name"]: one["setting"] for one in found}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[Session, dict[str, str]]:
    """The sessions of statements under roles, with their settings before the first. They go on waiting for a row."""
    found: dict[Session, dict[str, str]] = {}
    real = RoleStatements.fetch

    async def noted(
        self: RoleStatements, session: Session, sql: str, batch: ActingBatch | ActingTogether
    ) -> list[Record]:
        if session not in found:
            found[session] = await _settings(session)
        return await real(self, session, sql, batch)

    monkeypatch.setattr(store, "SHARED_LOCK_TIMEOUT", PATIENCE)
    monkeypatch.setattr(RoleStatements, "fetch", noted)
    return found


IN_THE_MIDST = """
    SELECT a.pid FROM pg_stat_activity AS a JOIN pg_locks AS l ON l.pid = a.pid
    WHERE a.datname = current_database() AND a.query LIKE '%write_together_as_v1(%' AND a.wait_event_type = 'Lock'
        AND l.relation = 'fencing.fence'::regclass AND l.mode = 'RowShareLock'
"""
LOCKS = "SELECT count(*) FROM pg_locks WHERE pid = $1"


@pytest.mark.parametrize(
    ("end", "answers", "balances"),
    [
        # Each goes again, by itself. The answers of the last ones are not waited for.
        ("SELECT pg_cancel_backend($1)", [204], {2}),
        ("SELECT pg_terminate_backend($1)", [503], {1}),
        (None, None, {1, 2}),
    ],
    ids=["cancelled", "lost", "abandoned"],
)
async def test_nothing_of_a_statement_that_ends_in_its_midst_is_left_to_the_next_caller(
    used: dict[Session, dict[str, str]],
    client: httpx.AsyncClient,
    tables: Database,
    stranger: asyncpg.Connection,
    end: str | None,
    answers: list[int] | None,
    balances: set[int],
) -> None:
    """Neither its role, nor a setting, nor a lock."""
    await change(tables, "INSERT INTO accounts SELECT n, 'ann', 0 FROM generate_series(1, 6) n")
    for _ in range(2):
        assert await _write(client, dict.fromkeys(range(1, 7), 1)) == [204] * 6
    async with stranger.transaction():
        await stranger.execute("SELECT FROM accounts WHERE id = 4 FOR UPDATE")
        writes = [asyncio.create_task(_write(client, {n: 2})) for n in range(1, 7)]
        await waiting(tables)
        ((pid,),) = await stranger.fetch(IN_THE_MIDST)
        (session,) = [one for one in used if one.get_server_pid() == pid]
        if end is None:
            for one in writes:
                one.cancel()
            await asyncio.wait(writes)
        else:
            assert await stranger.fetchval(end, pid)
            async with asyncio.timeout(PATIENCE):
                while await stranger.fetchval(LOCKS, pid):
                    await asyncio.sleep(0.01)
    if answers is not None:
        assert await asyncio.gather(*writes) == [answers] * 6
    assert {balance for (balance,) in await rows(tables, "SELECT DISTINCT balance FROM accounts")} <= balances
    # The next holder waits for no lock of theirs.
    assert await _write(client, dict.fromkeys(range(1, 7), 3), 6) == [204] * 6
    assert await rows(tables, "SELECT DISTINCT balance FROM accounts") == [(3,)]
    assert [one for one in used if one.is_closed()] == ([session] if answers == [503] else [])
    for left in used.keys() - {session} if session.is_closed() else used:
        after = await _settings(left)
        assert {name: after[name] for name in used[left]} == used[left]
        assert not await stranger.fetchval(LOCKS, left.get_server_pid())


# A second trigger does not give its table another version.
TELLING = """
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF uid() IS NULL THEN
        RAISE EXCEPTION 'of nobody';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER silent AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION tell();
ALTER TABLE accounts DISABLE TRIGGER silent;
CREATE DOMAIN teller AS text CHECK (coalesce(uid(), 'ann') = 'ann' OR uid() = 'bob');
"""


@pytest.mark.parametrize(
    "code",
    first([
        "ALTER TABLE accounts ADD CHECK (coalesce(nullif(current_setting('request.method', true), ''), 'X') <> 'POST')",
        "ALTER TABLE accounts ADD CHECK (coalesce(uid(), 'ann') IN ('ann', 'bob'))",
        "CREATE TRIGGER tells AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION tell()",
        "ALTER TABLE accounts ADD CHECK (('{' || owner || '}')::teller[] IS NOT NULL)",
        "ALTER TABLE accounts ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON accounts USING (uid() IN ('ann', 'bob'))",
    ]),
)  # fmt: skip
async def test_code_that_reads_the_settings_of_a_request_finds_its_own(
    client: httpx.AsyncClient, tables: Database, stranger: asyncpg.Connection, shared: list[int], code: str
) -> None:
    """It comes while the gateway has statements without these settings, and is noticed by them."""
    await change(tables, f"{TELLING} INSERT INTO accounts SELECT n, 'ann', 0 FROM generate_series(1, 4) n")
    for _ in range(2):
        assert await _write(client, dict.fromkeys(range(1, 5), 1)) == [204] * 4
    assert shared
    await stranger.execute(code)
    assert await _write(client, dict.fromkeys(range(1, 5), 2)) == [204] * 4
    shared.clear()
    assert await _write(client, dict.fromkeys(range(1, 5), 3)) == [204] * 4
    assert not shared
    assert await rows(tables, "SELECT DISTINCT balance FROM accounts") == [(3,)]


AUDITED = """
CREATE TABLE audit (who text);
GRANT INSERT ON audit TO member_a;
CREATE FUNCTION noted(note text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN INSERT INTO audit VALUES (coalesce(uid(), 'of nobody')); RETURN true; END $$;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM noted(''); RETURN NULL; END $$;
CREATE DOMAIN noting AS text CHECK (noted(VALUE));
CREATE TYPE holding AS (one noting);
INSERT INTO accounts SELECT n, 'ann', 0, '{x}' FROM generate_series(1, 4) n;
"""


@pytest.mark.parametrize(
    "code",
    first([
        ("CREATE TABLE kinds (id int PRIMARY KEY); ALTER TABLE accounts ADD COLUMN kind int REFERENCES kinds",
         "CREATE TRIGGER audit AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION note()"),
        ("ALTER TABLE accounts ADD CHECK (note::noting[] IS NOT DISTINCT FROM note::noting[])", ""),
        ("UPDATE accounts SET note = '(x)'; ALTER TABLE accounts ADD CHECK ((note::holding) IS NOT NULL)", ""),
    ]),
    ids=["a trigger that comes later", "an array of a domain", "a row of a domain"],
)  # fmt: skip
async def test_code_that_no_expression_names_finds_the_settings_of_a_request(
    client: httpx.AsyncClient, tables: Database, stranger: asyncpg.Connection, code: tuple[str, str]
) -> None:
    """A trigger beside others changes no row of the table in the catalog. A cast by input runs a domain's check."""
    before, meanwhile = code
    await change(tables, f"{AUDITED}{before}; DELETE FROM audit")
    for balance in (1, 2):
        assert await _write(client, dict.fromkeys(range(1, 5), balance)) == [204] * 4
    if meanwhile:
        await stranger.execute(meanwhile)
    for balance in (3, 4):
        assert await _write(client, dict.fromkeys(range(1, 5), balance)) == [204] * 4
    assert {who for (who,) in await rows(tables, "SELECT DISTINCT who FROM audit")} == {"ann", "bob"}


async def test_writes_of_one_row_find_code_that_came_meanwhile(
    client: httpx.AsyncClient, tables: Database, stranger: asyncpg.Connection
) -> None:
    await change(tables, f"{TELLING} INSERT INTO accounts SELECT n, 'ann', 0 FROM generate_series(1, 4) n")
    for _ in range(2):
        assert await _write(client, dict.fromkeys(range(1, 5), 1)) == [204] * 4
    await stranger.execute("CREATE TRIGGER tells AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION tell()")
    answers = await asyncio.gather(
        *(ask(client, "ann", "PATCH", "/accounts?id=eq.1", {"balance": n}, 5) for n in range(6))
    )
    assert {one.status_code for one in answers} == {204}


async def test_a_partition_keeps_the_settings_of_each_request(
    client: httpx.AsyncClient, tables: Database, shared: list[int]
) -> None:
    await change(tables, """
        CREATE TABLE parts (id bigint, balance bigint) PARTITION BY RANGE (id);
        CREATE TABLE part (id bigint PRIMARY KEY, balance bigint);
        ALTER TABLE parts ATTACH PARTITION part FOR VALUES FROM (0) TO (100);
        GRANT SELECT, INSERT, UPDATE ON part TO member_a;
        INSERT INTO part SELECT n, 0 FROM generate_series(1, 4) n""")  # fmt: skip
    for balance in (1, 2):
        answers = await asyncio.gather(
            *(ask(client, "ann", "PATCH", f"/part?id=eq.{n}", {"balance": balance}, 5) for n in range(1, 5))
        )
        assert {one.status_code for one in answers} == {204}, [one.text for one in answers]
    assert not shared


@pytest.mark.parametrize("seed", first(range(3)))
async def test_nobody_sees_which_way_a_request_has_gone(
    client: httpx.AsyncClient, tables: Database, trips: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    plans = history(seed)
    expected = await _play(client, tables, plans, 1100)
    with monkeypatch.context() as whole:
        whole.setattr(FastPath, "candidate", lambda *_: Candidate(None, "ann", Rights.all()))
        whole.setattr(FastPath, "_is_eligible", lambda *_: False)
        trips.clear()
        assert _differing(expected, await _play(client, tables, plans, 1200)) == {}
        assert not trips
    assert _differing(expected, await _play(client, tables, plans, 1300)) == {}, "with everything learnt"
    assert trips


async def test_values_are_the_same_as_texts(database: Database) -> None:
    texts = ("x", "it's", 'a "b"', "\\", "{}", "NULL", "", " ", None)
    for value in (*texts, ["a", 'b"', "c\\", "", "NULL", "d,e", "{f}", None], []):
        type_ = "text[]" if isinstance(value, list) else "text"
        found = await database.fetchrow(
            f"SELECT to_json($1::text::{type_})::text AS it, to_json($2::{type_})::text AS was", as_text(value), value
        )
        assert found is not None
        assert json.loads(found["it"] or "null") == json.loads(found["was"] or "null") == value
