"""Known vulnerabilities of what requirements/*.txt pin: `make audit`. Exit code 1: there are some.

It asks the vulnerability service of PyPI by pip-audit, which lives in an environment of its own and so in no lock file.
Without a network the look is skipped, and says so: a machine without one must be able to build.
"""

import json
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv/audit"
VERSION = "pip-audit>=2.10,<3"
UNREACHABLE = ("ConnectionError", "ProxyError", "SSLError", "ServiceError", "Timeout")


class Skipped(Exception):
    """Nothing can be found out here; the message says why."""


def main(arguments: list[str]) -> int:
    """Look each file up; the exit code. An argument names a pip-audit that is there already."""
    worst = 0
    try:
        program = Path(arguments[0]) if arguments else installed()
        for file in sorted(ROOT.glob("requirements/*.txt")):
            worst = max(worst, look_up(program, file))
    except Skipped as skipped:
        print(f"audit: SKIPPED, nothing was looked up: {skipped}")
    return worst


def installed() -> Path:
    """Return pip-audit, in an environment of its own. Raises ``Skipped`` where it cannot be had."""
    program = HOME / "bin/pip-audit"
    if not program.exists():
        venv.create(HOME, with_pip=True, clear=True)
        asked = [HOME / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", VERSION]
        got = subprocess.run(asked, capture_output=True, text=True, check=False)
        if got.returncode:
            raise Skipped(f"pip-audit cannot be installed ({last_line(got.stderr)})")
    return program


def look_up(program: Path, file: Path) -> int:
    """Look the pins of a file up; the exit code. Raises ``Skipped`` where the service does not answer."""
    name = file.relative_to(ROOT)
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run([program, *options, "--requirement", file], capture_output=True, text=True, check=False)
    try:
        pins = json.loads(done.stdout)["dependencies"]
    except (ValueError, LookupError, TypeError):
        if any(word in done.stderr for word in UNREACHABLE):
            raise Skipped(f"the service cannot be reached ({last_line(done.stderr)})") from None
        print(f"audit: {name}: pip-audit has failed: {last_line(done.stderr)}")
        return 2
    unknown = [pin["name"] for pin in pins if "skip_reason" in pin]
    if len(unknown) == len(pins):
        # A mirror that has the packages, and not what is known of them: nothing found would mean nothing.
        raise Skipped(f"the service that answers here knows none of the {len(pins)} pins of {name}")
    found = [(pin, fault) for pin in pins for fault in pin.get("vulns", ())]
    for pin, fault in found:
        print(f"audit: {name}: {pin['name']} {pin['version']}: {fault['id']}, fixed in {fault['fix_versions'] or '–'}")
    print(f"audit: {name}: {len(pins) - len(unknown)} of {len(pins)} looked up, {len(found)} vulnerabilities known")
    if unknown:
        print(f"audit: {name}: the service does not know {', '.join(unknown[:10])}")
    return 1 if found else 0


def last_line(text: str) -> str:
    """Return the last line of an error, cut short."""
    return (text.strip().splitlines() or ["no reason was given"])[-1][:200]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
