"""Whether a rule that observes could be enforced: from what would have been refused. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

QUIET = timedelta(days=1)
"""For so long nothing must have happened that would have been refused."""


class Answer(StrEnum):
    """What is to be said about a rule."""

    SAFE = "safe"
    NOT_SAFE = "not-safe"
    UNKNOWN = "unknown"
    """Nothing was written under it: nothing can be said."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``since``: nothing would have been refused since then; ``writes``: those of the span that were seen."""

    answer: Answer
    since: datetime | None
    writes: int
    observed: int
    last: datetime | None


def verdict(*, writes: int, observed: int, last: datetime | None, since: datetime, now: datetime) -> Verdict:
    """Judge the span from ``since`` until ``now``: so many writes, of which so many would have been refused.

    ``last`` is when the last one of those happened, in the span.
    """
    if writes == 0:
        return Verdict(Answer.UNKNOWN, None, 0, 0, None)
    if observed == 0 or last is None:
        return Verdict(Answer.SAFE, since, writes, 0, None)
    if now - last < QUIET:
        return Verdict(Answer.NOT_SAFE, None, writes, observed, last)
    return Verdict(Answer.SAFE, last, writes, observed, last)
