"""Behind the gateway a store behaves as it does without: every case, both ways, the same answers."""

from pathlib import Path
from uuid import uuid4

import pytest

from tests.conformance.cases import addresses, buckets, multipart, objects
from tests.conformance.conftest import COMPARED, Ways
from tests.conformance.differences import differences_beside, listed
from tests.conformance.observer import CASES, Case, Observer, Step, Target, compare

DIFFERENCES = differences_beside(__file__)
MODULES = (addresses, buckets, multipart, objects)
"""Importing them puts their cases on the list."""


@pytest.mark.parametrize("name", CASES)
def test_a_store_is_the_same_through_the_gateway(ways: Ways, name: str) -> None:
    direct, through = (_observe(CASES[name], ways, target) for target in (ways.direct, ways.through))
    differences = compare(direct, through)
    listed = DIFFERENCES.get((ways.store.name, name))
    if listed is None:
        assert not differences, "\n" + "\n".join(differences)
    else:
        assert differences, f"the same by now, so it is listed for no reason: {listed.reason}"
        assert differences[0].startswith(listed.seen), "\n".join([f"not what is listed: {listed.seen}", *differences])


def _observe(case: Case, ways: Ways, target: Target) -> list[Step]:
    """Return a case's observations at one target. The store itself makes its buckets: most cases are not about that."""
    fresh = uuid4().hex[:12]
    names = {name: f"{name}-{fresh}" for name in ("bucket", "other", "new")}
    owner = ways.direct.client
    for name in ("bucket", "other"):
        owner.create_bucket(Bucket=names[name])
    observer = Observer(target, names)
    case(observer)
    return observer.steps


def test_each_difference_is_about_a_case_and_has_its_reason() -> None:
    assert {case for _, case in DIFFERENCES} <= set(CASES)
    assert {store for store, _ in DIFFERENCES} <= set(COMPARED)
    assert all(difference.seen and difference.reason for difference in DIFFERENCES.values())


def test_each_reason_of_a_foreign_suite_stands_in_the_documentation() -> None:
    here = Path(__file__).parent
    for suite in (here / "versity.txt", *(here / "suites").glob("*.txt")):
        for reason in set(listed(suite).values()):
            _, page, sentence = reason.split(" | ")
            words = " ".join((here.parents[1] / "docs" / page).read_text(encoding="utf-8").split())
            assert sentence in words, sentence
