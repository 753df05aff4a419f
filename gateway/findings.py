"""The one list of what is asked of an installation, with its words, advice and severity, and reports of findings.

The doctor, readiness, metrics, the page, the log and the start of a gateway ask what is in the list. Pure.
"""

import json
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timedelta
from enum import StrEnum
from string import Formatter
from typing import Literal, TypeAlias

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
    def checks(self) -> list[Check]:
        return [check for section in self.sections for check in section.checks]

    @property
    def problems(self) -> bool:
        """Whether anything keeps the gateway from working as promised."""
        return any(check.status is CheckStatus.PROBLEM for check in self.checks)

    @property
    def warnings(self) -> bool:
        """Whether anything works, but not as well as it should."""
        return any(check.status is CheckStatus.WARNING for check in self.checks)


@dataclass(frozen=True, slots=True)
class Name:
    """A name from outside; of a resource, which has a page, or of anything else."""

    text: str
    resource: bool = False


Sentence: TypeAlias = tuple[str | Name | datetime, ...]
"""Text, names from outside and moments, so that a page can mark both."""
Piece: TypeAlias = str | Name | datetime | Sentence
Rendering: TypeAlias = Literal["doctor", "ready", "metrics", "page", "log", "start"]
"""A place where the state of an installation is shown."""


def plain(sentence: Iterable[str | Name | datetime]) -> str:
    """Return a sentence as text; moments in ISO 8601."""
    return "".join(
        one.text if isinstance(one, Name) else one.isoformat(timespec="seconds") if isinstance(one, datetime) else one
        for one in sentence
    )


def sentence(words: str, **pieces: Piece) -> Sentence:
    """Return a template as a sentence. A piece that is a sentence itself becomes a part of it."""
    said: list[str | Name | datetime] = []
    for text, name, _, _ in Formatter().parse(words):
        piece = pieces[name] if name else ()
        said += [*([text] if text else ()), *(piece if isinstance(piece, tuple) else [piece])]
    return tuple(said)


@dataclass(frozen=True, slots=True)
class Notice:
    """A statement about one thing, in words that a page can mark. The sentence has no period at its end."""

    name: str
    status: CheckStatus
    sentence: Sentence
    advice: str

    @property
    def notable(self) -> bool:
        return self.status is not CheckStatus.OK

    @property
    def check(self) -> Check:
        """Return it as the doctor prints it, without advice if it is not notable."""
        return Check(self.name, self.status, plain(self.sentence), self.advice if self.notable else "")


