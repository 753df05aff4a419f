"""The sample of the demo agrees with itself, with the rules of fencing, and with what the demo is configured with."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from gateway.demo import demonstration as demo
from gateway.demo import incident
from gateway.demo.chronicle import Actor, BarrierAct, Chronicle, Columns
from gateway.fencing.record import Kind
from gateway.fencing.token import Token

NOW = datetime(2026, 3, 1, 9, 20, 30, tzinfo=UTC)
TAKEOVERS = (Kind.RAISED, Kind.BARRIER, Kind.EPOCH)


@pytest.fixture(scope="module")
def told() -> Chronicle:
    return incident.compose(NOW)


def fence_of(entry: Columns) -> tuple[int, int]:
    return entry["fence_epoch"], entry["fence_value"]


def token_of(entry: Columns) -> tuple[int, int]:
    return entry["epoch"], entry["value"]


def test_it_is_the_same_each_time(told: Chronicle) -> None:
    again = incident.compose(NOW)
    assert (again.entries, again.fences, again.traffic) == (told.entries, told.fences, told.traffic)


@pytest.mark.parametrize(
    "later", [timedelta(minutes=7), timedelta(hours=5, minutes=39, seconds=30), timedelta(days=40)]
)
def test_it_can_be_told_at_any_hour(later: timedelta) -> None:
    entries = incident.compose(NOW + later).entries
    assert {Kind(entry["kind"]) for entry in entries} >= {Kind.REJECTION, Kind.ALARM_RAISED, Kind.SETTLED, Kind.BYPASS}
    assert all(datetime.fromisoformat(entry["at"]) < NOW + later for entry in entries)


def test_whoever_was_refused_had_been_overtaken_before_and_that_is_on_record(told: Chronicle) -> None:
    standing: dict[str, Columns] = {}
    refused = 0
    for entry in told.entries:
        resource = str(entry.get("resource"))
        if entry["kind"] in TAKEOVERS:
            if before := standing.get(resource):  # the very first write of a resource is not on record
                assert fence_of(entry) == token_of(before)
            standing[resource] = entry
        elif entry["kind"] == Kind.REJECTION:
            refused += 1
            assert entry["fence_raised_at"] < entry["at"]
            if entry["reason"] == "token-duplicate":
                assert token_of(entry) == fence_of(entry)
                assert entry["holder"] != entry["fence_holder"]
            else:
                assert entry["reason"] == "token-stale"
                assert token_of(entry) < fence_of(entry)
            takeover = standing.get(resource)
            if takeover is not None:
                assert token_of(takeover) == fence_of(entry)
                assert (takeover.get("holder"), takeover["at"]) == (
                    entry["fence_holder"],
                    entry["fence_raised_at"],
                )
    assert refused > 150
    assert [entry["at"] for entry in told.entries] == sorted(entry["at"] for entry in told.entries)


def test_the_fences_are_the_last_of_it(told: Chronicle) -> None:
    last = {entry["resource"]: entry for entry in told.entries if entry["kind"] in TAKEOVERS}
    assert set(last) <= set(told.fences)
    for resource, entry in last.items():
        fence = told.fences[resource]
        assert (fence.token.epoch, fence.token.value) == token_of(entry)


def test_a_zombie_for_fourteen_minutes_that_tried_rows_and_objects(told: Chronicle) -> None:
    refused = [e for e in told.entries if e["kind"] == "rejection" and e["resource"] == "job/nightly-report"]
    lags = [datetime.fromisoformat(e["at"]) - datetime.fromisoformat(e["fence_raised_at"]) for e in refused]
    assert all(timedelta(minutes=13) < lag < timedelta(minutes=14) for lag in lags)
    assert Counter(e["plane"] for e in refused) == {"objects": 6, "tables": 5}
    assert {e["holder"] for e in refused} == {"batch-vm-1"}


def test_counts_and_record_agree(told: Chronicle) -> None:
    refusals = Counter((e["rule"], e["enforced"]) for e in told.entries if e["kind"] == "rejection")
    refused, observed = Counter[str](), Counter[str]()
    for place, counts in told.traffic.items():
        assert place.minute.second == 0
        refused[place.rule] += counts.refused
        observed[place.rule] += counts.observed
    assert +refused == Counter({rule: number for (rule, enforced), number in refusals.items() if enforced})
    assert +observed == Counter({rule: number for (rule, enforced), number in refusals.items() if not enforced})


def test_the_observed_rule_is_nearly_safe(told: Chronicle) -> None:
    last = max(e["at"] for e in told.entries if e["kind"] == "rejection" and not e["enforced"])
    assert timedelta(hours=20) <= NOW - datetime.fromisoformat(last) < timedelta(hours=24)


def test_the_rules_and_the_alarm_are_those_of_the_demo(told: Chronicle) -> None:
    config = demo.configuration("postgresql://", "http://store")
    modes = {rule.name: rule.mode or config.fencing.mode for rule in config.tables}
    modes |= {rule.match: rule.mode or config.fencing.mode for rule in config.objects}
    for under in incident.BACKGROUND:
        assert under is incident.ACCOUNTS or modes[under.name] is under.mode
    (alarm,) = config.alarms
    raised, cleared = [e for e in told.entries if e["kind"].startswith("alarm-")]
    assert {key: raised["details"][key] for key in ("alarm", "more_than", "minutes", "prefix")} == {
        "alarm": alarm.name,
        "more_than": alarm.more_than,
        "minutes": alarm.minutes,
        "prefix": alarm.prefix,
    }
    assert raised["details"]["count"] == alarm.more_than + 1
    assert cleared["details"]["raised"] == raised["id"]
    known = {e["id"] for e in told.entries}
    assert set(raised["details"]["rejections"]) <= known
    assert raised["at"] < cleared["at"]


def test_a_past_that_contradicts_itself_cannot_be_told(told: Chronicle) -> None:
    writer = Actor("a", "b", "10.0.0.1")
    with pytest.raises(ValueError, match="nobody raises"):
        told.play([BarrierAct(NOW, "job/nightly-report", Token(0, 1), writer)])
