"""The run of a server, and the row that says for which run its database was opened, in which mode of the journal.

The side of the database in the protocol of ``gateway.journal.protocol``.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import uuid4

from gateway.db import ownership
from gateway.db.database import Database, Secured, Transaction
from gateway.db.migrations import newest
from gateway.db.pool import Session, columns, load, translated
from gateway.errors import DatabaseClosed, Unavailable
from gateway.fencing.ownership import Owner
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token
from gateway.journal.contents import Entry
from gateway.journal.protocol import Loss, OpenDatabase
from gateway.journal.trust import PUT_BACK, Mode, Opened, Run, Server

_SQL = load("opening")
# An opening waits for all transactions that have raised a fence, and for other openings. Later ones wait for this one,
# and read the row that it writes. Each takes this lock before that of the row.
_WAIT_FOR_RAISES = "LOCK TABLE fencing.fence IN SHARE ROW EXCLUSIVE MODE"
_KEEP_OPEN = "LOCK TABLE fencing.fence IN ROW EXCLUSIVE MODE"

_LONGEST_WAIT = timedelta(minutes=10)
"""How long an operator waits who accepts a loss. At a store that never gives up, a lost body may arrive later."""

Wait: TypeAlias = Callable[[timedelta], Awaitable[None]]


async def wait_in_silence(length: timedelta) -> None:
    """Wait for so long."""
    await asyncio.sleep(length.total_seconds())


async def ask(session: "Session | Database | Transaction") -> Server:
    """Return the run of a session, and the last opening. Raises ``Unavailable`` for a standby, which has no run.

    Raises ``DatabaseClosed`` if the schema is older than this version needs, or serves only newer ones. A gateway may
    start before its database, and may run while it is migrated.
    """
    with translated(Unavailable):
        (row,) = await session.fetch(_SQL["ask"])
    if (row["revision"] or "") < newest():
        raise DatabaseClosed(
            f"The fencing schema is at {row['revision']}; this version of the gateway needs {newest()}.",
            advice="Nothing was written. The operator runs 'gateway migrate'.",
        )
    if row["distributed"] is not None:
        raise DatabaseClosed(
            f"Citus manages fencing.{row['distributed']}. Fences would commit on several nodes, one after the other.",
            advice=f"Nothing was written. The operator runs: SELECT undistribute_table('fencing.{row['distributed']}')",
        )
    if row["oldest"] is not None and row["oldest"] > newest():
        raise DatabaseClosed(
            f"The fencing schema is at {row['revision']}, which serves gateways of {row['oldest']} and later. "
            f"This one knows {newest()}.",
            advice="Nothing was written. The operator runs a newer version of the gateway.",
        )
    if row["here_timeline"] is None:
        raise Unavailable("The database is a standby, which takes no writes.")
    opened = Opened(
        installation=row["installation"],
        run=Run(row["system"], row["timeline"], row["started"], row["identity"]),
        term=row["term"],
        mode=Mode(row["mode"]),
        position=row["position"],
        snapshot=row["snapshot"],
        began=row["began"],
        epoch=row["epoch"],
    )
    here = Run(row["here_system"], row["here_timeline"], row["here_started"], row["here_identity"])
    return Server(here, opened, row["now"], row["here_written"], row["here_target"])


@dataclass(frozen=True, slots=True)
class LastOpening:
    """The last opening of a database; ``opened_at`` is None before the first."""

    mode: str
    term: int
    opened_at: datetime | None
    snapshot: int


async def read_opening(database: Database) -> LastOpening:
    """Return the last opening, for people."""
    (row,) = await database.fetch(_SQL["last"])
    return LastOpening(**row)


async def read_tokens(session: Session, resources: Sequence[str]) -> Mapping[str, Token]:
    """Return the fences that a session finds of these resources."""
    with translated(Unavailable):
        rows = await session.fetch(_SQL["fences"], resources)
    return {row["resource"]: Token(row["epoch"], row["value"]) for row in rows}


@dataclass(frozen=True, slots=True)
class OpeningTable:
    """The gateway's database, as openings and snapshots need it. It admits sessions of every run.

    ``owner``: what the database must be; None for any one. ``store_time``: asks for the clock of the object store;
    None without one. ``dead_after``: how long a request to the store can take to have its effect. It is asked for after
    the store's clock. ``wait``: waits for so long, where an operator accepts a loss.
    """

    database: Database
    owner: Owner | None = None
    store_time: Callable[[], Awaitable[datetime]] | None = None
    dead_after: Callable[[], timedelta] = timedelta
    wait: Wait = wait_in_silence

    async def ask(self) -> Server:
        """Return the run of the session's server, and the last opening. Raises ``OwnershipDiffers``."""
        server = await ask(self.database)
        if self.owner is not None:
            await ownership.compare(self.database, self.owner)
        return server

    async def identify(self) -> None:
        """Give the installation an id if it has none."""
        await self.database.fetchrow_write(_SQL["identify"], uuid4())

    async def find_lower(self, run: Run, entries: Sequence[Entry]) -> tuple[Loss, ...]:
        """Return a loss for each fence that is lower, or absent. Raises ``Unavailable`` on another run."""

        async def work(transaction: Transaction) -> tuple[Loss, ...]:
            if (await ask(transaction)).run != run:
                raise Unavailable("The database server was started again meanwhile.")
            rows = await transaction.fetch(_SQL["lower"], *_columns(entries))
            return tuple(Loss(entries[row["nth"] - 1], _token(row["epoch"], row["value"])) for row in rows)

        return await self.database.run(work)

    async def open(self, effect: OpenDatabase) -> bool:
        """Open the database for a run, and put it on record with all that was lost.

        Return False, and change nothing, if another gateway was quicker or the session belongs to another run. If the
        object writes of all resources have to wait, so does this, for minutes.
        """
        now = await self.store_time() if self.store_time is not None else datetime.now(UTC)  # noqa: TID251
        if effect.waits is None:
            await self.wait(min(self.dead_after(), _LONGEST_WAIT))

        async def work(transaction: Transaction) -> bool:
            await transaction.execute(_WAIT_FOR_RAISES)
            server = await ask(transaction)
            if server.run != effect.run or server.opened.term >= effect.opened.term:
                return False
            opened, run = effect.opened, effect.run
            await transaction.fetch(
                _SQL["write"],
                opened.installation,
                *(run.system, run.timeline, run.started, run.database),
                *(opened.term, opened.mode, opened.snapshot, opened.began),
            )
            # The row comes first: no fence rises on a database that is not open.
            await _raise(transaction, [loss.entry for loss in effect.losses], opened.term)
            if effect.waits:
                await transaction.fetch(_SQL["wait"], sorted(effect.waits), now, self.dead_after())
            if not effect.continues:
                await transaction.fetch(_SQL["new_epoch"], opened.term, opened.epoch)
            await transaction.fetch(_SQL["record"], json.dumps(_details(server, effect)))
            return True

        return await self.database.run(work)

    async def note(self, run: Run, snapshot: int, entries: Sequence[Entry]) -> None:
        """Raise the fences that are lower and note the snapshot, in one transaction.

        Do nothing if the session belongs to another run, the database is not open for it, or has noted a later one.
        """

        async def work(transaction: Transaction) -> None:
            await transaction.execute(_KEEP_OPEN)
            await transaction.fetch(_SQL["lock"])
            server = await ask(transaction)
            if server.run == run == server.opened.run and server.opened.snapshot < snapshot:
                await _raise(transaction, entries, server.opened.term)
                await transaction.fetch(_SQL["note"], snapshot)

        await self.database.run(work)

    async def close(self, run: Run, began: int, known: int, reason: str) -> None:
        """Keep the database closed for every run, until an operator accepts the loss. Put the reason on record.

        The term is above ``known`` then. So the term of an accepted loss is above all that gateways remember.
        Do nothing if an operator has accepted a loss after the term ``began``. Raises ``Unavailable`` on another run:
        the server that has the loss was replaced.
        """

        async def work(transaction: Transaction) -> None:
            # An opening under way has the lock, or finds a later term than the one that it is about to write.
            await transaction.execute(_WAIT_FOR_RAISES)
            if (await ask(transaction)).run != run:
                raise Unavailable("The database server was replaced meanwhile.")
            await transaction.fetch(_SQL["close"], began, PUT_BACK, reason, known)

        await self.database.run(work)

    async def beat(self) -> tuple[int, datetime] | None:
        """Take a position, which grows. Return it with the time of the database's clock; None if it is not open."""
        row = await self.database.fetchrow_write(_SQL["beat"])
        return None if row is None else (row["position"], row["now"])


