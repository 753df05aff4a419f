"""Runs other tests on a server with Citus: ``python -m tests.citus tests/integration/locks tests/crash``."""

import os
import subprocess
import sys

from tests.citus.cluster import CitusMissing, a_cluster


def main() -> int:
    """Return the exit code of pytest, with the arguments of the command line."""
    try:
        with a_cluster() as cluster:
            command = [sys.executable, "-m", "pytest", *sys.argv[1:]]
            return subprocess.run(command, env={**os.environ, **cluster.coordinator.suites()}, check=False).returncode
    except CitusMissing as missing:
        print(missing, file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
