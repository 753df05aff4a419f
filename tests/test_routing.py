"""Each route of the API is for one database: by its resource, by its body or by name. Few are for the whole gateway."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.api.authorisation import RULES
from gateway.errors import BodyTooLarge
from gateway.fencing.ownership import Domain, Ownership
from gateway.http.body import BodyReader, Memory
from gateway.routing import BODIES, NAMED, Routing, first_working, resource_of

OF_THE_WHOLE_GATEWAY = {
    *("/v1/config", "/v1/config/reload", "/v1/metrics", "/metrics", "/v1/openapi.json", "/v1/docs"),
    *("/v1/health", "/healthz", "/v1/live", "/livez", "/v1/ready", "/readyz"),
}


def test_each_route_finds_its_database() -> None:
    for method, path in RULES:
        sent = path.replace("{resource:path}", "tenant-7/barrier/x").replace("{lease}", "some-id")
        resource = "tenant-7/barrier/x" if "{resource" in path else None
        assert resource_of(method, sent) == resource, (method, path)
        found = [resource is not None, (method, path) in BODIES, path in OF_THE_WHOLE_GATEWAY]
        if not any(found):
            found.append(NAMED.fullmatch(sent) is not None)
        assert sum(found) == 1, (method, path)


@pytest.mark.parametrize("path", ["/v1/transaction", "/v1/leases", "/v1/credentials"])
def test_a_body_with_too_many_values_is_not_parsed_to_find_its_database(path: str) -> None:
    """A value of two bytes takes a hundred in memory."""
    north: Any = SimpleNamespace(name="north")
    rules = Ownership([Domain("north", ("public",), default=True)])
    routing = Routing({"north": north}, rules, BodyReader(Memory(0)), largest=0, everywhere=north)
    with pytest.raises(BodyTooLarge):
        routing.owners(path, b'{"leases": [' + b"{}," * 300_000 + b"{}]}")
    assert routing.owners(path, b'{"leases": [{}]}').names == ["north"]


async def test_one_database_that_works_is_enough_for_readiness_at_once() -> None:
    """A load balancer waits a second or less, and would take the gateway out because of a database that is paused."""

    async def told(state: str) -> str:
        return state

    async def paused() -> str:
        await asyncio.sleep(0.5)
        return "ok"

    found = await first_working(60, [{"postgres.south": paused()}, {"postgres.north": told("ok")}])
    assert found == {"postgres.north": "ok"}
    found = await first_working(60, [{"postgres.south": told("closed")}, {"postgres.north": told("unreachable")}])
    assert found == {"postgres.south": "closed", "postgres.north": "unreachable"}
    found = await first_working(0.01, [{"postgres.south": paused()}, {"postgres.north": told("closed")}])
    assert found == {"postgres.south": "unreachable", "postgres.north": "closed"}
