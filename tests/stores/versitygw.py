"""Versity's gateway on a directory: conditions are honoured, by locks on files."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.processes import free_port
from tests.stores.processes import answers, daemon, wait_until
from tests.stores.store import OWNER, REGION, Store, program

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


@contextmanager
def running() -> Iterator[Store]:
    """Start the server on a free port; killed and removed on exit. Raises ``StoreMissing``."""
    versitygw = program("versitygw", f"go install {MODULE}")
    endpoint = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="versitygw") as name:
        log = Path(name) / "log"
        data, versions = Path(name) / "data", Path(name) / "versions"
        data.mkdir()
        versions.mkdir()
        environment = {
            **os.environ,
            "ROOT_ACCESS_KEY_ID": OWNER.access_key_id,
            "ROOT_SECRET_ACCESS_KEY": OWNER.secret_access_key,
        }
        backend = ["posix", "--versioning-dir", str(versions), str(data)]
        command = [versitygw, "--port", endpoint, "--region", REGION, "--quiet", *backend]
        with daemon(command, log, environment) as process:
            wait_until(partial(answers, f"http://{endpoint}"), process, log)
            yield Store("versitygw", f"http://{endpoint}")
