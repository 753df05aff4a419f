"""Libraries that not everybody has installed: the error on their use names the extra that brings them."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.client.errors import MissingExtra


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the import of a library, where it is used. Raises ``MissingExtra`` where it is not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(extra) from error
