"""A lock as it is held: its token and headers, whether it is lost, and what needs no event loop to write under it.

``keeper`` decides when it is lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from gateway.client import libpq, s3
from gateway.client.api import Api
from gateway.client.errors import Stale
from gateway.client.http import Presenter
from gateway.client.keeper import Keeper
from gateway.client.source import Clock, Mode
from gateway.fencing.token import Token

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


@dataclass(slots=True)
class State:
    """The state of a wanted lock. ``ttl`` and ``wait`` are in seconds; ``wait`` None is for ever.

    ``api``, ``endpoint`` and ``clock`` are the client's. ``keeper`` is there after the acquisition; ``epoch`` is the
    fence's before it. ``databases``: connection strings whose sessions end when the lock is lost. ``left``: whether its
    block has ended.
    """

    api: Api
    endpoint: s3.Endpoint
    clock: Clock
    resource: str
    holder: str
    ttl: float
    wait: float | None
    mode: Mode
    barrier: bool
    keeper: Keeper | None = None
    epoch: int = 0
    # Sessions of databases are found again by the tag, in their application_name.
    tag: str = field(default_factory=lambda: f"fencing-{token_hex(8)}")
    databases: set[str] = field(default_factory=set, repr=False)
    left: bool = False


class Hold:
    """The common part of the locks of both clients. All of it can be used from any thread, inside the block."""

    def __init__(self, state: State) -> None:
        self.state = state

    @property
    def resource(self) -> str:
        """The name of the lock, and of the fence."""
        return self.state.resource

    @property
    def holder(self) -> str:
        """The name of the holder: unique to this lock, unless the program sets it."""
        return self.state.holder

    @property
    def mode(self) -> Mode:
        return self.state.mode

    @property
    def token(self) -> str:
        """The fencing token, in its wire form."""
        held = self._kept.held
        return str(Token(self.state.epoch if held.epoch is None else held.epoch, held.value))

    @property
    def has_gateway(self) -> bool:
        """Whether there is one. A database alone fences writes of guarded tables, and no requests."""
        return bool(self.state.endpoint.url)

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

    def postgres_settings(self, *others: "Hold") -> dict[str, str]:
        """Return the settings of a database session that writes under this lock, and under ``others``.

        For asyncpg's ``server_settings``, or the ``RuntimeParams`` of pgx.
        """
        for hold in (self, *others):
            hold.check()
        settings = libpq.declare(self.headers, [other.headers for other in others])
        return {**settings, "application_name": libpq.name("", self.headers, self.state.tag)}

    def connect_args(self, *others: "Hold", options: str = "") -> dict[str, str]:
        """Return the arguments of ``psycopg.connect``, or the ``connect_args`` of SQLAlchemy, for such a session.

        ``options``: more options of libpq, such as those of PGOPTIONS, which these arguments replace.
        """
        named = self.postgres_settings(*others)["application_name"]
        shown = [other.headers for other in others]
        return {"options": libpq.extend(options, self.headers, shown), "application_name": named}

    def dsn(self, dsn: str, *others: "Hold", options: str = "") -> str:
        """Return a connection string of libpq, a URL or ``key=value``, whose sessions write under this lock.

        ``options``: libpq's, if the string has none of its own. When the lock is lost, the sessions are ended, if their
        role may do that (the extra ``postgres``).
        """
        for hold in (self, *others):
            hold.check()
        shown = [other.headers for other in others]
        made = libpq.connection_string(dsn, self.headers, shown, self.state.tag, options)
        self.end_sessions_of(dsn)
        return made

    def end_sessions_of(self, dsn: str) -> None:
        """End this lock's sessions there when it is lost. They are found by their ``application_name``."""
        self.state.databases.add(dsn)

    def postgres_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of libpq for a command. Locks of a run around this one stay held."""
        self.check()
        return {
            "PGOPTIONS": libpq.extend(inherited.get("PGOPTIONS", ""), self.headers),
            "PGAPPNAME": libpq.name(inherited.get("PGAPPNAME", ""), self.headers, self.state.tag),
        }

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

    def boto3(self, **config: Any) -> "S3Client":
        """Return a boto3 client for threads; ``config`` is for its Config. Close it after use.

        Its type is that of boto3-stubs, where that is installed.
        """
        return s3.boto3_client(self, self.state.endpoint, config)

    def attach(self, client: Any) -> None:
        """Make an S3 client of boto3 or aiobotocore, whose endpoint is the gateway, write under this lock."""
        s3.attach(client, self, self.state.api.url)

    def presenter(self) -> Presenter:
        """Return the auth object that adds the lock to requests of httpx."""
        return Presenter(self, self.state.api.url, self.state.api.api_key)

    @property
    def _kept(self) -> Keeper:
        if self.state.keeper is None:
            raise RuntimeError("The lock is not held yet: enter its block first.")
        return self.state.keeper
