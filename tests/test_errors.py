"""Every error has a code of its own, a status, and advice; retrying is suggested only where it can help."""

from collections.abc import Iterator

from gateway import errors
from gateway.errors import DialectError, FenceRefusal, GatewayError, StoreError


def tree(kind: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    for child in kind.__subclasses__():
        yield child
        yield from tree(child)


NAMED = [kind for kind in tree() if kind not in (DialectError, StoreError, FenceRefusal)]


def test_no_code_means_two_things() -> None:
    codes = [kind.code for kind in NAMED]
    assert len(set(codes)) == len(codes)


def test_the_docstring_shows_the_tree() -> None:
    assert errors.__doc__ is not None
    for kind in tree():
        assert kind.__name__ in errors.__doc__
    for kind in NAMED:
        line = next(line for line in errors.__doc__.splitlines() if kind.__name__ in line)
        assert kind.code in line or kind is errors.ConfigurationError


def test_only_passing_troubles_are_worth_a_retry() -> None:
    assert {kind.code for kind in tree() if kind.retry_after is not None} == {
        "unavailable",
        "database-closed",
        "outcome-unknown",
        "too-many-readers",
    }
