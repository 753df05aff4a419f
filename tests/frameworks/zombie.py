"""The client of a machine that was stopped, with its clock: it holds its lock for ever, as far as it knows.

The snippets of docs/frameworks.md are run with it and with the real one.
"""

from typing import Any

from gateway.client import Lock, blocking, client
from tests.client.counter import Asleep

TTL = 0.3
"""Seconds until another one takes over."""


def stopped() -> float:
    return 0.0


class AsyncFencedClient(client.FencedClient):
    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings, holder="zombie", clock=stopped)

    def lock(self, resource: str, **terms: Any) -> Lock:
        return super().lock(resource, **{**terms, "source": Asleep(self._leases), "ttl": TTL})


class FencedClient(blocking.FencedClient):
    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings, holder="zombie", clock=stopped)

    def lock(self, resource: str, **terms: Any) -> blocking.Lock:
        return super().lock(resource, **{**terms, "source": Asleep(self._client._leases), "ttl": TTL})
