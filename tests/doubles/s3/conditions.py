"""AWS's rules for conditional writes, as pure functions, and the traits by which a weaker store differs.

The cases are those that LocalStack recorded against the real service on 2026-02-21 (TestS3ObjectWritePrecondition).
A rule that is documented or claimed but was never recorded has a mark beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import normpath
from typing import Literal
from unicodedata import normalize

from tests.doubles.s3.operations import Operation, S3Error


@dataclass(frozen=True, slots=True)
class Condition:
    """The two conditional headers of a write, as sent; None where the header is absent."""

    if_match: str | None = None
    if_none_match: str | None = None

    def __bool__(self) -> bool:
        return self.if_match is not None or self.if_none_match is not None


UNCONDITIONAL = Condition()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a condition refuses its write: the S3 error code and the header that is responsible."""

    code: str
    header: str


def refusal_of_write(
    condition: Condition, current: str | None, *, changed_since_initiation: bool = False
) -> Refusal | None:
    """Judge PutObject, CopyObject or CompleteMultipartUpload; None lets it pass.

    `current` is the bare ETag of the key's object at the moment of the commit, None where there is no object.
    `changed_since_initiation` is for a completion alone: the key changed after its CreateMultipartUpload. AWS refuses
    such a completion even where the ETag is the one that was asked for.
    """
    unsupported = _unsupported(condition)
    if unsupported is not None:
        return unsupported
    if condition.if_none_match is not None:
        return _refusal_of_creation(current, changed_since_initiation=changed_since_initiation)
    if condition.if_match is not None:
        return _refusal_of_replacement(condition.if_match, current, changed_since_initiation=changed_since_initiation)
    return None


def refusal_of_delete(condition: Condition, current: str | None) -> Refusal | None:
    """Judge DeleteObject; None lets it pass. `If-Match: *` asks for any object."""
    if condition.if_none_match is not None:
        return Refusal("NotImplemented", "If-None-Match")
    if condition.if_match is None:
        return None
    if current is None:
        # 404 for an absent key is claimed by a third party and was never recorded.
        return Refusal("NoSuchKey", "If-Match")
    if condition.if_match == "*" or bare(condition.if_match) == current:
        return None
    return Refusal("PreconditionFailed", "If-Match")


def bare(etag: str) -> str:
    """Strip the quotes of an ETag; AWS takes it with and without."""
    return etag.strip('"')


def _unsupported(condition: Condition) -> Refusal | None:
    if condition.if_match is not None and condition.if_none_match is not None:
        return Refusal("NotImplemented", "If-Match,If-None-Match")
    if condition.if_match == "*":
        return Refusal("NotImplemented", "If-Match")
    if condition.if_none_match not in (None, "*"):
        return Refusal("NotImplemented", "If-None-Match")
    return None


def _refusal_of_creation(current: str | None, *, changed_since_initiation: bool) -> Refusal | None:
    if current is not None:
        return Refusal("PreconditionFailed", "If-None-Match")
    if changed_since_initiation:
        # Recorded for a key that existed at the initiation; "created and deleted since" is taken to be the same.
        return Refusal("ConditionalRequestConflict", "If-None-Match")
    return None


def _refusal_of_replacement(expected: str, current: str | None, *, changed_since_initiation: bool) -> Refusal | None:
    if current is None:
        return Refusal("NoSuchKey", "If-Match")
    if bare(expected) != current:
        return Refusal("PreconditionFailed", "If-Match")
    if changed_since_initiation:
        return Refusal("ConditionalRequestConflict", "If-Match")
    return None


MINIMUM_PART_SIZE = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The store's lasting traits; change them with `S3Double.behave`.

    `ignored_conditions` and `refused_conditions` hold operation names ("PutObject"), header names ("If-Match"), both
    ("PutObject:If-Match") or "*" for all. `gaps` maps an operation name or "*" to the seconds between a condition's
    check and its write; 0 is one turn of the event loop. With a gap, conditions are not atomic.
    If `etags` are unique, those of objects encrypted with AES256 are not. AWS does the same in a bucket that
    encrypts with keys of KMS by default.
    `abort_delay` (seconds) is how long an aborted upload lives on. `versioned` holds for every bucket. Without
    `keeps_bodies`, the double only hashes and counts the bodies of objects and parts. `clock_offset` (seconds) moves
    the store's clock. `keys` says which keys are one. These are equal bytes, equal paths
    of a file, or names that differ only in the case of letters and the form of Unicode. `marker_uploads`
    are uploads of keys that end in a slash: MinIO refuses them, and they may become objects without the slash. At such
    keys `ignored_at_markers` are ignored, too.
    """

    ignored_conditions: frozenset[str] = field(default_factory=frozenset)
    refused_conditions: frozenset[str] = field(default_factory=frozenset)
    gaps: Mapping[str, float] = field(default_factory=dict)
    etags: Literal["content", "unique"] = "content"
    minimum_part_size: int = MINIMUM_PART_SIZE
    abort_delay: float = 0.0
    versioned: bool = False
    keeps_bodies: bool = True
    check_signatures: bool = True
    clock_offset: float = 0.0
    keys: Literal["bytes", "paths", "letters"] = "bytes"
    marker_uploads: Literal["kept", "refused", "renamed"] = "kept"
    ignored_at_markers: frozenset[str] = field(default_factory=frozenset)

    def key(self, sent: str | None) -> str | None:
        """The key an object has here, by the one in a request's path."""
        match self.keys:
            case "paths" if sent is not None:
                return normpath(f"/{sent}").lstrip("/") or None
            case "letters" if sent is not None:
                return normalize("NFC", sent.casefold())
            case _:
                return sent

    def effective(self, operation: Operation, condition: Condition, key: str | None) -> Condition:
        """Return the part of a condition that this store heeds. Raises NotImplemented if the store refuses it."""
        for header in _headers(condition):
            if _covers(self.refused_conditions, operation, header):
                raise S3Error("NotImplemented", Header=header)
        is_marker = key is not None and key.endswith("/")
        ignored = self.ignored_conditions | (self.ignored_at_markers if is_marker else frozenset())
        return Condition(
            None if _covers(ignored, operation, "If-Match") else condition.if_match,
            None if _covers(ignored, operation, "If-None-Match") else condition.if_none_match,
        )

    def gap(self, operation: Operation) -> float | None:
        """Seconds between check and write; None where both are one step."""
        return self.gaps.get(operation, self.gaps.get("*"))


def _covers(chosen: frozenset[str], operation: Operation, header: str) -> bool:
    return not chosen.isdisjoint({"*", operation.value, header, f"{operation}:{header}"})


def _headers(condition: Condition) -> list[str]:
    pairs = (("If-Match", condition.if_match), ("If-None-Match", condition.if_none_match))
    return [name for name, value in pairs if value is not None]
