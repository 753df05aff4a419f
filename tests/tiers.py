"""The tiers of the tests: tests/README.md says what they are."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(parameters: Iterable[Any]) -> list[Any]:
    """Return these values as pytest's parameters, all but the first of them marked as thorough."""
    head, *rest = parameters
    return [head, *(pytest.param(value, marks=pytest.mark.thorough) for value in rest)]
