"""A soak in which storage forgets, servers change, and connections break; ``checker.py`` judges what was answered.

Three gateways, a PostgreSQL behind a pgbouncer, and an S3 double that has the journal too. TCP proxies stand between
writers and gateways, between the pooler and the database, and between gateways and the store. A step is a number of
operations. After each step, one of the faults happens: ``FAULTS`` has them all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.clients import BUCKET
from tests.crash.processes import Gateway, Nursery
from tests.crash.soak.checker import Checker, Verdict
from tests.crash.soak.holders import JOBS, KEYS, MARK, ROWS, Holder, Notes, look_at_rows
from tests.crash.soak.proxy import Proxy
from tests.crash.soak.servers import POOLER, Database
from tests.crash.stage import Postgres
from tests.databases import as_gateway, install, memory_or_disk
from tests.doubles.s3 import ACCESS_KEY as STORE_KEY
from tests.doubles.s3 import SECRET_KEY as STORE_SECRET
from tests.doubles.s3 import DoubleProcess
from tests.processes import free_port
from tests.running import ACCESS_KEY, API_KEY, GRANTS, SECRET_KEY

FAULTS = ("gateways", "requests", "statements", "crashes", "rewinds", "failovers", "poolers", "stores", "cuts")
LATE = 10.0
"""With mode async: how long before a loss an acknowledged raise may be to be forgotten. A gateway may be paused."""

_JOURNAL = "journal"
_GATEWAYS = 3
_HOLDERS = 12
_OPENING = 60.0
"""Seconds in which a gateway must have opened the database."""
_LATE_AFTER = 5
"""``[s3] late_after``: longer than requests are held here."""
_TABLES = """
    CREATE TABLE entries (id bigint PRIMARY KEY, job bigint NOT NULL, mark bigint);
    CREATE TABLE notes (id bigint PRIMARY KEY, job bigint NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict about a run, and what happened in it."""

    verdict: Verdict
    counted: Counter[str]
    seconds: float


@dataclass(slots=True)
class _Scene:
    """All that runs."""

    database: Database
    double: DoubleProcess
    nursery: Nursery
    front: Proxy
    behind: Proxy
    store: Proxy
    gateways: list[Gateway] = field(default_factory=list)
    pooler: Any = None
    pooler_port: int = 0


async def play(
    operations: int, seed: int, mode: str, faults: tuple[str, ...], file: Path, patience: float = 60
) -> Result:
    """Run one soak, and judge its history, which stays in the file.

    ``patience``: how many seconds the last holder waits for the resources. After a rewind, objects need a while.
    """
    begun = time.monotonic()
    with file.open("w") as opened:
        notes = Notes(opened)
        notes.note("mode", mode=mode, late=LATE, seed=seed)
        async with _scene(mode, pooled="poolers" in faults) as scene:
            await _run(scene, notes, operations, seed, faults)
            await _conclude(scene, notes, seed, patience)
            notes.note("final", **await asyncio.to_thread(_final, scene))
    seconds = time.monotonic() - begun
    with file.open() as lines:
        return Result(Checker(lines).check(), notes.counted, seconds)


async def _run(scene: _Scene, notes: Notes, operations: int, seed: int, faults: tuple[str, ...]) -> None:
    trouble = _Trouble(scene, notes, seed, faults)

    def enough() -> bool:
        return notes.operations >= operations and not trouble.acting

    async with asyncio.TaskGroup() as tasks:
        for number in range(_HOLDERS):
            tasks.create_task(Holder(notes, scene.front.port, seed, f"holder {number}").work(enough))
        tasks.create_task(look_at_rows(notes, lambda: scene.database.dsn, enough))
        tasks.create_task(trouble.work(enough))


async def _conclude(scene: _Scene, notes: Notes, seed: int, patience: float) -> None:
    """Let a last holder take each resource over."""
    last = Holder(notes, scene.front.port, seed, "last holder")
    begun, left = time.monotonic(), list(JOBS)
    while left and time.monotonic() < begun + patience:
        left = [job for job in left if not await last.conclude(job)]
        await asyncio.sleep(0.2)
    last.close()
    notes.counted["seconds until the last holder had all"] = round(time.monotonic() - begun)
    notes.counted["resources that the last holder did not get"] = len(left)
    await asyncio.to_thread(_await_opening, scene)


def _await_opening(scene: _Scene) -> None:
    """Return once a gateway has opened the database after the last rewind: it restores the fences by that.

    Nothing is acknowledged before. A busy machine takes longer for it than the last holder tries.
    """
    session, deadline = Postgres(scene.database.dsn), time.monotonic() + _OPENING
    while not session.value("SELECT fencing.is_open_v1()"):
        assert time.monotonic() < deadline, "no gateway opens the database"
        time.sleep(0.1)
    session.close()


def _final(scene: _Scene) -> dict[str, Any]:
    places: dict[str, int | None] = {}
    session = Postgres(scene.database.dsn)
    places |= {f"rows/{row}": mark for row, mark in session.rows("SELECT id, mark FROM entries")}
    places |= {f"notes/{note}": note for (note,) in session.rows("SELECT id FROM notes")}
    fences = session.rows("SELECT resource, epoch, value FROM fencing.fence")
    refusals = session.rows("SELECT request_id FROM fencing.record WHERE kind = 'rejection'")
    session.close()
    for key, one in scene.double.objects(BUCKET).items():
        if key in KEYS and "fencing-tombstone" not in one["metadata"]:
            places[f"objects/{key}"] = int(one["metadata"][MARK.removeprefix("x-amz-meta-")])
    return {
        "at": time.monotonic(),
        "places": places,
        "fences": {resource: [epoch, value] for resource, epoch, value in fences},
        "refusals": [request for (request,) in refusals],
    }


class _Trouble:
    """All faults, one after the other. Only pauses and holds last beyond their step."""

    def __init__(self, scene: _Scene, notes: Notes, seed: int, faults: tuple[str, ...]) -> None:
        self._scene, self._notes = scene, notes
        self.acting = False
        self._random = Random(f"{seed}/trouble")
        self._later: set[asyncio.Task[None]] = set()
        self._paused: set[int] = set()
        of_each: dict[str, dict[Callable[[], Any], int]] = {
            "gateways": {self._pause: 30, self._kill: 6},
            "requests": {self._hold: 60, self._fail: 50},
            "statements": {self._pause_backend: 20},
            "crashes": {self._crash: 2, self._restart: 1},
            "rewinds": {self._rewind: 3},
            "failovers": {self._fail_over: 2, self._lag: 2},
            "poolers": {self._end_pooler: 5},
            "stores": {self._restart_store: 5},
            "cuts": {self._cut: 30, self._lose: 30, self._delay: 20},
        }
        self._kinds = {act: weight for name in faults for act, weight in of_each[name].items()}

    async def work(self, enough: Callable[[], bool]) -> None:
        while not enough() and self._kinds:
            (act,) = self._random.choices(list(self._kinds), list(self._kinds.values()))
            await self._step(self._random.randint(1, 500), enough)
            begun, self.acting = time.monotonic(), True
            await act()
            self.acting = False
            self._notes.counted[f"fault: {act.__name__.strip('_').replace('_', ' ')}"] += 1
            self._notes.note("fault", what=act.__name__.strip("_"), begun=begun, ended=time.monotonic())
        await asyncio.gather(*self._later)
        await asyncio.to_thread(self._scene.double.clear)

    async def _step(self, operations: int, enough: Callable[[], bool]) -> None:
        wanted, deadline = self._notes.operations + operations, time.monotonic() + 3
        while self._notes.operations < wanted and time.monotonic() < deadline and not enough():
            await asyncio.sleep(0.01)

    def _after(self, longest: float, act: Callable[[], Any]) -> None:
        async def late(seconds: float) -> None:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(act)

        task = asyncio.create_task(late(self._random.random() * longest))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    # Gateways

    async def _pause(self) -> None:
        gateway = self._random.choice(self._scene.gateways)
        if gateway.pid not in self._paused:
            self._paused.add(gateway.pid)
            os.kill(gateway.pid, signal.SIGSTOP)
            self._after(1.5, lambda: self._resume(gateway))

    def _resume(self, gateway: Gateway) -> None:
        self._paused.discard(gateway.pid)
        gateway.resume()

    async def _kill(self) -> None:
        number = self._random.randrange(_GATEWAYS)
        await asyncio.to_thread(self._scene.gateways[number].kill)
        self._scene.gateways[number] = await asyncio.to_thread(self._scene.nursery.hatch, BUCKET)
        self._scene.front.aim(*(one.port for one in self._scene.gateways))

    # The store

    async def _hold(self) -> None:
        """Delay a request to the store, or its answer. Its sender may be dead by then."""
        at = self._random.choice(("arrival", "before", "after"))
        rule = await asyncio.to_thread(self._scene.double.rule, "hold", at=at, **self._match())
        self._after(2, rule.release)

    async def _fail(self) -> None:
        action, at = self._random.choice(("cut", "cut", "fail")), self._random.choice(("before", "after"))
        await asyncio.to_thread(self._scene.double.rule, action, at=at, **self._match())

    def _match(self) -> dict[str, Any]:
        operations = {"PutObject": 6, "CompleteMultipartUpload": 3, "DeleteObject": 3, "HeadObject": 1, "GetObject": 1}
        (operation,) = self._random.choices(list(operations), list(operations.values()))
        match: dict[str, Any] = {"operation": operation}
        if self._random.random() < 0.7:  # else any key, those of the journal too
            match["key"] = self._random.choice(list(KEYS))
        return match

    async def _restart_store(self) -> None:
        """As its clients see a restart. Requests that it has already may take effect."""
        self._scene.store.refuse(0.2 + self._random.random())

    # The database

    async def _pause_backend(self) -> None:
        """Delay a statement. Its sender may be dead by then."""
        if pids := await self._backends():
            pid = self._random.choice(pids)
            _signal(pid, signal.SIGSTOP)
            self._after(1, lambda: _signal(pid, signal.SIGCONT))

    async def _crash(self) -> None:
        """A backend that is killed takes all of the server's memory with it: it restarts, and recovers from its log."""
        if pids := await self._backends():
            _signal(self._random.choice(pids), signal.SIGKILL)

    async def _restart(self) -> None:
        await self._let_go()
        await asyncio.to_thread(self._scene.database.restart)

    async def _backends(self) -> list[int]:
        sql = "SELECT pid FROM pg_stat_activity WHERE usename = 'fencing_gateway'"
        try:
            return [pid for (pid,) in await asyncio.to_thread(self._scene.database.execute, sql)]
        except (OSError, TimeoutError, ConnectionError, Exception):  # noqa: BLE001 - it restarts just now
            return []

    async def _rewind(self) -> None:
        """Make a backup, let the database do something more, and put it back to the backup."""
        await self._settled()
        since = time.monotonic()
        backup = await asyncio.to_thread(self._scene.database.backup)
        await asyncio.sleep(2 + 3 * self._random.random())
        await self._let_go()
        self._rewound(since, await asyncio.to_thread(self._scene.database.put_back, backup))

    async def _fail_over(self) -> None:
        """Kill the primary. The standby has each commit, so that nothing may be lost."""
        await self._settled()
        await asyncio.to_thread(self._scene.database.follow)
        await asyncio.to_thread(self._scene.database.synchronous)
        await asyncio.to_thread(self._scene.database.caught_up)
        await asyncio.sleep(self._random.random())
        await self._promote()

    async def _lag(self) -> None:
        """Kill the primary after a while without its standby, which lacks the last commits."""
        await self._settled()
        await asyncio.to_thread(self._scene.database.follow)
        since = time.monotonic()
        await asyncio.to_thread(self._scene.database.caught_up)
        await asyncio.to_thread(self._scene.database.lag)
        await asyncio.sleep(2 + 2 * self._random.random())
        self._rewound(since, await self._promote())

    async def _promote(self) -> float:
        await self._let_go()
        stopped = await asyncio.to_thread(self._scene.database.fail_over)
        self._scene.behind.aim(self._scene.database.port)
        self._scene.behind.cut()
        return stopped

    def _rewound(self, since: float, stopped: float) -> None:
        lost = {"since": since, "from": stopped, "until": time.monotonic()}
        self._notes.note("rewind", storage=["rows/", "notes/"], **lost)

    async def _settled(self) -> None:
        """The server accepts connections, and no process of it is paused."""
        await self._let_go()
        deadline = time.monotonic() + 30
        while True:
            try:
                await asyncio.to_thread(self._scene.database.execute, "SELECT 1")
            except Exception:  # noqa: BLE001 - of whatever kind: it restarts
                assert time.monotonic() < deadline, "the database does not come back"
                await asyncio.sleep(0.05)
            else:
                return

    async def _let_go(self) -> None:
        await asyncio.gather(*self._later)

    # Connections

    async def _end_pooler(self) -> None:
        scene = self._scene
        scene.pooler.kill()
        await asyncio.to_thread(scene.pooler.wait)
        await asyncio.sleep(self._random.random() * 0.5)
        scene.pooler = scene.database.pooler(scene.behind.port, scene.pooler_port)

    def _proxy(self) -> Proxy:
        return self._random.choice((self._scene.front, self._scene.behind, self._scene.store))

    async def _cut(self) -> None:
        self._proxy().cut(self._random.choice((0.2, 0.5, 1.0)))

    async def _lose(self) -> None:
        self._proxy().lose()

    async def _delay(self) -> None:
        self._proxy().hold(self._random.random() * 1.5)


@asynccontextmanager
async def _scene(mode: str, *, pooled: bool) -> AsyncIterator[_Scene]:
    """Start everything, in processes of its own."""
    if pooled and POOLER is None:
        raise SystemExit("pgbouncer is not installed; leave out the fault poolers")
    with tempfile.TemporaryDirectory(prefix="soak", dir=memory_or_disk(), ignore_cleanup_errors=True) as directory:
        database = await asyncio.to_thread(Database, Path(directory))
        try:
            await asyncio.to_thread(_prepared, database)
            with (
                DoubleProcess.start(buckets=[BUCKET, _JOURNAL]) as double,
                Proxy(database.port) as behind,
                Proxy(int(double.endpoint.rpartition(":")[2])) as store,
                Proxy() as front,
            ):
                pooler_port = free_port() if pooled else 0
                pooler = database.pooler(behind.port, pooler_port) if pooled else None
                try:
                    given = _given(mode, pooler_port or behind.port, store.port)
                    with Nursery(given) as nursery:
                        scene = _Scene(database, double, nursery, front, behind, store, [], pooler, pooler_port)
                        for _ in range(_GATEWAYS):
                            scene.gateways.append(await asyncio.to_thread(nursery.hatch, BUCKET))
                        front.aim(*(one.port for one in scene.gateways))
                        yield scene
                        pooler = scene.pooler
                finally:
                    if pooler is not None:
                        pooler.kill()
                        pooler.wait()
        finally:
            await asyncio.to_thread(database.close)


def _prepared(database: Database) -> None:
    install(database.dsn)
    rows = ", ".join(f"({row}, {job[4:]})" for row, job in ROWS.items())
    database.execute(*_TABLES.split(";"), f"INSERT INTO entries (id, job) VALUES {rows}")


def _given(mode: str, database: int, store: int) -> dict[str, Any]:
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "api_key": API_KEY}
    dsn = f"postgresql://postgres@127.0.0.1:{database}/postgres"
    return {
        "dsn": dsn,
        "postgres": {"dsn": as_gateway(dsn), "idle_timeout": 2, "lock_timeout": 2, "connect_timeout": 3},
        "tables": [{"name": f"public.{name}", "resource": "job/{job}"} for name in ("entries", "notes")],
        "objects": [{"match": f"{BUCKET}/jobs/{{job}}/**", "resource": "job/{job}"}],
        "callers": [{"name": "writer", "groups": ["admins"], **keys}],
        "grants": GRANTS,
        "journal": {"mode": mode} if mode == "off" else {"mode": mode, "bucket": _JOURNAL},
        "s3": {
            "endpoint": f"http://127.0.0.1:{store}",
            "timeout": 3,
            "pending_wait": 0.3,
            "late_after": _LATE_AFTER,
            "memory_threshold": 64 * 1024,
            "sweep_interval": 1,
            "access_key_id": STORE_KEY,
            "secret_access_key": STORE_SECRET,
        },
    }


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
