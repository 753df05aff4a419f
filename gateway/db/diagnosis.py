"""What ``gateway doctor`` asks the database: what it is, and what the gateway's role may do to the exposed tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.db.database import Database
from gateway.db.queries import load

_SQL = load("diagnosis")


@dataclass(frozen=True, slots=True)
class Server:
    """The server, and a session of the gateway's role on it. ``version_number`` as in server_version_num: 140005."""

    version: str
    version_number: int
    database: str
    role: str
    superuser: bool
    read_only: bool
    isolation: str
    time_zone: str
    date_style: str
    fsync: bool
    synchronous_commit: bool


@dataclass(frozen=True, slots=True)
class Exposed:
    """One exposed schema and the names of its tables and views. ``usable``: the role has USAGE on it."""

    schema: str
    present: bool
    usable: bool
    relations: tuple[str, ...]


async def server(database: Database) -> Server:
    """Raises ``Unavailable`` where the database cannot be reached, ``SqlError`` where it refuses the session."""
    row = await database.fetchrow(_SQL["server"])
    assert row is not None
    return Server(**dict(row))


async def exposed(database: Database, schemas: Sequence[str]) -> list[Exposed]:
    """The exposed schemas, in the order of the configuration."""
    rows = await database.fetch(_SQL["exposed"], list(schemas))
    return [Exposed(row["schema"], row["present"], row["usable"], tuple(row["relations"])) for row in rows]


async def missing_on_exposed(database: Database, schemas: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Tables of these schemas by qualified name, with the privileges the gateway's role lacks on them."""
    rows = await database.fetch(_SQL["missing_on_exposed"], list(schemas))
    return {row["relation"]: tuple(row["privileges"]) for row in rows}
