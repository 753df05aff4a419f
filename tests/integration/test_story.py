"""The story of the paused writer is played, not recited."""

from rich.console import Console

from gateway import story
from tests.processes import run


def test_the_story_ends_with_the_rejection_of_the_zombie_on_both_planes() -> None:
    told = run("demo", "--story", "--port", "0")
    assert (told.returncode, told.stderr) == (0, "")
    for line in (
        "row: 412 token-stale",
        "object: 412 StaleFencingToken",
        "row:    balance 610, written by writer-b",
        "object: balance 610, written by writer-b",
        "writer-a  PUT /reports/accounts/1/statement.txt",
        "writer-a  PATCH /v1/tables/accounts?id=eq.1",
        "token 33 refused: writer-b had taken over with 34",
    ):
        assert line in told.stdout
    assert "\x1b" not in told.stdout


def test_a_story_that_does_not_happen_is_not_told() -> None:
    nobody_listens = "http://127.0.0.1:9"
    assert not story.play(nobody_listens, 33, Console(quiet=True))


def test_the_lock_service_hands_out_growing_tokens_one_lease_at_a_time() -> None:
    locks = story.LockService(33)
    first = locks.acquire("a")
    assert first is not None
    assert (first.token, locks.acquire("b")) == (33, None)
    locks.lease = story.Lease("a", 33, ends=0.0)
    second = locks.acquire("b")
    assert second is not None
    assert (second.holder, second.token) == ("b", 34)
