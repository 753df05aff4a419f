"""Announcements of object writes, under the naming in force. Concurrent ones share a transaction.

Each is a statement with a snapshot of its own. One whose batch fails is sent again alone: a begin that was undone has
announced nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from gateway.batching import Lane, patiently
from gateway.db import intents
from gateway.db import naming as registry
from gateway.db.database import Database
from gateway.errors import SqlError, Unavailable
from gateway.fencing.intent import Begin, Begun, Finish
from gateway.fencing.naming import check
from gateway.objects.key_rules import Resources

MOST = 32
# Bytes of values, which fit into the socket's buffer: a gateway that pauses half-way would hold locks.
ROOM = 32 * 1024
# Seconds after which the next batch sets out beside a batch under way, which may be waiting for a lock.
OVERLAP = 0.004

Answer = TypeVar("Answer")

_NAMING_CHANGED = "FN503"
_NAMING_ATTEMPTS = 3


class Announcements:
    """Sends begins and finishes, in the order of their keys: opposite orders could deadlock.

    The naming of a bucket is read once, and remembered until a begin finds that it has changed.
    """

    def __init__(self, database: Database, resources: Resources) -> None:
        self._database, self._resources = database, resources
        self._namings: dict[str, UUID] = {}
        self._begins: dict[str, Lane[Begin, Begun]] = {}
        self._finishes: Lane[Finish, bool] = _lane(partial(intents.finish, database))

    async def begin(self, asked: Begin, *, proven: bool) -> Begun:
        """Announce a write. ``proven``: only under the naming in force.

        Raise ``NamingChanged`` if the configured naming is another one.
        """
        bucket = asked.write.bucket
        for _ in range(_NAMING_ATTEMPTS):
            if proven:
                asked = replace(asked, naming=await self._naming(bucket))
            try:
                return await self._begin(asked)
            except SqlError as error:
                if error.sqlstate != _NAMING_CHANGED:
                    raise
                self._namings.pop(bucket, None)
        raise Unavailable("The naming of the bucket keeps changing.")

    async def finish(self, asked: Finish) -> bool:
        """Finish a mutation. Raise what ``intents.finish`` raises."""
        return await self._finishes.ask(asked, size=intents.size(asked))

    async def _begin(self, asked: Begin) -> Begun:
        size, statement = intents.size(asked), intents.statement(asked)
        if size > ROOM:
            (begun,) = await intents.begin(self._database, [asked], patient=True)
            return begun
        if statement not in self._begins:
            self._begins[statement] = _lane(partial(intents.begin, self._database))
        return await self._begins[statement].ask(asked, size=size)

    async def _naming(self, bucket: str) -> UUID:
        """Return the generation that announcements prove. The first write to a bucket registers its naming."""
        known = self._namings.get(bucket)
        if known is not None:
            return known
        naming = self._resources.naming(bucket)
        registered = await registry.bucket(self._database, bucket)
        if registered is None:
            await registry.register_bucket(self._database, bucket, naming)
            registered = await registry.bucket(self._database, bucket)
        if registered is None:
            raise Unavailable(f"The naming of the bucket {bucket} cannot be registered.")
        check(f"the bucket {bucket}", naming, registered)
        self._namings[bucket] = registered.generation
        return registered.generation


def _lane(together: Callable[..., Awaitable[Sequence[Answer]]]) -> Lane[Any, Answer]:
    return Lane(together, patiently(together), most=MOST, room=ROOM, order=_place, overlap=OVERLAP)


def _place(asked: Begin | Finish) -> tuple[str, str, str]:
    write = asked.write
    return write.resource, write.bucket, write.key
