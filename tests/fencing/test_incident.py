"""Incidents: refusals that belong together, and the state of each."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gateway.fencing.incident import (
    GAP,
    QUIET,
    Acknowledgement,
    Incident,
    IncidentKey,
    State,
    Tally,
    acknowledgement_details,
    group,
    key_of,
    urgency,
    with_acknowledgements,
)
from gateway.fencing.record import Entry, Kind
from gateway.fencing.token import Token

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
ZOMBIE = IncidentKey("token-stale", "worker", "orders/42", Token(0, 33), "worker-7")
MINUTE = timedelta(minutes=1)


def tally(minutes: float, length: float = 0, count: int = 1, **more: object) -> Tally:
    first = NOON + minutes * MINUTE
    known = Tally(ZOMBIE, first, count, 0, count, first, first + length * MINUTE, 1, count, "orders/42", same=True)
    return replace(known, **more)  # type: ignore[arg-type]


def incident(minutes: float = 0, length: float = 0, **more: object) -> Incident:
    (found,) = group([tally(minutes, length)])
    return replace(found, **more)  # type: ignore[arg-type]


def note(minutes: float, of: Incident, by: str = "ann", text: str = "") -> Entry:
    """An acknowledgement as it is on record."""
    nothing: dict[str, object] = dict.fromkeys(Entry.__slots__)
    return Entry(
        **{  # type: ignore[arg-type]
            **nothing,
            "id": UUID(int=100 + int(minutes)),
            "at": NOON + minutes * MINUTE,
            "kind": Kind.ACKNOWLEDGED,
            "resource": of.about,
            "token": of.key.token,
            "holder": of.key.holder,
            "caller": by,
            "details": acknowledgement_details(of, text),
        }
    )


def test_refusals_are_one_incident_up_to_a_gap() -> None:
    gap = GAP / MINUTE
    (one,) = group([tally(0), tally(gap), tally(2 * gap, length=5, count=7)])
    assert (one.count, one.first, one.last) == (9, NOON, NOON + (2 * gap + 5) * MINUTE)
    later, earlier = group([tally(0, length=5), tally(5 + gap + 0.1)])
    assert (earlier.last, later.first) == (NOON + 5 * MINUTE, NOON + (5.1 + gap) * MINUTE)


@pytest.mark.parametrize(
    "other",
    [
        replace(ZOMBIE, reason="token-used"),
        replace(ZOMBIE, caller="another"),
        replace(ZOMBIE, resource="orders/43"),
        replace(ZOMBIE, token=Token(0, 32)),
        replace(ZOMBIE, token=Token(1, 33)),
        replace(ZOMBIE, holder=None),
    ],
)
def test_another_writer_token_or_resource_is_another_incident(other: IncidentKey) -> None:
    assert len(group([tally(0), tally(1, key=other)])) == 2


def test_refusals_without_a_token_belong_to_their_caller() -> None:
    """One missing grant is denied for each of a thousand rows, and is one thing to look at."""
    denied = note(0, incident())
    row = replace(denied, kind=Kind.REJECTION, reason="denied", caller="importer", details=None)
    keys = {key_of(replace(row, resource=f"stock/{number}", holder=f"h{number}")) for number in range(5)}
    assert keys == {IncidentKey("denied", "importer")}
    key = keys.pop()
    (one,) = group([tally(0, key=key, resource="a"), tally(1, key=key, resource="b")])
    assert one.about is None


def test_an_incident_is_resolved_when_it_is_quiet_or_its_writer_has_a_newer_token() -> None:
    one = incident()
    assert one.state(one.last + QUIET - MINUTE) is State.GOING_ON
    assert one.state(one.last + QUIET) is State.RESOLVED
    assert replace(one, renewed=True).state(one.last) is State.RESOLVED


def test_a_refusal_after_the_acknowledgement_is_going_on_again() -> None:
    seen = (Acknowledgement(UUID(int=1), NOON + 3 * MINUTE, "ann", ""),)
    before, after = incident(0, length=2, acknowledgements=seen), incident(0, length=4, acknowledgements=seen)
    now = NOON + 5 * MINUTE
    assert (before.state(now), after.state(now)) == (State.ACKNOWLEDGED, State.AGAIN)
    again = (*seen, Acknowledgement(UUID(int=2), NOON + 4.5 * MINUTE, "bob", ""))
    assert replace(after, acknowledgements=again).state(now) is State.ACKNOWLEDGED


def test_an_acknowledgement_belongs_to_the_incident_of_its_time() -> None:
    later, earlier = group([tally(0), tally(100)])
    other = replace(earlier, key=replace(ZOMBIE, holder="worker-8"))
    told = [note(101, later, text="second"), note(5, earlier, text="first"), note(5, other), note(-1, earlier)]
    found = with_acknowledgements([later, earlier], told)
    assert [[one.note for one in each.acknowledgements] for each in found] == [["second"], ["first"]]


@pytest.mark.parametrize("details", [None, {}, {"reason": 5}, {"reason": "denied", "of": {"a": 1}}])
def test_details_that_cannot_be_read_acknowledge_nothing(details: dict[str, object] | None) -> None:
    one = incident()
    (found,) = with_acknowledgements([one], [replace(note(1, one), details=details)])
    assert found.acknowledgements == ()


def test_what_goes_on_comes_first_and_the_worst_of_it_before_what_is_newer() -> None:
    now = NOON + 5 * MINUTE
    seen = (Acknowledgement(UUID(int=1), NOON + 3 * MINUTE, "ann", ""),)
    resolved, acknowledged = incident(4, renewed=True), incident(2, acknowledgements=seen)
    again, going_on = incident(3.5, acknowledgements=seen), incident(1)
    newer = replace(again, key=IncidentKey("denied", "importer"), count=100, last=now)
    older = incident(-60)
    listed = [older, resolved, newer, going_on, acknowledged, again]
    found = sorted(listed, key=lambda one: urgency(one, now))
    assert found == [again, going_on, newer, acknowledged, resolved, older]
