"""Which object of which schema a request is for: from its path and the profile it names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gateway.errors import DialectError

Kind: TypeAlias = Literal["table", "function", "root"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is for, as the client names it. ``shown_schema``: the answer names the schema it is in."""

    schema: str
    name: str
    shown_schema: bool


def name_of(path: str, prefixes: Sequence[str]) -> tuple[Kind, str]:
    """What a path is for: a table or a function, and its name; or all there is. Raises PGRST125 for any other path."""
    for prefix in prefixes:
        if path.startswith(prefix):
            rest = path[len(prefix) :]
            if not rest:
                return "root", ""
            rest = rest.removesuffix("/")
            kind: Kind = "function" if rest.startswith("rpc/") else "table"
            name = rest.removeprefix("rpc/")
            if name and "/" not in name and "\0" not in name:
                return kind, name
    raise DialectError("PGRST125", 404, "Invalid path specified in request URL")


def target(name: str, profile: str | None, schemas: Sequence[str]) -> Target:
    """``profile`` None: the first of the exposed ``schemas``. Raises PGRST106 for a schema that is not exposed."""
    if profile is None:
        return Target(schemas[0], name, len(schemas) > 1)
    if profile not in schemas:
        raise DialectError(
            "PGRST106",
            406,
            f"Invalid schema: {profile[:100]}",
            hint=f"Only the following schemas are exposed: {', '.join(schemas)}",
        )
    return Target(profile, name, shown_schema=True)
