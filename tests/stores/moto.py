"""moto, as the demo embeds it: one request at a time, everything in memory, any credentials."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.demo import embedded
from tests.stores.store import Store


@contextmanager
def running() -> Iterator[Store]:
    """Start the server on a free port; killed on exit, and all it holds is gone."""
    with embedded.s3() as server:
        yield Store("moto", server.endpoint())
