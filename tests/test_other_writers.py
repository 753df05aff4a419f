"""The doctor names each role that could write fenced tables without the gateway. Its SQL closes each way."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from gateway import findings
from gateway.doctor.examination import examine
from gateway.doctor.writers import WORDS, policy_writers, sole_writers
from gateway.findings import Check, CheckStatus, DoctorReport
from gateway.guard import installation
from gateway.guard.installation import GuardRequest
from tests.postgres import GATEWAY, as_gateway
from tests.processes import called
from tests.running import GRANTS_TOML, config

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE parts (id int PRIMARY KEY, order_id int REFERENCES orders);
"""
NOTE = "UPDATE orders SET note = 'x'"
APART = "CREATE SCHEMA apart; GRANT USAGE ON SCHEMA apart TO {app}; "
MAKES = "GRANT CREATE ON SCHEMA public TO {app}; "
# Each way, with SQL that opens it for the role {app}; what the doctor says; and a write of that role that gets through.
WAYS = {
    "superuser": ("ALTER ROLE {app} SUPERUSER", "is a superuser", NOTE),
    "member of a superuser": (
        "CREATE ROLE {group} SUPERUSER; GRANT {group} TO {app}",
        "is a superuser as {group}",
        f"SET ROLE {{group}}; {NOTE}",
    ),
    "all data": ("GRANT pg_write_all_data TO {app}", "member of pg_write_all_data", NOTE),
    "programs": ("GRANT pg_execute_server_program TO {app}", "can become a superuser", None),
    "create role": ("ALTER ROLE {app} CREATEROLE", "has CREATEROLE", f"GRANT pg_write_all_data TO {{app}}; {NOTE}"),
    "administrator of a role": (
        "CREATE ROLE {group}; GRANT UPDATE ON orders TO {group}; GRANT {group} TO {app} WITH ADMIN OPTION",
        "{app} has UPDATE as {group}",
        f"GRANT {{group}} TO {{app}}; {NOTE}",
    ),
    "gateway": ("GRANT fencing_gateway TO {app}", "the role of the gateway", NOTE),
    "grant": ("GRANT SELECT, UPDATE ON orders TO {app}", "{app} has UPDATE", NOTE),
    "not inherited": (
        "CREATE ROLE {group}; GRANT DELETE ON orders TO {group}; ALTER ROLE {app} NOINHERIT; GRANT {group} TO {app}",
        "{app} has DELETE as {group}",
        "SET ROLE {group}; DELETE FROM orders",
    ),
    "everybody": ("GRANT UPDATE ON orders TO PUBLIC", "PUBLIC has UPDATE", NOTE),
    "column": ("GRANT UPDATE (note) ON orders TO {app}", "{app} has UPDATE", NOTE),
    "trigger": ("GRANT TRIGGER ON orders TO {app}", "{app} has TRIGGER", None),
    "references": (f"{MAKES} GRANT REFERENCES ON orders TO {{app}}", "{app} has REFERENCES", None),
    "code of a trigger": (
        (
            f"{MAKES} CREATE FUNCTION looks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$; "
            "CREATE TRIGGER looks BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION looks(); "
            "ALTER FUNCTION looks() OWNER TO {app}"
        ),
        "{app} owns looks(), which runs with the rights of each writer",
        (
            "CREATE OR REPLACE FUNCTION looks() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN NEW.note := 'x'; RETURN NEW; END $$"
        ),
    ),
    "code of a default": (
        (
            f"{MAKES} CREATE FUNCTION made() RETURNS text LANGUAGE sql AS $$ SELECT '' $$; "
            "ALTER TABLE orders ALTER note SET DEFAULT made(); ALTER FUNCTION made() OWNER TO {app}"
        ),
        "{app} owns made(), which runs",
        "CREATE OR REPLACE FUNCTION made() RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$",
    ),
    "truncate": ("GRANT TRUNCATE ON orders, parts TO {app}", "{app} has TRUNCATE", "TRUNCATE orders, parts"),
    "owner": ("ALTER TABLE orders OWNER TO {app}", "{app} owns it", NOTE),
    "schema": (
        "ALTER SCHEMA public OWNER TO {app}",
        "{app} owns the schema public",
        "DROP TABLE public.orders CASCADE",
    ),
    "fences": (
        "GRANT USAGE ON SCHEMA fencing TO {app}; GRANT DELETE ON fencing.fence TO {app}",
        "{app} has DELETE",
        "DELETE FROM fencing.fence",
    ),
    "function": (
        f"CREATE FUNCTION note() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ {NOTE} $$",
        "PUBLIC may call note()",
        "SELECT note()",
    ),
    "body": (
        f"CREATE FUNCTION note() RETURNS void LANGUAGE sql SECURITY DEFINER BEGIN ATOMIC {NOTE}; END",
        "PUBLIC may call note()",
        "SELECT note()",
    ),
    "view of a view": (
        (
            f"{APART} CREATE VIEW apart.whole AS SELECT * FROM public.orders; "
            "CREATE VIEW apart.seen AS SELECT * FROM apart.whole; GRANT SELECT, UPDATE ON apart.seen TO {app}"
        ),
        "{app} may write apart.seen",
        "UPDATE apart.seen SET note = 'x'",
    ),
    "far cascade": (
        (
            f"{APART} CREATE TABLE apart.firms (id int PRIMARY KEY); INSERT INTO apart.firms VALUES (1); "
            "CREATE TABLE apart.accounts (id int PRIMARY KEY REFERENCES apart.firms ON DELETE CASCADE); "
            "INSERT INTO apart.accounts VALUES (1); "
            "ALTER TABLE public.orders ADD account int DEFAULT 1 REFERENCES apart.accounts ON DELETE SET NULL; "
            "GRANT SELECT, DELETE ON apart.firms TO {app}"
        ),
        "{app} may write apart.firms, which reaches it by a foreign key",
        "DELETE FROM apart.firms",
    ),
    "rule": (
        (
            f"{APART} CREATE TABLE apart.inbox (n int); GRANT INSERT ON apart.inbox TO {{app}}; "
            "CREATE RULE on_insert AS ON INSERT TO apart.inbox DO ALSO UPDATE public.orders SET note = 'x'"
        ),
        "{app} may write apart.inbox",
        "INSERT INTO apart.inbox VALUES (1)",
    ),
    "trigger elsewhere": (
        (
            f"{APART} CREATE TABLE apart.inbox (n int); GRANT INSERT ON apart.inbox TO {{app}}; "
            "CREATE FUNCTION apart.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS "
            "$$ BEGIN UPDATE public.orders SET note = 'x'; RETURN NEW; END $$; "
            "CREATE TRIGGER note AFTER INSERT ON apart.inbox FOR EACH ROW EXECUTE FUNCTION apart.note()"
        ),
        "{app} may write apart.inbox, whose trigger",
        "INSERT INTO apart.inbox VALUES (1)",
    ),
    "partition": (
        (
            f"{APART} CREATE TABLE days (id int PRIMARY KEY) PARTITION BY RANGE (id); "
            "CREATE TABLE apart.day PARTITION OF days FOR VALUES FROM (0) TO (9); GRANT INSERT ON apart.day TO {app}"
        ),
        "{app} has INSERT",
        "INSERT INTO apart.day VALUES (1)",
    ),
    "the whole of a part": (
        (
            f"{APART} CREATE TABLE apart.days (id int) PARTITION BY RANGE (id); GRANT INSERT ON apart.days TO {{app}}; "
            "CREATE TABLE public.day PARTITION OF apart.days FOR VALUES FROM (0) TO (9); "
            "ALTER TABLE public.day ADD PRIMARY KEY (id)"
        ),
        "{app} may write apart.days, of which it is a part",
        "INSERT INTO apart.days VALUES (1)",
    ),
    "later": (
        "ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT INSERT ON TABLES TO {app}",
        "creates later let {app} INSERT",
        None,
    ),
}

