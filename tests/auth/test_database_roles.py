"""Rules that give callers roles of the database: the first that matches decides."""

import json

import pytest

from gateway.auth.database_roles import OWN, RoleRule, role_of, shown_claims

RULES = [
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
    assert role_of(RULES, names, groups, {"realm": {"roles": roles}}) == expected


def test_a_claim_that_is_no_object_has_nothing_inside() -> None:
    assert role_of(RULES, ["app:*"], [], {"realm": "editor"}) is None
    assert role_of(RULES, ["app:*"], [], None) is None


def test_without_rules_all_requests_have_the_gateway_s_own_rights() -> None:
    assert role_of([], ["anonymous"], [], None) == OWN


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
