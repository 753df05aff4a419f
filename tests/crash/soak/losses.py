"""A soak in which storage forgets, servers change, and connections break; ``checker.py`` judges what was answered.

Three gateways, a PostgreSQL behind a pgbouncer, and an S3 double that has the journal too. TCP proxies stand between
writers and gateways, between the pooler and the database, and between gateways and the store. A step is a number of
operations. After each step, one of the faults happens: ``FAULTS`` has them all.

With two databases, each has a server, a pooler, a proxy and a journal of its own. The faults of databases meet one of
them at a time. In an outage the other one has to go on: ``OTHERS`` says how far.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

from gateway.changes.ownership import claim_if_new
from gateway.fencing.intent import DEAD_AFTER, Duplicates
from tests.crash.processes import Gateway, Nursery
from tests.crash.soak.checker import Checker, Verdict
from tests.crash.soak.holders import MARK, Ground, Holder, Notes, look_at_rows, number_of
from tests.crash.soak.proxy import Proxy
from tests.crash.soak.servers import POOLER, Database, Double, Minio, TwoReleases, migrate
from tests.crash.soak.stage import LIMITS, Faults, configured
from tests.crash.stage import Postgres
from tests.leases.asking import FAKETIME, lies
from tests.postgres import as_gateway, install, memory_or_disk
from tests.processes import free_port
from tests.releases import Release
from tests.running import ORDINARY, config
from tests.standbys import paused

FAULTS = (
    "gateways", "requests", "statements", "crashes", "rewinds", "failovers", "lags", "poolers",
    "stores", "cuts", "disks", "clocks", "dumps",
)  # fmt: skip
COPIES = "copies"
"""Some requests to the store come twice. Gateways then have ``duplicates = "wait"``, so it is named in ``--also``."""
UPGRADES = "upgrades"
"""Gateways of two releases take turns. Only where an older release is given."""
OF_SEVERAL = (*FAULTS, "outages")
"""With two databases: one of them is down until the other one has answered some requests."""
FORGETTING = frozenset({"rewinds", "lags", "dumps"})
"""Each of these may take acknowledged writes away. A judge of linearizability has to know of it."""
LOSING = FORGETTING | {"failovers"}
"""After one of these, objects wait for lost requests to be dead. After all others, a new holder has everything soon."""
AT_LAST = 120.0
"""Seconds after the last fault in which a last holder must have everything. Nearly always it needs less than 10."""
UNTIL_ALL = "seconds until the last holder had all"
NOT_HAD = "resources that the last holder did not get"
OTHERS = 100
"""The requests that the other database answers meanwhile. At most ``FEW`` of them are not done."""
FEW = 3
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
    CREATE TABLE {schema}.entries (id bigint PRIMARY KEY, job bigint NOT NULL, mark bigint);
    CREATE TABLE {schema}.notes (id bigint PRIMARY KEY, job bigint NOT NULL)
"""


_AS_IN_1_0_0 = {
    "grants": [{"groups": ["admins"], "actions": [*(one.value for one in ORDINARY), "break"], "everything": True}]
}
"""Both releases read it. The name of the key is a former one."""