@dataclass(frozen=True, slots=True)
class Words:
    """Templates of what is said of a thing that is not in order, and of the advice about it.

    ``fine`` is said if there is none of it.
    """

    status: CheckStatus
    said: str
    advice: str
    fine: str = "none"


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that is asked of an installation, by each rendering that is named in ``shown``.

    ``section``: of the doctor's report, empty if the doctor does not ask. ``needs``: the question that must be answered
    first, empty for none. ``gauges``: attributes of ``DatabaseGauges``. ``every``: the seconds between two looks of a
    gateway that looks unasked. ``words``: if several renderings say the same.
    """

    name: str
    section: str
    needs: str
    shown: str
    words: Words = Words(CheckStatus.PROBLEM, "", "")
    gauges: str = ""
    every: float = 0

    def find(self, **pieces: Piece) -> Notice:
        """Return what is to be said of a thing that is not in order."""
        said, advice = sentence(self.words.said, **pieces), sentence(self.words.advice, **pieces)
        return Notice(self.name, self.words.status, said, plain(advice))

    def count(self, number: int, *, notable: bool, **pieces: Piece) -> Notice:
        """Return what is to be said of so many things, which are notable or in order."""
        if not number:
            return Notice(self.name, CheckStatus.OK, (self.words.fine,), self.words.advice)
        found = self.find(**{"count": counted(number), **pieces})
        return found if notable else replace(found, status=CheckStatus.OK)


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
    def intents_age(self) -> float:
        return self.age(self.intents_since)

    @property
    def unsealed_age(self) -> float:
        return self.age(self.unsealed_since)

    @property
    def notices(self) -> list[Notice]:
        """Return what is to be said of it, in order or not."""
        late = self.unsealed_age > UNSEALED.total_seconds()
        return [
            question("intents").count(
                self.intents,
                notable=self.intents_age > UNSETTLED.total_seconds(),
                writes="write is" if self.intents == 1 else "writes are",
                since=self.intents_since or self.now,
                key=Name(self.oldest_intent or "a key"),
            ),
            question("uploads").count(
                self.left,
                notable=True,
                uploads="upload was" if self.left == 1 else "uploads were",
                bucket=Name(self.left_in or ""),
            ),
            question("sealing").count(
                self.unsealed,
                notable=late,
                lags="The record lags: " if late else "",
                entries="entry is" if self.unsealed == 1 else "entries are",
                since=self.unsealed_since or self.now,
            ),
        ]


CONFIGURATION, DATABASE, STORE = "configuration", "database", "object store"
WRITERS, PENDING = "other writers", "pending writes"

_POSTGRES = Words(
    CheckStatus.PROBLEM,
    "{told}",
    "{remedy} Until then nothing of it is written, and this page lacks its record. No entry is lost.",
)
_S3 = Words(
    CheckStatus.PROBLEM,
    "{told}",
    "{remedy} Until then its buckets take no object write. Writes to tables go on.",
)
_RUN = Words(CheckStatus.PROBLEM, "The journal is in trouble: {trouble}", "{remedy}")
_BUCKETS = Words(
    CheckStatus.PROBLEM,
    "The bucket {bucket} takes no fenced write: {reason}",
    "Use a store that honours conditional writes, or change its settings. Its objects can still be read. "
    "gateway doctor probes it again.",
)
_INTENTS = Words(
    CheckStatus.WARNING,
    "{count} object {writes} not settled, the oldest since {since} on {key}",
    "The next write or barrier of a newer holder settles them, or the sweeper an hour later. Many mean that writers "
    "crash, or that the store fails: look for its errors in the log.",
)
_SWEEP = "Running gateways clear them away. Run gateway sweep to do it now."
_UPLOADS = Words(
    CheckStatus.WARNING,
    "{count} {uploads} left behind by gateways that went away, the oldest in {bucket}",
    _SWEEP,
    fine="none was left behind",
)
_SEALING = Words(
    CheckStatus.WARNING,
    "{lags}{count} {entries} not sealed, the oldest since {since}",
    "Look for a transaction that stays open in the database, and for errors of sealing in the log.",
    fine="every entry of the record is sealed",
)
_TOMBSTONES = Words(
    CheckStatus.WARNING,
    "{count}, {waiting} of them may not be swept yet: late requests may be waiting for absence",
    _SWEEP,
)
_BYPASSES = Words(
    CheckStatus.PROBLEM,
    "{changes} past the gateway in {period}{of}, found at {last}. No fence has seen it",
    "Find the writer, and take away its rights: gateway doctor lists roles and principals that have them.",
)
_COUNTED = Words(
    CheckStatus.WARNING,
    "{told}",
    "Look into the log of PostgreSQL: each refusal is a line there, with its resource and token.",
)
_WEBHOOKS = Words(
    CheckStatus.WARNING,
    "The webhook {webhook} does not get through{begun}",
    "Bring its receiver back. Its messages wait, and none is lost.",
)
_ALARMS = Words(CheckStatus.WARNING, "The alarm {alarm} is on since {since}", "Look at the incidents of this time.")

_JOURNAL = "journal_pending journal_lag journal_failing journal_snapshot"
QUESTIONS = (
    Question("tables", CONFIGURATION, "", "doctor"),
    Question("objects", CONFIGURATION, "", "doctor"),
    Question("patterns of objects", CONFIGURATION, "", "doctor start"),
    Question("callers", CONFIGURATION, "", "doctor"),
    Question("grants of callers", CONFIGURATION, "", "doctor"),
    Question("observe", CONFIGURATION, "", "doctor"),
    Question("listen", CONFIGURATION, "", "doctor"),
    Question("postgres", DATABASE, "", "doctor ready metrics page log start", _POSTGRES, "up"),
    Question("schema", DATABASE, "postgres", "doctor start"),
    Question("run", DATABASE, "schema", "doctor metrics page", _RUN, _JOURNAL),
    Question("exposed schemas", DATABASE, "postgres", "doctor"),
    Question("roles", DATABASE, "postgres", "doctor"),
    Question("rules", DATABASE, "schema", "doctor start"),
    Question("grants", DATABASE, "schema", "doctor start"),
    Question("ownership", DATABASE, "schema", "doctor start"),
    Question("naming", DATABASE, "schema", "doctor"),
    Question("reach", DATABASE, "schema", "doctor"),
    Question("guard", DATABASE, "schema", "doctor log", every=10),
    Question("clock", DATABASE, "postgres", "doctor"),
    Question("s3", STORE, "", "doctor ready metrics page log start", _S3, "up"),
    Question("rules of buckets", STORE, "s3", "doctor start"),
    Question("grants of buckets", STORE, "s3", "doctor"),
    Question("buckets", STORE, "s3", "doctor page", _BUCKETS),
    Question("writers of tables", WRITERS, "schema", "doctor"),
    Question("writers of buckets", WRITERS, "", "doctor"),
    Question("intents", PENDING, "schema", "doctor metrics page", _INTENTS, "intents intents_age"),
    Question("uploads", PENDING, "schema", "doctor metrics page", _UPLOADS, "uploads"),
    Question("sealing", PENDING, "schema", "doctor metrics page", _SEALING, "position unsealed unsealed_age"),
    Question("tombstones", PENDING, "schema", "doctor metrics", _TOMBSTONES, "tombstones"),
    Question("leases", "", "postgres", "metrics", gauges="held waiters"),
    Question("bypasses", "", "postgres", "page log", _BYPASSES),
    Question("counted refusals", "", "postgres", "page log", _COUNTED),
    Question("webhooks", "", "postgres", "metrics page", _WEBHOOKS, "webhook_behind webhook_failing"),
    Question("alarms", "", "postgres", "metrics page", _ALARMS, "alarm"),
)
"""All that is asked of an installation, in the order of the doctor's report."""

