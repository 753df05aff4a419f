"""The single decisions of openings and raises. The explorer of ``tests/model`` plays them together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.journal import protocol, trust
from gateway.journal.contents import ACCEPTABLE, Contents, Flaw, Problem
from gateway.journal.protocol import (
    Append,
    AskServer,
    Behind,
    Commit,
    CreateMarker,
    FindLower,
    Loss,
    OpenDatabase,
    Opening,
    ReadJournal,
    ReadMarker,
    Remember,
    Unsecured,
)
from gateway.journal.trust import Marker, Mode, Opened, Server
from tests.journal.installation import MARKER, NOW, OURS, RUN, THEIRS, days, entry

ROW = Opened(OURS, RUN, 7, Mode.SYNC, position=3, snapshot=2)
ROW_OFF = replace(ROW, mode=Mode.OFF)
NEXT_RUN = replace(RUN, started=NOW + days(1))
FIVE = entry("order/5", 5)


TERM = 7 + protocol.FORGOTTEN


def driven(steps: Any, answers: Sequence[tuple[Any, Any]]) -> Any:
    """Run a generator with these pairs of an effect (or its type) and its answer; its outcome."""
    answer: Any = None
    for expected, following in answers:
        effect = steps.send(answer)
        assert effect == expected or type(effect) is expected, effect
        answer = following
    with pytest.raises(StopIteration) as end:
        steps.send(answer)
    return end.value.value


# Raises ---------------------------------------------------------------------------------------------------------------


def test_a_raise_that_finds_a_later_term_commits_nothing() -> None:
    steps = [
        (Commit((), 0), Unsecured((FIVE,))),
        (Append((FIVE,)), replace(MARKER, term=8)),
        (Commit((FIVE,), 8), Behind()),
    ]
    assert driven(protocol.claim(Mode.SYNC), steps) is None


def test_an_object_write_announces_its_resource_once_a_day() -> None:
    announcing = replace(FIVE, objects=NOW)
    for announced, appended in ((None, (announcing,)), (NOW - days(1), (announcing,)), (NOW - days(0.9), ())):
        steps = protocol.send(Mode.SYNC, FIVE, 7, announced=announced)
        assert driven(steps, [(Append(appended), MARKER)]) is True


def test_an_object_write_of_the_weaker_modes_waits_for_nothing() -> None:
    announcing = replace(FIVE, objects=NOW)
    steps = protocol.send(Mode.ASYNC, FIVE, 7, announced=None)
    assert driven(steps, [(Remember((announcing,), 7), None)]) is True
    assert driven(protocol.send(Mode.OFF, FIVE, 7, announced=None), []) is True


@pytest.mark.parametrize(
    ("opened", "lower", "again"),
    [(replace(ROW, mode=Mode.ASYNC), (), False), (replace(ROW, mode=Mode.ASYNC), (Loss(FIVE, None),), True)],
    ids=["the opening has read it", "the opening has not read it"],
)
def test_a_flush_after_an_opening_compares(opened: Opened, lower: tuple[Loss, ...], *, again: bool) -> None:
    steps = [
        (Append((FIVE,)), replace(MARKER, term=8)),
        (AskServer, Server(RUN, opened, NOW)),
        (FindLower(RUN, (FIVE,)), lower),
    ]
    assert driven(protocol.flush(Mode.ASYNC, (FIVE,), 7), steps) is again


def test_a_flush_on_a_closed_database_has_it_opened() -> None:
    steps = [(Append((FIVE,)), replace(MARKER, term=8)), (AskServer, Server(NEXT_RUN, ROW, NOW))]
    assert driven(protocol.flush(Mode.ASYNC, (FIVE,), 7), steps) is True


# Openings -------------------------------------------------------------------------------------------------------------


def test_an_epoch_is_in_the_marker_before_it_begins() -> None:
    """The loss of a fence is found after the marker was made: another one is made, with the epoch."""
    losses = (Loss(FIVE, "4"),)
    contents = Contents(number=2, entries={"order/5": FIVE}, segments=1)
    server = Server(NEXT_RUN, replace(ROW, epoch=2), NOW)
    first = replace(MARKER, term=8, base=7, run=NEXT_RUN, epoch=3)
    steps = [
        (ReadMarker, replace(MARKER, epoch=3)),
        (AskServer, server),
        (ReadJournal, contents),
        (CreateMarker(first), True),
        (ReadJournal, contents),
        (FindLower, losses),
        (ReadMarker, first),
        (AskServer, server),
        (ReadJournal, contents),
        (CreateMarker(replace(first, term=9, epoch=4)), True),
        (ReadJournal, contents),
        (FindLower, losses),
        (OpenDatabase(NEXT_RUN, replace(ROW, run=NEXT_RUN, term=9, epoch=4), losses, continues=False), True),
    ]
    assert driven(protocol.open_database(Mode.SYNC), steps).term == 9


def test_of_two_openers_one_creates_each_marker() -> None:
    server = Server(NEXT_RUN, ROW, NOW)
    theirs = replace(MARKER, term=8, base=7, run=NEXT_RUN)
    steps = [
        (ReadMarker, MARKER),
        (AskServer, server),
        (ReadJournal, Contents(number=2)),
        (CreateMarker, False),
        (ReadMarker, theirs),
        (AskServer, Server(NEXT_RUN, replace(ROW, run=NEXT_RUN, term=8), NOW)),
    ]
    assert driven(protocol.open_database(Mode.SYNC), steps) == Opening(8, fresh=False)


def test_a_journal_that_another_opener_began_meanwhile_is_no_flaw() -> None:
    """Its marker was there before, and its row and its snapshot come after it."""
    before, after = Server(RUN, Opened(OURS), NOW), Server(RUN, replace(ROW, position=0), NOW)
    steps = [
        (ReadMarker, MARKER),
        (AskServer, before),
        (ReadJournal, Contents(number=1, segments=1)),
        (AskServer, after),
        (ReadMarker, MARKER),
        (ReadMarker, MARKER),
        (AskServer, after),
    ]
    assert driven(protocol.open_database(Mode.SYNC), steps) == Opening(7, fresh=False)


def test_an_opening_that_was_given_up_is_begun_again() -> None:
    """Its marker names the same run, so that the restart still counts as one."""
    theirs = replace(MARKER, term=8, base=7, run=NEXT_RUN)
    steps = [
        (ReadMarker, theirs),
        (AskServer, Server(NEXT_RUN, ROW, NOW)),
        (ReadJournal, Contents(number=2)),
        (CreateMarker(Marker(OURS, 9, 7, NEXT_RUN, NOW)), True),
        (ReadJournal, Contents(number=2)),
        (FindLower, ()),
        (OpenDatabase, True),
    ]
    assert driven(protocol.open_database(Mode.SYNC), steps).continues


REFUSED = [
    (Problem.FOREIGN, Server(NEXT_RUN, ROW, NOW), replace(MARKER, installation=THEIRS), Mode.SYNC),
    (Problem.CORRUPT, Server(NEXT_RUN, ROW, NOW), Flaw(Problem.CORRUPT, "", "marker"), Mode.SYNC),
    (Problem.NEWER, Server(NEXT_RUN, ROW, NOW), Flaw(Problem.NEWER, "", "marker"), Mode.SYNC),
    (Problem.MISSING, Server(NEXT_RUN, ROW, NOW), None, Mode.SYNC),
    (Problem.BEHIND, Server(NEXT_RUN, replace(ROW, term=8), NOW), MARKER, Mode.SYNC),
    (Problem.SUPERSEDED, Server(RUN, ROW, NOW), replace(MARKER, term=8, run=NEXT_RUN), Mode.SYNC),
    (Problem.MOVED, Server(replace(NEXT_RUN, system="8"), ROW, NOW), MARKER, Mode.SYNC),
    (Problem.TOO_OLD, Server(NEXT_RUN, ROW, NOW), replace(MARKER, run=replace(RUN, timeline=2)), Mode.SYNC),
    (Problem.TOO_OLD, Server(RUN, Opened(), NOW), MARKER, Mode.SYNC),
    (Problem.WEAKER, Server(NEXT_RUN, ROW, NOW), MARKER, Mode.ASYNC),
    (Problem.WEAKER, Server(NEXT_RUN, ROW, NOW), None, Mode.OFF),
    *(
        (Problem.RESTORED, Server(run, replace(ROW_OFF, run=before), NOW, target=target), None, mode)
        for run, before, target in (
            (replace(NEXT_RUN, system="8"), RUN, None),
            (replace(RUN, database="1/2"), RUN, None),
            (replace(NEXT_RUN, timeline=2), RUN, "recovery_target_time = noon"),
            (RUN, replace(RUN, database=f"{trust.PUT_BACK}: a log ends"), None),
        )
        for mode in (Mode.OFF, Mode.SYNC)
    ),
]


@pytest.mark.parametrize(("problem", "server", "marker", "mode"), REFUSED)
def test_a_database_that_must_stay_closed(
    problem: Problem, server: Server, marker: Marker | Flaw | None, mode: Mode
) -> None:
    """And nothing is changed, so that a server that is open stays so."""
    twice = [(ReadMarker, marker), (AskServer, server), (AskServer, server), (ReadMarker, marker)]
    flaw = driven(protocol.open_database(mode), twice[1:2] if mode is Mode.OFF else twice)
    assert isinstance(flaw, Flaw)
    assert flaw.problem is problem
    assert flaw.detail or isinstance(marker, Flaw)


@pytest.mark.parametrize(
    ("problem", "row", "contents"),
    [
        (Problem.MISSING, ROW, Contents(number=1)),
        (Problem.TOO_OLD, ROW, Contents(number=5, complete_from=3)),
        (Problem.TOO_OLD, ROW, Contents(number=2, began=7)),
        (Problem.TOO_OLD, replace(ROW, mode=Mode.OFF), Contents(number=2, segments=1)),
        (Problem.CORRUPT, ROW, Flaw(Problem.CORRUPT, "", "segments/x")),
    ],
)
def test_a_journal_that_keeps_the_database_closed(problem: Problem, row: Opened, contents: Contents | Flaw) -> None:
    server = Server(NEXT_RUN, row, NOW)
    read = [(ReadMarker, MARKER), (AskServer, server)]
    steps = [*read, (ReadJournal(2), contents), *reversed(read)]
    flaw = driven(protocol.open_database(Mode.SYNC), steps)
    assert isinstance(flaw, Flaw)
    assert flaw.problem is problem


@pytest.mark.parametrize(
    "server",
    [
        Server(NEXT_RUN, ROW_OFF, NOW, target="recovery_target_time = noon"),
        Server(replace(NEXT_RUN, timeline=2), ROW_OFF, NOW),
    ],
    ids=["restart", "promoted"],
)
def test_without_a_journal_a_restart_and_a_promoted_standby_are_opened(server: Server) -> None:
    opened = driven(protocol.open_database(Mode.OFF), [(AskServer, server), (OpenDatabase, True)])
    assert opened.continues is (server.run.timeline == RUN.timeline)


@pytest.mark.parametrize("problem", sorted(set(Problem) - ACCEPTABLE))
def test_other_flaws_cannot_be_accepted(problem: Problem) -> None:
    flaw = Flaw(problem, "")
    read = [(ReadMarker, flaw), (AskServer, Server(NEXT_RUN, ROW, NOW))]
    steps = [*read, *reversed(read)]
    assert driven(protocol.open_database(Mode.SYNC, accept_loss=True), steps) == flaw
