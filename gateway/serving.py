"""Serve the ASGI app under uvicorn: bind the address, check the schema, stop cleanly on SIGINT and SIGTERM."""

import gc
import hashlib
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

from gateway.config.sections import NO_DATABASE, ClientCertificates, Server
from gateway.db import migrations
from gateway.db.pool import refuses_sessions
from gateway.errors import ConfigurationError, SessionsShared, SqlError, Unavailable
from gateway.http.connection import KEEP_ALIVE, Connection
from gateway.http.crowd import set_limit_of_files
from gateway.http.server import HttpServer

ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_AGAIN = signal.SIGALRM
_SOON = 0.01
"""Seconds until a stop that Python dropped is raised again."""
_NO_KEY = ("PEM_LIB", "NO_START_LINE", None)
"""OpenSSL's reasons, by version, for a file without a private key."""


class StopRequested(SystemExit):
    """SIGINT or SIGTERM arrived: unwind, clean up, and exit with 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Signals:
    """Handles SIGINT and SIGTERM while the block runs: the first raises ``StopRequested``, later ones do nothing."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._ignoring = False
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
        """Postpone a signal to the end of the block, for work that must not be left half done.

        The signals are blocked, so that the terminal does not interrupt processes that start inside either.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ignore(self) -> None:
        """Ignore signals from here on, because everything is being stopped anyway."""
        self._ignoring = True

    def _arrived(self, *_: object) -> None:
        if not self._ignoring:
            self._ignoring = True
            raise StopRequested

    def _lost(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Raise ``StopRequested`` again if Python dropped it in a callback of a collected object."""
        if isinstance(unraisable.exc_value, StopRequested):
            self._ignoring = False
            signal.setitimer(signal.ITIMER_REAL, _SOON)
        else:
            self._unraisable(unraisable)


def bind(host: str, port: int, advice: str = "") -> socket.socket:
    """Listen on the address; port 0 is any free one. Raises ``ConfigurationError`` with this advice if it cannot."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ConfigurationError(f"Cannot listen on {host}:{port}: {reason}.", advice=advice) from error


def collect_rarely() -> None:
    """Collect garbage less often in this whole process, once the gateway is built."""
    # All objects that exist by now stay. A full collection of them would stop every request for tens of milliseconds,
    # every few seconds.
    gc.collect()
    gc.freeze()
    # A request frees its objects by reference counts. Collecting every 700 objects would cost a tenth of its time.
    gc.set_threshold(50_000, 20, 20)


def server(app: ASGIApp, settings: Server | None = None, *, grace: int | None = None) -> HttpServer:
    """Return a server for ``app``, which is not running yet. ``grace``: seconds, in place of ``drain``.

    The client's address is that of the peer, because it goes on record, and a header could be forged. Raises
    ``ConfigurationError`` if the files for TLS cannot be used.
    """
    settings = settings or Server()
    check_tls(settings)
    set_limit_of_files()
    return HttpServer(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=Connection,
            ws="none",
            lifespan="on",
            log_config=None,  # its lines go where those of all libraries go
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            proxy_headers=False,
            ssl_context_factory=None if settings.tls_certificate is None else lambda *_: Renewable.of(settings),
            timeout_graceful_shutdown=settings.drain if grace is None else grace,
        )
    )


def certificates(settings: Server) -> dict[str, bytes]:
    """Return digests of the files for TLS, by their purpose. Raises ``ConfigurationError`` for a file that is gone.

    The certificate is the gateway's own. The authorities are those of clients, with the need of their certificates.
    """
    if settings.tls_certificate is None:
        return {}
    own = _digest(tls_certificate=settings.tls_certificate, tls_key=settings.tls_key)
    return {"certificate": own, "authorities": _authorities(settings)}


def _authorities(settings: Server) -> bytes:
    return settings.client_certificates.encode() + _digest(client_authorities=settings.client_authorities)


def _digest(**files: Path | None) -> bytes:
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(b"\0" if path is None else hashlib.sha256(_read(name, path)).digest())
    return digest.digest()


def renew_certificates(running: HttpServer, settings: Server) -> None:
    """Let new connections get the certificates that the settings name. ``check_tls`` has read them before.

    If other authorities sign those of clients, each connection ends with its present request.
    """
    context = running.config.ssl
    assert isinstance(context, Renewable)
    if context.renew(settings):
        for connection in list(running.server_state.connections):
            connection.shutdown()


class Verifying(ssl.SSLContext):
    """A context with its view of certificates of clients. Any other value of ``authorities`` is another view."""

    authorities = b""


class Renewable(Verifying):
    """Begins each connection under the newest context. A server never replaces the one that it listens with.

    To load new files into that one would not do: a context cannot forget an authority.
    """

    newest: Verifying

    @classmethod
    def of(cls, settings: Server) -> Self:
        """Return one that begins connections under the settings. Raises ``ConfigurationError``."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.renew(settings)
        return context

    def renew(self, settings: Server) -> bool:
        """Begin connections under other settings. Return whether certificates of clients are judged in another way."""
        self.newest, before = _context(settings), self.authorities
        self.authorities = self.newest.authorities
        return before != self.authorities

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*arguments, **options)


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
                raise ConfigurationError("The gateway did not start.", advice="Read the log for the reason.")
        yield
    finally:
        running.should_exit = True
        thread.join()


