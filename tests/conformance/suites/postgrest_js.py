"""postgrest-js's own tests of requests, with the gateway in PostgREST's place.

The tests are those of the commit, and the client is the package of that version.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.suites.fetched import BUILD, git_folder
from tests.conformance.suites.tables import in_place_of_postgrest
from tests.stores.store import program

_REPOSITORY = "https://github.com/supabase/supabase-js"
_TAG = "v2.112.2"
_COMMIT = "e1112e35759291f1b3c477131287ad5949c01695"
_FOLDER = "packages/core/postgrest-js/test"
_HERE = Path(__file__).with_name("postgrest_js")
# All its tests expect PostgREST there. Other tests of the client send no requests.
_PORT = 54321
_ADDRESS = f"http://localhost:{_PORT}/rest/v1"

# A database of Supabase has these roles and this schema.
_BEFORE = """
CREATE ROLE authenticator; CREATE ROLE anon; CREATE ROLE authenticated; CREATE SCHEMA extensions;
"""
# PostGIS is not part of the database.
_POSTGIS = {
    "create extension if not exists postgis schema extensions;": "",
    "extensions.geometry(POINT, 4326)": "text",
}

_COLOUR = re.compile(r"\x1b\[\d*(?:;\d+)*m")


def both_ways() -> tuple[dict[str, str], dict[str, str]]:
    """Return the failure of each test, in short; empty if it passed. PostgREST passes all: they have its answers."""
    packages = BUILD / "postgrest-js"
    tests = git_folder(packages / "checkout", _REPOSITORY, _TAG, _COMMIT, _FOLDER)
    for name in ("package.json", "package-lock.json", "jest.config.cjs"):
        shutil.copy(_HERE / name, packages)
    npm = program("npm", "see https://nodejs.org")
    subprocess.run([npm, "ci", "--silent", "--ignore-scripts", "--no-audit", "--prefix", packages], check=True)
    chosen = [one for one in sorted(tests.glob("*.test.ts")) if _ADDRESS in one.read_text(encoding="utf-8")]
    results = packages / "results.json"
    results.unlink(missing_ok=True)
    with in_place_of_postgrest(("public", "personal"), _script(tests / "supabase"), _PORT, "/rest/v1"):
        done = subprocess.run(
            ["node_modules/.bin/jest", "--ci", "--runInBand", "--silent", "--json", f"--outputFile={results}", *chosen],
            cwd=packages,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert results.exists(), done.stderr
    found: dict[str, str] = {}
    for file in json.loads(results.read_text(encoding="utf-8"))["testResults"]:
        for test in file["assertionResults"]:
            name = f"{Path(file['name']).name}: {test['fullName']}"
            found[name] = found.get(name) or _reason(test["failureMessages"])
    return dict.fromkeys(found, ""), found


def _reason(messages: Sequence[str]) -> str:
    """Return what the answer has and the test does not expect, from the differences that Jest shows."""
    lines = _COLOUR.sub("", "\n".join(messages)).splitlines()
    return (
        " ".join(line.removeprefix("+").strip() for line in lines if line.startswith("+ "))[:300]
        or " ".join(lines)[:300]
    )


def _script(data: Path) -> str:
    schema = (data / "migrations" / "00000000000000_schema.sql").read_text(encoding="utf-8")
    for words, instead in _POSTGIS.items():
        assert schema.count(words) == 1, words
        schema = schema.replace(words, instead)
    return _BEFORE + schema + (data / "seed.sql").read_text(encoding="utf-8")
