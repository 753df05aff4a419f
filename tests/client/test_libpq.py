"""Connection strings and options under a lock: what libpq, the drivers and the server make of them."""

import asyncio
from urllib.parse import quote

import asyncpg
import psycopg
import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st

from gateway.client import FencedClient, LockLost, libpq
from tests.client.stage import Stage

HOSTILE = (
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40).map(str.strip).filter(bool)
)
LOCK = {"Fencing-Resource": "order/5", "Fencing-Token": "34", "Fencing-Holder": r"it's \ 'a' \' -c x=y"}
OTHER = {"Fencing-Resource": "order/6", "Fencing-Token": "2.12"}
TAG = "fencing-0123456789abcdef"


def read(dsn: str) -> dict[str, str]:
    """Return the parameters as libpq itself reads them."""
    return {key: str(value) for key, value in psycopg.conninfo.conninfo_to_dict(dsn).items()}


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "postgresql://",
        "postgresql:///shop",
        "postgres://app@db/shop",
        "postgresql://app:p%40s%2Fs@h1:1,h2:2,[::1]:3/shop?target_session_attrs=read-write&connect_timeout=3",
        "postgresql://h1,h2:7/",
        "postgresql://%2Frun%2Fpg/shop?sslmode=require",
        "postgresql:///shop?host=/tmp&options=-c%20statement_timeout%3D5s&application_name=my%20app",
        "host=h1,h2 port=1,2 dbname='my shop' user = app",
        r"host=a password='it\'s \\ secret' options='-c statement_timeout=5s -c search_path=a\\ b'",
        r"host=a password=it\'s\ secret application_name = x",
        "dbname=''",
    ],
)
def test_a_connection_string_keeps_what_it_says(dsn: str) -> None:
    before = read(dsn)
    assert libpq.parameters(dsn) == before
    made = read(libpq.connection_string(dsn, LOCK, [OTHER], TAG, "-c inherited=1"))
    options, named = made.pop("options"), made.pop("application_name")
    assert options.startswith(before.pop("options", "-c inherited=1"))
    assert named.split() == [*before.pop("application_name", "").split(), "order/5=34", TAG]
    assert made == before
    assert libpq.declared(options) == [LOCK, OTHER]


@pytest.mark.parametrize("dsn", ["shop", "host", "host='x", "host='x'y", "postgresql://h:x/", "postgresql:///?x"])
def test_what_libpq_cannot_read_is_refused(dsn: str) -> None:
    with pytest.raises(ValueError, match="connection string"):
        libpq.connection_string(dsn, LOCK, [], TAG, "")
    if dsn != "postgresql://h:x/":  # libpq looks at the port only when it connects
        with pytest.raises(psycopg.Error):
            read(dsn)


@given(HOSTILE, HOSTILE)
def test_any_holder_arrives(holder: str, own: str) -> None:
    lock = {**LOCK, "Fencing-Holder": holder}
    for dsn in (f"postgresql://h/d?application_name={quote(own, safe='')}", "host=h"):
        made = read(libpq.connection_string(dsn, lock, [{**OTHER, "Fencing-Holder": own}], TAG, ""))
        assert libpq.declared(made["options"]) == [lock, {**OTHER, "Fencing-Holder": own}]
        assert len(made["application_name"]) <= libpq.LONGEST_NAME
        assert TAG in made["application_name"]


def test_the_name_of_a_session_says_its_lock_and_keeps_the_tags_of_locks_around_it() -> None:
    outer = libpq.name("nightly", LOCK, TAG)
    assert outer == f"nightly order/5=34 {TAG}"
    other = "fencing-fedcba9876543210"
    inner = libpq.name(outer, {"Fencing-Resource": "order/" + "6" * 500, "Fencing-Token": "1"}, other)
    assert inner.endswith(f"66=1 {TAG} {other}")
    assert len(libpq.name(inner, LOCK, TAG)) <= libpq.LONGEST_NAME


def test_locks_of_a_run_around_this_one_stay_held() -> None:
    inner = {**LOCK, "Fencing-Resource": "order/7"}
    options = libpq.extend(libpq.extend(libpq.extend("-c a=b", LOCK), OTHER), inner)
    assert options.startswith("-c a=b ")
    assert libpq.declared(options) == [inner, OTHER, LOCK] or libpq.declared(options) == [inner, LOCK, OTHER]
    again = libpq.extend(options, {**LOCK, "Fencing-Token": "35"})
    assert [one["Fencing-Token"] for one in libpq.declared(again) if one["Fencing-Resource"] == "order/5"] == ["35"]


@pytest.mark.parametrize("held", ["x", "[1]", '{"a":1}', '{"a":{}}', '{"a":{"token":1}}'])
def test_held_tokens_that_cannot_be_read_are_refused(held: str) -> None:
    with pytest.raises(ValueError, match=r"fencing\.held"):
        libpq.extend(f"-c fencing.held={held}", LOCK)


