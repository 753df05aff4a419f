"""When a message that was not taken is sent again: later each time, never at the same time as all others."""

from datetime import datetime
from email.utils import parsedate_to_datetime

FIRST, LONGEST = 1.0, 3600.0
"""Seconds from the first failure to the next attempt; and at most."""
MOST_ASKED = 86400.0
"""Seconds: no receiver can ask for a longer rest."""


def pause(failures: int, chance: float) -> float:
    """Seconds after so many failures in a row. ``chance``, from 0 to 1, spreads them over the upper half."""
    whole = min(LONGEST, FIRST * 2.0 ** min(failures, 64))
    return max(FIRST, whole * (1 + chance) / 2)


def asked(retry_after: str | None, now: datetime) -> float:
    """Seconds that an answer asks for in ``Retry-After``, a number or a date (RFC 9110, 10.2.3); 0 where it does not.

    ``now`` is aware.
    """
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return min(MOST_ASKED, float(text[:9]))
    try:
        moment = parsedate_to_datetime(text)
        seconds = (moment - now).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no date, or one without a zone
        return 0.0
    return min(MOST_ASKED, max(0.0, seconds))
