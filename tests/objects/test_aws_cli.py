"""The AWS CLI as its users run it: the token goes in as metadata, or as the session token of the credentials."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.objects.object_gateway import Stage
from tests.running import ACCESS_KEY, SECRET_KEY

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.thorough]

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    error: str


class Cli:
    """``aws`` in an environment of its own: none of the machine's configuration or credentials."""

    def __init__(self, origin: str, home: Path) -> None:
        self._origin = origin
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "AWS_CONFIG_FILE": str(home / "no-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(home / "no-credentials"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    async def __call__(self, *arguments: str, session: str | None = None) -> Ended:
        environment = self._environment | ({"AWS_SESSION_TOKEN": session} if session else {})
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(sys.executable).with_name("aws")),
            *("--endpoint-url", self._origin),
            *arguments,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, error = await process.communicate()
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), error.decode())


@pytest.fixture
def aws(shared: Stage, tmp_path: Path) -> Cli:
    return Cli(shared.origin, tmp_path)


async def test_put_head_get_and_list_an_object(shared: Stage, aws: Cli, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(b"hello")
    place = ("--bucket", "bucket", "--key", "api/a b+c.txt")
    put = await aws(
        *("s3api", "put-object", *place, "--body", str(tmp_path / "up")),
        *("--metadata", "fencing-token=33,colour=red"),
    )
    assert put.status == 0, put.error
    assert json.loads(put.out)["ETag"] == '"5d41402abc4b2a76b9719d911017c592"'
    assert shared.body("api/a b+c.txt") == b"hello"
    assert await shared.fence("s3/bucket/api/a%20b+c.txt") == "33"
    head, get, listed = await asyncio.gather(
        aws("s3api", "head-object", *place),
        aws("s3api", "get-object", *place, str(tmp_path / "down")),
        aws("s3api", "list-objects-v2", "--bucket", "bucket", "--prefix", "api/"),
    )
    assert json.loads(head.out)["Metadata"] == {"colour": "red"}
    assert get.status == 0, get.error
    assert (tmp_path / "down").read_bytes() == b"hello"
    assert [one["Key"] for one in json.loads(listed.out)["Contents"]] == ["api/a b+c.txt"]


async def test_copy_up_and_down_and_remove(shared: Stage, aws: Cli, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(b"hello")
    up = await aws("s3", "cp", str(tmp_path / "up"), "s3://bucket/cp/k", "--metadata", "fencing-token=33")
    assert up.status == 0, up.error
    down, listed = await asyncio.gather(
        aws("s3", "cp", "s3://bucket/cp/k", str(tmp_path / "down")), aws("s3", "ls", "s3://bucket/cp/")
    )
    assert down.status == 0, down.error
    assert (tmp_path / "down").read_bytes() == b"hello"
    assert listed.out.split()[-2:] == ["5", "k"]
    removed = await aws("s3", "rm", "s3://bucket/cp/k", session="fencing-token=34&fencing-holder=host-7")
    assert removed.status == 0, removed.error
    # Gone for readers; a tombstone may stand there where a request of an older holder may be waiting for absence.
    assert (shared.body("cp/k") or b"deleted ").startswith(b"deleted ")
    (fence,) = await shared.rows("SELECT * FROM fencing.fence WHERE resource = 's3/bucket/cp/k'")
    assert (fence["value"], fence["holder"]) == (34, "host-7")


async def test_the_refusal_of_a_stale_token_reaches_the_user(shared: Stage, aws: Cli, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(b"zombie")
    shared.double.put("bucket", "stale/k", b"precious")
    assert (await shared.barrier("s3/bucket/stale/k", "34")).status_code == 200
    put, removed, without = await asyncio.gather(
        aws("s3", "cp", str(tmp_path / "up"), "s3://bucket/stale/k", "--metadata", "fencing-token=33"),
        aws("s3", "rm", "s3://bucket/stale/k", session="fencing-token=33"),
        aws("s3", "rm", "s3://bucket/stale/k"),
    )
    for refused in (put, removed):
        assert refused.status != 0
        assert "StaleFencingToken" in refused.error
        assert "retrying cannot succeed" in refused.error
    assert without.status != 0
    assert "FencingTokenRequired" in without.error
    assert shared.body("stale/k") == b"precious"


async def test_a_file_that_goes_up_in_parts(shared: Stage, aws: Cli, tmp_path: Path) -> None:
    """The token in the metadata goes with the first request only, and holds for all of the upload."""
    (tmp_path / "up").write_bytes(bytes(9 * MEBIBYTE))
    up = await aws("s3", "cp", str(tmp_path / "up"), "s3://bucket/large", "--metadata", "fencing-token=33,colour=red")
    assert up.status == 0, up.error
    assert shared.body("large") == bytes(9 * MEBIBYTE)
    assert await shared.fence("s3/bucket/large") == "33"
    head = await aws("s3api", "head-object", "--bucket", "bucket", "--key", "large")
    assert json.loads(head.out)["Metadata"] == {"colour": "red"}


@pytest.mark.parametrize("metadata", [(), ("--metadata", "fencing-token=33")])
async def test_a_file_that_goes_up_in_parts_is_refused_whole(
    shared: Stage, aws: Cli, tmp_path: Path, metadata: tuple[str, ...]
) -> None:
    """Without a token, or with a stale one, nothing of it gets through: not even the upload is opened."""
    key = f"refused/{len(metadata)}"
    (tmp_path / "up").write_bytes(bytes(9 * MEBIBYTE))
    assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    since = len(shared.double.requests)
    up = await aws("s3", "cp", str(tmp_path / "up"), f"s3://bucket/{key}", *metadata)
    assert up.status != 0
    assert ("StaleFencingToken" if metadata else "FencingTokenRequired") in up.error
    assert shared.body(key) is None
    assert not shared.written(since)
