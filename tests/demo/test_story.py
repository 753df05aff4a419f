"""The story of the paused writer is played, not recited."""

import shlex
import signal
import subprocess

import httpx
import pytest
from rich.console import Console

from gateway.demo import story
from tests.processes import free_port, run, started
from tests.waiting import PATIENCE


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
    locks.lease = story.DemoLease("a", 33, ends=0.0)
    second = locks.acquire("b")
    assert second is not None
    assert (second.holder, second.token) == ("b", 34)


@pytest.mark.thorough
def test_the_page_that_it_ends_with_shows_the_story_and_the_sample() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with started("demo", "--story", "--keep", "--port", str(port)) as demo:
        demo.wait_for(lambda: demo.output.read_text().count("\nEND\n") == 2)
        assert f"The page: {url}/ui/" in demo.output.read_text()
        pages = {
            path: httpx.get(url + path, follow_redirects=True, timeout=PATIENCE) for path in ("/ui/", "/ui/rejections")
        }
        commands = [line for line in demo.output.read_text().splitlines() if " audit " in line and line.startswith("/")]
        pasted = [subprocess.run(shlex.split(line), capture_output=True, text=True, check=False) for line in commands]
        found = httpx.get(f"{url}/v1/rejections", params={"resource": "job/nightly-report"}, timeout=PATIENCE).json()[
            "rejections"
        ]
        assert demo.stop(signal.SIGINT, group=True) == 0
        assert "Traceback" not in demo.said()
    assert {path: page.status_code for path, page in pages.items()} == {"/ui/": 200, "/ui/rejections": 200}
    assert "dataset/events" in pages["/ui/"].text
    assert "public.accounts/1" in pages["/ui/rejections"].text
    assert [done.returncode for done in pasted] == [0, 0], pasted
    assert pasted[0].stderr == "11 of 11\n"
    assert {one["holder"] for one in found} == {"batch-vm-1"}
