"""The behaviour of a bucket with conditions, ETags and keys, and what follows for fenced writes to it.

A store that ignores a condition answers exactly like one that honours it, until it loses data. So nothing is taken on
trust: ``probe.py`` tries, and ``judgement.py`` judges the result.

To S3 a key is its bytes. A store that keeps objects as files may find one file under several keys. Then a fenced key
could be written under another name. The probe tries each kind of spelling. The gateway writes no key of a kind that the
bucket does not keep apart.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Probe(StrEnum):
    """The things that are tried on a bucket."""

    PUT_IF_NONE_MATCH = "put-if-none-match"
    PUT_IF_MATCH = "put-if-match"
    PUT_RACE_IF_NONE_MATCH = "put-race-if-none-match"
    PUT_RACE_IF_MATCH = "put-race-if-match"
    READ_BACK = "read-back"
    ETAG_OF_PUT = "etag-of-put"
    ETAG_OF_MULTIPART = "etag-of-multipart"
    COMPLETE_IF_NONE_MATCH = "complete-if-none-match"
    COMPLETE_IF_MATCH = "complete-if-match"
    COMPLETE_RACE = "complete-race"
    DELETE_IF_MATCH = "delete-if-match"
    DELETE_RACE = "delete-race"
    QUOTED_CONDITIONS = "quoted-conditions"
    KEYS_ODD_SEGMENTS = "keys-odd-segments"
    KEYS_TRAILING_SLASH = "keys-trailing-slash"
    KEYS_MARKER = "keys-marker"
    KEYS_CASE = "keys-case"
    KEYS_UNICODE = "keys-unicode"
    KEYS_WINDOWS = "keys-windows"


PUT_CONDITIONS = frozenset(
    {Probe.PUT_IF_NONE_MATCH, Probe.PUT_IF_MATCH, Probe.PUT_RACE_IF_NONE_MATCH, Probe.PUT_RACE_IF_MATCH}
)
COMPLETE_CONDITIONS = frozenset({Probe.COMPLETE_IF_NONE_MATCH, Probe.COMPLETE_IF_MATCH, Probe.COMPLETE_RACE})
DELETE_CONDITION = frozenset({Probe.DELETE_IF_MATCH, Probe.DELETE_RACE})
REQUIRED = PUT_CONDITIONS | {Probe.READ_BACK, Probe.ETAG_OF_PUT}

KEYS = {
    Probe.KEYS_ODD_SEGMENTS: "Keys with a slash in front, or with an empty, . or .. segment, are refused.",
    Probe.KEYS_TRAILING_SLASH: "Keys that end in a slash are refused.",
    Probe.KEYS_MARKER: "Keys that end in __XLDIR__, in whatever case, are refused.",
    Probe.KEYS_CASE: "Keys with capital letters, or with characters outside ASCII, are refused.",
    Probe.KEYS_UNICODE: "Keys with characters outside ASCII are refused.",
    Probe.KEYS_WINDOWS: "Keys with a backslash, or with a segment that ends in a dot or a space, are refused.",
}
"""Spellings that stores may take for one another, and what follows where they are not kept apart."""


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """One probe and its verdict. ``consequence`` says what follows where it failed; it is empty where it passed."""

    name: str
    passed: bool
    detail: str
    consequence: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of a bucket, as the probes in ``findings`` judge it."""

    put_conditions: bool
    """PutObject honours If-None-Match: * and If-Match, one by one and under concurrency."""
    complete_conditions: bool
    """CompleteMultipartUpload does. Otherwise a fenced write must not use it with a condition."""
    delete_condition: bool
    """DeleteObject honours If-Match."""
    reads_back: bool
    """HEAD shows the ETag and the metadata of the last write."""
    unique_etags: bool
    """The same bytes written twice have different ETags."""
    plain_etags_predicted: bool
    """The ETag of a PutObject is the MD5 of its bytes."""
    multipart_etags_predicted: bool
    """The ETag of an upload of one part is the MD5 of that part's MD5, and "-1"."""
    multipart_changes_etag: bool
    """The same bytes in one part have another ETag than in a PutObject."""
    quoted_conditions: bool = True
    """If-Match is understood in quotation marks, as RFC 9110 writes it. Otherwise without only."""
    confused: frozenset[Probe] = frozenset(KEYS)
    """Spellings of keys that were not seen to be kept apart: no key of these is written."""
    findings: tuple[ProbeFinding, ...] = ()

    @property
    def writable(self) -> bool:
        """Whether fenced writes are safe here: conditions hold, and no forbidden ETag comes back by surprise."""
        return self.put_conditions and self.reads_back and (self.unique_etags or self.plain_etags_predicted)

    @property
    def reason(self) -> str | None:
        """Why fenced writes are refused: the failing probe and what it saw. None where they are not."""
        if self.writable:
            return None
        failed = (finding for finding in self.findings if not finding.passed and finding.name in REQUIRED)
        return next((f"{finding.name}: {finding.detail}" for finding in failed), "the bucket failed its probe")

    @property
    def conditional_delete(self) -> bool:
        """Whether a delete may be a DeleteObject with If-Match; otherwise it is a tombstone."""
        return self.delete_condition

    def without(self, distrusted: Collection[str]) -> "Profile":
        """Return the profile without the conditions that an operator does not rely on: ``complete``, ``delete``."""
        return replace(
            self,
            complete_conditions=self.complete_conditions and "complete" not in distrusted,
            delete_condition=self.delete_condition and "delete" not in distrusted,
        )

    @property
    def can_bump(self) -> bool:
        """Whether the same bytes can be rewritten, conditionally, in another form that has another ETag."""
        other_form = self.unique_etags or (self.multipart_changes_etag and self.multipart_etags_predicted)
        return self.complete_conditions and other_form


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
    """Return whether a key has characters of two cases. Outside ASCII, no two file systems agree on the counterpart."""
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
    """Return the first kind of spelling of the key that its bucket does not keep apart; None where there is none."""
    return next((kind for kind, spelling in SPELLINGS.items() if kind in confused and spelling.includes(key)), None)
