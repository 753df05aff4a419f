"""Answers kept by their key, in the transaction of the write they answer: there is no write without its answer."""

import json
from dataclasses import dataclass

from gateway.db.database import Database, Transaction
from gateway.db.pool import load

_SQL = load("idempotency")


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A key as its caller gave it, and the fingerprint of the request it came with."""

    caller: str
    text: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A request with a key, by its fingerprint, and its answer.

    ``claimed``: the resources of the fences it was written under, each with the number of the write that claimed it.
    """

    fingerprint: bytes
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    claimed: list[tuple[str, int]]


async def take(transaction: Transaction, key: IdempotencyKey) -> StoredAnswer | None:
    """Give the key to the write under way. Return the answer of a finished write that has it already.

    If that write is still under way, wait for its end. Raise ``Unavailable`` if it takes too long.
    """
    while True:
        taken = await transaction.fetchrow(_SQL["take"], key.caller, key.text, key.fingerprint)
        if taken is not None:
            return None
        # Each statement has a snapshot of its own. Nothing here: it has just been forgotten, and is free again.
        found = await read_answer(transaction, key)
        if found is not None:
            return found


async def read_answer(executor: Database | Transaction, key: IdempotencyKey) -> StoredAnswer | None:
    """Return the answer of a finished write; None if there is none with this key."""
    row = await executor.fetchrow(_SQL["kept"], key.caller, key.text)
    if row is None:
        return None
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(row["headers"])]
    claimed = [(resource, number) for resource, number in json.loads(row["claimed"])]
    return StoredAnswer(row["fingerprint"], row["status"], headers, row["body"], claimed)


async def store_answer(transaction: Transaction, key: IdempotencyKey, kept: StoredAnswer) -> None:
    """Keep the answer to the write under way, for later requests with the key."""
    headers = json.dumps([(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept.headers])
    claimed = json.dumps(kept.claimed)
    await transaction.execute(_SQL["keep"], key.caller, key.text, kept.status, headers, kept.body, claimed)


async def forget_answers(database: Database, retention: float, limit: int) -> int:
    """Remove at most ``limit`` answers older than ``retention`` seconds, by the database's clock; how many it were."""
    return len(await database.run(lambda transaction: transaction.fetch(_SQL["forget"], retention, limit)))
