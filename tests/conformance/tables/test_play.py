"""The rows would not be worth much if what is not as expected went unnoticed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.tables.asking import Answer, Asker, differences
from tests.conformance.tables.play import fencing_headers, play
from tests.conformance.tables.row import ROWS, Expected
from tests.conformance.tables.stage import Stage

pytestmark = pytest.mark.xdist_group("tables")

ANSWER = Answer(400, {"content-type": "application/json"}, '{"code": "X", "details": null, "rows": [{"a/b": 1}]}')
AS_IT_IS: Mapping[str, Any] = {"code": "X", "details": None, "rows": [{"a/b": 1}]}


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (Expected(400), []),
        (Expected(400, {"Content-Type": "application/json", "Location": None}), []),
        (Expected(400, json=AS_IT_IS, is_json=True), []),
        (Expected(400, has={"code": "X", "details": None, "/rows/0/a~1b": 1}), []),
        (Expected(204), ["status: 204 → 400 X"]),
        (Expected(400, {"Content-Type": None}), ["Content-Type: None → application/json"]),
        (Expected(400, {"Location": "/x"}), ["Location: /x → None"]),
        (Expected(400, json=None, is_json=True), [f"body: null → {ANSWER.body}"]),
        (Expected(400, text=""), [f"body: '' → {ANSWER.body!r}"]),
        (Expected(400, has={"code": "Y"}), ["code: 'Y' → 'X'"]),
        (Expected(400, has={"hint": None}), ["hint: None → \"nothing at 'hint'\""]),
    ],
)
def test_an_answer_that_is_not_as_expected(expected: Expected, found: list[str]) -> None:
    assert list(differences(expected, ANSWER)) == found


def test_what_is_not_changed_as_expected(stage: Stage, asker: Asker) -> None:
    row = ROWS["updates: one row: 204, no body, and how many"]
    headers = fencing_headers(row)
    assert play(row, stage, asker, headers) == []
    (unexpected,) = play(replace(row, after=None), stage, asker, headers)
    assert unexpected.startswith("cinema.films changed: ")
    wrong: dict[str, list[object]] = {"SELECT id FROM films WHERE year = 2000": []}
    assert play(replace(row, after=wrong), stage, asker, headers) == [f'{next(iter(wrong))}: [] → [{{"id": 1}}]']


def test_every_row_finds_the_tables_as_they_were(stage: Stage, asker: Asker) -> None:
    for name in ("deletes: several rows", "inserts: return=headers-only with a generated key") * 2:
        assert play(ROWS[name], stage, asker, fencing_headers(ROWS[name])) == []
