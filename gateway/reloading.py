"""Reloading: another configuration takes effect as a whole, or not at all, while requests run.

A reload starts another gateway in this process, beside the one that serves. New requests go to the new one. The former
one ends with its last request, so each request ends under the configuration that it began with.

Of several workers, one checks and starts a gateway like this. From then on the configuration is in force: the others
follow, and a worker that cannot is replaced.
"""

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, nullcontext
from contextvars import Context
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from starlette.types import Receive, Scope, Send

from gateway.background import grown
from gateway.config import Config
from gateway.config.reloadable import Change, changes
from gateway.errors import GatewayError, ReloadRefused
from gateway.fencing.record import PROCESS, Attempt
from gateway.observe.events import ConfigurationReloaded, Observe, ReloadFailed

_LOOK = 2.0
"""Seconds between two looks at a watched configuration."""
_LONGEST_PAUSE = 60.0
_UNTIL_UNUSED = 1.0
"""Seconds until nothing refers to a gateway that has ended."""


Reload: TypeAlias = Callable[[Attempt], Awaitable[list[str]]]
"""Reloads, and returns the changes for people. Raises ``ReloadRefused``."""


async def never(_: Attempt) -> list[str]:
    """Refuse to reload."""
    raise ReloadRefused("This gateway was built without a file or an environment to read again.")


class Serving(Protocol):
    """A gateway that serves under one configuration."""

    async def run(self, started: Callable[[], None]) -> None:
        """Run until it is stopped, or until it is retired and its last request has ended."""

    def retire(self) -> None:
        """End the work that no request needs. No further request comes."""

    def stop(self) -> None:
        """End, whether requests run or not."""

    async def record_reload(self, attempt: Attempt, changed: Sequence[Change]) -> None:
        """Put on record, durably, that a configuration takes effect."""


Gateway = TypeVar("Gateway", bound=Serving)


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a configuration. ``certificates`` identifies the contents of its files for TLS, by their purpose.

    ``check`` raises ``GatewayError`` for a configuration that cannot be used.
    """

    read: Callable[[], Config]
    check: Callable[[Config], Awaitable[None]]
    certificates: Callable[[Config], Mapping[str, bytes]]
    renew_certificates: Callable[[Config], None]
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Entered for each reload. Of several workers, one is inside."""
    share: Callable[[Config], Awaitable[None]] | None = None
    """Puts a configuration in force. The other workers begin to follow, and this one must follow at once."""
    followed: Callable[[], Awaitable[None]] | None = None
    """Waits until the other workers have followed."""
    watches: bool = True
    """Whether this process watches it. One of several workers does."""


