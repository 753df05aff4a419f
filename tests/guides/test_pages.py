"""The guides whose commands run in order, against an embedded PostgreSQL and S3: an old service that gets fenced."""

import os
import re
import tempfile
from pathlib import Path

import pytest

from examples.retrofit.__main__ import old_service
from gateway.demo import embedded
from tests import ROOT
from tests.guides.pages import play
from tests.processes import free_port

GUIDES = ROOT / "docs/guides"
EXAMPLE = ROOT / "examples/retrofit"


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["retrofit", "backup"])
def test_every_command_in_order(page: str) -> None:
    with tempfile.TemporaryDirectory(prefix="guide-", dir="/tmp") as name:
        directory = Path(name)
        work, port = directory / "work", free_port()
        work.mkdir()
        with old_service(directory) as variables:
            programs = f"{Path(embedded.psql()).parent}:{os.environ['PATH']}"
            # The example's file has the port of the page, and this test another one.
            more = {"PATH": programs, "GATEWAY_SERVER__LISTEN": f"127.0.0.1:{port}"}
            play(GUIDES / f"{page}.md", work, {**variables, **more}, port)


def test_the_rules_that_are_shown_are_those_of_the_example() -> None:
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", (GUIDES / "retrofit.md").read_text(), re.MULTILINE | re.DOTALL)
    for rule in shown.strip().split("\n\n"):
        assert rule in (EXAMPLE / "observe.toml").read_text()
