"""One gateway for all tests of a module; every test has orders of its own."""

import sys
from collections.abc import Iterator

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.frameworks.stage import Shop, Stage, module, staged


@pytest.fixture(scope="module")
def stage(postgres_server: EmbeddedPostgres) -> Iterator[Stage]:
    with staged(postgres_server) as one:
        yield one


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = Shop()
    monkeypatch.setitem(sys.modules, "shop", module("shop", print_label=made.print_label))
    yield made
    made.resume.set()
