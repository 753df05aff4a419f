"""Programs for Java, Node and an own environment of Python, each started once and asked for many deeds.

They are those of ``jvm/``, ``javascript/`` and ``lake/``.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.clients import formats
from tests.clients.commands import Conversation, Shell, conversation, environment, javascript, program
from tests.clients.gateway import BUCKET, TOKEN, Lock, Login

DIRECTORY = ROOT / "tests/clients/jvm"
# Quick to start, rather than quick in the long run.
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")

S3A = {"fs.s3a.path.style.access": "true", "fs.s3a.endpoint.region": "us-east-1"}
"""The settings that S3A needs beside the endpoint and the three keys."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a deed: what it found or signed, or the codes of its refusals, and the text of the error."""

    found: list[str]
    error: str


class JavaObjects:
    """The deeds of ``Objects.java``."""

    def __init__(self, program: Conversation) -> None:
        self._program = program

    def sdk(self, deed: str, lock: Lock, login: Login, file: Path, header: str = "") -> Done:
        """A deed of the AWS SDK. ``header``: the token of its client, in a header."""
        return self._do(lock, login, client="sdk", deed=deed, file=str(file), header=header)

    def s3a(self, deed: str, lock: Lock, login: Login, file: Path, *, name: str = "there", **settings: str) -> Done:
        """A deed of Hadoop's file system, with the file or directory of this name."""
        return self._do(lock, login, client="s3a", deed=deed, name=name, file=str(file), settings={**S3A, **settings})

    def job(self, deed: str, name: str, lock: Lock, login: Login, settings: Mapping[str, str]) -> Done:
        """A step of the job of this name, which remembers its settings from its first step on."""
        return self._do(lock, login, client="job", deed=deed, name=name, settings={**S3A, **settings})

    def paused(self) -> AbstractContextManager[None]:
        return self._program.paused()

    def _do(self, lock: Lock, login: Login, **more: Any) -> Done:
        keys = {"key": login.access_key_id, "secret": login.secret_access_key, "token": login.session_token}
        place = {"endpoint": lock.gateway.origin, "bucket": BUCKET, "prefix": lock.prefix}
        return Done(**self._program.ask(**keys, **place, **more))


def java_command(source: Path) -> list[str]:
    """The command that runs a program in one file; where a part of Java is missing the test is skipped."""
    java = program("java", "install a JDK of version 17 or newer, then run `make clients`")
    program("javac", "install a JDK of version 17 or newer, then run `make clients`")
    if not (DIRECTORY / "lib").is_dir():
        pytest.skip("the libraries of the Java clients are not installed: run `make clients`")
    return [java, *OPTIONS, "-cp", f"{DIRECTORY}/lib/*", str(source)]


@contextmanager
def java_objects(shell: Shell) -> Iterator[JavaObjects]:
    with conversation(java_command(DIRECTORY / "Objects.java"), shell) as one:
        yield JavaObjects(one)


class NodeObjects:
    """The deeds of ``objects.mjs``."""

    def __init__(self, program: Conversation) -> None:
        self._program = program

    def do(self, deed: str, lock: Lock, login: Login, file: Path) -> Done:
        place = {"endpoint": lock.gateway.origin, "bucket": BUCKET, "prefix": lock.prefix, "file": str(file)}
        done = self._program.ask(deed=deed, keys=environment(login), **place)
        return Done([*done["urls"], *done["refused"]], done["error"])


class PythonObjects:
    """The deeds of ``objects.py``."""

    def __init__(self, program: Conversation) -> None:
        self._program = program

    def do(self, library: str, deed: str, lock: Lock, login: Login, file: Path) -> Done:
        place = {"endpoint": lock.gateway.origin, "bucket": BUCKET, "prefix": lock.prefix, "file": str(file)}
        return Done(**self._program.ask(library=library, deed=deed, keys=environment(login), **place))


class Tables:
    """The deeds of ``tables.mjs``."""

    def __init__(self, program: Conversation) -> None:
        self._program = program

    def do(
        self, client: str, deed: str, lock: Lock, *, token: str = TOKEN, origin: str | None = None
    ) -> dict[str, Any]:
        """Return the client's error, the status, and the methods of its requests. An unexpected error ends Node."""
        where = {"origin": origin or lock.gateway.origin, "token": token, "id": lock.number}
        done: dict[str, Any] = self._program.ask(client=client, deed=deed, **where)
        return done


@contextmanager
def node_objects(shell: Shell) -> Iterator[NodeObjects]:
    with _program("objects.mjs", shell) as program:
        yield NodeObjects(program)


@contextmanager
def python_objects(home: Path) -> Iterator[PythonObjects]:
    with formats.program("objects.py", home) as program:
        yield PythonObjects(program)


@contextmanager
def tables(shell: Shell) -> Iterator[Tables]:
    with _program("tables.mjs", shell) as program:
        yield Tables(program)


@contextmanager
def _program(name: str, shell: Shell) -> Iterator[Conversation]:
    node, directory = javascript()
    with conversation([node, str(directory / name)], shell) as one:
        yield one
