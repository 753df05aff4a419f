"""s3fs, and with it aiobotocore: files, pipes, copies, and removal of whole directories."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import s3fs
from aiobotocore.session import AioSession

from tests.clients.gateway import BUCKET, REGION, Lock, Login

pytestmark = pytest.mark.thorough


@cache
def _session() -> AioSession:
    """One session, because reading the service model is what makes a client slow to build."""
    return AioSession()


@pytest.fixture
def files(lock: Lock, login: Login) -> Iterator[s3fs.S3FileSystem]:
    system = s3fs.S3FileSystem(
        key=login.access_key_id,
        secret=login.secret_access_key,
        token=login.session_token,
        endpoint_url=lock.gateway.origin,
        client_kwargs={"region_name": REGION},
        use_listings_cache=False,
        skip_instance_cache=True,
        session=_session(),
    )
    yield system
    s3fs.S3FileSystem.close_session(system.loop, system.s3)


@pytest.fixture
def place(lock: Lock) -> str:
    return f"{BUCKET}/{lock.prefix}"


def test_files(files: s3fs.S3FileSystem, lock: Lock, place: str, large: Path, tmp_path: Path) -> None:
    with files.open(f"{place}streamed", "wb", block_size=5 * 1024**2) as file:
        file.write(large.read_bytes())
    assert lock.body("streamed") == large.read_bytes()
    with files.open(f"{place}streamed") as file:
        file.seek(3 * 1024**2)
        assert file.read(4) == bytes([3]) * 4
    files.pipe({f"{place}d/a": b"a", f"{place}d/b": b"b"})
    assert files.cat([f"{place}d/a", f"{place}d/b"]) == {f"{place}d/a": b"a", f"{place}d/b": b"b"}
    assert files.ls(f"{place}d") == [f"{place}d/a", f"{place}d/b"]
    files.copy(f"{place}d", f"{place}e", recursive=True)
    files.mv(f"{place}e/a", f"{place}e/moved")
    assert files.info(f"{place}e/moved")["size"] == 1
    files.put(str(large), f"{place}put")
    files.get(f"{place}put", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == large.read_bytes()
    files.touch(f"{place}touched")
    files.rm(place, recursive=True)
    assert lock.objects() == {}


def test_only_a_new_file(files: s3fs.S3FileSystem, lock: Lock, place: str) -> None:
    files.pipe_file(f"{place}k", b"one", mode="create")
    with pytest.raises(FileExistsError):
        files.pipe_file(f"{place}k", b"two", mode="create")
    assert lock.body("k") == b"one"


def write(files: s3fs.S3FileSystem, path: str, body: bytes) -> None:
    with files.open(path, "wb", block_size=5 * 1024**2) as file:
        file.write(body)


FORMS: dict[str, Callable[[s3fs.S3FileSystem, str, Path], object]] = {
    "open": lambda files, place, _: write(files, f"{place}there", b"zombie"),
    "open, in parts": lambda files, place, large: write(files, f"{place}there", large.read_bytes()),
    "pipe": lambda files, place, _: files.pipe(f"{place}there", b"zombie"),
    "pipe, only if new": lambda files, place, _: files.pipe_file(f"{place}new", b"zombie", mode="create"),
    "put": lambda files, place, large: files.put(str(large), f"{place}there"),
    "copy": lambda files, place, _: files.copy(f"{place}source", f"{place}there"),
    "mv": lambda files, place, _: files.mv(f"{place}source", f"{place}there"),
    "rm_file": lambda files, place, _: files.rm_file(f"{place}there"),
    "touch": lambda files, place, _: files.touch(f"{place}new"),
    "append": lambda files, place, _: append(files, f"{place}there"),
}


def append(files: s3fs.S3FileSystem, path: str) -> None:
    with files.open(path, "ab") as file:
        file.write(b"zombie")


@pytest.mark.parametrize("form", FORMS)
def test_after_a_takeover_every_write_is_refused(
    files: s3fs.S3FileSystem, lock: Lock, place: str, large: Path, form: str
) -> None:
    lock.seed(there=b"precious", source=b"source")
    with lock.overtaken(), pytest.raises(OSError, match="overtaken"):
        FORMS[form](files, place, large)
    assert files.cat(f"{place}there") == b"precious"


def test_after_a_takeover_a_directory_is_not_removed(files: s3fs.S3FileSystem, lock: Lock, place: str) -> None:
    """s3fs keeps to itself what it could not delete of many: it is refused and on record all the same."""
    lock.seed(there=b"precious", source=b"source")
    with lock.overtaken(refusals=2):
        assert files.rm(place, recursive=True) == []
