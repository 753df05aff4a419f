"""Searches find what is there, whatever is asked for, in the order of the record, page by page, each entry once."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta, timezone

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db import record, search
from gateway.db.database import Database
from gateway.db.search import Grouping, Total, after_prefix, first_day
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.decision import Decision
from gateway.fencing.record import Entry, Filters, Kind, RecordedEvent
from gateway.fencing.token import Token
from tests.patience import patient
from tests.postgres import fresh_database
from tests.record.entries import DAYS, everything, of_days, partition_of

COUNT = 700


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    """The address of a record of many days."""
    async with fresh_database(postgres_server) as dsn:
        database = patient(dsn)
        await of_days(database, COUNT)
        await database.close()
        yield dsn


@pytest_asyncio.fixture
async def year(filled: str) -> AsyncIterator[tuple[Database, list[Entry]]]:
    """A record of many days, and all that is in it."""
    database = patient(filled)
    yield database, await everything(database)
    await database.close()


def filters(entries: list[Entry]) -> st.SearchStrategy[Filters]:
    """Return searches that a person could make: up to three filters, with values of some entry or of none."""

    def of(entry: Entry) -> dict[str, st.SearchStrategy[object]]:
        prefixes = ["", "job", "job/1", "job/1/", "s3/", "s3/bucket/3", "z", "\U0010ffff", (entry.resource or "")[:5]]
        return {
            "kinds": st.lists(st.sampled_from(Kind), max_size=2).map(lambda kinds: (entry.kind, *kinds)),
            "prefix": st.sampled_from(prefixes),
            "since": st.sampled_from([entry.at, entry.at - timedelta(days=1)]),
            "until": st.sampled_from([entry.at, entry.at + timedelta(days=1)]),
            "shown_to": st.sampled_from([entry.caller, "caller-1"]),
            "token": st.sampled_from([entry.token, Token(1, 2)]),
            **{
                name: st.sampled_from([getattr(entry, name), getattr(other, name), "nothing"])
                for other in entries[:1]
                for name in ("resource", "holder", "caller", "reason", "plane", "rule")
            },
            "enforced": st.just(entry.enforced),
        }

    def some(fields: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[Filters]:
        names = st.sets(st.sampled_from(sorted(fields)), max_size=3)
        return names.flatmap(lambda chosen: st.builds(Filters, **{name: fields[name] for name in chosen}))

    return st.sampled_from(entries).map(of).flatmap(some)


def examples(strategy: st.SearchStrategy[Filters], count: int) -> list[Filters]:
    found: list[Filters] = []

    @settings(max_examples=count, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def keep(one: Filters) -> None:
        found.append(one)

    keep()
    return found


class TestPages:
    @pytest.mark.thorough
    async def test_whatever_is_asked_for_is_what_the_rules_admit(self, year: tuple[Database, list[Entry]]) -> None:
        database, entries = year
        asked = examples(filters(entries), 150)
        assert sum(any(map(one.admit, entries)) for one in asked) > 40
        for one in asked:
            wanted = [entry.position for entry in entries if one.admit(entry)]
            newest = await search.find_page(database, one, COUNT)
            oldest = await search.find_page(database, one, COUNT, oldest_first=True)
            assert [entry.position for entry in newest] == wanted[::-1], one
            assert [entry.position for entry in oldest] == wanted, one
            assert await search.count_entries(database, one) == Total(len(wanted), exact=True), one

    async def test_between_two_positions(self, year: tuple[Database, list[Entry]]) -> None:
        database, entries = year
        for before, after in ((1, None), (None, COUNT), (351, 349), (200, 600), (2**62, None), (None, 0), (402, 130)):
            found = await search.find_page(database, Filters(), COUNT, before=before, after=after)
            lowest, highest = after or 0, COUNT + 1 if before is None else before
            assert found == [entry for entry in reversed(entries) if lowest < entry.position < highest]

    async def test_many_at_once(self, year: tuple[Database, list[Entry]]) -> None:
        """More than there are sessions for it wait their turn."""
        database, entries = year
        asked = Filters(holder="holder-3")
        found = await asyncio.gather(*(search.find_page(database, asked, COUNT) for _ in range(20)))
        assert all(one == [entry for entry in reversed(entries) if asked.admit(entry)] for one in found)


class TestTotals:
    @pytest.mark.parametrize(("cap", "total"), [(699, Total(699, exact=False)), (700, Total(700, exact=True))])
    async def test_beyond_the_cap_there_are_more_than_that(
        self, year: tuple[Database, list[Entry]], cap: int, total: Total
    ) -> None:
        assert await search.count_entries(year[0], Filters(), cap) == total

    @pytest.mark.parametrize("by", Grouping)
    async def test_groups(self, year: tuple[Database, list[Entry]], by: Grouping) -> None:
        database, entries = year
        asked = Filters(kinds=(Kind.REJECTION,), since=entries[300].at)
        groups = await search.count_groups(database, asked, by, 100)
        wanted: dict[str | None, list[Entry]] = {}
        for entry in filter(asked.admit, entries):
            wanted.setdefault(getattr(entry, by), []).append(entry)
        assert {(one.value, one.count, one.last) for one in groups} == {
            (value, len(found), max(entry.at for entry in found)) for value, found in wanted.items()
        }
        assert [one.count for one in groups] == sorted((one.count for one in groups), reverse=True)
        assert await search.count_groups(database, asked, by, 1) == groups[:1]

    async def test_groups_are_counted_of_the_newest(
        self, year: tuple[Database, list[Entry]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A search counts a bounded number of entries, so that no reader waits for a whole storm to be counted."""
        monkeypatch.setattr(search, "LOOKED_AT", 9)
        database, entries = year
        newest = [entry for entry in entries if entry.kind is Kind.REJECTION][-9:]
        groups = await search.count_groups(database, Filters(kinds=(Kind.REJECTION,)), Grouping.HOLDER, 100)
        assert {one.value: one.count for one in groups} == Counter(entry.holder for entry in newest)


