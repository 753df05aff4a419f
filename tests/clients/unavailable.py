"""A server of tables that is never available, to see what clients try again by themselves."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_BODY = b'{"code":"unavailable","message":"Not now.","details":null,"hint":null}'


class _Unavailable(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(503)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(_BODY)))
        self.end_headers()
        self.wfile.write(_BODY)

    do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 - the names are http.server's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        """Nothing: what was asked is the client's to say."""


@contextmanager
def unavailable() -> Iterator[str]:
    """Answer 503 to every write until the end; the origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Unavailable) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
