"""The pause before a request to the API is sent again: doubling, random, and as long as the answer asks for. Pure."""

import random
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

FIRST = 0.05
LONGEST = 1.0
"""Seconds of the first pause at most, and of every later one."""

MOST_ASKED = 2.0
"""Seconds of ``Retry-After`` that are kept to. A queue keeps the place of a client that is away for five."""

_MOST_SECONDS = 86400.0
_SECONDS = re.compile(r"[0-9]{1,18}")
_DATE = "%a, %d %b %Y %H:%M:%S GMT"


def pause(failures: int, asked: float | None, draw: Callable[[], float] = random.random) -> float:
    """Return the seconds to wait after so many ``failures`` in a row, from 1 on. ``asked``: what the answer asks for.

    ``draw`` returns a number from 0 to 1. Clients that failed together must not come back together.
    """
    doubled = min(FIRST * 2.0 ** min(failures - 1, 16), LONGEST)
    return max(doubled * (0.5 + draw() / 2), min(asked or 0.0, MOST_ASKED))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the header ``Retry-After``; None without one that can be read.

    A date counts from the ``Date`` of the same answer, so that no two clocks are compared.
    """
    asked = headers.get("retry-after", "").strip(" \t")
    if _SECONDS.fullmatch(asked):
        return min(float(asked), _MOST_SECONDS)
    until, now = _moment(asked), _moment(headers.get("date", "").strip(" \t"))
    if until is None or now is None:
        return None
    return min(max((until - now).total_seconds(), 0.0), _MOST_SECONDS)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.strptime(text, _DATE).replace(tzinfo=UTC)
    except ValueError:
        return None
    return moment if len(text) == len("Thu, 01 Jan 1970 00:00:00 GMT") else None
