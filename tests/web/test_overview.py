"""The overview: a verdict with the worst thing first, charts of bars over time, and rules with their traffic."""

import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from gateway.config import Config
from gateway.db.traffic import RuleTraffic, WriteCounts
from gateway.enforcement import Readiness, rule_readiness, rules_with_traffic
from gateway.fencing.decision import Enforcement, Fence
from gateway.fencing.incident import Acknowledgement, Incident, IncidentKey, Notable, RefusalCount, RefusalCounts
from gateway.fencing.record import MissingGrant
from gateway.fencing.token import Token
from gateway.findings import MOST_COUNTED, Standing, plain
from gateway.web.chart import Bar, Step, draw, sparks
from gateway.web.overview_verdict import STORM, Facts, Finding, assess

NOW = datetime(2026, 11, 24, 3, 20, tzinfo=UTC)
TAKEN = datetime(2026, 11, 24, 3, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=5)
IDLE = Standing(
    now=NOW, intents=0, intents_since=None, oldest_intent=None, tombstones=0, uploads=0, left=0, left_in=None,
    unsealed=0, unsealed_since=None, held=0, waiters=0, position=9, hash="", day=NOW.date(), sealed_at=NOW,
)  # fmt: skip
QUIET = Facts(
    NOW, NOW - timedelta(hours=24), "the last 24 hours", {"postgres": "ok", "s3": "ok"}, accepted=7, standing=IDLE
)
ZOMBIE = Incident(
    key=IncidentKey("token-stale", "worker", "orders/42", Token(0, 33), "worker-7"),
    count=12,
    passed=0,
    first=TAKEN,
    last=NOW,
    first_position=1,
    last_position=12,
    resource="orders/42",
    same=True,
    steps=(),
    inside=12,
    id=UUID(int=5),
    fence=Fence("orders/42", Token(0, 34), "worker-9", "worker", TAKEN),
)


def of_reason(reason: str, count: int = 2, **more: Any) -> Incident:
    key = replace(ZOMBIE.key, reason=reason) if reason.startswith("token-") else IncidentKey(reason, "importer")
    return replace(ZOMBIE, key=key, count=count, **more)


def seen(incident: Incident, minutes: float) -> Incident:
    note = Acknowledgement(UUID(int=9), NOW - timedelta(minutes=minutes), "ann", "on it")
    return replace(incident, acknowledgements=(note,))


def said(finding: Finding) -> str:
    return plain(finding.sentence)


def of(*incidents: Incident) -> dict[str, Any]:
    return {"incidents": list(incidents)}


DENIED = of_reason("denied", 1, missing=MissingGrant("write", "table public.stock"))
COUNTS = [("token-stale", False, 12), ("denied", False, 1), ("token-stale", True, 1)]
REFUSALS = [RefusalCount(EARLIER, reason, passed, None, None, count, EARLIER) for reason, passed, count in COUNTS]
OVER = {"refusals": RefusalCounts(REFUSALS), "guard": Notable(1, EARLIER, None)}
VERDICTS: list[tuple[dict[str, Any], str, str]] = [
    (
        of(ZOMBIE),
        "bad",
        (
            "worker-7 wrote orders/42 just now with token 33; worker-9 took over with token 34 at "
            "2026-11-24T03:12:00+00:00. It tried 12 late writes. All were refused."
        ),
    ),
    (
        of(replace(ZOMBIE, last=NOW - timedelta(seconds=40))),
        "bad",
        (
            "worker-7 wrote orders/42 40 seconds ago with token 33; worker-9 took over with token 34 at "
            "2026-11-24T03:12:00+00:00. It tried 12 late writes. All were refused."
        ),
    ),
    (
        of(replace(ZOMBIE, passed=3)),
        "bad",
        "3 of 12 took effect, because the rule only observes. The others were refused.",
    ),
    (of(seen(ZOMBIE, 4)), "bad", "ann acknowledged it at 2026-11-24T03:16:00+00:00; it has gone on since."),
    (
        of(DENIED),
        "warned",
        "importer is denied 1 request that no grant covers; the last lacks write for table public.stock.",
    ),
    (
        of(replace(DENIED, passed=1)),
        "warned",
        (
            "importer made 1 request that a rule refuses once it enforces: no grant; the last lacks write for table "
            "public.stock. It took effect, because the rule only observes."
        ),
    ),
    ({}, "good", "All is quiet: no write was refused in the last 24 hours."),
    ({"accepted": 0}, "good", "No write was accepted either."),
    (
        {"guard": Notable(2, EARLIER, None)},
        "warned",
        "2 refusals by the guard of which only the count is known in the last 24 hours.",
    ),
    (
        {**of(replace(ZOMBIE, last=EARLIER)), **OVER},
        "good",
        (
            "Nothing is going on. In the last 24 hours 12 writes of zombies were refused, 1 other request was "
            "refused and 1 late write passed, the last at 2026-11-23T22:20:00+00:00. Every incident is resolved."
        ),
    ),
]


