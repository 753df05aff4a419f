"""``gateway run``: a command that runs while a lock is held, with its token in the environment.

The command needs to know nothing of locks: S3 clients find fenced credentials where they look for credentials, and
everything else finds ``FENCING_TOKEN``. What it does after the lock was lost is refused by the fence. That it is
stopped as well spares it the work.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.client.address import source_at
from gateway.client.child import Ended, Signals, supervise
from gateway.client.client import FencedClient
from gateway.client.errors import FencingError, LockLost, NotAcquired, Refused, Stale, Unavailable
from gateway.client.lock import Lock
from gateway.client.s3 import Read
from gateway.client.source import Mode, Source
from gateway.errors import ConfigurationError

UNREACHABLE = 69
"""Exit code: the gateway, or the lock service, cannot be reached (EX_UNAVAILABLE of sysexits.h)."""

NOT_ACQUIRED = 75
"""Exit code: somebody else has the lock (EX_TEMPFAIL): try again later."""

LOST = 79
"""Exit code: the lock was lost before the command had ended."""

NOT_EXECUTABLE, NOT_FOUND = 126, 127

CREDENTIALS_TTL = 43200
"""Seconds; as long as the gateway gives them out for. A takeover ends them sooner."""

REGION = "us-east-1"
"""What S3 clients are told where nobody has told them: they want one, and the gateway takes any."""

# What would be found instead of the fenced credentials, or beside them, by one S3 client or another.
_OVERRULING = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SECURITY_TOKEN")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run, under which lock. ``ttl``, ``wait`` and ``grace`` are in seconds; ``wait`` None: for ever.

    ``source``: the address of a lock service, or ``gateway``. ``holder``: how the name of the holder begins; what
    nobody else has follows, because to a lock service one name is one holder. ``credentials``: the pattern of resources
    that fenced S3 credentials are for; None for the lock's own. ``pass_api_key``: let the command have the API key.
    """

    command: tuple[str, ...]
    url: str
    resource: str
    ttl: float = 30.0
    wait: float | None = None
    mode: Mode = "exclusive"
    source: str = "gateway"
    holder: str | None = None
    credentials: str | None = None
    read: tuple[str, ...] = ()
    grace: float = 10.0
    pass_api_key: bool = False


def run(options: RunOptions, api_key: str, inherited: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Run the command to its end; the exit code for it (docs/run.md). ``say`` takes lines for its user.

    Raises ``ConfigurationError`` for what its user has to correct first.
    """
    if (problem := _cannot_run(options.command[0], inherited)) is not None:
        say(f"{options.command[0]}: {'command not found' if problem == NOT_FOUND else 'cannot be executed'}")
        return problem
    try:
        return asyncio.run(_Run(options, api_key, inherited, say).run())
    except NotAcquired as error:
        say(str(error))
        return NOT_ACQUIRED
    except Unavailable as error:
        say(str(error))
        return UNREACHABLE
    except (LockLost, Stale) as error:
        say(str(error))
        return LOST
    except FencingError as error:
        raise ConfigurationError(error.message, advice=error.advice) from error
    except ValueError as error:
        raise ConfigurationError(str(error), advice="") from error


class _Run:
    """One run, from the lock to its release."""

    def __init__(
        self, options: RunOptions, api_key: str, inherited: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._options = options
        self._api_key = api_key
        self._inherited = inherited
        self._say = say
        self._interrupted: int | None = None

    async def run(self) -> int:
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
        options = self._options
        async with (
            FencedClient(options.url, api_key=self._api_key, holder=options.holder) as client,
            client.lock(
                options.resource,
                source=_source(options.source),
                ttl=options.ttl,
                wait=options.wait,
                mode=options.mode,
                on_loss="tell",
            ) as lock,
        ):
            environment = self._environment(await self._variables(lock))
            try:
                ended = await supervise(
                    options.command,
                    environment,
                    lost=lock.lost.wait,
                    stopping=lambda: self._say(f"{_reason(lock)} The command is stopped."),
                    grace=options.grace,
                    signals=signals,
                )
            except OSError as error:
                self._say(f"{options.command[0]}: {error.strerror}")
                return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            return self._code(lock, ended)

    async def _variables(self, lock: Lock) -> dict[str, str]:
        """What the command gets to know of the lock."""
        options = self._options
        read: Read = "all" if options.read == ("all",) else options.read or "own"
        try:
            return await lock.environment(pattern=options.credentials, ttl=CREDENTIALS_TTL, read=read)
        except Refused as refusal:
            if refusal.status != 403:
                raise
            self._say(f"No S3 credentials: {refusal.message}")
            return await lock.environment(s3=False)

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        fenced = "AWS_SESSION_TOKEN" in variables
        kept = {name: value for name, value in self._inherited.items() if not _is_dropped(name, fenced=fenced)}
        if fenced and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & kept.keys():
            kept |= dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), REGION)
        if self._options.pass_api_key:
            kept["GATEWAY_API_KEY"] = self._api_key
        return {**kept, **variables}

    def _code(self, lock: Lock, ended: Ended) -> int:
        if ended.stopped:
            return LOST
        if not lock.lost.is_set():
            return ended.code
        if ended.code == 0:
            self._say(f"{_reason(lock)} The command has ended well all the same: what it has written stays.")
            return 0
        self._say(f"{_reason(lock)} The command has failed with {ended.code}.")
        return LOST


def _reason(lock: Lock) -> str:
    try:
        lock.check()
    except LockLost as lost:
        return lost.message
    return f"The lock {lock.resource} is held."


def _source(address: str) -> Source | None:
    try:
        return source_at(address)
    except ValueError as error:
        raise ConfigurationError(f"--source: {error}", advice="") from error


def _is_dropped(name: str, *, fenced: bool) -> bool:
    """Whether a variable would say something else than the lock does, or allow what its token must not."""
    if name.startswith("FENCING_") or name in ("GATEWAY_API_KEY", "GATEWAY_SOURCE"):
        return True
    return fenced and name in _OVERRULING


def _cannot_run(program: str, environment: Mapping[str, str]) -> int | None:
    """The exit code for a program that is not there, or no program: seen before anybody has to wait for its lock."""
    path = environment.get("PATH", os.defpath)
    if shutil.which(program, path=path) is not None:
        return None
    return NOT_EXECUTABLE if shutil.which(program, mode=os.F_OK, path=path) is not None else NOT_FOUND
