"""``gateway audit``: read the record of a gateway over HTTP, export it, and verify exports against their hashes."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeAlias

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gateway.commands import record_client
from gateway.commands.console import (
    AsJson,
    ExitCode,
    print_columns,
    print_entry,
    print_json,
    print_table,
    say,
    terminal,
)
from gateway.commands.environment import ApiKeyFile, GatewayUrl, api_key_if_any
from gateway.commands.record_client import (
    WHAT,
    WHEN,
    WHERE,
    DatabaseOption,
    fetch_report,
    lines,
    parse_moment,
    takes_filters,
)
from gateway.errors import ConfigurationError
from gateway.fencing.chain_verification import ChainFinding, Flaw, Verifier
from gateway.fencing.incident import State
from gateway.text import visible

if TYPE_CHECKING:
    from gateway.commands.api_client import Gateway


SHOWN = 20
"""The most findings that are printed one by one."""

_PIECE = 256 * 1024
_WORDS = {
    Flaw.UNREADABLE: "is no entry of the record",
    Flaw.START: "is the first entry, but should not be",
    Flaw.CHANGED: "was changed, or its predecessor was: the hash does not match",
    Flaw.MISSING: "is missing",
    Flaw.REORDERED: "is in the wrong place",
    Flaw.DOUBLED: "appears twice",
    Flaw.WITNESS: "differs from the saved head: the record was rewritten up to there",
}


Witnesses: TypeAlias = Mapping[int, str]
"""Saved heads, by position."""


@dataclass(slots=True)
class Verification:
    """The verifier after the last line, with the number of flaws, and the first ``SHOWN`` of them."""

    chain: Verifier
    flaws: int = 0
    findings: list[ChainFinding] = field(default_factory=list)

    def note(self, findings: Sequence[ChainFinding]) -> None:
        self.flaws += len(findings)
        self.findings += findings[: SHOWN - len(self.findings)]


def verify_export(
    pieces: Iterable[bytes], witnesses: Witnesses, seen: Callable[[int], None], *, whole: bool = False
) -> Verification:
    """Verify an export, in pieces. ``seen`` gets the number of lines after each piece.

    ``whole``: the export is the whole record, not a part of it.
    """
    verdict = Verification(Verifier(witnesses, whole=whole))

    def counted() -> Iterator[bytes]:
        for piece in pieces:
            yield piece
            seen(verdict.chain.lines)

    for line in lines(counted()):
        verdict.note(verdict.chain.take(line))
    verdict.note(verdict.chain.finish())
    return verdict


def read_files(files: Iterable[Path]) -> Iterator[bytes]:
    """Yield the files one after the other, in pieces. Raises ``ConfigurationError`` for an unreadable file."""
    for path in files:
        try:
            with path.open("rb") as opened:
                while piece := opened.read(_PIECE):
                    yield piece
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}", advice="") from error


def read_heads(noted: Iterable[str]) -> dict[int, str]:
    """Read saved heads, as ``POSITION:HASH``. Raises ``ConfigurationError``."""
    read: dict[int, str] = {}
    for one in noted:
        position, _, hash_ = one.partition(":")
        if not (position.isascii() and position.isdigit() and len(position) < 19 and _is_hash(hash_)):
            raise ConfigurationError("--head: must be a position and its hash, such as 4711:9f86d081…", advice="")
        read[int(position)] = hash_.lower()
    return read


def describe_finding(finding: ChainFinding) -> str:
    if finding.flaw is Flaw.UNREADABLE:
        return f"Line {finding.line} {_WORDS[finding.flaw]}."
    if finding.last > finding.position:
        return f"Entries {finding.position:,} to {finding.last:,}: each {_WORDS[finding.flaw]} (line {finding.line})."
    return f"Entry {finding.position:,} {_WORDS[finding.flaw]} (line {finding.line})."


def _is_hash(text: str) -> bool:
    return len(text) == 64 and all(digit in "0123456789abcdefABCDEF" for digit in text)


audit = typer.Typer(
    help="Read the record of refused writes, takeovers, locks and administration (docs/record.md).",
    no_args_is_help=True,
)

_FORMATS = ("ndjson", "csv")

_REFUSED = {name: hint for name, hint in WHAT.items() if name != "kind"}


@audit.command()
@takes_filters(WHAT, WHERE)
def tail(
    *,
    url: GatewayUrl,
    last: Annotated[int, typer.Option(min=0, max=1000, help="Begin with the last N entries.")] = 10,
    most: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after N entries.")] = None,
    filters: record_client.Filters,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Follow the record as it grows. After a lost connection, continue at the last entry."""
    console = terminal()

    def lost(reason: str, pause: float) -> None:
        say(f"gateway audit: {reason} Retrying in {pause:g} seconds.")

    with suppress(KeyboardInterrupt):
        for number, entry in enumerate(
            record_client.follow_entries(_gateway(url, api_key_file), filters, last, lost), 1
        ):
            _show(console, entry, as_json=as_json)
            if number == most:
                break


