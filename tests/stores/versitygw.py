"""Versity's gateway. On a directory it is a store that honours conditions, by locks on files; or a proxy of a store."""

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


# As docs/stores.md says of it: its conditional delete loses a race now and then.
_DISTRUST = ("delete",)


@contextmanager
def running(data: Path | None = None) -> Iterator[Store]:
    """Start the server on a free port; killed and removed on exit. Raises ``StoreMissing``.

    ``data``: the directory of its buckets, which is kept, and which has no versions then.
    """
    with tempfile.TemporaryDirectory(prefix="versitygw") as name:
        versions = Path(name) / "versions"
        versions.mkdir()
        versioned = [] if data else ["--versioning-dir", str(versions)]
        data = data or Path(name) / "data"
        data.mkdir()
        with _serving(Path(name) / "log", "posix", *versioned, str(data)) as endpoint:
            yield Store("versitygw", endpoint, distrust=_DISTRUST)


@contextmanager
def in_front_of(store: Store) -> Iterator[str]:
    """Start a proxy of the store, and yield its origin. Raises ``StoreMissing``."""
    keys = ["--access", store.owner.access_key_id, "--secret", store.owner.secret_access_key]
    # Signing an unencrypted body with a checksum behind it fails in its S3 client.
    plain = ["--use-path-style", "--disable-data-integrity-check"]
    backend = ["s3", *keys, "--endpoint", store.endpoint, "--region", REGION, *plain]
    with tempfile.TemporaryDirectory(prefix="versitygw") as name, _serving(Path(name) / "log", *backend) as endpoint:
        yield endpoint


@contextmanager
def _serving(log: Path, *backend: str) -> Iterator[str]:
    versitygw = program("versitygw", f"go install {MODULE}")
    address = f"127.0.0.1:{free_port()}"
    # Its S3 client cannot start with a bundle of certificates, and the store is on this machine.
    environment = {
        **{name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"},
        "ROOT_ACCESS_KEY_ID": OWNER.access_key_id,
        "ROOT_SECRET_ACCESS_KEY": OWNER.secret_access_key,
    }
    command = [versitygw, "--port", address, "--region", REGION, "--quiet", *backend]
    with daemon(command, log, environment) as process:
        wait_until(partial(answers, f"http://{address}"), process, log)
        yield f"http://{address}"
