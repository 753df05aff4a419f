"""``gateway serve``: check the configuration, serve with it, and check each later one before it takes effect."""

import asyncio
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway import serving, targets
from gateway.app import build
from gateway.auth.callers import rights_of
from gateway.auth.grants import Action
from gateway.background import background_tasks
from gateway.changes import ownership
from gateway.changes.naming import naming_changes
from gateway.commands.console import load, places, say
from gateway.commands.environment import environment, taken_from_environment
from gateway.config import Config, former_keys
from gateway.config.databases import DatabaseConfig
from gateway.config.explanations import Places
from gateway.config.sections import Server
from gateway.errors import ConfigurationError, ReloadRefused, Unavailable
from gateway.fencing.record import ANONYMOUS
from gateway.http.crowd import set_limit_of_files
from gateway.http.server import HttpServer
from gateway.observe import events, logs
from gateway.reloading import Source
from gateway.service_manager import VARIABLES, ServiceManager
from gateway.workers.link import Link
from gateway.workers.parent import KILLED_AFTER, Parent, number_of

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """The file of the configuration, None for the environment alone, and the options that go with it."""

    path: Path | None
    listen: str | None
    allow_missing: bool

    def read(self) -> Config:
        """Read the configuration, with the address of ``--listen``. Raises ``ConfigurationError``."""
        config = load(self.path)
        if self.listen is None:
            return config
        try:
            server = Server.model_validate({**config.server.model_dump(), "listen": self.listen})
        except ValueError as error:
            raise ConfigurationError("--listen: must be host:port, such as 127.0.0.1:8080", advice="") from error
        return config.model_copy(update={"server": server})

    async def check(self, config: Config) -> None:
        """Raise ``GatewayError`` for a configuration that a reload must not put in force.

        A start is more lenient: it has nothing to lose, and must not depend on the database or the store.
        """
        serving.check_tls(config.server)
        unreachable = []
        parts = config.parts
        for part in parts:
            try:
                await self._check_database(part, part.places_in(places(self.path)))
            except Unavailable as error:
                if part.name is None:
                    raise
                unreachable.append(error)
        await ownership.check_agreement(config)
        # A database that is down must not keep the configuration of the others as it is.
        if unreachable and len(unreachable) == len(parts):
            raise unreachable[0]

    async def _check_database(self, config: DatabaseConfig, known: Places) -> None:
        await serving.check_schema(config.postgres.dsn.get_secret_value())
        await targets.check(config, known, allow_missing=self.allow_missing, everything=True)
        async with naming_changes(config, only_look=True) as changes:
            differing = await changes.found()
        if differing:
            told = "; ".join(f"{one.name}: in force is {one.was}, configured is {one.following}" for one in differing)
            raise ReloadRefused(
                f"Rows or keys would get other names. {told}.",
                advice="Nothing was changed. Correct the rule, or run 'gateway naming apply' and reload again.",
            )


def serve(origin: Origin, workers: str = "1") -> None:
    """Serve until a signal. Raises ``ConfigurationError`` before it listens. ``workers``: a number, or ``auto``."""
    count = number_of(workers)
    manager = ServiceManager.of(taken_from_environment(*VARIABLES))
    logs.to_journal(environment().get("JOURNAL_STREAM", ""))
    # Nothing can be reloaded yet. Without a handler, SIGHUP would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    config = origin.read()
    files = set_limit_of_files()
    with (
        logs.of_libraries(),
        serving.Signals(),
        serving.bind(
            config.server.host, config.server.port, "Set another address: --listen, or server.listen."
        ) as listener,
    ):
        status = f"Serving {_url(config.server, listener.getsockname()[1])}"
        if count == 1:
            server = _server(origin, config, turn=partial(manager.reloading, status))
            serving.collect_rarely()
            _check_at_start(origin, config)
            _announce(config, listener.getsockname()[1], files)
            with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
                runner.run(_attended(server, listener, manager, status, config.server.drain))
            return
        serving.check_tls(config.server)
        _check_at_start(origin, config)
        _announce(config, listener.getsockname()[1], files)
        parent = Parent(origin, config, listener, count=count, observe=logs.log, manager=manager, status=status)
        code = asyncio.run(parent.run())
    sys.exit(code)


