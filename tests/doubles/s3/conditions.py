"""The conditional-write rules of AWS S3, as pure functions.

The cases are those that LocalStack recorded against the real service on 2026-02-21 (TestS3ObjectWritePrecondition).
A rule that is documented or claimed but was never recorded has a mark beside it.
"""

from __future__ import annotations

from dataclasses import dataclass


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
