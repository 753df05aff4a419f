"""A reload that fails at any step leaves the former gateway in place. A watched file is tried as often as it helps."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway import reloading
from gateway.config import Config
from gateway.config.changes import Change
from gateway.errors import ConfigurationError, ReloadRefused, Unavailable
from gateway.fencing.record import Attempt
from gateway.reloading import Reload, Reloading, Source
from tests.running import Events

ATTEMPT = Attempt(None, None, "root", "POST", "/v1/config/reload", None, "1")


def config(**leases: Any) -> Config:
    postgres = {"dsn": "postgresql://a@b/c"}
    return Config.model_validate({"postgres": postgres, "server": {"watch": True}, "leases": leases})


class Served:
    """A gateway that only knows whether it runs."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble, self.ended = trouble, asyncio.Event()

    async def run(self, started: Callable[[], None]) -> None:
        if self.trouble == "start":
            raise OSError
        started()
        await self.ended.wait()

    def retire(self) -> None:
        self.ended.set()

    stop = retire

    async def record_reload(self, attempt: Attempt, changed: Sequence[Change]) -> None:
        if self.trouble == "record":
            raise Unavailable("The database is away.")


class Others:
    """The other workers: they prepare, or refuse."""

    leads = True

    def __init__(self) -> None:
        self.refusal = ""
        self.told: list[str] = []

    async def prepare(self, _: Config) -> None:
        self.told.append("prepare")
        if self.refusal:
            raise ReloadRefused(self.refusal)

    async def commit(self) -> None:
        self.told.append("commit")

    async def abandon(self) -> None:
        self.told.append("abandon")


class World:
    """The file, and all gateways that were built from it."""

    def __init__(self) -> None:
        self.wanted = config()
        self.error: Exception | None = None
        self.checks = 0
        self.trouble = ""
        self.built: list[Served] = []
        self.serving: Served | None = None
        self.others = Others()

    def build(self, _: Config, __: Reload) -> Served:
        self.built.append(Served(self.trouble))
        return self.built[-1]

    def switch(self, _: Config, serving: Served) -> None:
        self.serving = serving

    async def check(self, _: Config) -> None:
        self.checks += 1
        if self.error is not None:
            raise self.error

    def source(self) -> Source:
        return Source(lambda: self.wanted, self.check, lambda _: {}, lambda _: None)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[Reloading[Served]]:
    owner = Reloading(config(), world.build, world.switch, Events(), world.source(), world.others)
    ready, stop, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    received = iter((None, stop))

    async def receive() -> dict[str, Any]:
        if (until := next(received)) is not None:
            await until.wait()
        return {}

    async def send(message: Any) -> None:
        (ready if message["type"] == "lifespan.startup.complete" else ended).set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(owner.lifespan({}, receive, send))
        await ready.wait()
        yield owner
        stop.set()
    assert ended.is_set()
    assert all(one.ended.is_set() for one in world.built if one.trouble != "start")


async def test_another_configuration_has_another_gateway() -> None:
    world = World()
    async with running(world) as owner:
        assert await owner.reload(ATTEMPT) == []
        world.wanted = config(max_ttl=60)
        assert await owner.reload(ATTEMPT) == ["[leases], max_ttl: 3600.0 -> 60.0"]
        first, second = world.built
        assert first.ended.is_set()
        assert not second.ended.is_set()
        assert world.serving is owner.serving is second


@pytest.mark.parametrize("trouble", ["start", "record", "check", "bug"])
async def test_a_reload_that_fails_changes_nothing(trouble: str) -> None:
    world = World()
    async with running(world) as owner:
        world.wanted, world.trouble = config(max_ttl=60), trouble
        world.error = {"check": ConfigurationError("wrong"), "bug": KeyError("x")}.get(trouble)
        with pytest.raises(ReloadRefused):
            await owner.reload(ATTEMPT)
        assert owner.serving is world.built[0]
        assert world.serving is None
        assert not world.built[0].ended.is_set()
        world.trouble, world.error = "", None
        assert await owner.reload(ATTEMPT)
        assert world.serving is world.built[-1]


async def test_a_configuration_takes_effect_once_all_workers_have_prepared_for_it() -> None:
    world = World()
    async with running(world) as owner:
        world.wanted, world.others.refusal = config(max_ttl=60), "Worker 2 failed."
        with pytest.raises(ReloadRefused, match="Worker 2 failed"):
            await owner.reload(ATTEMPT)
        assert (world.others.told, owner.serving) == (["prepare", "abandon"], world.built[0])
        assert world.built[1].ended.is_set()
        world.others.refusal = ""
        assert await owner.reload(ATTEMPT)
        assert world.others.told[2:] == ["prepare", "commit"]
        assert owner.serving is world.built[2]


async def test_the_other_workers_are_told_if_the_record_fails() -> None:
    world = World()
    async with running(world) as owner:
        world.wanted, world.trouble = config(max_ttl=60), "record"
        with pytest.raises(ReloadRefused):
            await owner.reload(ATTEMPT)
        assert world.others.told == ["prepare", "abandon"]


async def test_a_worker_serves_as_before_until_it_is_told_to_commit() -> None:
    world = World()
    async with running(world) as owner:
        assert await owner.prepare(config(max_ttl=60)) is None
        assert owner.serving is world.built[0]
        assert "reloading itself" in str(await owner.prepare(config(max_ttl=61)))
        await owner.abandon()
        assert world.built[1].ended.is_set()
        assert await owner.prepare(config(max_ttl=62)) is None
        await owner.commit()
        assert world.serving is owner.serving is world.built[2]
        assert world.built[0].ended.is_set()
        world.wanted = config(max_ttl=62)
        assert await owner.reload(ATTEMPT) == [], "it knows the configuration that it has taken"


async def test_a_worker_that_cannot_start_a_gateway_says_so_and_can_try_again() -> None:
    world = World()
    async with running(world) as owner:
        world.trouble = "start"
        assert await owner.prepare(config(max_ttl=60)) == "It failed: OSError."
        world.trouble = ""
        assert await owner.prepare(config(max_ttl=60)) is None
        # It stops although the reload has no end yet.


@pytest.mark.parametrize(("error", "again"), [(ConfigurationError("wrong"), False), (Unavailable("away"), True)])
async def test_a_watched_state_is_tried_again_if_it_could_not_be_checked(
    monkeypatch: pytest.MonkeyPatch, error: Exception, *, again: bool
) -> None:
    monkeypatch.setattr(reloading, "_LOOK", 0.001)
    world = World()
    async with running(world):
        world.error, world.wanted = error, config(max_ttl=60)
        async with asyncio.timeout(30):
            while world.checks < (4 if again else 1):
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            assert again or world.checks == 1
            world.error, world.wanted = None, config(max_ttl=61)
            while world.serving is None:
                await asyncio.sleep(0.005)
        assert len(world.built) == 2
