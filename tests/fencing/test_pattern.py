"""Patterns of resource names: which are about what another is about, and which have something in common."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.fencing.resource import check_pattern, covers, includes, overlap

SEGMENTS = st.sampled_from(["a", "b", "", "*", "a*", "**"])
NAMES = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join).filter(bool)
ENDS = st.sampled_from(["", "/*", "/**"])
PATTERNS = st.tuples(st.lists(st.sampled_from(["a", "b", "", "*"]), min_size=1, max_size=3).map("/".join), ENDS).map(
    "".join
)


def is_pattern(text: str) -> bool:
    return text != ""


@given(PATTERNS.filter(is_pattern), PATTERNS.filter(is_pattern), NAMES)
def test_what_a_pattern_includes_it_covers(pattern: str, other: str, name: str) -> None:
    check_pattern(pattern)
    check_pattern(other)
    if includes(pattern, other) and covers(other, name):
        assert covers(pattern, name)


@given(PATTERNS.filter(is_pattern), PATTERNS.filter(is_pattern), NAMES)
def test_what_two_patterns_cover_they_have_in_common(one: str, other: str, name: str) -> None:
    if covers(one, name) and covers(other, name):
        assert overlap(one, other)
        assert overlap(other, one)


@given(PATTERNS.filter(is_pattern))
def test_a_pattern_includes_itself_and_everything_includes_all(pattern: str) -> None:
    assert includes(pattern, pattern)
    assert includes("**", pattern)
    assert overlap("**", pattern)


def test_what_is_left_out() -> None:
    for pattern, other in (
        *(("job/42", "job/*"), ("job/*", "job/**"), ("job/**", "job"), ("job/a/**", "job/**"), ("a/*", "b/*")),
        *(("job/**", "**"), ("*", "**"), ("s3/b/x/**", "s3/b/**"), ("s3/b/x/**", "s3/b/xy/**")),
    ):
        assert not includes(pattern, other), (pattern, other)
    for one, two in (("a/b", "a/c"), ("a/**", "a"), ("a/*", "a"), ("a/b/**", "a/b"), ("a/**", "b/**")):
        assert not overlap(one, two), (one, two)
