"""When each key of a configured caller was last used, over all gateways."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.db.database import Database
from gateway.db.pool import load

_SQL = load("key_uses")


@dataclass(frozen=True, slots=True)
class LastUse:
    """The last use of a key. ``kind``: api or s3. ``key``: its fingerprint, or its access key id."""

    caller: str
    kind: str
    key: str
    last_used: datetime


async def note(database: Database, uses: Sequence[tuple[str, str, str, float]]) -> None:
    """Note uses, each as caller, kind, key and how many seconds ago. An earlier use changes nothing.

    Raises ``GatewayError``, after which it can be done again.
    """
    await database.fetch_write(
        _SQL["note"],
        [caller for caller, _, _, _ in uses],
        [kind for _, kind, _, _ in uses],
        [key for _, _, key, _ in uses],
        [ago for _, _, _, ago in uses],
    )


async def read(database: Database) -> list[LastUse]:
    """Return the last uses of all keys that ever were used, those that are no longer configured included."""
    return [LastUse(**row) for row in await database.fetch(_SQL["read"])]