SINCE = {"create role": 16, "references": 18}
"""Ways that PostgreSQL has closed, and the release."""
QUICK = ("function", "far cascade")


@pytest.fixture
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLES)
    yield connection
    await connection.close()


@pytest.fixture
async def names(dsn: str, session: asyncpg.Connection) -> AsyncIterator[dict[str, str]]:
    """The names of a login role, and of another role that may be created."""
    suffix = dsn.split("?", maxsplit=1)[0].rpartition("_")[2][:8]
    found = {"app": f"app_{suffix}", "group": f"group_{suffix}"}
    await session.execute(f"CREATE ROLE {found['app']} LOGIN")
    yield found
    for role in (*found.values(), "fencing_tables"):
        if await session.fetchval("SELECT to_regrole($1)", role):
            gone = f"REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role} CASCADE; DROP ROLE {role}"
            await session.execute(gone)


async def other_writers(dsn: str, *trusted: str) -> tuple[DoctorReport, list[Check]]:
    report = await examine(config(dsn).default, trusted=("postgres", *trusted))
    [checks] = [section.checks for section in report.sections if section.title == "other writers"]
    return report, [check for check in checks if check.status is not CheckStatus.OK]


async def writes(dsn: str, role: str, sql: str) -> bool:
    """Whether a role gets a write through, in a transaction that is undone."""
    connection = await asyncpg.connect(re.sub("//postgres:?@", f"//{role}@", dsn))
    try:
        async with connection.transaction():
            await connection.execute(sql)
            await connection.execute("RESET ROLE")
            raise asyncio.CancelledError
    except asyncio.CancelledError:
        return True
    except asyncpg.InsufficientPrivilegeError:
        return False
    finally:
        await connection.close()


