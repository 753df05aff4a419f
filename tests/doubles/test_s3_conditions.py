"""The conditional rules are AWS's, case by case, with no server in between."""

from __future__ import annotations

import copy
from datetime import UTC, datetime

import pytest

from tests.doubles.s3 import (
    UNCONDITIONAL,
    Condition,
    Content,
    Origin,
    Refusal,
    S3Double,
    Store,
    refusal_of_delete,
    refusal_of_write,
)
from tests.doubles.s3.operations import S3Error

ORIGIN = Origin(datetime(2026, 1, 1, tzinfo=UTC))
E, OTHER = "e" * 32, "f" * 32


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "current", "changed", "expected"),
    [
        (None, None, None, False, None),
        (None, None, E, True, None),
        (None, "*", None, False, None),
        (None, "*", E, False, ("PreconditionFailed", "If-None-Match")),
        (None, "*", E, True, ("PreconditionFailed", "If-None-Match")),
        (None, "*", None, True, ("ConditionalRequestConflict", "If-None-Match")),
        (None, f'"{E}"', None, False, ("NotImplemented", "If-None-Match")),
        (f'"{E}"', None, E, False, None),
        (E, None, E, False, None),
        (f'"{E}"', None, OTHER, False, ("PreconditionFailed", "If-Match")),
        (f'"{E}"', None, OTHER, True, ("PreconditionFailed", "If-Match")),
        (f'"{E}"', None, None, False, ("NoSuchKey", "If-Match")),
        (f'"{E}"', None, None, True, ("NoSuchKey", "If-Match")),
        (f'"{E}"', None, E, True, ("ConditionalRequestConflict", "If-Match")),
        ("*", None, E, False, ("NotImplemented", "If-Match")),
        (f'"{E}"', "*", E, False, ("NotImplemented", "If-Match,If-None-Match")),
    ],
)
def test_a_write_is_judged_as_aws_judges_it(
    if_match: str | None,
    if_none_match: str | None,
    current: str | None,
    changed: bool,  # noqa: FBT001 - a column of the table
    expected: tuple[str, str] | None,
) -> None:
    verdict = refusal_of_write(Condition(if_match, if_none_match), current, changed_since_initiation=changed)
    assert verdict == (Refusal(*expected) if expected else None)


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "current", "expected"),
    [
        (None, None, None, None),
        (None, None, E, None),
        (f'"{E}"', None, E, None),
        ("*", None, E, None),
        (f'"{E}"', None, OTHER, ("PreconditionFailed", "If-Match")),
        (f'"{E}"', None, None, ("NoSuchKey", "If-Match")),
        ("*", None, None, ("NoSuchKey", "If-Match")),
        (None, "*", E, ("NotImplemented", "If-None-Match")),
    ],
)
def test_a_delete_is_judged_as_aws_judges_it(
    if_match: str | None, if_none_match: str | None, current: str | None, expected: tuple[str, str] | None
) -> None:
    assert refusal_of_delete(Condition(if_match, if_none_match), current) == (Refusal(*expected) if expected else None)


def test_the_store_works_without_http_and_can_be_copied() -> None:
    """A model drives it step by step and branches off copies."""
    store = Store()
    store.create_bucket("bucket", ORIGIN.now)
    first = store.put("bucket", "key", Content(b"x"), Condition(if_none_match="*"), ORIGIN)
    branch = copy.deepcopy(store)
    branch.put("bucket", "key", Content(b"y"), Condition(if_match=first.etag), ORIGIN)
    with pytest.raises(S3Error, match="PreconditionFailed"):
        branch.put("bucket", "key", Content(b"z"), Condition(if_match=first.etag), ORIGIN)
    assert store.get("bucket", "key").content.body == b"x"
    assert branch.get("bucket", "key").content.body == b"y"


def test_an_etag_comes_back_with_its_bytes_unless_etags_are_unique(double: S3Double) -> None:
    """The hazard that forbidden ETags are for must be there to be tested against."""
    assert double.put("bucket", "key", b"same").etag == double.put("bucket", "key", b"same").etag
    double.behave(etags="unique")
    assert double.put("bucket", "key", b"same").etag != double.put("bucket", "key", b"same").etag


def test_deleting_nothing_is_no_mutation(double: S3Double) -> None:
    double.store.delete("bucket", "absent", UNCONDITIONAL, ORIGIN)
    assert double.mutations == []
