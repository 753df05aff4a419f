"""A lock as it is held: its token and headers, whether it is lost, and what needs no event loop to write under it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.client import s3
from gateway.client.api import Api
from gateway.client.errors import Stale
from gateway.client.http import Presenter
from gateway.client.renewal import Keeper
from gateway.client.source import Clock, Mode
from gateway.fencing.token import Token


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted lock and its terms. ``ttl`` and ``wait`` are in seconds; ``wait`` None is for ever."""

    resource: str
    holder: str
    ttl: float
    wait: float | None
    mode: Mode
    barrier: bool


@dataclass(frozen=True, slots=True)
class Means:
    """The means of a lock, all of them its client's."""

    url: str
    api_key: str | None
    api: Api
    session: Callable[[], httpx.AsyncClient]
    endpoint: s3.Endpoint
    clock: Clock


@dataclass(slots=True)
class State:
    """The state of a wanted lock. ``keeper`` is there after the acquisition; ``epoch`` is the fence's before it."""

    means: Means
    wanted: Wanted
    keeper: Keeper | None = None
    epoch: int = 0


class Hold:
    """The common part of the locks of both clients. All of it can be used from any thread, inside the block."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._means = state.means
        self._wanted = state.wanted

    @property
    def resource(self) -> str:
        """The name of the lock, and of the fence."""
        return self._wanted.resource

    @property
    def holder(self) -> str:
        """The name of the holder: unique to this lock, unless the program sets it."""
        return self._wanted.holder

    @property
    def mode(self) -> Mode:
        return self._wanted.mode

    @property
    def token(self) -> str:
        """The fencing token, in its wire form."""
        held = self._kept.held
        return str(Token(self.state.epoch if held.epoch is None else held.epoch, held.value))

    @property
    def sequencer(self) -> str | None:
        """The signed form of the token, where the lock service has one."""
        return self._kept.held.sequencer

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request under this lock. Shared holders share the token, so they name no holder."""
        shown = {"Fencing-Token": self.token, "Fencing-Resource": self.resource}
        if self.mode == "exclusive":
            shown["Fencing-Holder"] = self.holder
        if self.sequencer is not None:
            shown["Fencing-Sequencer"] = self.sequencer
        return shown

    @property
    def expires_in(self) -> float:
        """Seconds for which the lock is held by this machine's clock, if it is not renewed. 0 where it is lost."""
        return max(self._kept.left(), 0.0)

    def check(self) -> None:
        """Raise ``LockLost`` if the lock is known to be lost, or its time is over."""
        self._kept.check()

    def overtaken(self, refusal: Stale) -> None:
        """Note that the fence refused the token. A program that sends it by other means calls this."""
        if refusal.resource in (None, self.resource):
            self._kept.lose(f"The lock {self.resource} has been taken over.", refusal)

    def boto3(self, **config: Any) -> Any:
        """Return a boto3 client for threads; ``config`` is for its Config. Close it after use."""
        return s3.boto3_client(self, self._means.endpoint, config)

    def attach(self, client: Any) -> None:
        """Make an S3 client of boto3 or aiobotocore, whose endpoint is the gateway, write under this lock."""
        s3.attach(client, self, self._means.url)

    def presenter(self) -> Presenter:
        """Return the auth object that adds the lock to requests of httpx."""
        return Presenter(self, self._means.url, self._means.api_key)

    @property
    def _kept(self) -> Keeper:
        if self.state.keeper is None:
            raise RuntimeError("The lock is not held yet: enter its block first.")
        return self.state.keeper
