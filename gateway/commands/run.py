"""``gateway run``: run a command while a lock is held, with the token in its environment.

The command needs no knowledge of locks. S3 clients find fenced credentials in the usual variables, and other programs
find ``FENCING_TOKEN``. The fence refuses every write after the lock was lost. Stopping the command only saves its
work.
"""

import asyncio
import logging
import os
import shutil
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from gateway.client import libpq
from gateway.client.child import Ended, Signals, supervise
from gateway.client.client import FencedClient, program_name
from gateway.client.errors import FencingError, LockLost, NotAcquired, Refused, Stale, Unavailable
from gateway.client.lock import Lock
from gateway.client.s3 import Read
from gateway.client.source import Mode, Source
from gateway.commands.console import ExitCode
from gateway.commands.environment import SET_API_KEY
from gateway.errors import ConfigurationError, Unauthenticated

GATEWAY = "gateway"
"""The lease service: the gateway's own, or that of the database alone."""

FORMS = (
    "gateway, etcd://host:2379, zookeeper://host:2181, redis://host:6379/0, consul://host:8500, "
    "kubernetes://namespace, postgresql://host/database"
)


def source_at(address: str) -> Source | None:
    """Return the source at this address; None for the gateway itself.

    ``etcds``, ``rediss`` and ``consuls`` speak TLS. etcd and ZooKeeper take several hosts separated by commas, and a
    user and a password before them. Raise ValueError for an address of no known lock service, and ``MissingExtra`` if
    its library is not installed.
    """
    if address == GATEWAY:
        return None
    parts = urlsplit(address)
    given, _, hosts = parts.netloc.rpartition("@")
    user, colon, text = given.partition(":")
    username, password, scheme = unquote(user) or None, unquote(text) if colon else None, parts.scheme
    # Each library hangs on its own module: a source that is not asked for costs nothing, and need not be installed.
    match scheme:
        case "redis" | "rediss":
            from gateway.client.redis import RedisSource  # noqa: PLC0415

            return RedisSource(address)
        case "postgresql" | "postgres":
            from gateway.client.postgres import PostgresSource  # noqa: PLC0415

            return PostgresSource(address)
        case "etcd" | "etcds" if hosts:
            from gateway.client.etcd import EtcdSource  # noqa: PLC0415

            endpoints = [f"{'https' if scheme == 'etcds' else 'http'}://{host}" for host in hosts.split(",")]
            prefix = parts.path.strip("/") or "fencing"
            return EtcdSource(endpoints, username=username, password=password, prefix=prefix)
        case "zookeeper" if hosts:
            from gateway.client.zookeeper import ZooKeeperSource  # noqa: PLC0415

            root = parts.path if parts.path.strip("/") else "/fencing"
            return ZooKeeperSource(hosts, username=username, password=password, root=root)
        case "consul" | "consuls" if hosts:
            from gateway.client.consul import ConsulSource  # noqa: PLC0415

            return ConsulSource(f"{'https' if scheme == 'consuls' else 'http'}://{hosts}", token=password)
        case "kubernetes" if hosts:
            from gateway.client.kubernetes import KubernetesSource  # noqa: PLC0415

            return KubernetesSource(namespace=hosts)
    raise ValueError(f"--source: must be one of: {FORMS}")


def is_gateway(address: str) -> bool:
    """Return whether it is the address of a gateway, and not of a database alone."""
    return not libpq.is_connection_string(address)


CREDENTIALS_TTL = 43200
"""Seconds: the longest lifetime that the gateway grants. A takeover ends the credentials sooner."""

REGION = "us-east-1"
"""The default region. S3 clients need one, and the gateway accepts any."""

_AUTHORITY, _AUTHORITY_OF_AWS = "SSL_CERT_FILE", "AWS_CA_BUNDLE"
"""Variables that name a file of trusted authorities: of Python's TLS, and of AWS' tools, which the command may use."""

