"""What an alarm has to say, out of the entry that says so, for its page. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from gateway.fencing.record import Entry, Kind

GROUPS = (("Resources", "resource"), ("Holders", "holder"), ("Callers", "caller"))
"""What its refused writes are counted by: what that is called, and the filter of lists."""


@dataclass(frozen=True, slots=True)
class Told:
    """``count`` refused writes at resources that begin with ``prefix``, from ``since`` on, before ``until``.

    Both are whole seconds, as fields of forms have them, with all that was counted between them.
    ``groups``: by the filter, the most frequent names, which may be None, and how often. ``rejections``: the newest.
    ``raised``: of an alarm that is over, the entry that began it.
    """

    name: str
    prefix: str
    more_than: int
    minutes: int
    count: int
    since: datetime
    until: datetime
    groups: Mapping[str, list[tuple[str | None, int]]]
    rejections: list[UUID]
    raised: UUID | None


def told(entry: Entry) -> Told | None:
    """None of an entry that is about no alarm; or whose details are not those of one, and shown as they are."""
    details: Mapping[str, Any] = entry.details or {}
    try:
        minutes = int(details["minutes"])
        match entry.kind:
            case Kind.ALARM_RAISED:
                until = _moment(details["reached"])
                since = until
            case Kind.ALARM_CLEARED:
                since, until = _moment(details["since"]), _moment(details["until"])
            case _:
                return None
        return Told(
            name=str(details["alarm"]),
            prefix=str(details["prefix"]),
            more_than=int(details["more_than"]),
            minutes=minutes,
            count=int(details["count"]),
            since=(since - timedelta(minutes=minutes)).replace(microsecond=0),
            until=until.replace(microsecond=0) + timedelta(seconds=1),
            groups={name: [_counted(one) for one in details.get(f"{name}s", ())] for _, name in GROUPS},
            rejections=[UUID(one) for one in details.get("rejections", ())],
            raised=UUID(details["raised"]) if details.get("raised") else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _counted(one: Any) -> tuple[str | None, int]:
    name = one["name"]
    return None if name is None else str(name), int(one["count"])


def _moment(text: Any) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
