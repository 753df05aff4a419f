"""Each store once, with a gateway in front of it; each case with fresh buckets on both ways to it."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.conformance.observer import Target
from tests.conformance.running import CALLER, gateway
from tests.postgres import fresh
from tests.stores.conftest import KINDS
from tests.stores.store import Store, StoreMissing


@dataclass(frozen=True, slots=True)
class Ways:
    """The two ways to one store."""

    store: Store
    direct: Target
    through: Target


# moto is for trying out: it checks no signature, and fails where S3 refuses. Of versitygw it is enough to know what
# tests/stores finds out: it is a gateway itself.
COMPARED = ("ceph", "minio")


@pytest.fixture(scope="module", autouse=True)
def short_probe() -> None:
    """Keep the whole probe: these are the stores that it is for."""


# If tests run on several cores, one of them has all cases of a store: it is started once.
@pytest.fixture(scope="session", params=[pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in COMPARED])
def ways(request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres) -> Iterator[Ways]:
    with ExitStack() as stack:
        try:
            store = stack.enter_context(KINDS[request.param]())
        except StoreMissing as missing:
            pytest.skip(str(missing))
        origin = stack.enter_context(gateway(stack.enter_context(fresh(postgres_server)), store))
        yield Ways(store, Target(store.endpoint, store.owner), Target(origin, CALLER, "1"))