async def _attended(
    server: HttpServer, listener: socket.socket, manager: ServiceManager, status: str, drain: float
) -> None:
    """Serve, and tell the service manager."""
    server.on_start = partial(manager.ready, status)
    server.on_stop = partial(manager.stopping, drain + KILLED_AFTER)
    async with background_tasks(manager.watch()):
        await server.serve(sockets=[listener])


def serve_as_worker(number: int, count: int, talk: int, connections: int) -> None:
    """Serve the connections of a parent, which has written the configuration to standard input."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nothing can be reloaded yet
    logs.name_worker(number)
    logs.to_journal(environment().get("JOURNAL_STREAM", ""))
    origin, config = pickle.load(sys.stdin.buffer)  # noqa: S301 - the parent is this program
    link = Link(number, count, socket.socket(fileno=talk), socket.socket(fileno=connections))
    for end in (link.talk, link.connections):
        end.setblocking(False)  # noqa: FBT003 - the signature of the standard library
        end.set_inheritable(False)
    with logs.of_libraries(), serving.Signals():
        server = _server(origin, config, link)
        serving.collect_rarely()
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(link.serve(server))


def _server(
    origin: Origin,
    config: Config,
    link: Link | None = None,
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> HttpServer:
    source = Source(
        origin.read,
        origin.check,
        certificates=lambda following: serving.certificates(following.server),
        renew_certificates=lambda following: serving.renew_certificates(server, following.server),
        turn=turn if link is None else link.turn,
        share=None if link is None else link.share,
        followed=None if link is None else link.followed,
        watches=link is None or link.number == 1,
    )
    app = build(config, source=source, allow_missing=origin.allow_missing, link=link)
    server: HttpServer = serving.server(app, config.server)
    return server


def _check_at_start(origin: Origin, config: Config) -> None:
    for line in former_keys(origin.path):
        logs.log(events.ConfigurationNoted(line))
    for part in config.parts:
        try:
            if notice := asyncio.run(serving.check_schema(part.postgres.dsn.get_secret_value())):
                logs.log(events.SchemaIsNewer(notice))
            known = part.places_in(places(origin.path))
            for line in asyncio.run(targets.check(part, known, allow_missing=origin.allow_missing)):
                logs.log(events.ConfigurationNoted(line if part.name is None else f"{part.name}: {line}"))
        except Unavailable as error:
            logs.log(events.ServiceUnreachable("postgres", error.told, error.remedy, error.repeated_as))
    asyncio.run(ownership.check_agreement(config, claim=True))


def _announce(config: Config, port: int, files: int) -> None:
    """Log that the gateway listens. Tell a person at a terminal where the page is, and what to do next."""
    logs.log(events.Listening(_url(config.server, port), files))
    if not sys.stderr.isatty():
        return  # a program reads the log, line by line
    say(f"The page: {config.server.public_address or _local_url(config.server, port)}/ui/")
    say(f"Next: {_next_step(config)}")


def _next_step(config: Config) -> str:
    if rights_of(config.grants, ANONYMOUS).anywhere(Action.AUDIT):
        return "open it."
    readers = [
        one.name
        for one in config.callers
        if one.api_key and rights_of(config.grants, one.name, one.groups).anywhere(Action.AUDIT)
    ]
    if readers:
        return f"log in there with the API key of {' or '.join(readers[:_SHOWN])}."
    if any(one.login for one in config.issuers):
        return "log in there."
    return "grant a caller audit, with everything = true, so that it can log in there."


def _local_url(server: Server, port: int) -> str:
    """Return the address for a browser on this machine."""
    return server.local_url.removesuffix(f":{server.port}") + f":{port}"


def _url(server: Server, port: int) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{'https' if server.tls_certificate else 'http'}://{host}:{port}"
