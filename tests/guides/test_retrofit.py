"""docs/guides/retrofit.md: an old service is fenced by the commands of the page, and its zombie is refused at the end."""

import os
import re
import tempfile
from pathlib import Path

import pytest

from examples.retrofit.__main__ import old_service
from gateway.demo import embedded
from tests.guides.pages import ROOT, play
from tests.processes import free_port

PAGE = ROOT / "docs/guides/retrofit.md"
EXAMPLE = ROOT / "examples/retrofit"


@pytest.mark.thorough
def test_every_command_in_order() -> None:
    with tempfile.TemporaryDirectory(prefix="retrofit-", dir="/tmp") as name:
        directory = Path(name)
        work, port = directory / "work", free_port()
        work.mkdir()
        # The example's file has the port of the page, and this test another one.
        with old_service(directory) as variables:
            programs = f"{Path(embedded.psql()).parent}:{os.environ['PATH']}"
            play(PAGE, work, {**variables, "PATH": programs, "GATEWAY_SERVER__LISTEN": f"127.0.0.1:{port}"}, port)


def test_the_rules_that_it_shows_are_those_of_the_example() -> None:
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for rule in shown.strip().split("\n\n"):
        assert rule in (EXAMPLE / "observe.toml").read_text()
