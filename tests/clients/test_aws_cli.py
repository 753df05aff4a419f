"""The AWS CLI: its high-level commands, with keys from the environment and from a credential process.

It starts as a user's does in ``test_page.py`` and ``test_tls.py``.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.commands import Ended, Shell, environment
from tests.clients.forks import Forks, forks
from tests.clients.gateway import ACCESS_KEY, API_KEY, BUCKET, SECRET_KEY, TOKEN, Lock, Login, send

pytestmark = pytest.mark.thorough

AWS = str(Path(sys.executable).with_name("aws"))
LONG_AGO = 3600  # seconds since 1970


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """The forks, with the imports that all programs below need."""
    libraries = ("awscli.clidriver", "awscli.handlers", "awscli.customizations.s3.subcommands")
    with forks(tmp_path_factory.mktemp("aws"), *libraries) as one:
        yield one


@dataclass(frozen=True, slots=True)
class Aws:
    """``aws`` for one holder of one lock. In arguments ``@`` is the lock's place in the bucket."""

    forks: Forks
    shell: Shell
    lock: Lock

    def __call__(self, *arguments: str) -> Ended:
        place = f"s3://{BUCKET}/{self.lock.prefix}"
        here = [place + one.removeprefix("@") if one.startswith("@") else one for one in arguments]
        return self.forks.run(self.shell, AWS, "--endpoint-url", self.lock.gateway.origin, *here)

    def must(self, *arguments: str) -> str:
        ended = self(*arguments)
        assert ended.status == 0, ended.error
        return ended.out


@pytest.fixture
def by_process(starting: Forks, lock: Lock, tmp_path: Path) -> Aws:
    """Fenced credentials, which the CLI gets by itself."""
    (tmp_path / ".aws").mkdir()
    command = f"{sys.executable} -m gateway credentials --url {lock.gateway.origin}"
    (tmp_path / ".aws/config").write_text(
        f"[default]\ncredential_process = {command} --resource {lock.resource} --token {TOKEN}\n"
    )
    return Aws(starting, Shell(tmp_path, {"GATEWAY_API_KEY": API_KEY}), lock)


@pytest.fixture(params=["session token", "credential process"])
def aws(request: pytest.FixtureRequest, starting: Forks, lock: Lock, tmp_path: Path) -> Aws:
    if request.param == "session token":
        return Aws(starting, Shell(tmp_path, environment(lock.session())), lock)
    by_process: Aws = request.getfixturevalue("by_process")
    return by_process


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory to copy: one file that goes up whole, one in a directory, one in parts."""
    directory = tmp_path / "tree"
    (directory / "below").mkdir(parents=True)
    (directory / "a b+c.txt").write_bytes(b"hello")
    (directory / "below/ü.txt").write_bytes(b"below")
    (directory / "parts").write_bytes(b"0123456789abcdef" * 600_000)
    for path in directory.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))  # before they go up, even where the store knows only whole seconds
    return directory


def test_copy_move_and_remove(aws: Aws, lock: Lock, large: Path, tree: Path, tmp_path: Path) -> None:
    aws.must("s3", "cp", str(large), "@large")
    assert lock.body("large") == large.read_bytes()
    aws.must("s3", "cp", str(tree / "parts"), "@parts")
    aws.must("s3", "cp", "@parts", "@copied")
    aws.must("s3", "mv", "@copied", "@moved")
    aws.must("s3", "cp", "@moved", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == (tree / "parts").read_bytes()
    aws.must("s3", "mv", str(tree / "a b+c.txt"), "@a b+c.txt")
    assert set(lock.objects()) == {"large", "parts", "moved", "a b+c.txt"}
    aws.must("s3", "rm", "@moved")
    assert set(lock.objects()) == {"large", "parts", "a b+c.txt"}


def test_synchronise_and_remove_all(aws: Aws, lock: Lock, tree: Path, tmp_path: Path) -> None:
    aws.must("s3", "sync", str(tree), "@sync/")
    assert set(lock.objects()) == {"sync/a b+c.txt", "sync/below/ü.txt", "sync/parts"}
    assert aws.must("s3", "sync", str(tree), "@sync/") == "", "nothing has changed"
    (tree / "a b+c.txt").unlink()
    aws.must("s3", "sync", "--delete", str(tree), "@sync/")
    aws.must("s3", "sync", "@sync/", str(tmp_path / "down"))
    assert (tmp_path / "down/below/ü.txt").read_bytes() == b"below"
    assert not (tmp_path / "down/a b+c.txt").exists()
    aws.must("s3", "rm", "--recursive", "@sync/")
    assert lock.objects() == {}


def test_presign(aws: Aws, lock: Lock) -> None:
    lock.seed(k=b"hello")
    old = send("GET", aws.must("s3", "presign", "@k").strip())
    assert (old.status_code, "Signature Version 2 is not supported" in old.text) == (400, True)
    aws.must("configure", "set", "default.s3.signature_version", "s3v4")
    assert send("GET", aws.must("s3", "presign", "@k").strip()).content == b"hello"


FORMS: dict[str, tuple[int, Callable[[Aws, Path], Ended]]] = {
    "cp": (1, lambda aws, tree: aws("s3", "cp", str(tree / "a b+c.txt"), "@there")),
    "cp in parts": (1, lambda aws, tree: aws("s3", "cp", str(tree / "parts"), "@there")),
    "cp within": (1, lambda aws, tree: aws("s3", "cp", "@source", "@there")),
    "sync": (3, lambda aws, tree: aws("s3", "sync", str(tree), "@")),
    "mv up": (1, lambda aws, tree: aws("s3", "mv", str(tree / "a b+c.txt"), "@there")),
    "mv within": (1, lambda aws, tree: aws("s3", "mv", "@source", "@there")),
    "mv down": (1, lambda aws, tree: aws("s3", "mv", "@source", str(tree / "down"))),
    "rm": (1, lambda aws, tree: aws("s3", "rm", "@there")),
    "rm --recursive": (2, lambda aws, tree: aws("s3", "rm", "--recursive", "@")),
}


@pytest.mark.parametrize("form", FORMS)
def test_after_a_takeover_every_write_is_refused(
    starting: Forks, lock: Lock, login: Login, tree: Path, tmp_path: Path, form: str
) -> None:
    lock.seed(there=b"precious", source=b"source")
    refusals, command = FORMS[form]
    with lock.overtaken(refusals):
        ended = command(Aws(starting, Shell(tmp_path, environment(login)), lock), tree)
    assert ended.status != 0
    assert "StaleFencingToken" in ended.error
    assert "retrying cannot succeed" in ended.error
    assert (tree / "a b+c.txt").exists(), "a move that failed has moved nothing"


def test_after_a_takeover_there_are_no_credentials(by_process: Aws, lock: Lock, tree: Path) -> None:
    lock.seed(there=b"precious")
    with lock.overtaken():
        ended = by_process("s3", "cp", str(tree / "a b+c.txt"), "@there")
    assert ended.status != 0
    assert "has been overtaken by 34" in ended.error


def test_a_write_without_a_token_is_told_so(starting: Forks, lock: Lock, tree: Path, tmp_path: Path) -> None:
    bare = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    ended = Aws(starting, Shell(tmp_path, bare), lock)("s3", "cp", str(tree / "parts"), "@k")
    assert ended.status != 0
    assert "FencingTokenRequired" in ended.error
    assert lock.objects() == {}