@audit.command()
@takes_filters(WHAT, WHEN, WHERE)
def search(
    *,
    url: GatewayUrl,
    most: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Show at most N entries.")] = 50,
    filters: record_client.Filters,
    api_key_file: ApiKeyFile = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="Show the oldest first, instead of the newest.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search the record."""
    order = "oldest" if oldest else "newest"
    entries, total = record_client.find_entries(_gateway(url, api_key_file), filters, most, order)
    console = terminal()
    if as_json:
        for entry in entries:
            _show(console, entry, as_json=True)
    else:
        print_table(console, entries)
        say(f"{len(entries):,} of {total}" if entries else "No entry matches.")


@audit.command()
@takes_filters(WHAT, WHEN, WHERE)
def export(
    *,
    url: GatewayUrl,
    output: Annotated[Path | None, typer.Option(help="The file to write, instead of standard output.")] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(_FORMATS),
            help="The format. The default follows the file's name, else ndjson.",
        ),
    ] = None,
    after: Annotated[
        int | None, typer.Option(metavar="POSITION", min=0, help="Only entries after this position.")
    ] = None,
    filters: record_client.Filters,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Export entries, the oldest first, as NDJSON, which can be verified later, or as CSV.

    The file appears only when it is complete.
    """
    named = "" if output is None else output.suffix.removeprefix(".")
    chosen = form or (named if named in _FORMATS else "ndjson")
    if chosen not in _FORMATS:
        raise ConfigurationError(f"--format: must be one of {', '.join(_FORMATS)}", advice="")
    wanted = {**filters, "after": after}
    with (
        _gateway(url, api_key_file).streamed(f"/v1/events.{chosen}", wanted) as pieces,
        _written(output) as file,
        _progress(shown=output is not None) as progress,
    ):
        task = progress.add_task("exported", total=None)
        for piece in pieces:
            file.write(piece)
            progress.advance(task, piece.count(b"\n"))


@audit.command()
def verify(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Exports, the oldest first.")] = None,
    url: Annotated[
        str | None, typer.Option(envvar="GATEWAY_URL", help="The address of a gateway, instead of files.")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POSITION:HASH",
            help="A head that was saved earlier; may be repeated.",
        ),
    ] = None,
    database: DatabaseOption = None,
    api_key_file: ApiKeyFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Find entries that were changed, removed or moved. Exit code 1: there are some.

    Prints the head at the end. Save it elsewhere, and pass it the next time. Then it shows whether any entry up to
    there was rewritten.
    """
    witnesses = read_heads(head or ())
    with _progress() as progress:
        if files:
            task = progress.add_task("verified", total=None)
            verdict = verify_export(read_files(files), witnesses, _seen(progress, task))
        elif url is not None:
            gateway = _gateway(url, api_key_file)
            end, hash_ = record_client.read_head(gateway, database)
            task = progress.add_task("verified", total=end)
            # The gateway's head must match the entries that it hands out.
            known = {**({end: hash_} if end else {}), **witnesses}
            with gateway.streamed("/v1/events.ndjson", {"database": database}) as pieces:
                verdict = verify_export(pieces, known, _seen(progress, task), whole=True)
        else:
            raise ConfigurationError("name files to verify, or a gateway with --url", advice="")
    if as_json:
        print_json(_facts_of(verdict))
    else:
        _tell(verdict)
    if verdict.flaws:
        raise typer.Exit(ExitCode.NO)


