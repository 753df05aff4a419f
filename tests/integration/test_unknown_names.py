"""A name in the configuration that exists nowhere is an error at the start, with the nearest name and the line."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from gateway.config import load, locate
from gateway.demo.embedded import EmbeddedPostgres
from gateway.doctor import unknown_names
from gateway.doctor.examination import examine
from gateway.doctor.findings import CheckStatus
from tests.databases import as_gateway, fresh_database
from tests.doubles.s3 import S3Double, serve
from tests.processes import free_port, run, started

SCHEMA = """
CREATE TABLE orders (id bigint PRIMARY KEY, account bigint, changed timestamptz);
CREATE SCHEMA sales; CREATE TABLE sales.items (id bigint PRIMARY KEY);
CREATE FUNCTION search(words text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
"""


class Place:
    """A database and a store, and a file that configures a gateway in front of them."""

    def __init__(self, dsn: str, endpoint: str, file: Path) -> None:
        self.dsn, self.endpoint, self.file = dsn, endpoint, file

    def write(self, more: str, *, postgres: str = "", endpoint: str | None = None) -> None:
        self.file.write_text(
            f'[postgres]\ndsn = "{as_gateway(self.dsn)}"\n{postgres}\n[auth]\nanonymous = true\n[s3]\n'
            f'endpoint = "{endpoint or self.endpoint}"\naccess_key_id = "AKIADOUBLE"\n'
            f'secret_access_key = "double-secret"\n{more}'
        )

    def line(self, text: str) -> int:
        return self.file.read_text().splitlines().index(text) + 1


@pytest.fixture
async def place(postgres_server: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Place]:
    async with fresh_database(postgres_server) as dsn, serve(S3Double(buckets=["reports"])) as endpoint:
        connection = await asyncpg.connect(dsn)
        await connection.execute(SCHEMA)
        await connection.close()
        yield Place(dsn, endpoint, tmp_path / "gateway.toml")


@pytest.mark.parametrize(
    ("more", "postgres", "line", "said"),
    [
        (
            '[[tables]]\nname = "public.order"',
            "",
            'name = "public.order"',
            '[[tables]] "public.order" name: there is no such table. Did you mean "public.orders"?',
        ),
        (
            '[[tables]]\nname = "public.orders"\nresource = "account/{acount}"',
            "",
            'resource = "account/{acount}"',
            '[[tables]] "public.orders" resource: the table has no column "acount". Did you mean "account"?',
        ),
        (
            '[[tables]]\nname = "public.orders"\nversion = "change"',
            "",
            'version = "change"',
            '[[tables]] "public.orders" version: the table has no column "change". Did you mean "changed"?',
        ),
        (
            '[[tables]]\nname = "sales.items"',
            "",
            'name = "sales.items"',
            '[[tables]] "sales.items" name: the schema "sales" is not exposed. Add sales to schemas of [postgres].',
        ),
        (
            "",
            'schemas = ["public", "sale"]',
            'schemas = ["public", "sale"]',
            '[postgres] schemas: there is no schema "sale". Did you mean "sales"?',
        ),
        (
            "",
            'functions = ["public.serch"]',
            'functions = ["public.serch"]',
            '[postgres] functions: there is no function "public.serch". Did you mean "public.search"?',
        ),
        (
            '[[objects]]\nmatch = "report/{job}/**"\nresource = "job/{job}"',
            "",
            'match = "report/{job}/**"',
            '[[objects]] "report/{job}/**" match: the store has no bucket "report". Did you mean "reports"?',
        ),
        (
            '[[tables]]\nname = "public.zebra"',
            "",
            'name = "public.zebra"',
            '[[tables]] "public.zebra" name: there is no such table. Create it, or correct the name.',
        ),
    ],
)
async def test_it_is_found_with_its_line_and_the_nearest_name(
    place: Place, more: str, postgres: str, line: str, said: str
) -> None:
    place.write(more, postgres=postgres)
    [found] = await unknown_names.find_once(load(place.file))
    assert locate(place.file, found.place) == f"{place.file}:{place.line(line)}"
    assert f"{found.label}: {found.text}" == said


async def test_a_gateway_does_not_start_with_it(place: Place) -> None:
    place.write('[[tables]]\nname = "public.order"')
    ended = await asyncio.to_thread(run, "serve", "--config", str(place.file), "--listen", f"127.0.0.1:{free_port()}")
    assert ended.returncode == 2
    line = place.line('name = "public.order"')
    assert f"{place.file}:{line}: [[tables]]" in ended.stderr
    assert "--allow-missing" in ended.stderr


async def test_it_may_come_later(place: Place) -> None:
    place.write('[[tables]]\nname = "public.order"')
    listen = f"127.0.0.1:{free_port()}"
    with started("serve", "--config", str(place.file), "--listen", listen, "--allow-missing") as running:
        await asyncio.to_thread(running.wait_for, lambda: "listening on" in running.said())
        assert "there is no such table" in running.said()


async def test_the_doctor_finds_it(place: Place) -> None:
    place.write('[[tables]]\nname = "public.order"')
    report = await examine(load(place.file))
    [found] = [check for section in report.sections for check in section.checks if check.name == "names"]
    assert found.status is CheckStatus.PROBLEM
    assert "public.orders" in found.detail


async def test_what_exists_is_no_finding(place: Place) -> None:
    place.write(
        '[[tables]]\nname = "public.orders"\nresource = "account/{account}"\nversion = "changed"\n'
        '[[tables]]\nname = "sales.items"\n[[objects]]\nmatch = "reports/**"\n[[objects]]\nmatch = "{bucket}/x"',
        postgres='schemas = ["public", "sales"]\nfunctions = ["public.search"]',
    )
    assert await unknown_names.find_once(load(place.file)) == []


async def test_a_store_that_does_not_answer_is_no_finding(place: Place) -> None:
    place.write('[[objects]]\nmatch = "report/**"', endpoint="http://127.0.0.1:9")
    assert await unknown_names.find_once(load(place.file)) == []
