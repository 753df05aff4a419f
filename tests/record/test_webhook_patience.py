"""Attempts become rarer, from a second to an hour, and a receiver may ask for more rest."""

from datetime import UTC, datetime

import pytest

from gateway.webhooks import delivery

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def test_from_a_second_to_an_hour_and_never_all_at_once() -> None:
    for failures in range(1, 200):
        shortest, longest = delivery.retry_pause(failures, 0.0), delivery.retry_pause(failures, 1.0)
        assert 1.0 <= shortest < longest <= 3600.0
        assert longest == min(3600.0, 2.0**failures)
        assert shortest == longest / 2
    assert delivery.retry_pause(100_000, 1.0) == 3600.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0.0),
        ("", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Sun, 01 Mar 2026 12:02:00 GMT", 120.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("999999999999999999", 86400.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86400.0),
        ("-5", 0.0),
        ("1.5", 0.0),
        ("soon", 0.0),
        ("Sun, 01 Mar 2026 12:02:00", 0.0),
        ("Sun, 99 Mar 2026 12:02:00 GMT", 0.0),
        ("٣", 0.0),
    ],
)
def test_what_a_receiver_asks_for(header: str | None, seconds: float) -> None:
    assert delivery.asked_pause(header, NOW) == seconds