def test_the_variables_of_a_connection_string() -> None:
    assert libpq.environment("postgresql://app:s%20cret@h1,h2:7/shop?sslmode=require&target_session_attrs=any") == {
        "PGUSER": "app", "PGPASSWORD": "s cret", "PGHOST": "h1,h2", "PGPORT": ",7", "PGDATABASE": "shop",
        "PGSSLMODE": "require", "PGTARGETSESSIONATTRS": "any",
    }  # fmt: skip
    with pytest.raises(ValueError, match="none of libpq's"):
        libpq.environment("host=a ld_preload=x")


# Sessions of databases under a lock: their settings by each driver, and their end when the lock is lost.


SHOWN = "SELECT current_setting('fencing.resource'), current_setting('fencing.token'), current_setting('fencing.held')"


async def test_each_driver_gets_the_settings(stage: Stage, client: FencedClient, job: str) -> None:
    async with client.lock(job) as lock, client.lock(f"{job}/part") as part:
        held = f'{{"{job}/part":{{"token":"{part.token}","holder":"{part.holder}"}}}}'
        expected = (job, lock.token, held)
        for dsn in (lock.dsn(stage.dsn, part), lock.dsn(psycopg.conninfo.make_conninfo(stage.dsn), part)):
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                assert await (await connection.execute(SHOWN)).fetchone() == expected
        arguments = lock.connect_args(part, options="-c work_mem=5MB")
        async with await psycopg.AsyncConnection.connect(stage.dsn, **arguments) as connection:  # type: ignore[arg-type]
            assert await (await connection.execute(SHOWN)).fetchone() == expected
            assert await (await connection.execute("SHOW work_mem")).fetchone() == ("5MB",)
        engine = sqlalchemy.create_engine(
            stage.dsn.replace("postgresql:", "postgresql+psycopg:"), connect_args=lock.connect_args(part)
        )
        with engine.connect() as session:
            assert tuple(session.exec_driver_sql(SHOWN).one()) == expected
        engine.dispose()
        opened = await asyncpg.connect(stage.dsn, server_settings=lock.postgres_settings(part))
        assert tuple(await opened.fetchrow(SHOWN) or ()) == expected
        await opened.close()
        variables = await lock.environment(s3=False, inherited={"PGOPTIONS": "-c work_mem=5MB", "PGAPPNAME": "job"})
        assert variables["PGOPTIONS"].startswith("-c work_mem=5MB -c fencing.resource=")
        assert " fencing-" in variables["PGAPPNAME"]
        assert lock.token in variables["PGAPPNAME"]


def test_the_same_without_an_event_loop(stage: Stage, job: str) -> None:
    with stage.blocking() as client, client.lock(job) as lock:
        with psycopg.connect(lock.dsn(stage.dsn)) as connection:
            assert connection.execute(SHOWN).fetchone() == (job, lock.token, "")
        assert lock.environment(s3=False)["PGOPTIONS"].startswith("-c fencing.resource=")


@pytest.mark.parametrize("use", ["dsn", "connect_args", "postgres_settings"])
async def test_a_lost_lock_gives_out_nothing(stage: Stage, eager: FencedClient, job: str, use: str) -> None:
    arguments = (stage.dsn,) if use == "dsn" else ()
    with pytest.raises(LockLost):
        async with eager.lock(job, on_loss="tell") as lock:
            stage.ended(job)
            await lock.lost.wait()
            getattr(lock, use)(*arguments)


async def test_its_sessions_end_with_it_and_no_others(stage: Stage, eager: FencedClient, job: str) -> None:
    async with eager.lock(job, on_loss="tell") as lock:
        own = await psycopg.AsyncConnection.connect(lock.dsn(stage.dsn))
        async with await psycopg.AsyncConnection.connect(stage.dsn, application_name="another") as others:
            await own.execute("SELECT 1")
            stage.ended(job)
            with pytest.raises(psycopg.OperationalError, match="terminating connection"):
                await own.execute("SELECT pg_sleep(30)")
            assert await (await others.execute("SELECT 1")).fetchone() == (1,)


async def test_its_sessions_end_also_where_the_block_is_cancelled(stage: Stage, eager: FencedClient, job: str) -> None:
    with pytest.raises(LockLost):
        async with eager.lock(job) as lock:
            own = await psycopg.AsyncConnection.connect(lock.dsn(stage.dsn))
            stage.ended(job)
            await asyncio.sleep(30)
    with pytest.raises(psycopg.OperationalError):
        await own.execute("SELECT 1")


async def test_a_database_that_is_away_hides_no_loss(
    stage: Stage, eager: FencedClient, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LockLost):
        async with eager.lock(job) as lock:
            lock.dsn("postgresql://app:a-secret@127.0.0.1:9/nowhere")
            stage.ended(job)
            await asyncio.sleep(30)
    assert "were not ended" in caplog.text
    assert "a-secret" not in caplog.text
