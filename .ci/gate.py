"""The steps of ``.ci/run`` and the verdict on them: ``python3 .ci/gate.py SECONDS STEP=MINUTES …``.

The seconds are those that the installation of programs took. A step is a target of make that runs its tests at its end,
and its minutes are the longest that it may take. Each run has the same steps, and each step runs whole.

A test that fails in a step runs once more at the end, alone. If it passes then, it is flaky: the gate is green and
names it, also in build/flaky.txt. All else that goes wrong is red, such as a crash or a timeout.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

BUILD = Path("build/gate")
FLAKY = Path("build/flaky.txt")
PYTHON = ".venv/bin/python"

MOST_FAILURES = 20
"""With more failures than this in a step, something is broken: none of its tests runs again."""
ALONE = 300.0
"""Seconds that a test may take when it runs again."""
TO_STOP = 15.0
"""Seconds between the interrupt of a step that takes too long and its end by force."""

ended_by: list[int] = []
"""The signals that told the gate to end. An exception would leave a step running that has just been started."""

FAILED_TESTS = re.compile(r"make(\[\d+\])?: \*\*\* .* Error 1$")
"""How make reports pytest's exit code 1: some tests failed. The other codes stand for errors of pytest itself."""
SUMMARY = re.compile(r"^=+ .* in [\d.]+s( \([\d:]+\))? =+$|^\d+ (failed|passed).* in [\d.]+s( \([\d:]+\))?$")
"""The last line of pytest."""
NO_SECOND_RUN = (
    "collection failure",
    "crashed while running",
    "failed on teardown",
    "ResourceWarning",
    "PytestUnraisableExceptionWarning",
)
"""Marks of failures that are more than one test's: of a module, of a worker, and leaks. Alone, a test would pass."""


@dataclass(frozen=True)
class Failure:
    """A test that failed, as pytest names it, and the first line of the reason."""

    test: str
    reason: str
    again: bool
    """Whether a second run can tell more."""


@dataclass
class Result:
    """The outcome of a step."""

    step: str
    seconds: float = 0
    passed: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """How many tests were skipped, by reason."""
    failures: list[Failure] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """All else that went wrong. No second run can mend it."""


def main(seconds: str, *steps: str) -> int:
    """Run the steps, then the tests that failed in them, and print the verdict. The exit code."""
    FLAKY.unlink(missing_ok=True)
    results = [Result("installation", float(seconds))]
    results += [run(name, float(minutes) * 60) for name, _, minutes in (step.partition("=") for step in steps)]
    trouble = [f"{result.step}: {line}" for result in results for line in result.trouble]
    flaky = []
    once_more = Result("once more")
    start = time.monotonic()
    for result in results:
        for failure in result.failures:
            if passes_alone(failure.test):
                flaky.append(f"flaky: {failure.test}, first failure: {failure.reason}")
                once_more.passed += 1
            else:
                trouble.append(f"{result.step}: {failure.test} failed twice, first: {failure.reason}")
    once_more.seconds = time.monotonic() - start
    if flaky:
        FLAKY.write_text("".join(f"{line}\n" for line in flaky))
    print(
        "\n".join(["", *table([*results, once_more]), "", *trouble, *flaky, "red" if trouble else "green"]), flush=True
    )
    return 1 if trouble else 0


def run(step: str, limit: float) -> Result:
    """Run a step, for at most ``limit`` seconds, and read the report of its tests."""
    report = BUILD / f"{step}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    print(f"── {step} ──", flush=True)
    start = time.monotonic()
    in_time, status, lines = shown(["make", step], limit, PYTEST_ADDOPTS=f"--junitxml={report.resolve()}")
    result = Result(step, seconds=time.monotonic() - start)
    if report.exists():
        read(report, result)
    if not in_time:
        result.trouble.append(f"it took longer than {limit / 60:g} minutes, and was ended")
    elif status and not (result.failures and any(FAILED_TESTS.search(line) for line in lines)):
        result.trouble.append(f"it failed with exit code {status}, and no failed test explains it")
    elif after_the_tests(lines):
        result.trouble.append("an error came after the last test")
    lost = [failure for failure in result.failures if not failure.again]
    if len(result.failures) > MOST_FAILURES:
        result.trouble.append(f"{len(result.failures)} tests failed, too many to run them again")
        lost = result.failures
    result.trouble += [f"{failure.test}: {failure.reason}" for failure in lost]
    result.failures = [failure for failure in result.failures if failure not in lost]
    return result


