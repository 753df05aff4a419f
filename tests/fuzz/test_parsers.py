"""Parsers hold what they must with the inputs that fuzzing has found. ``--parsers`` looks for more."""

import re
import time
from collections.abc import Callable

import pytest

from gateway.errors import GatewayError
from tests.fuzz.corpus import entries
from tests.fuzz.parsers import LARGEST, LONGEST, TARGETS, Broken, Target, amplified, check


@pytest.mark.parametrize("name", TARGETS)
def test_each_input_is_read_or_refused_within_its_limits(name: str) -> None:
    target = TARGETS[name]
    for data in (*target.seeds, *entries(name)):
        # The seeds of the configuration are enough: to trace the memory of its parser takes seconds.
        check(target, data, memory=name != "configuration" or data in target.seeds)


@pytest.mark.parametrize("name", TARGETS)
def test_time_and_memory_grow_no_faster_than_the_input(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds:
        for data in amplified(seed, target.largest):
            check(target, data)


def raising(data: bytes) -> None:
    raise KeyError(data)


def failing(data: bytes) -> None:
    raise GatewayError(str(data))


def slow(_: bytes) -> None:
    end = time.thread_time() + 1.2 * LONGEST
    while time.thread_time() < end:
        pass


def hungry(data: bytes) -> list[bytes]:
    return [data[:20] + bytes([each]) for each in data]


@pytest.mark.parametrize(
    ("parse", "told"),
    [
        (raising, "KeyError"),
        (failing, "an error of the gateway"),
        (slow, r"65536 bytes take 0\.\d+ s"),
        (hungry, "times as much"),
    ],
)
def test_a_parser_that_breaks_a_property_is_found(parse: Callable[[bytes], object], told: str) -> None:
    with pytest.raises((Broken, KeyError)) as caught:
        check(Target(parse, ()), b"a" * LARGEST)
    assert re.search(told, repr(caught.value))
