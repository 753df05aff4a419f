"""The single decisions of openings and raises. The explorer of ``tests/model`` plays them together."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import permutations, product
from typing import Any

import pytest

from gateway.fencing.token import Token
from gateway.journal import protocol
from gateway.journal.contents import ACCEPTABLE, Contents, Flaw, Problem
from gateway.journal.protocol import (
    Append,
    AskServer,
    Behind,
    Commit,
    CreateMarker,
    FindLower,
    Loss,
    Marker,
    Mode,
    OpenDatabase,
    Opened,
    Opening,
    OwnRaise,
    ReadJournal,
    ReadMarker,
    Remember,
    Run,
    Server,
    Unsecured,
)
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


@pytest.mark.parametrize(
    ("server", "serves"),
    [
        (Server(RUN, ROW, NOW), True),
        (Server(NEXT_RUN, ROW, NOW), False),
        (Server(replace(RUN, timeline=2), ROW, NOW), False),
        (Server(replace(RUN, database="16384/999"), ROW, NOW), False),
        (Server(RUN, replace(ROW, mode=Mode.ASYNC), NOW), False),
        (Server(RUN, Opened(), NOW), False),
    ],
)
def test_a_session_serves_where_its_run_was_opened_in_the_mode(server: Server, *, serves: bool) -> None:
    assert protocol.may_serve(server, Mode.SYNC) is serves


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
            (RUN, replace(RUN, database=f"{protocol.PUT_BACK}: a log ends"), None),
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


def test_a_database_from_after_the_journal_began_anew_is_complete() -> None:
    contents = Contents(number=2, complete_from=2, began=7)
    assert protocol.judge_contents(Server(RUN, replace(ROW, began=7), NOW), contents) is None


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


@pytest.mark.parametrize(
    ("server", "lost"),
    [
        (Server(RUN, ROW, NOW, written=2**32 + 31), "its log had reached 1/20, and ends at 1/1F"),
        (Server(NEXT_RUN, ROW, NOW, written=7), "its log had reached 1/20, and ends at 0/7"),
        (Server(RUN, replace(ROW, term=6), NOW, written=2**33), "it was opened in term 7, and knows only term 6"),
        (Server(RUN, ROW, NOW, written=2**32 + 32), None),
        (Server(replace(RUN, timeline=2), ROW, NOW, written=7), None),
        (Server(RUN, replace(ROW, term=5, began=5), NOW, written=7), None),
        (
            Server(replace(RUN, timeline=0), ROW, NOW, written=2**33),
            "a server on timeline 1 was open before, and this one is on 0",
        ),
    ],
    ids=["shorter", "after a restart", "an older opening", "the same", "promoted", "accepted", "replaced"],
)
def test_a_gateway_notices_a_log_that_is_shorter_than_it_was(server: Server, lost: str | None) -> None:
    assert protocol.went_back(Server(RUN, ROW, NOW, written=2**32 + 32), server) == lost
    assert protocol.went_back(None, server) is None


@pytest.mark.parametrize("problem", sorted(set(Problem) - ACCEPTABLE))
def test_other_flaws_cannot_be_accepted(problem: Problem) -> None:
    flaw = Flaw(problem, "")
    read = [(ReadMarker, flaw), (AskServer, Server(NEXT_RUN, ROW, NOW))]
    steps = [*read, *reversed(read)]
    assert driven(protocol.open_database(Mode.SYNC, accept_loss=True), steps) == flaw


@pytest.mark.parametrize(
    ("server", "base", "position", "continued"),
    [
        (Server(NEXT_RUN, ROW, NOW), 7, 3, True),
        (Server(NEXT_RUN, ROW, NOW), 8, 3, False),
        (Server(NEXT_RUN, ROW, NOW), 7, 4, False),
        (Server(replace(NEXT_RUN, timeline=2), ROW, NOW), 7, 3, False),
        (Server(replace(NEXT_RUN, system="8"), ROW, NOW), 7, 3, False),
        (Server(replace(NEXT_RUN, database="1/2"), ROW, NOW), 7, 3, False),
        (Server(NEXT_RUN, Opened(), NOW), 0, 0, False),
    ],
    ids=["restart", "another opening since", "older position", "promoted", "other system", "dump", "never opened"],
)
def test_a_run_continues_the_last_one(server: Server, base: int, position: int, *, continued: bool) -> None:
    assert protocol.continues(server, base, position) is continued


# A gateway's own memory -----------------------------------------------------------------------------------------------


def test_no_rewind_escapes_a_gateways_memory() -> None:
    """Three raises in every order of their beginnings, commits and answers, and a rewind to before each commit."""
    for order in permutations([*"aAbBcC"]):
        if any(order.index(name) > order.index(name.upper()) for name in "abc"):
            continue  # a transaction ends after it has begun
        began = {name: order.index(name) for name in "abc"}
        ended = {name: order.index(name.upper()) for name in "abc"}
        # Transactions that overlap may have been committed in any order.
        for commits in permutations("abc"):
            overlaps = all(began[late] < ended[early] for late, early in _inversions(commits, ended))
            if not overlaps:
                continue
            for answers in permutations("abc", 2):
                memory: tuple[OwnRaise, ...] = ()
                for name in answers:
                    memory = protocol.remember_own(memory, [OwnRaise(entry(name, 5), began[name], ended[name])])
                for spared in range(4):
                    fences = {name: Token(0, 5 if name in commits[:spared] else 4) for name in "abc"}
                    lost = any(name not in commits[:spared] for name in answers)
                    assert protocol.contradicts(memory, fences) is lost, (order, commits, answers, spared)


def _inversions(commits: Sequence[str], ended: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs of which the one that was committed later had ended earlier."""
    pairs = [(one, other) for one, other in product(commits, commits) if commits.index(one) < commits.index(other)]
    return [(one, other) for one, other in pairs if ended[other] < ended[one]]


def test_memory_does_not_grow() -> None:
    memory: tuple[OwnRaise, ...] = ()
    for number in range(100):
        memory = protocol.remember_own(memory, [OwnRaise(entry(f"r/{number}", 1), 2 * number, 2 * number + 1)])
    assert [one.entry.resource for one in memory] == ["r/99"]


def test_one_write_of_many_resources_is_remembered_at_once() -> None:
    began = time.process_time()
    memory = protocol.remember_own((), [OwnRaise(entry(f"r/{number}", 1), 1, 2) for number in range(20_000)])
    assert (len(memory), time.process_time() - began < 2.0) == (20_000, True)


def test_a_fence_that_is_gone_contradicts_the_memory() -> None:
    assert protocol.contradicts([OwnRaise(FIVE, 1, 2)], {})
    assert Run("1", 1, NOW) != Run("1", 1, NOW + timedelta(microseconds=1))
