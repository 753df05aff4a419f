"""Each 503 is in the log: one line a minute for each cause. Readiness and the doctor agree with it."""

import asyncio
import os
import re
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from time import monotonic
from typing import Any

import asyncpg
import httpx
import pytest
import structlog

from gateway.config import Config
from gateway.demo.embedded import EmbeddedPostgres
from gateway.doctor.examination import examine
from gateway.findings import CheckStatus, DoctorReport, fix_sql
from gateway.observe import logs, repeats
from gateway.observe.events import Sinks
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import call, connect, outcome
from tests.objects.test_forms import post, signed
from tests.postgres import GATEWAY, as_gateway, fresh_database
from tests.processes import called
from tests.running import API_KEY, Events, config, running
from tests.test_reload import Served, served
from tests.waiting import PATIENCE

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, note text);
INSERT INTO orders VALUES (1, ''), (2, '');
CREATE FUNCTION touch(id bigint) RETURNS void LANGUAGE sql
    AS 'UPDATE orders SET note = note WHERE orders.id = touch.id';
"""
NO_ROOM = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE SQLSTATE '53100' USING MESSAGE = 'could not extend file: No space left on device'; END $$;
DO $$ DECLARE relation regclass; BEGIN
    FOR relation IN SELECT oid FROM pg_class WHERE relnamespace = 'fencing'::regnamespace AND relkind IN ('r', 'p')
        AND relname NOT LIKE 'entry%' AND relname <> 'opening'
    LOOP
        EXECUTE format('CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON %s EXECUTE FUNCTION no_room()', relation);
    END LOOP;
END $$;
"""
NO_RIGHTS = f"""
REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencing FROM {GATEWAY};
GRANT UPDATE ON fencing.opening TO {GATEWAY};
"""


WRITE = {"method": "PATCH", "table": "orders", "query": "id=eq.1", "body": {"note": "x"}}


@dataclass(frozen=True)
class Scene:
    """A gateway, and a client for each of its planes."""

    origin: str

    def http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        return httpx.AsyncClient(base_url=self.origin, headers=headers, timeout=2 * PATIENCE)

    async def ask(
        self, method: str, path: str, *, key: str = "", resource: str = "", **options: Any
    ) -> tuple[int, str]:
        async with self.http() as client:
            named = {"Fencing-Token": "5", "Idempotency-Key": key, "Fencing-Resource": resource}
            headers = {name: value for name, value in named.items() if value}
            answer = await client.request(method, path, headers=headers, **options)
        code = answer.json().get("code", "") if answer.content else ""
        return answer.status_code, code

    async def object(self, operation: str, **arguments: Any) -> tuple[int, str]:
        return await outcome(getattr(connect(self.origin, "5"), operation), **arguments)

    async def form(self) -> tuple[int, str]:
        answer = await post(signed(self.origin, "form"))
        return answer.status_code, ""

    async def many(self) -> tuple[int, str]:
        """Delete several keys. The answer is a success, and has the errors of each key."""
        wanted = {"Objects": [{"Key": "a"}]}
        answer = await call(connect(self.origin, "5").delete_objects, Delete=wanted)
        [error] = answer["Errors"]
        return 503 if error["Code"] == "ServiceUnavailable" else 200, error["Code"]


