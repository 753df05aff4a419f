"""The actors in a test of recorded exchanges, with a real server or with the recorded answers of one.

``RECORD=1 pytest tests/sources/test_consul.py tests/sources/test_kubernetes.py -k live`` writes the recordings anew.
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from gateway.client.source import Held, Source
from tests.sources.exchanges import Lane, Recorder, Stage, recording, replaying

S = TypeVar("S", bound=Source)

MODES = ("recorded", pytest.param("live", marks=pytest.mark.installed))


class Cast:
    """The sources and the operator of a test. All are closed in the end."""

    def __init__(self, stage: Stage, stack: AsyncExitStack) -> None:
        self.stage = stage
        self._stack = stack

    async def lane(self, name: str, server: str = "") -> Lane:
        return await self.stage.lane(name, server)

    async def source(self, make: Callable[[str], S], name: str, server: str = "") -> S:
        """The source that ``make`` makes of the address of its lane."""
        source = make((await self.lane(name, server)).url)
        self._stack.push_async_callback(source.aclose)
        return source

    async def operator(self, server: str = "", **headers: str) -> httpx.AsyncClient:
        lane = await self.lane(f"operator {server}".strip(), server)
        client = httpx.AsyncClient(base_url=lane.url, headers=headers)
        return await self._stack.enter_async_context(client)


@asynccontextmanager
async def cast_of(request: pytest.FixtureRequest, directory: Path, version: Callable[[], str]) -> AsyncIterator[Cast]:
    """The cast of this test. ``request.param``: its mode; live, the fixture ``servers`` says where servers are.

    ``directory``: of the recordings. ``version``: what the real server says of itself.
    """
    # One for all modes: the rest of the parameters is part of the name.
    name = request.node.name.replace(f"{request.param}-", "").replace(f"[{request.param}]", "")
    recorded = directory / f"{name.replace('[', '-').strip(']')}.json"

    def write(recorder: Recorder) -> None:
        recorder.write(recorded, version())

    async with AsyncExitStack() as stack:
        if request.param == "recorded":
            stage = await stack.enter_async_context(replaying(recorded))
        else:
            servers: Callable[[str], str] = request.getfixturevalue("servers")
            servers("")
            stage = await stack.enter_async_context(recording(servers, write if "RECORD" in os.environ else None))
        async with AsyncExitStack() as actors:
            yield Cast(stage, actors)


async def acquire(source: Source, resource: str, holder: str, *, ttl: float = 10.0, wait: float | None = 0) -> Held:
    return await source.acquire(resource, holder=holder, ttl=ttl, wait=wait, mode="exclusive")
