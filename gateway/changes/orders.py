"""The orders of both changes, without any I/O: in which order something is closed, waited for, carried over and opened.

``gateway.driver`` carries them out. A process may stop at each ``yield``, and another one may begin again from the
start. ``tests/model`` tries all of it beside writers and gateways.

The two are not one protocol. A naming is closed for its own target alone, and comes into force in the transaction that
carries its fences over. A share moves names between databases, which no transaction spans: so all of them are closed
before any is opened.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.errors import GatewayError
from gateway.fencing.intent import Intent


@dataclass(frozen=True, slots=True)
class Close:
    """Commit that no write proves its naming any more, or that a database lets no session in.

    A database is closed for the new rules, if it is as it was seen. The answer is whether it was open until now. The
    effect fails if another change has come first.
    """

    database: str | None = None


@dataclass(frozen=True, slots=True)
class CarryOver:
    """Carry fences over to the names or the database that they belong to now.

    Of a naming, in one transaction with no writer under way, which also puts it in force.
    """

    database: str | None = None


@dataclass(frozen=True, slots=True)
class FindPending:
    """Return the intents of the target. The rows of a table have none."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Make certain that an intent's write has taken effect or never will. A later round finds it if that fails."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class EndSessions:
    """End each session that was let in before, and wait until it is gone."""

    database: str | None


@dataclass(frozen=True, slots=True)
class FindObstacles:
    """Return whether something is not over in names that move: a lease, an object write."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """Open a database as it was, if it still follows these rules."""

    database: str | None


@dataclass(frozen=True, slots=True)
class Open:
    """Put the new share in force, if the database still follows these rules. Else the change ends."""

    database: str | None


NamingEffect: TypeAlias = Close | FindPending | Settle | CarryOver
NamingSteps: TypeAlias = Generator[NamingEffect, Sequence[Intent] | None, None]
OwnershipEffect: TypeAlias = Close | EndSessions | FindObstacles | Reopen | CarryOver | Open
OwnershipSteps: TypeAlias = Generator[OwnershipEffect, bool | None, bool]


def change_naming() -> NamingSteps:
    """Change the naming of one table or bucket. To begin again is harmless.

    - Closing gives the target another generation, which no gateway proves. Writers under way still hold what they
      proved.
    - Nothing is carried over before all of these are over: rows by the lock of the table, keys by their intents.
    - Fences are carried over and the next naming comes into force in one transaction.
    """
    yield Close()
    while pending := (yield FindPending()):
        for intent in pending:
            yield Settle(intent)
    yield CarryOver()


def change_ownership(concerned: Sequence[str | None]) -> OwnershipSteps:
    """Change the shares of these databases. Return whether they are in force. To begin again is harmless.

    A database is concerned if an earlier change of it has not ended, or if its share changes. The share that rules
    under way would give it counts, too.

    - A gateway gets a session only of a database that has the share that its rules give it, and is open.
    - A database is closed only as it was seen when the change was planned. So of two changes that meet, one gives up.
    - Closing a database ends each session that it has let in. So nothing happens under its former share any more.
    - No database is opened before all that are concerned are closed for the same rules. So no two open databases
      share a name: the others have the same share by the old rules and by the new ones.
    - Fences are carried over while all are closed. So the new owner of a name starts with the highest token.

    If an effect fails and no database is opened yet, those are opened as they were that this change has closed. Another
    change may have opened others of those that it had closed.
    """
    fresh: list[str | None] = []
    try:
        for database in concerned:
            if (yield Close(database)):
                fresh.append(database)
            yield EndSessions(database)
        obstructed = yield FindObstacles()
        for database in () if obstructed else concerned:
            yield CarryOver(database)
    except GatewayError:
        for database in fresh:
            yield Reopen(database)
        raise
    if obstructed:
        for database in fresh:
            yield Reopen(database)
        return False
    for database in concerned:
        yield Open(database)
    return True
