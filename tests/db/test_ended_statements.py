"""A request whose statement the database ends is answered with 503, and the answer tells the truth about its outcome.

Each path is tried with its first statement ended, its second, and so on, until none is left to end.
"""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import OutcomeUnknown, Unavailable
from tests.db.ending import Fault, How
from tests.db.paths import PATHS
from tests.db.world import Attempt, World, opened
from tests.tiers import first

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOTHING_WRITTEN = {Unavailable.code, Unavailable.s3_code}
UNKNOWN = {OutcomeUnknown.code, OutcomeUnknown.s3_code}
MOST = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(postgres_server: EmbeddedPostgres) -> AsyncIterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        async with opened(postgres_server, patch) as one:
            yield one


@pytest.mark.parametrize("how", first([How.LOST, How.TERMINATED, How.TIMEOUT]))
@pytest.mark.parametrize("path", PATHS)
async def test_it_is_unavailable_and_nothing_else(world: World, path: str, how: How) -> None:
    for number in range(1, MOST):
        attempt = await PATHS[path](world)
        if how is How.LOST and attempt.effect is None:
            return  # nothing can be told of its outcome
        try:
            with world.ender.ending(number, how) as fault:
                try:
                    status, code = await attempt.send()
                except httpx.RemoteProtocolError:
                    # An answer without a known end had begun. It is broken off, so that it is not taken for whole.
                    status, code = 503, Unavailable.code
            await _check(attempt, fault, status, code)
        finally:
            if attempt.after is not None:
                await attempt.after()
        if fault.struck is None:
            assert number > 1, "nothing was asked of the database"
            return
    raise AssertionError("there is no end of its statements")


async def _check(attempt: Attempt, fault: Fault, status: int, code: str) -> None:
    about = (status, code, fault.struck)
    if status in attempt.expected:
        assert attempt.effect is None or await attempt.effect(), about
        return
    assert fault.struck is not None, about
    assert status == 503, about
    assert code in NOTHING_WRITTEN | UNKNOWN, about
    if attempt.effect is not None and code in NOTHING_WRITTEN:
        assert not await attempt.effect(), about
