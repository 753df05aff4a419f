"""Values in words: nothing hidden stays hidden, times and numbers read as people say them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import text

NOW = datetime(2026, 3, 1, 4, 5, 6, 789, tzinfo=UTC)


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("plain/name-5.csv", "plain/name-5.csv"),
        ("Grüße 東京 שלום", "Grüße 東京 שלום"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("two\nlines\tend", "two\\x0alines\\x09end"),
        ("a\u00a0b\u2028", "a\\xa0b\\u2028"),
        ("job/1\ufe0f", "job/1\\ufe0f"),
        ("a\u3164b\u115f\u2800", "a\\u3164b\\u115f\\u2800"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_hidden_characters_are_shown(hidden: str, shown: str) -> None:
    assert text.visible(hidden) == shown


@given(st.text())
def test_what_is_shown_hides_nothing(name: str) -> None:
    assert not any(text.is_hidden(character) for character in text.visible(name))
    assert "".join(piece for piece, _ in text.pieces(name)) == text.visible(name)
    assert "".join(piece for piece, hidden in text.pieces(name) if not hidden) in "".join(
        character for character in name if not text.is_hidden(character)
    )


def test_times_are_in_utc_wherever_they_come_from() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert text.machine_time(elsewhere) == "2026-03-01T04:05:06.000789Z"
    assert text.plain_time(elsewhere) == "2026-03-01 04:05:06"


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (timedelta(seconds=-1), "0 ms"),
        (timedelta(milliseconds=340), "340 ms"),
        (timedelta(seconds=9.4), "9.4 seconds"),
        (timedelta(seconds=12), "12 seconds"),
        (timedelta(seconds=61), "1 minute 1 second"),
        (timedelta(hours=1), "1 hour"),
        (timedelta(hours=1, minutes=4, seconds=59), "1 hour 4 minutes"),
        (timedelta(days=2, seconds=5), "2 days"),
    ],
)
def test_lengths_of_time_have_two_units_at_the_most(length: timedelta, said: str) -> None:
    assert text.span(length) == said


@pytest.mark.parametrize(
    ("ago", "said"),
    [
        (-5, "just now"),
        (0.9, "just now"),
        (1, "1 second ago"),
        (119, "1 minute ago"),
        (7200, "2 hours ago"),
        (86400, "1 day ago"),
    ],
)
def test_ages_have_one(ago: float, said: str) -> None:
    assert text.age(NOW - timedelta(seconds=ago), NOW) == said


def test_values_of_json_have_words_for_its_signs() -> None:
    assert text.worded({"missing": {"action": "write", "on": "table a"}, "n": [1, None, True, []]}) == (
        "missing: action: write, on: table a, n: 1, none, yes, none"
    )


def test_numbers_and_sizes() -> None:
    assert text.number(1234567) == "1\u202f234\u202f567"
    assert [text.size(octets) for octets in (0, 1, 1023, 1024, 3_500_000, 2**50)] == [
        *("0 bytes", "1 byte", "1023 bytes", "1.0 KiB", "3.3 MiB", "1024.0 TiB")
    ]
