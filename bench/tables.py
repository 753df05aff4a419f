"""The cost of fenced writes and reads of tables, against the fastest Python driver without a fence, and other peers."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from bench import handwritten, storm
from bench.measure import CONNECTIONS, Goal, Measured, Row, in_turns
from bench.services import Services, running
from bench.table_loads import Measure, driver, http, watched

MANY = 128
DRIVER = "asyncpg direct, no fence"
ROW_BY_KEY = "fenced PATCH of a row by key, token held"


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Yield the wanted rows, by the names in ``WORKS``; all if no name is given."""
    with running(None) as services:
        for name, work in WORKS.items():
            if name in wanted or not wanted:
                yield from work(services)


def _compared(services: Services, work: str, own: Measure, against: str, peer: Measure, *goals: Goal) -> Row:
    load, other, cost = in_turns(services.gateway_pid, watched(services, own), peer)
    return Row(work, against, load, other, cost, goals=goals)


def _against_driver(
    services: Services, work: str, own: str, direct: str, few: tuple[Goal, ...], many: tuple[Goal, ...]
) -> Iterator[Row]:
    """Yield a row for each number of connections, with its goals."""
    for connections, goals in ((CONNECTIONS, few), (MANY, many)):
        name = work if connections == CONNECTIONS else f"{work}, {connections} connections"
        mine, theirs = http(services.gateway, own, connections), driver(services, direct, connections)
        yield _compared(services, name, mine, DRIVER, theirs, *goals)


def _patch(services: Services) -> Iterator[Row]:
    few = (Goal(1.0), Goal(1.5, Measured.PROCESSOR))
    yield from _against_driver(services, ROW_BY_KEY, "update", "update", few, (Goal(1.2),))


def _roles(services: Services) -> Iterator[Row]:
    peer = http(services.gateway, "update")
    for work, own in (("PATCH, grants", "update-granted"), ("PATCH, a role of the database", "update-acting")):
        yield _compared(services, work, http(services.gateway, own), "PATCH", watched(services, peer), Goal(0.95))


def _takeover(services: Services) -> Iterator[Row]:
    own, peer = http(services.gateway, "take-over"), driver(services, "update")
    yield _compared(services, "fenced PATCH, a new holder each time", own, DRIVER, peer, Goal(0.7))


def _keyed(services: Services) -> Iterator[Row]:
    own, peer = http(services.gateway, "insert-keyed"), driver(services, "insert")
    work = "fenced POST of a row with its own key, each a new resource"
    yield _compared(services, work, own, DRIVER, peer, Goal(0.7))


def _get(services: Services) -> Iterator[Row]:
    yield from _against_driver(services, "GET of a row by key", "select", "select", (Goal(0.6),), (Goal(0.8),))


def _handwritten(services: Services) -> Iterator[Row]:
    with handwritten.running(services.dsn) as origin:
        own, peer = http(services.gateway, "update"), http(origin, "update-handwritten")
        yield _compared(services, ROW_BY_KEY, own, "FastAPI + SQLAlchemy by hand", peer, Goal(4.0))


def _lone(services: Services) -> Iterator[Row]:
    own, peer = http(services.gateway, "update", 1), driver(services, "update", 1)
    goal = Goal(0.25, Measured.ADDED)
    yield replace(_compared(services, "fenced PATCH, a lone writer", own, DRIVER, peer, goal), added=True)


WORKS: dict[str, Callable[[Services], Iterator[Row]]] = {
    "patch": _patch,
    "roles": _roles,
    "takeover": _takeover,
    "keyed": _keyed,
    "get": _get,
    "handwritten": _handwritten,
    "lone": _lone,
    "storm": storm.rows,
}
