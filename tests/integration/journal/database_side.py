"""The side of the database in openings and raises, over real PostgreSQL, with the table that it needs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from gateway.db.database import Database, Record, Transaction
from gateway.fencing.token import Token
from gateway.journal.contents import Entry
from gateway.journal.protocol import (
    Behind,
    Commit,
    Committed,
    Loss,
    Mode,
    OpenDatabase,
    Opened,
    Run,
    Server,
    Unsecured,
    may_serve,
)

TABLE = """
CREATE TABLE fencing.opened (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    installation uuid,
    system text, timeline integer, started timestamptz, database text,
    term bigint NOT NULL DEFAULT 0,
    mode text NOT NULL DEFAULT 'off',
    position bigint NOT NULL DEFAULT 0,
    snapshot bigint NOT NULL DEFAULT 0,
    began bigint NOT NULL DEFAULT 0
);
INSERT INTO fencing.opened DEFAULT VALUES;
"""

# The run that a session belongs to. pg_walfile_name has the timeline at once, and the control file only later.
_RUN = """
    (SELECT system_identifier::text FROM pg_control_system()) AS here_system,
    ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS here_timeline,
    pg_postmaster_start_time() AS here_started,
    (SELECT oid FROM pg_database WHERE datname = current_database()) || '/' || 'fencing.opened'::regclass::oid
        AS here_database,
    clock_timestamp() AS now
"""
_ASK = f"SELECT o.*, {_RUN} FROM fencing.opened AS o"
_LOWER = """
    SELECT u.nth, f.epoch, f.value
    FROM unnest($1::text[], $2::integer[], $3::bigint[]) WITH ORDINALITY AS u (resource, epoch, value, nth)
    LEFT JOIN fencing.fence AS f ON f.resource = u.resource COLLATE "C"
    WHERE f.resource IS NULL OR (f.epoch, f.value) < (u.epoch, u.value)
    ORDER BY u.nth
"""
_RAISE = """
    INSERT INTO fencing.fence AS f (resource, epoch, value, caller)
    SELECT u.resource, u.epoch, u.value, 'journal'
    FROM unnest($1::text[], $2::integer[], $3::bigint[]) AS u (resource, epoch, value) ORDER BY u.resource COLLATE "C"
    ON CONFLICT (resource) DO UPDATE
    SET epoch = excluded.epoch, value = excluded.value, holder = NULL, caller = 'journal', write_id = NULL,
        raised_at = clock_timestamp()
    WHERE (f.epoch, f.value) < (excluded.epoch, excluded.value)
"""
_WAIT = """
    INSERT INTO fencing.intent (resource, bucket, key, write_id, epoch, value, attempt, kind)
    SELECT resource, '', '', gen_random_uuid(), 0, 0, 0, 'amendment' FROM unnest($1::text[]) AS resource
    ON CONFLICT (resource, bucket, key) DO UPDATE SET signed_at = now()
"""
_WRITE = """
    UPDATE fencing.opened SET installation = $1, system = $2, timeline = $3, started = $4, database = $5, term = $6,
        mode = $7, snapshot = $8, began = $9