class Reloading(Generic[Gateway]):
    """Owns the gateways of a process: the one that serves, and former ones that still finish requests."""

    def __init__(
        self,
        config: Config,
        build: Callable[[Config, Reload], Gateway],
        switch: Callable[[Config, Gateway], None],
        observe: Observe,
        source: Source | None,
    ) -> None:
        """``switch`` lets new requests go to a gateway, at once. Without a ``source`` nothing can be reloaded."""
        self._config, self._source, self._observe = config, source, observe
        self._build, self._switch = build, switch
        self._certificates = {} if source is None else source.certificates(config)
        self.serving = build(config, self.reload)
        """The gateway that new requests go to."""
        self._running: list[Gateway] = []
        self._queue, self._one_at_a_time = asyncio.Lock(), asyncio.Lock()
        self._has_stopped = False

    async def lifespan(self, _: Scope, receive: Receive, send: Send) -> None:
        """Run all gateways, as the lifespan of an ASGI app. The caller tells the server when all has ended."""
        await receive()
        self._tasks = asyncio.TaskGroup()
        async with self._tasks:
            await self._start(self.serving)
            watching = self._tasks.create_task(self._watch())
            with self._heeding_hangups():
                await send({"type": "lifespan.startup.complete"})
                await receive()
            watching.cancel()
            async with self._one_at_a_time:
                self._has_stopped = True
                for serving in self._running:
                    serving.stop()

    async def reload(self, attempt: Attempt) -> list[str]:
        """Put the configuration in force that the source has now. Return its changes, for people.

        Raises ``ReloadRefused`` if it cannot be used; then nothing has changed.
        """
        # A client that goes does not leave a reload half done.
        outcome = await asyncio.shield(self._tasks.create_task(self._reload(attempt)))
        if isinstance(outcome, ReloadRefused):
            raise outcome
        return outcome

    async def _reload(self, attempt: Attempt) -> list[str] | ReloadRefused:
        turn = nullcontext if self._source is None else self._source.turn
        async with AsyncExitStack() as stack:
            try:
                # In this order: the worker whose turn it is lets others follow, also those that wait for their turn.
                await stack.enter_async_context(self._queue)
                await stack.enter_async_context(turn())
                await stack.enter_async_context(self._one_at_a_time)
                return await self._replace(attempt)
            except ReloadRefused as error:
                refused = error
            except GatewayError as error:
                refused = ReloadRefused(error.message)
                refused.retry_after = error.retry_after
            except Exception as error:  # noqa: BLE001 - a bug must not end the gateway that serves
                refused = ReloadRefused(f"The reload failed inside the gateway: {type(error).__name__}.")
            self._observe(ReloadFailed(refused.message))
            return refused

    async def _replace(self, attempt: Attempt) -> list[str]:
        source = self._source
        if source is None:
            return await never(attempt)
        config = await asyncio.to_thread(source.read)
        changed = changes(self._config, config)
        if fixed := [one.setting for one in changed if one.needs_restart]:
            raise ReloadRefused(f"A change needs a restart: {'; '.join(fixed)}.")
        await source.check(config)
        certificates = await asyncio.to_thread(source.certificates, config)
        for purpose in certificates:
            if certificates[purpose] != self._certificates.get(purpose):
                changed.append(Change("server", None, purpose, "the former one", "another one"))
        if not changed:
            return []
        following = await self._started(config)
        try:
            await following.record_reload(attempt, changed)
            self._renew(config, certificates)
            if source.share is not None:
                await source.share(config)
        except BaseException:
            following.stop()
            raise
        self._take(config, certificates, following)
        if source.followed is not None:
            await source.followed()
        said = [str(one) for one in changed]
        self._observe(ConfigurationReloaded(attempt.method, attempt.caller, said))
        return said

    async def follow(self, config: Config) -> None:
        """Put a configuration in force that another worker has checked. This worker must be replaced after an error."""
        assert self._source is not None
        async with self._one_at_a_time:
            certificates = await asyncio.to_thread(self._source.certificates, config)
            following = await self._started(config)
            self._renew(config, certificates)
            self._take(config, certificates, following)

    def _renew(self, config: Config, certificates: Mapping[str, bytes]) -> None:
        assert self._source is not None
        if certificates != self._certificates:
            self._source.renew_certificates(config)

    def _take(self, config: Config, certificates: Mapping[str, bytes], following: Gateway) -> None:
        former, self.serving = self.serving, following
        self._config, self._certificates = config, certificates
        self._switch(config, following)
        former.retire()

    async def _started(self, config: Config) -> Gateway:
        """Return a gateway that runs beside the one that serves."""
        if self._has_stopped:
            raise ReloadRefused("This gateway stops.")
        following = self._build(config, self.reload)
        await self._start(following)
        return following

    async def _start(self, serving: Gateway) -> None:
        started = asyncio.get_running_loop().create_future()
        # Not in the context of the request that asks for a reload: it belongs to the former gateway.
        self._tasks.create_task(self._run(serving, started), context=Context())
        try:
            await started
        except BaseException:
            serving.stop()
            raise

    async def _run(self, serving: Gateway, started: "asyncio.Future[None]") -> None:
        """Run a gateway. An error of one that has started ends the process."""
        self._running.append(serving)
        try:
            await serving.run(lambda: None if started.done() else started.set_result(None))
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            self._running.remove(serving)
            # A gateway is one large cycle of objects, and the process collects rarely (``gateway.serving``).
            asyncio.get_running_loop().call_later(_UNTIL_UNUSED, gc.collect)

    async def _watch(self) -> None:
        """Reload when the source changes, if the configuration asks for it.

        A state that is wrong is tried once. One that could not be checked is tried again, in longer and longer pauses.
        """
        wrong: object = None
        pause = _LOOK
        while True:
            await asyncio.sleep(pause)
            if self._source is None or not (self._config.server.watch and self._source.watches):
                continue
            state = await asyncio.to_thread(_state, self._source)
            if state in (wrong, (self._config, self._certificates)):
                continue
            refused = await self._by_operator("watch")
            if refused is not None and refused.retry_after is not None:
                pause = grown(pause, _LOOK, _LONGEST_PAUSE)
                continue
            wrong, pause = state if refused else None, _LOOK

    async def _by_operator(self, how: str) -> ReloadRefused | None:
        """Reload because of a signal or a changed file. Return the problem, if there is one."""
        try:
            await self.reload(Attempt(None, None, PROCESS, how, "configuration", None, ""))
        except ReloadRefused as refused:
            return refused
        return None

    @contextmanager
    def _heeding_hangups(self) -> Iterator[None]:
        """Reload at SIGHUP while the block runs. If it says that the terminal is gone, stop."""
        if self._source is None:
            yield
            return
        in_terminal = sys.stderr.isatty()

        def heed() -> None:
            if in_terminal and not sys.stderr.isatty():
                signal.raise_signal(signal.SIGTERM)
            else:
                self._tasks.create_task(self._by_operator("SIGHUP"))

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, heed)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            # Without a handler, one more would end the process before its requests.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _state(source: Source) -> object:
    """Return what a reload would read: a configuration and its certificates, or the problem with it."""
    try:
        config = source.read()
        return config, source.certificates(config)
    except GatewayError as error:
        return error.message
