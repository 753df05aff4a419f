"""The object plane in front of the S3 double.

``stage`` is one test's own, to break as it likes; ``shared`` is one module's, where each test keeps to its own keys.
"""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.objects.store import client
from tests.objects.object_gateway import Stage, module_stage, staged
from tests.objects.wire import Store, listening
from tests.waiting import PATIENCE


@pytest.fixture
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server) as one:
        yield one


shared = module_stage()


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"key-{uuid4().hex[:12]}"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """A store on a bare socket, for what stands on the wire."""
    async with listening() as store:
        yield store


@pytest.fixture
def patient_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a connection take long where the time limit is short: half of it, for a connection, is less than a stall."""
    monkeypatch.setattr(client, "_connect_timeout", lambda _: PATIENCE)