class TestPlans:
    """Planning for a partition costs more than looking into it: as few of them as will do."""

    async def test_the_days_of_one_partition_are_planned_for_once(
        self, year: tuple[Database, list[Entry]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database, _ = year
        planned = await plans(database, monkeypatch, Filters(holder="nobody"))
        today = (await database.now()).date()
        rows = await database.fetch("SELECT name FROM fencing.stretches_v1() WHERE first <= $1 ORDER BY name", today)
        past = [row["name"] for row in rows]
        assert len(past) == DAYS - 3, "one day has no partition, and three have one"
        assert sorted(name for one in planned for name in one if name != "entry_other") == past
        assert len(planned) == 3, "the newest, a few, and all others"

    async def test_a_page_that_the_newest_of_them_fills_plans_for_no_other(
        self, year: tuple[Database, list[Entry]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database, _ = year
        today = await partition_of(database, (await database.now()).date())
        assert await plans(database, monkeypatch, Filters(), limit=3, total=False) == [[today]]


async def plans(
    database: Database, monkeypatch: pytest.MonkeyPatch, asked: Filters, *, limit: int = 10, total: bool = True
) -> list[list[str]]:
    """Which partitions each statement of a search has been planned for, as often as they are in its plan."""
    sent: list[tuple[str, tuple[object, ...]]] = []
    send = database.search

    async def noted(sql: str, *values: object) -> list[asyncpg.Record]:
        sent.append((sql, values))
        return await send(sql, *values)

    monkeypatch.setattr(database, "search", noted)
    if total:
        await search.read_page(database, search.Slice(asked, limit))
    else:
        await search.find_page(database, asked, limit)
    monkeypatch.undo()
    found = []
    for sql, values in sent:
        if "fencing.stretches_v1" not in sql:
            plan = "\n".join(row[0] for row in await database.search("EXPLAIN " + sql, *values))
            found.append(re.findall(r"(?:Seq Scan|Heap Scan|Index Scan .*?|Index Only Scan .*?) on (entry_\w+)", plan))
    return found


class TestOne:
    async def test_the_takeover_is_the_first_beyond_its_token(self, database: Database) -> None:
        resource = "job/1"
        for kind, value, other in (
            (Kind.RAISED, 33, resource),
            (Kind.RAISED, 90, "job/2"),
            (Kind.LEASE_GRANTED, 40, resource),
            (Kind.BARRIER, 34, resource),
            (Kind.RAISED, 35, resource),
        ):
            happening = RecordedEvent(kind, resource=other, token=Token(0, value), holder=f"holder-{value}")
            await record.record_event(database, happening)
        await database.fetch_write(
            "INSERT INTO fencing.intake "
            "(kind, resource, reason, epoch, value, fence_epoch, fence_value, fence_raised_at, at) "
            "SELECT 'rejection', $1, $2, 0, 33, 0, 35, raised.at, raised.at + interval '5 s' "
            "FROM (SELECT max(at) AS at FROM fencing.intake) AS raised",
            resource,
            Decision.STALE,
        )
        await record.record_event(database, RecordedEvent(Kind.RAISED, resource=resource, token=Token(1, 0)))
        (rejection,) = await search.find_page(database, Filters(kinds=(Kind.REJECTION,)), 10)
        takeover = await search.find_takeover(database, rejection)
        assert takeover is not None
        assert (takeover.kind, takeover.holder) == (Kind.BARRIER, "holder-34")
        assert search.lag(rejection, takeover) == rejection.at - takeover.at > timedelta(seconds=5)
        assert search.lag(rejection, None) == timedelta(seconds=5)

    async def test_who_was_not_overtaken_has_no_lag(self, year: tuple[Database, list[Entry]]) -> None:
        database, entries = year
        lease = next(one for one in entries if one.kind is Kind.ADMINISTRATION and one.resource is None)
        assert await search.find_takeover(database, lease) is None


@pytest.mark.parametrize(
    ("prefix", "after"),
    [("job/", "job0"), ("a\U0010ffff", "b"), ("\U0010ffff", None), ("", None), ("\ud7ff", "\ue000"), ("é", "ê")],
)
async def test_the_least_text_after_a_prefix(prefix: str, after: str | None) -> None:
    assert after_prefix(prefix) == after


@pytest.mark.parametrize(
    ("since", "day"),
    [
        (None, date.min),
        (datetime(2026, 3, 2, 0, 30, tzinfo=timezone(timedelta(hours=2))), date(2026, 2, 28)),
        (datetime.min.replace(tzinfo=UTC), date.min),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))), date.min),
    ],
)
async def test_the_first_day_that_may_have_it(since: datetime | None, day: date) -> None:
    """In UTC, and a day before: the clock of the database may have been put back."""
    assert first_day(Filters(since=since)) == day
