"""The doctor's findings: checks, in sections, in a report; and their text."""

import json
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from gateway.errors import GatewayError


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
