"""The parts that the cases share: the store, the database, a healthy gateway, and gateways to be disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import asyncpg

from gateway import app
from gateway.objects.background.sweeper import Swept
from tests.crash.clients import Client
from tests.crash.processes import Gateway, Victims
from tests.crash.story import Place, Story
from tests.doubles.s3 import DoubleProcess
from tests.running import config


class Postgres:
    """One session of plain asyncpg, asked without being async oneself."""

    def __init__(self, dsn: str) -> None:
        # With a factory of its own the runner leaves the thread's event loop alone.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._connection: asyncpg.Connection = self._runner.run(asyncpg.connect(dsn))

    def rows(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._runner.run(self._connection.fetch(sql, *arguments))]

    def value(self, sql: str, *arguments: object) -> Any:
        return self._runner.run(self._connection.fetchval(sql, *arguments))

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


class Stage:
    """The parts that all cases share: the store, the database, a healthy gateway, and gateways to be disturbed."""

    def __init__(
        self,
        double: DoubleProcess,
        postgres: Postgres,
        healthy: Gateway,
        victims: Victims,
        sleepers: Victims,
        given: dict[str, Any],
        first: int,
    ) -> None:
        """``sleepers``: the victims that are to be paused inside a transaction, which the database then ends soon.

        ``given``: what the gateways are configured with, the arguments of ``tests.running.config``.

        ``first``: the number of the first place; those of two stages with one database must not meet.
        """
        self.given = given
        self.double, self.postgres, self.healthy = double, postgres, healthy
        self.victims, self.sleepers = victims, sleepers
        self.clients = ThreadPoolExecutor(max_workers=8)
        self._numbers = count(first)

    @contextmanager
    def story(self) -> Iterator[Story]:
        """A case at a place of its own."""
        story = Story(self, Place(next(self._numbers)))
        sound = False
        try:
            yield story
            sound = True
        finally:
            story.end(sound=sound)

    def close(self) -> None:
        self.clients.shutdown()
        for gateways in (self.victims, self.sleepers):
            gateways.close()

    @contextmanager
    def ignoring_conditions(self) -> Iterator[None]:
        """The store breaks its word, after it has been probed."""
        with self._behaving({"ignored_conditions": ["*"]}, {"ignored_conditions": []}):
            yield

    @contextmanager
    def later(self, passed: timedelta) -> Iterator[None]:
        """So much time has passed by the store's clock, and by no other. Afterwards all gateways learn it anew."""
        try:
            with self._behaving({"clock_offset": passed.total_seconds()}, {"clock_offset": 0.0}):
                yield
        finally:
            for gateway in (self.healthy, *self.victims.awake(), *self.sleepers.awake()):
                Client(gateway.port, 0).read("nothing")

    @contextmanager
    def aborting_slowly(self, seconds: float) -> Iterator[None]:
        """An aborted upload can still be completed for so long."""
        with self._behaving({"abort_delay": seconds}, {"abort_delay": 0.0}):
            yield

    @contextmanager
    def _behaving(self, traits: dict[str, Any], usual: dict[str, Any]) -> Iterator[None]:
        """No gateway is being made meanwhile, which would find another store than the rest."""
        for gateways in (self.victims, self.sleepers):
            gateways.settle()
        self.double.behave(**traits)
        try:
            yield
        finally:
            self.double.behave(**usual)

    def sweep(self) -> Swept:
        """One round of the sweeper."""
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(app.sweep(config(**self.given), lambda _: None))

    @contextmanager
    def without_record(self) -> Iterator[None]:
        """Rejections cannot be recorded."""
        self.postgres.rows("ALTER TABLE fencing.intake RENAME TO lost")
        try:
            yield
        finally:
            self.postgres.rows("ALTER TABLE fencing.lost RENAME TO intake")
