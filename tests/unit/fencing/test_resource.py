"""Every resource has one name, and two resources never share one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigurationError, ResourceMalformed
from gateway.fencing.resource import MAX_BYTES, Template, canonical, escape, escape_path

values = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize("name", ["a", "order/5", "s3/bucket/a//b", "x/%2F", "%25", "a" * MAX_BYTES, "t/"])
def test_canonical_names_pass(name: str) -> None:
    assert canonical(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "a b", "ü", "a\n", "a\x00", "%", "%2", "%2f", "%41", "a=b", "a,b", "a?b", "a#b", '"', "a\\b",
     "a" * (MAX_BYTES + 1), "\ud800"],
    ids=ascii,
)  # fmt: skip
def test_other_names_do_not(name: str) -> None:
    with pytest.raises(ResourceMalformed):
        canonical(name)


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
