"""Each name has one owner, and no rule makes names of another database."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import CrossesDatabases
from gateway.fencing.ownership import Domain, Owned, Ownership
from gateway.fencing.ownership_checks import Names, conflicts, foreign_to

NORTH = Domain("north", ("public", "shop"), ("reports",), ("job/42",), default=True)
SOUTH = Domain("south", ("south",), ("southern",), ("tenant-7/**", "tenant-8/*/plan"))
WEST = Domain("west", ("west",), (), ("lock/**",))
ALL = (NORTH, SOUTH, WEST)
RULES = Ownership(ALL)

OWNERS = {
    "job/42": "north",
    "anything": "north",
    "public.orders/5": "north",
    "unknown.orders/5": "north",
    "s3/reports/a/b": "north",
    "s3/other/a": "north",
    "s3": "north",
    "tenant-7": "north",
    "tenant-7/a": "south",
    "tenant-7/a/b": "south",
    "tenant-70/a": "north",
    "tenant-8/a/plan": "south",
    "tenant-8/a/b/plan": "north",
    "tenant-8/a": "north",
    "south.orders/5": "south",
    "south": "north",
    "southern.orders/5": "north",
    "s3/southern": "south",
    "s3/southern/south.orders": "south",
    "s3/southernmost/a": "north",
    "lock/a": "west",
    "west.a": "west",
}


@pytest.mark.parametrize(("resource", "owner"), OWNERS.items())
def test_each_name_has_one_owner(resource: str, owner: str) -> None:
    assert RULES.of_resource(resource) == owner
    Owned(RULES, owner).check([resource])
    for other in {"north", "south", "west"} - {owner}:
        with pytest.raises(CrossesDatabases) as refused:
            Owned(RULES, other).check(["nothing-of-it" if other == "north" else f"{other}.x/1", resource])
        assert refused.value.facts == {"resource": resource, "database": owner}


@pytest.mark.parametrize(
    ("pattern", "owner"),
    [
        ("tenant-7/**", "south"),
        ("tenant-7/a/*", "south"),
        ("tenant-8/*/plan", "south"),
        ("s3/southern/**", "south"),
        ("s3/other/a/**", "north"),
        ("south.orders/*", "south"),
        ("public.orders/**", "north"),
        ("job/*", "north"),
        ("tenant-8/**", None),
        ("s3/**", None),
        ("s3/*/a", None),
        ("**", None),
        ("*/a", None),
        ("other/**", "north"),
    ],
)
def test_a_pattern_belongs_to_one_database_or_is_refused(pattern: str, owner: str | None) -> None:
    if owner is not None:
        assert RULES.of_pattern(pattern) == owner
        return
    with pytest.raises(CrossesDatabases):
        RULES.of_pattern(pattern)


@pytest.mark.parametrize(
    ("database", "template", "foreign"),
    [
        ("south", "tenant-7/{id}", None),
        ("south", "tenant-7", "north"),
        ("south", "tenant-{id}", "north"),
        ("south", "tenant-{tenant}/{id}", "north"),
        ("south", "tenant-8/{id}/plan", None),
        ("south", "south.orders/{id}", None),
        ("south", "s3/southern/{id}", None),
        ("south", "s3/reports/{id}", "north"),
        ("south", "order/{id}", "north"),
        ("south", "lock/{id}", "west"),
        ("north", "order/{id}", None),
        ("north", "order-{id}/x", None),
        ("north", "tenant-{id}/x", "south"),
        ("north", "tenant-{id}", None),
        ("north", "{id}/x/y/z", "south"),
        ("north", "{id}", "south"),
        ("north", "s3/{bucket}/x", "south"),
        ("north", "public.orders/{id}", None),
        ("north", "south.{id}", "south"),
        ("north", "lock-{id}", None),
    ],
)
def test_a_template_that_may_name_resources_of_another_database_is_found(
    database: str, template: str, foreign: str | None
) -> None:
    assert foreign_to(database, Names.of(template), ALL) == foreign


SEGMENTS = st.sampled_from(
    ["tenant-7", "tenant-8", "plan", "s3", "southern", "reports", "lock", "south.x", "west.", "a", "7"]
)
PIECES = st.sampled_from(["{f}", "tenant-{f}", "{f}.x", "s3", "southern", "lock", "plan", "a", "south.{f}", "tenant-7"])


@given(st.sampled_from(ALL), st.lists(PIECES, min_size=1, max_size=3), st.lists(SEGMENTS, min_size=3, max_size=3))
def test_a_template_that_passes_makes_no_name_of_another_database(
    domain: Domain, pieces: list[str], values: list[str]
) -> None:
    if foreign_to(domain.name, Names.of("/".join(pieces)), ALL) is None:
        name = "/".join(piece.replace("{f}", value) for piece, value in zip(pieces, values, strict=False))
        assert RULES.of_resource(name) == domain.name


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (Domain("a", ("x",)), Domain("b", ("x",)), "x belongs to a as well"),
        (Domain("a", buckets=("x",)), Domain("b", buckets=("x",)), "x belongs to a as well"),
        (Domain("a", resources=("x/**",)), Domain("b", resources=("x/*/y",)), "x/*/y overlaps x/** of a"),
        (Domain("a", ("x",)), Domain("b", resources=("x.orders/**",)), "overlaps the rows of the schema x of a"),
        (Domain("a"), Domain("b", resources=("**",)), "set default = true instead"),
        (Domain("a"), Domain("b", resources=("*/x",)), "begins with a wildcard"),
        (Domain("a"), Domain("b", resources=("s3/x/**",)), "name their bucket in buckets instead"),
    ],
)
def test_no_two_databases_claim_one_name(first: Domain, second: Domain, words: str) -> None:
    assert [number for number, _, problem in conflicts((first, second)) if words in problem] == [1]
    assert list(conflicts(ALL)) == []
