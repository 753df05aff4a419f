"""An acknowledged fence survives the loss of its database, in every interleaving of small scopes.

Each part of the protocol is needed: without it the promise breaks. The number of states of each exploration is printed
at the end of the run (see conftest.py).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.fencing.token import Token
from gateway.journal import protocol, trust
from gateway.journal.contents import Entry
from gateway.journal.evidence import Witness
from gateway.journal.trust import Mode
from tests.model.explorer import BrokenPromise
from tests.model.journal import RESOURCE, SECRET, SOUND, Explorer, Scope, Weakness, barrier, put, row
from tests.model.memory import NOW

Report = Callable[[str, int], None]

ANY = tuple(Entry(RESOURCE, Token(0, value), NOW) for value in range(10))
"""As if all raises were in the journal."""

OFF: dict[str, Any] = {"mode": Mode.OFF, "survivors": False}
ALONE: dict[str, Any] = {"survivors": False}

SCOPES = (
    Scope("a row after a rewind", ((row(1),), (barrier(2, 1),)), openers=1),
    Scope("a holder with two gateways", ((row(1),), (barrier(2, 1),), (row(2),)), openers=1),
    Scope("a late put, and a barrier", ((put(1),), (barrier(2, 1),)), openers=1),
    Scope("two puts", ((put(1),), (put(2, 1),)), openers=1),
    Scope("a put under the token of a barrier", ((barrier(1), put(1)), (barrier(2, 1),)), openers=1),
    Scope(
        "a disk that was put back",
        ((barrier(1), put(1)), (barrier(2, 1),)),
        openers=1,
        rewinds=0,
        restores=1,
        beats=1,
    ),
    Scope("own memory", ((row(1),), (row(2),)), openers=0, rewinds=0, reverts=1, **OFF),
)
LARGE = (
    Scope("two openers", ((row(1),), (row(2, 1),))),
    Scope(
        "a disk put back to before a restart",
        ((barrier(1), put(1)), (barrier(2, 1),)),
        openers=1,
        openings=2,
        rewinds=0,
        restarts=1,
        restores=1,
    ),
    Scope("evidence in metadata", ((put(1),), (put(2, 1),)), openers=1, evidence=True, **OFF),
    Scope("forged metadata", ((put(1),), (put(2, 1),)), openers=1, evidence=True, forgeries=1, **OFF),
    Scope("what was flushed", ((row(1),), (row(2, 1),)), Mode.ASYNC, openers=1, from_flush=True, **ALONE),
    Scope("two rewinds", ((row(1),), (row(2, 1),)), rewinds=2),
    Scope("two rewinds, one opener", ((row(1),), (row(2, 1),)), openers=1, openings=2, rewinds=2),
    Scope("two rewinds and a put", ((put(1),), (barrier(2, 1),)), openers=1, openings=2, rewinds=2),
    Scope("two rewinds, two openers and a put", ((put(1),), (barrier(2, 1),)), rewinds=2, **ALONE),
    Scope("two openers and a put", ((put(1),), (barrier(2, 1),))),
    Scope("two writes of each", ((row(1), row(1)), (barrier(2, 1), row(2, 1)))),
    Scope("restarts", ((row(1),),), openings=2, rewinds=0, restarts=2),
    Scope("a restart and a rewind", ((put(1),), (barrier(2, 1),)), openers=1, openings=2, restarts=1),
    Scope("three puts", ((put(1),), (put(2, 1),), (put(2),)), openers=1, **ALONE),
    Scope("heartbeats", ((put(1),), (barrier(2, 1),)), openers=1, beats=1),
    Scope("evidence for three", ((put(1),), (put(2, 1),), (put(1, 1),)), openers=1, evidence=True, **OFF),
)


def scope(name: str) -> Scope:
    (found,) = (one for one in (*SCOPES, *LARGE) if one.name == name)
    return found


@pytest.fixture(autouse=True)
def _few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third attempt meets nothing that the second does not."""
    monkeypatch.setattr(protocol, "ATTEMPTS", 2)


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
def test_an_acknowledged_fence_survives(scope: Scope, report_states: Report) -> None:
    states = Explorer(scope).run()
    assert states > 50, "the scope explores next to nothing"
    report_states(f"journal: {scope.name}", states)