async def revision(dsn: str) -> str | None:
    """Return the revision of the fencing schema; None if it is not installed.

    Raises ``Unavailable`` if the database cannot be reached, and ``ConfigurationError`` if it refuses.
    """
    with _explained():
        return await migrations.installed(dsn)


async def check_may_migrate(dsn: str) -> None:
    """Raise ``ConfigurationError`` if the session may not migrate, and what ``revision`` raises."""
    with _explained():
        await migrations.check_rights(dsn)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except SqlError as error:
        raise ConfigurationError(f"postgres.dsn: the database refuses: {error.message}", advice="") from error
    except Unavailable as error:
        if isinstance(error, SessionsShared):
            raise ConfigurationError(f"postgres.dsn: {error.message}", advice=error.advice) from error
        if refuses_sessions(error):
            raise ConfigurationError(f"postgres.dsn: {error.message}", advice="") from error
        raise
    except ValueError as error:
        # Not the message of the driver, which may contain the password.
        raise ConfigurationError(f"postgres.dsn: {NO_DATABASE}", advice="") from error


async def check_schema(dsn: str) -> str | None:
    """Check the schema of a database for this version; return and raise as ``migrations.check`` and ``revision`` do."""
    return migrations.check(await revision(dsn))


def check_tls(settings: Server) -> None:
    """Raise ``ConfigurationError`` if the files for TLS cannot be used. uvicorn reads them only once it is serving."""
    if settings.tls_certificate is not None:
        _context(settings)


def _context(settings: Server) -> Verifying:
    """Return a context with the files for TLS. Raises ``ConfigurationError``."""
    assert settings.tls_certificate is not None
    context = _own_context(settings.tls_certificate, settings.tls_key)
    if settings.client_authorities is not None:
        demanded = settings.client_certificates is ClientCertificates.DEMAND
        _verify_clients(context, settings.client_authorities, demanded=demanded)
    context.authorities = _authorities(settings)
    return context


def _verify_clients(context: ssl.SSLContext, authorities: Path, *, demanded: bool) -> None:
    """Let each handshake verify the client's certificate, for the purpose of a TLS client."""
    _read("client_authorities", authorities)
    try:
        context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        raise _unusable("client_authorities", authorities, "holds no certificate in PEM form") from error
    if not context.cert_store_stats()["x509_ca"]:
        raise _unusable("client_authorities", authorities, "holds no certificate of an authority")
    context.verify_mode = ssl.CERT_REQUIRED if demanded else ssl.CERT_OPTIONAL
    # An authority in the file is trusted by itself, whatever signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # No session goes on in another connection, so each certificate is verified now. TLS 1.2 would remember sessions,
    # and show certificates on the way.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0


def _own_context(certificate: Path, key: Path | None) -> Verifying:
    """Return a context with the gateway's own certificate. Raises ``ConfigurationError``."""
    _read("tls_certificate", certificate)
    if key is not None:
        _read("tls_key", key)
    context = Verifying(ssl.PROTOCOL_TLS_SERVER)
    try:
        # In another context, because this one must trust nothing.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certificate)
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
    return context


class _EncryptedKey(Exception):
    """OpenSSL needs a password, and would ask the terminal for it."""


def _no_password() -> str:
    raise _EncryptedKey


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise _unusable(setting, path, "there is no such file") from error
    except OSError as error:
        raise _unusable(setting, path, error.strerror or type(error).__name__) from error


def _unusable(setting: str, path: Path, reason: str, advice: str = "") -> ConfigurationError:
    return ConfigurationError(f"server.{setting}: {path}: {reason}.", advice=advice)
