"""Reads a ``differences.txt``: where the gateway answers differently on purpose."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Difference:
    """How the first difference of a case begins, and why it may be there."""

    seen: str
    reason: str


def differences_beside(module: str) -> dict[tuple[str, str], Difference]:
    """Return the listed differences by store and case; without a store if the file has no column for them.

    A case that turns out the same, or differs elsewhere, is an error: its reason is out of date.
    """
    listed = list(_read(Path(module).with_name("differences.txt").read_text(encoding="utf-8")))
    assert len(dict(listed)) == len(listed), "a case is listed twice"
    return dict(listed)


def _read(text: str) -> Iterator[tuple[tuple[str, str], Difference]]:
    reason = ""
    for line in text.splitlines():
        if line.startswith("= "):
            reason = line.removeprefix("= ")
        elif line and not line.startswith("#"):
            *stores, case, seen = line.split(" | ")
            for store in " ".join(stores).split() or [""]:
                yield (store, case), Difference(seen, reason)
