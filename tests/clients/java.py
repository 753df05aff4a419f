"""Programs for Java, started once and asked for many deeds: those of ``jvm/``."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.clients.commands import Shell, program
from tests.clients.conversation import Conversation, conversation
from tests.clients.gateway import BUCKET, Lock, Login

DIRECTORY = ROOT / "tests/clients/jvm"
# Quick to start, rather than quick in the long run.
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")

S3A = {"fs.s3a.path.style.access": "true", "fs.s3a.endpoint.region": "us-east-1"}
"""The settings that S3A needs beside the endpoint and the three keys."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a deed: what it found, and the text of the error."""

    found: list[str]
    error: str


class Objects:
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


def command(source: Path) -> list[str]:
    """The command that runs a program in one file; where a part of Java is missing the test is skipped."""
    java = program("java", "install a JDK of version 17 or newer, then run `make clients`")
    program("javac", "install a JDK of version 17 or newer, then run `make clients`")
    if not (DIRECTORY / "lib").is_dir():
        pytest.skip("the libraries of the Java clients are not installed: run `make clients`")
    return [java, *OPTIONS, "-cp", f"{DIRECTORY}/lib/*", str(source)]


@contextmanager
def objects(shell: Shell) -> Iterator[Objects]:
    with conversation(command(DIRECTORY / "Objects.java"), shell) as one:
        yield Objects(one)
