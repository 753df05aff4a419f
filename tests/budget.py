"""An end in time for a run of tests, as ``.ci/run`` needs it on a slow machine.

``TESTS_UNTIL`` is the time, in seconds since 1970, after which no test starts any more. Each one left out is skipped
with a reason, and so it is counted in the summary. ``TESTS_ORDER``, such as a commit, mixes the files. Other files are
left out for another commit.
"""

import hashlib
import os
import time

import pytest

UNTIL = float(os.environ.get("TESTS_UNTIL", "inf"))
ORDER = os.environ.get("TESTS_ORDER", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ORDER:
        # Tests of one file stay together, in their order.
        items.sort(key=lambda item: hashlib.sha256(f"{ORDER} {item.location[0]}".encode()).digest())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > UNTIL:
        pytest.skip("left out: the time for these tests is over")