@pytest.mark.parametrize(("facts", "level", "sentence"), VERDICTS)
def test_a_verdict_is_a_sentence(facts: dict[str, Any], level: str, sentence: str) -> None:
    (finding,) = assess(replace(QUIET, **facts))
    assert finding.level == level
    assert said(finding).endswith(sentence)
    assert bool(finding.address) is bool(finding.title), "a link has a text"


UNSETTLED = replace(IDLE, intents=2, intents_since=EARLIER, oldest_intent="reports/a")
UNSEALED = replace(IDLE, unsealed=MOST_COUNTED, unsealed_since=EARLIER)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"health": {"postgres": "unreachable", "s3": "ok"}}, "The database cannot be reached"),
    ({"health": {"postgres": "ok", "s3": "unreachable"}}, "The store cannot be reached"),
    ({"journal": "missing"}, "The journal is in trouble: missing."),
    ({"buckets": {"reports": "it ignores If-Match"}}, "The bucket reports takes no fenced write: it ignores If-Match."),
    ({"bypasses": Notable(1, NOW, "orders/1")}, "1 change was made past the gateway"),
    ({"incidents": [replace(ZOMBIE, passed=12)]}, "worker-7 wrote orders/42 just now with token 33; worker-9 took"),
    ({"incidents": [ZOMBIE]}, "worker-7 wrote orders/42 just now with"),
    (
        {"incidents": [of_reason("token-duplicate")]},
        "worker-7 wrote orders/42 just now with token 33, which worker-9 has",
    ),
    ({"incidents": [of_reason("token-used")]}, "worker-7 wrote orders/42 just now again with token 33, which may"),
    (
        {"incidents": [of_reason("token-implausible")]},
        "worker-7 wrote orders/42 just now with token 33, which the policy",
    ),
    ({"incidents": [of_reason("denied", STORM)]}, "importer is denied 100 requests that no grant covers"),
    (
        {"guard": Notable(3, NOW, "public.orders")},
        "3 refusals by the guard of which only the count is known. The last",
    ),
    ({"standing": UNSETTLED}, "2 object writes are not settled, the oldest since"),
    ({"standing": replace(IDLE, left=1, left_in="reports")}, "1 upload was left behind by gateways that went away"),
    ({"standing": UNSEALED}, "The record lags: 10,000 or more entries are not sealed"),
    ({"webhooks": {"pager": EARLIER}}, "The webhook pager does not get through since"),
    ({"alarms": {"zombies": EARLIER}}, "The alarm zombies is on since"),
    ({"bypasses": Notable(2, EARLIER, None)}, "2 changes were made past the gateway"),
    ({"incidents": [seen(ZOMBIE, -1)]}, "worker-7 wrote orders/42 just now, and ann acknowledged"),
]
"""Everything that can be wrong, in the order of its severity."""


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_each_thing_that_is_wrong_has_a_sentence_and_advice(wrong: dict[str, Any], sentence: str) -> None:
    (finding,) = assess(replace(QUIET, **wrong))
    assert said(finding).startswith(sentence)
    assert finding.level != "good"
    assert plain(finding.advice).endswith(".")
    assert "None" not in said(finding) + plain(finding.advice)


@pytest.mark.parametrize("number", range(len(WRONG) - 1))
def test_the_worse_of_two_comes_first(number: int) -> None:
    (worse, sentence), (other, _) = WRONG[number], WRONG[number + 1]
    facts = {**other, **worse}
    for name in ("incidents", "health"):
        if name in worse and name in other:
            facts[name] = [*other[name], *worse[name]] if name == "incidents" else {**other[name], **worse[name]}
    assert said(assess(replace(QUIET, **facts))[0]).startswith(sentence)


