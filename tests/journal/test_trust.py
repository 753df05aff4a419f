"""A database, its journal and a gateway's own memory are trusted only where nothing contradicts them."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import permutations, product

import pytest

from gateway.fencing.token import Token
from gateway.journal import trust
from gateway.journal.contents import Contents
from gateway.journal.trust import Mode, Opened, OwnRaise, Run, Server
from tests.journal.installation import NOW, OURS, RUN, days, entry

ROW = Opened(OURS, RUN, 7, Mode.SYNC, position=3, snapshot=2)
NEXT_RUN = replace(RUN, started=NOW + days(1))


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
    assert trust.may_serve(server, Mode.SYNC) is serves


def test_a_database_from_after_the_journal_began_anew_is_complete() -> None:
    contents = Contents(number=2, complete_from=2, began=7)
    assert trust.judge_contents(Server(RUN, replace(ROW, began=7), NOW), contents) is None


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
    assert trust.went_back(Server(RUN, ROW, NOW, written=2**32 + 32), server) == lost
    assert trust.went_back(None, server) is None


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
    assert trust.continues(server, base, position) is continued


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
                    memory = trust.remember_own(memory, [OwnRaise(entry(name, 5), began[name], ended[name])])
                for spared in range(4):
                    fences = {name: Token(0, 5 if name in commits[:spared] else 4) for name in "abc"}
                    lost = any(name not in commits[:spared] for name in answers)
                    assert trust.contradicts(memory, fences) is lost, (order, commits, answers, spared)


def _inversions(commits: Sequence[str], ended: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs of which the one that was committed later had ended earlier."""
    pairs = [(one, other) for one, other in product(commits, commits) if commits.index(one) < commits.index(other)]
    return [(one, other) for one, other in pairs if ended[other] < ended[one]]


def test_memory_does_not_grow() -> None:
    memory: tuple[OwnRaise, ...] = ()
    for number in range(100):
        memory = trust.remember_own(memory, [OwnRaise(entry(f"r/{number}", 1), 2 * number, 2 * number + 1)])
    assert [one.entry.resource for one in memory] == ["r/99"]


def test_one_write_of_many_resources_is_remembered_at_once() -> None:
    began = time.process_time()
    memory = trust.remember_own((), [OwnRaise(entry(f"r/{number}", 1), 1, 2) for number in range(20_000)])
    assert (len(memory), time.process_time() - began < 2.0) == (20_000, True)


def test_a_fence_that_is_gone_contradicts_the_memory() -> None:
    assert trust.contradicts([OwnRaise(entry("order/5", 5), 1, 2)], {})
    assert Run("1", 1, NOW) != Run("1", 1, NOW + timedelta(microseconds=1))
