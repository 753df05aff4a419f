"""The row that says what a database owns, if its gateways serve several, and the change of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from time import monotonic
from uuid import UUID

from gateway.db.database import Database, Record, Transaction
from gateway.db.pool import FORBIDDEN, Session, load, translated
from gateway.db.servers import APPLICATION
from gateway.errors import ConfigurationError, OwnershipDiffers, SqlError, Unavailable
from gateway.fencing.ownership import Owner, Range, Registered, Target, check_share, shown

_SQL = load("ownership")

OWNERSHIP = "#ownership"
"""The name of the fence of a database's own row in ``fencing.ownership``. No resource can have it."""

_PATIENCE = 30.0
"""Seconds that sessions get to end."""
_POLL = 0.05
_PAGE = 5_000
"""Names that are carried over in one transaction."""
_COLUMNS = ("resource", "epoch", "value", "holder", "caller", "raised_at", "write_id")


async def enter(session: Session, owner: Owner) -> None:
    """Let a session in that will carry fenced statements. Raises ``OwnershipDiffers``, and the session must end.

    It shares a lock with all others that were let in. So a change of the rules finds each of them, and ends it.
    """
    with translated(Unavailable):
        (row,) = await session.fetch(_SQL["enter"])
    check_share(owner, row["name"], row["share"], changing=row["changing"], put_back=row["put_back"])
    if not row["entered"]:
        raise OwnershipDiffers.in_progress(owner.name)


async def compare(database: Database, owner: Owner) -> None:
    """Raise ``OwnershipDiffers`` if a database is another one than a gateway takes it for. It lets no session in."""
    (await read(database)).check(owner)


async def read(database: Database) -> Registered:
    """Return what a database says of itself."""
    (row,) = await database.fetch(_SQL["read"])
    rules = None if row["rules"] is None else json.dumps(json.loads(row["rules"]), sort_keys=True)
    return Registered(**{**row, "rules": rules})


async def begin(database: Database) -> None:
    """Keep other changes away while the session lasts. Raises ``Unavailable`` if one is under way."""
    row = await database.fetchrow(_SQL["begin"])
    if row is None or not row["alone"]:
        raise Unavailable("Another change of the rules of ownership is under way.", advice="Wait until it has ended.")


async def close(database: Database, target: Target, seen: Registered) -> bool:
    """Commit what follows: no session is let in until it is in force. Return whether the database was open.

    Raises ``OwnershipDiffers`` if it is not as it was ``seen``: another change has come first, or it was put back. The
    journal gets the number of the closing, as it gets any raise of a fence.
    """

    was = (seen.name, seen.share, seen.following, seen.closings, seen.known_closings)
    if not await database.run(lambda transaction: transaction.raise_fences(_SQL["close"], target.to_json(), *was)):
        raise OwnershipDiffers.in_progress(target.name)
    return seen.following is None


async def end_sessions(database: Database) -> None:
    """End each session that was let in before the database was closed, and wait until it is gone.

    Raises ``ConfigurationError`` if one may not be ended, and ``Unavailable`` if one does not end in time.
    """
    inside = [one["pid"] for one in await database.fetch(_SQL["inside"], APPLICATION)]
    deadline = monotonic() + _PATIENCE
    while inside:
        try:
            await database.fetchrow_write(_SQL["end_sessions"], inside)
        except SqlError as error:
            if error.sqlstate != FORBIDDEN:
                raise
            raise ConfigurationError(
                f"Gateways have sessions of another role: {_listed(inside)}",
                advice="Stop these gateways, or use their role in the DSN, and run the command again.",
            ) from error
        inside = [one["pid"] for one in await database.fetch(_SQL["left"], inside)]
        if inside and monotonic() > deadline:
            raise Unavailable(
                f"Sessions of gateways do not end: {_listed(inside)}.",
                advice="Stop these gateways, and run the command again.",
            )
        if inside:
            await asyncio.sleep(_POLL)


async def reopen(database: Database, target: Target, was: Registered) -> None:
    """Give a change up that has changed nothing. ``was``: as it was seen before it was closed.

    It does nothing if another change has begun meanwhile. One that was put back before stays closed.
    """
    closings = was.closings if was.is_put_back else was.closings + 1
    await database.fetchrow_write(_SQL["reopen"], target.to_json(), closings, was.known_closings + 1)


async def put_in_force(database: Database, target: Target, was: Registered, number: int, fleet: UUID | None) -> None:
    """Put in force what follows, and put it on record. ``was``: as it was seen before it was closed.

    Raises ``OwnershipDiffers`` if it was closed again. A database that was put back knows that by its journal.
    """

    async def work(transaction: Transaction) -> None:
        if not await transaction.fetch(_SQL["open"], target.to_json(), number, fleet, was.known_closings + 1):
            raise OwnershipDiffers.in_progress(target.name)
        details = {"operation": "ApplyOwnership", "was": shown(was.share), "is": shown(target.share)}
        names = {"name_was": was.name, "name_is": target.name} if was.name != target.name else {}
        await transaction.execute(_SQL["record"], json.dumps({**details, **names, "number": number}))

    await database.run(work)


async def note(database: Database, target: Target, number: int) -> None:
    """Note newer rules in a database about which they change nothing."""
    await database.fetchrow_write(_SQL["note"], target.rules, number, target.share)


async def tokens_within(database: Database, ranges: Sequence[Range]) -> AsyncIterator[list[Record]]:
    """Yield the fences, and the issued tokens of locks, with names in these ranges."""
    for kind in ("fences", "locks"):
        for first, after in ranges:
            begin = first
            while rows := await database.fetch(_SQL[kind], begin, after, _PAGE):
                yield rows
                begin = rows[-1]["resource"] + "\x01"


async def carry(database: Database, rows: Sequence[Record]) -> None:
    """Raise the fences of these names to these tokens. ``rows``: of ``tokens_within``, each name once."""
    columns = [[row[name] for row in rows] for name in _COLUMNS]
    await database.run(lambda transaction: transaction.raise_fences(_SQL["carry"], *columns))


async def busy(database: Database, ranges: Sequence[Range]) -> list[tuple[str, str]]:
    """Return names in these ranges that a lease, a lock-delay or an object write concerns, each with what it is."""
    firsts, afters = [first for first, _ in ranges], [after for _, after in ranges]
    return [(row["resource"], row["what"]) for row in await database.fetch(_SQL["busy"], firsts, afters)]


async def busy_buckets(database: Database) -> list[str]:
    """Return the buckets in which an object write, an upload or a condition is not over."""
    return [row["bucket"] for row in await database.fetch(_SQL["buckets"]) if row["bucket"]]


async def busy_keys(database: Database, bucket: str) -> list[str]:
    """Return the keys of a bucket about which this is so."""
    return [row["key"] for row in await database.fetch(_SQL["keys"], bucket)]


def _listed(pids: Sequence[int]) -> str:
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, sorted(pids)))} of the server"