def shown(command: Sequence[str], limit: float, **settings: str) -> tuple[bool, int, list[str]]:
    """Run a command and show what it prints: whether it ended in time, its exit code, and the last lines."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, env=os.environ | settings
    )
    lines: list[str] = []
    reader = threading.Thread(target=_show, args=(process, lines), daemon=True)
    reader.start()
    try:
        in_time = _ended(process, limit)
    finally:
        _stop(process)
    if ended_by:
        sys.exit(f"ended by {signal.Signals(ended_by[0]).name}")
    status = process.wait()
    # A process that was left behind may hold the pipe open.
    reader.join(TO_STOP)
    return in_time, status, lines[-100:]


def _show(process: "subprocess.Popen[bytes]", lines: list[str]) -> None:
    assert process.stdout is not None
    for raw in process.stdout:
        line = raw.decode(errors="replace")
        print(line, end="", flush=True)
        lines.append(line.rstrip())


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a step that goes on. Pytest gets the time to stop the servers that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        if not _ended(process, TO_STOP, whole=True):
            os.killpg(process.pid, signal.SIGKILL)


def _ended(process: "subprocess.Popen[bytes]", limit: float, *, whole: bool = False) -> bool:
    """Wait for the end of a process, for at most ``limit`` seconds; unless ``whole``, only while the gate goes on."""
    until = time.monotonic() + limit
    while process.poll() is None:
        if time.monotonic() > until or (ended_by and not whole):
            return False
        time.sleep(0.05)
    return True


def read(report: Path, result: Result) -> None:
    """Read the tests of a report of pytest in the format of JUnit. One that was written by half is trouble."""
    try:
        tests = ET.parse(report)
    except ET.ParseError as error:
        result.trouble.append(f"its report cannot be read: {error}")
        return
    for case in tests.iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if bad:
            text = " ".join(f"{child.get('message')} {child.text}" for child in bad)
            again = not any(mark in text for mark in NO_SECOND_RUN)
            reason = (bad[0].get("message") or "no reason").strip().splitlines()[0]
            result.failures.append(Failure(name(case), reason[:200], again))
        elif skipped is not None:
            result.left_out[(skipped.get("message") or "no reason").splitlines()[0][:120]] += 1
        else:
            result.passed += 1


def name(case: ET.Element) -> str:
    """Return the name by which pytest finds a test again. The report has dots where pytest has slashes and colons."""
    parts = (case.get("classname") or "").split(".")
    test = re.sub(r"@\w+$", "", case.get("name") or "")  # xdist adds the group of a test
    for number in range(len(parts), 0, -1):
        file = "/".join(parts[:number]) + ".py"
        if Path(file).exists():
            return "::".join([file, *parts[number:], test])
    return "::".join([*parts, test])


def after_the_tests(lines: Sequence[str]) -> bool:
    """Tell whether an exception was printed after pytest's summary, as that of a leak is."""
    last = max((number for number, line in enumerate(lines) if SUMMARY.search(line)), default=len(lines))
    return any("Traceback (most recent call last)" in line for line in lines[last:])


def passes_alone(test: str) -> bool:
    """Run a test once more, with nothing beside it. A test that is skipped does not pass."""
    print(f"── once more: {test} ──", flush=True)
    report = BUILD / "once-more.xml"
    report.unlink(missing_ok=True)
    in_time, status, lines = shown([PYTHON, "-m", "pytest", f"--junitxml={report}", test], ALONE)
    again = Result("once more")
    if report.exists():
        read(report, again)
    return in_time and status == 0 and again.passed > 0 and not after_the_tests(lines)


def table(results: Sequence[Result]) -> list[str]:
    """Return the lines of the table: what each step took, and what it left out."""
    reasons = sum((one.left_out for one in results), Counter[str]())
    return [
        f"{'step':<13} {'seconds':>7} {'tests':>6} {'left out':>8}",
        *(f"{one.step:<13} {one.seconds:>7.0f} {one.passed:>6} {one.left_out.total():>8}" for one in results),
        f"{'all':<13} {sum(one.seconds for one in results):>7.0f}",
        *(f"left out: {number} × {reason}" for reason, number in reasons.most_common()),
    ]


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: ended_by.append(number))
    sys.exit(main(*sys.argv[1:]))