async def _raise(transaction: Transaction, entries: Sequence[Entry], term: int) -> None:
    if entries:
        await transaction.secure(Secured(write_raises(entries), 0))
        await transaction.fetch(_SQL["raise"], *_columns(entries), term)


def write_raises(entries: Sequence[Entry]) -> str:
    """Return raises as ``fencing.check_secured_v1`` reads them."""
    return ",".join(f"{entry.resource} {entry.token.epoch}.{entry.token.value}" for entry in entries)


def read_raises(text: str, at: datetime) -> tuple[Entry, ...]:
    """Return the raises that ``fencing.check_secured_v1`` names. Names of resources contain no comma and no space."""
    raises = (raised.split(" ") for raised in text.split(","))
    return tuple(
        Entry(resource if resource == ownership.OWNERSHIP else canonical(resource), Token.parse(token), at)
        for resource, token in raises
    )


def _details(server: Server, effect: OpenDatabase) -> dict[str, object]:
    before = server.opened.run
    assert before is not None
    return {
        "operation": "OpenDatabase",
        "run": _shown(effect.run),
        "before": _shown(before),
        "term": effect.opened.term,
        "mode": effect.opened.mode,
        "continues": effect.continues,
        "restored": len(effect.losses),
        "waiting": len(effect.waits or ()),
        "loss_accepted": effect.waits is None,
    }


def _shown(run: Run) -> dict[str, object]:
    return {"system": run.system, "timeline": run.timeline, "started": run.started.isoformat()}


def _columns(entries: Sequence[Entry]) -> list[Sequence[object]]:
    return columns(((one.resource, one.token.epoch, one.token.value) for one in entries), 3)


def _token(epoch: int | None, value: int | None) -> str | None:
    return None if epoch is None or value is None else str(Token(epoch, value))
