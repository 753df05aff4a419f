"""Incidents in the record, and the counts of refusals: aggregated by the database, over the newest refusals of a time.

``gateway.fencing.incident`` defines an incident. A storm of 100,000 refusals is a few hundred rows here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from gateway.db import record, search
from gateway.db.database import Database, Record
from gateway.db.pool import columns, load
from gateway.db.search import Values, conditions, first_day
from gateway.errors import NotFound
from gateway.fencing.incident import (
    GAP,
    MOST_NOTES,
    OF_A_TOKEN,
    Incident,
    IncidentKey,
    Notable,
    RefusalCount,
    RefusalCounts,
    Tally,
    group,
    key_of,
    with_acknowledgements,
)
from gateway.fencing.record import Entry, Filters, Kind, missing_grant
from gateway.fencing.token import pair

_SQL = load("incidents")

LOOKED_AT = 200_000
"""The most refusals that are counted, the newest of a time. A page must not wait for a longer storm."""
MOST = 200
"""The most incidents of one answer."""
LONGEST = timedelta(days=30)
"""The refusals of one incident that are looked for, before and after the one that leads to it."""

DETAIL = timedelta(minutes=5)
"""The steps of a single incident. A time of twice ``LONGEST`` has fewer of them than are read."""
_MOST_TALLIES = 20_000
_MOST_ACKNOWLEDGEMENTS = 4 * MOST_NOTES
"""The most acknowledgements of incidents with the same key. Notes on other incidents take none of this room."""
_MOST_CUT = 20
"""The most incidents of a list that are looked for beyond ``GAP`` before its time, with a search for each."""


@dataclass(frozen=True, slots=True)
class FoundIncidents:
    """Incidents, the one with the newest refusal first. ``complete``: there are no others in that time."""

    incidents: Sequence[Incident]
    complete: bool


async def count_refusals(database: Database, since: datetime, until: datetime, step: timedelta) -> RefusalCounts:
    """Count the refusals from ``since`` until ``until``, in steps that begin at ``since``."""
    await record.seal(database)
    filters = Filters(since=since)
    rows = await database.search(_with(_SQL["counts"], ()), first_day(filters), since, until, LOOKED_AT, step)
    counts = [
        RefusalCount(
            row["step"], row["reason"] or "", row["passed"], row["plane"], row["rule"], row["refusals"], row["last"]
        )
        for row in rows
    ]
    return RefusalCounts(counts, sum(one.count for one in counts) < LOOKED_AT)


async def find_incidents(
    database: Database, filters: Filters, now: datetime, *, step: timedelta = GAP, limit: int = MOST
) -> FoundIncidents:
    """Return the incidents with a refusal that matches. ``filters.since`` is set; ``kinds`` does not count.

    An incident that began before that time is whole all the same; ``inside`` counts its refusals within. If there are
    many of these, only the newest are followed back for more than ``GAP``.
    """
    since, until = filters.since, filters.until or _moved(now, LONGEST)
    assert since is not None
    await record.seal(database)
    window = _Window(_moved(since, -GAP), _moved(until, GAP), since, until)
    tallies = await _tallies(database, filters, window, min(step, GAP))
    found = [one for one in group(tallies) if one.inside]
    complete = len(found) <= limit and len(tallies) < _MOST_TALLIES and sum(one.count for one in tallies) < LOOKED_AT
    shown = list(found[:limit])
    cut = [number for number, one in enumerate(shown) if one.first < since or one.last >= until]
    for number in cut[:_MOST_CUT]:
        shown[number] = await _whole(database, shown[number], window)
    steps = [replace(one, steps=tuple(step for step in one.steps if since <= step[0] < until)) for one in shown]
    return FoundIncidents(await _in_context(database, steps, _moved(since, -LONGEST)), complete)


def _moved(moment: datetime, by: timedelta) -> datetime:
    """Return a later or an earlier moment. At either end of the calendar, return the same one."""
    try:
        return moment + by
    except OverflowError:
        return moment


def of_the_last_day(filters: Filters, now: datetime) -> Filters:
    return replace(filters, since=_moved(filters.until or now, -timedelta(hours=24)))


async def find_incident(database: Database, identifier: UUID, shown_to: str | None = None) -> Incident:
    """Return the incident of a refused write. Raise ``NotFound`` if it is none, or ``shown_to`` may not see it."""
    entry = await search.find_entry(database, identifier, shown_to)
    if entry.kind is not Kind.REJECTION:
        raise NotFound(f"The entry {identifier} is no refused write.", advice=f"Request /v1/events/{identifier}.")
    since = entry.at - LONGEST
    found = await _of_key(database, key_of(entry), since, entry.at + LONGEST)
    incident = next((one for one in found if one.first <= entry.at <= one.last), None)
    if incident is None:
        raise NotFound(f"The incident of {identifier} is too large to be shown.", advice="Search the record.")
    (whole,) = await _in_context(database, [incident], incident.first)
    return whole


async def find_newest(database: Database, incident: Incident, limit: int) -> list[Entry]:
    day = first_day(Filters(since=incident.first))
    values = Values(day, incident.first_position, incident.last_position, limit)
    rows = await database.search(_with(_SQL["newest"], _of(incident.key, values)), *values.all)
    return [record.entry_from_row(row) for row in rows]


async def count_notable(database: Database, since: datetime) -> dict[Kind, Notable]:
    """Return the changes past the gateway, and the refusals of guards, since a time."""
    await record.seal(database)
    rows = await database.search(_SQL["notable"], first_day(Filters(since=since)), since, LOOKED_AT)
    return {Kind(row["kind"]): Notable(row["entries"], row["last"], row["about"]) for row in rows}


@dataclass(frozen=True, slots=True)
class _Window:
    """The time in which refusals are looked for, and the time within it that was asked for."""

    begin: datetime
    end: datetime
    since: datetime
    until: datetime


async def _tallies(
    database: Database, filters: Filters, window: _Window, step: timedelta, key: IncidentKey | None = None
) -> list[Tally]:
    day = first_day(Filters(since=window.begin))
    most = (list(OF_A_TOKEN), _MOST_TALLIES)
    values = Values(day, window.begin, window.end, LOOKED_AT, step, *most, window.since, window.until)
    wanted = conditions(replace(filters, kinds=(), since=None, until=None), values)
    if key is not None:
        wanted += _of(key, values)
    return [_tally(row) for row in await database.search(_with(_SQL["tallies"], wanted), *values.all)]


def _tally(row: Record) -> Tally:
    token = record.token_from_row(row)
    key = IncidentKey(row["reason"] or "", row["caller"], row["key_resource"], token, row["key_holder"])
    same = [name for name in Tally.__slots__ if name not in ("key", "count")]
    return Tally(key, count=row["refusals"], **{name: row[name] for name in same})


def _of(key: IncidentKey, values: Values) -> list[str]:
    """Return the conditions of a key. An index helps with ``=``, and not with ``IS NOT DISTINCT FROM``."""
    columns: dict[str, object] = {"reason": key.reason, "caller": key.caller}
    if key.of_a_token:
        epoch, value = pair(key.token)
        columns |= {"resource": key.resource, "holder": key.holder, "value": value, "epoch": epoch}
    return [
        f"{column} IS NULL" if value is None else f"{column} = {values.add(value)}" for column, value in columns.items()
    ]


async def _of_key(database: Database, key: IncidentKey, begin: datetime, end: datetime) -> list[Incident]:
    return group(await _tallies(database, Filters(), _Window(begin, end, begin, end), DETAIL, key))


async def _whole(database: Database, incident: Incident, window: _Window) -> Incident:
    begin, end = _moved(window.since, -LONGEST), _moved(window.until, LONGEST)
    found = await _of_key(database, incident.key, begin, end)
    whole = next((one for one in found if one.first <= incident.last and incident.first <= one.last), None)
    return incident if whole is None else replace(whole, inside=incident.inside, steps=incident.steps)


async def _in_context(database: Database, incidents: Sequence[Incident], since: datetime) -> list[Incident]:
    """Fill in what an incident takes from the record. ``since``: no refusal of them is older."""
    if not incidents:
        return []
    day = first_day(Filters(since=since))
    ends = {position for one in incidents for position in (one.first_position, one.last_position)}
    rows = await database.search(_SQL["entries"], day, list(ends))
    entries = {row["position"]: record.entry_from_row(row) for row in rows}
    asked = [one for one in incidents if one.key.of_a_token and one.key.token is not None]
    of_tokens = (
        (one.key.resource, *pair(one.key.token), one.key.holder, one.key.caller, one.last_position) for one in asked
    )
    newer = await database.search(_SQL["renewed"], day, *columns(of_tokens, 6))
    renewed = {asked[row["number"] - 1].first_position for row in newer}
    after = min(one.first_position for one in incidents)
    keys = sorted({_written(one.key) for one in incidents})
    wanted = (list(OF_A_TOKEN), keys, _MOST_ACKNOWLEDGEMENTS)
    notes = await database.search(_SQL["acknowledgements"], day, after, *wanted)
    filled = [_filled(one, entries, renewed) for one in incidents]
    return with_acknowledgements(filled, map(record.entry_from_row, notes))


def _written(key: IncidentKey) -> str:
    if not key.of_a_token:
        return json.dumps([key.reason, key.caller])
    epoch, value = pair(key.token)
    return json.dumps([key.reason, key.caller, key.resource, epoch, value, key.holder])


def _filled(incident: Incident, entries: dict[int, Entry], renewed: set[int]) -> Incident:
    first, last = entries.get(incident.first_position), entries.get(incident.last_position)
    return replace(
        incident,
        id=None if first is None else first.id,
        last_id=None if last is None else last.id,
        fence=None if first is None or not incident.key.of_a_token else first.fence,
        missing=None if last is None else missing_grant(last.details),
        renewed=incident.first_position in renewed,
    )


def _with(sql: str, wanted: Sequence[str]) -> str:
    return sql.replace("{conditions}", "".join(f" AND {condition}" for condition in wanted))
