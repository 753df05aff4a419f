"""A gateway process with large bodies on their way through it: what is in its memory has a bound that they have not."""

from collections.abc import Iterator

import pytest

from bench import memory
from bench.measure import MEBIBYTE
from bench.services import Services

pytestmark = pytest.mark.thorough

LIMIT = 512
"""MiB: less than there are on their way each time."""


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with memory.front() as services:
        yield services


@pytest.mark.parametrize(
    ("size", "count"),
    [
        pytest.param(640 * MEBIBYTE, 1, id="one of 640 MiB"),
        pytest.param(20 * MEBIBYTE, 32, id="32 of 20 MiB at once"),
        pytest.param(7 * MEBIBYTE, 96, id="96 of 7 MiB at once, from memory"),
    ],
)
def test_memory_is_bounded(services: Services, size: int, count: int) -> None:
    assert memory.peak(services, size, count) < LIMIT
