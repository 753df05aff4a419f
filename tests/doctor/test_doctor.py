"""The doctor finds what is wrong with an installation, says what to do about it, and never stops at the first thing.

Against a real PostgreSQL and the S3 double. No report may contain a secret.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from gateway.auth.grants import Action
from gateway.config import Config
from gateway.db import intents, migrations, rights, uploads
from gateway.db.database import Database
from gateway.db.uploads import RecordedUpload, UploadKey
from gateway.demo.embedded import EmbeddedPostgres
from gateway.doctor import examination as doctor
from gateway.doctor import grants
from gateway.doctor.examination import Check, CheckStatus, DoctorReport, render
from gateway.doctor.grants import observed
from gateway.fencing.decision import Presented
from gateway.fencing.intent import Announcement, Begin
from gateway.fencing.token import Token
from tests.doubles.s3 import S3Double, serve
from tests.postgres import GATEWAY
from tests.running import OPEN, config

TRUSTED = ("postgres", GATEWAY, "store")
SECRETS = ("double-secret", "writer-secret", "writer-api-key", "role-password")


@pytest.fixture
def double() -> S3Double:
    return S3Double(buckets=["reports", "other"])


@pytest.fixture
async def endpoint(double: S3Double) -> AsyncIterator[str]:
    async with serve(double) as address:
        yield address


async def examine(settings: Config, clock: doctor.Clock = doctor.local_time) -> DoctorReport:
    report = await doctor.examine(settings.default, clock, trusted=TRUSTED)
    text = "\n".join(render(report))
    assert not [secret for secret in SECRETS if secret in text]
    return report


def found(report: DoctorReport, name: str) -> Check:
    checks = [check for check in report.checks if check.name == name]
    assert len(checks) == 1, "\n".join(render(report))
    return checks[0]


def worse(report: DoctorReport, status: CheckStatus) -> list[str]:
    return [check.name for check in report.checks if check.status is status]


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


ALL = {"actions": [action.value for action in Action], "everything": True}
JOBS = {"match": "reports/{job}/**", "resource": "job/{job}"}
CALLER = {"name": "writer", "access_key_id": "writer", "secret_access_key": "s" * 32, "api_key": "k" * 32}


async def test_a_sound_installation_has_no_problems(dsn: str, endpoint: str, double: S3Double) -> None:
    report = await examine(config(dsn, endpoint, objects=[JOBS], callers=[CALLER]))
    assert not report.problems, "\n".join(render(report))
    assert [section.title for section in report.sections] == [
        "configuration",
        "database",
        "object store",
        "other writers",
        "pending writes",
    ]
    assert worse(report, CheckStatus.WARNING) == []
    assert "put-race-if-match" in found(report, "bucket reports").detail
    assert not double.objects("reports")
    assert not [each for each in double.requests if each.bucket == "other"], "it is not named by any rule"


async def test_without_rules_every_bucket_of_the_store_is_probed(dsn: str, endpoint: str) -> None:
    report = await examine(config(dsn, endpoint))
    assert found(report, "bucket reports").status is found(report, "bucket other").status is CheckStatus.OK


class TestConfiguration:
    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("sections", "name", "words"),
        [
            ({"grants": OPEN}, "anonymous", "barrier, call, credentials"),
            ({"grants": []}, "grants", "every request is denied"),
            ({"grants": [{**ALL, "callers": ["anonymous"]}]}, "callers without grants", "writer"),
            ({"callers": []}, "callers", "none is configured"),
            (
                {
                    "callers": [{"name": name, "api_key": f"key-of-{name}"} for name in ("of-bucket", "of-table")],
                    "grants": [
                        {"callers": ["of-bucket"], "actions": ["read"], "buckets": ["reports"]},
                        {"callers": ["of-table"], "actions": ["write"], "tables": ["public.a"]},
                        {"callers": ["*"], "actions": ["lock"], "resources": ["a"]},
                    ],
                },
                "S3 keys",
                "without one: of-bucket",
            ),
            (
                {"callers": [{"name": "w", "access_key_id": "w", "secret_access_key": "writer-secret"}]},
                "api keys",
                "without one: w",
            ),
            ({"callers": [{**CALLER, "api_key": "k" * 31}]}, "short keys", "guessed: writer"),
            ({"callers": [{**CALLER, "secret_access_key": "s" * 31}]}, "short keys", "guessed: writer"),
            ({"fencing": {"mode": "observe"}}, "observe", "everything without a mode"),
            ({"objects": [{**JOBS, "mode": "observe"}]}, "observe", "reports/{job}/**"),
            ({"tables": [{"name": "public.a", "mode": "observe"}]}, "observe", "public.a"),
            ({"server": {"listen": "0.0.0.0:8080"}}, "listen", "without TLS"),
        ],
        ids=str,
    )
    async def test_each_doubtful_setting_is_a_warning(
        self, dsn: str, endpoint: str, sections: dict[str, Any], name: str, words: str
    ) -> None:
        check = found(await examine(config(dsn, endpoint, **sections)), name)
        assert check.status is CheckStatus.WARNING
        assert check.detail.endswith(words) if name == "S3 keys" else words in check.detail
        assert check.advice

    async def test_a_misspelt_name_in_a_grant_is_told_with_the_one_that_is_meant(self, dsn: str, endpoint: str) -> None:
        """Patterns that match something are not told."""
        await execute(dsn, "CREATE TABLE orders (id bigint PRIMARY KEY)")
        good = {"tables": ["public.*", "*.orders", "*"], "buckets": ["reports/a/**", "*", "*/a"]}
        report = await examine(
            config(
                dsn,
                endpoint,
                grants=[
                    {"callers": ["writer"], "actions": ["read"], "tables": ["public.ordres"], "buckets": ["report"]},
                    {"callers": ["writer"], "actions": ["write"], "resources": ["public.orders/*"]},
                    {"callers": ["writer"], "actions": ["read"], **good},
                ],
            )
        )
        told = [check for check in report.checks if check.name.endswith("target")]
        assert [(check.detail, check.advice) for check in told] == [
            ("[[grants]] number 1: there is no table public.ordres", "Did you mean public.orders?"),
            ("[[grants]] number 1: there is no bucket report", "Did you mean reports?"),
        ]

    async def test_observe_mode_is_told_with_the_callers_that_it_will_refuse(self, dsn: str, endpoint: str) -> None:
        """Beforehand, and beside them the writes that it lets pass without a grant of their resource."""
        callers = [
            {**CALLER, "name": name, "access_key_id": name, "secret_access_key": name * 32, "api_key": name * 40}
            for name in "abcr"
        ]
        settings = config(
            dsn,
            endpoint,
            callers=callers,
            fencing={"mode": "observe"},
            tables=[
                {"name": "public.orders", "resource": "order/{id}"},
                {"name": "public.strict", "mode": "enforce"},
            ],
            objects=[JOBS],
            postgres={"dsn": dsn, "functions": ["public.pay"]},
            grants=[
                {
                    "callers": ["a"],
                    "actions": ["write", "call"],
                    "tables": ["public.*"],
                    "functions": ["public.*"],
                    "buckets": ["reports"],
                    "resources": ["order/*"],
                },
                {"callers": ["b"], "actions": ["write"], "resources": ["order/*", "job/*"]},
                {"callers": ["c"], "actions": ["write"], "tables": ["public.strict"]},
                {"callers": ["c"], "actions": ["write"], "buckets": ["reports/c/**"], "resources": ["s3/reports/c/**"]},
                {"callers": ["r"], "actions": ["read"], "tables": ["public.*"]},
            ],
        )
        assert [(one.name.partition(" ")[0], one.detail) for one in observed(settings.default)] == [
            (
                "passed",
                (
                    "a: no grant covers job/* at objects reports/{job}/**, "
                    "s3/reports/** at objects reports/** without a rule"
                ),
            ),
            (
                "refused",
                "b: no grant names table public.orders, objects reports/{job}/**, function public.pay",
            ),
            ("refused", "c: no grant names table public.orders, function public.pay"),
            ("passed", "c: no grant covers job/* at objects reports/{job}/**"),
        ]
        enforcing = settings.model_copy(update={"fencing": settings.fencing.model_copy(update={"mode": "enforce"})})
        assert list(observed(enforcing.default)) == []

    async def test_an_endpoint_in_the_clear_is_a_warning(self, dsn: str) -> None:
        store = {"endpoint": "http://192.0.2.1", "access_key_id": "a", "secret_access_key": "b"}
        settings = config(dsn, s3=store, limits={"store_timeout": 0.05})
        check = found(await examine(settings), "objects")
        assert check.status is CheckStatus.WARNING
        assert "http://192.0.2.1" in check.detail


class TestDatabase:
    async def test_a_missing_schema_is_a_problem(self, postgres_server: EmbeddedPostgres) -> None:
        report = await examine(config(postgres_server.dsn("postgres")))
        assert report.problems
        check = found(report, "schema")
        assert "not installed" in check.detail
        assert "gateway migrate" in check.advice
        assert "intents" in found(report, "not tried").detail

    @pytest.mark.parametrize(
        ("revision", "status", "advice"),
        [("r0000", CheckStatus.PROBLEM, "gateway migrate"), ("r9999", CheckStatus.WARNING, "Upgrade this gateway")],
    )
    async def test_another_revision_is_noticed(
        self, dsn: str, revision: str, status: CheckStatus, advice: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(migrations, "BASELINE", "r0000")
        await execute(dsn, f"UPDATE fencing.migration SET version_num = '{revision}'")
        check = found(await examine(config(dsn)), "schema")
        assert check.status is status
        assert advice in check.advice

    async def test_a_server_that_is_not_there_is_a_problem_and_the_store_is_examined_all_the_same(
        self, endpoint: str
    ) -> None:
        report = await examine(config("postgresql://gateway:role-password@127.0.0.1:1/app", endpoint, objects=[JOBS]))
        assert found(report, "intents").status is CheckStatus.PROBLEM
        assert found(report, "bucket reports").status is CheckStatus.OK
        (check,) = (check for check in report.sections[1].checks if check.name == "connection")
        assert check.status is CheckStatus.PROBLEM
        assert "127.0.0.1" in check.detail

    @pytest.mark.parametrize("dsn", ["nonsense", "postgresql://gateway:role-password@[half/app", "mysql://x/y"])
    async def test_a_dsn_that_is_none_is_a_problem(self, dsn: str) -> None:
        check = (await examine(config(dsn))).sections[1].checks[0]
        assert check.status is CheckStatus.PROBLEM
        assert "postgres.dsn" in check.detail

    async def test_each_privilege_that_a_role_lacks_is_named(self, dsn: str, role: str) -> None:
        report = await examine(config(_as(dsn, role)))
        check = found(report, "schema")
        assert check.status is CheckStatus.PROBLEM
        assert "USAGE on the schema fencing" in check.detail
        assert role in check.advice
        assert "role" not in worse(report, CheckStatus.WARNING)
        await rights.grant(dsn, role)
        await execute(
            dsn,
            f"REVOKE INSERT ON fencing.intake FROM {role}",
            f"REVOKE EXECUTE ON FUNCTION fencing.begin_v2, fencing.seal_v1 FROM public, {role}",
        )
        check = found(await examine(config(_as(dsn, role))), "schema")
        missing = {"INSERT on fencing.intake", "EXECUTE on fencing.begin_v2", "EXECUTE on fencing.seal_v1"}
        assert set(check.detail.removeprefix("the role lacks ").split(", ")) == missing
        assert f"--grant-to {role}" in check.advice

    async def test_exposed_tables_the_role_cannot_write_are_a_warning_and_just_the_rights_it_needs_are_fine(
        self, dsn: str, role: str
    ) -> None:
        await execute(
            dsn,
            "CREATE TABLE public.account (id bigint PRIMARY KEY, note text)",
            f"GRANT SELECT, UPDATE (note) ON public.account TO {role}",
        )
        await rights.grant(dsn, role)
        check = found(await examine(config(_as(dsn, role))), "privileges")
        assert check.status is CheckStatus.WARNING
        assert "INSERT, DELETE on public.account" in check.detail
        await execute(dsn, f"GRANT INSERT, UPDATE, DELETE ON public.account TO {role}")
        report = await examine(config(_as(dsn, role), tables=[{"name": "public.account"}], callers=[CALLER]))
        assert not report.problems, "\n".join(render(report))
        assert not worse(report, CheckStatus.WARNING)

    async def test_roles_that_callers_act_under_are_examined(self, dsn: str, role: str) -> None:
        await rights.grant(dsn, role)
        await execute(
            dsn,
            *(f"CREATE ROLE acting_{name}" for name in ("foreign", "unready", "ready")),
            "CREATE ROLE acting_freely BYPASSRLS",
            f"GRANT acting_unready, acting_ready, acting_freely TO {role}",
        )
        names = [f"acting_{name}" for name in ("absent", "foreign", "unready", "freely", "ready")]
        try:
            await rights.let_act(dsn, names[3:])
            rules = [{"callers": ["*"], "claim": ["role"], "role": names}]
            report = await examine(config(dsn, postgres={"dsn": _as(dsn, role), "roles": rules}))
            told = [found(report, f"role {name}") for name in names]
            assert [check.status for check in told] == [*[CheckStatus.PROBLEM] * 3, CheckStatus.WARNING, CheckStatus.OK]
            assert f"GRANT acting_foreign TO {role}" in told[1].advice
            assert "GRANT USAGE ON SCHEMA fencing TO acting_unready" in told[2].advice
            assert "no policy binds it" in told[3].detail
        finally:
            await execute(dsn, f"DROP OWNED BY {', '.join(names[1:])}", f"DROP ROLE {', '.join(names[1:])}")

    async def test_what_writes_reach_beyond_their_rows_is_refused_or_a_warning(self, dsn: str) -> None:
        assert found(await examine(config(dsn)), "reach").status is CheckStatus.OK
        await execute(
            dsn,
            "CREATE TABLE public.orders (id int PRIMARY KEY)",
            "CREATE TABLE public.items (id int PRIMARY KEY, o int REFERENCES public.orders ON DELETE CASCADE)",
        )
        check = found(await examine(config(dsn)), "table public.orders")
        assert (check.status, "so such writes are refused" in check.detail) == (CheckStatus.OK, True)
        check = found(await examine(config(dsn, fencing={"cascades": "claim"})), "table public.orders")
        assert (check.status, "need the tokens" in check.detail) == (CheckStatus.OK, True)
        allow = {"name": "public.orders", "cascades": "allow"}
        check = found(await examine(config(dsn, tables=[allow])), "table public.orders")
        assert check.status is CheckStatus.WARNING
        assert "public.items by items_o_fkey (ON DELETE CASCADE)" in check.detail
        together, refusing = check.rules
        assert together == '[[tables]]\nname = "public.items"\nresource = "public.orders/{o}"'
        assert refusing == '[[tables]]\nname = "public.orders"\ncascades = "refuse"'
        rule = {"name": "public.items", "resource": "public.orders/{o}"}
        assert found(await examine(config(dsn, tables=[rule])), "reach").status is CheckStatus.OK

    async def test_exposed_schemas_must_be_there_and_usable(self, dsn: str, role: str) -> None:
        await execute(dsn, "CREATE SCHEMA closed")
        report = await examine(config(dsn, postgres={"dsn": _as(dsn, role), "schemas": ["closed", "absent"]}))
        assert "may not use it" in found(report, "schema closed").detail
        assert "does not exist" in found(report, "schema absent").detail
        assert {"schema closed", "schema absent"} <= set(worse(report, CheckStatus.PROBLEM))

    async def test_a_standby_is_a_problem(self, dsn: str) -> None:
        database = dsn.split("?", maxsplit=1)[0].rpartition("/")[2]
        await execute(dsn, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        assert found(await examine(config(dsn)), "writable").status is CheckStatus.PROBLEM

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("trait", "name", "status"),
        [
            ({}, "connection", CheckStatus.OK),
            ({"version_number": 130012}, "connection", CheckStatus.PROBLEM),
            ({"fsync": False}, "durability", CheckStatus.PROBLEM),
            ({"synchronous_commit": False}, "durability", CheckStatus.PROBLEM),
            ({"isolation": "repeatable read"}, "session", CheckStatus.PROBLEM),
            ({"time_zone": "Europe/Berlin"}, "session", CheckStatus.PROBLEM),
            ({"date_style": "German, DMY"}, "session", CheckStatus.PROBLEM),
        ],
        ids=str,
    )
    async def test_what_a_server_must_be_like(
        self, database: Database, trait: dict[str, Any], name: str, status: CheckStatus
    ) -> None:
        """Not every server can be had here, so the answer of this one is bent."""
        server = replace(await rights.server_facts(database), **trait)
        assert [check.status for check in doctor._of_server(server) if check.name == name] == [status]

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("minutes", "status"),
        [(0, CheckStatus.OK), (2, CheckStatus.WARNING), (-2, CheckStatus.WARNING), (6, CheckStatus.PROBLEM)],
    )
    async def test_a_local_clock_that_is_off_is_seen(self, dsn: str, minutes: int, status: CheckStatus) -> None:
        report = await examine(config(dsn), lambda: datetime.now(UTC) + timedelta(minutes=minutes))
        assert found(report, "clock").status is status


class TestObjectStore:
    @pytest.mark.thorough
    async def test_each_fault_of_a_store_is_told(self, dsn: str, endpoint: str, double: S3Double) -> None:
        async def told(name: str, *rules: dict[str, str]) -> Check:
            return found(await examine(config(dsn, endpoint, objects=list(rules) or [JOBS])), name)

        assert (await told("bucket absent", {"match": "absent/**"}, {"match": "*/x"})).status is CheckStatus.PROBLEM
        double.behave(ignored_conditions=frozenset({"DeleteObject"}))
        report = await examine(config(dsn, endpoint, objects=[JOBS]))
        assert not report.problems
        assert "tombstones" in found(report, "bucket reports, delete-if-match").advice
        double.behave(ignored_conditions=frozenset({"PutObject"}))
        assert "takes no fenced write: put-if-none-match" in (await told("bucket reports")).detail
        assert "refused" in (await told("bucket reports, put-if-match")).advice
        double.behave(ignored_conditions=frozenset())
        double.fail(403, code="AccessDenied", operation="ListBuckets", times=None)
        assert not (await examine(config(dsn, endpoint, objects=[JOBS]))).problems
        double.fail(503, operation="PutObject", times=None)
        assert "could not be probed" in (await told("bucket reports")).detail

    @pytest.mark.thorough
    async def test_the_clocks_of_database_and_store_are_compared(
        self, dsn: str, endpoint: str, double: S3Double
    ) -> None:
        for seconds, status in ((0, "OK"), (90, "WARNING"), (-90, "WARNING"), (400, "PROBLEM")):
            double.behave(clock_offset=float(seconds))
            report = await examine(config(dsn, endpoint))
            (check,) = (check for check in report.sections[2].checks if check.name == "clock")
            assert check.status is CheckStatus[status], seconds


class TestPending:
    @pytest.mark.parametrize(("age", "status"), [(0, CheckStatus.OK), (300, CheckStatus.WARNING)])
    async def test_writes_that_stay_pending_are_shown(
        self, dsn: str, database: Database, age: int, status: CheckStatus
    ) -> None:
        announced = Announcement("s3/reports/a", "reports", "a", uuid4(), Presented(Token(0, 1)), "writer")
        await intents.begin(database, [Begin(announced, None)], patient=True)
        await execute(dsn, f"UPDATE fencing.intent SET signed_at = now() - interval '{age} seconds'")
        check = found(await examine(config(dsn)), "intents")
        assert check.status is status
        assert "reports/a" in check.detail

    @pytest.mark.parametrize(("minutes", "status"), [(14, CheckStatus.OK), (16, CheckStatus.WARNING)])
    async def test_uploads_that_were_left_behind_are_shown(
        self, dsn: str, database: Database, minutes: int, status: CheckStatus
    ) -> None:
        place = UploadKey("s3/reports/a", "reports", "a", "id")
        await uploads.record_opened(database, RecordedUpload(place, uuid4(), None, None, "writer", staged=True))
        await execute(dsn, f"UPDATE fencing.upload SET touched_at = now() - interval '{minutes} minutes'")
        check = found(await examine(config(dsn)), "uploads")
        assert check.status is status
        assert ("1 upload was left behind" in check.detail) is (status is CheckStatus.WARNING)
        assert ("gateway sweep" in check.advice) is (status is CheckStatus.WARNING)

    @pytest.mark.parametrize(
        ("count", "waiting", "status"),
        [(0, 0, CheckStatus.OK), (3, 1, CheckStatus.OK), (10_002, 1, CheckStatus.WARNING)],
    )
    async def test_tombstones_are_counted(self, dsn: str, count: int, waiting: int, status: CheckStatus) -> None:
        await execute(
            dsn,
            f"INSERT INTO fencing.tombstone SELECT 's3/b/' || n, 'b', n FROM generate_series(1, {count}) AS n",
            "INSERT INTO fencing.forbidden (resource, bucket, key, etag, dead_at)"
            f" SELECT 's3/b/' || n, 'b', n, '', now() + interval '1 hour' FROM generate_series(1, {waiting}) AS n",
            "INSERT INTO fencing.forbidden (resource, bucket, key, etag, dead_at)"
            " VALUES ('s3/b/2', 'b', '2', '', now() - interval '1 hour'), ('s3/b/3', 'b', '3', 'e', now())",
        )
        check = found(await examine(config(dsn)), "tombstones")
        assert check.status is status
        assert check.detail == "none" if not count else check.detail.startswith(f"{count}, {waiting} of them")
        assert bool(check.advice) is (status is CheckStatus.WARNING)


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    """A role that may connect and nothing else."""
    name = f"role_{dsn.split('?', maxsplit=1)[0].rpartition('_')[2]}"
    asyncio.run(execute(dsn, f"CREATE ROLE {name} LOGIN PASSWORD 'role-password'"))
    yield name
    asyncio.run(execute(dsn, f"DROP OWNED BY {name}", f"DROP ROLE {name}"))


def _as(dsn: str, role: str) -> str:
    return dsn.replace("://postgres:@", f"://{role}:role-password@")


ISSUER = {"name": "keycloak", "secret": "s" * 32, "groups_claim": ["groups"]}
ORDERS = {"tables": [{"name": "public.orders", "resource": "order/{id}"}]}


def granted(*grants: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Sections with these grants. A grant without groups is for the writer."""
    return {"grants": [{"callers": ["writer"], **one} for one in grants], **sections}


