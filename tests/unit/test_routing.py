"""Each route of the API is for one database: by its resource, by its body or by name. Few are for the whole gateway."""

from gateway.api.authorisation import RULES
from gateway.routing import BODIES, NAMED, resource_of

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
