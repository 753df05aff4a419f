"""Reads ``differences.txt``: where the gateway answers differently from PostgREST on purpose."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Difference:
    """How the first difference of a row begins, and why it may be there."""

    seen: str
    reason: str


def _read(text: str) -> Iterator[tuple[str, Difference]]:
    reason = ""
    for line in text.splitlines():
        if line.startswith("= "):
            reason = line.removeprefix("= ")
        elif line and not line.startswith("#"):
            row, seen = line.split(" | ")
            yield row, Difference(seen, reason)


_LISTED = list(_read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")))

DIFFERENCES: dict[str, Difference] = dict(_LISTED)
"""By row. One that turns out the same by now, or differs elsewhere, is an error: its reason is out of date."""

assert len(DIFFERENCES) == len(_LISTED), "a row is listed twice"