def reading(callers: list[str], **more: Any) -> dict[str, Any]:
    return {"callers": callers, "actions": ["read"], "tables": ["public.*"], **more}


TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    (granted({**ALL, "callers": ["keycloak:*"]}, issuers=[ISSUER]), "keycloak:*"),
    (granted({**ALL, "callers": ["group:keycloak:admins"]}, issuers=[ISSUER]), "group keycloak:admins"),
]
OVERLAPPING: list[dict[str, Any]] = [
    granted(reading(["keycloak:ann"]), reading(["keycloak:*"]), issuers=[ISSUER]),
    granted(reading(["writer"]), reading(["*"])),
    granted(reading(["writer"], tables=["public.orders"]), reading(["writer"], tables=["*"])),
    granted({"actions": ["lock"], "resources": ["order/5"]}, {"actions": ["lock"], "resources": ["order/*"]}),
    granted({"actions": ["read"], "buckets": ["reports/a/**"]}, {"actions": ["read"], "buckets": ["reports"]}),
    granted({"actions": ["read"], "buckets": ["reports/a/b"]}, {"actions": ["read"], "buckets": ["*/a/**"]}),
]
NOT_OVERLAPPING: list[dict[str, Any]] = [
    # The star is for callers of the configuration.
    granted(reading(["keycloak:ann"]), reading(["*"]), issuers=[ISSUER]),
    granted(reading(["anonymous"]), reading(["*"])),
    granted(reading(["writer"], tables=["public.a"]), reading(["writer"], tables=["*.b"])),
    granted({"actions": ["lock"], "resources": ["order/*/*"]}, {"actions": ["lock"], "resources": ["order/*"]}),
    granted({"actions": ["read"], "buckets": ["reports"]}, {"actions": ["write"], "buckets": ["reports/**"]}),
]
POINTLESS: list[tuple[dict[str, Any], str]] = [
    (granted({"actions": ["read"], "buckets": ["reports"]}, s3=None), "no object store is configured"),
    (
        granted({"actions": ["call"], "functions": ["public.nothing"]}),
        "no function that can be called is public.nothing",
    ),
    (granted({"actions": ["write"], "resources": ["odrer/*"]}, **ORDERS), "makes names like odrer/*"),
    (granted({"actions": ["write"], "buckets": ["reports"], "resources": ["order/*"]}, **ORDERS), "names like order/*"),
]
WITH_TARGET: list[dict[str, Any]] = [
    granted({"actions": ["write"], "resources": ["order/5", "*/5", "**", "s3/**", "s3/*/a/b"]}, **ORDERS),
    granted({"actions": ["write"], "resources": ["public.orders/*"]}),
    granted({"actions": ["write"], "resources": ["job/7", "s3/other/**"]}, objects=[JOBS]),
    # Locks may have any name, and so may what a call claims.
    granted({"actions": ["lock", "barrier", "read"], "resources": ["anything/*"]}),
    granted({"actions": ["write", "call"], "resources": ["anything/*"]}, postgres={"functions": ["public.reckon"]}),
    granted({"actions": ["write", "lock"], "resources": ["policy/7"]}, resources=[{"match": "policy/*"}]),
]
WITHOUT_CALLERS: list[tuple[dict[str, Any], str, str]] = [
    (granted(reading(["group:keycloack:admins"]), issuers=[ISSUER]), "groups", "no caller is in keycloack:admins"),
    (
        granted(reading(["group:keycloak:admins"]), issuers=[{**ISSUER, "groups_claim": []}]),
        "groups",
        "since keycloak has no groups_claim",
    ),
    (granted(reading(["writer"]), issuers=[ISSUER]), "issuers without grants", "keycloak: no grant names"),
]


