"""Runs other tests on a node of a Citus cluster: ``python -m tests.citus worker tests/leases``."""

import os
import subprocess
import sys

from tests.citus.cluster import CitusMissing, a_cluster


def main() -> int:
    """Return the exit code of pytest. The first argument is the kind of the node, the others are those of pytest."""
    kind, *arguments = sys.argv[1:]
    try:
        with a_cluster() as cluster:
            node = {"coordinator": cluster.coordinator, "worker": cluster.workers[0]}[kind]
            command = [sys.executable, "-m", "pytest", *arguments]
            return subprocess.run(command, env={**os.environ, **cluster.suites(node)}, check=False).returncode
    except CitusMissing as missing:
        print(missing, file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
