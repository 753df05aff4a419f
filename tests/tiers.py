"""The tiers of the tests: tests/README.md says what they are."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

# The files, and folders of files, with tests that need an installed program. `make installed` collects no others: to
# collect all tests takes a minute of two slow cores.
INSTALLED = tuple(
    ROOT / "tests" / path
    for path in (
        "auth/test_web_identity.py",
        "citus",
        "client/test_programs.py",
        "clients",
        "containers",
        "crash/test_linearizability.py",
        "db/test_failover.py",
        "db/test_poolers.py",
        "deploy/test_systemd_unit.py",
        "frameworks",
        "guard",
        "guides",
        "kubernetes",
        "model/test_linearizability.py",
        "observe",
        "sources",
        "web",
    )
)


def first(parameters: Iterable[Any]) -> list[Any]:
    """Return these values as pytest's parameters, all but the first of them marked as thorough."""
    head, *rest = parameters
    return [head, *(pytest.param(value, marks=pytest.mark.thorough) for value in rest)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without tests of installed programs where only such tests are asked for."""
    asked = config.option.markexpr
    only = asked == "installed" or asked.startswith("installed and ")
    return True if only and collection_path.suffix == ".py" and not _has_installed(collection_path) else None


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("installed") and not _has_installed(item.path):
        raise ValueError(f"{item.nodeid} is marked as installed: add its file to INSTALLED in tests/tiers.py.")


def _has_installed(path: Path) -> bool:
    return any(path.is_relative_to(known) for known in INSTALLED)