Way = Callable[[Scene], Awaitable[tuple[int, str]]]
TABLE_WAYS: dict[str, Way] = {
    "patch": lambda scene: scene.ask("PATCH", "/v1/tables/orders?id=eq.1", json={"note": "x"}),
    "insert": lambda scene: scene.ask("POST", "/v1/tables/orders", json={"id": 9, "note": "x"}),
    "delete": lambda scene: scene.ask("DELETE", "/v1/tables/orders?id=eq.2"),
    "again": lambda scene: scene.ask("PATCH", "/v1/tables/orders?id=eq.1", json={"note": "x"}),
    "kept": lambda scene: scene.ask("PATCH", "/v1/tables/orders?id=eq.1", json={"note": "x"}, key='"k"'),
    "function": lambda scene: scene.ask("POST", "/v1/tables/rpc/touch", json={"id": 1}, resource="public.orders/1"),
    "transaction": lambda scene: scene.ask("POST", "/v1/transaction", json={"writes": [WRITE]}),
}
API_WAYS: dict[str, Way] = {
    "barrier": lambda scene: scene.ask("POST", "/v1/fences/job/1/barrier", json={"token": "5"}),
    "lease": lambda scene: scene.ask("POST", "/v1/leases/job/2", json={"holder": "ann"}),
}
OBJECT_WAYS: dict[str, Way] = {
    "put": lambda scene: scene.object("put_object", Key="a", Body=b"x"),
    "remove": lambda scene: scene.object("delete_object", Key="a"),
    "copy": lambda scene: scene.object("copy_object", Key="b", CopySource="bucket/there"),
    "tags": lambda scene: scene.object("put_object_tagging", Key="there", Tagging={"TagSet": []}),
    "form": Scene.form,
}
UPLOADS: dict[str, Way] = {
    "upload": lambda scene: scene.object("create_multipart_upload", Key="c"),
}
READS: dict[str, Way] = {
    "head": lambda scene: scene.object("get_object", Key="there"),
    "list": lambda scene: scene.object("list_objects_v2"),
}
MANY: dict[str, Way] = {"many": Scene.many}


FUNCTIONS = ("public.touch",)


@dataclass(frozen=True)
class Cause:
    """A reason for 503. ``place``: what of the configuration is broken. ``said``, ``advice``: texts of its line."""

    ways: dict[str, Way]
    code: str
    said: str
    advice: str
    state: tuple[str, str]
    finding: tuple[str, str]
    sql: str = ""
    dsn: Callable[[str], str] = as_gateway
    store: dict[str, Any] | None = None
    particulars: str = ""


NOWHERE = "postgresql://nobody:pw@127.0.0.1:9/shop"
CAUSES = {
    "rights": Cause(
        {**TABLE_WAYS, **API_WAYS, **OBJECT_WAYS, **MANY},
        "right-missing",
        "The gateway's role in the database lacks a right. Nothing more was done",
        "gateway migrate",
        ("postgres", "right-missing"),
        ("schema", "the role lacks"),
        sql=NO_RIGHTS,
    ),
    "disk": Cause(
        {**TABLE_WAYS, **API_WAYS, **OBJECT_WAYS, **MANY},
        "unavailable",
        "A disk of the database is full",
        "Make room",
        ("postgres", "full"),
        ("room", "full"),
        sql=NO_ROOM,
        particulars="No space left on device",
    ),
    "database down": Cause(
        {**TABLE_WAYS, **API_WAYS, **OBJECT_WAYS, **MANY},
        "unavailable",
        "The database cannot be reached",
        "postgres.dsn",
        ("postgres", "unreachable"),
        ("connection", "127.0.0.1:9/shop"),
        dsn=lambda _: NOWHERE,
        particulars="127.0.0.1:9/shop: Connection refused",
    ),
    "store down": Cause(
        {**OBJECT_WAYS, **READS, **UPLOADS},
        "unavailable",
        "The store cannot be reached",
        "s3.endpoint",
        ("s3", "unreachable"),
        ("connection", "127.0.0.1:9"),
        store={"endpoint": "http://127.0.0.1:9"},
        particulars="127.0.0.1:9: ",
    ),
    "store refuses": Cause(
        {**OBJECT_WAYS, **READS, **UPLOADS},
        "unavailable",
        "The object store refuses the gateway",
        "s3.access_key_id",
        ("s3", "refused"),
        ("connection", "refuses the gateway"),
        store={"secret_access_key": "wrong"},
        particulars="127.0.0.1",
    ),
}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Any:
    logger = structlog.testing.CapturingLogger()
    monkeypatch.setattr(logs, "_logger", logger)
    monkeypatch.setattr(repeats, "EVERY", 1.0)
    return logger.calls


def lines(written: Any, *names: str) -> list[dict[str, Any]]:
    return [{**one.kwargs, "event": one.args[0]} for one in written if one.args[0] in names]


def problems(report: DoctorReport) -> dict[str, str]:
    return {
        check.name: f"{check.detail} {check.advice}"
        for section in report.sections
        for check in section.checks
        if check.status is CheckStatus.PROBLEM
    }


