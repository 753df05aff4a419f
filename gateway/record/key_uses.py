"""Stores when keys of callers were last used. Requests note it in memory."""

import asyncio
from collections.abc import Sequence
from time import monotonic

from gateway.auth.callers import KeyUse
from gateway.db import key_uses as store
from gateway.db.database import Database


class KeyUses:
    """The uses of all keys of one process, which know until when the database has them."""

    what = "uses of keys"

    def __init__(self, keys: Sequence[KeyUse]) -> None:
        self._keys = keys
        self._stored: dict[KeyUse, float] = {}

    async def flush(self, database: Database) -> None:
        """Store the last use of each key. Raise ``GatewayError``: then it is stored by the next flush."""
        due = {one: last for one in self._keys if (last := one.last) is not None and self._stored.get(one) != last}
        if not due:
            return
        shown = await asyncio.to_thread(lambda: [one.shown() for one in due])
        now = monotonic()
        await store.note(
            database,
            [(one.caller, one.kind, name, now - last) for (one, last), name in zip(due.items(), shown, strict=True)],
        )
        self._stored.update(due)
