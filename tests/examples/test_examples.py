"""The examples do what their pages say: they run unchanged against ``gateway demo``, and their effects are checked.

Three of them run at the same time, because they wait more than they work. Each runs without and then with its
zombie.
"""

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx
import psutil
import pyarrow.parquet
import pytest

from tests import ROOT
from tests.clients import formats
from tests.processes import PATIENCE, free_port, started

pytestmark = pytest.mark.thorough

EXAMPLES = ("cron", "compactor", "credentials")


@dataclass(frozen=True, slots=True)
class Demo:
    """``gateway demo``, and what an example leaves behind in it."""

    url: str

    def play(self, example: str, *options: str) -> str:
        """Return its output; it must have succeeded."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GATEWAY_"))}
        told = subprocess.run(
            [sys.executable, "-m", f"examples.{example}", "--ttl", "6", *options],
            cwd=ROOT,
            env={**environment, "GATEWAY_URL": self.url},
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            check=False,
        )
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout

    def get(self, path: str, **parameters: str) -> Any:
        # Without parameters, those that stand in the path must stay.
        answer = httpx.get(self.url + path, params=parameters or None, timeout=30, trust_env=False)
        return answer.raise_for_status().json()

    def rejections(self, resource: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/v1/rejections", resource=resource)["rejections"]
        return found

    def objects(self, prefix: str) -> dict[str, bytes]:
        s3 = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="demo",
            aws_secret_access_key="demo-secret",
        )
        found = s3.list_objects_v2(Bucket="reports", Prefix=prefix).get("Contents", ())
        return {one["Key"]: s3.get_object(Bucket="reports", Key=one["Key"])["Body"].read() for one in found}


@dataclass(frozen=True, slots=True)
class Seen:
    """The output of an example, and what it left behind."""

    told: str
    lock: dict[str, Any]
    rows: list[dict[str, Any]]
    objects: dict[str, bytes]
    rejections: list[dict[str, Any]]


PLACES = {
    "cron": ("job/nightly", "runs?order=day.desc", "jobs/nightly/"),
    "compactor": ("dataset/clicks", "catalogue?dataset=eq.clicks", "datasets/clicks/"),
    "credentials": ("job/export", "runs?job=eq.export", "jobs/export/"),
    "delta": ("dataset/visits", "catalogue?dataset=eq.visits", "datasets/visits/"),
}
"""The lock, the rows and the objects of each example."""


def played(demo: Demo, example: str) -> tuple[Seen, Seen]:
    lock, rows, prefix = PLACES[example]

    def seen(*options: str) -> Seen:
        told, held = demo.play(example, *options), demo.get(f"/v1/leases/{lock}")
        return Seen(told, held, demo.get(f"/v1/tables/{rows}"), demo.objects(prefix), demo.rejections(lock))

    return seen(), seen("--zombie")


def those_who_ask(url: str) -> list[list[str]]:
    """The command lines of living processes that were started for this gateway: others may be played elsewhere."""
    return [
        one.info["cmdline"]
        for one in psutil.process_iter(["cmdline", "environ", "status"])
        if (one.info["environ"] or {}).get("GATEWAY_URL") == url and one.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with tempfile.TemporaryDirectory(prefix="examples-", dir="/tmp") as directory:
        port = free_port()
        with started("demo", "--port", str(port), temporary=Path(directory)) as process:
            process.wait_for(lambda: "\nEND\n" in process.output.read_text())
            url = f"http://127.0.0.1:{port}"
            yield Demo(url)
            assert those_who_ask(url) == []
            process.stop()
            assert "Traceback" not in process.said()


@pytest.fixture(scope="module")
def plays(demo: Demo) -> Iterator[dict[str, Future[tuple[Seen, Seen]]]]:
    """Both plays of each example, under way."""
    with ThreadPoolExecutor() as pool:
        yield {example: pool.submit(played, demo, example) for example in EXAMPLES}


@pytest.fixture
def play(request: pytest.FixtureRequest, plays: dict[str, Future[tuple[Seen, Seen]]]) -> tuple[Seen, Seen]:
    """Without, and with the zombie."""
    return plays[request.param].result(6 * PATIENCE)


def refused(after: Seen) -> list[tuple[str, str]]:
    """Return the refused holders and writes, each with the token of the overtaken holder."""
    newest = int(after.lock["token"])
    for record in after.rejections:
        assert record["reason"] == "token-stale"
        assert (record["token"], record["fence"]) == (str(newest - 1), str(newest))
    return sorted((record["method"], record["target"].partition("?")[0]) for record in after.rejections)


@pytest.mark.parametrize("play", EXAMPLES, indirect=True)
def test_nobody_holds_a_lock_in_the_end(play: tuple[Seen, Seen]) -> None:
    for after in play:
        assert after.lock["holders"] == []
        assert after.lock["waiters"] == 0


@pytest.mark.parametrize("play", ["cron"], indirect=True)
def test_of_three_machines_one_does_the_work_of_a_night(play: tuple[Seen, Seen]) -> None:
    once, zombie = play
    assert once.told.count("working, token") == len(once.rows) == 1
    assert once.told.count("exit code 75") + once.told.count("has done the night") == 2
    assert f"{once.rows[0]['machine']}: done" in once.told
    assert once.rejections == []

    assert zombie.rows[1:] == once.rows, "another night"
    assert zombie.rows[0]["machine"] == "machine-b"
    assert refused(zombie) == [("PUT", "/v1/tables/runs")]
    assert zombie.rejections[0]["holder"].startswith("machine-a-")
    assert "machine-a: exit code 79" in zombie.told


@pytest.mark.parametrize("play", ["compactor"], indirect=True)
def test_the_catalogue_always_names_a_file_that_is_there(play: tuple[Seen, Seen]) -> None:
    once, zombie = play
    for after in play:
        [row] = after.rows
        assert pyarrow.parquet.read_metadata(io.BytesIO(after.objects[row["file"]])).num_rows == row["rows"]
        assert row["file"] == f"datasets/clicks/{after.lock['token']}.parquet"
    assert (once.rows[0]["rows"], zombie.rows[0]["rows"]) == (4, 10)
    assert once.rejections == []

    lost = f"datasets/clicks/{int(zombie.lock['token']) - 1}.parquet"
    assert refused(zombie) == [("PUT", f"/reports/{lost}"), ("PUT", "/v1/tables/catalogue")]
    assert lost not in zombie.objects
    assert zombie.told.count("has been overtaken by") == 2


@pytest.mark.parametrize("play", ["credentials"], indirect=True)
def test_the_aws_cli_is_fenced_without_knowing_it(play: tuple[Seen, Seen]) -> None:
    once, zombie = play
    parts = ("jobs/export/part-1.txt", "jobs/export/part-2.txt")
    for after, machine in ((once, "machine-a"), (zombie, "machine-b")):
        first, second = f"first part of {machine}\n", f"second part of {machine}\n"
        assert after.objects == dict(zip(parts, (first.encode(), second.encode()), strict=True))
    assert once.rejections == []

    assert refused(zombie) == [("PUT", "/reports/jobs/export/part-2.txt")]
    assert zombie.rejections[0]["holder"].startswith("machine-a-")
    assert "(StaleFencingToken)" in zombie.told
    assert "machine-a: exit code 79" in zombie.told


@pytest.mark.installed
def test_a_delta_table_is_compacted_by_one_of_two(demo: Demo) -> None:
    formats.python()
    once, zombie = played(demo, "delta")
    log = "datasets/visits/delta/_delta_log"
    assert "compactor-a: 3 files merged into one" in once.told
    assert f"{log}/{3:020}.json" in once.objects
    assert once.rejections == []

    assert "compactor-b: 4 files merged into one" in zombie.told
    assert f"{log}/{7:020}.json" in zombie.objects
    assert f"{log}/{8:020}.json" not in zombie.objects
    [(method, target)] = refused(zombie)
    assert (method, target.rpartition("/")[0]) == ("PUT", "/reports/datasets/visits/delta")
    assert target.removeprefix("/reports/") not in zombie.objects
    assert zombie.rejections[0]["holder"].startswith("compactor-a-")
    assert "compactor-a: exit code 79" in zombie.told
