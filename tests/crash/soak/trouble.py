"""The trouble of a soak: whatever may go wrong with gateways, the store and the database, at random moments."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import asyncpg

from tests.crash.processes import Gateway
from tests.crash.soak.stage import GATEWAYS, KEYS, Soak
from tests.doubles.s3.process import RemoteRule

_OPERATIONS = {
    "PutObject": 6,
    "CompleteMultipartUpload": 5,
    "DeleteObject": 3,
    "AbortMultipartUpload": 1,
    "HeadObject": 1,
    "PutObjectTagging": 1,
}


class Trouble:
    """All faults. The trouble ends each hold and pause in time, and all of them at the end."""

    def __init__(self, soak: Soak, keys: Sequence[str] = tuple(KEYS), *, disconnects: bool = False) -> None:
        """``keys``: whose requests to the store are disturbed; empty: of all. ``disconnects``: all at once, too."""
        self._keys, self._disconnects = keys, disconnects
        self._soak, self._random = soak, Random(f"{soak.seed}/trouble")
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._paused: set[int] = set()
        self._holding: list[RemoteRule] = []

    def work(self) -> None:
        kinds: dict[Callable[[], None], int] = {
            self._hold: 40,
            self._fail: 30,
            self._pause: 15,
            self._kill: 5,
            self._pause_backend: 10,
            self._crash_database: 1,
        }
        if self._disconnects:
            kinds[self._disconnect] = 3
        try:
            while not self._soak.over.is_set():
                (act,) = self._random.choices(list(kinds), list(kinds.values()))
                self._soak.counted[f"trouble: {act.__name__.strip('_').replace('_', ' ')}"] += 1
                act()
                self._let_go(time.monotonic())
                self._wait(self._random.randint(1, 25))
        finally:
            self._let_go(float("inf"))
            for rule in self._holding:
                if rule.state()["arrived"]:
                    rule.wait_finished(timeout=60)
            self._soak.double.clear()

    def _wait(self, deeds: int) -> None:
        """Until writers have done so much more: on a slow machine there is not more trouble, but less of everything."""
        wanted, deadline = len(self._soak.history.deeds) + deeds, time.monotonic() + 1
        while len(self._soak.history.deeds) < wanted and time.monotonic() < deadline:
            self._soak.over.wait(0.01)
            self._let_go(time.monotonic())

    def _let_go(self, now: float) -> None:
        due = [one for one in self._later if one[0] <= now]
        self._later = [one for one in self._later if one[0] > now]
        for _, let_go in sorted(due, key=lambda one: one[0]):
            let_go()

    def _for_a_while(self, longest: float, let_go: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + self._random.random() * longest, let_go))

    def _match(self) -> dict[str, Any]:
        (operation,) = self._random.choices(list(_OPERATIONS), list(_OPERATIONS.values()))
        key = {"key": self._random.choice(self._keys)} if self._keys else {}
        return {"operation": operation, **key, "nth": self._random.choice((1, 1, 2))}

    def _hold(self) -> None:
        """Delay a request to the store, or its answer. Its sender may be dead by then."""
        rule = self._soak.double.rule("hold", at=self._random.choice(("arrival", "before", "after")), **self._match())
        self._holding.append(rule)
        self._for_a_while(2.5, rule.release)

    def _fail(self) -> None:
        action = self._random.choice(("cut", "cut", "fail", "error-in-200"))
        match = self._match()
        if action == "error-in-200":
            match["operation"] = "CompleteMultipartUpload"
        self._soak.double.rule(action, at=self._random.choice(("before", "after")), **match)

    def _disconnect(self) -> None:
        """Break each request to the store for a while, as a restart of it does."""
        for at in ("before", "after"):
            self._for_a_while(2, self._soak.double.rule("cut", at=at, times=1000).remove)

    def _pause(self) -> None:
        gateway = self._random.choice(self._soak.gateways)
        if gateway.pid not in self._paused:
            self._paused.add(gateway.pid)
            os.kill(gateway.pid, signal.SIGSTOP)
            self._for_a_while(1.5, lambda: self._resume(gateway))

    def _resume(self, gateway: Gateway) -> None:
        self._paused.discard(gateway.pid)
        gateway.resume()  # the test reaps dead processes only at the end, so no other process has this id

    def _kill(self) -> None:
        number = self._random.randrange(GATEWAYS)
        self._soak.gateways[number].kill()
        self._soak.gateways[number] = self._soak.hatch()

    def _pause_backend(self) -> None:
        """Delay a statement. Its sender may be dead by then."""
        if pids := self._backends():
            pid = self._random.choice(pids)
            os.kill(pid, signal.SIGSTOP)
            self._for_a_while(1, lambda: _signal(pid, signal.SIGCONT))

    def _crash_database(self) -> None:
        """A backend that is killed takes all of the server's memory with it: it restarts, and recovers from its log."""
        if pids := self._backends():
            _signal(self._random.choice(pids), signal.SIGKILL)
            self._soak.counted["crashes of the database"] += 1

    def _backends(self) -> list[int]:
        async def ask() -> list[int]:
            connection = await asyncpg.connect(self._soak.dsn, timeout=2, command_timeout=2)
            try:
                sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencing-gateway'"
                return [row["pid"] for row in await connection.fetch(sql)]
            finally:
                connection.terminate()

        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                return runner.run(ask())
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return []


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
