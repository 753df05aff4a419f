"""The gateway over real HTTP, in the test's own event loop."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from gateway import app
from gateway.api import ROUTES
from gateway.auth.grants import Action
from gateway.changes.ownership import claim_if_new
from gateway.config import Config
from gateway.config.access import GrantRule
from gateway.http.connection import KEEP_ALIVE, Connection
from gateway.http.server import HttpServer
from gateway.observe.events import Event, Observe
from gateway.serving import Renewable
from tests.patience import limited
from tests.postgres import as_gateway

ORDINARY = (Action.READ, Action.WRITE, Action.CALL, Action.LOCK, Action.BARRIER, Action.CREDENTIALS)
"""The actions of callers that write, and no more."""
GRANTS: list[dict[str, Any]] = [
    {"callers": ["group:admins"], "actions": [action.value for action in Action], "everything": True},
    {"callers": ["group:auditors"], "actions": ["audit"], "everything": True},
    {"callers": ["*"], "actions": [action.value for action in ORDINARY], "everything": True},
]
"""All that tests grant that are not about grants: everything but administration, and the record to auditors."""
GRANT_RULES = [GrantRule.model_validate(one) for one in GRANTS]
"""The same, as the configuration has them."""
GRANTS_TOML = """
[[grants]]
callers = ["*"]
actions = ["read", "write", "call", "lock", "barrier", "credentials"]
everything = true
"""
"""The same for the file of a configuration without administrators."""
OPERATOR_TOML = """
[[grants]]
callers = ["{}"]
actions = ["epoch", "break", "audit", "administer"]
everything = true
"""
"""The rest, for one caller."""
OPEN: list[dict[str, Any]] = [
    *GRANTS,
    {
        "callers": ["anonymous"],
        "actions": [action.value for action in ORDINARY],
        "tables": ["*"],
        "functions": ["*"],
        "resources": ["**"],
    },
    {"callers": ["anonymous"], "actions": ["audit"], "everything": True},
]
"""The same for callers without credentials, who see the record too, but use no buckets."""

ACCESS_KEY, SECRET_KEY, API_KEY = "AKIAWRITER", "writer-secret", "writer-api-key"
PAIR = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
KEYS = {**PAIR, "api_key": API_KEY}
"""The keys of the caller ``writer``."""


def config(dsn: str, endpoint: str | None = None, *, limits: dict[str, float] | None = None, **sections: Any) -> Config:
    """A configuration with one caller, ``writer``. ``endpoint`` is that of an S3 double, which is not swept.

    ``limits``: those of ``gateway.config.sections.Limits`` that differ from ``tests.patience.OF_GATEWAYS``.
    ``sections`` replace those from here; None: the section is left out. ``postgres`` and ``s3`` have what differs.
    """
    store = {
        "endpoint": endpoint,
        "access_key_id": "AKIADOUBLE",
        "secret_access_key": "double-secret",
    }
    caller = {"name": "writer", "groups": ["auditors"], **KEYS}
    given: dict[str, Any] = {"s3": None, "callers": [caller], **sections}
    if "postgres" not in sections or sections["postgres"] is not None:
        given["postgres"] = {"dsn": as_gateway(dsn)} | sections.get("postgres", {})
    if endpoint is not None and ("s3" not in sections or sections["s3"] is not None):
        given["s3"] = store | sections.get("s3", {})
    named = {"*", *(f"group:{group}" for one in given["callers"] for group in one.get("groups", ()))}
    grants = [one for one in GRANTS if named.issuperset(one["callers"])]
    built = {"grants": grants, **{key: one for key, one in given.items() if one is not None}}
    return limited(Config.model_validate(built), **(limits or {}))


class Events(list[Event]):
    """A sink that keeps what happened."""

    def __call__(self, event: Event) -> None:
        self.append(event)


class Server(HttpServer):
    """One that stops when it is told to, and not a tenth of a second later, when it looks next."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def stop(self) -> None:
        self._told.set()

    async def main_loop(self) -> None:
        ticking = asyncio.create_task(super().main_loop())
        await self._told.wait()
        ticking.cancel()


@asynccontextmanager
async def running(
    config: Config, observe: Observe | None = None, tls: tuple[Path, Path] | None = None, port: int = 0
) -> AsyncIterator[str]:
    """Serve the gateway on a free port of 127.0.0.1, or on ``port``; its origin.

    ``tls`` goes without the settings of the server.
    """
    if config.databases:
        await claim_if_new(config)  # as 'gateway migrate' and 'gateway serve' do
    with socket.create_server(("127.0.0.1", port)) as listener:
        certificate, key = tls or (None, None)
        server = Server(
            uvicorn.Config(
                app.build(config, Events() if observe is None else observe),
                log_config=None,
                http=Connection,
                lifespan="on",
                proxy_headers=False,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                ssl_version=ssl.PROTOCOL_TLS_SERVER,
                ssl_context_factory=(lambda *_: Renewable.of(config.server)) if config.server.tls_certificate else None,
                # A connection that is closed while a request is on its way to it is an error of the client.
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=2,
            )
        )
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(sockets=[listener]))
            while not server.started:
                assert not serving.done(), "the gateway did not start"
                await asyncio.sleep(0.01)
            try:
                yield f"{'https' if tls or config.server.tls_certificate else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.stop()


def routes_of(gateway: app.Gateway) -> list[tuple[str, str]]:
    """Return methods and paths of all routes of the API and of the page."""
    page: Any = gateway._first.web
    while not hasattr(page, "routes"):  # it stands behind its headers and its door
        page = page._app
    of_page = [(method, route.path) for route in page.routes for method in sorted(route.methods or ())]
    return [*((route.method, route.path) for route in ROUTES), *of_page]
