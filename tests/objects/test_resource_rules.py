"""Each key has exactly one resource, whichever caller names it."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigurationError, ResourceMalformed, ResourceMismatch, StoreError
from gateway.fencing.decision import Enforcement, Equal
from gateway.fencing.resource import canonical, covers
from gateway.objects.resource_rules import KeyRule, Resources


@pytest.mark.parametrize(
    ("match", "template", "path", "resource"),
    [
        ("jobs/{id}/state.json", "job/{id}", "jobs/42/state.json", "job/42"),
        ("jobs/{id}/state.json", "job/{id}", "jobs/42/other.json", None),
        ("jobs/{id}/**", "job/{id}", "jobs/42/a/b", "job/42"),
        ("jobs/{id}/**", "job/{id}", "jobs/42/", "job/42"),
        ("jobs/{id}/**", "job/{id}", "jobs/42", None),
        ("jobs/{id}/**", "job/{id}", "jobs//a", None),
        ("jobs/{id}/**", "job/{id}", "jobs/42/a\nb", "job/42"),
        ("jobs/{id}/**", "job/{id}", "jobs/a b%/x", "job/a%20b%25"),
        ("jobs/*/{part}", "part/{part}", "jobs/anything/7", "part/7"),
        ("jobs/*/{part}", "part/{part}", "jobs//7", "part/7"),
        ("jobs/*/{part}", "part/{part}", "jobs/a/b/7", None),
        ("*/{a}/{b}", "{b}/of/{a}", "bkt/x/y", "y/of/x"),
        ("jobs/a.b/{x}", "{x}", "jobs/a.b/1", "1"),
        ("jobs/a.b/{x}", "{x}", "jobs/aXb/1", None),
        ("{b}/**", "b/{b}", "bkt/k", "b/bkt"),
        ("logs/**", "{bucket}/all", "logs/a/b", "logs/all"),
        ("logs/{day}/**", "{bucket}/{day}/{key}", "logs/1/x y", "logs/1/1/x%20y"),
        ("logs/**", None, "logs/a//../b+c%2F", "s3/logs/a//..~/b+c%252F"),
        ("jobs/*", "one", "jobs/x", "one"),
        ("jobs/*", "one", "jobs/x/", None),
    ],
)
def test_patterns(match: str, template: str | None, path: str, resource: str | None) -> None:
    bucket, _, key = path.partition("/")
    assert KeyRule.compile(match, template).resource(bucket, key) == resource


@pytest.mark.parametrize(
    ("match", "template"),
    [
        ("bucket", None),
        ("/key", None),
        ("**", None),
        ("**/a", None),
        ("b/**/c", None),
        ("b/a*", None),
        ("b/a{x}", None),
        ("b/{x", None),
        ("b/x}", None),
        ("b/{}", None),
        ("b/***", None),
        ("b/{x}/{x}", None),
        ("b/{key}", None),
        ("{bucket}/x", None),
        ("b/{x}", "r/{y}"),
        ("b/*", "r/{x}"),
        ("b/{x}", "r/{key}/{x}"),
        ("b/{x}", "r/{x}{key}"),
        ("b/{x}", "r/ {x}"),
        ("b/{x}", ""),
    ],
)
def test_rules_that_cannot_be_used(match: str, template: str | None) -> None:
    with pytest.raises(ConfigurationError):
        KeyRule.compile(match, template)


def test_the_first_rule_that_matches_decides() -> None:
    resources = Resources(
        [
            KeyRule.compile("b/locked/**", "locked", Enforcement.OBSERVE, Equal.STRICT),
            KeyRule.compile("b/{x}/**", "x/{x}"),
        ],
        mode=Enforcement.ENFORCE,
        equal=Equal.ACCEPT,
    )
    locked, other, default = (resources.target("b", key) for key in ("locked/a", "open/a", "open"))
    assert (locked.resource, locked.mode, locked.equal) == ("locked", Enforcement.OBSERVE, Equal.STRICT)
    assert (other.resource, other.mode, other.equal) == ("x/open", Enforcement.ENFORCE, Equal.ACCEPT)
    assert (default.resource, default.mode, default.equal) == ("s3/b/open", Enforcement.ENFORCE, Equal.ACCEPT)


@pytest.mark.parametrize(
    ("key", "writable"),
    [
        (".fencing-gateway/probe/x", False),
        ("a/b/marker", False),
        (".fencing-gateway", False),
        ("a", False),
        ("a/b", False),
        (".fencing-gateways", True),
        ("a/c", True),
        ("a/bc", True),
        ("b", True),
    ],
)
def test_no_caller_writes_at_the_gateways_own_keys_or_in_their_way(key: str, *, writable: bool) -> None:
    """On a store that keeps objects as files, a file with the name of a folder would be in the way."""
    resources = Resources(journals=["a/b/"])
    with nullcontext() if writable else pytest.raises(StoreError, match="the gateway's own"):
        assert resources.target("bucket", key).resource == f"s3/bucket/{key}"


def test_a_named_resource_can_only_be_the_right_one() -> None:
    resources = Resources()
    assert resources.target("b", "k", "s3/b/k").resource == "s3/b/k"
    with pytest.raises(ResourceMismatch, match=r"belongs to the resource s3/b/k, not to job/1") as caught:
        resources.target("b", "k", "job/1")
    assert caught.value.facts == {"resource": "s3/b/k"}


def test_a_key_too_long_for_a_resource_is_refused_clearly() -> None:
    resources = Resources([KeyRule.compile("b/{id}/**", "job/{id}")])
    assert resources.target("b", "7/" + "k" * 1000).resource == "job/7"
    for key in ("k" * 510, "é" * 100):
        with pytest.raises(ResourceMalformed, match="too long to be a resource"):
            resources.target("b", key)


KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(KEYS, KEYS)
def test_two_keys_never_share_a_default_resource(one: str, other: str) -> None:
    resources = Resources()
    names = [canonical(resources.target("bucket", key).resource) for key in (one, other)]
    assert (names[0] == names[1]) == (one == other)


SEGMENT = st.sampled_from(["a", "b", "ab", "", "*", "**", "%", "\u00e9"])
KEYS = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join).filter(bool)
RULES = st.lists(
    st.sampled_from(
        [
            *(("bkt/a/**", "one"), ("bkt/{x}/**", "x/{x}"), ("bkt/{x}/{y}", "y-{y}/{x}"), ("bkt/*/b", "b/{key}")),
            *(("{z}/a/{x}/**", "z/{z}/{x}"), ("bkt/**", "in-{key}"), ("bkt/a/b", "s3/{bucket}/{key}/end")),
            *(("bkt/{x}/*", "w/{x}/{bucket}"), ("*/ab/**", None), ("bkt/{x}", "top/{x}")),
        ]
    ),
    max_size=3,
)


@given(RULES, KEYS, KEYS, st.integers(0, 12))
def test_patterns_cover_the_resources_below_a_prefix(
    rules: list[tuple[str, str | None]], key: str, begun: str, length: int
) -> None:
    """The resource of each key below a prefix is covered by one of the patterns."""
    resources = Resources([KeyRule.compile(*rule) for rule in rules])
    for prefix in (key[:length], begun):
        for whole in (prefix + key, prefix):
            if whole:
                resource = resources.target("bkt", whole).resource
                assert any(covers(pattern, resource) for pattern in resources.below("bkt", prefix)), (prefix, whole)


@pytest.mark.parametrize(
    ("prefix", "patterns"),
    [
        ("", ["job/*", "s3/bkt/**"]),
        ("jobs", ["job/*", "s3/bkt/**"]),
        ("jobs/", ["job/*", "s3/bkt/jobs/**"]),
        ("jobs/42", ["job/*", "s3/bkt/jobs/**"]),
        ("jobs/42/", ["job/42"]),
        ("jobs/42/a/b", ["job/42"]),
        ("jobs//", ["s3/bkt/jobs//**"]),
        ("others/x y", ["s3/bkt/others/**"]),
        ("jobs2/", ["s3/bkt/jobs2/**"]),
    ],
)
def test_the_patterns_below_a_prefix_are_minimal(prefix: str, patterns: list[str]) -> None:
    resources = Resources([KeyRule.compile("bkt/jobs/{id}/**", "job/{id}")])
    assert list(resources.below("bkt", prefix)) == patterns