@pytest.mark.nightly
@pytest.mark.thorough
@pytest.mark.parametrize("scope", LARGE, ids=lambda scope: scope.name)
def test_an_acknowledged_fence_survives_more(scope: Scope, report_states: Report) -> None:
    report_states(f"journal: {scope.name}", Explorer(scope).run())


def acknowledged(answer: protocol.Committed | protocol.Behind | protocol.Unsecured) -> Any:
    """Return what the client is told after a commit, whatever the journal has."""
    return answer if isinstance(answer, protocol.Committed) else None


def acknowledge_first(mode: Mode) -> protocol.RaiseSteps[Any]:
    """Weakened: the journal gets the raise after the client has its answer."""
    answer = yield protocol.Commit(ANY, 0)
    return acknowledged(answer)


def commit_first(mode: Mode) -> protocol.RaiseSteps[Any]:
    """Weakened: the database gets the raise before the journal. Writes that find it there do without."""
    answer = yield protocol.Commit(ANY, 0)
    if not isinstance(answer, protocol.Committed):
        return None
    if answer.raised:
        marker = yield protocol.Append(answer.raised)
        if marker.term > answer.term:
            return None
    return answer


def commit_without_a_look(mode: Mode) -> protocol.RaiseSteps[Any]:
    """Weakened: the term of the database is not compared with the marker."""
    answer = yield protocol.Commit((), 0)
    if not isinstance(answer, protocol.Committed):
        entries = answer.entries
        yield protocol.Append(entries)
        answer = yield protocol.Commit(entries, 0)
    return acknowledged(answer)


def send_without_a_look(mode: Mode, entry: Entry, term: int, *, announced: Any) -> protocol.RaiseSteps[bool]:
    """Weakened: an object write whose token is in the journal needs nothing more."""
    yield protocol.Append((entry.__class__(entry.resource, entry.token, entry.at, entry.at),))
    return True


def send_without_an_announcement(mode: Mode, entry: Entry, term: int, *, announced: Any) -> protocol.RaiseSteps[bool]:
    """Weakened: the journal does not know which resources have object writes."""
    marker = yield protocol.Append(())
    return bool(marker.term <= term)


def opening(*, run_first: bool = False, journal_first: bool = False) -> Callable[..., protocol.OpenSteps[Any]]:
    """Weakened openings: effects of the right one in another order."""

    def steps(mode: Mode, *, again: bool = False) -> protocol.OpenSteps[Any]:
        if run_first:
            server = yield protocol.AskServer()
            marker = yield protocol.ReadMarker()
        else:
            marker = yield protocol.ReadMarker()
            server = yield protocol.AskServer()
        if (flaw := trust.judge(server, marker, mode)) is not None:
            return flaw
        if journal_first:
            read = yield protocol.ReadJournal(0)
        term = marker.term + 1
        made = trust.Marker(marker.installation, term, protocol._base(server, marker), server.run, NOW)
        if not (yield protocol.CreateMarker(made)):
            return None
        if not journal_first:
            read = yield protocol.ReadJournal(0)
        losses = yield protocol.FindLower(server.run, tuple(read.entries.values()))
        opened = replace(server.opened, run=server.run, term=term, mode=mode)
        yield protocol.OpenDatabase(server.run, opened, losses, frozenset(read.entries) if losses else frozenset())
        return protocol.Opening(term, fresh=True)

    return steps


def flush_without_a_look(mode: Mode, entries: tuple[Entry, ...], term: int) -> protocol.FlushSteps[bool]:
    """Weakened: an opening that has not read what is flushed is left as it is."""
    yield protocol.Append(entries)
    return False


def shortest_way_to_a_broken_promise(scope: Scope, weakness: Weakness) -> int:
    """The number of steps after which the promise is broken. An AssertionError where it is not."""
    with pytest.raises(BrokenPromise, match=r"was acknowledged|no holder has shown") as broken:
        Explorer(scope, weakness).run()
    return str(broken.value).count("\n")


FLUSHED = "what was flushed"


