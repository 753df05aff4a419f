"""The databases that a page shows: one, or on the overview all of a gateway that serves several.

The overview asks each one side by side, for a bounded time. One that does not answer is named, and hides no other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeAlias, TypeVar

from starlette.types import ASGIApp

from gateway.api.incidents import Acknowledging
from gateway.config import Config
from gateway.db.database import Database
from gateway.errors import SqlError, Unavailable
from gateway.record.following import Follower

ANSWERS_IN = 5.0
"""Seconds that a database has to answer, if a page shows others, too."""

Answer = TypeVar("Answer")

Health: TypeAlias = Callable[[], Awaitable[dict[str, str]]]
"""Returns the state of each service behind a database: ``ok``, or the problem."""


class Journal(Protocol):
    """The state of the journal, and the last opening of the database."""

    mode: str
    state: str
    term: int
    opened_at: datetime | None
    snapshot: int
    pending: int
    lag_seconds: float


JournalState: TypeAlias = Callable[[], Awaitable[Journal | None]]


class Bucket(Protocol):
    """The result of probing a bucket."""

    @property
    def writable(self) -> bool:
        """Return whether the bucket takes fenced writes."""

    @property
    def missing(self) -> Mapping[str, str]:
        """Return the probes that the store failed, each with its consequence."""


Buckets: TypeAlias = Callable[[], Mapping[str, Bucket]]


@dataclass(frozen=True, slots=True)
class Place:
    """A database with everything that pages need of it. ``name``: None if a page shows no other one.

    Of ``config`` pages show modes of rules, names of webhooks and alarms, never secrets. ``api`` is the fencing API,
    which takes the viewer in ``scope["state"]`` for its caller. ``acknowledging`` puts acknowledgements on record.
    """

    name: str | None
    database: Database
    follower: Follower
    config: Config
    health: Health
    journal: JournalState
    buckets: Buckets
    api: ASGIApp
    acknowledging: Acknowledging


@dataclass(frozen=True, slots=True)
class Answers(Generic[Answer]):
    """The answers of the databases that gave one, in the order of the configuration. ``missing``: the others."""

    found: Sequence[tuple[Place, Answer]]
    missing: tuple[str, ...] = ()


async def ask(places: Sequence[Place], read: Callable[[Place], Awaitable[Answer]]) -> Answers[Answer]:
    """Read from each of some databases. One that is down, late or not as it should be is among the missing.

    Errors of the only database, and those of a request, are raised.
    """
    if len(places) == 1 and places[0].name is None:
        return Answers([(place, await read(place)) for place in places])

    async def answer(place: Place) -> tuple[Place, Answer] | str:
        try:
            async with asyncio.timeout(ANSWERS_IN):
                return place, await read(place)
        except (Unavailable, SqlError, TimeoutError):
            return place.name or ""

    answers = await asyncio.gather(*map(answer, places))
    return Answers(
        [one for one in answers if not isinstance(one, str)], tuple(one for one in answers if isinstance(one, str))
    )


def names(places: Sequence[Place]) -> list[str]:
    """Return the names of several databases; nothing if there is only one."""
    return [place.name for place in places if place.name is not None]
