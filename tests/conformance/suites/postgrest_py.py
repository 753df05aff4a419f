"""The tests of requests of postgrest-py, with the gateway in PostgREST's place.

The tests are those of the commit, and the client is the package that the other tests use.
"""

import os
import subprocess
import sys

from tests.conformance.differences import junit
from tests.conformance.suites.fetched import BUILD, git_folder
from tests.conformance.suites.tables import in_place_of_postgrest

_REPOSITORY = "https://github.com/supabase/supabase-py"
_TAG = "v2.30.0"
_COMMIT = "f633b7ec13c22b01121e46130cb844c07d2deda1"
_PORT = 3000


def both_ways() -> tuple[dict[str, str], dict[str, str]]:
    """Return the failure of each test, in short; empty if it passed. PostgREST passes all: they have its answers."""
    suite = git_folder(BUILD / "postgrest-py", _REPOSITORY, _TAG, _COMMIT, "src/postgrest")
    script = (suite / "infra" / "init.sql").read_text(encoding="utf-8")
    report = BUILD / "postgrest-py.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "--rootdir=.", "-c", os.devnull]
    command += ["-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-o", "junit_family=xunit1", "--tb=short"]
    with in_place_of_postgrest(("public", "personal"), f"CREATE SCHEMA personal; {script}", _PORT, ""):
        subprocess.run([*command, *map(str, suite.glob("tests/_*/*_integration.py"))], cwd=suite, check=False)
    found = junit(report, module=True)
    return dict.fromkeys(found, ""), found
