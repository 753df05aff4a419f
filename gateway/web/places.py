"""The databases that a page shows: the only one, or all of a gateway that serves several.

Pages over all of them ask each one side by side, for a bounded time. One that does not answer is named, and hides no
other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.api.incidents import Acknowledging
from gateway.config import Config
from gateway.db.database import Database
from gateway.errors import NotFound, RequestMalformed, SqlError, Unavailable
from gateway.record.following import Follower

PARAMETER = "of"
"""The query parameter that limits a page over all databases to one of them, or says which one has its subject."""
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
    ``owns`` tells whether a resource is its own: a database keeps the fences of names that it has given away.
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
    owns: Callable[[str], bool] = lambda _: True


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


def chosen(places: Sequence[Place], request: Request) -> Sequence[Place]:
    """Return the databases that a request is about: the named one of several, or all. Raises ``RequestMalformed``."""
    name = request.query_params.get(PARAMETER)
    if places[0].name is None or not name:
        return places
    known = [place for place in places if place.name == name]
    if not known:
        names = ", ".join(str(place.name) for place in places)
        raise RequestMalformed(f"{PARAMETER}: there is no such database. There are: {names}.")
    return known


async def having(places: Sequence[Place], read: Callable[[Place], Awaitable[object]], what: str) -> Place:
    """Return the first database in which ``read`` finds something.

    Raises ``NotFound``, or ``Unavailable`` if a database that does not answer may have it.
    """

    async def has(place: Place) -> bool:
        try:
            await read(place)
        except NotFound:
            return False
        return True

    answers = await ask(places, has)
    for place, found in answers.found:
        if found:
            return place
    if answers.missing:
        raise Unavailable(
            f"{' and '.join(answers.missing)} cannot be reached, and may have {what}.",
            advice="Look again when the database is back. The others do not have it.",
        )
    raise NotFound(f"No database has {what}.", advice="Check the address; old days are not kept.")


def names(places: Sequence[Place]) -> list[str]:
    """Return the names of several databases; nothing if there is only one."""
    return [place.name for place in places if place.name is not None]


def of_one(some: Sequence[Place], places: Sequence[Place]) -> dict[str, str]:
    """Return the parameter that limits a page to one of its databases; nothing for all of them."""
    return {PARAMETER: some[0].name or ""} if len(some) < len(places) else {}
