"""The check inside each write asks for all that matters, and for nothing a table has anyway."""

from dataclasses import replace

import pytest

from gateway.errors import SqlError
from gateway.tables.catalog import Table, Trigger
from gateway.tables.unchanged import same_relation, tells_of_change, unchanged
from tests.unit.tables.samples import ACCOUNTS, column, table

KNOWN = replace(ACCOUNTS, oid=1234, primary_key_index=1240, column_versions="{7,7,8}")
ALWAYS = ["c.oid = 1234", '\'"public"."accounts"\'::regclass', "c.relkind = 'r'", "'{7,7,8}'::xid[]"]
EACH_STATEMENT = Trigger("t", "after", each_row=False)
BEFORE_ROW = Trigger("t", "before", each_row=True)


@pytest.mark.parametrize(
    ("known", "asked", "not_asked"),
    [
        (KNOWN, ["NOT c.relhasrules", "NOT c.relhassubclass", "NOT c.relrowsecurity", "(1240, "], ["NOT EXISTS"]),
        (KNOWN, ["g.tgtype & 1 = 0", "g.tgtype & 66 <> 0"], []),
        (replace(KNOWN, primary_key_index=None), ["i.indisprimary"], ["pg_index_has_property"]),
        (replace(KNOWN, triggers=(EACH_STATEMENT,)), ["g.tgtype & 66 <> 0"], ["g.tgtype & 1 = 0"]),
        (replace(KNOWN, triggers=(BEFORE_ROW,)), ["g.tgtype & 1 = 0"], ["g.tgtype & 66 <> 0"]),
        (replace(KNOWN, triggers=(BEFORE_ROW, EACH_STATEMENT)), [], ["pg_trigger"]),
        (replace(KNOWN, has_rules=True), [], ["relhasrules", "pg_trigger"]),
        (replace(KNOWN, has_children=True), [], ["relhassubclass"]),
        (replace(KNOWN, row_security=True), [], ["relrowsecurity"]),
    ],
)
def test_what_is_asked_for(known: Table, asked: list[str], not_asked: list[str]) -> None:
    text = unchanged(known)
    assert not [one for one in (*ALWAYS, *asked) if one not in text]
    assert not [one for one in not_asked if one in text]


def test_views_have_neither_keys_nor_triggers_of_their_own() -> None:
    text = unchanged(replace(KNOWN, kind="v", has_rules=True, primary_key_index=None))
    assert not [one for one in ("pg_index", "pg_trigger", "relhasrules") if one in text]
    assert "c.relkind = 'v'" in text


def test_reads_ask_for_the_relation_alone() -> None:
    text = same_relation(KNOWN)
    assert not [one for one in ALWAYS[:3] if one not in text]
    assert not [one for one in ("pg_attribute", "pg_trigger", "pg_index") if one in text]


def test_hostile_names_stay_names() -> None:
    text = unchanged(table(column("id"), name="o'); DROP TABLE \"x"))
    assert """'"public"."o''); DROP TABLE ""x"'::regclass""" in text


@pytest.mark.parametrize(
    ("sqlstate", "message", "tells"),
    [
        ("42P01", 'relation "fencing.a_table_that_has_changed" does not exist', True),
        ("42P01", 'relation "accounts" does not exist', False),
        ("P0001", "fencing.a_table_that_has_changed", False),
    ],
)
def test_what_tells_of_a_change(*, sqlstate: str, message: str, tells: bool) -> None:
    assert tells_of_change(SqlError(sqlstate, message)) is tells
