"""``gateway enforce``: say what keeps rules from enforcing, and change the mode in the configuration and the guards."""

import asyncio
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.config import check_configuration
from gateway.commands.console import AsJson, ConfigPath, ExitCode, load, places, print_columns, print_facts, say
from gateway.commands.guard import InstallingDsn
from gateway.errors import ConfigurationError
from gateway.text import age, plain_time

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.config.databases import DatabaseConfig
    from gateway.config.explanations import Place
    from gateway.enforcement import ObservedRule


@dataclass(frozen=True, slots=True)
class Observing:
    """One thing that observes, in its database, as judged at ``now``."""

    part: "DatabaseConfig"
    observed: "ObservedRule"
    now: datetime

    @property
    def name(self) -> str:
        return self.observed.rule.name

    @property
    def rule_observes(self) -> bool:
        return self.observed.rule.mode == "observe"

    @property
    def guard_observes(self) -> bool:
        return self.observed.guard == "observe"


def enforce(
    rules: Annotated[
        list[str] | None,
        typer.Argument(metavar="RULE", help="schema.table, or a pattern of keys. The default is all that observe."),
    ] = None,
    config: ConfigPath = None,
    dsn: InstallingDsn = None,
    days: Annotated[int, typer.Option(min=1, max=400, help="Judge the writes of the last N days.")] = 7,
    *,
    check: Annotated[bool, typer.Option("--check", help="Only say what is missing. Change nothing.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Enforce although something is missing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let the rules that observe enforce, if no writer would be refused. Exit code 1: something is missing.

    It changes the mode in the file of the configuration and, with --dsn, installs guards that observe again.
    """
    settings = load(config)
    found = _chosen(list(_observing(settings, days)), rules or [])
    general = not rules and settings.fencing.mode == "observe"
    missing = [one for one in found if not one.observed.ready]
    is_missing = bool(missing) or (general and not found)
    for one in found:
        print_facts(_facts(one), _lines(one), as_json=as_json)
        if not as_json:
            _print_groups(one)
    if not found and not general:
        say("Nothing observes.")
        return
    if is_missing:
        _say_missing(config, found, missing)
    if check or (is_missing and not anyway):
        raise typer.Exit(ExitCode.NO if is_missing else 0)
    guarded = [one for one in found if one.guard_observes]
    if dsn is not None:
        _check_guards(guarded, dsn)
    if general or any(one.rule_observes for one in found):
        _change(config, [one for one in found if one.rule_observes], general=general)
    _install_guards(config, guarded, dsn)


def _observing(settings: "Config", days: int) -> Iterator[Observing]:
    from gateway.db.database import Database  # noqa: PLC0415 - help needs no driver of the database
    from gateway.enforcement import observed_rules  # noqa: PLC0415 - the same

    async def judge(part: "DatabaseConfig") -> list[Observing]:
        postgres = part.postgres
        dsn, timeout = postgres.dsn.get_secret_value(), postgres.statement_timeout
        async with Database(dsn, pool_size=1, statement_timeout=timeout) as database:
            now = await database.now()
            found = await observed_rules(part, database, now - timedelta(days=days), now)
            return [Observing(part, one, now) for one in found]

    for part in settings.parts:
        yield from asyncio.run(judge(part))


def _chosen(found: Sequence[Observing], named: Sequence[str]) -> list[Observing]:
    """Return what the command is about. Raises ``ConfigurationError`` for a rule that does not observe."""
    for name in named:
        of_name = [one for one in found if one.name == name]
        if not of_name:
            others = ", ".join(one.name for one in found) or "nothing"
            raise ConfigurationError(f"{name}: no such rule observes.", advice=f"Observing: {others}.")
        if any(one.rule_observes and not one.observed.rule.configured for one in of_name):
            raise ConfigurationError(
                f"{name}: it has no rule of its own, and observes by the mode of [fencing].",
                advice="Give it a rule, or name no rule to enforce all of them.",
            )
    return [one for one in found if not named or one.name in named]


def _lines(one: Observing) -> Iterator[str]:
    from gateway.enforcement import SHOWN  # noqa: PLC0415 - help needs no driver of the database

    observed, verdict, where = one.observed, one.observed.verdict, "" if one.part.name is None else f"{one.part.name}: "
    observing = "rule and guard observe" if one.rule_observes and one.guard_observes else "the guard observes"
    if one.rule_observes and not one.guard_observes:
        observing = "the rule observes" if observed.rule.configured else "observes by [fencing]"
    answer = {"ready": "ready", "not-ready": "not ready", "unknown": "unknown"}[verdict.answer.value]
    yield f"{where}{one.name} ({observed.rule.plane}, {observing}): {answer}"
    for line in _verdict(one):
        yield f"  {line}"
    writers, resources = len(observed.writers), len(observed.resources)
    if max(writers, resources) > SHOWN:
        counted = f"{writers:,} writers and {resources:,} resources"
        yield f"  Of {counted}, those with the most writes are shown. --json has up to 1,000."


def _print_groups(one: Observing) -> None:
    from gateway.enforcement import SHOWN  # noqa: PLC0415 - help needs no driver of the database

    if one.observed.writers:
        print_columns(
            ("caller", "writer", "reason", "writes", "last"),
            [
                (
                    group.caller or "",
                    group.writer or "",
                    group.reason or "",
                    f"{group.count:,}",
                    age(group.last, one.now),
                )
                for group in one.observed.writers[:SHOWN]
            ],
        )
        print_columns(
            ("resource", "writes", "last"),
            [
                (group.value or "", f"{group.count:,}", age(group.last, one.now))
                for group in one.observed.resources[:SHOWN]
            ],
        )
    typer.echo("")


def _verdict(one: Observing) -> Iterator[str]:
    observed, verdict = one.observed, one.observed.verdict
    if verdict.answer == "unknown":
        yield f"Nothing was written under it{', and no caller has shown a token for it' if observed.guard else ''}."
    elif not verdict.observed:
        counted = f"None of {verdict.writes:,} writes" if verdict.writes else "No write of a session on record"
        yield f"{counted} would have been refused."
    else:
        assert verdict.last is not None
        last = plain_time(verdict.last)
        yield f"{verdict.observed:,} of {verdict.writes:,} writes would have been refused, the last at {last}."
    if observed.writers:
        yield f"{observed.refused_callers} of {observed.callers} callers on record would be refused:"
        for reason, count in observed.by_reason.items():
            yield f"  {reason}: {count} {'writer' if count == 1 else 'writers'}"
    if observed.left_out:
        yield f"{observed.left_out:,} of these writes came from strangers, and have no entry."


def _say_missing(config: Path | None, found: Sequence[Observing], missing: Sequence[Observing]) -> None:
    if not found:
        say("Missing: nothing was written yet, so the record cannot say what would be refused.")
    else:
        say(f"Not ready, {len(missing)} of {len(found)}: {', '.join(one.name for one in missing)}.")
    ready = [one for one in found if one.observed.ready and one.observed.rule.configured]
    if ready and missing:
        say(f"Ready by themselves: gateway enforce {' '.join(shlex.quote(one.name) for one in ready)}{_option(config)}")
    if any(one.observed.writers for one in missing):
        say("Correct these writers first (docs/guides/retrofit.md). A rule is ready after a day without such a write.")
    say("To enforce all the same, add --anyway.")


def _change(config: Path | None, observing: Sequence[Observing], *, general: bool) -> None:
    """Write the mode enforce into the file, as a whole or not at all. Raises ``ConfigurationError``."""
    from gateway.config import toml  # noqa: PLC0415 - help needs no settings

    # The file may have changed while the record was read.
    known, settings = places(config), load(config)
    changed = list(_places(settings, observing, general=general))
    for place in changed:
        if (variable := known.variable((*place, "mode"))) is not None:
            raise ConfigurationError(
                f"The mode comes from the environment, {variable}, and this command changes files alone.",
                advice=f"Change {variable}, and restart the gateways.",
            )
    if config is None:
        raise ConfigurationError("There is no file to change.", advice="Name it with --config.")
    for line in check_configuration(config):
        say(f"gateway: {line}")
    text = toml.enforcing(known, changed)
    _replace(config, known.text, text)
    for one in observing:
        say(f"{config}: {one.name} enforces")
    if general:
        say(f"{config}: everything without a mode of its own enforces")
    if settings.server.watch:
        say("Running gateways that watch this file take it within seconds (server.watch).")
    else:
        say(f"Running gateways take it by SIGHUP, or by: gateway reload{_option(config)}")


def _places(settings: "Config", observing: Sequence[Observing], *, general: bool) -> Iterator["Place"]:
    """Yield the sections to be changed. With the general mode, a rule without its own follows it."""
    if general:
        yield ("fencing",)
    for plane, rules in (("tables", settings.tables), ("objects", settings.objects)):
        names = {one.name for one in observing if one.observed.rule.plane == plane}
        for index, rule in enumerate(rules):
            name = getattr(rule, "name" if plane == "tables" else "match")
            if name in names and (rule.mode is not None or not general):
                yield plane, index


def _replace(config: Path, former: str, text: str) -> None:
    """Put a file in the place of the configuration once it can be read as one.

    The new file has the rights and the owner of the former one. Raises ``ConfigurationError``; then nothing is changed.
    """
    path, partial = config.resolve(), None
    try:
        status = path.stat()
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            partial = Path(file.name)
            os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), status.st_uid, status.st_gid)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        load(partial)
        if path.read_bytes().decode() != former:
            raise ConfigurationError(f"{config}: it has changed meanwhile.", advice="Run the command again.")
        partial.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"{config}: cannot be written: {error.strerror}. Nothing was changed.",
            advice="Change the mode where the file comes from.",
        ) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def _option(config: Path | None) -> str:
    return "" if config is None else f" --config {shlex.quote(str(config))}"


def _check_guards(observing: Sequence[Observing], dsn: str) -> None:
    """Raise ``ConfigurationError`` unless all of these guards can be installed again. Nothing is changed."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    if len({one.part.name for one in observing}) > 1:
        raise ConfigurationError("--dsn is that of one database.", advice="Name rules of one database.")
    for one in observing:
        asyncio.run(guards.install_again(one.part, one.name, dsn, only_check=True))


def _install_guards(config: Path | None, observing: Sequence[Observing], dsn: str | None) -> None:
    """Install guards that observe again, so that they enforce as their rules do. Without ``dsn``, say how."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    if not observing:
        return
    if dsn is None:
        say("These guards still observe. Install them again as the owner of the tables:")
        for one in observing:
            say(f"gateway guard install {shlex.quote(one.name)}{_option(config)} --dsn …")
        raise typer.Exit(ExitCode.NO)
    parts = {part.name: part for part in load(config).parts}
    for one in observing:
        prepared = asyncio.run(guards.install_again(parts[one.part.name], one.name, dsn))
        say(prepared.summary)


def _facts(one: Observing) -> dict[str, Any]:
    observed, verdict = one.observed, one.observed.verdict
    return {
        "database": one.part.name,
        "plane": observed.rule.plane,
        "rule": one.name,
        "mode": observed.rule.mode.value,
        "guard": None if observed.guard is None else observed.guard.value,
        "answer": verdict.answer.value,
        "since": None if verdict.since is None else verdict.since.isoformat(),
        "writes": verdict.writes,
        "observed": verdict.observed,
        "last": None if verdict.last is None else verdict.last.isoformat(),
        "without_entry": observed.left_out,
        "callers": observed.callers,
        "refused_callers": observed.refused_callers,
        "writers": [
            {
                "caller": group.caller,
                "writer": group.writer,
                "reason": group.reason,
                "writes": group.count,
                "last": group.last.isoformat(),
            }
            for group in observed.writers
        ],
        "resources": [
            {"resource": group.value, "writes": group.count, "last": group.last.isoformat()}
            for group in observed.resources
        ],
    }
