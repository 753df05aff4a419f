"""The integration tests of rclone's backend for S3, straight at MinIO and through the gateway.

They run twice, as rclone's own list of tests has them: the second time with objects in place of directories.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.suites.fetched import BUILD, go_module, go_program
from tests.conformance.suites.objects import two_ways
from tests.stores.store import OWNER, REGION

_MODULE = "github.com/rclone/rclone@v1.76.0"
_CHECKSUM = "h1:Gabl7KmhxyOXyMtFNA/s6wZ3LZ/2x0NP7xZLNEW3Guo="
_TIME_LIMIT = 900  # seconds, for each way
_REMOTE = {
    "TYPE": "s3",
    "PROVIDER": "Minio",
    "ACCESS_KEY_ID": OWNER.access_key_id,
    "SECRET_ACCESS_KEY": OWNER.secret_access_key,
    "REGION": REGION,
}
# The same uploads in parts a second time, for minutes.
_TOLD_ALREADY = "TestIntegration2/FsMkdir/FsPutChunked"
_RESULT = re.compile(r"^ *--- (PASS|FAIL): (\S+) \(", re.MULTILINE)
# A failed assertion of a test, which may have tests inside that fail too.
_ASSERTION = re.compile(r"^\s+Error:\s+(.*)(?:\n\s+(?!Test:).*)*\n\s+Test:\s+(\S+)$", re.MULTILINE)


def both_ways() -> tuple[dict[str, str], dict[str, str]]:
    """Return the failure of each test, in short, direct and through the gateway; empty if it passed."""
    source = go_module(_MODULE, _CHECKSUM) / "backend" / "s3"
    suite = go_program("rclone-s3", source, "test", "-c", ".")
    with two_ways("enforce") as (store, origin):
        direct = _failures(suite, source, {"ENDPOINT": store})
        return direct, _failures(suite, source, {"ENDPOINT": origin, "SESSION_TOKEN": "fencing-token=1"})


def _failures(suite: Path, folder: Path, remote: Mapping[str, str]) -> dict[str, str]:
    empty = BUILD / "rclone.conf"
    empty.touch()
    settings = {f"RCLONE_CONFIG_TESTS3_{name}": value for name, value in {**_REMOTE, **remote}.items()}
    told = subprocess.run(
        [
            suite,
            "-test.v",
            "-test.run=^TestIntegration",
            f"-test.skip={_TOLD_ALREADY}",
            f"-test.timeout={_TIME_LIMIT}s",
        ],
        cwd=folder,
        env={**os.environ, **settings, "RCLONE_CONFIG": str(empty)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    ).stdout
    results = {name: result for result, name in _RESULT.findall(told)}
    failed = {name for name, result in results.items() if result == "FAIL"}
    found = dict.fromkeys(results, "")
    found |= {name: "failed" for name in failed if not any(one.startswith(f"{name}/") for one in failed)}
    return found | {name: message for message, name in _ASSERTION.findall(told)}
