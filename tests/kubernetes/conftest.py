"""One API server for the whole session: it takes seconds to start."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kubernetes.cluster import Cluster, definitions
from tests.sources.conftest import started
from tests.sources.go_servers import KubernetesServer, program
from tests.sources.servers import ServerMissing


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark what needs programs that are no Python packages, which is all of it."""
    item.add_marker(pytest.mark.installed)


@pytest.fixture(scope="session", autouse=True)
def _programs() -> None:
    try:
        program("helm")
    except ServerMissing as missing:
        pytest.skip(f"{missing} make kubernetes-tools")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="kubernetes") as name, ExitStack() as stack:
        directory = Path(name)
        for needed in ("kubectl", "kube-apiserver"):
            try:
                program(needed)
            except ServerMissing as missing:
                pytest.skip(f"{missing} make kubernetes-tools")
        server = started(lambda: KubernetesServer(directory), stack)
        assert isinstance(server, KubernetesServer)
        made = Cluster(server, directory)
        stack.callback(made.api.close)
        done = made.kubectl("apply", "--server-side", "-f", "-", text=definitions())
        assert done.returncode == 0, done.stderr
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may enter, for what pods have."""
    with tempfile.TemporaryDirectory(prefix="node") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
