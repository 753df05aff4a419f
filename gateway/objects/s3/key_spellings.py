"""Spellings of keys that a store may take for one another, and the keys that cannot be meant: those in plain spelling.

To S3 a key is its bytes. A store that keeps objects as files may find one file under several keys, so that what is
fenced as the one could be written as the other. ``probe.py`` tries each kind; where one is not kept apart, no key of
that kind is written.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gateway.objects.s3.bucket_profile import Probe

_MARKER = "__XLDIR__"


@dataclass(frozen=True, slots=True)
class Spelling:
    """One kind of spelling. ``plain`` and ``others`` are keys to try it with, ``{}`` the folder they are in.

    ``includes`` says of a key whether it is of this kind. It errs on the side of yes.
    """

    includes: Callable[[str], bool]
    plain: str
    others: tuple[str, ...]


def _odd_segments(key: str) -> bool:
    segments = key.removesuffix("/").split("/")
    return any(segment in ("", ".", "..") for segment in segments)


def _ends_with_slash(key: str) -> bool:
    return key.endswith("/")


def _names_a_marker(key: str) -> bool:
    return key.upper().endswith(_MARKER)


def _has_case(key: str) -> bool:
    """What has a counterpart in the other case, outside ASCII, no two file systems agree on."""
    return not key.isascii() or key != key.lower()


def _is_not_ascii(key: str) -> bool:
    return not key.isascii()


def _odd_on_windows(key: str) -> bool:
    return "\\" in key or any(segment.endswith((".", " ")) for segment in key.split("/"))


SPELLINGS: Mapping[Probe, Spelling] = {
    Probe.KEYS_ODD_SEGMENTS: Spelling(_odd_segments, "{}a/key", ("/{}a/key", "{}a//key", "{}a/./key", "{}a/b/../key")),
    Probe.KEYS_TRAILING_SLASH: Spelling(_ends_with_slash, "{}a/key", ("{}a/key/",)),
    # MinIO keeps the object d/ in a directory of this name.
    Probe.KEYS_MARKER: Spelling(_names_a_marker, f"{{}}b/key{_MARKER}", ("{}b/key/",)),
    Probe.KEYS_CASE: Spelling(_has_case, "{}a/key", ("{}a/KEY",)),
    Probe.KEYS_UNICODE: Spelling(_is_not_ascii, "{}a/\u00e9", ("{}a/e\u0301",)),
    Probe.KEYS_WINDOWS: Spelling(_odd_on_windows, "{}a/key", ("{}a\\key", "{}a/key.", "{}a/key ")),
}


def mistakable(key: str, confused: Collection[Probe]) -> Probe | None:
    """The first of the kinds that a bucket does not keep apart which the key is of; None where it is of none."""
    return next((kind for kind, spelling in SPELLINGS.items() if kind in confused and spelling.includes(key)), None)
