"""The tiers of the tests: tests/README.md says what they are."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(parameters: Iterable[Any], rest: pytest.MarkDecorator = pytest.mark.thorough) -> list[Any]:
    """Return these values as pytest's parameters. All but the first have the mark of the ``rest``."""
    head, *others = parameters
    return [head, *(pytest.param(value, marks=rest) for value in others)]
