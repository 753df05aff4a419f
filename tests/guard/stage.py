"""A database with tables, and the roles that write them: the gateway's, and one beside the gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from gateway.config import Config
from gateway.guard import installation as guard
from gateway.guard.installation import GuardRequest, PreparedGuard
from tests.running import config

Session: TypeAlias = asyncpg.Connection

RULES = [
    {"name": "public.shipments", "resource": "order/{order_id}"},
    {"name": "public.settings", "resource": "settings"},
    {"name": "public.once", "equal": "strict"},
]

TABLES = """
CREATE TABLE shipments (id bigint PRIMARY KEY, order_id bigint, state text NOT NULL DEFAULT 'new');
INSERT INTO shipments VALUES (1, 5), (2, 5), (3, 6), (4, 7);
CREATE TABLE settings (name text PRIMARY KEY, value text);
INSERT INTO settings VALUES ('colour', 'red');
CREATE TABLE once (id bigint PRIMARY KEY, v integer);
INSERT INTO once VALUES (1, 1);
"""


@dataclass(frozen=True)
class Stage:
    """``owner`` is a superuser's address, ``gateway`` that of the gateway's role, ``app`` that of another role."""

    owner: str
    gateway: str
    app: str
    gateway_role: str
    app_role: str

    def config(self, **sections: Any) -> Config:
        return config(self.gateway, **{"tables": RULES, **sections})

    async def install(self, table: str, *, grants: bool = True, **wanted: Any) -> PreparedGuard:
        """Put the guard on, as the owner, and let the app claim tokens."""
        roles = (self.app_role,) if grants else ()
        return await guard.install(self.config().default, GuardRequest(table, dsn=self.owner, grants=roles, **wanted))

    async def execute(self, sql: str) -> None:
        """As the owner."""
        async with session(self.owner) as owner:
            await owner.execute(sql)

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """As the owner."""
        async with session(self.owner) as owner:
            return [tuple(row) for row in await owner.fetch(sql)]


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[Session]:
    opened = await asyncpg.connect(dsn)
    try:
        yield opened
    finally:
        await opened.close(timeout=10)


def logging_in_as(role: str, dsn: str) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


@dataclass
class Refusal:
    """The fields that the database sends beside its message."""

    detail: str = ""
    hint: str = ""


@asynccontextmanager
async def refused(sqlstate: str, words: str = "") -> AsyncIterator[Refusal]:
    """The statement inside is refused. Yields a refusal that is filled in once it is."""
    seen = Refusal()
    with pytest.raises(asyncpg.PostgresError) as caught:
        yield seen
    error = caught.value
    assert error.sqlstate == sqlstate, error
    assert words in str(error), error
    seen.detail, seen.hint = error.detail or "", error.hint or ""


async def hold(opened: Session, resource: str, token: object, holder: str | None = None) -> str:
    decision: str = await opened.fetchval("SELECT fencing.hold($1, $2, $3)", resource, str(token), holder)
    return decision


async def hold_and_write(opened: Session, statement: str, *held: tuple[str, object]) -> str:
    """Execute a statement in one transaction that first holds these resources, each with its token."""
    async with opened.transaction():
        for resource, token in held:
            await hold(opened, resource, token)
        done: str = await opened.execute(statement)
    return done


async def declare_and_write(opened: Session, statement: str, resource: str, token: object) -> str:
    """Execute a statement in one transaction whose settings declare a token."""
    async with opened.transaction():
        await opened.execute(f"SET LOCAL fencing.resource = '{resource}'; SET LOCAL fencing.token = '{token}'")
        done: str = await opened.execute(statement)
    return done
