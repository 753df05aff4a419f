"""The waiters in this process: tickets wake them, with one look for a whole line, by the first event."""

import asyncio

import pytest

from gateway.leases.local_waiters import WaitQueues


@pytest.fixture
def looks() -> list[str]:
    return []


@pytest.fixture
def queue(looks: list[str]) -> WaitQueues:
    return WaitQueues(looks.append)


async def test_all_up_to_the_ticket_that_was_served_are_woken(queue: WaitQueues) -> None:
    with queue.line("a") as line, queue.line("b") as other, queue.asking(line) as asking, queue.asking(other) as there:
        turns = {ticket: queue.take(line, asking, ticket) for ticket in (7, 3, 5, 9)}
        elsewhere = queue.take(other, there, 4)
        queue.go_on("a", 5, None)
        assert {ticket for ticket, turn in turns.items() if turn.done()} == {3, 5}
        assert not elsewhere.done()
        assert queue.tickets() == {4, 7, 9}


async def test_news_that_overtake_the_answer_are_not_lost(queue: WaitQueues) -> None:
    with queue.line("a") as line:
        with queue.asking(line) as asking:
            queue.go_on("a", 5, None)
            assert queue.take(line, asking, 5).done()
            assert not queue.take(line, asking, 6).done()
        # Announcements from before the question are out of date: the database may have begun to count anew.
        with queue.asking(line) as asking:
            assert not queue.take(line, asking, 5).done()


async def test_a_line_is_looked_at_once_and_as_early_as_anybody_knows(queue: WaitQueues, looks: list[str]) -> None:
    with queue.line("a"):
        for look_in in (60.0, 0.01, 0.02, 30.0):
            queue.go_on("a", None, look_in)
        await asyncio.sleep(0.1)
        assert looks == ["a"]
        queue.go_on("a", None, 0.0)
        await asyncio.sleep(0.02)
        assert looks == ["a", "a"]
        queue.go_on("a", None, 0.01)
    await asyncio.sleep(0.05)
    queue.go_on("a", 1, 0.0)
    await asyncio.sleep(0.01)
    assert looks == ["a", "a"], "nobody waits any more"


async def test_a_ticket_is_given_up_by_the_last_who_waits_with_it(queue: WaitQueues) -> None:
    with queue.line("a") as line, queue.asking(line) as asking:
        first, second = queue.take(line, asking, 5), queue.take(line, asking, 5)
        assert not queue.give_up(line, 5, first)
        assert queue.tickets() == {5}
        assert queue.give_up(line, 5, second)
        assert queue.tickets() == set()


async def test_places_that_are_lost_are_asked_for_again(queue: WaitQueues) -> None:
    with queue.line("a") as line, queue.asking(line) as asking:
        turns = [queue.take(line, asking, ticket) for ticket in (1, 2, 3)]
        queue.ask_again({2, 8})
        assert [turn.done() for turn in turns] == [False, True, False]
        assert not queue.quiet()
    assert queue.quiet()


async def test_somebody_waits_or_nobody(queue: WaitQueues) -> None:
    assert not queue.peopled.is_set()
    with queue.line("a"):
        with queue.line("a"), queue.line("b"):
            assert queue.peopled.is_set()
        assert queue.peopled.is_set()
    assert not queue.peopled.is_set()
