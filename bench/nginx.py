"""nginx as the peer: a proxy that passes everything on, and knows nothing of fences."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.processes import free_port

# Bodies stream in both directions, as they do through the gateway; the Host is kept, since it is signed.
_CONFIGURATION = """
daemon off;
worker_processes 1;
pid {directory}/pid;
error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 0;
    upstream store {{ server {store}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://store;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
        }}
    }}
}}
"""


@contextmanager
def running(store: str) -> Iterator[str]:
    """nginx in front of a store; its origin. ``store`` is the store's."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise SystemExit("bench needs nginx; on Debian: apt-get install nginx-light")
    with TemporaryDirectory(prefix="nginx") as name:
        directory, port = Path(name), free_port()
        directory.chmod(0o755)
        configuration = directory / "nginx.conf"
        configuration.write_text(
            _CONFIGURATION.format(directory=directory, port=port, store=store.removeprefix("http://"))
        )
        with subprocess.Popen([program, "-c", str(configuration), "-p", name]) as process:
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()
