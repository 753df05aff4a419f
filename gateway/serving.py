"""Runs the ASGI app under uvicorn: binds the address first, stops cleanly on SIGINT and SIGTERM."""

import gc
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeAlias

import uvicorn

from gateway.config.server import Server
from gateway.db import migrations
from gateway.db.database import refuses_sessions
from gateway.errors import ConfigurationError, SqlError, Unavailable
from gateway.http.connection import KEEP_ALIVE, Connection

ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

GRACE = 30
"""Seconds that requests under way get to finish once the gateway is asked to stop."""


_STOPPING = (signal.SIGINT, signal.SIGTERM)
_AGAIN = signal.SIGALRM
_SOON = 0.01
"""Seconds after which a stop that Python dropped is asked for again."""
_NO_KEY = ("PEM_LIB", "NO_START_LINE", None)
"""OpenSSL's reasons, by version, for a file without a private key."""


class StopRequested(SystemExit):
    """SIGINT or SIGTERM arrived: unwind, clean up, and leave with 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Signals:
    """SIGINT and SIGTERM, while the context lasts: the first one raises ``StopRequested``, later ones do nothing."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._deaf = False
        self._unraisable = sys.unraisablehook

    def __enter__(self) -> Self:
        for number in (*_STOPPING, _AGAIN):
            self._before[number] = signal.signal(number, self._arrived)
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._lost
        return self

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._unraisable
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """For what must not be left half done: a signal that arrives inside counts at the end.

        Blocked, not just noted: processes started inside must not be interrupted by the terminal either.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ignore(self) -> None:
        """From here on everything is being stopped anyway."""
        self._deaf = True

    def _arrived(self, *_: object) -> None:
        if not self._deaf:
            self._deaf = True
            raise StopRequested

    def _lost(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """An exception that Python drops, in a callback of a collected object: where it was ours, raise it again."""
        if isinstance(unraisable.exc_value, StopRequested):
            self._deaf = False
            signal.setitimer(signal.ITIMER_REAL, _SOON)
        else:
            self._unraisable(unraisable)


def bind(host: str, port: int) -> socket.socket:
    """Listen on the address; port 0 is any free one. Raises ``ConfigurationError`` where that cannot be."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ConfigurationError(f"Cannot listen on {host}:{port}: {reason}.", advice="") from error


def collect_rarely() -> None:
    """Look for garbage less often, in this whole process: for one that is nothing but a gateway, once it is built."""
    # What has been imported and built by now stays. A full collection that walks it all would stop every request for
    # tens of milliseconds, every few seconds.
    gc.collect()
    gc.freeze()
    # What a request makes it gives back by itself. Looking for what does not, every 700 objects, costs a tenth of it.
    gc.set_threshold(50_000, 20, 20)


def server(app: ASGIApp, settings: Server | None = None, *, grace: int = GRACE) -> uvicorn.Server:
    """A uvicorn server for ``app``, not running yet. ``grace`` is in seconds.

    The client's address is the peer's: a header could be forged, and the address goes on record. Raises
    ``ConfigurationError`` where TLS is wanted and its files cannot be used.
    """
    settings = settings or Server()
    _check_tls(settings.tls_certificate, settings.tls_key)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=Connection,
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            proxy_headers=False,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
            timeout_graceful_shutdown=grace,
        )
    )


@contextmanager
def in_background(app: ASGIApp, listener: socket.socket) -> Iterator[None]:
    """Serve ``app`` from a thread while the context lasts."""
    running = server(app, grace=3)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, name="gateway")
    thread.start()
    try:
        while not running.started:
            thread.join(0.02)
            if not thread.is_alive():
                raise ConfigurationError("The gateway did not start.", advice="The log says why.")
        yield
    finally:
        running.should_exit = True
        thread.join()


async def revision(dsn: str) -> str | None:
    """The revision of the fencing schema; None where it is not installed.

    Raises ``Unavailable`` where the database cannot be reached, ``ConfigurationError`` where it refuses.
    """
    try:
        return await migrations.installed(dsn)
    except SqlError as error:
        raise ConfigurationError(f"postgres.dsn: the database refuses: {error.message}", advice="") from error
    except Unavailable as error:
        if refuses_sessions(error):
            raise ConfigurationError(f"postgres.dsn: {error.message}", advice="") from error
        raise
    except ValueError as error:
        # Not what the driver says: it may repeat the password.
        raise ConfigurationError("postgres.dsn: not the address of a database", advice="") from error


async def check_schema(dsn: str) -> None:
    """Raise ``ConfigurationError`` where the fencing schema is older than this version of the gateway needs.

    A newer one is fine: what an older gateway calls in it never changes its meaning, so that two versions can run side
    by side during an upgrade. Raises ``Unavailable`` where the database cannot be reached, so that nobody knows.
    """
    found, newest = await revision(dsn), migrations.newest()
    if found is None:
        raise ConfigurationError("The fencing schema is not installed.", advice="Run 'gateway migrate' first.")
    if found < newest:
        raise ConfigurationError(
            f"The fencing schema is at {found}; this version of the gateway needs {newest}.",
            advice="Run 'gateway migrate' first.",
        )


def _check_tls(certificate: Path | None, key: Path | None) -> None:
    """Raise ``ConfigurationError`` where these files cannot be used. uvicorn reads them only once it is serving."""
    if certificate is None:
        return
    _check_readable("tls_certificate", certificate)
    if key is not None:
        _check_readable("tls_key", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise _unusable("tls_certificate", certificate, "holds no certificate in PEM form") from error
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except _EncryptedKey as error:
        advice = "Decrypt it: openssl pkey -in … -out …"
        raise _unusable("tls_key", key or certificate, "the key is encrypted", advice) from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"the key of another certificate than {certificate}"
            raise _unusable("tls_key", key or certificate, reason) from error
        if error.reason not in _NO_KEY:
            raise _unusable("tls_certificate", certificate, f"OpenSSL refuses it, {error.reason}") from error
        if key is None:
            raise _unusable("tls_certificate", certificate, "holds no private key", "Set server.tls_key.") from error
        raise _unusable("tls_key", key, "holds no private key in PEM form") from error


class _EncryptedKey(Exception):
    """OpenSSL asks for a password. It would ask the terminal."""


def _no_password() -> str:
    raise _EncryptedKey


def _check_readable(setting: str, path: Path) -> None:
    if not path.is_file():
        raise _unusable(setting, path, "there is no such file")
    try:
        path.read_bytes()
    except OSError as error:
        raise _unusable(setting, path, error.strerror or type(error).__name__) from error


def _unusable(setting: str, path: Path, reason: str, advice: str = "") -> ConfigurationError:
    return ConfigurationError(f"server.{setting}: {path}: {reason}.", advice=advice)