def test_an_observed_write_without_a_token_is_not_called_refused_and_comes_after_a_zombie() -> None:
    observed = of_reason("token-required", 1, passed=1)
    observed = replace(observed, key=IncidentKey("token-required", "importer"))
    first, second = assess(replace(QUIET, incidents=[observed, ZOMBIE]))
    assert said(first).startswith("worker-7 wrote orders/42 just now with")
    assert second.level == "warned"
    assert said(second) == (
        "importer made 1 request that a rule refuses once it enforces: no token. "
        "It took effect, because the rule only observes."
    )
    assert plain(second.advice).startswith("Run its program under a lock")
    (some,) = assess(replace(QUIET, incidents=[replace(observed, count=5, passed=3)]))
    assert said(some).endswith("3 of 5 took effect, because the rule only observes. The others were refused.")


def test_a_late_request_that_is_no_write_is_not_called_one() -> None:
    (alone,) = assess(replace(QUIET, incidents=[replace(ZOMBIE, count=1, requests=1)]))
    assert said(alone).startswith("worker-7 sent a request for orders/42 just now with token 33; worker-9 took over")
    assert said(alone).endswith("It tried 1 late request that is no write. It was refused.")
    (among,) = assess(replace(QUIET, incidents=[replace(ZOMBIE, requests=2)]))
    assert said(among).endswith("It tried 10 late writes and 2 other requests. All were refused.")
    counts = RefusalCounts(
        [
            RefusalCount(NOW, "token-stale", passed=False, plane=plane, rule=None, count=1, last=NOW)
            for plane in ("api", "tables")
        ]
    )
    assert (counts.zombies, counts.zombie_requests, counts.others) == (1, 1, 1)


def test_more_incidents_than_are_named_are_counted_over_all() -> None:
    findings = assess(*(replace(QUIET, database=name, incidents=[ZOMBIE] * 4) for name in ("north", "south")))
    assert said(findings[-1]) == "3 more incidents are going on."
    assert sum(one.count for one in findings) == 8
    assert "of=" not in (findings[-1].address or "")


NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
QUARTER = timedelta(minutes=15)


def step(number: int, *counts: int) -> Step:
    since = NOON + number * QUARTER
    values = [("zombies", "of zombies", counts[0]), ("others", "for other reasons", sum(counts[1:]))]
    return Step(since, since + QUARTER, values, f"/ui/rejections?n={number}")


def test_the_highest_column_is_full_and_its_parts_stand_upon_each_other() -> None:
    drawn = draw([step(0, 10, 30), step(1, 0), step(2, 20)], NOON + 3 * QUARTER)
    assert drawn.highest == 40
    assert drawn.columns[0].bars == (Bar("zombies", 75.0, 25.0), Bar("others", 0.0, 75.0))
    assert drawn.columns[1].bars == ()
    assert drawn.columns[2].bars == (Bar("zombies", 50.0, 50.0),)
    assert [column.left for column in drawn.columns] == [0, 10, 20]


def test_one_refusal_beside_thousands_is_seen() -> None:
    drawn = draw([step(0, 1), step(1, 100_000)], NOON + 2 * QUARTER)
    assert drawn.columns[0].bars[0].height >= 2


def test_a_step_that_is_not_over_is_partial_and_says_so() -> None:
    done, partial = draw([step(0, 5), step(1, 1)], NOON + 1.5 * QUARTER).columns
    assert not done.partial
    assert partial.partial
    assert done.title == "2026-11-24 12:00:00 to 2026-11-24 12:15:00: 5 of zombies"
    assert partial.title == "2026-11-24 12:15:00 to 2026-11-24 12:22:30, not complete: 1 of zombies"
    assert partial.address == "/ui/rejections?n=1"


def test_a_small_chart_has_all_counts_within_its_time() -> None:
    counts = [(NOON - QUARTER, 1), (NOON, 2), (NOON + QUARTER, 3), (NOON + 4 * QUARTER, 4)]
    drawn = sparks(counts, NOON, NOON + 4 * QUARTER, 4)
    assert [len(column.bars) for column in drawn.columns] == [1, 1, 0, 1]
    assert drawn.highest == 4
    assert not any(column.partial for column in drawn.columns)


