"""A gateway, guarded orders, and the snippets of docs/frameworks.md as two machines run them."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any

import psycopg

from gateway.client import Lock, blocking, client
from gateway.demo.embedded import EmbeddedPostgres
from gateway.guard import installation as guard
from gateway.guard.installation import GuardRequest
from tests import ROOT
from tests.client import stage as sdk
from tests.client.stage import Asleep
from tests.guard.stage import logging_in_as, session
from tests.running import API_KEY, config
from tests.waiting import PATIENCE

PAGE = ROOT / "docs/frameworks.md"
SNIPPETS = dict(re.findall(r"^<!-- \w+: (\S+) -->\n```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def named(snippet: str) -> list[str]:
    """Return the requirements that the section of a snippet names, as pip takes them."""
    before = PAGE.read_text().partition(f": {snippet} -->")[0]
    return re.findall(r"`([^`]+)`", re.findall(r"needs (`[^:.]+)[:.]", before)[-1])


RULES = [
    {"name": "public.orders", "resource": "order/{id}"},
    {"name": "public.alembic_version", "resource": "migrations"},
]
ROLE = "frameworks_app"
_TABLES = f"""
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(1);
    IF to_regrole('{ROLE}') IS NULL THEN CREATE ROLE {ROLE} LOGIN; END IF;
END $$;
CREATE TABLE orders (id bigint PRIMARY KEY, state text, label text);
CREATE TABLE notes (id bigint PRIMARY KEY, body text);
CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY);
GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE};
GRANT CREATE, USAGE ON SCHEMA public TO {ROLE};
"""
_numbers = count(1)


async def _prepare(dsn: str) -> None:
    async with session(dsn) as owner:
        await owner.execute(_TABLES)
    for table in ("orders", "alembic_version"):
        await guard.install(config(dsn, tables=RULES).default, GuardRequest(table, dsn=dsn, grants=(ROLE,)))


@dataclass
class Shop:
    """The program's own module ``shop``. Its first caller is paused in ``print_label``, until ``resume``."""

    reached: threading.Event = field(default_factory=threading.Event)
    resume: threading.Event = field(default_factory=threading.Event)
    calls: int = 0

    def print_label(self, _: int) -> str:
        self.calls += 1
        if self.calls > 1:
            return "kept"
        self.reached.set()
        assert self.resume.wait(10 * PATIENCE)
        return "late"

    def wait(self) -> None:
        """Wait until its first caller is paused."""
        assert self.reached.wait(PATIENCE)


@dataclass(frozen=True, slots=True)
class Stage:
    """``gateway``: where it is, and what it says. ``app``: the address of the role that writes beside it."""

    gateway: sdk.Stage
    app: str

    def order(self) -> int:
        """Return the number of a new order."""
        number = next(_numbers)
        self.execute("INSERT INTO orders VALUES (%s, 'new')", number)
        return number

    def row(self, number: int) -> tuple[str, str | None]:
        [(state, label)] = self.execute("SELECT state, label FROM orders WHERE id = %s", number)
        return state, label

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """As the owner, past the guard."""
        with psycopg.connect(self.gateway.dsn) as owner:
            owner.execute("SET session_replication_role = replica")
            done = owner.execute(sql.encode(), values)
            return done.fetchall() if done.description else []

    def code(self, name: str, *, zombie: bool = False) -> str:
        """Return a snippet, with our addresses; ``zombie``: on a machine that will be stopped."""
        code: str = SNIPPETS[name].replace("http://127.0.0.1:8080", self.gateway.origin).replace("demo-key", API_KEY)
        code = code.replace("app@localhost/shop", self.app.removeprefix("postgresql://"))
        if zombie:
            code = code.replace("gateway.client.blocking import", "tests.frameworks.stage import")
            code = code.replace(
                "gateway.client import FencedClient", "tests.frameworks.stage import AsyncFencedClient as FencedClient"
            )
        return code

    @contextmanager
    def running(self, name: str, *, zombie: bool = False) -> Iterator[dict[str, Any]]:
        """Run a snippet, and yield its names."""
        names: dict[str, Any] = {"__name__": f"{name}_{zombie}"}
        exec(compile(self.code(name, zombie=zombie), f"{PAGE.name}: {name}", "exec"), names)
        try:
            yield names
        finally:
            if hasattr(names["client"], "close"):
                names["client"].close()
                if "engine" in names:
                    names["engine"].dispose()


@contextmanager
def staged(postgres: EmbeddedPostgres) -> Iterator[Stage]:
    with sdk.staged(postgres, _prepare, {"tables": RULES[:1]}) as gateway:
        yield Stage(gateway, logging_in_as(ROLE, gateway.dsn))


def module(name: str, **names: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made


# The client of a machine that was _stopped, with its clock: it holds its lock for ever, as far as it knows.


TTL = 0.3
"""Seconds until another one takes over."""


def _stopped() -> float:
    return 0.0


class AsyncFencedClient(client.FencedClient):
    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings, holder="zombie", clock=_stopped)

    def lock(self, resource: str, **terms: Any) -> Lock:
        return super().lock(resource, **{**terms, "source": Asleep(self._leases), "ttl": TTL})


class FencedClient(blocking.FencedClient):
    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings, holder="zombie", clock=_stopped)

    def lock(self, resource: str, **terms: Any) -> blocking.Lock:
        return super().lock(resource, **{**terms, "source": Asleep(self._client._leases), "ttl": TTL})