def configured(cause: Cause, dsn: str, endpoint: str) -> Config:
    return config(dsn, endpoint, s3=cause.store or {}, postgres={"dsn": cause.dsn(dsn), "functions": FUNCTIONS})


@pytest.mark.parametrize("name", CAUSES)
async def test_each_cause_has_one_line_a_minute_and_readiness_and_doctor_agree(
    postgres_server: EmbeddedPostgres, written: Any, name: str
) -> None:
    cause, double, began = CAUSES[name], S3Double(buckets=["bucket"]), monotonic()
    async with fresh_database(postgres_server) as dsn, serve(double) as endpoint:
        owner = await asyncpg.connect(dsn)
        await owner.execute(TABLES)
        sound = config(dsn, endpoint)
        async with running(sound) as origin:
            await call(connect(origin, "1").put_object, Key="there", Body=b"x")
        broken = configured(cause, dsn, endpoint)
        async with running(broken, Sinks(Events(), logs.log)) as origin:
            scene = Scene(origin)
            if cause.sql:
                async with scene.http() as client:
                    assert (await client.get("/readyz")).status_code == 204
                await owner.execute(cause.sql)
            answers = {way: await ask(scene) for way, ask in cause.ways.items()}
            assert {way: status for way, (status, _) in answers.items()} == dict.fromkeys(answers, 503)
            for way in {**TABLE_WAYS, **API_WAYS}.keys() & answers.keys():
                assert answers[way] == (503, cause.code), way
            async with scene.http() as client:
                await client.post("/ui/login", data={"api_key": API_KEY}, headers={"Origin": origin})
                ready, health, page = [await client.get(path) for path in ("/readyz", "/healthz", "/ui/")]
            assert ready.status_code == 503
            service, state = cause.state
            assert f"{service} is {state}" in ready.json()["detail"]
            assert health.json()[service] == state
            said = " ".join(re.sub(r"<[^>]*>", "", unescape(page.text)).split())
            report = await examine(broken.default)
            await asyncio.sleep(2 * repeats.EVERY)
        await owner.close()
    assert not lines(written, "request"), "there is no line of each request unless it is wanted"
    found = lines(written, "request not served", "service unreachable")
    texts = [one.get("cause") or one["error"] for one in found]
    assert found, "the log has the cause"
    assert all(cause.said in text for text in texts), texts
    assert all(cause.advice in one["advice"] for one in found)
    # Work in the background may have met it, too.
    assert sum(one["count"] for one in found) >= len(answers) + 2, "each request, and each look at the service"
    assert len(found) <= 1 + (monotonic() - began) / repeats.EVERY, "a line at first, and one after each short minute"
    assert any(cause.particulars in str(one.get("particulars") or one.get("error")) for one in found)
    place, words = cause.finding
    assert all(text in problems(report)[place] for text in (words, cause.advice))
    assert all(text in said for text in (cause.said, cause.advice)), "the page has the words of the log"


