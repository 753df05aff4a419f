"""The functional tests of minio-go, straight at MinIO and through the gateway.

They present no tokens, and their client has no place for one, so the gateway observes.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from tests.conformance.suites.fetched import go_module, go_program
from tests.conformance.suites.objects import two_ways
from tests.stores.store import OWNER

_MODULE = "github.com/minio/minio-go/v7@v7.4.1"
_CHECKSUM = "h1:PtU/zIOfQRWZ+QydXAZysc+xZYHdG+BBR4Z6TUvy73w="
_TIME_LIMIT = 900  # seconds, for each way
# Without encryption: the stores here have no keys, and no TLS.
_OPTIONS = {"ENABLE_HTTPS": "0", "ENABLE_KMS": "0", "MINT_MODE": "full", "RUN_ON_FAIL": "1"}
_KEYS = {"ACCESS_KEY": OWNER.access_key_id, "SECRET_KEY": OWNER.secret_access_key}


def both_ways() -> tuple[dict[str, str], dict[str, str]]:
    """Return the failure of each test, in short, direct and through the gateway; empty if it passed."""
    # Named by itself, a file is built without its condition, which makes a package of two.
    suite = go_program("minio-go", go_module(_MODULE, _CHECKSUM), "build", "functional_tests.go")
    with two_ways("observe") as (store, origin):
        return _failures(suite, store), _failures(suite, origin)


def _failures(suite: Path, endpoint: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="minio-go") as folder:  # for what the tests download
        told = subprocess.run(
            [suite],
            cwd=folder,
            env={**os.environ, **_OPTIONS, **_KEYS, "SERVER_ENDPOINT": urlsplit(endpoint).netloc},
            stdout=subprocess.PIPE,
            text=True,
            timeout=_TIME_LIMIT,
            check=False,
        ).stdout
    found: dict[str, str] = {}
    for line in told.splitlines():
        one = json.loads(line)
        name = one["name"].removeprefix("minio-go: ")
        # A test goes on behind its first failure. It is NA where an answer says that something is not served.
        trouble = "" if one["status"] == "PASS" else f"{one.get('message') or one.get('alert')}: {one.get('error')}"
        found[name] = found.get(name) or trouble[:300]
    return found
