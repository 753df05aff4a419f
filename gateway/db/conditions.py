"""Filters as conditions in SQL on rows of ``fencing.entry``. They say what ``Filters.admit`` says."""

from collections.abc import Iterator
from datetime import UTC, date, timedelta

from gateway.fencing.record import Filters

# An entry is sealed after it has happened, so no day before can have it. The database's clock may have been put back,
# and a day is a generous correction.
_CORRECTION = timedelta(days=1)
_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class Values:
    """The values of a statement, in the order of their numbers."""

    def __init__(self, *values: object) -> None:
        self.all = [*values]

    def add(self, value: object) -> str:
        """How the statement refers to the value."""
        self.all.append(value)
        return f"${len(self.all)}"


def conditions(filters: Filters, values: Values) -> list[str]:
    """What must hold of a row, to be joined by AND; what they compare with is added to ``values``."""
    found = [operation.format(values.add(value)) for operation, value in _comparisons(filters)]
    if filters.enforced is not None:
        found.append("enforced" if filters.enforced else "NOT enforced")
    return found


def first_day(filters: Filters) -> date:
    """No day before this one has what is asked for."""
    if filters.since is None:
        return date.min
    try:
        return filters.since.astimezone(UTC).date() - _CORRECTION
    except OverflowError:  # at either end of the calendar
        return date.min


def after_prefix(prefix: str) -> str | None:
    """The least text that sorts after all that begin so, compared by code points; None where nothing does."""
    kept = prefix.rstrip(chr(_LAST))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _comparisons(filters: Filters) -> Iterator[tuple[str, object]]:
    match filters.kinds:
        case ():
            pass
        case (kind,):
            yield "kind = {}", str(kind)
        case kinds:
            yield "kind = ANY ({}::text[])", [str(kind) for kind in kinds]
    equal = {
        "resource": filters.resource,
        "holder": filters.holder,
        "caller": filters.caller,
        "reason": filters.reason,
        "plane": filters.plane,
        "rule": filters.rule,
    }
    yield from ((f"{column} = {{}}", value) for column, value in equal.items() if value is not None)
    if filters.prefix is not None:
        yield "resource >= {}", filters.prefix
        after = after_prefix(filters.prefix)
        if after is not None:
            yield "resource < {}", after
    if filters.token is not None:
        yield "epoch = {}", filters.token.epoch
        yield "value = {}", filters.token.value
    if filters.since is not None:
        yield "at >= {}", filters.since
    if filters.until is not None:
        yield "at < {}", filters.until
    if filters.shown_to is not None:
        yield "caller = {}", filters.shown_to
