"""Reads the named queries of a ``.sql`` file: ``-- name: read`` opens one; the comment below says what it is for."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(module: str) -> dict[str, str]:
    """The queries of ``gateway/db/{module}.sql`` by name."""
    pieces = _NAME.split(files("gateway.db").joinpath(f"{module}.sql").read_text())
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
