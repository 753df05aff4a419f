"""Real stores: each started once, where it is installed."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.stores.kinds import KINDS
from tests.stores.store import Store, StoreMissing


@pytest.fixture(scope="session", params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Every kind of store in turn."""
    yield from _running(request.param)


@pytest.fixture(scope="session")
def ceph() -> Iterator[Store]:
    """Ceph's RADOS Gateway, for tests that are about it alone."""
    yield from _running("ceph")


def _running(kind: str) -> Iterator[Store]:
    with ExitStack() as stack:
        try:
            started = stack.enter_context(KINDS[kind]())
        except StoreMissing as missing:
            pytest.skip(str(missing))
        yield started
