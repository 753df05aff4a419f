"""The address of a list becomes filters, and parameters of an export."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.errors import RequestMalformed
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from gateway.web.record_lists import read_filters

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)


def test_fields_become_filters_and_those_that_say_nothing_do_not() -> None:
    asked = read_filters(
        [
            ("prefix", "public."),
            ("holder", ""),
            ("enforced", "false"),
            ("token", "2.34"),
            ("since", "2026-03-01T04:05"),
            ("junk", "x"),
        ],
        NOW,
        (Kind.REJECTION,),
    )
    assert asked.filters.prefix == "public."
    assert asked.filters.holder is None
    assert asked.filters.enforced is False
    assert asked.filters.token == Token(2, 34)
    assert asked.filters.since == datetime(2026, 3, 1, 4, 5, tzinfo=UTC)
    assert asked.filters.kinds == (Kind.REJECTION,)
    assert asked.fields == {"prefix": "public.", "enforced": "false", "token": "2.34", "since": "2026-03-01T04:05:00"}


def test_a_list_of_one_kind_is_of_no_other() -> None:
    assert read_filters([("kind", "raised")], NOW, (Kind.REJECTION,)).filters.kinds == (Kind.REJECTION,)
    assert read_filters([("kind", "raised"), ("kind", "barrier")], NOW).filters.kinds == (Kind.RAISED, Kind.BARRIER)
    assert read_filters([], NOW).filters.kinds == ()


def test_a_span_ends_now_and_a_time_goes_before_it() -> None:
    assert read_filters([("span", "7d")], NOW).filters.since == NOW - timedelta(days=7)
    asked = read_filters([("span", "7d"), ("since", "2026-03-08T13:00+02:00")], NOW)
    assert asked.filters.since == datetime(2026, 3, 8, 11, tzinfo=UTC)


def test_exports_get_moments_for_spans() -> None:
    sent = [("span", "1h"), ("caller", "a&b"), ("until", "2026-03-08T11:30:00.5Z"), ("kind", "raised")]
    asked = read_filters(sent, NOW)
    assert asked.exported == [
        ("caller", "a&b"),
        ("since", "2026-03-08T11:00:00+00:00"),
        ("until", "2026-03-08T11:30:00.500000+00:00"),
        ("kind", "raised"),
    ]


@pytest.mark.parametrize(
    "field",
    [
        ("since", "9999-12-31T23:59-23:00"),
        ("until", "0001-01-01T00:00"),
        ("since", "12"),
        ("before", "1e3"),
        ("after", "٣"),
        ("token", "-1"),
        ("kind", "all"),
        ("enforced", "True"),
        ("reason", "bogus"),
        ("rule", "a\0b"),
        ("caller", "x" * 1025),
    ],
)
def test_an_unreadable_field_is_named(field: tuple[str, str]) -> None:
    with pytest.raises(RequestMalformed, match=f"^{field[0]}: "):
        read_filters([field], NOW)