"""


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """Implements ``gateway.journal.protocol.DatabaseSide``."""

    database: Database

    async def ask(self) -> Server:
        row = await self.database.fetchrow(_ASK)
        assert row is not None
        return _server(row)

    async def identify(self) -> None:
        await self.database.fetchrow_write(
            "UPDATE fencing.opened SET installation = $1 WHERE installation IS NULL RETURNING term", uuid4()
        )

    async def find_lower(self, run: Run, entries: Sequence[Entry]) -> tuple[Loss, ...]:
        assert (await self.ask()).run == run
        rows = await self.database.fetch(_LOWER, *_columns(entries))
        return tuple(Loss(entries[row["nth"] - 1], _token(row)) for row in rows)

    async def open(self, effect: OpenDatabase) -> bool:
        async def work(transaction: Transaction) -> bool:
            row = await transaction.fetchrow(f"{_ASK} FOR UPDATE")
            assert row is not None
            server = _server(row)
            if server.run != effect.run or server.opened.term >= effect.opened.term:
                return False
            await transaction.execute(_RAISE, *_columns([loss.entry for loss in effect.losses]))
            if effect.waits:
                await transaction.execute(_WAIT, sorted(effect.waits))
            opened, run = effect.opened, effect.run
            await transaction.execute(
                _WRITE,
                opened.installation,
                *(run.system, run.timeline, run.started, run.database),
                *(opened.term, opened.mode, opened.snapshot, opened.began),
            )
            return True

        return await self.database.run(work)

    async def note(self, run: Run, snapshot: int, entries: Sequence[Entry]) -> None:
        async def work(transaction: Transaction) -> None:
            row = await transaction.fetchrow(f"{_ASK} FOR UPDATE")
            assert row is not None
            server = _server(row)
            if server.run == run == server.opened.run and server.opened.snapshot < snapshot:
                await transaction.execute(_RAISE, *_columns(entries))
                await transaction.execute("UPDATE fencing.opened SET snapshot = $1", snapshot)

        await self.database.run(work)

    async def beat(self) -> tuple[int, datetime]:
        row = await self.database.fetchrow_write(
            "UPDATE fencing.opened SET position = position + 1 RETURNING position, clock_timestamp() AS now"
        )
        assert row is not None
        return row["position"], row["now"]


@dataclass(frozen=True, slots=True)
class Barrier:
    """The transaction of a barrier: ``await runner.claim(Barrier(…))``. Its outcome is the decision."""

    database: Database
    mode: Mode
    resource: str
    token: int
    objects: bool = False

    async def __call__(self, effect: Commit) -> Committed | Unsecured | Behind:
        outcome: list[Committed | Unsecured | Behind] = []

        async def work(transaction: Transaction) -> None:
            outcome[:] = [await self._work(transaction, effect)]
            if not isinstance(outcome[0], Committed):
                raise _RolledBack

        with suppress(_RolledBack):
            await self.database.run(work)
        return outcome[0]

    async def _work(self, transaction: Transaction, effect: Commit) -> Committed | Unsecured | Behind:
        row = await transaction.fetchrow(f"{_ASK} FOR SHARE")
        assert row is not None
        server = _server(row)
        if not may_serve(server, self.mode) or server.opened.term < effect.looked:
            return Behind(server.opened.term)
        entry = Entry(self.resource, Token(0, self.token), server.now, server.now if self.objects else None)
        rising = await transaction.fetch(_LOWER, *_columns([entry]))
        secured = {(one.resource, one.token) for one in effect.secured}
        if rising and self.mode is Mode.SYNC and (entry.resource, entry.token) not in secured:
            return Unsecured((entry,))
        raised = await transaction.fetchrow(
            "SELECT decision FROM fencing.raise_v1($1, 0, $2, NULL, 'test')", self.resource, self.token
        )
        assert raised is not None
        return Committed(server.opened.term, (entry,) if rising else (), raised["decision"])


class _RolledBack(Exception):
    """Nothing of the transaction is kept."""


def _server(row: Record) -> Server:
    run = None
    if row["started"] is not None:
        run = Run(row["system"], row["timeline"], row["started"], row["database"])
    opened = Opened(
        row["installation"],
        run,
        row["term"],
        Mode(row["mode"]),
        row["position"],
        row["snapshot"],
        row["began"],
    )
    here = Run(row["here_system"], row["here_timeline"], row["here_started"], row["here_database"])
    return Server(here, opened, row["now"])


def _columns(entries: Sequence[Entry]) -> tuple[list[str], list[int], list[int]]:
    return (
        [entry.resource for entry in entries],
        [entry.token.epoch for entry in entries],
        [entry.token.value for entry in entries],
    )


def _token(row: Record) -> str | None:
    return None if row["value"] is None else str(Token(row["epoch"], row["value"]))
