"""Every resource has one name, and two resources never share one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigurationError, ResourceMalformed
from gateway.fencing.resource import MAX_BYTES, Template, canonical, escape, escape_path

values = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(
    "name", ["a", "order/5", "s3/bucket/a//b", "x/%2F", "%25", "a" * MAX_BYTES, "t/", ".../.~", "..~/x", "%FF"]
)
def test_canonical_names_pass(name: str) -> None:
    assert canonical(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "a b", "ü", "a\n", "a\x00", "%", "%2", "%2f", "%41", "a=b", "a,b", "a?b", "a#b", '"', "a\\b",
     "a" * (MAX_BYTES + 1), "\ud800", ".", "..", "a/./b", "../a", "a/.."],
    ids=ascii,
)  # fmt: skip
def test_other_names_do_not(name: str) -> None:
    with pytest.raises(ResourceMalformed):
        canonical(name)


@pytest.mark.parametrize(
    ("name", "spelling"),
    [("a b", "a%20b"), ("a%2fb", "a%2Fb"), ("%41", "A"), ("a/../b", "a/..~/b"), ("%2E/x", ".~/x"),
     ("a,b=c", "a%2Cb%3Dc"),
     ("ü", "%C3%BC"), ("%ff", "%FF"), ("50%", None), ("%zz", None), ("", None), ("\ud800", None), ("," * 200, None)],
    ids=ascii,
)  # fmt: skip
def test_the_advice_has_the_spelling_that_a_name_can_only_mean(name: str, spelling: str | None) -> None:
    with pytest.raises(ResourceMalformed) as refused:
        canonical(name)
    said = re.search(r"canonical spelling is ([^ ]+), which", refused.value.advice)
    assert (said and said[1]) == spelling
    if spelling is not None:
        assert canonical(spelling) == spelling


dots = st.lists(st.sampled_from([".", "..", ".~", "~", "a", "/", "", "..~~"]), max_size=6).map("".join)


@given(dots, dots)
def test_no_value_makes_a_segment_that_clients_fold(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)
    assert (escape_path(one) == escape_path(other)) == (one == other)
    for name in (f"t/{escape(one)}", f"s3/b/{escape_path(one)}", Template.parse("t/a.{a}/x").fill({"a": one})):
        assert canonical(name) == name


@pytest.mark.parametrize("text", ["{a}.", ".{a}", ".{a}.", "t/{a}../x", "../{a}", "t/.", "t/./{a}"])
def test_templates_whose_names_clients_could_fold_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="segment"):
        Template.parse(text)


@given(values)
def test_escaped_values_are_canonical_and_have_no_slash(value: str) -> None:
    assert "/" not in escape(value)
    if value and len(escape(value)) <= MAX_BYTES:
        assert canonical(escape(value)) == escape(value)


@given(values, values)
def test_escaping_keeps_values_apart(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)
    assert (escape_path(one) == escape_path(other)) == (one == other)


@given(st.tuples(values, values), st.tuples(values, values))
def test_two_rows_never_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    template = Template.parse("order/{a}/line-{b}")
    names = [template.fill({"a": a, "b": b}) for a, b in (one, other)]
    assert (names[0] == names[1]) == (one == other)


def test_a_template_without_fields_names_the_whole_table() -> None:
    assert Template.parse("stock").fill({}) == "stock"


@pytest.mark.parametrize("text", ["", "{a}{b}", "x/{a}-{b}", "or der/{a}", "{", "a}b", "order/{a", "x={a}"])
def test_ambiguous_or_malformed_templates_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Template.parse(text)


def test_a_name_that_grows_too_long_is_refused() -> None:
    with pytest.raises(ResourceMalformed):
        Template.parse("x/{a}").fill({"a": "y" * MAX_BYTES})
