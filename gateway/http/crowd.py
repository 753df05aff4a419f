"""Room for new connections. Each is an open file. Near the limit of these, those that wait for their client make way.

A connection waits for its client:

- while it is idle;
- while the gateway waits for more of a request's body;
- while the client reads nothing of an answer.

While the gateway itself works, for example with the database, a connection never makes way.
"""

import resource
import socket
from asyncio import get_running_loop
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from heapq import nlargest
from typing import Any

from gateway.budget import network
from gateway.http.middleware import Middleware
from gateway.observe.events import ConnectionsCrowded
from gateway.observe.repeats import Repeats

FILES = 16_384
"""The limit of open files to which a process raises its own. The system may allow millions, and memory would be gone
before. A used connection takes 14 KiB while it is idle, and 48 KiB with TLS. A part of a large head takes 64 KiB more.
So idle connections up to this limit take 0.2 GiB, with TLS 0.7 GiB, and with heads of an attacker 1.7 GiB."""
_NO_LIMIT = 1_000_000
"""So many files are the default of container runtimes, and no decision of an operator."""
CROWDED = 0.9
"""The part of the files that may be open. Beyond it, each new connection takes the place of another one."""
_SHARES = 64
"""Up to a 64th of the files is a network's share. Beyond it, a new connection takes no place of a smaller network."""
_RANKED, _RANKED_FOR = 64, 1.0
"""Networks in a ranking by their connections that wait for their client, and seconds for which it is used."""
_FEWER = 8
"""A network with so many times fewer connections than another one is small beside it."""
_TOLD_AFTER = 1.0
"""Seconds until the log has a first line about that, which counts what was closed."""


