"""Settings of one transaction: those a request asks for, and those that code inside the database leaves for its answer.

All of them end with the transaction, so that no session carries anything over to the next request.
"""

import json
from collections.abc import Mapping

from gateway.db.database import Database, Transaction
from gateway.db.pool import load
from gateway.db.roles import RIGHTS
from gateway.errors import RightMissing, SqlError

_SQL = load("settings")
_TAKE_ROLE = _SQL["take_role"].format(rights=RIGHTS)

# No right to act as it; no role of this name, by SET and by has_schema_privilege.
_NO_SUCH_ROLE = ("42501", "22023", "42704")


async def declare(transaction: Transaction, held: Mapping[str, Mapping[str, str | None]]) -> None:
    """Set what guards take for held until the transaction ends: token and holder, by resource."""
    await transaction.fetchrow(_SQL["declare"], json.dumps(held))


async def set_zone(transaction: Transaction, zone: str) -> None:
    """Set the time zone. Raise ``SqlError`` (22023) for a zone that the database does not know."""
    await transaction.fetchrow(_SQL["set_zone"], zone)


async def list_zones(database: Database) -> frozenset[str]:
    """Return the names of all time zones. Raise ``Unavailable``."""
    return frozenset([row["name"] for row in await database.fetch(_SQL["zones"])])


async def take_role(transaction: Transaction, role: str, values: Mapping[str, str]) -> None:
    """Act under another role until the transaction ends, with these settings. Raise ``RightMissing`` if it may not."""
    names = [*values, "role"]
    try:
        (row,) = await transaction.fetch(_TAKE_ROLE, role, names, [*values.values(), role])
    except SqlError as error:
        if error.sqlstate not in _NO_SUCH_ROLE:
            raise
        raise RightMissing(
            f"The gateway may not act as the role {role} of its database: {error.message}.",
            advice=f"Nothing was done. Ask the operator to create it, and to run: GRANT {role} TO the gateway's role.",
        ) from error
    if not row["may"]:
        raise RightMissing(
            f"The role {role} of the database may not use what fenced statements call.",
            advice=f"Nothing was done. Ask the operator to run: GRANT USAGE ON SCHEMA fencing TO {role}.",
        )
    await transaction.plan_for(role, row["rights"])


async def leave_role(transaction: Transaction) -> None:
    """Act with the gateway's own rights again."""
    await transaction.execute(_SQL["leave_role"])


async def check_constraints(transaction: Transaction) -> None:
    """Check deferred constraints now. Raise ``SqlError`` if one would fail at the end of the transaction."""
    await transaction.execute(_SQL["check_constraints"])


async def restore_pins(transaction: Transaction) -> None:
    """Pin the session again to its settings, even if code in this transaction has changed them beyond its end."""
    await transaction.restore_pins()


async def make_read_only(transaction: Transaction, limit: float | None = None) -> None:
    """From here on every attempt to write is an ``SqlError`` (25006). It must be the first thing a transaction does.

    ``limit``: seconds for each statement, in place of those of the session.
    """
    brief = "" if limit is None else f"; SET LOCAL statement_timeout = {round(limit * 1000)}"
    await transaction.execute(_SQL["read_only"] + brief)
    transaction.expect_refused_writes()
