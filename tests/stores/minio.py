"""MinIO on one directory. Its conditions on PutObject and CompleteMultipartUpload are atomic: the strong store.

The last release is not published as a module under its own name, so the version is that of the last commit.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.processes import free_port
from tests.stores.processes import answers, daemon, wait_until
from tests.stores.store import OWNER, REGION, Store, program

MODULE = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"


@contextmanager
def running() -> Iterator[Store]:
    """Start the server on a free port; killed and removed on exit. Raises ``StoreMissing``."""
    with tempfile.TemporaryDirectory(prefix="minio") as name, serving(Path(name), free_port()) as store:
        yield store


@contextmanager
def serving(directory: Path, port: int) -> Iterator[Store]:
    """Start the server on what the directory has; killed on exit. Raises ``StoreMissing``."""
    minio = program("minio", f"go install {MODULE}")
    endpoint = f"127.0.0.1:{port}"
    environment = {
        **os.environ,
        "MINIO_ROOT_USER": OWNER.access_key_id,
        "MINIO_ROOT_PASSWORD": OWNER.secret_access_key,
        "MINIO_REGION": REGION,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    log = directory / "log"
    command = [minio, "server", f"{directory}/data", "--address", endpoint, "--quiet"]
    with daemon(command, log, environment) as process:
        wait_until(partial(answers, f"http://{endpoint}/minio/health/cluster", well=True), process, log)
        yield Store("minio", f"http://{endpoint}")