async def test_only_the_gateway_writes(dsn: str, session: asyncpg.Connection, names: dict[str, str]) -> None:
    report, open_ways = await other_writers(dsn)
    assert open_ways == []
    [check] = [check for check in report.checks if check.name == "other writers"]
    assert "public.orders" in check.detail
    assert "and the tables of the fences" in check.detail


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way in QUICK else pytest.mark.thorough) for way in WAYS])
async def test_each_way_is_named_and_its_sql_closes_it(
    dsn: str, session: asyncpg.Connection, names: dict[str, str], way: str
) -> None:
    given, said = (str(text).format(**names) for text in WAYS[way][:2])
    write = WAYS[way][2] and str(WAYS[way][2]).format(**names)
    await session.execute(given)
    report, found = await other_writers(dsn)
    if session.get_server_version().major >= SINCE.get(way, 99):
        assert found == []
        assert write is None or not await writes(dsn, names["app"], write)
        return
    assert [said in check.detail for check in found] == [True], [check.detail for check in found]
    assert write is None or await writes(dsn, names["app"], write)
    await session.execute("\n".join(findings.fix_sql(report)))
    report, found = await other_writers(dsn)
    assert found == []
    assert write is None or not await writes(dsn, names["app"], write)
    gateway = await asyncpg.connect(as_gateway(dsn))
    await gateway.execute("INSERT INTO orders VALUES (7, ''); UPDATE orders SET note = 'y'; DELETE FROM orders")
    await gateway.close()
    assert not report.problems, "\n".join(findings.render(report))


async def test_a_role_without_login_is_no_way(dsn: str, session: asyncpg.Connection, names: dict[str, str]) -> None:
    await session.execute("CREATE ROLE {group}; ALTER TABLE orders OWNER TO {group}".format(**names))
    assert (await other_writers(dsn))[1] == []
    await session.execute("GRANT {group} TO {app}".format(**names))
    [check] = (await other_writers(dsn))[1]
    assert "owns it as" in check.detail
    assert (await other_writers(dsn, names["app"]))[1] == []


@pytest.mark.thorough
async def test_a_guard_closes_what_it_checks(dsn: str, session: asyncpg.Connection, names: dict[str, str]) -> None:
    await session.execute("GRANT SELECT, UPDATE ON orders TO {app}".format(**names))
    settings = config(dsn)

    async def ways() -> list[str]:
        return [check.detail for check in (await other_writers(dsn))[1]]

    assert await ways() == [f"{names['app']} has UPDATE"]
    await installation.install(settings.default, GuardRequest("public.orders", dsn=dsn, role=GATEWAY))
    assert await ways() == []
    await session.execute("GRANT SET ON PARAMETER session_replication_role TO {app}".format(**names))
    assert await ways() == [f"could pass each guard: {WORDS['past-triggers']}"]
    assert await writes(dsn, names["app"], "SET session_replication_role = replica; UPDATE orders SET note = 'x'")
    report, _ = await other_writers(dsn)
    await session.execute("\n".join(findings.fix_sql(report)))
    assert await ways() == []
    await installation.install(settings.default, GuardRequest("public.orders", dsn=dsn, role=names["app"]))
    assert await ways() == [f"{names['app']} has UPDATE"], "the guard lets that role through"
    await installation.remove(settings.default, "public.orders", dsn)


@pytest.mark.thorough
async def test_the_command_says_it_as_json_and_with_its_exit_code(
    dsn: str, session: asyncpg.Connection, names: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'[postgres]\ndsn = "{as_gateway(dsn)}"\n[[callers]]\nname = "writer"\napi_key = "{"k" * 32}"\n{GRANTS_TOML}'
    )

    async def doctor(*options: str) -> tuple[int, str]:
        answer = await asyncio.to_thread(called, "doctor", "--config", str(file), "--trust", "postgres", *options)
        return answer.returncode, answer.stdout

    assert (await doctor("--strict"))[0] == 0
    await session.execute("GRANT UPDATE ON orders TO {app}".format(**names))
    assert (await doctor())[0] == 0
    status, text = await doctor("--json", "--strict")
    [check] = [one for part in json.loads(text)["sections"] for one in part["checks"] if one["status"] == "warning"]
    assert (status, check["name"], check["detail"]) == (1, "table public.orders", f"{names['app']} has UPDATE")
    assert (await doctor("--strict", "--trust", names["app"]))[0] == 0
    status, script = await doctor("--fix-sql")
    assert status == 0
    await session.execute(script)
    assert (await doctor("--strict"))[0] == 0
    assert (await doctor("--fix-sql"))[1] == "-- Nothing is to be done.\n"


