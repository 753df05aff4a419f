"""The SQL of a guard: any name in it stays a name, and the guard calls no foreign cast, whatever the types."""

import re
from dataclasses import replace

import pytest

from gateway.fencing.decision import Enforcement, Equal
from gateway.fencing.resource import Template
from gateway.guard import script as guard_script
from gateway.guard.script import Guard
from gateway.tables.catalog.snapshot import Column
from gateway.tables.naming.plan import Rule, naming
from tests.tables.samples import column, table

TAG = re.compile(r"\$guard_[0-9a-f]{16}\$")


def guard(template: str, *columns: Column, name: str = "orders", role: str = "gateway") -> Guard:
    return Guard(
        naming(table(*columns, name=name), Rule(Template.parse(template))), Enforcement.ENFORCE, Equal.ACCEPT, role
    )


@pytest.mark.parametrize(
    ("type_", "declared"),
    [
        ("bigint", "bigint"), ("uuid", "uuid"), ("boolean", "boolean"), ("date", "date"), ("bpchar", "bpchar"),
        ("text", "text"), ("character varying", "text"), ("timestamp with time zone", "text"), ("numeric", "text"),
        ("public.mood", "text"), ("inet", "inet"),
    ],
)  # fmt: skip
def test_values_are_taken_as_texts_and_go_on_in_types_of_postgresqls_own(type_: str, declared: str) -> None:
    body = guard("x/{k}", column("k", type_)).body
    assert f"part1 {declared};" in body
    for row in ("OLD", "NEW"):
        assert f"""part1 := CASE WHEN {row}."k" IS NOT NULL THEN format('%s', {row}."k") END;""" in body
    assert "mood" not in body


def test_the_function_is_named_after_its_source() -> None:
    one, same, other = (guard(text, column("k"), column("l")) for text in ("x/{k}", "x/{k}", "x/{l}"))
    assert one.function == same.function != other.function
    assert re.fullmatch(r"guard_[0-9a-f]{16}", one.function)
    assert one.function == guard("x/{k}", column("k"), name="others").function


@pytest.mark.parametrize(
    "name", ['a"b', "a'b", "$guard$", "a; DROP TABLE x", "new", "touched", "was", "part2", "ä", "a\nb", "a{b"], ids=repr
)
def test_odd_names_stay_names(name: str) -> None:
    made = Guard(naming(table(column(name), name=name, key=(name,)), Rule()), Enforcement.OBSERVE, Equal.STRICT, name)
    script = guard_script.install(made, ['"public"."t"'], [name])
    quoted = '"' + name.replace('"', '""') + '"'
    literal = "'" + name.replace("'", "''") + "'"
    assert f"format('%s', NEW.{quoted})" in script
    assert f"DROP FUNCTION fencing.{quoted};" in script
    assert script.count(f"SESSION_USER <> {literal})") == 2
    assert script.count(f"SESSION_USER <> {literal} OR pg_catalog.pg_trigger_depth() > 0)") == 1
    assert len(TAG.findall(script)) == 2
    assert f"TO {quoted};" in guard_script.grants(name)


def test_partitions_have_what_they_do_not_get_by_themselves() -> None:
    script = guard_script.install(guard("x/{k}", column("k")), ["whole", "part"], [])
    assert re.findall(r"CREATE OR REPLACE TRIGGER (\w+) .* ON (\w+)", script) == [
        (guard_script.STATEMENT, "whole"),
        (guard_script.STATEMENT, "part"),
        (guard_script.TRUNCATE, "whole"),
        (guard_script.TRUNCATE, "part"),
        (guard_script.ROW, "whole"),
    ]
    removed = guard_script.remove(["whole", "part"], ["guard_1"])
    assert removed.count("DROP TRIGGER IF EXISTS") == 10
    assert 'DROP FUNCTION fencing."guard_1";' in removed
    assert removed.endswith("SELECT fencing.guard_removed_v1('whole');")


def test_rows_of_a_statement_are_checked_together_where_nothing_else_reaches_them() -> None:
    made = replace(guard('x/{k}/{na"me}', column("k", "bigint"), column('na"me')), by_statement=True)
    script = guard_script.install(made, ["whole"], [])
    assert re.findall(r"CREATE OR REPLACE TRIGGER (\w+) (.*?) ON whole(.*)", script)[2:] == [
        ("fencing_guard_inserted", "AFTER INSERT", " REFERENCING NEW TABLE AS fencing_new"),
        ("fencing_guard_updated", "AFTER UPDATE", " REFERENCING OLD TABLE AS fencing_old NEW TABLE AS fencing_new"),
        ("fencing_guard_deleted", "AFTER DELETE", " REFERENCING OLD TABLE AS fencing_old"),
        (guard_script.ROW, "AFTER DELETE", " REFERENCING OLD TABLE AS fencing_old"),
    ]
    assert """format('%s', fencing_new."na""me")""" in made.body
    assert "any_row" in replace(guard("whole"), by_statement=True).body


@pytest.mark.parametrize(("type_", "pinned"), [("bigint", False), ("uuid", False), ("date", True), ("text", True)])
def test_only_texts_that_depend_on_settings_have_them_pinned(type_: str, *, pinned: bool) -> None:
    assert ("datestyle" in guard("x/{k}", column("k", type_)).settings) == pinned


def test_the_arguments_are_what_the_triggers_are_told() -> None:
    assert guard("x/{k}", column("k")).arguments == ("enforce", "accept", "gateway", "x/{k}", "public.orders")
