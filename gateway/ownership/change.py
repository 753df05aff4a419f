"""The change of the rules of ownership, without any I/O: in which order databases are closed and opened.

A database is concerned if an earlier change of it has not ended, or if its share changes. The share that rules under
way would give it counts, too. The generator yields the effects that it wants and is sent their answers. A process may
stop at each ``yield``. Another one may begin again from the start, with these rules or with others.
``tests/model/test_ownership.py`` tries all of it beside gateways.

The rules that carry the promise:

- A gateway gets a session only of a database that has the share that its rules give it, and is open.
- A database is closed only as it was seen when the change was planned. So of two changes that meet, one gives up.
- Closing a database ends each session that it has let in. So nothing happens under its former share any more.
- No database is opened before all that are concerned are closed for the same rules. So no two open databases
  share a name: the others have the same share by the old rules and by the new ones.
- Fences are carried over while all are closed. So the new owner of a name starts with the highest token.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.errors import GatewayError


@dataclass(frozen=True, slots=True)
class Close:
    """Commit that a database follows these rules, if it is as it was seen: no session is let in.

    Return whether it was open until now. It fails if another change has come first.
    """

    database: str | None


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
class CarryOver:
    """Raise the fences of all names that this database does not own any more, where they belong now."""

    database: str | None


@dataclass(frozen=True, slots=True)
class Open:
    """Put the new share in force, if the database still follows these rules. Else the change ends."""

    database: str | None


Effect: TypeAlias = Close | EndSessions | FindObstacles | Reopen | CarryOver | Open
Steps: TypeAlias = Generator[Effect, bool | None, bool]


def change(concerned: Sequence[str | None]) -> Steps:
    """Change the shares of these databases. Return whether they are in force. To begin again is harmless.

    An effect that fails is thrown as its error. If no database is opened yet, those are opened as they were that this
    change has closed. Another change may have opened others of those that it had closed.
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
