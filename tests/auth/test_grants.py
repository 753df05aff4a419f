"""Grants, and rules that give callers roles of the database."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.callers import rights_of
from gateway.auth.database_roles import OWN, RoleRule, role_of, shown_claims
from gateway.auth.grants import NO_RIGHTS, Action, Grant, Rights, deciding
from gateway.config.access import GrantRule
from gateway.fencing.record import ANONYMOUS


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


@pytest.mark.parametrize(
    ("pattern", "covered", "foreign"),
    [
        ("b/in/**", ["in/", "in/a", "in/a/b"], ["", "in", "i", "inn/", "out/"]),
        ("b/in/*", [], ["in/", "in/a", ""]),
        ("b", ["", "in", "in/a"], []),
        ("b/**", ["", "in", "in/a"], []),
        ("b/*/x/**", ["a/x/", "a/x/y"], ["a/", "a/x", "x/"]),
        ("c/**", [], ["", "in/"]),
    ],
)
def test_a_listing_needs_all_keys_of_its_prefix(pattern: str, covered: list[str], foreign: list[str]) -> None:
    granted = rights(READ, buckets=(pattern,))
    assert [prefix for prefix in covered if not granted.below(READ, "b", prefix)] == []
    assert [prefix for prefix in foreign if granted.below(READ, "b", prefix)] == []


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


def test_a_pattern_of_credentials_has_to_be_within_a_grant() -> None:
    granted = rights(Action.CREDENTIALS, resources=("job/*",))
    assert granted.over(Action.CREDENTIALS, "job/1")
    assert granted.over(Action.CREDENTIALS, "job/*")
    for wider in ("job/**", "**", "*", "job/1/2", "*/1"):
        assert not granted.over(Action.CREDENTIALS, wider), wider


def test_nothing_is_granted_by_default() -> None:
    for action in Action:
        assert not NO_RIGHTS.table(action, "public.t").cover_all(())
        assert not NO_RIGHTS.table(action, "public.t").placed
        assert not NO_RIGHTS.key(action, "b", "k").placed
        assert not NO_RIGHTS.on(action, "r")
        assert not NO_RIGHTS.anywhere(action)
        assert not NO_RIGHTS.have(action)
    assert not NO_RIGHTS.function("public.f").cover_all(())


def test_everything_is_everything_of_its_actions() -> None:
    granted = Rights((Grant(frozenset({READ}), everything=True),))
    assert granted.table(READ, "public.t").placed
    assert granted.key(READ, "b", "k").placed
    assert granted.on(READ, "r")
    assert granted.anywhere(READ)
    assert not granted.anywhere(WRITE)
    assert not granted.table(WRITE, "public.t").cover_all(("r",))


def test_grants_add_up_and_the_first_decides() -> None:
    both = Rights((*rights(WRITE, tables=("public.a",)).grants, Grant(frozenset({WRITE}), 2, resources=("r",))))
    assert both.table(WRITE, "public.a").unlimited
    assert both.table(WRITE, "public.b").cover("r")
    first, second = (deciding(both, partial(_writes_r, name)) for name in ("public.a", "x.y"))
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 2)
    assert deciding(both, partial(_writes_r, "")) is second


def _writes_r(table: str, granted: Rights) -> bool:
    return granted.table(WRITE, table).cover("r")


def rule(**named: tuple[str, ...]) -> GrantRule:
    return GrantRule(actions=(READ,), everything=True, **named)


def test_callers_are_named_by_themselves_their_groups_or_all_of_them() -> None:
    rules = [rule(callers=("ann",)), rule(groups=("staff",)), rule(callers=("*",)), rule(callers=(ANONYMOUS,))]

    def numbers(caller: str, *groups: str) -> list[int]:
        return [grant.number for grant in rights_of(rules, caller, groups).grants]

    assert numbers("ann") == [1, 3]
    assert numbers("bob", "staff") == [2, 3]
    assert numbers("bob", "ann") == [3], "a group has not the name of a caller"
    assert numbers("staff") == [3]
    assert numbers(ANONYMOUS) == [4], "a request without credentials is none of the known callers"


ROLE_RULES = [
    RoleRule(("clerk",), (), "writer"),
    RoleRule((), ("staff",), "reader"),
    RoleRule(("app:*",), (), None, ("realm", "roles"), ("editor", "viewer")),
    RoleRule(("*",), (), OWN),
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


@pytest.mark.parametrize(
    ("caller", "claims", "shown"),
    [
        ("clerk", None, {"sub": "clerk", "role": "r"}),
        ("anonymous", None, {"role": "r"}),
        ("app:ann", {"sub": "ann", "role": "superuser"}, {"sub": "ann", "role": "r"}),
    ],
)
def test_policies_see_the_claims_with_the_role(
    caller: str, claims: dict[str, object] | None, shown: dict[str, str]
) -> None:
    assert json.loads(shown_claims("r", caller, claims)) == shown


def test_a_claim_that_is_no_object_has_nothing_inside_and_without_rules_the_gateways_own_rights_hold() -> None:
    for claims in ({"realm": "editor"}, None):
        assert role_of(ROLE_RULES, ["app:*"], [], claims) is None
    assert role_of([], ["anonymous"], [], None) == OWN