Serve: TypeAlias = Callable[[Path], Database]
"""Starts a server, with its data below a directory."""
Keep: TypeAlias = Callable[[Iterable[str]], Double | Minio]
"""Starts a store with these buckets."""


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict about a run, and what happened in it."""

    verdict: Verdict
    counted: Counter[str]
    seconds: float


@dataclass(slots=True)
class _Site:
    """One database, and what stands between the gateways and it."""

    ground: Ground
    database: Database
    behind: Proxy
    pooler: Any = None
    pooler_port: int = 0
    rewound: float = float("-inf")

    def working(self, *, waiting: bool) -> list[str]:
        """Return the beginnings of the resources that should work. Resources of objects wait after a rewind.

        ``waiting``: they may wait anyway, because copies of their requests are expected.
        """
        waiting |= time.monotonic() < self.rewound + DEAD_AFTER.total_seconds() + _LATE_AFTER
        return self.ground.jobs[4:] if waiting else [self.ground.kind]

    @property
    def address(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.pooler_port or self.behind.port}/postgres"


@dataclass(slots=True)
class _Scene:
    """All that runs."""

    sites: list[_Site]
    kept: Double | Minio
    nursery: Nursery | TwoReleases
    front: Proxy
    store: Proxy
    clock: Path | None = None
    gateways: list[Gateway] = field(default_factory=list)


async def play(
    operations: int,
    seed: int,
    mode: str,
    faults: tuple[str, ...],
    file: Path,
    patience: float = 60,
    databases: tuple[str, ...] = ("",),
    serve: Serve = Database,
    keep: Keep = Double,
    releases: tuple[Release, Release] | None = None,
) -> Result:
    """Run one soak, and judge its history, which stays in the file.

    ``databases``: the names of several, or an empty one for the only one. ``serve`` makes the server of each.
    ``keep`` makes the store. ``releases``: an older one and a newer one, which gateways are of by turns.
    ``patience``: how many seconds the last holder waits for the resources. After a rewind, objects need a while.
    """
    begun = time.monotonic()
    with file.open("w") as opened:
        notes = Notes(opened)
        notes.note("mode", mode=mode, late=LATE, seed=seed)
        async with _scene(mode, databases, serve, keep, releases, faults) as scene:
            await _run(scene, notes, operations, seed, faults)
            # Bytes that were there before have to wait if copies are expected.
            await _conclude(scene, notes, seed, patience, None if COPIES in faults else b"one")
            notes.note("final", **await asyncio.to_thread(_final, scene))
    seconds = time.monotonic() - begun
    with file.open() as lines:
        return Result(Checker(lines).check(), notes.counted, seconds)


async def _run(scene: _Scene, notes: Notes, operations: int, seed: int, faults: tuple[str, ...]) -> None:
    trouble = _Trouble(scene, notes, seed, faults)

    over = Event()

    def enough() -> bool:
        return over.is_set() or (notes.operations >= operations and not trouble.acting)

    grounds = [site.ground for site in scene.sites]
    # Some write in one database, which the trouble of another one is not to stop. Some write in all.
    worlds = [grounds] if len(grounds) == 1 else [grounds, *([one] for one in grounds)]
    try:
        async with asyncio.TaskGroup() as tasks:
            for number in range(_HOLDERS):
                holder = Holder(notes, scene.front.port, seed, f"holder {number}", worlds[number % len(worlds)])
                tasks.create_task(holder.work(enough))
            for site in scene.sites:
                tasks.create_task(look_at_rows(notes, site.ground, partial(_dsn, site), enough))
            tasks.create_task(asyncio.to_thread(trouble.work, enough))
    finally:
        over.set()


def _dsn(site: _Site) -> str:
    return site.database.dsn


async def _conclude(scene: _Scene, notes: Notes, seed: int, patience: float, body: bytes | None) -> None:
    """Let a last holder take each resource over."""
    last = Holder(notes, scene.front.port, seed, "last holder", [site.ground for site in scene.sites])
    begun, left = time.monotonic(), [(site.ground, job) for site in scene.sites for job in site.ground.jobs]
    while left and time.monotonic() < begun + patience:
        left = [(ground, job) for ground, job in left if not await last.conclude(ground, job, body)]
        await asyncio.sleep(0.2)
    await last.close()
    notes.counted[UNTIL_ALL] = round(time.monotonic() - begun)
    notes.counted[NOT_HAD] = len(left)
    for site in scene.sites:
        await asyncio.to_thread(_await_opening, site)


def _await_opening(site: _Site) -> None:
    """Return once a gateway has opened the database after the last rewind: it restores the fences by that.

    Nothing is acknowledged before. A busy machine takes longer for it than the last holder tries.
    """
    session, deadline = Postgres(site.database.dsn), time.monotonic() + _OPENING
    while not session.value("SELECT fencing.is_open_v1()"):
        assert time.monotonic() < deadline, "no gateway opens the database"
        time.sleep(0.1)
    session.close()


def _final(scene: _Scene) -> dict[str, Any]:
    places: dict[str, int | None] = {}
    fences: dict[str, list[int]] = {}
    refusals: list[str] = []
    for site in scene.sites:
        session, ground = Postgres(site.database.dsn), site.ground
        rows = session.rows(f"SELECT id, mark FROM {ground.schema}.entries")
        places |= {f"{ground.area}rows/{row}": mark for row, mark in rows}
        notes = session.rows(f"SELECT id FROM {ground.schema}.notes")
        places |= {f"{ground.area}notes/{note}": note for (note,) in notes}
        found = session.rows("SELECT resource, epoch, value FROM fencing.fence WHERE resource <> '#ownership'")
        fences |= {resource: [epoch, value] for resource, epoch, value in found}
        assert all(resource.startswith(ground.kind) for resource, _, _ in found), "fences of another database"
        rejected = session.rows("SELECT request_id FROM fencing.record WHERE kind = 'rejection'")
        refusals += [request for (request,) in rejected]
        session.close()
        for key, metadata in scene.kept.metadata(ground.bucket):
            if key in ground.keys and "fencing-tombstone" not in metadata:
                places[f"{ground.area}objects/{key}"] = int(metadata[MARK.removeprefix("x-amz-meta-")])
    return {"at": time.monotonic(), "places": places, "fences": fences, "refusals": refusals}


class _Trouble(Faults):
    """All faults, one after the other. Only pauses and holds last beyond their step."""

    def __init__(self, scene: _Scene, notes: Notes, seed: int, faults: tuple[str, ...]) -> None:
        known = scene.sites[0].ground.bucket
        double = scene.kept.double if isinstance(scene.kept, Double) else None
        super().__init__(seed, double, scene.gateways, lambda: scene.nursery.hatch(known))
        self._scene, self._notes = scene, notes
        self._has_copies = COPIES in faults
        self.acting = False
        of_each: dict[str, dict[Callable[[], None], int]] = {
            "gateways": {self.pause: 30, self.kill: 6},
            "requests": {self.hold: 60, self.fail: 50},
            "statements": {self.pause_backend: 20},
            "crashes": {self.crash_database: 2, self._restart: 1},
            "disks": {self._slow_disk: 5},
            "clocks": {self._jump: 5},
            "rewinds": {self._rewind: 3},
            "dumps": {self._load: 2},
            "failovers": {self._fail_over: 2},
            "lags": {self._lag: 2},
            "poolers": {self._end_pooler: 5},
            "stores": {self._restart_store: 5},
            "cuts": {self._cut: 30, self._lose: 30, self._delay: 20},
            "outages": {self._outage: 10},
            COPIES: {self._copy: 20},
            UPGRADES: {self._upgrade: 15},
        }
        self._kinds = {act: weight for name in faults for act, weight in of_each[name].items()}

    def work(self, enough: Callable[[], bool]) -> None:
        while not enough() and self._kinds:
            (act,) = self.random.choices(list(self._kinds), list(self._kinds.values()))
            self._step(self.random.randint(1, 500), enough)
            begun, self.acting = time.monotonic(), True
            act()
            self.acting = False
            name = act.__name__.strip("_")
            self._notes.counted[f"fault: {name.replace('_', ' ')}"] += 1
            self._notes.note("fault", what=name, begun=begun, ended=time.monotonic())
        self.let_go()
        self.clear()

    def _step(self, operations: int, enough: Callable[[], bool]) -> None:
        wanted, deadline = self._notes.operations + operations, time.monotonic() + 3
        while self._notes.operations < wanted and time.monotonic() < deadline and not enough():
            time.sleep(0.01)

    def kill(self) -> None:
        super().kill()
        self._aim()

    def _aim(self) -> None:
        self._scene.front.aim(*(one.port for one in self._scene.gateways))

    def _upgrade(self) -> None:
        """Stop a gateway, and start one of the other release. Before the first time, the schema is upgraded."""
        self.let_go()
        releases, gateways = self._scene.nursery, self._scene.gateways
        assert isinstance(releases, TwoReleases)
        if not self._notes.counted["fault: upgrade"]:
            releases.upgrade()
        number = self.random.randrange(len(gateways))
        releases.end(gateways[number])
        gateways[number] = releases.hatch()
        self._aim()

    # The store

    def match(self) -> dict[str, Any]:
        operations = {"PutObject": 6, "CompleteMultipartUpload": 3, "DeleteObject": 3, "HeadObject": 1, "GetObject": 1}
        (operation,) = self.random.choices(list(operations), list(operations.values()))
        match: dict[str, Any] = {"operation": operation}
        if self.random.random() < 0.7:  # else any key, those of the journal too
            match["key"] = self.random.choice(list(self._site().ground.keys))
        return match

    def _restart_store(self) -> None:
        """Restart it, or do what its clients see of that. Requests that it has already may take effect."""
        if isinstance(self._scene.kept, Minio):
            self._scene.kept.restart()
        else:
            self._scene.store.refuse(0.2 + self.random.random())

    def _copy(self) -> None:
        self._scene.store.repeat(1 + self.random.random())

    # The databases

    def dsn(self) -> str:
        return self._site().database.dsn

    def _site(self) -> _Site:
        return self.random.choice(self._scene.sites)

    def _outage(self) -> None:
        """End or pause the server of a database. Holders of the others go on, which the checker looks at."""
        down = self._site()
        others = [site for site in self._scene.sites if site is not down]
        self._calm()
        working = [site.working(waiting=self._has_copies) for site in others]
        begun = time.monotonic()
        if self.random.random() < 0.5:
            down.database.stop()
            self._answered(others)
            ended = time.monotonic()
            down.database.start()
        else:
            with paused(down.database.data):
                self._answered(others)
                ended = time.monotonic()
        for resources in working:
            # A part of the requests is for resources that wait for lost objects.
            wanted = OTHERS if len(resources) == 1 else OTHERS // 10
            told = {"from": begun, "until": ended, "requests": wanted, "few": FEW}
            self._notes.note("outage", resources=resources, **told)

    def _calm(self) -> None:
        """End all other trouble, so that what happens now comes of the next fault alone."""
        self.let_go()
        self.clear()
        for site in self._scene.sites:
            self._settled(site)
            site.behind.cut()
        self._scene.store.cut()
        self._answered(self._scene.sites)

    def _answered(self, sites: list[_Site]) -> None:
        """Wait until each of these databases has answered so many requests that were sent from now on."""
        before = self._notes.answered.copy()
        deadline = time.monotonic() + _OPENING
        kinds = [site.ground.kind for site in sites]
        # Each holder may have one under way that was sent before. After the deadline, the checker finds too few.
        wanted = OTHERS + _HOLDERS
        while any(self._notes.answered[kind] - before[kind] < wanted for kind in kinds) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _restart(self) -> None:
        self.let_go()
        self._site().database.restart()

    def _slow_disk(self) -> None:
        """Let the disk of a database be slow for some seconds."""
        site = self._site()
        self._settled(site)
        with site.database.slow_disk():
            time.sleep(1 + 2 * self.random.random())

    def _jump(self) -> None:
        """Let the clocks of all gateways jump, and jump back some seconds later. Signatures last for 15 minutes."""
        assert self._scene.clock is not None
        self._scene.clock.write_text(f"{self.random.choice((-600, -60, 60, 600, 200_000)):+d}\n")
        time.sleep(1 + 2 * self.random.random())
        self._scene.clock.write_text("+0\n")

    def _rewind(self) -> None:
        """Make a backup, let the database do something more, and put it back to the backup."""
        site = self._site()
        self._settled(site)
        since = time.monotonic()
        backup = site.database.backup()
        time.sleep(2 + 3 * self.random.random())
        self.let_go()
        self._rewound(site, since, site.database.put_back(backup))

    def _load(self) -> None:
        """Dump the database, let it do something more, and put the dump in its place. No gateway is stopped for it."""
        site = self._site()
        self._settled(site)
        since = time.monotonic()
        dump = site.database.dump()
        time.sleep(2 + 3 * self.random.random())
        self._settled(site)
        self._rewound(site, since, site.database.load(dump))

    def _fail_over(self) -> None:
        """Kill the primary. The standby has each commit, so that nothing may be lost."""
        site = self._site()
        self._settled(site)
        site.database.follow()
        site.database.synchronous()
        site.database.caught_up()
        time.sleep(self.random.random())
        self._promote(site)

    def _lag(self) -> None:
        """Kill the primary after a while without its standby, which lacks the last commits."""
        site = self._site()
        self._settled(site)
        site.database.follow()
        since = time.monotonic()
        site.database.caught_up()
        site.database.lag()
        time.sleep(2 + 2 * self.random.random())
        self._rewound(site, since, self._promote(site))

    def _promote(self, site: _Site) -> float:
        self.let_go()
        stopped = site.database.fail_over()
        site.behind.aim(site.database.port)
        site.behind.cut()
        return stopped

    def _rewound(self, site: _Site, since: float, stopped: float) -> None:
        site.rewound = time.monotonic()
        lost = {"since": since, "from": stopped, "until": site.rewound, "resources": [site.ground.kind]}
        self._notes.note("rewind", storage=[f"{site.ground.area}rows/", f"{site.ground.area}notes/"], **lost)

    def _settled(self, site: _Site) -> None:
        """The server accepts connections, and no process of it is paused."""
        self.let_go()
        deadline = time.monotonic() + 30
        while True:
            try:
                site.database.execute("SELECT 1")
            except Exception:  # noqa: BLE001 - of whatever kind: it restarts
                assert time.monotonic() < deadline, "the database does not come back"
                time.sleep(0.05)
            else:
                return

    # Connections

    def _end_pooler(self) -> None:
        site = self._site()
        site.pooler.kill()
        site.pooler.wait()
        time.sleep(self.random.random() * 0.5)
        site.pooler = site.database.pooler(site.behind.port, site.pooler_port)

    def _proxy(self) -> Proxy:
        return self.random.choice((self._scene.front, self._site().behind, self._scene.store))

    def _cut(self) -> None:
        self._proxy().cut(self.random.choice((0.2, 0.5, 1.0)))

    def _lose(self) -> None:
        self._proxy().lose()

    def _delay(self) -> None:
        self._proxy().hold(self.random.random() * 1.5)


@asynccontextmanager
async def _scene(
    mode: str,
    databases: tuple[str, ...],
    serve: Serve,
    keep: Keep,
    releases: tuple[Release, Release] | None,
    faults: tuple[str, ...],
) -> AsyncIterator[_Scene]:
    """Start everything, in processes of its own."""
    lying = "clocks" in faults
    if "poolers" in faults and POOLER is None:
        raise SystemExit("pgbouncer is not installed; leave out the fault poolers")
    if lying and FAKETIME is None:
        raise SystemExit("libfaketime is not installed; leave out the fault clocks")
    grounds = [Ground(name) for name in databases]
    async with AsyncExitStack() as stack:
        kept = stack.enter_context(closing(keep([*(ground.bucket for ground in grounds), _JOURNAL])))
        prepare = partial(_prepared, installing=releases and releases[0])
        served = (_site(ground, serve, prepare, pooled="poolers" in faults) for ground in grounds)
        sites = [await stack.enter_async_context(one) for one in served]
        store = stack.enter_context(Proxy(kept.port))
        front = stack.enter_context(Proxy())
        given = _given(mode, sites, store.port, kept.keys, wait=COPIES in faults)
        if len(sites) > 1:
            assert await claim_if_new(config(**given))  # as 'gateway migrate' does
        # Gateways take the time of day from this file.
        clock = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak"))) / "clock" if lying else None
        sections = {name: one for name, one in given.items() if name not in ("dsn", "limits")} | _AS_IN_1_0_0
        nursery: Nursery | TwoReleases
        if releases is None:
            nursery = stack.enter_context(Nursery(given, lies(clock) if clock else None))
        else:
            nursery = stack.enter_context(TwoReleases(*releases, sites[0].database, sections))
        scene = _Scene(sites, kept, nursery, front, store, clock)
        for _ in range(_GATEWAYS):
            scene.gateways.append(await asyncio.to_thread(nursery.hatch, grounds[0].bucket))
        front.aim(*(one.port for one in scene.gateways))
        yield scene


@asynccontextmanager
async def _site(
    ground: Ground, serve: Serve, prepare: Callable[[Database, Ground], None], *, pooled: bool
) -> AsyncIterator[_Site]:
    """Start a database, and what stands in front of it."""
    with tempfile.TemporaryDirectory(prefix="soak", dir=memory_or_disk(), ignore_cleanup_errors=True) as directory:
        database = await asyncio.to_thread(serve, Path(directory))
        try:
            await asyncio.to_thread(prepare, database, ground)
            with Proxy(database.port) as behind:
                site = _Site(ground, database, behind)
                if pooled:
                    site.pooler_port = free_port()
                    site.pooler = database.pooler(behind.port, site.pooler_port)
                try:
                    yield site
                finally:
                    if site.pooler is not None:
                        site.pooler.kill()
                        site.pooler.wait()
        finally:
            await asyncio.to_thread(database.close)


def _prepared(database: Database, ground: Ground, installing: Release | None = None) -> None:
    """``installing``: the release whose schema it is to have, if not this one."""
    install(database.dsn, None if installing is None else partial(migrate, installing))
    rows = ", ".join(f"({row}, {number_of(job)})" for row, job in ground.rows.items())
    schema = ground.schema
    database.execute(
        *([] if schema == "public" else [f"CREATE SCHEMA {schema}"]),
        *_TABLES.format(schema=schema).split(";"),
        f"INSERT INTO {schema}.entries (id, job) VALUES {rows}",
        # Its function is one of the system, so that a dump would not have it.
        "DROP EVENT TRIGGER grant_to_gateway",
    )


def _given(mode: str, sites: list[_Site], store: int, keys: Mapping[str, str], *, wait: bool) -> dict[str, Any]:
    grounds = [site.ground for site in sites]
    usual = configured(sites[0].address, f"http://127.0.0.1:{store}")
    journals = [{"mode": mode} if mode == "off" else {"mode": mode, "bucket": _JOURNAL} for _ in sites]
    sections: list[dict[str, Any]] = [{"dsn": as_gateway(site.address)} for site in sites]
    databases: dict[str, Any] = {"postgres": sections[0], "journal": journals[0]}
    if len(sites) > 1:
        databases = {"postgres": None, "databases": []}
        for ground, section, journal in zip(grounds, sections, journals, strict=True):
            owned = {"name": ground.name, "schemas": [ground.schema], "resources": [f"{ground.kind}**"]}
            section |= {**owned, "buckets": [ground.bucket]}
            placed = journal if mode == "off" else {**journal, "bucket": f"{_JOURNAL}/{ground.name}/"}
            databases["databases"].append({**section, "journal": placed})
    return {
        **usual,
        "dsn": sites[0].address,
        **databases,
        "tables": [
            {"name": f"{ground.schema}.{name}", "resource": f"{ground.kind}{{job}}"}
            for ground in grounds
            for name in ("entries", "notes")
        ],
        "objects": [
            {"match": f"{ground.bucket}/jobs/{{job}}/**", "resource": f"{ground.kind}{{job}}"} for ground in grounds
        ],
        "s3": {
            **usual["s3"],
            **keys,
            "late_after": _LATE_AFTER,
            "duplicates": (Duplicates.WAIT if wait else Duplicates.TOLERATE).value,
        },
        "limits": {**LIMITS, "idle_timeout": 2, "connect_timeout": 3, "store_timeout": 3},
    }
