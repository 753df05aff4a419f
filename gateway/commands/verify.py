"""``gateway audit verify``: check an export against its hashes, and report changes of the record."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from gateway.commands.record_client import lines
from gateway.errors import ConfigurationError
from gateway.fencing.chain_verification import ChainFinding, Flaw, Verifier

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


@dataclass(slots=True)
class Verification:
    """The result. ``anchored``: whether the predecessor of the first entry is known."""

    entries: int = 0
    first: int = 0
    last: int = 0
    head: str = ""
    anchored: bool = False
    flaws: int = 0
    findings: list[ChainFinding] = field(default_factory=list)


Witnesses: TypeAlias = Mapping[int, str]
"""Saved heads, by position."""


def verify(
    pieces: Iterable[bytes], witnesses: Witnesses, seen: Callable[[int], None], *, whole: bool = False
) -> Verification:
    """Verify an export, in pieces. ``seen`` gets the number of lines after each piece.

    ``whole``: the export is the whole record, not a part of it.
    """
    chain, verdict = Verifier(witnesses, whole=whole), Verification()

    def counted() -> Iterator[bytes]:
        for piece in pieces:
            yield piece
            seen(chain.lines)

    for line in lines(counted()):
        _note(verdict, chain.take(line))
    _note(verdict, chain.finish())
    verdict.entries, verdict.first, verdict.last = chain.lines, chain.first, chain.last
    verdict.head, verdict.anchored = chain.head, chain.anchored
    return verdict


def read(files: Iterable[Path]) -> Iterator[bytes]:
    """Yield the files one after the other, in pieces. Raises ``ConfigurationError`` for an unreadable file."""
    for path in files:
        try:
            with path.open("rb") as opened:
                while piece := opened.read(_PIECE):
                    yield piece
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}", advice="") from error


def witnesses(noted: Iterable[str]) -> dict[int, str]:
    """Read saved heads, as ``POSITION:HASH``. Raises ``ConfigurationError``."""
    read: dict[int, str] = {}
    for one in noted:
        position, _, hash_ = one.partition(":")
        if not (position.isascii() and position.isdigit() and len(position) < 19 and _is_hash(hash_)):
            raise ConfigurationError("--head: must be a position and its hash, such as 4711:9f86d081…", advice="")
        read[int(position)] = hash_.lower()
    return read


def describe(finding: ChainFinding) -> str:
    """Return a finding as a sentence."""
    if finding.flaw is Flaw.UNREADABLE:
        return f"Line {finding.line} {_WORDS[finding.flaw]}."
    if finding.last > finding.position:
        return f"Entries {finding.position:,} to {finding.last:,}: each {_WORDS[finding.flaw]} (line {finding.line})."
    return f"Entry {finding.position:,} {_WORDS[finding.flaw]} (line {finding.line})."


def _note(verdict: Verification, findings: Iterable[ChainFinding]) -> None:
    for finding in findings:
        verdict.flaws += 1
        if len(verdict.findings) < SHOWN:
            verdict.findings.append(finding)


def _is_hash(text: str) -> bool:
    return len(text) == 64 and all(digit in "0123456789abcdefABCDEF" for digit in text)
