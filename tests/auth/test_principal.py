"""A grant covers the resources of its pattern, and not one more."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.grants import Rights
from gateway.auth.principal import FencedScope, Principal, owner
from gateway.errors import ResourceMalformed, StoreError
from gateway.fencing.token import Token
from gateway.objects.resource_rules import KeyRule

TOKEN = Token(0, 34)
NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("pattern", "covered", "foreign"),
    [
        ("job/42", ["job/42"], ["job/4", "job/421", "job/42/a", "job", "job/42/", "xjob/42", "Job/42", ""]),
        ("job/*", ["job/42", "job/a%2Fb", "job/"], ["job", "job/42/a", "jobs/42", "a/job/42"]),
        ("job/*/log", ["job/42/log", "job//log"], ["job/log", "job/42/43/log", "job/42/log/a", "job/42"]),
        ("job/**", ["job/42", "job/42/a", "job/", "job//"], ["job", "jobs/42", "a/job/42"]),
        ("s3/*/a/**", ["s3/b/a/c", "s3/b/a/c/d"], ["s3/b/a", "s3/b/c/a/d", "s3/a/c"]),
        ("**", ["job", "job/42", "s3/b/k"], []),
        ("*", ["job"], ["job/42"]),
        ("job.42/a+b(c)", ["job.42/a+b(c)"], ["jobx42/a+b(c)", "job.42/aab(c)"]),
        ("s3/b/%C3%A9", ["s3/b/%C3%A9"], ["s3/b/é"]),
    ],
)
def test_a_pattern_covers_its_resources(pattern: str, covered: list[str], foreign: list[str]) -> None:
    grant = FencedScope(pattern, TOKEN)
    assert grant.plain == ("*" not in pattern)
    for resource in covered:
        assert grant.covers(resource), resource
    for resource in foreign:
        assert not grant.covers(resource), resource


@pytest.mark.parametrize(
    "pattern",
    ["", "job/4*", "*job", "job/***", "**/job", "job/**/log", "a/b**", "é", "a b", "%c3", "%2A", "x" * 513, "a,b"],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ResourceMalformed):
        FencedScope(pattern, TOKEN)


SEGMENTS = st.lists(st.sampled_from(["a", "b", "", "a.b"]), min_size=1, max_size=4)


@given(SEGMENTS, st.sampled_from(["", "/**"]), SEGMENTS, st.sets(st.integers(0, 3)))
def test_a_wildcard_means_what_it_means_in_the_rules_of_objects(
    segments: list[str], end: str, given_segments: list[str], starred: set[int]
) -> None:
    pattern = "/".join("*" if place in starred else segment for place, segment in enumerate(segments)) + end
    resource = "/".join(given_segments)
    rule = KeyRule.compile(f"bucket/{pattern}")
    assert FencedScope(f"bucket/{pattern}", TOKEN).covers(f"bucket/{resource}") == (
        rule.resource("bucket", resource) is not None
    )


def test_an_access_key_has_one_owner() -> None:
    plain = Principal("worker", Rights.all())
    assert owner("AK", "token", lambda *shown: (plain, "/".join(map(str, shown))), NOW) == (plain, "AK/token")
    with pytest.raises(StoreError) as caught:
        owner("AK", None, lambda *_: None, NOW)
    assert (caught.value.s3_code, caught.value.status) == ("InvalidAccessKeyId", 403)


@pytest.mark.parametrize(("seconds", "expired"), [(-1, False), (0, True), (1, True)])
def test_fenced_credentials_expire(seconds: int, expired: bool) -> None:  # noqa: FBT001
    bound = Principal("worker", scope=FencedScope("job/42", TOKEN, expires=NOW - timedelta(seconds=seconds)))
    if not expired:
        assert owner("AK", None, lambda *_: (bound, "s"), NOW)[0] is bound
        return
    with pytest.raises(StoreError) as caught:
        owner("AK", None, lambda *_: (bound, "s"), NOW)
    assert (caught.value.s3_code, caught.value.status) == ("ExpiredToken", 400)