@audit.command()
def report(
    *,
    url: GatewayUrl,
    resource: Annotated[str, typer.Option(help="The resource of the report.")],
    output: Annotated[Path, typer.Option(help="The file to write, e.g. incident.html.")],
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only from this time on.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only up to this time. The default is now.")] = None,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Write an incident report: one HTML file with the timeline of a resource and each refused write.

    Without a time the report covers the last day on which something of note happened.
    """
    begin, end = parse_moment("--since", since), parse_moment("--until", until)
    report = fetch_report(_gateway(url, api_key_file), resource, begin, end)
    with _written(output) as file:
        file.write(report.encode())
    say(f"{output}: written")


@audit.command()
@takes_filters(_REFUSED, WHEN, WHERE)
def incidents(
    *,
    url: GatewayUrl,
    state: Annotated[list[State] | None, typer.Option("--state", help="Only in this state; may be repeated.")] = None,
    most: Annotated[int, typer.Option("--limit", min=1, max=200, help="Show at most N incidents.")] = 50,
    filters: record_client.Filters,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List incidents: refused writes that belong together. Without --since, those of the last 24 hours.

    The writes that passed under a rule that observes have a column of their own.
    """
    asked = {**filters, "state": [one.value for one in state or ()]}
    found, now, complete = record_client.find_incidents(_gateway(url, api_key_file), asked, most)
    if as_json:
        for incident in found:
            print_json(incident)
    elif not found:
        say("No incident.")
    else:
        rows = (record_client.incident_cells(one, now) for one in found)
        lost = print_columns(record_client.INCIDENT_COLUMNS, rows, record_client.OPTIONAL_COLUMNS)
        say(f"{len(found):,} incidents{'' if complete else ', and more: choose a shorter time'}")
        if "id" in lost:
            say("A wider terminal, or --json, shows the ids that gateway audit acknowledge takes.")


@audit.command()
def acknowledge(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The incident, or one of its refused writes.")],
    *,
    url: GatewayUrl,
    note: Annotated[str, typer.Option(help="A note for the next person. It is on record, and never changed.")] = "",
    database: DatabaseOption = None,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Acknowledge an incident, with a note, on record. The caller needs the grant break on its resource."""
    gateway = _gateway(url, api_key_file)
    incident, state, times = record_client.acknowledge_incident(gateway, identifier, note, database)
    say(f"{incident}: {state}, {times} acknowledgements")


def _facts_of(verdict: Verification) -> dict[str, object]:
    chain = verdict.chain
    return {
        "sound": not verdict.flaws,
        "flaws": verdict.flaws,
        "findings": [describe_finding(one) for one in verdict.findings],
        "entries": chain.lines,
        "first": chain.first if chain.lines else None,
        "last": chain.last if chain.lines else None,
        "anchored": chain.anchored,
        "head": f"{chain.last}:{chain.head}" if chain.lines and not verdict.flaws else None,
    }


def _tell(verdict: Verification) -> None:
    console, chain = terminal(), verdict.chain
    for finding in verdict.findings:
        console.print(describe_finding(finding), style="bold red")
    if verdict.flaws > len(verdict.findings):
        console.print(f"And {verdict.flaws - len(verdict.findings):,} findings more.", style="bold red")
    if chain.lines:
        console.print(f"{chain.lines:,} entries, positions {chain.first:,} to {chain.last:,}.")
    else:
        console.print("There are no entries.")
    if chain.lines and not chain.anchored:
        console.print(
            f"The predecessor of entry {chain.first:,} is unknown, so that entry could have been changed. "
            "Begin with the first entry of the record, or pass the head before it with --head.",
            style="yellow",
        )
    if verdict.flaws:
        return
    console.print("Nothing was changed, removed or moved.", style="green")
    if chain.lines:
        console.out(f"--head {chain.last}:{chain.head}", highlight=False)


def _gateway(url: str, api_key_file: Path | None) -> "Gateway":
    from gateway.commands.api_client import Gateway  # noqa: PLC0415 - help needs no HTTP client

    return Gateway(url, api_key_if_any(api_key_file))


def _show(console: Console, entry: record_client.Entry, *, as_json: bool) -> None:
    if as_json:
        print_json(entry)
    else:
        print_entry(console, entry)


def _seen(progress: Progress, task: TaskID) -> Callable[[int], None]:
    def seen(count: int) -> None:
        progress.update(task, completed=count)

    return seen


@dataclass(slots=True)
class _Escaping:
    """Standard output as a terminal: characters that could control it are printed as escapes."""

    rest: bytes = b""

    def write(self, piece: bytes) -> None:
        *whole, self.rest = (self.rest + piece).split(b"\n")
        for line in whole:
            typer.echo(visible(line.decode("utf-8", "replace").rstrip("\r")))


@contextmanager
def _written(output: Path | None) -> Iterator[BinaryIO | _Escaping]:
    """Open the output. A file gets its name when it is complete, and is removed if writing fails."""
    if output is None:
        yield _Escaping() if sys.stdout.isatty() else sys.stdout.buffer
        return
    partial = output.with_name(f"{output.name}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(output)
    except OSError as error:
        raise ConfigurationError(f"{output}: cannot be written: {error.strerror}", advice="") from error
    finally:
        partial.unlink(missing_ok=True)


def _progress(*, shown: bool = True) -> Progress:
    """Return a progress bar on standard error, shown only on a terminal without other output."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )
