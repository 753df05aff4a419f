"""The verdict of the overview: the worst thing first, what to do about it, and who it is about."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from gateway.fencing.decision import Fence
from gateway.fencing.incident import Acknowledgement, Incident, IncidentKey
from gateway.fencing.record import MissingGrant
from gateway.fencing.token import Token
from gateway.web.verdict import STORM, Facts, Finding, Happened, assess, plain

NOW = datetime(2026, 11, 24, 3, 20, tzinfo=UTC)
TAKEN = datetime(2026, 11, 24, 3, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=5)
QUIET = Facts(NOW, NOW - timedelta(hours=24), "the last 24 hours", {"postgres": "ok", "s3": "ok"}, accepted=7)
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


def test_a_zombie_that_goes_on_is_named_with_its_successor_and_what_to_do() -> None:
    (finding,) = assess(replace(QUIET, incidents=[ZOMBIE]))
    assert finding.level == "bad"
    assert said(finding) == (
        "worker-7 is still writing orders/42 with token 33; worker-9 took over with token 34 at "
        "2026-11-24T03:12:00+00:00. Its 12 late writes had no effect."
    )
    assert plain(finding.advice) == "Stop worker-7, or let it acquire its lock again."
    assert finding.address == f"/ui/incidents/{UUID(int=5)}"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"health": {"postgres": "unreachable", "s3": "ok"}}, "The database cannot be reached"),
    ({"health": {"postgres": "closed"}}, "The database is closed"),
    ({"health": {"postgres": "ok", "s3": "unreachable"}}, "The object store cannot be reached"),
    ({"journal": "lost"}, "The journal is in trouble: lost."),
    ({"buckets": {"reports": "it ignores If-Match"}}, "The bucket reports takes no fenced write: it ignores If-Match."),
    ({"bypasses": Happened(1, NOW, "orders/1")}, "1 change was made past the gateway"),
    ({"incidents": [replace(ZOMBIE, passed=12)]}, "worker-7 is still writing orders/42 with token 33; worker-9 took"),
    ({"incidents": [ZOMBIE]}, "worker-7 is still writing"),
    ({"incidents": [of_reason("token-duplicate")]}, "worker-7 is writing orders/42 with token 33, which worker-9 has"),
    ({"incidents": [of_reason("token-used")]}, "worker-7 is writing orders/42 again with token 33, which may write"),
    ({"incidents": [of_reason("token-implausible")]}, "worker-7 is writing orders/42 with token 33, which the policy"),
    ({"incidents": [of_reason("denied", STORM)]}, "importer is denied 100 requests that no grant covers"),
    ({"guard": Happened(3, NOW, "public.orders", "role:jobs")}, "The guard refused direct writes to public.orders by"),
    ({"pending": 2, "pending_since": EARLIER}, "2 object writes are not settled, the oldest since"),
    ({"unsealed": 10_001, "unsealed_since": EARLIER}, "The record lags: more than 10,000 entries are not sealed"),
    ({"webhooks": {"pager": EARLIER}}, "The webhook pager does not get through since"),
    ({"alarms": {"zombies": EARLIER}}, "The alarm zombies is on since"),
    ({"bypasses": Happened(2, EARLIER, None)}, "2 changes were made past the gateway"),
    ({"incidents": [seen(ZOMBIE, -1)]}, "worker-7 was refused, and ann acknowledged it at"),
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


def test_writes_that_took_effect_are_said_to_have() -> None:
    (finding,) = assess(replace(QUIET, incidents=[replace(ZOMBIE, passed=12)]))
    assert said(finding).endswith("Its 12 late writes took effect, because the rule only observes.")
    (finding,) = assess(replace(QUIET, incidents=[replace(ZOMBIE, passed=3)]))
    assert said(finding).endswith("Of its 12 late writes, 3 took effect, because the rule only observes.")


def test_an_acknowledged_incident_that_goes_on_is_said_to_go_on_again() -> None:
    (finding,) = assess(replace(QUIET, incidents=[seen(ZOMBIE, 4)]))
    assert finding.level == "bad"
    assert "ann acknowledged it at 2026-11-24T03:16:00+00:00; it has gone on since." in said(finding)


def test_a_denial_names_the_missing_grant() -> None:
    one = of_reason("denied", 1, missing=MissingGrant("write", "table public.stock"))
    (finding,) = assess(replace(QUIET, incidents=[one]))
    assert finding.level == "warned"
    assert said(finding) == (
        "importer is denied 1 request that no grant covers; the last lacks write for table public.stock."
    )


def test_a_wrong_request_is_named_as_what_it_is() -> None:
    (finding,) = assess(replace(QUIET, incidents=[of_reason("resource-mismatch")]))
    assert said(finding) == "importer has 2 requests refused: resource mismatch."


def test_an_observed_write_without_a_token_is_not_called_refused_and_comes_after_a_zombie() -> None:
    observed = of_reason("token-required", 1, passed=1)
    observed = replace(observed, key=IncidentKey("token-required", "importer"))
    first, second = assess(replace(QUIET, incidents=[observed, ZOMBIE]))
    assert said(first).startswith("worker-7 is still writing")
    assert second.level == "warned"
    assert said(second) == (
        "importer made 1 request that a rule refuses once it enforces: no token. "
        "It took effect, because the rule only observes."
    )
    assert plain(second.advice).startswith("Run its program under a lock")
    (some,) = assess(replace(QUIET, incidents=[replace(observed, count=5, passed=3)]))
    assert said(some).endswith("no token. 3 of them took effect, because the rule only observes.")


def test_many_incidents_are_a_number() -> None:
    many = [replace(ZOMBIE, id=UUID(int=number)) for number in range(40)]
    findings = assess(replace(QUIET, incidents=many))
    assert len(findings) == 6
    assert said(findings[-1]) == "35 more incidents are going on."


def test_quiet_is_said_with_the_period() -> None:
    (finding,) = assess(QUIET)
    assert (finding.level, said(finding)) == ("good", "All is quiet: no write was refused in the last 24 hours.")
    (finding,) = assess(replace(QUIET, accepted=0))
    assert said(finding).endswith("No write was accepted either.")


def test_what_is_over_is_said_to_be_over() -> None:
    past = replace(ZOMBIE, last=EARLIER)
    (finding,) = assess(
        replace(
            QUIET,
            incidents=[past],
            zombies=12,
            refused=13,
            passed=1,
            last_refused=EARLIER,
            guard=Happened(1, EARLIER, None),
        )
    )
    assert finding.level == "good"
    assert said(finding) == (
        "Nothing is going on. In the last 24 hours 12 writes of zombies were refused, 1 request was refused for "
        "another reason and 1 late write passed, the last at 2026-11-23T22:20:00+00:00. Every incident is resolved."
    )


class TestSeveralDatabases:
    def test_the_worst_of_all_decides_and_each_finding_names_its_database(self) -> None:
        passed = replace(ZOMBIE, passed=3)
        north = replace(QUIET, database="north", incidents=[ZOMBIE, seen(ZOMBIE, -1)])
        south = replace(QUIET, database="south", incidents=[passed])
        findings = assess(north, south)
        assert [(one.level, one.database) for one in findings] == [
            ("bad", "south"),
            ("bad", "north"),
            ("warned", "north"),
        ]
        assert [one.address for one in findings[:2]] == [
            f"/ui/incidents/{ZOMBIE.id}?of=south",
            f"/ui/incidents/{ZOMBIE.id}?of=north",
        ]

    def test_a_database_that_is_down_is_worse_than_incidents_of_others(self) -> None:
        down = Facts(NOW, NOW, QUIET.period, {"postgres": "unreachable"}, database="south")
        first, second = assess(replace(QUIET, database="north", incidents=[ZOMBIE]), down)
        assert (first.database, second.database) == ("south", "north")
        assert "nothing of it is written" in said(first)

    def test_if_nothing_is_wrong_one_finding_sums_up_all(self) -> None:
        several = [
            replace(QUIET, database=name, zombies=1, refused=count, last_refused=EARLIER)
            for name, count in (("north", 1), ("south", 2))
        ]
        (finding,) = assess(*several)
        assert finding.level == "good"
        assert finding.database is None
        assert "2 writes of zombies were refused and 1 request" in said(finding)

    def test_more_incidents_than_are_named_are_counted_over_all(self) -> None:
        findings = assess(*(replace(QUIET, database=name, incidents=[ZOMBIE] * 4) for name in ("north", "south")))
        assert said(findings[-1]) == "3 more incidents are going on."
        assert "of=" not in (findings[-1].address or "")