@pytest.mark.thorough
async def test_missing_grants_are_printed(dsn: str, session: asyncpg.Connection, names: dict[str, str]) -> None:
    await session.execute(
        'CREATE TABLE "Odd ""name" (id serial PRIMARY KEY); REVOKE ALL ON "Odd ""name" FROM fencing_gateway; '
        'REVOKE ALL ON SEQUENCE "Odd ""name_id_seq" FROM fencing_gateway'
    )
    for left in (2, 1, 0):
        report, _ = await other_writers(dsn)
        lacking = [check for check in report.checks if check.name == "privileges"]
        assert bool(lacking) is bool(left)
        if left:
            await session.execute("\n".join(findings.fix_sql(report)))
    gateway = await asyncpg.connect(as_gateway(dsn))
    await gateway.execute('INSERT INTO "Odd ""name" DEFAULT VALUES')
    await gateway.close()


ALL: dict[str, object] = {"NotPrincipal": None, "Principal": "*"}
INSECURE = {"Bool": {"aws:SecureTransport": "false"}}
ALL_BUT_ONE = {
    "Effect": "Deny",
    "NotPrincipal": {"AWS": "arn:aws:iam::1:user/gateway"},
    "Action": "s3:*",
    "Resource": "arn:aws:s3:::b/*",
}


@pytest.mark.parametrize(
    ("statement", "who"),
    [
        ({"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject"}, []),
        ({"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject"}, []),
        ({"Effect": "Allow", "Principal": "*", "Action": "s3:Put*"}, ["*"]),
        ({"Effect": "Allow", "Principal": {"AWS": ["a", "b"]}, "Action": ["s3:DeleteObject"]}, ["a", "b"]),
        ({"Effect": "Allow", "Principal": {"AWS": "a"}, "NotAction": "s3:PutObject"}, ["a"]),
        ({"Effect": "Allow", "NotPrincipal": {"AWS": "a"}, "Action": "*"}, ["everybody but a"]),
        ({"Effect": "Allow", "Principal": {"AWS": "a"}, "Action": "s3:PutBucketPolicy"}, ["a"]),
    ],
)
def test_a_policy_says_who_may_write(statement: dict[str, object], who: list[str]) -> None:
    assert [name for name, _ in policy_writers({"Statement": statement})] == who


@pytest.mark.parametrize(
    ("changed", "only"),
    [
        ({}, ("arn:aws:iam::1:user/gateway",)),
        ({"Action": "s3:PutObject"}, ()),
        ({"Resource": "arn:aws:s3:::b/part/*"}, ()),
        ({"Effect": "Allow"}, ()),
        ({"Condition": INSECURE}, ()),
        (ALL | {"Condition": {"StringNotEquals": {"aws:PrincipalArn": ["role/gateway"]}}}, ("role/gateway",)),
        (ALL | {"Condition": {"StringNotEquals": {"aws:PrincipalArn": "a"}, **INSECURE}}, ()),
    ],
)
def test_a_policy_denies_writes_to_all_but_some(changed: dict[str, object], only: tuple[str, ...]) -> None:
    statement = {key: value for key, value in {**ALL_BUT_ONE, **changed}.items() if value is not None}
    assert sole_writers({"Statement": [statement]}, "b") == only


async def test_in_observe_mode_the_other_writers_and_their_sessions_are_named(
    dsn: str, session: asyncpg.Connection, names: dict[str, str]
) -> None:
    """A retrofit begins so: the programs that write by themselves are what has to move."""
    app = names["app"]
    await session.execute(f"GRANT SELECT, INSERT, UPDATE ON orders TO {app}")
    sessions = [
        await asyncpg.connect(re.sub("://[^@]*@", f"://{role}@", dsn), server_settings={"application_name": program})
        for role, program in ((app, "billing"), (app, "billing"), (GATEWAY, "legacy"))
    ]
    writing = sessions[0].transaction()
    await writing.start()
    await sessions[0].execute("INSERT INTO orders VALUES (1)")
    for settings in ({"fencing": {"mode": "observe"}}, {"tables": [{"name": "public.orders", "mode": "observe"}]}):
        report = await examine(config(dsn, **settings).default)
        [section] = [one for one in report.sections if one.title == "other writers"]
        found = {check.name: check for check in section.checks}
        assert f"{app} has INSERT, UPDATE" in found["table public.orders"].detail
        of_app, of_gateway = found[f"sessions as {app}"], found[f"sessions as {GATEWAY}"]
        assert of_app.detail == "2 of billing, 1 with a write in an open transaction"
        assert of_gateway.detail == "1 of legacy"
        assert "the mode is enforce" in of_app.advice
    enforced = await examine(config(dsn).default)
    assert not any(check.name.startswith("sessions") for one in enforced.sections for check in one.checks)
    await writing.rollback()
    for one in sessions:
        await one.close()
