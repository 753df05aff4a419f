"""Reads the lists of what the gateway answers differently on purpose: cases of our own, and tests of foreign suites."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import parse


@dataclass(frozen=True, slots=True)
class Difference:
    """How the first difference of a case begins, and why it may be there."""

    seen: str
    reason: str


def differences_beside(module: str) -> dict[tuple[str, str], Difference]:
    """Return the listed differences by store and case; without a store if the file has no column for them.

    A case that turns out the same, or differs elsewhere, is an error: its reason is out of date.
    """
    listed = list(_read(Path(module).with_name("differences.txt").read_text(encoding="utf-8")))
    assert len(dict(listed)) == len(listed), "a case is listed twice"
    return dict(listed)


def _read(text: str) -> Iterator[tuple[tuple[str, str], Difference]]:
    reason = ""
    for line in text.splitlines():
        if line.startswith("= "):
            reason = line.removeprefix("= ")
        elif line and not line.startswith("#"):
            *stores, case, seen = line.split(" | ")
            for store in " ".join(stores).split() or [""]:
                yield (store, case), Difference(seen, reason)


def listed(path: Path) -> dict[str, str]:
    """Return the heading above each listed test: why it fails through the gateway, or the grants that it needs."""
    heading, found = "", {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            heading = line.removeprefix("= ")
        elif line and not line.startswith("#"):
            found[line] = heading
    return found


def junit(path: Path, *, module: bool = False) -> dict[str, str]:
    """Return the failure of each test in a report of pytest, in short; empty if it passed. Skipped ones are left out.

    ``module``: names of tests begin with their module.
    """
    found = {}
    for test in parse(path).getroot().iter("testcase"):
        if test.find("skipped") is None:
            trouble = next((one for one in test if one.tag in ("failure", "error")), None)
            message = "" if trouble is None else trouble.get("message", "failed")
            name = test.get("name", "")
            found[f"{test.get('classname')}.{name}" if module else name] = (
                message.splitlines()[0][:200] if message else ""
            )
    return found


def tell(direct: Mapping[str, str], through: Mapping[str, str], path: Path) -> int:
    """Print what the gateway changes; 1 where the list at ``path`` does not explain some of it, or is out of date.

    Both have the failure of each test that ran, in short; empty if it passed.
    """
    passed = [name for name, trouble in direct.items() if not trouble]
    failing = [name for name in passed if through.get(name, "not run")]
    reasons = listed(path)
    explained = [name for name in failing if name in reasons]
    print(
        f"\n{len(direct)} tests; {len(passed)} pass direct, {len(passed) - len(failing)} of these through the gateway"
    )
    print(f"{sum(1 for name, trouble in direct.items() if trouble and not through.get(name, ' '))} pass through only")
    for reason, count in Counter(reasons[name] for name in explained).most_common():
        print(f"{count:4} fail through: {reason}")
    unexplained = [name for name in failing if name not in explained]
    print(f"\npasses direct, fails through: {len(unexplained)}")
    for name in unexplained:
        print(f"  {name}: {through.get(name, 'not run')}")
    outdated = [name for name in passed if name in reasons and name not in failing]
    print(f"passes both ways by now, so it is listed for no reason: {len(outdated)}")
    for name in outdated:
        print(f"  {name}")
    return 1 if unexplained or outdated else 0