# Variables that some S3 clients would prefer to the fenced credentials, or combine with them.
_OVERRULING = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SECURITY_TOKEN")
# Variables with which a command would write to S3 by itself.
_KEYS_OF_AWS = {"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"}


@dataclass(slots=True)
class Run:
    """A command, and its lock. ``ttl``, ``wait`` and ``grace`` are in seconds; a ``wait`` of None is unlimited.

    ``inherited``: the environment. ``say`` prints lines for the user. ``source``: the address of a lock service, or
    ``gateway``. ``holder``: the beginning of the holder's name. A unique suffix follows, because to a lock service one
    name is one holder. ``credentials``: the pattern of resources for the fenced S3 credentials; None for the lock's
    own. ``pass_api_key``: pass the API key to the command. ``postgres``: the connection string of a database, which the
    command finds in the variables of libpq.
    ``url``: of the gateway, or of the database alone that has the locks.
    """

    command: Sequence[str]
    url: str
    resource: str
    api_key: str = field(repr=False)
    inherited: Mapping[str, str] = field(repr=False)
    say: Callable[[str], None]
    ttl: float = 30.0
    wait: float | None = None
    mode: Mode = "exclusive"
    source: str = GATEWAY
    holder: str | None = None
    credentials: str | None = None
    read: Sequence[str] = ()
    grace: float = 10.0
    pass_api_key: bool = False
    postgres: str | None = None
    _interrupted: int | None = None

    def run(self) -> int:
        """Run the command and return the exit code (docs/run.md).

        Raises ``ConfigurationError`` for a problem that the user has to correct first.
        """
        if (problem := _cannot_run(self.command[0], self.inherited)) is not None:
            why = "command not found" if problem is ExitCode.NOT_FOUND else "cannot be executed"
            self.say(f"{self.command[0]}: {why}")
            return problem
        # kazoo logs each attempt. The error of the last one has the address.
        logging.getLogger("gateway.client.zookeeper").setLevel(logging.CRITICAL)
        try:
            return asyncio.run(self._supervised())
        except (NotAcquired, Unavailable, LockLost, Stale) as error:
            self.say(str(error))
            if isinstance(error, NotAcquired):
                return ExitCode.NOT_ACQUIRED
            return ExitCode.UNREACHABLE if isinstance(error, Unavailable) else ExitCode.LOST
        except FencingError as error:
            advice = SET_API_KEY if error.code == Unauthenticated.code else error.advice
            raise ConfigurationError(error.message, advice=advice) from error
        except ValueError as error:
            raise ConfigurationError(str(error), advice="") from error

    async def _supervised(self) -> int:
        task = asyncio.current_task()
        assert task is not None

        def interrupt(number: int) -> None:
            self._interrupted = number
            task.cancel()

        signals = Signals(interrupt)
        with signals.heard():
            try:
                return await self._hold(signals)
            except asyncio.CancelledError:
                if self._interrupted is None:
                    raise
                return 128 + self._interrupted

    async def _hold(self, signals: Signals) -> int:
        if self.postgres is not None:
            # A mistake in it shows before the lock is acquired.
            libpq.environment(self.postgres)
        async with (
            FencedClient(
                self.url,
                api_key=self.api_key,
                holder=self.holder or program_name(self.command),
                authority=_authority(self.url, self.inherited),
            ) as client,
            client.lock(
                self.resource,
                source=source_at(self.source),
                ttl=self.ttl,
                wait=self.wait,
                mode=self.mode,
                on_loss="tell",
            ) as lock,
        ):
            if self.postgres is not None:
                lock.end_sessions_of(self.postgres)
            environment = self._environment(lock, await self._variables(lock))
            try:
                ended = await supervise(
                    self.command,
                    environment,
                    lost=lock.lost.wait,
                    stopping=lambda: self.say(f"{_reason(lock)} The command is stopped."),
                    grace=self.grace,
                    signals=signals,
                )
            except OSError as error:
                self.say(f"{self.command[0]}: {error.strerror}")
                return ExitCode.NOT_FOUND if isinstance(error, FileNotFoundError) else ExitCode.NOT_EXECUTABLE
            return self._code(lock, ended)

    async def _variables(self, lock: Lock) -> dict[str, str]:
        read: Read = "all" if list(self.read) == ["all"] else self.read or "own"
        if not lock.has_gateway and self.credentials is None and not self.read:
            if self.inherited.keys() & _KEYS_OF_AWS:
                self.say("No gateway: the lock is in Postgres, and S3 requests of the command are not fenced.")
            return await lock.environment(s3=False)
        try:
            return await lock.environment(pattern=self.credentials, ttl=CREDENTIALS_TTL, read=read)
        except Refused as refusal:
            if refusal.status != 403:
                raise
            self.say(f"No S3 credentials: {refusal.message}")
            return await lock.environment(s3=False)

    def _environment(self, lock: Lock, variables: Mapping[str, str]) -> dict[str, str]:
        fenced = "AWS_SESSION_TOKEN" in variables
        kept = {name: value for name, value in self.inherited.items() if not _is_dropped(name, fenced=fenced)}
        if fenced and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & kept.keys():
            kept |= dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), REGION)
        if fenced and not kept.get(_AUTHORITY_OF_AWS) and (authority := self.inherited.get(_AUTHORITY)):
            # AWS' tools do not read the variable of Python's TLS, and talk to the gateway now.
            kept[_AUTHORITY_OF_AWS] = authority
        if self.pass_api_key:
            kept["GATEWAY_API_KEY"] = self.api_key
        if not lock.has_gateway:
            kept.pop("GATEWAY_URL", None)  # the address of a database has its password
        if self.postgres is not None:
            kept |= libpq.environment(self.postgres)
        return {**kept, **variables, **lock.postgres_environment(kept)}

    def _code(self, lock: Lock, ended: Ended) -> int:
        if ended.stopped:
            return ExitCode.LOST
        if not lock.lost.is_set():
            return ended.code
        if ended.code == 0:
            self.say(f"{_reason(lock)} The command succeeded. Writes that were answered with success stay.")
            return 0
        self.say(f"{_reason(lock)} The command failed with {ended.code}.")
        return ExitCode.LOST


