"""Tables as the catalog would show them."""

from gateway.tables.catalog import Column, Table


def column(name: str, type_: str = "bigint", **more: object) -> Column:
    return Column(name, type_, type_, type_, **more)  # type: ignore[arg-type]  # the flags of a column are all booleans or texts


def table(*columns: Column, name: str = "accounts", key: tuple[str, ...] = ("id",), kind: str = "r") -> Table:
    return Table("public", name, kind, {one.name: one for one in columns}, key)


ACCOUNTS = table(
    column("id"),
    column("owner", "text"),
    column("balance", default="0"),
    column("note", "text"),
    column("extra", "jsonb", is_json=True),
)