@pytest.mark.parametrize(
    ("name", "weakness", "explored"),
    [
        ("the journal before the answer", Weakness(write=acknowledge_first), "a row after a rewind"),
        ("the journal before the database", Weakness(write=commit_first), "a holder with two gateways"),
        ("a second look at the marker", Weakness(write=commit_without_a_look), "a row after a rewind"),
        ("the marker before the journal", Weakness(open=opening(journal_first=True)), "a row after a rewind"),
        ("a look at what is opened", Weakness(checks_opened=False), "a row after a rewind"),
        ("waiting for lost intents", Weakness(waits=False), "a late put, and a barrier"),
        ("waiting where no fence was lost", Weakness(open=opening()), "a put under the token of a barrier"),
        ("announcements", Weakness(send=send_without_an_announcement), "a put under the token of a barrier"),
        ("a look before a request is sent", Weakness(send=send_without_a_look), "a late put, and a barrier"),
        ("evidence in metadata", Weakness(witness=None), "evidence in metadata"),
        ("signatures of metadata", Weakness(witness=Witness([SECRET, "another secret"])), "forged metadata"),
        ("the look after a flush", Weakness(flush=flush_without_a_look), FLUSHED),
        ("a gateway's own memory", Weakness(memory=None), "own memory"),
    ],
)
def test_each_part_is_needed(name: str, weakness: Weakness, explored: str, report_states: Report) -> None:
    way = shortest_way_to_a_broken_promise(scope(explored), weakness)
    report_states(f"journal, without {name}: {explored}", way)


@pytest.mark.parametrize("reverts", [0, 1], ids=["another run", "the same run"])
def test_a_gateways_memory_protects_no_other_gateway(reverts: int, report_states: Report) -> None:
    """Without a journal, a gateway that never saw the raise serves the stale writer."""
    clients = ((row(1),), (row(2, 1),))
    two = Scope("a memory for each gateway", clients, openers=1, rewinds=1 - reverts, reverts=reverts, **OFF)
    report_states(f"journal, with {two.name}", shortest_way_to_a_broken_promise(two, SOUND))


def test_an_answer_before_the_flush_may_be_lost(report_states: Report) -> None:
    """The limit of mode async, as the documentation states it."""
    early = replace(scope(FLUSHED), from_flush=False)
    report_states("journal, before the flush", shortest_way_to_a_broken_promise(early, SOUND))


def test_a_position_tells_that_a_disk_was_put_back(monkeypatch: pytest.MonkeyPatch, report_states: Report) -> None:
    continues = trust.continues
    monkeypatch.setattr(protocol, "continues", lambda server, base, _: continues(server, base, 0))
    explored = scope("a disk that was put back")
    report_states("journal, without positions", shortest_way_to_a_broken_promise(explored, SOUND))


@pytest.mark.thorough
def test_the_term_of_the_last_opening_tells_it_too(monkeypatch: pytest.MonkeyPatch, report_states: Report) -> None:
    monkeypatch.setattr(protocol, "_base", lambda *_: 0)
    explored = scope("a disk put back to before a restart")
    report_states("journal, without the last term", shortest_way_to_a_broken_promise(explored, SOUND))


@pytest.mark.thorough
def test_a_replaced_server_is_not_opened_again(monkeypatch: pytest.MonkeyPatch, report_states: Report) -> None:
    monkeypatch.setattr(protocol, "judge", lambda *_: None)
    explored = replace(scope("two openers"), clients=((row(1), row(1)), (row(2, 1),)))
    report_states("journal, with a replaced server", shortest_way_to_a_broken_promise(explored, SOUND))


def open_without_epochs(mode: Mode) -> protocol.OpenSteps[Any]:
    """Weakened: the marker has no epoch of the lease service."""
    steps = protocol.open_database(mode)
    effect = next(steps)
    while True:
        if isinstance(effect, protocol.CreateMarker):
            effect = protocol.CreateMarker(replace(effect.marker, epoch=0))
        try:
            effect = steps.send((yield effect))
        except StopIteration as end:
            return end.value


@pytest.mark.thorough
def test_the_marker_knows_the_last_epoch(report_states: Report) -> None:
    """Without it, each of two rewinds to the same state begins the same epoch, and tokens are issued twice."""
    with pytest.raises(BrokenPromise, match="have begun epoch 1") as broken:
        Explorer(scope("two rewinds, one opener"), Weakness(open=open_without_epochs)).run()
    report_states("journal, without epochs", str(broken.value).count("\n"))


def test_no_opening_of_an_ended_run_refuses_the_next_one(report_states: Report) -> None:
    """Without the order of its first two steps, a gateway refuses the server that is in use."""
    weak = Weakness(open=opening(run_first=True))
    with pytest.raises(BrokenPromise, match="in use was refused") as broken:
        Explorer(scope("restarts"), weak).run()
    report_states("journal, without the marker first", str(broken.value).count("\n"))
