"""Which object a path is for."""

import pytest

from gateway.errors import DialectError
from gateway.tables.dialect.request import Target, name_of, target

PREFIXES = ("/v1/tables/", "/rest/v1/")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/tables/users", ("table", "users")),
        ("/rest/v1/users/", ("table", "users")),
        ("/v1/tables/", ("root", "")),
        ("/v1/tables/rpc", ("table", "rpc")),
        ("/v1/tables/rpc/", ("table", "rpc")),
        ("/v1/tables/rpc/add", ("function", "add")),
        ("/rest/v1/rpc/rpc", ("function", "rpc")),
    ],
)
def test_paths(path: str, expected: tuple[str, str]) -> None:
    assert name_of(path, PREFIXES) == expected


@pytest.mark.parametrize(
    "path", ["/v1/tables/a/b", "/v1/tables/rpc/a/b", "/v1/tables/rpc//", "/v1/tables//", "/v1/tables/\0", "/elsewhere"]
)
def test_other_paths(path: str) -> None:
    with pytest.raises(DialectError) as caught:
        name_of(path, PREFIXES)
    assert (caught.value.code, caught.value.status) == ("PGRST125", 404)


def test_schemas() -> None:
    assert target("t", None, ("api",)) == Target("api", "t", shown_schema=False)
    assert target("t", None, ("api", "more")) == Target("api", "t", shown_schema=True)
    assert target("t", "more", ("api", "more")) == Target("more", "t", shown_schema=True)
    with pytest.raises(DialectError) as caught:
        target("t", "other", ("api", "more"))
    assert (caught.value.code, caught.value.status, caught.value.message) == ("PGRST106", 406, "Invalid schema: other")
    assert caught.value.hint == "Only the following schemas are exposed: api, more"
