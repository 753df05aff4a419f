"""Room for new connections: each is an open file, and near the limit of these, idle ones make way for new ones."""

import resource
from asyncio import TimerHandle, get_running_loop
from contextlib import suppress
from typing import Any, Protocol

from gateway.budget import network
from gateway.http.middleware import Middleware
from gateway.observe.events import ConnectionsCrowded

CROWDED = 0.9
"""The part of the files that may be open. Beyond it, each new connection takes the place of an idle one."""
_TOLD_AFTER, _TOLD_EVERY = 1.0, 60.0
"""Seconds until the log has a first line about that, which counts what was closed, and between two lines."""


def raise_limit_of_files() -> int:
    """Let this process, and those that it starts, open as many files as the system allows. Return this number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system whose limit is none may still have one for a process.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Member(Protocol):
    """A connection."""

    def make_way(self) -> None:
        """Close at once, for a new connection."""


class Network(dict[Member, None]):
    """The idle connections of one network, the longest idle first."""

    __slots__ = ("name", "open")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.open = name, 0


class Crowd:
    """The networks with connections to this process."""

    def __init__(self) -> None:
        self.open = 0
        """The number of open connections."""
        self._networks: dict[str, Network] = {}
        self._others = 0  # open files that are no connections
        self._closed = 0  # connections since the last event
        self._is_crowded = False  # since the last event
        self._timer: TimerHandle | None = None

    def enter(self, address: str | None) -> Network:
        """Return the network of one more connection."""
        self.open += 1
        name = network(address)
        found = self._networks.get(name)
        if found is None:
            found = self._networks[name] = Network(name)
        found.open += 1
        return found

    def leave(self, left: Network) -> None:
        """Count a connection of a network no more."""
        self.open -= 1
        left.open -= 1
        if not left.open:  # a map of all networks of the past would grow
            del self._networks[left.name]

    def admit(self, app: Any, file: int) -> None:
        """Make room for a new connection, if the number of its file says that this is needed."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = int(limit * CROWDED)
        if limit < 0:  # there is none
            return
        if file >= most:
            # The system hands out the lowest free number, so all numbers below this one are in use. The number alone
            # would not do: in the place of a closed connection a new one has a low number.
            self._others = max(self._others, file - self.open)
        if self.open + self._others >= most:
            self.make_room(app)

    def make_room(self, app: Any) -> bool:
        """Close the connection that is idle for the longest time, in the network with most idle ones. Return whether.

        ``app`` observes it.
        """
        crowd = self._largest()
        if crowd is not None:
            next(iter(crowd)).make_way()
            self._closed += 1
        self._is_crowded = True
        if self._timer is None:
            self._timer = get_running_loop().call_later(_TOLD_AFTER, self._tell, app)
        return crowd is not None

    def _largest(self) -> Network | None:
        """Return the network with most idle connections. None if there are none."""
        return max(self._networks.values(), key=len, default=None) or None

    def _tell(self, app: Any) -> None:
        """State the event, if new connections have needed room. After a minute without, count other files anew."""
        if not self._is_crowded:
            self._timer, self._others = None, 0
            return
        if isinstance(app, Middleware):
            crowd, limit = self._largest(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            app.observe(ConnectionsCrowded(self.open, limit, self._closed, crowd.name if crowd else None))
        self._closed, self._is_crowded = 0, False
        self._timer = get_running_loop().call_later(_TOLD_EVERY, self._tell, app)


CROWD = Crowd()
"""The connections of this process."""