def told(sections: dict[str, Any], name: str) -> list[Check]:
    """The findings under a name, with a store unless the sections say otherwise."""
    settings = {"postgres": {"dsn": "postgresql://localhost/app", **sections.get("postgres", {})}}
    if "s3" not in sections:
        settings["s3"] = {"endpoint": "http://localhost:9000", "access_key_id": "a", "secret_access_key": "b"}
    found = grants.check(config("postgresql://localhost/app", **{**sections, **settings}).default)
    return [check for check in found if check.name == name]


CASES = [
    *((sections, "almighty callers", words) for sections, words in TOO_MUCH),
    *((sections, "overlapping grants", "number 1 adds nothing to number 2") for sections in OVERLAPPING),
    *((sections, "grants without target", words) for sections, words in POINTLESS),
    *((sections, name, words) for sections, name, words in WITHOUT_CALLERS),
]


@pytest.mark.parametrize(("sections", "name", "words"), CASES, ids=str)
def test_each_doubtful_grant_is_told(sections: dict[str, Any], name: str, words: str) -> None:
    (check,) = told(sections, name)
    assert check.status is CheckStatus.WARNING
    assert words in check.detail
    assert check.advice


GOOD = [
    *((sections, "overlapping grants") for sections in NOT_OVERLAPPING),
    *((sections, "grants without target") for sections in WITH_TARGET),
    (granted(reading(["group:keycloak:admins"]), issuers=[ISSUER]), "groups"),
]


@pytest.mark.parametrize(("sections", "name"), GOOD, ids=str)
def test_grants_that_add_something_and_may_match_are_not_told(sections: dict[str, Any], name: str) -> None:
    assert told(sections, name) == []
