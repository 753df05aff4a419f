"""Real stores: each started once, where it is installed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.stores import ceph, minio, moto, versitygw
from tests.stores.store import Store, StoreMissing

KINDS: dict[str, Callable[[], AbstractContextManager[Store]]] = {
    "moto": moto.running,
    "ceph": ceph.running,
    "minio": minio.running,
    "versitygw": versitygw.running,
}


# If tests run on several cores, one of them has a store to itself: it is started once, and its races are its own.
EACH = [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS]


@pytest.fixture(scope="module", autouse=True)
def short_probe() -> None:
    """Keep the whole probe: these are the stores that it is for."""


@pytest.fixture(scope="session", params=EACH)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Every kind of store in turn."""
    with ExitStack() as stack:
        try:
            started = stack.enter_context(KINDS[request.param]())
        except StoreMissing as missing:
            pytest.skip(str(missing))
        yield started
