"""Settings of one transaction: those a request asks for, and those that code inside the database leaves for its answer.

All of them end with the transaction, so that no session carries anything over to the next request.
"""

from gateway.db.database import Database, Transaction
from gateway.db.named_queries import load

_SQL = load("settings")


async def set_zone(transaction: Transaction, zone: str) -> None:
    """Raises ``SqlError`` (22023) for a zone the database does not know."""
    await transaction.fetchrow(_SQL["set_zone"], zone)


async def zones(database: Database) -> frozenset[str]:
    """The names of all time zones. Raises ``Unavailable``."""
    return frozenset([row["name"] for row in await database.fetch(_SQL["zones"])])


async def check_constraints(transaction: Transaction) -> None:
    """Raises ``SqlError`` where a deferred constraint would fail at the end of the transaction."""
    await transaction.execute(_SQL["check_constraints"])


async def pin_again(transaction: Transaction) -> None:
    """The session is what it was opened as again, whatever code in this transaction has set, also for longer than it.

    The answer that such code has set is gone then.
    """
    await transaction.execute(_SQL["pin_again"])


async def read_only(transaction: Transaction) -> None:
    """From here on every attempt to write is an ``SqlError`` (25006). It must be the first thing a transaction does."""
    await transaction.execute(_SQL["read_only"])
    transaction.expect_refused_writes()


async def answer(transaction: Transaction) -> tuple[str | None, str | None]:
    """What was set as headers and as status of the answer, as texts; None or empty for nothing."""
    row = await transaction.fetchrow(_SQL["answer"])
    assert row is not None
    return row["headers"], row["status"]
