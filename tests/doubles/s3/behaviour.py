"""The kind of store that the double is: AWS by default, or one of the weaker ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import normpath
from typing import Literal
from unicodedata import normalize

from tests.doubles.s3.conditions import Condition
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.operations import Operation

MINIMUM_PART_SIZE = 5 * 1024 * 1024
SIGNATURE_LIFETIME = 900.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The store's lasting traits; change them with `S3Double.behave`.

    `ignored_conditions` and `refused_conditions` hold operation names ("PutObject"), header names ("If-Match"), both
    ("PutObject:If-Match") or "*" for all. `gaps` maps an operation name or "*" to the seconds between a condition's
    check and its write; 0 is one turn of the event loop. With a gap, conditions are not atomic.
    If `etags` are unique, those of objects encrypted with AES256 are not. AWS does the same in a bucket that
    encrypts with keys of KMS by default.
    `abort_delay` (seconds) and `lingering_uploads` (times that ListMultipartUploads shows it) are how long an aborted
    upload lives on. `versioned` holds for every bucket that PutBucketVersioning has not changed. Without
    `keeps_bodies`, the double only hashes and counts the bodies of objects and parts. `clock_offset` (seconds) moves
    the store's clock. `keys` says which keys are one. These are equal bytes, equal paths
    of a file, or names that differ only in the case of letters and the form of Unicode.
    """

    ignored_conditions: frozenset[str] = field(default_factory=frozenset)
    refused_conditions: frozenset[str] = field(default_factory=frozenset)
    gaps: Mapping[str, float] = field(default_factory=dict)
    etags: Literal["content", "unique"] = "content"
    guard_initiation: bool = True
    minimum_part_size: int = MINIMUM_PART_SIZE
    abort_delay: float = 0.0
    lingering_uploads: int = 0
    versioned: bool = False
    keeps_bodies: bool = True
    check_signatures: bool = True
    signature_lifetime: float = SIGNATURE_LIFETIME
    clock_offset: float = 0.0
    keys: Literal["bytes", "paths", "letters"] = "bytes"

    def key(self, sent: str | None) -> str | None:
        """The key an object has here, by the one in a request's path."""
        match self.keys:
            case "paths" if sent is not None:
                return normpath(f"/{sent}").lstrip("/") or None
            case "letters" if sent is not None:
                return normalize("NFC", sent.casefold())
            case _:
                return sent

    def effective(self, operation: Operation, condition: Condition) -> Condition:
        """Return the part of a condition that this store heeds. Raises NotImplemented if the store refuses it."""
        for header in _headers(condition):
            if _covers(self.refused_conditions, operation, header):
                raise S3Error("NotImplemented", Header=header)
        return Condition(
            None if _covers(self.ignored_conditions, operation, "If-Match") else condition.if_match,
            None if _covers(self.ignored_conditions, operation, "If-None-Match") else condition.if_none_match,
        )

    def gap(self, operation: Operation) -> float | None:
        """Seconds between check and write; None where both are one step."""
        return self.gaps.get(operation, self.gaps.get("*"))


def _covers(chosen: frozenset[str], operation: Operation, header: str) -> bool:
    return not chosen.isdisjoint({"*", operation.value, header, f"{operation}:{header}"})


def _headers(condition: Condition) -> list[str]:
    pairs = (("If-Match", condition.if_match), ("If-None-Match", condition.if_none_match))
    return [name for name, value in pairs if value is not None]
