"""docs/sdk.md: every snippet that it says is run does what it says."""

import re
import subprocess
import sys

import pytest

from tests import ROOT
from tests.client.stage import Stage
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY

PAGE = ROOT / "docs/sdk.md"
SNIPPETS = dict(re.findall(r"^<!-- run: (\S+) -->\n```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
OURS = {
    "http://127.0.0.1:8080": "{origin}",
    '"demo-key"': f'"{API_KEY}"',
    '"demo"': f'"{ACCESS_KEY}"',
    '"demo-secret"': f'"{SECRET_KEY}"',
}


def test_all_but_the_last_are_run() -> None:
    assert list(SNIPPETS) == ["lock", "errors", "blocking"]
    assert PAGE.read_text().count("```python\n") == len(SNIPPETS) + 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", SNIPPETS)
def test_snippets(stage: Stage, name: str) -> None:
    code = SNIPPETS[name]
    for theirs, ours in OURS.items():
        code = code.replace(theirs, ours.format(origin=stage.origin))
    before = stage.standing("public.accounts/42")["token"]
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    after = stage.standing("public.accounts/42")
    assert (int(after["token"]), after["holders"]) == (int(before or 0) + 1, [])
    assert stage.owner(42) == "dora"
    assert name == "errors" or stage.body(42, "statement") == b"120"