async def test_the_doctor_has_the_sql_for_missing_rights(dsn: str) -> None:
    owner = await asyncpg.connect(dsn)
    await owner.execute(f"{NO_RIGHTS}; REVOKE USAGE ON SCHEMA fencing FROM {GATEWAY}")
    await owner.execute("\n".join(fix_sql(await examine(config(dsn).default))))
    await owner.close()
    assert "schema" not in problems(await examine(config(dsn).default))


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of a few megabytes. Only a superuser of this machine can make one."""
    with tempfile.TemporaryDirectory(prefix="small") as name:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", name], check=False)
        if made.returncode:
            pytest.skip("no file system can be made")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


async def test_a_disk_that_is_really_full(postgres_server: EmbeddedPostgres, tmp_path: Path) -> None:
    """The command says it once, with the words of the system. With room again, it serves again."""
    with small_disk() as disk:
        async with fresh_database(postgres_server) as dsn:
            owner = await asyncpg.connect(dsn)
            await owner.execute(TABLES)
            owned = await owner.fetchval("SHOW data_directory")
            place = disk / "fencing"
            place.mkdir()
            status = Path(owned).stat()
            os.chown(place, status.st_uid, status.st_gid)
            disk.chmod(0o755)
            await owner.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
            try:
                relations = await owner.fetch(
                    "SELECT c.oid::regclass::text AS name, relkind IN ('i', 'I') AS index FROM pg_class AS c "
                    "WHERE relnamespace = 'fencing'::regnamespace AND relkind IN ('r', 'i')"
                )
                for row in relations:
                    kind = "INDEX" if row["index"] else "TABLE"
                    await owner.execute(f"ALTER {kind} {row['name']} SET TABLESPACE small")
                with served(tmp_path, dsn) as gateway:
                    await _fill_and_empty(gateway, disk)
            finally:
                await owner.close()
        await _drop_tablespace(postgres_server.dsn())


async def _fill_and_empty(gateway: Served, disk: Path) -> None:
    async with gateway.client() as client:

        async def raise_fences() -> set[int]:
            paths = [f"/v1/fences/{'x' * 400}/{number}/barrier" for number in range(200)]
            return {(await client.post(path, json={"token": "5"})).status_code for path in paths}

        with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(65536)):
                pass
        assert 503 in await raise_fences()
        ready = await client.get("/readyz")
        assert (ready.status_code, "postgres is full" in ready.text) == (503, True)
        [line] = gateway.events("request not served")
        assert "No space left on device" in line["particulars"]
        assert "Make room" in line["advice"]
        assert len(gateway.events("service unreachable")) == 0, "one line for one cause"
        found = await asyncio.to_thread(called, "doctor", "--config", str(gateway.file))
        assert "room: A disk of the database is full" in found.stdout
        (disk / "ballast").unlink()
        assert await raise_fences() == {200}
        assert (await client.get("/readyz")).status_code == 204


async def _drop_tablespace(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("DROP TABLESPACE small")
    await connection.close()


@pytest.mark.parametrize("name", ["store down", "store refuses", "database down"])
async def test_a_check_of_the_configuration_tries_both_services(
    postgres_server: EmbeddedPostgres, tmp_path: Path, name: str
) -> None:
    cause = CAUSES[name]
    async with fresh_database(postgres_server) as dsn, serve(S3Double(buckets=["bucket"])) as endpoint:
        broken = configured(cause, dsn, endpoint)
        assert broken.s3 is not None
        file = tmp_path / "gateway.toml"
        file.write_text(
            f'[postgres]\ndsn = "{broken.default.postgres.dsn.get_secret_value()}"\n'
            f'[s3]\nendpoint = "{broken.s3.endpoint}"\naccess_key_id = "{broken.s3.access_key_id}"\n'
            f'secret_access_key = "{broken.s3.secret_access_key[0].get_secret_value()}"\n'
        )
        checked = await asyncio.to_thread(called, "config", "check", "--config", str(file))
    [line] = [one for one in checked.stderr.splitlines() if cause.said in one]
    assert cause.advice in line
    assert cause.particulars in line


async def test_another_name_for_the_rows_of_a_table_is_found_by_the_doctor_and_not_logged(
    dsn: str, written: Any
) -> None:
    owner = await asyncpg.connect(dsn)
    await owner.execute(
        "CREATE TABLE sales (id bigint, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);"
        "CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');"
        "CREATE VIEW recent AS SELECT id, day FROM sales"
    )
    await owner.close()
    rules = [{"name": "public.sales", "resource": "sale/{id}"}, {"name": "public.recent", "resource": "recent/{id}"}]
    async with running(config(dsn, tables=rules), Sinks(Events(), logs.log)) as origin, httpx.AsyncClient() as client:
        await client.get(f"{origin}/v1/tables/sales")
    assert not lines(written, "catalog warning")
    report = await examine(config(dsn, tables=rules).default)
    found = [check for one in report.sections for check in one.checks if check.name == "table public.sales"]
    for name in ("sales_1", "recent"):
        [check] = [one for one in found if f"public.{name}" in one.detail]
        [rule] = check.rules
        assert f'name = "public.{name}"' in rule
        assert 'resource = "sale/{id}"' in rule
    mended = [rules[0], *({"name": f"public.{name}", "resource": "sale/{id}"} for name in ("sales_1", "recent"))]
    report = await examine(config(dsn, tables=mended).default)
    assert not [check for one in report.sections for check in one.checks if check.name == "table public.sales"]
