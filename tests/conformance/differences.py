"""Reads ``differences.txt``: where the gateway answers differently on purpose."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Difference:
    """How the first difference of a case begins, and why it may be there."""

    seen: str
    reason: str


def _read(text: str) -> Iterator[tuple[tuple[str, str], Difference]]:
    reason = ""
    for line in text.splitlines():
        if line.startswith("= "):
            reason = line.removeprefix("= ")
        elif line and not line.startswith("#"):
            stores, case, seen = line.split(" | ")
            for store in stores.split():
                yield (store, case), Difference(seen, reason)


_LISTED = list(_read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")))

DIFFERENCES: dict[tuple[str, str], Difference] = dict(_LISTED)
"""By store and case. A case that turns out the same, or differs elsewhere, is an error: its reason is out of date."""

assert len(DIFFERENCES) == len(_LISTED), "a case is listed twice for one store"
