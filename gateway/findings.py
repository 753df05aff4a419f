"""Findings about an installation: their words, advice and severity, and from when on a thing is notable.

The doctor prints them, the page shows those that are not in order, and metrics have the numbers. All three read one
``Standing`` of a database. Pure.
"""

import json
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from gateway.errors import GatewayError

UNSETTLED = timedelta(minutes=2)
"""Object writes are settled within seconds. An older one has lost its writer, or its store."""
UNSEALED = timedelta(minutes=1)
"""Entries are sealed four times a second."""
LEFT_BEHIND = timedelta(minutes=15)
"""An upload is touched with each part. An older one of the gateway's own has lost its gateway."""
MANY_TOMBSTONES = 10_000
"""Tombstones to be swept. The sweeper removes more than that in each of its rounds."""
MOST_COUNTED = 10_000
"""Rows of a table that are counted. A larger number of what should be few tells nothing more."""


class CheckStatus(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``advice`` says what to do about it; empty where nothing is to be done.

    ``fix``: SQL statements that do it, without the last semicolon, or a comment. ``rules`` are entries for the
    configuration that do it, in TOML with all their keys; each stands for itself.
    """

    name: str
    status: CheckStatus
    detail: str
    advice: str = ""
    fix: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportSection:
    title: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class DoctorReport:
    sections: tuple[ReportSection, ...]

    @property
    def problems(self) -> bool:
        """Whether anything keeps the gateway from working as promised."""
        return any(check.status is CheckStatus.PROBLEM for section in self.sections for check in section.checks)

    @property
    def warnings(self) -> bool:
        """Whether anything works, but not as well as it should."""
        return any(check.status is CheckStatus.WARNING for section in self.sections for check in section.checks)


@dataclass(frozen=True, slots=True)
class Name:
    """A name from outside; of a resource, which has a page, or of anything else."""

    text: str
    resource: bool = False


Sentence: TypeAlias = tuple[str | Name | datetime, ...]
"""Text, names from outside and moments, so that a page can mark both."""


def plain(sentence: Iterable[str | Name | datetime]) -> str:
    """Return a sentence as text; moments in ISO 8601."""
    return "".join(
        one.text if isinstance(one, Name) else one.isoformat(timespec="seconds") if isinstance(one, datetime) else one
        for one in sentence
    )


@dataclass(frozen=True, slots=True)
class Notice:
    """A statement about one thing, in words that a page can mark. The sentence has no period at its end."""

    name: str
    notable: bool
    sentence: Sentence
    advice: str

    @property
    def check(self) -> Check:
        """Return it as the doctor prints it, without advice if it is not notable."""
        said = plain(self.sentence)
        return warning(self.name, said, self.advice) if self.notable else ok(self.name, said)


@dataclass(frozen=True, slots=True)
class Standing:
    """The work under way in a database at ``now``, and the end of its record. Rows are counted up to ``MOST_COUNTED``.

    - ``intents``: object writes whose outcome is not known yet; ``oldest_intent``: bucket and key of the oldest.
    - ``uploads``: open ones for large bodies; ``left``: those left behind, the oldest of them in ``left_in``.
    - ``unsealed``: entries not chained yet.
    - ``held``: current leases; ``waiters``: places in queues.
    - ``position``, ``hash`` (hex) and ``day``: the end of the chain, whose last entry happened at ``sealed_at``.
    """

    now: datetime
    intents: int
    intents_since: datetime | None
    oldest_intent: str | None
    tombstones: int
    uploads: int
    left: int
    left_in: str | None
    unsealed: int
    unsealed_since: datetime | None
    held: int
    waiters: int
    position: int
    hash: str
    day: date
    sealed_at: datetime | None

    def age(self, since: datetime | None) -> float:
        """Return the seconds since a moment; 0 if there is none."""
        return 0.0 if since is None else (self.now - since).total_seconds()

    @property
    def notices(self) -> list[Notice]:
        """Return what is to be said of it, in order or not."""
        return [self._of_intents(), self._of_uploads(), self._of_record()]

    def _of_intents(self) -> Notice:
        late = self.age(self.intents_since) > UNSETTLED.total_seconds()
        said: Sentence = ("none",)
        if self.intents_since is not None:
            are, on = "write is" if self.intents == 1 else "writes are", Name(self.oldest_intent or "a key")
            said = (
                f"{counted(self.intents)} object {are} not settled, the oldest since ",
                self.intents_since,
                " on ",
                on,
            )
        return Notice("intents", late, said, _SETTLED)

    def _of_uploads(self) -> Notice:
        said: Sentence = ("none was left behind",)
        if self.left_in is not None:
            were = "upload was" if self.left == 1 else "uploads were"
            said = (
                f"{counted(self.left)} {were} left behind by gateways that went away, the oldest in ",
                Name(self.left_in),
            )
        return Notice("uploads", self.left > 0, said, SWEEP)

    def _of_record(self) -> Notice:
        late = self.age(self.unsealed_since) > UNSEALED.total_seconds()
        said: Sentence = ("every entry of the record is sealed",)
        if self.unsealed_since is not None:
            are = "entry is" if self.unsealed == 1 else "entries are"
            said = (f"{counted(self.unsealed)} {are} not sealed, the oldest since ", self.unsealed_since)
        return Notice("sealing", late, ("The record lags: ", *said) if late else said, _SEALED)


UNFENCED = "takes no fenced write"
"""A bucket whose probe has failed, in the words of the doctor and the page."""
OTHER_STORE = "Use a store that honours conditional writes, or change its settings. Its objects can still be read."
SWEEP = "Running gateways clear them away. Run gateway sweep to do it now."
_SETTLED = (
    "The next write or barrier of a newer holder settles them, or the sweeper an hour later. Many mean that writers "
    "crash, or that the store fails: look for its errors in the log."
)
_SEALED = "Look for a transaction that stays open in the database, and for errors of sealing in the log."


def counted(number: int) -> str:
    """Return a number of rows of which no more than ``MOST_COUNTED`` are counted."""
    return f"{number:,}{' or more' if number >= MOST_COUNTED else ''}"


def as_json(report: DoctorReport) -> str:
    """Return the report as JSON. Its shape is in docs/operations.md."""
    statuses = [check.status for section in report.sections for check in section.checks]
    worst = next((one for one in (CheckStatus.PROBLEM, CheckStatus.WARNING) if one in statuses), CheckStatus.OK)
    sections = [
        {"title": section.title, "checks": [asdict(check) for check in section.checks]} for section in report.sections
    ]
    return json.dumps({"version": 1, "status": worst, "sections": sections}, indent=2, ensure_ascii=False)


def fix_sql(report: DoctorReport) -> list[str]:
    """Return a script for psql that does what the findings advise, as far as SQL can. A superuser runs it."""
    lines: list[str] = []
    for section in report.sections:
        for check in section.checks:
            if check.fix:
                lines += ["", *(f"-- {line}" for line in f"{check.name}: {check.detail}".splitlines())]
                lines += [fix if fix.startswith("--") else f"{fix};" for fix in check.fix]
    return ["BEGIN;", *lines, "", "COMMIT;"] if lines else ["-- Nothing is to be done."]


def render(report: DoctorReport) -> list[str]:
    """Return the report as lines of text."""
    lines: list[str] = []
    for section in report.sections:
        lines += ["", section.title] if lines else [section.title]
        for check in section.checks:
            lines.append(f"  {check.status:<8} {check.name}: {check.detail}")
            if check.advice:
                lines.append(f"  {'':<8} → {check.advice}")
            for rule in check.rules:
                lines += ["", *(f"  {'':<8}   {line}".rstrip() for line in rule.split("\n"))]
    return lines


def ok(name: str, detail: str) -> Check:
    """Nothing is to be done."""
    return Check(name, CheckStatus.OK, detail)


def warning(name: str, detail: str, advice: str) -> Check:
    """Return a check that works, but not as well as it should."""
    return Check(name, CheckStatus.WARNING, detail, advice)


def problem(name: str, detail: str, advice: str) -> Check:
    """Return a check that keeps the gateway from working as promised."""
    return Check(name, CheckStatus.PROBLEM, detail, advice)


async def attempt(name: str, checks: Awaitable[Sequence[Check]], advice: str = "") -> Sequence[Check]:
    """Return the checks, or the error that prevented them."""
    try:
        return await checks
    except GatewayError as error:
        return [problem(name, error.told, advice or error.remedy)]
