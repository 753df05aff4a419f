"""Two ways to one store: straight, and through the gateway."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.demo import embedded
from tests.conformance.running import gateway
from tests.postgres import fresh, template_of_today
from tests.running import GRANTS
from tests.stores import minio
from tests.stores.store import OWNER


@contextmanager
def two_ways(mode: str) -> Iterator[tuple[str, str]]:
    """Run MinIO and a gateway in front of it; the address of each. Raises ``StoreMissing``."""
    with tempfile.TemporaryDirectory(prefix="suite") as directory, ExitStack() as stack:
        store = stack.enter_context(minio.running())
        postgres = stack.enter_context(embedded.postgres(Path(directory)))
        template_of_today(postgres)
        dsn = stack.enter_context(fresh(postgres))
        yield store.endpoint, stack.enter_context(gateway(dsn, store, (OWNER,), GRANTS, mode))