def _authority(url: str, inherited: Mapping[str, str]) -> str | None:
    """Return the file of the authorities that vouch for the gateway; None for the usual ones.

    Raises ``ConfigurationError`` for a file that has none.
    """
    if inherited.get(_AUTHORITY) or not url.startswith("https:"):
        return None  # httpx reads the former
    path = inherited.get(_AUTHORITY_OF_AWS) or None
    if path is not None:
        try:
            ssl.create_default_context(cafile=path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"{_AUTHORITY_OF_AWS}: {path} has no certificate of an authority.",
                advice="Correct the path, or remove the variable.",
            ) from error
    return path


def _reason(lock: Lock) -> str:
    try:
        lock.check()
    except LockLost as lost:
        return lost.message
    return f"The lock {lock.resource} is held."


def _is_dropped(name: str, *, fenced: bool) -> bool:
    """Return whether a variable would contradict the lock, or give the command more rights than its token."""
    if name.startswith("FENCING_") or name in ("GATEWAY_API_KEY", "GATEWAY_SOURCE", "GATEWAY_POSTGRES"):
        return True
    return fenced and name in _OVERRULING


def _cannot_run(program: str, environment: Mapping[str, str]) -> ExitCode | None:
    """Return the exit code for a missing or non-executable program; None for a program that can run.

    The check comes before the lock, so that no holder waits for a command that cannot run.
    """
    path = environment.get("PATH", os.defpath)
    if shutil.which(program, path=path) is not None:
        return None
    return ExitCode.NOT_EXECUTABLE if shutil.which(program, mode=os.F_OK, path=path) is not None else ExitCode.NOT_FOUND
