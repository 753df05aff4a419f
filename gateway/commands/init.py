"""``gateway init``: write a first configuration, for what a database and a store have."""

import asyncio
import os
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from gateway.commands.console import tell, terminal
from gateway.errors import ConfigurationError, GatewayError
from gateway.text import visible

if TYPE_CHECKING:
    from gateway.config.databases import DatabaseConfig
    from gateway.doctor.proposal import Surroundings

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Answers:
    """Facts about the database and the store. None: not given yet. ``endpoint``: empty for no store."""

    dsn: str | None
    endpoint: str | None
    region: str
    access_key_id: str | None
    secret_access_key: str | None

    @property
    def store(self) -> Mapping[str, str | None] | None:
        """The keys of ``[s3]``."""
        if not self.endpoint:
            return None
        names = ("endpoint", "region", "access_key_id", "secret_access_key")
        return {name: getattr(self, name) for name in names}


def init(path: Path, answers: Answers, schemas: Sequence[str]) -> None:
    """Write the file, and print the commands that follow. Raises ``GatewayError``: nothing is written then."""
    from gateway import config, serving  # noqa: PLC0415 - it imports libraries of the server
    from gateway.doctor import proposal  # noqa: PLC0415 - it imports all libraries of both planes

    if path.exists():
        advice = "Move it, or name another file with --config."
        raise ConfigurationError(f"{path}: is there already, and was not changed.", advice=advice)
    answers = _complete(answers)
    values = _values(answers)
    settings = config.of(values, "gateway init").default
    dsn = settings.postgres.dsn.get_secret_value()
    installed = asyncio.run(serving.revision(dsn)) is not None
    found = asyncio.run(proposal.look(dsn, settings.s3, schemas, installed=installed))
    _write(path, proposal.document(values, found))
    console = terminal()
    for line in _summary(path, found):
        console.print(visible(line), soft_wrap=line.startswith(" "))  # a command is pasted whole


def _complete(given: Answers) -> Answers:
    """Return the answers with those that a terminal is asked for. Raises ``ConfigurationError`` if there is none."""
    missing = [] if given.dsn else ["--dsn-file"]
    if given.endpoint is None:
        missing.append("--s3-endpoint or --no-store")
    elif given.endpoint:
        missing += [] if given.access_key_id else ["--s3-access-key-id"]
        missing += [] if given.secret_access_key else ["--s3-secret-file"]
    if missing and not sys.stdin.isatty():
        advice = "Add them, or run the command in a terminal, which asks."
        raise ConfigurationError(f"Options are missing: {', '.join(missing)}.", advice=advice)
    if not given.dsn:
        given = _asked(given, _check_database, dsn=_Question("Database, as postgresql://role:password@host/name"))
    elif missing:
        _check_database(given)
    if given.endpoint is None:
        store = _Question("Address of the S3 store, as https://s3.example.com (empty: none)", default="")
        given = _asked(given, _check_address, endpoint=store)
    if not given.endpoint:
        return given
    questions = {}
    if not given.access_key_id:
        questions["access_key_id"] = _Question("Access key id of the gateway there")
    if not given.secret_access_key:
        questions["secret_access_key"] = _Question("Secret access key (hidden)", hidden=True)
    return _asked(given, _check_store, **questions) if questions else given


class _Question(NamedTuple):
    text: str
    default: str | None = None
    hidden: bool = False


def _asked(given: Answers, check: Callable[[Answers], None], **questions: _Question) -> Answers:
    """Ask until the answers pass the check, so that a wrong one costs no other. ``check`` raises ``GatewayError``."""
    while True:
        answers = replace(given, **{name: _ask(*question) for name, question in questions.items()})
        try:
            check(answers)
        except GatewayError as problem:
            tell(problem)
        else:
            return answers


def _check_database(given: Answers) -> None:
    from gateway import serving  # noqa: PLC0415 - it imports libraries of the server

    asyncio.run(serving.revision(given.dsn or ""))


def _check_address(given: Answers) -> None:
    """Check the address of the store as far as that needs no key."""
    _settings(replace(given, access_key_id="key", secret_access_key="secret"))  # noqa: S106 - it opens nothing


def _check_store(given: Answers) -> None:
    from gateway.doctor import proposal  # noqa: PLC0415 - it imports all libraries of both planes

    if (store := _settings(given).s3) is not None:
        asyncio.run(proposal.buckets(store))


def _settings(given: Answers) -> "DatabaseConfig":
    from gateway import config  # noqa: PLC0415 - it imports libraries of the server

    return config.of(_values(given), "gateway init").default


def _values(given: Answers) -> dict[str, Any]:
    from gateway.doctor import proposal  # noqa: PLC0415 - it imports all libraries of both planes

    return proposal.sections(given.dsn, given.store, lambda: secrets.token_hex(_KEY_BYTES))


def _ask(question: str, default: str | None, hidden: bool) -> str:  # noqa: FBT001 - the fields of a question
    """Ask on standard error, so that standard output has only the result."""
    answer: str = typer.prompt(question, default=default, show_default=False, hide_input=hidden, err=True)
    return answer.strip()


def _write(path: Path, text: str) -> None:
    """Make a file that only its owner can read, whole or not at all. Raises ``ConfigurationError``."""
    try:
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(made, "w", encoding="utf-8") as file:
                file.write(text)
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}.", advice="") from error


def _summary(path: Path, found: "Surroundings") -> Iterator[str]:
    from gateway.doctor.proposal import CALLER, UNWRITTEN  # noqa: PLC0415 - as above

    buckets = "" if found.buckets is None else f"; buckets: {len(found.buckets)}"
    unwritten = sum(need.kind == UNWRITTEN for need in found.needs)
    tables = f"Tables that need no rule: {len(found.keyed)}, that need one: {len(found.needs) - unwritten}"
    if unwritten:
        tables += f", that the gateway cannot write: {unwritten}"
    yield f"{path} is written. {tables}{buckets}. The caller {CALLER} has new keys. It only observes."
    if not found.keyed and not found.needs:
        yield f"There are no tables yet in {', '.join(found.schemas)}: the gateway finds new ones by itself."
    if found.others:
        yield f"These schemas have tables, too, and are not exposed: {', '.join(found.others)}."
    file = shlex.quote(str(path))
    migrate = f"--config {file}"
    if found.lacking:
        yield f"The role {found.lacking} may not install the schema fencing. Let $OWNER be the DSN of a role that may."
        migrate = f'--dsn "$OWNER" --grant-to {shlex.quote(found.lacking)}'
    yield "Continue with these commands. They install the schema fencing, say what is not right yet, and serve:"
    yield f"  gateway migrate {migrate}"
    yield f"  gateway doctor --config {file}"
    yield f"  gateway serve --config {file}"
