"""Grants, and rules that give callers roles of the database."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.callers import role_of
from gateway.auth.grants import Action, Grant, Rights
from gateway.auth.principal import OWN
from gateway.config.sections import RoleRule


def rights(*actions: Action, **limits: tuple[str, ...]) -> Rights:
    return Rights((Grant(frozenset(actions), 1, **limits),))  # type: ignore[arg-type]


READ, WRITE, CALL, LOCK = Action.READ, Action.WRITE, Action.CALL, Action.LOCK


@pytest.mark.parametrize(
    ("pattern", "covered", "foreign"),
    [
        ("public.orders", ["public.orders"], ["public.order", "public.orders2", "other.orders", "orders", "public."]),
        ("public.*", ["public.orders", "public.a.b"], ["publicx.orders", "other.orders"]),
        ("*.orders", ["public.orders", "x.orders"], ["public.lines"]),
        ("*", ["public.orders", "x.y"], []),
        ("public.a.b", ["public.a.b"], ["public.a", "public.b"]),
    ],
)
def test_patterns_of_tables(pattern: str, covered: list[str], foreign: list[str]) -> None:
    granted = rights(WRITE, tables=(pattern,))
    for name in covered:
        assert granted.table(WRITE, name).cover_all(None), name
        assert not granted.table(READ, name).placed
    for name in foreign:
        assert not granted.table(WRITE, name).cover_all(("r",)), name


@pytest.mark.parametrize(
    ("pattern", "covered", "foreign"),
    [
        ("b", ["b/k", "b/", "b/a/k"], ["bb/k", "a/b"]),
        ("b/in/**", ["b/in/k", "b/in/a/k", "b/in/"], ["b/in", "b/inn/k", "b/k", "b/out/in/k", "c/in/k"]),
        ("b/in/*", ["b/in/k"], ["b/in/a/k", "b/in"]),
        ("b/k", ["b/k"], ["b/k2", "b/k/2", "b/"]),
        ("*", ["b/k", "c/k"], []),
        ("*/in/**", ["b/in/k", "c/in/k"], ["b/k"]),
    ],
)
def test_patterns_of_keys(pattern: str, covered: list[str], foreign: list[str]) -> None:
    granted = rights(READ, buckets=(pattern,))
    for path in covered:
        bucket, _, key = path.partition("/")
        assert granted.key(READ, bucket, key).placed, path
        assert granted.inside(bucket, READ)
    for path in foreign:
        bucket, _, key = path.partition("/")
        assert not granted.key(READ, bucket, key).placed, path


SEGMENT = st.sampled_from(["a", "b", "in"])


@given(st.lists(SEGMENT | st.just("*"), max_size=3), st.booleans(), st.lists(SEGMENT, max_size=3), st.lists(SEGMENT))
def test_each_key_of_a_listing_may_be_read(
    pattern: list[str],
    open_ended: bool,  # noqa: FBT001 - hypothesis passes it by position
    prefix: list[str],
    rest: list[str],
) -> None:
    text = "/".join(["b", *pattern, *(["**"] if open_ended else [])])
    granted, begun = rights(READ, buckets=(text,)), "/".join(prefix)
    if granted.below(READ, "b", begun):
        assert granted.key(READ, "b", begun + "/".join(rest)).placed


def test_a_resource_limits_a_place_and_a_place_alone_covers_no_lock() -> None:
    granted = rights(READ, WRITE, LOCK, tables=("public.orders",), resources=("order/*",))
    assert granted.table(WRITE, "public.orders").cover_all(("order/1", "order/2"))
    assert not granted.table(WRITE, "public.orders").cover_all(("order/1", "account/1"))
    assert not granted.table(WRITE, "public.orders").cover_all(None), "resources that are not known are not covered"
    assert not granted.table(WRITE, "public.lines").cover_all(("order/1",))
    assert granted.table(READ, "public.orders").placed
    assert granted.on(LOCK, "order/1")
    assert not granted.on(LOCK, "account/1")
    placed = rights(WRITE, LOCK, tables=("public.orders",))
    assert placed.table(WRITE, "public.orders").unlimited
    assert not placed.on(LOCK, "order/1")
    assert not placed.over(LOCK, "**")


def test_resources_alone_cover_them_anywhere() -> None:
    granted = rights(READ, WRITE, CALL, resources=("order/*",))
    assert granted.table(WRITE, "public.any").cover_all(("order/1",))
    assert granted.key(WRITE, "b", "k").cover("order/1")
    assert granted.key(READ, "b", "k").allow(READ, "order/1")
    assert granted.function("public.f").cover_all(("order/1",))
    assert not granted.function("public.f").placed
    assert not granted.table(READ, "public.any").placed, "the resource of a row is not known before it is read"
    assert not granted.bucket(READ, "b")
    assert not granted.below(READ, "b", "")


ROLE_RULES = [
    RoleRule(callers=("clerk",), role=("writer",)),
    RoleRule(callers=("group:staff",), role=("reader",)),
    RoleRule(callers=("app:*",), role=("editor", "viewer"), claim=("realm", "roles")),
    RoleRule(callers=("*",), role=(OWN,)),
]


@pytest.mark.parametrize(
    ("names", "groups", "roles", "expected"),
    [
        (["clerk", "*"], ["staff"], None, "writer"),
        (["ann", "*"], ["staff"], None, "reader"),
        (["ann", "*"], [], None, OWN),
        (["app:ann", "app:*"], [], "viewer", "viewer"),
        (["app:ann", "app:*"], [], ["viewer", "editor"], "editor"),
        (["app:ann", "app:*"], [], ["superuser"], None),
        (["app:ann", "app:*"], [], {"editor": True}, None),
        (["app:ann", "app:*"], [], None, None),
        (["anonymous"], [], None, None),
    ],
)
def test_the_first_matching_rule_decides(
    names: list[str], groups: list[str], roles: object, expected: str | None
) -> None:
    assert role_of(ROLE_RULES, names, groups, {"realm": {"roles": roles}}) == expected


def test_a_claim_that_is_no_object_has_nothing_inside_and_without_rules_the_gateways_own_rights_hold() -> None:
    for claims in ({"realm": "editor"}, None):
        assert role_of(ROLE_RULES, ["app:*"], [], claims) is None
    assert role_of([], ["anonymous"], [], None) == OWN