def set_limit_of_files() -> int:
    """Let this process, and those that it starts, open as many files as the system allows, up to ``FILES``.

    A higher limit stays, unless it is ``_NO_LIMIT``. Return the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted or soft >= _NO_LIMIT or soft == resource.RLIM_INFINITY:
        with suppress(ValueError, OSError):  # the system may have a lower limit for each process
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Network:
    """The connections of one network."""

    __slots__ = ("idle", "late", "name", "open")

    def __init__(self, name: str) -> None:
        self.name, self.open = name, 0
        self.idle: dict[Seat, None] = {}
        """Connections that wait for their client, the longest waiting first."""
        self.late: dict[Seat, None] = {}
        """With a request under way, whose client sends no more of its body, or does not read the answer."""

    def size(self) -> tuple[int, int]:
        """Return the number of connections that wait for their client, and of all."""
        return len(self.idle) + len(self.late), self.open


class Seat:
    """A connection's seat among those of its network, from its acceptance to its end.

    Without a handshake of TLS there may never be more of a connection. ``close`` closes it at once.
    """

    __slots__ = ("_network", "_place", "close", "has_made_way")

    def __init__(self, network: Network, close: Callable[[], object]) -> None:
        self._network: Network | None = network
        self._place: dict[Seat, None] | None = None  # none while the gateway works
        self.close, self.has_made_way = close, False
        self.idle()

    def idle(self) -> bool:
        """Note that no request is under way. Return whether the connection lasts."""
        if self._network is not None:
            self._stand(self._network.idle)
        return self._network is not None

    def busy(self, *, awaits_client: bool = False) -> None:
        """Note that a request is under way, and whether it waits for its client."""
        if self._network is not None:
            self._stand(self._network.late if awaits_client else None)

    def make_way(self) -> None:
        """Close at once, for a new connection."""
        self._stand(None)
        self.has_made_way = True
        with suppress(OSError):
            self.close()

    def leave(self) -> None:
        """Count it no more. Once it has left, this does nothing."""
        if self._network is not None:
            self._stand(None)
            CROWD.leave(self._network)
            self._network = None
            self.close = lambda: None  # a circle of objects would wait for a collection

    def _stand(self, place: "dict[Seat, None] | None") -> None:
        """Stand in a place, at its end, and in no other."""
        if place is self._place:
            return
        if self._place is not None:
            del self._place[self]
        if place is not None:
            place[self] = None
        self._place = place


class Crowd:
    """The networks with connections to this process."""

    def __init__(self) -> None:
        self.open = 0
        """The number of open connections."""
        self._networks: dict[str, Network] = {}
        self._ranking: list[Network] = []
        self._lowest, self._ranked_until = (0, 0), 0.0
        self._others = 0  # open files that are no connections
        self._closed = 0  # connections since the last event
        self._repeats: Repeats[str] = Repeats(self._tell, after=_TOLD_AFTER, quiet=self._count_anew)
        self._app: Any = None  # the one that observes

    def enter(self, app: Any, accepted: socket.socket) -> Seat | None:
        """Return the seat of a new connection, for which another one makes way if files are scarce.

        None if the new one has to make way. ``app`` observes it.
        """
        try:
            name = network(accepted.getpeername()[0])
        except OSError:  # it is gone
            name = network(None)
        own = self._networks.get(name) or Network(name)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if self._is_full(accepted.fileno(), limit):
            share, largest = limit // _SHARES, self._largest() or own
            crowd = own if own.open >= max(largest.open, share) else largest
            if crowd is own and own.open < share:
                pass  # the last files are for such networks, and for the gateway itself
            elif not self._make_way(app, crowd) and crowd is own:
                self._closed += 1
                return None
        self._networks[name] = own
        self.open += 1
        own.open += 1
        return Seat(own, partial(accepted.shutdown, socket.SHUT_RDWR))  # which ends the handshake

    def leave(self, left: Network) -> None:
        """Count a connection of a network no more."""
        self.open -= 1
        left.open -= 1
        if not left.open:  # a map of all networks of the past would grow
            del self._networks[left.name]

    def make_room(self, app: Any) -> bool:
        """Close a connection for a new one that finds no file. Return whether there was one. ``app`` observes it.

        A network with most of all connections makes way, or none does while all of these are at work: not a small one.
        """
        crowd = self._largest()
        most = next((one for one in self._networks.values() if 2 * one.open > self.open), None)
        if crowd is not None and most is not None and _FEWER * crowd.open <= most.open:
            crowd = most
        return crowd is not None and self._make_way(app, crowd)

    def _is_full(self, file: int, limit: int) -> bool:
        most = int(limit * CROWDED)
        if limit < 0:  # there is none
            return False
        if file >= most:
            # The system hands out the lowest free number, so all numbers below this one are in use. The number alone
            # would not do: in the place of a closed connection a new one has a low number.
            self._others = max(self._others, file - self.open)
        return self.open + self._others >= most

    def _make_way(self, app: Any, crowd: Network) -> bool:
        """Close the connection of a network that has waited longest, idle ones first. Return whether there was one."""
        longest = next(iter(crowd.idle or crowd.late), None)
        if longest is not None:
            longest.make_way()
            self._closed += 1
        self._app = app
        self._repeats.note("crowded")
        return longest is not None

    def _largest(self) -> Network | None:
        """Return the network with most connections that wait for their client. Among equals, the most open ones count.

        None without any network.
        """
        if len(self._networks) <= _RANKED:
            return max(self._networks.values(), key=Network.size, default=None)
        # To look at ten thousands of networks takes a millisecond, which is too long for each new connection.
        largest, now = max(self._ranking, key=Network.size, default=None), get_running_loop().time()
        if largest is None or largest.size() < self._lowest or now >= self._ranked_until:
            self._ranking = nlargest(_RANKED, self._networks.values(), key=Network.size)
            self._lowest, self._ranked_until = self._ranking[-1].size(), now + _RANKED_FOR
            largest = self._ranking[0]
        return largest

    def _tell(self, _: str, __: int) -> None:
        """State the event: new connections have needed room."""
        app, closed, self._closed = self._app, self._closed, 0
        if isinstance(app, Middleware):
            crowd, limit = self._largest(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            app.observe(ConnectionsCrowded(self.open, limit, closed, crowd.name if crowd else None))

    def _count_anew(self) -> None:
        """Count other files anew, after a minute in which no connection has needed room."""
        self._others, self._ranking, self._app = 0, [], None


CROWD = Crowd()
"""The connections of this process."""
