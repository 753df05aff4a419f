"""Table formats over one bucket, with a catalog in PostgreSQL: the programs of ``lake/``, and their gateway."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.demo import embedded
from tests import ROOT
from tests.clients.commands import Conversation, Shell, conversation
from tests.clients.gateway import BUCKET, Gateway, Lock, serving
from tests.guard.stage import logging_in_as, session
from tests.postgres import Server, as_gateway, fresh
from tests.processes import called

PYTHON = ROOT / ".venv-tables/bin/python"

# The row of a table in the catalog and all of its files are one resource.
RULES = """
[[tables]]
name = "public.iceberg_tables"
resource = "lake/{table_namespace}/{table_name}"

[[objects]]
match = "reports/lake/{namespace}/{table}/**"
resource = "lake/{namespace}/{table}"
"""
# As PyIceberg makes them, if the role may.
CATALOG = """
CREATE TABLE iceberg_tables (
    catalog_name varchar(255), table_namespace varchar(255), table_name varchar(255), metadata_location varchar(1000),
    previous_metadata_location varchar(1000), iceberg_type varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE iceberg_namespace_properties (
    catalog_name varchar(255), namespace varchar(255), property_key varchar(255), property_value varchar(1000),
    PRIMARY KEY (catalog_name, namespace, property_key)
);
"""


@dataclass(frozen=True, slots=True)
class Dataset(Lock):
    """One table: its row in the catalog, and the files below ``prefix``."""

    @property
    def resource(self) -> str:
        return f"lake/shop/{self.name}"

    @property
    def prefix(self) -> str:
        return f"lake/shop/{self.name}/"

    def files(self) -> set[str]:
        """Return the addresses of its files, as readers see them, without PyArrow's markers of empty directories."""
        s3 = self.gateway.connect(self.session())
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.prefix)
        keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
        s3.close()
        return {f"s3://{BUCKET}/{key}" for key in keys if not key.endswith("/")}


@dataclass(frozen=True, slots=True)
class Lake:
    """The gateway, and the address of the catalog for the role of its writers."""

    gateway: Gateway
    catalog: str

    def dataset(self) -> Dataset:
        """Return a table that no other test uses."""
        return Dataset(self.gateway, f"t{uuid4().hex[:12]}")

    def refusals(self) -> int:
        """Count the stale writes that the guard of the catalog has refused, as far as they are on record."""
        query = (
            "SELECT count(*) FROM fencing.record"
            " WHERE kind = 'rejection' AND details ->> 'by' = 'guard'"
            " AND target = 'public.iceberg_tables' AND reason = 'token-stale'"
        )
        return asyncio.run(_fetch(self.gateway.dsn, query))


@contextmanager
def lake(server: Server, directory: Path) -> Iterator[Lake]:
    """A gateway with these rules, and a guard on the catalog."""
    role = f"writer_{uuid4().hex[:12]}"
    with fresh(server) as dsn, embedded.s3() as store:
        grants = f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"
        asyncio.run(execute(dsn, f"{CATALOG} CREATE ROLE {role} LOGIN; {grants}"))
        with serving(as_gateway(dsn), store.endpoint(), directory, rules=RULES) as gateway:
            configured = ("--config", str(directory / "gateway.toml"))
            done = called("guard", "install", "public.iceberg_tables", "--grants", role, "--dsn", dsn, *configured)
            assert done.returncode == 0, done.stderr
            yield Lake(gateway, logging_in_as(role, dsn))
        asyncio.run(execute(dsn, f"DROP OWNED BY {role}; DROP ROLE {role}"))


async def _fetch(dsn: str, query: str) -> int:
    async with session(dsn) as owner:
        count: int = await owner.fetchval(query)
        return count


async def execute(dsn: str, statements: str) -> None:
    async with session(dsn) as owner:
        await owner.execute(statements)


def python() -> str:
    """Python with the libraries of table formats; where they are missing the test is skipped."""
    if not (PYTHON.parents[1] / ".set-up").exists():
        pytest.skip("the libraries of table formats are not installed: run `make clients`")
    return str(PYTHON)


@contextmanager
def program(name: str, home: Path) -> Iterator[Conversation]:
    """A program of ``lake/``."""
    # An environment without our own libraries. Nothing but its variables gives a program its keys.
    with conversation([python(), str(ROOT / "tests/clients/lake" / name)], Shell(home, {"PYTHONPATH": ""})) as one:
        yield one
