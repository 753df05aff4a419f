"""Cases: small functions of an ``Observer``. Their observations must not depend on a gateway in between."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from tests.conformance.observer import Observer

Case: TypeAlias = Callable[[Observer], None]

CASES: dict[str, Case] = {}
"""By name: ``module/function``, with ``[row]`` where the function has a table."""


def case(function: Case) -> Case:
    """A case of its own."""
    _register(function, function.__name__, function)
    return function


def each(table: Mapping[str, Any]) -> Callable[[Callable[[Observer, Any], None]], Callable[[Observer, Any], None]]:
    """A case for each row, which is the function's second argument."""

    def register(function: Callable[[Observer, Any], None]) -> Callable[[Observer, Any], None]:
        for row, value in table.items():
            _register(function, f"{function.__name__}[{row}]", partial(_apply, function, value))
        return function

    return register


def _apply(function: Callable[[Observer, Any], None], value: Any, s3: Observer) -> None:
    function(s3, value)


def _register(function: Callable[..., None], name: str, one: Case) -> None:
    full = f"{function.__module__.rpartition('.')[2]}/{name}"
    assert full not in CASES, full
    CASES[full] = one
