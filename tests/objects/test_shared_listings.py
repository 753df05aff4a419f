"""A listing of a bucket whose keys are fenced in several databases asks all of them at once."""

import asyncio
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.objects.list_objects import _OwnUploads, _Tombstones
from tests.waiting import PATIENCE


class Meeting:
    """A database that answers once the other one is asked as well."""

    def __init__(self, barrier: asyncio.Barrier) -> None:
        self._barrier = barrier

    async def fetchrow(self, *_: Any) -> None:
        await self._barrier.wait()

    async def fetch(self, *_: Any) -> tuple[()]:
        await self._barrier.wait()
        return ()


class Paused(Meeting):
    async def fetchrow(self, *_: Any) -> None:
        await asyncio.Event().wait()


class Down(Meeting):
    async def fetchrow(self, *_: Any) -> None:
        raise Unavailable("The database does not answer.")


async def test_the_databases_of_a_listing_are_asked_side_by_side() -> None:
    barrier = asyncio.Barrier(2)
    databases: Any = [Meeting(barrier), Meeting(barrier)]
    upstream: Any = None
    async with asyncio.timeout(PATIENCE):
        for hidden in (_Tombstones(databases, upstream), _OwnUploads(databases)):
            assert not await hidden.any_in("bucket")
            assert not await hidden.below("bucket", ["a/"])
            assert not await hidden.among("bucket", [])


async def test_the_first_failure_of_a_database_decides_a_listing() -> None:
    """A list without what it has to leave out would show tombstones, so it fails, and at once."""
    barrier = asyncio.Barrier(2)
    databases: Any = [Paused(barrier), Down(barrier)]
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Unavailable):
            await _OwnUploads(databases).any_in("bucket")
