"""The check inside each write asks for all that matters, and for nothing a table has anyway."""

from dataclasses import replace

import pytest

from gateway.errors import SqlError
from gateway.tables.catalog.snapshot import Table, Trigger
from gateway.tables.sql.expressions import same_relation, tells_of_change, unchanged
from tests.tables.samples import ACCOUNTS, column, table

KNOWN = replace(ACCOUNTS, oid=1234, primary_key_index=1240, column_versions="{7,7,8}")
NAME = """'"public"."accounts"'"""
EACH_STATEMENT = Trigger("t", "after", each_row=False)
BEFORE_ROW = Trigger("t", "before", each_row=True)


@pytest.mark.parametrize(
    ("known", "arguments"),
    [
        (KNOWN, "'r', false, false, false, '{7,7,8}'::xid[], true, 1240, false, false"),
        (
            replace(KNOWN, primary_key_index=None),
            "'r', false, false, false, '{7,7,8}'::xid[], true, NULL, false, false",
        ),
        (
            replace(KNOWN, triggers=(EACH_STATEMENT,)),
            "'r', false, false, false, '{7,7,8}'::xid[], true, 1240, true, false",
        ),
        (replace(KNOWN, triggers=(BEFORE_ROW,)), "'r', false, false, false, '{7,7,8}'::xid[], true, 1240, false, true"),
        (replace(KNOWN, has_rules=True), "'r', true, false, false, '{7,7,8}'::xid[], true, 1240, true, true"),
        (replace(KNOWN, has_children=True), "'r', false, true, false, '{7,7,8}'::xid[], true, 1240, false, true"),
        (replace(KNOWN, row_security=True), "'r', false, false, true, '{7,7,8}'::xid[], true, 1240, false, false"),
        (
            replace(KNOWN, kind="v", has_rules=True, primary_key_index=None),
            "'v', true, false, false, '{7,7,8}'::xid[], false, NULL, true, true",
        ),
    ],
)
def test_what_is_asked_for(known: Table, arguments: str) -> None:
    checks = unchanged(known, None).split(" AND ")
    assert checks[0] == f"fencing.check_unchanged_v1(1234, {NAME}, {arguments}, false)"
    (managed, *_) = unchanged(replace(known, distributed=True), None).split(" AND ")
    assert managed == f"fencing.check_unchanged_v1(1234, {NAME}, {arguments}, true)"


def test_where_others_carry_out_its_writes_foreign_tables_are_asked_for() -> None:
    for known in (KNOWN, replace(KNOWN, triggers=(EACH_STATEMENT,))):
        assert "foreign" not in unchanged(known, None)
    for change in ({"kind": "p"}, {"kind": "v"}, {"has_children": True}, {"has_rules": True}):
        for reaches in (True, False):
            known = replace(KNOWN, reaches_foreign=reaches, **change)
            assert unchanged(known, None).endswith(f" AND fencing.check_foreign_v1(1234, {str(reaches).lower()})")


def test_reads_ask_for_the_relation_alone() -> None:
    assert same_relation(KNOWN) == f"fencing.check_relation_v1(1234, {NAME}, 'r', false)"
    assert same_relation(replace(KNOWN, row_security=True)).endswith("true)")


def test_hostile_names_stay_names() -> None:
    text = unchanged(table(column("id"), name="o'); DROP TABLE \"x"), None)
    assert """'"public"."o''); DROP TABLE ""x"', 'r'""" in text


@pytest.mark.parametrize(
    ("sqlstate", "message", "tells"),
    [
        ("42P01", "fencing.a_table_that_has_changed", True),
        ("42P01", 'relation "accounts" does not exist', False),
        ("P0001", "fencing.a_table_that_has_changed", False),
    ],
)
def test_what_tells_of_a_change(*, sqlstate: str, message: str, tells: bool) -> None:
    assert tells_of_change(SqlError(sqlstate, message)) is tells
