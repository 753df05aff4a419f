"""The doctor's advice on grants, as far as the configuration alone can tell."""

from typing import Any

import pytest

from gateway.auth.grants import Action
from gateway.doctor import grants
from gateway.doctor.findings import Check, CheckStatus
from tests.running import config

ALMIGHTY = {"actions": [action.value for action in Action], "everything": True}
RULE = {"match": "reports/{job}/**", "resource": "job/{job}"}
ISSUER = {"name": "keycloak", "secret": "s" * 32, "groups_claim": ["groups"]}
ORDERS = {"tables": [{"name": "public.orders", "resource": "order/{id}"}]}


def granted(*grants: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Sections with these grants. A grant without groups is for the writer."""
    return {"grants": [one if "groups" in one else {"callers": ["writer"], **one} for one in grants], **sections}


def reading(callers: list[str], **more: Any) -> dict[str, Any]:
    return {"callers": callers, "actions": ["read"], "tables": ["public.*"], **more}


TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    (granted({**ALMIGHTY, "callers": ["keycloak:*"]}, issuers=[ISSUER]), "keycloak:*"),
    (granted({**ALMIGHTY, "callers": [], "groups": ["keycloak:admins"]}, issuers=[ISSUER]), "group keycloak:admins"),
]
OVERLAPPING: list[dict[str, Any]] = [
    granted(reading(["keycloak:ann"]), reading(["keycloak:*"]), issuers=[ISSUER]),
    granted(reading([], groups=["keycloak:clerks"]), reading(["keycloak:*"]), issuers=[ISSUER]),
    granted(reading(["writer"]), reading(["*"])),
    granted(reading(["writer"], tables=["public.orders"]), reading(["writer"])),
    granted(reading(["writer"], tables=["public.orders"]), reading(["writer"], tables=["*"])),
    granted({"actions": ["lock"], "resources": ["order/5"]}, {"actions": ["lock"], "resources": ["order/*"]}),
    granted({"actions": ["read"], "buckets": ["reports/a/**"]}, {"actions": ["read"], "buckets": ["reports"]}),
    granted({"actions": ["read"], "buckets": ["reports/a/b"]}, {"actions": ["read"], "buckets": ["*/a/**"]}),
]
NOT_OVERLAPPING: list[dict[str, Any]] = [
    # The star is for callers of the configuration.
    granted(reading(["keycloak:ann"]), reading(["*"]), issuers=[ISSUER]),
    granted(reading([], groups=["keycloak:clerks"]), reading(["*"]), issuers=[ISSUER]),
    granted(reading(["anonymous"]), reading(["*"])),
    granted(reading(["writer"], tables=["public.a"]), reading(["writer"], tables=["*.b"])),
    granted({"actions": ["lock"], "resources": ["order/*/*"]}, {"actions": ["lock"], "resources": ["order/*"]}),
    granted({"actions": ["read"], "buckets": ["reports"]}, {"actions": ["write"], "buckets": ["reports/**"]}),
]
WITHOUT_TARGET: list[tuple[dict[str, Any], str]] = [
    (granted({"actions": ["read"], "buckets": ["reports"]}, s3=None), "no object store is configured"),
    (
        granted({"actions": ["call"], "functions": ["public.nothing"]}),
        "no function that can be called is public.nothing",
    ),
    (granted({"actions": ["write"], "resources": ["odrer/*"]}, **ORDERS), "makes names like odrer/*"),
    (granted({"actions": ["write", "lock"], "resources": ["order/*/*"]}, **ORDERS), "makes names like order/*/*"),
    (granted({"actions": ["write"], "buckets": ["reports"], "resources": ["order/*"]}, **ORDERS), "names like order/*"),
    (granted({"actions": ["write"], "resources": ["public.orders/*"]}, **ORDERS), "makes names like public.orders/*"),
]
WITH_TARGET: list[dict[str, Any]] = [
    granted({"actions": ["write"], "resources": ["order/5", "*/5", "**", "s3/**", "s3/*/a/b"]}, **ORDERS),
    granted({"actions": ["write"], "resources": ["public.orders/*"]}),
    granted({"actions": ["write"], "resources": ["job/7", "s3/other/**"]}, objects=[RULE]),
    # Locks may have any name, and so may what a call claims.
    granted({"actions": ["lock", "barrier", "read"], "resources": ["anything/*"]}),
    granted({"actions": ["write", "call"], "resources": ["anything/*"]}, postgres={"functions": ["public.reckon"]}),
    granted({"actions": ["write", "lock"], "resources": ["policy/7"]}, resources=[{"match": "policy/*"}]),
]
WITHOUT_CALLERS: list[tuple[dict[str, Any], str, str]] = [
    (granted(reading([], groups=["keycloack:admins"]), issuers=[ISSUER]), "groups", "no caller is in keycloack:admins"),
    (
        granted(reading([], groups=["keycloak:admins"]), issuers=[{**ISSUER, "groups_claim": []}]),
        "groups",
        "since keycloak has no groups_claim",
    ),
    (granted(reading(["writer"]), issuers=[ISSUER]), "issuers without grants", "keycloak: no grant names"),
]


def told(sections: dict[str, Any], name: str) -> list[Check]:
    """The findings under a name, with a store unless the sections say otherwise."""
    settings = {"postgres": {"dsn": "postgresql://localhost/app", **sections.get("postgres", {})}}
    if "s3" not in sections:
        settings["s3"] = {"endpoint": "http://localhost:9000", "access_key_id": "a", "secret_access_key": "b"}
    found = grants.check(config("postgresql://localhost/app", **{**sections, **settings}))
    return [check for check in found if check.name == name]


CASES = [
    *((sections, "almighty callers", words) for sections, words in TOO_MUCH),
    *((sections, "overlapping grants", "number 1 adds nothing to number 2") for sections in OVERLAPPING),
    *((sections, "grants without target", words) for sections, words in WITHOUT_TARGET),
    *((sections, name, words) for sections, name, words in WITHOUT_CALLERS),
]


@pytest.mark.parametrize(("sections", "name", "words"), CASES, ids=str)
def test_each_doubtful_grant_is_told(sections: dict[str, Any], name: str, words: str) -> None:
    (check,) = told(sections, name)
    assert check.status is CheckStatus.WARNING
    assert words in check.detail
    assert check.advice


@pytest.mark.parametrize("sections", NOT_OVERLAPPING, ids=str)
def test_two_grants_that_each_add_something_are_not_told(sections: dict[str, Any]) -> None:
    assert told(sections, "overlapping grants") == []


@pytest.mark.parametrize("sections", WITH_TARGET, ids=str)
def test_a_pattern_that_may_match_is_not_told(sections: dict[str, Any]) -> None:
    assert told(sections, "grants without target") == []


def test_a_group_of_an_issuer_that_lists_groups_is_not_told() -> None:
    assert told(granted(reading([], groups=["keycloak:admins"]), issuers=[ISSUER]), "groups") == []


def test_a_misspelt_pattern_is_told_with_the_one_that_is_meant() -> None:
    sections = granted({"actions": ["write"], "resources": ["odrer/*"]}, **ORDERS)
    (check,) = told(sections, "grants without target")
    assert check.advice == "Did you mean order/*?"
    (check,) = told(granted(reading([], groups=["keycloack:admins"]), issuers=[ISSUER]), "groups")
    assert check.advice == "Did you mean keycloak:admins?"
