"""Runs a checkout of ceph/s3-tests twice, straight at Ceph and through the gateway, and reports the difference.

    python -m tests.conformance.upstream CHECKOUT [--python THEIRS] [arguments for pytest]

The suite holds a store to its authors' expectations; here only the difference counts. A test that passes straight at
the store and fails through the gateway shows a fault of the gateway. Otherwise ``upstream.txt`` lists it with its
reason.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.auth.grants import Action
from gateway.demo import embedded
from tests.conformance.differences import junit, listed, tell
from tests.conformance.running import gateway
from tests.postgres import fresh, template_of_today
from tests.stores import ceph
from tests.stores.store import User

# Whom the suite's sample configuration knows; the names are what its tests compare owners with.
MAIN = User("testid", "UPSTREAMMAIN00000000", "main-secret-key-of-forty-characters-0000")
OTHER = User("otherid", "UPSTREAMOTHER0000000", "other-secret-key-of-forty-characters-000")
TENANT = User("testx$tenantid", "UPSTREAMTENANT000000", "tenant-secret-key-of-forty-characters-00")
ADMINISTRATOR = User("iamid", "UPSTREAMIAM000000000", "iam-secret-key-of-forty-characters-00000")
SECTIONS = {
    "s3 main": MAIN,
    "s3 alt": OTHER,
    "s3 tenant": TENANT,
    "iam": ADMINISTRATOR,
    "iam root": ADMINISTRATOR,
    "iam alt root": ADMINISTRATOR,
}

# Not about an object store's requests, or minutes of waiting for a clock; the last one ends Ceph 16 itself.
NOT_RUN = (
    "bucket_logging bucket_logging_cleanup cloud_transition cloud_restore target_by_bucket fails_on_rgw "
    "iam_account iam_cross_account iam_role iam_tenant iam_user webidentity_test "
    "lifecycle_expiration lifecycle_transition s3website sns"
)
DESELECTED = ("test_upload_part_copy_percent_encoded_key",)

_EVERYTHING = {"actions": [action.value for action in Action], "everything": True}
_ALL = ({"callers": ["*"], **_EVERYTHING},)
_MAIN = {"callers": [MAIN.name, TENANT.name], **_EVERYTHING}
ROUNDS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "main": _ALL,
    # In place of ACLs that make a bucket, or one of its objects, public.
    "public-bucket": (*_ALL, {"callers": ["anonymous"], "actions": ["read"], "buckets": ["*"]}),
    "public-object": (_MAIN, {"callers": ["anonymous", OTHER.name], "actions": ["read"], "buckets": ["*/foo"]}),
    # In place of ACLs that give another user little, or nothing.
    "other-reads-keys": (_MAIN, {"callers": [OTHER.name], "actions": ["read"], "buckets": ["*/**"]}),
    "other-reads-nothing": (_MAIN, {"callers": [OTHER.name], "actions": ["write", "administer"], "everything": True}),
    "elsewhere": (_MAIN, {"callers": ["anonymous", OTHER.name], "actions": ["read"], "buckets": ["elsewhere"]}),
}
"""Grants of the gateway for the tests that ``upstream_grants.txt`` lists under each name; ``main``: for all others."""

_TIME_LIMIT = 3600  # seconds, for each of the two runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the suite's requirements")
    options, arguments = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="upstream") as name, ExitStack() as stack:
        directory = Path(name)
        postgres = stack.enter_context(embedded.postgres(directory / "postgres"))
        template_of_today(postgres)
        store = stack.enter_context(ceph.running((MAIN, OTHER, TENANT, ADMINISTRATOR)))
        suite = _Suite(options.checkout, options.python, directory, arguments)
        direct = suite.run("direct", store.endpoint, {})
        through: dict[str, str] = {}
        rounds = listed(Path(__file__).with_name("upstream_grants.txt"))
        for title, grants in ROUNDS.items():
            chosen = {test for test in direct if rounds.get(test, "main") == title}
            with fresh(postgres) as dsn, gateway(dsn, store, (MAIN, OTHER, TENANT), grants) as origin:
                environment = {"FENCING_TOKEN": "1", "CLEANING_ENDPOINT": store.endpoint}
                through |= suite.run(title, origin, environment, chosen)
    return tell(direct, through, Path(__file__).with_suffix(".txt"))


class _Suite:
    """The checkout, and how it is run."""

    def __init__(self, checkout: Path, python: str, directory: Path, arguments: Sequence[str]) -> None:
        self._checkout = checkout.resolve()
        self._python = python
        self._directory = directory
        self._arguments = arguments

    def run(
        self, name: str, endpoint: str, environment: Mapping[str, str], chosen: AbstractSet[str] | None = None
    ) -> dict[str, str]:
        """Return each test's failure, in short; empty if it passed. Skipped tests are left out.

        ``chosen``: the names of the tests to run; None for all.
        """
        if chosen is not None:
            if not chosen:
                return {}
            environment = {**environment, "CHOSEN_TESTS": " ".join(sorted(chosen))}
        configuration, results = self._directory / f"{name}.conf", self._directory / f"{name}.xml"
        configuration.write_text(_configuration(endpoint, name))
        command = [self._python, "-m", "pytest", "-q", "--no-header", "-p", "upstream_plugin", f"--junitxml={results}"]
        command += ["-m", f"not ({' or '.join(NOT_RUN.split())})", "--tb=line", "-W", "ignore"]
        command += [f"--deselect=s3tests/functional/test_s3.py::{one}" for one in DESELECTED]
        subprocess.run(
            [*command, *(self._arguments or ("s3tests/functional/test_s3.py", "s3tests/functional/test_headers.py"))],
            cwd=self._checkout,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parent),
                "S3TEST_CONF": str(configuration),
                "S3_USE_SIGV4": "1",
                "AWS_MAX_ATTEMPTS": "1",
                "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
                "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
                **environment,
            },
            timeout=_TIME_LIMIT,
            check=False,
        )
        return junit(results)


def _configuration(endpoint: str, prefix: str) -> str:
    address = urlsplit(endpoint)
    lines = ["[DEFAULT]", f"host = {address.hostname}", f"port = {address.port}", "is_secure = False"]
    lines += ["[fixtures]", f"bucket prefix = {prefix}-{{random}}-"]
    for section, user in SECTIONS.items():
        tenant, _, name = user.name.rpartition("$")
        lines += [
            f"[{section}]",
            f"display_name = {user.name}",
            f"user_id = {user.name}",
            f"email = {name}@example.com",
            f"access_key = {user.access_key_id}",
            f"secret_key = {user.secret_access_key}",
            "api_name = default",
            *([f"tenant = {tenant}"] if tenant else []),
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