def test_a_small_chart_may_end_where_the_calendar_ends() -> None:
    """A viewer may ask for all time, and a column of it is two centuries."""
    end = datetime(9999, 12, 30, tzinfo=UTC)
    drawn = sparks([(NOON, 1)], datetime(1, 1, 2, tzinfo=UTC), end)
    assert drawn.highest == 1
    assert not any(column.partial for column in drawn.columns)


CONFIG = Config.model_validate(
    {
        "postgres": {"dsn": "postgresql://nowhere"},
        "fencing": {"mode": "observe"},
        "tables": [{"name": "public.a", "mode": "enforce"}, {"name": "public.b"}],
        "objects": [{"match": 'x"\\y/**'}],
    }
)


def traffic(plane: str, rule: str) -> RuleTraffic:
    return RuleTraffic(plane, rule, WriteCounts(1, 2, 3), None, None, None)


def test_rules_with_traffic_come_first() -> None:
    found = rules_with_traffic(
        CONFIG, [traffic("tables", "public.c"), traffic("tables", "public.b"), traffic("objects", "public.a")]
    )
    assert [(one.rule.plane, one.rule.name, one.rule.mode, one.rule.configured) for one in found] == [
        ("tables", "public.c", Enforcement.OBSERVE, False),
        ("tables", "public.b", Enforcement.OBSERVE, True),
        ("objects", "public.a", Enforcement.OBSERVE, False),
        ("tables", "public.a", Enforcement.ENFORCE, True),
        ("objects", 'x"\\y/**', Enforcement.OBSERVE, True),
    ]
    assert [one.counts.refused for one in found] == [2, 2, 2, 0, 0]


def test_the_change_of_configuration_is_the_whole_rule() -> None:
    """A rule that is pasted without its resource gives rows other names, and forgets their fences."""
    config = Config.model_validate(
        {
            "postgres": {"dsn": "postgresql://nowhere"},
            "fencing": {"mode": "observe", "equal": "strict"},
            "tables": [
                {"name": "public.b", "resource": "order/{id}", "version": "changed", "equal": "strict"},
                {"name": "public.w", "resource": "w", "mode": "observe"},
            ],
            "objects": [{"match": 'x"\\y/{id}/**', "resource": "order/{id}"}],
        }
    )
    listed = rules_with_traffic(config, [traffic("tables", "public.c")])
    for one in listed:
        pasted = Config.model_validate({"postgres": {"dsn": "x"}, **tomllib.loads(one.rule.change)})
        if one.rule.configured:
            rule = next(
                each for each in (*config.tables, *config.objects) if one.rule.name in each.model_dump().values()
            )
            assert (*pasted.tables, *pasted.objects) == (rule.model_copy(update={"mode": Enforcement.ENFORCE}),)
        else:
            assert pasted.fencing == config.fencing.model_copy(update={"mode": Enforcement.ENFORCE})
    assert len(listed) == 4


SEEN = datetime(2026, 3, 8, 12, tzinfo=UTC)
SINCE = SEEN - timedelta(days=7)


@pytest.mark.parametrize(
    ("writes", "observed", "ago", "answer", "since"),
    [
        (0, 0, None, Readiness.UNKNOWN, None),
        (0, 3, timedelta(hours=1), Readiness.NOT_READY, None),
        (100, 0, None, Readiness.READY, SINCE),
        (100, 3, timedelta(hours=1), Readiness.NOT_READY, None),
        (100, 3, timedelta(hours=23, minutes=59), Readiness.NOT_READY, None),
        (100, 3, timedelta(days=1), Readiness.READY, SEEN - timedelta(days=1)),
        (3, 3, timedelta(days=3), Readiness.READY, SEEN - timedelta(days=3)),
    ],
)
def test_a_rule_is_safe_after_a_quiet_day(
    writes: int, observed: int, ago: timedelta | None, answer: Readiness, since: datetime | None
) -> None:
    last = None if ago is None else SEEN - ago
    judged = rule_readiness(writes=writes, claimed=False, observed=observed, last=last, since=SINCE, now=SEEN)
    assert (judged.answer, judged.since) == (answer, since)


def test_sessions_that_hold_tokens_are_evidence_although_no_write_of_theirs_is_counted() -> None:
    judged = rule_readiness(writes=0, claimed=True, observed=0, last=None, since=SINCE, now=SEEN)
    assert (judged.answer, judged.since, judged.writes) == (Readiness.READY, SINCE, 0)
