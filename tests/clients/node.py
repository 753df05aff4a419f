"""Programs for Node, each started once and asked for many deeds: those of ``javascript/``."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.commands import Shell, environment, javascript
from tests.clients.conversation import Conversation, conversation
from tests.clients.gateway import BUCKET, TOKEN, Lock, Login


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a deed: the signed URLs, the codes of the refusals, and the text of the error."""

    urls: list[str]
    refused: list[str]
    error: str


class Objects:
    """The deeds of ``objects.mjs``."""

    def __init__(self, program: Conversation) -> None:
        self._program = program

    def do(self, deed: str, lock: Lock, login: Login, file: Path) -> Done:
        place = {"endpoint": lock.gateway.origin, "bucket": BUCKET, "prefix": lock.prefix, "file": str(file)}
        return Done(**self._program.ask(deed=deed, keys=environment(login), **place))


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
def objects(shell: Shell) -> Iterator[Objects]:
    with _program("objects.mjs", shell) as program:
        yield Objects(program)


@contextmanager
def tables(shell: Shell) -> Iterator[Tables]:
    with _program("tables.mjs", shell) as program:
        yield Tables(program)


@contextmanager
def _program(name: str, shell: Shell) -> Iterator[Conversation]:
    node, directory = javascript()
    with conversation([node, str(directory / name)], shell) as one:
        yield one
