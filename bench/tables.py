"""The cost of fenced writes and reads of tables, against a service in Go. The fastest Python driver is the limit."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from bench import go_service, handwritten, storm
from bench.go_service import GoService
from bench.measure import CONNECTIONS, Goal, Measured, Row, in_turns
from bench.services import Services, running
from bench.table_loads import Measure, driver, http, watched

MANY = 128
SERVICE = "a service in Go, the token in a column"
BARE = "a service in Go, no fence"
DRIVER = "asyncpg direct, no fence"
ROW_BY_KEY = "fenced PATCH of a row by key, token held"
_NONE: tuple[Goal, ...] = ()

Service: TypeAlias = Callable[[], GoService]
"""Starts the service at its first call: some rows do not have it, and need no Go."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The same work without the gateway: its name in the table, how to measure it, and what the ratio ought to be."""

    name: str
    measure: Measure
    goals: tuple[Goal, ...] = _NONE


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Yield the wanted rows, by the names in ``WORKS``; all if no name is given."""
    with running(None) as services, ExitStack() as opened:
        go = cache(lambda: opened.enter_context(go_service.running(services.dsn)))
        for name, work in WORKS.items():
            if name in wanted or not wanted:
                yield from work(services, go)


def _compared(services: Services, work: str, own: Measure, *peers: Peer) -> Iterator[Row]:
    """Yield a row for each peer, of one run."""
    own = watched(services.gateway_pid, services, own)
    load, others, cost = in_turns(services.gateway_pid, own, *(peer.measure for peer in peers))
    for peer, other in zip(peers, others, strict=True):
        yield Row(work, peer.name, load, other, cost, goals=peer.goals)


def _at_both_numbers(services: Services, work: str, own: str, peers: Callable[[int], Iterable[Peer]]) -> Iterator[Row]:
    """Yield the rows for each number of connections."""
    for connections in (CONNECTIONS, MANY):
        name = work if connections == CONNECTIONS else f"{work}, {connections} connections"
        yield from _compared(services, name, http(services.gateway, own, connections), *peers(connections))


def _in_go(services: Services, go: Service, work: str, connections: int = CONNECTIONS) -> Measure:
    service = go()
    return watched(service.pid, services, http(service.origin, f"service-{work}", connections))


def _patch(services: Services, go: Service) -> Iterator[Row]:
    def peers(connections: int) -> Iterator[Peer]:
        few = connections == CONNECTIONS
        goals = (Goal(1.0),) if few else (Goal(1.4),)
        yield Peer(SERVICE, _in_go(services, go, "update-fenced", connections), goals)
        yield Peer(BARE, _in_go(services, go, "update", connections))
        processor = (Goal(1.5, Measured.PROCESSOR),) if few else _NONE
        yield Peer(DRIVER, driver(services, "update", connections), processor)

    yield from _at_both_numbers(services, ROW_BY_KEY, "update", peers)


def _get(services: Services, go: Service) -> Iterator[Row]:
    def peers(connections: int) -> Iterator[Peer]:
        goals = (Goal(0.9),) if connections == CONNECTIONS else (Goal(1.1),)
        yield Peer(BARE, _in_go(services, go, "select", connections), goals)
        yield Peer(DRIVER, driver(services, "select", connections))

    yield from _at_both_numbers(services, "GET of a row by key", "select", peers)


def _roles(services: Services, _: Service) -> Iterator[Row]:
    peer = watched(services.gateway_pid, services, http(services.gateway, "update"))
    for work, own in (("PATCH, grants", "update-granted"), ("PATCH, a role of the database", "update-acting")):
        yield from _compared(services, work, http(services.gateway, own), Peer("PATCH", peer, (Goal(0.9),)))


def _takeover(services: Services, go: Service) -> Iterator[Row]:
    yield from _compared(
        services,
        "fenced PATCH, a new holder each time",
        http(services.gateway, "take-over"),
        Peer(SERVICE, _in_go(services, go, "take-over"), (Goal(0.6),)),
        Peer(DRIVER, driver(services, "update")),
    )


def _keyed(services: Services, go: Service) -> Iterator[Row]:
    yield from _compared(
        services,
        "fenced POST of a row with its own key, each a new resource",
        http(services.gateway, "insert-keyed"),
        Peer(SERVICE, _in_go(services, go, "insert-keyed")),
        Peer(DRIVER, driver(services, "insert")),
    )


def _handwritten(services: Services, _: Service) -> Iterator[Row]:
    with handwritten.running(services.dsn) as origin:
        peer = Peer("FastAPI + SQLAlchemy by hand", http(origin, "service-update-fenced"), (Goal(4.0),))
        yield from _compared(services, ROW_BY_KEY, http(services.gateway, "update"), peer)


def _lone(services: Services, go: Service) -> Iterator[Row]:
    for row in _compared(
        services,
        "fenced PATCH, a lone writer",
        http(services.gateway, "update", 1),
        Peer(SERVICE, _in_go(services, go, "update-fenced", 1)),
        Peer(DRIVER, driver(services, "update", 1), (Goal(0.25, Measured.ADDED),)),
    ):
        yield replace(row, added=True)


def _storm(services: Services, _: Service) -> Iterator[Row]:
    return storm.rows(services)


WORKS: dict[str, Callable[[Services, Service], Iterator[Row]]] = {
    "patch": _patch,
    "roles": _roles,
    "takeover": _takeover,
    "keyed": _keyed,
    "get": _get,
    "handwritten": _handwritten,
    "lone": _lone,
    "storm": _storm,
}
