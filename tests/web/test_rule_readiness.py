"""When a rule that observes may be enforced."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.web.observe_mode import Readiness, rule_readiness

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
SINCE = NOW - timedelta(days=7)


@pytest.mark.parametrize(
    ("writes", "observed", "ago", "answer", "since"),
    [
        (0, 0, None, Readiness.UNKNOWN, None),
        (100, 0, None, Readiness.SAFE, SINCE),
        (100, 3, timedelta(hours=1), Readiness.NOT_SAFE, None),
        (100, 3, timedelta(hours=23, minutes=59), Readiness.NOT_SAFE, None),
        (100, 3, timedelta(days=1), Readiness.SAFE, NOW - timedelta(days=1)),
        (3, 3, timedelta(days=3), Readiness.SAFE, NOW - timedelta(days=3)),
    ],
)
def test_a_rule_is_safe_after_a_quiet_day(
    writes: int, observed: int, ago: timedelta | None, answer: Readiness, since: datetime | None
) -> None:
    last = None if ago is None else NOW - ago
    judged = rule_readiness(writes=writes, observed=observed, last=last, since=SINCE, now=NOW)
    assert (judged.answer, judged.since) == (answer, since)