_BY_NAME = {one.name: one for one in QUESTIONS}


def question(name: str) -> Question:
    return _BY_NAME[name]


def asked_by(rendering: Rendering) -> list[Question]:
    return [one for one in QUESTIONS if rendering in one.shown.split()]


def counted(number: int) -> str:
    """Return a number of rows of which no more than ``MOST_COUNTED`` are counted."""
    return f"{number:,}{' or more' if number >= MOST_COUNTED else ''}"


def as_json(report: DoctorReport) -> str:
    """Return the report as JSON. Its shape is in docs/operations.md."""
    worst = CheckStatus.PROBLEM if report.problems else CheckStatus.WARNING if report.warnings else CheckStatus.OK
    sections = [
        {"title": section.title, "checks": [asdict(check) for check in section.checks]} for section in report.sections
    ]
    return json.dumps({"version": 1, "status": worst, "sections": sections}, indent=2, ensure_ascii=False)


def fix_sql(report: DoctorReport) -> list[str]:
    """Return a script for psql that does what the findings advise, as far as SQL can. A superuser runs it."""
    lines: list[str] = []
    for check in report.checks:
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


Looking: TypeAlias = Awaitable[Sequence[Check]] | Iterable[Check]


async def attempt(name: str, looking: Looking) -> Sequence[Check]:
    """Return the checks, or the error that prevented them."""
    try:
        return list(await looking if isinstance(looking, Awaitable) else looking)
    except GatewayError as error:
        return [problem(name, error.told, error.remedy)]
