"""Runs Versity's integration suite twice, straight at Versity's gateway and through ours, and reports the difference.

    python -m tests.conformance.versity [names of tests]

The suite expects what its authors have seen AWS do. It presents no tokens, so our gateway observes. As with
``upstream.py``, only the difference counts: ``versity.txt`` lists each test that passes straight at the store and fails
through the gateway, with its reason.

The suite compares messages of errors word for word, and our messages go on with advice. So it is built without that
comparison: of an error, status and code count, as in ``observer.py``. The other words are printed.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import asyncpg

from gateway.demo import embedded
from tests.conformance.differences import tell
from tests.conformance.running import gateway
from tests.postgres import fresh, template_of_today
from tests.running import GRANTS
from tests.stores import versitygw
from tests.stores.store import OWNER, REGION, StoreMissing, program

# The first are not about S3. Of the others: to buckets with versions in front of this store nothing is written, because
# its conditions do not hold there.
NOT_RUN = ("IAM_", "Versioning_")

# The same each time: Go's cache knows what it has compiled by the path of the source.
_SOURCE = Path(__file__).parents[2] / "build" / "versity"
_TIME_LIMIT = 120  # seconds, for each test
# Comparisons in the suite's source, each with what replaces it, and how often it is there.
_COMPARISONS = (
    (
        r'return fmt.Errorf\("expected error message to be %v, instead got %v", (.*)\)\n',
        r'fmt.Printf("WORDS %q %q\\n", \1)\n',
        2,
    ),
    (r"return compareS3ApiErr\(expected, received\)\n", "return nil\n", 1),
)
_COLOUR = re.compile(r"\x1b\[\d+m")
# Each test names its buckets as the one before did, which must not count.
_FORGET = "TRUNCATE fencing.object, fencing.upload, fencing.tombstone, fencing.intent, fencing.forbidden, fencing.spent"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="a test to run; all, if none is named")
    chosen = parser.parse_args().names
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="versity") as name, ExitStack() as stack:
        directory = Path(name)
        try:
            store, behind = (stack.enter_context(versitygw.running(directory / way)) for way in ("direct", "through"))
            suite = _built()
        except StoreMissing as missing:
            print(f"skipped: {missing}")
            return 0
        postgres = stack.enter_context(embedded.postgres(directory / "postgres"))
        template_of_today(postgres)
        dsn = stack.enter_context(fresh(postgres))
        origin = stack.enter_context(gateway(dsn, behind, (OWNER,), GRANTS, mode="observe"))
        straight = _Way(suite, store.endpoint, directory / "direct")
        through = _Way(suite, origin, directory / "through")
        pool = stack.enter_context(ThreadPoolExecutor(1))
        for test, done in [(one, pool.submit(straight.run, one)) for one in chosen or _names()]:
            done.result()
            if not straight.failures[test]:
                asyncio.run(_forget(dsn))
                through.run(test)
    for way in (straight, through):
        longest = ", ".join(sorted(way.seconds, key=way.seconds.__getitem__, reverse=True)[:3])
        print(f"{way.endpoint}: {sum(way.seconds.values()):.0f} seconds, most of all {longest}")
    print("Through the gateway the suite read other words than it expects:")
    print("\n".join(sorted(through.words)))
    return tell(straight.failures, through.failures, Path(__file__).with_suffix(".txt"))


async def _forget(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(_FORGET)
    finally:
        await connection.close()


def _built() -> Path:
    """Return the program of the suite, made of its source, which is fetched anew. Raises ``StoreMissing``."""
    go = program("go", "the suite is built with it, see https://go.dev/dl")
    module = versitygw.MODULE.replace("/cmd/versitygw", "")
    told = subprocess.run([go, "mod", "download", "-json", module], capture_output=True, text=True, check=True).stdout
    shutil.rmtree(_SOURCE, ignore_errors=True)
    shutil.unpack_archive(json.loads(told)["Zip"], _SOURCE)
    source = _SOURCE / module
    comparing = source / "tests" / "integration" / "utils.go"
    text = comparing.read_text(encoding="utf-8")
    for comparison, replacement, expected in _COMPARISONS:
        text, found = re.subn(comparison, replacement, text)
        assert found == expected, f"the suite compares errors elsewhere: {comparison}"
    comparing.write_text(text, encoding="utf-8")
    built = _SOURCE / "suite"
    subprocess.run([go, "build", "-C", source, "-o", built, "./cmd/versitygw"], check=True)
    return built


def _names() -> list[str]:
    """Return the tests of ``full-flow``. Each is a command of its own, so that one that panics ends no other."""
    source = next(_SOURCE.rglob("group-tests.go")).read_text(encoding="utf-8")
    groups = dict(re.findall(r"^func (Test\w+)\(.*?\) \{\n(.*?)^\}", source, re.MULTILINE | re.DOTALL))

    def within(group: str) -> Iterator[str]:
        for test, other in re.findall(r"^\t+(?:ts\.\w+\((\w+)\)|(Test\w+)\(ts\))$", groups[group], re.MULTILINE):
            yield from within(other) if other else (test,)

    return sorted({test for test in within("TestFullFlow") if not test.startswith(NOT_RUN)})


class _Way:
    """A way to a store, and what the suite found on it. ``data`` has the buckets of the store."""

    def __init__(self, suite: Path, endpoint: str, data: Path) -> None:
        self.endpoint = endpoint
        self.failures: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.words: set[str] = set()
        self._command = [str(suite), "--region", REGION, "test", "--endpoint", endpoint]
        self._command += ["--access", OWNER.access_key_id, "--secret", OWNER.secret_access_key]
        self._data = data
        # A bundle of certificates is not for the suite's HTTP client.
        self._environment = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}

    def run(self, test: str) -> None:
        """Note the failure of a test, in short; empty if it passed. Nothing is left in the store."""
        started = time.monotonic()
        try:
            done = subprocess.run(
                [*self._command, test],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_TIME_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.failures[test] = f"took longer than {_TIME_LIMIT} s"
        else:
            lines = _COLOUR.sub("", done.stdout).splitlines()
            self.words.update(line.removeprefix("WORDS ") for line in lines if line.startswith("WORDS "))
            self.failures[test] = "" if done.returncode == 0 else _reason(lines)
        self.seconds[test] = time.monotonic() - started
        for left in self._data.iterdir():
            shutil.rmtree(left, ignore_errors=True)


def _reason(lines: Sequence[str]) -> str:
    """Return the line of the output that says why a test failed."""
    told = [line for line in lines if re.match(r"FAIL |panic: |.*: failed to delete the bucket", line)]
    return next(iter(told or lines[-1:]), "no output")[:300]


if __name__ == "__main__":
    sys.exit(main())
