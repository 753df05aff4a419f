"""rclone: the token goes in with the credentials of a remote. It does not sign the headers of its --header flags."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.commands import Ended, Shell, environment, program
from tests.clients.gateway import BUCKET, REGION, Lock, Login

pytestmark = pytest.mark.installed

# It tries whole commands again, three times, unless told otherwise; a refusal is final.
ONCE = ("--retries", "1")


@dataclass(frozen=True, slots=True)
class Rclone:
    """``rclone`` for one holder of one lock. In arguments ``@`` is the lock's place in the bucket."""

    shell: Shell
    lock: Lock
    path: str

    def __call__(self, *arguments: str) -> Ended:
        place = f"gateway:{BUCKET}/{self.lock.prefix}"
        here = [place + one.removeprefix("@") if one.startswith("@") else one for one in arguments]
        return self.shell.run(self.path, "--config", str(self.shell.home / "rclone.conf"), *ONCE, *here)

    def must(self, *arguments: str) -> str:
        ended = self(*arguments)
        assert ended.status == 0, ended.error
        return ended.out


@pytest.fixture
def rclone(lock: Lock, login: Login, tmp_path: Path) -> Rclone:
    path = program("rclone", "run `make clients`, or apt-get install rclone")
    (tmp_path / "rclone.conf").write_text(
        "[gateway]\n"
        "type = s3\n"
        "provider = Other\n"
        f"endpoint = {lock.gateway.origin}\n"
        f"region = {REGION}\n"
        f"access_key_id = {login.access_key_id}\n"
        f"secret_access_key = {login.secret_access_key}\n"
        f"session_token = {login.session_token}\n"
        "upload_cutoff = 8M\n"
        "chunk_size = 8M\n"
        "no_check_bucket = true\n"
        # The store of these tests names the version "null" where there are none, and then does not know it.
        "no_head = true\n"
    )
    return Rclone(Shell(tmp_path, {}), lock, path)


@pytest.fixture
def tree(tmp_path: Path, large: Path) -> Path:
    directory = tmp_path / "tree"
    (directory / "below").mkdir(parents=True)
    (directory / "a b+c.txt").write_bytes(b"hello")
    (directory / "below/ü.txt").write_bytes(b"below")
    large.rename(directory / "large")
    return directory


def test_files(rclone: Rclone, lock: Lock, tree: Path, tmp_path: Path) -> None:
    rclone.must("copy", str(tree), "@")
    assert set(lock.objects()) == {"a b+c.txt", "below/ü.txt", "large"}
    assert lock.body("large") == (tree / "large").read_bytes()
    (tree / "below/ü.txt").unlink()
    (tree / "a b+c.txt").write_bytes(b"changed")
    rclone.must("sync", str(tree), "@")
    assert set(lock.objects()) == {"a b+c.txt", "large"}
    assert lock.body("a b+c.txt") == b"changed"
    rclone.must("moveto", "@a b+c.txt", "@moved")
    rclone.must("copyto", "@large", "@copied")
    assert lock.body("copied") == lock.body("large")
    rclone.must("copy", "@", str(tmp_path / "down"))
    assert (tmp_path / "down/copied").read_bytes() == (tree / "large").read_bytes()
    rclone.must("delete", "@")
    assert lock.objects() == {}


FORMS: dict[str, tuple[int, Callable[[Rclone, Path], Ended]]] = {
    "copy": (3, lambda rclone, tree: rclone("copy", str(tree), "@")),
    "copyto": (1, lambda rclone, tree: rclone("copyto", str(tree / "a b+c.txt"), "@there")),
    "copyto within": (1, lambda rclone, _: rclone("copyto", "@source", "@there")),
    "sync": (3, lambda rclone, tree: rclone("sync", str(tree), "@")),
    "moveto": (1, lambda rclone, _: rclone("moveto", "@source", "@there")),
    "move up": (3, lambda rclone, tree: rclone("move", str(tree), "@")),
    "deletefile": (1, lambda rclone, _: rclone("deletefile", "@there")),
    "delete": (2, lambda rclone, _: rclone("delete", "@")),
    "touch": (1, lambda rclone, _: rclone("touch", "@new")),
}


@pytest.mark.parametrize("form", FORMS)
def test_after_a_takeover_every_write_is_refused(rclone: Rclone, lock: Lock, tree: Path, form: str) -> None:
    lock.seed(there=b"precious", source=b"source")
    refusals, command = FORMS[form]
    with lock.overtaken(refusals):
        ended = command(rclone, tree)
    assert ended.status != 0
    assert "StaleFencingToken" in ended.error
    assert (tree / "a b+c.txt").exists(), "a move that failed has moved nothing"


def test_keys_of_the_environment(rclone: Rclone, lock: Lock, login: Login, tree: Path) -> None:
    config = rclone.shell.home / "rclone.conf"
    kept = [line for line in config.read_text().splitlines() if "_key" not in line and "session_token" not in line]
    config.write_text("\n".join([*kept, "env_auth = true", ""]))
    by_environment = Rclone(Shell(rclone.shell.home, environment(login)), lock, rclone.path)
    by_environment.must("copyto", str(tree / "a b+c.txt"), "@k")
    assert lock.body("k") == b"hello"


def test_a_header_that_it_does_not_sign_is_refused(rclone: Rclone, lock: Lock, tree: Path) -> None:
    ended = rclone("--header", "Fencing-Token: 35", "copyto", str(tree / "a b+c.txt"), "@k")
    assert ended.status != 0
    assert "status code: 403" in ended.error
    assert lock.objects() == {}
