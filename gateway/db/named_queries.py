"""Load the named queries of a ``.sql`` file: ``-- name: read`` opens one; the comment below it says what it does."""

import re
from pathlib import Path

FOLDER = Path(__file__).with_name("queries")

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(subject: str) -> dict[str, str]:
    """Return the queries of ``gateway/db/queries/{subject}.sql`` by name."""
    pieces = _NAME.split((FOLDER / f"{subject}.sql").read_text())
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
