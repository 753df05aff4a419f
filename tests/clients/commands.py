"""Programs that tests run, in an environment of their own: none of the machine's configuration or credentials."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pytest

from tests import ROOT
from tests.clients.gateway import REGION, Login

PATIENCE = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    error: str


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs commands, with ``home`` as home and working directory and ``variables`` in the environment."""

    home: Path
    variables: dict[str, str]

    @property
    def path(self) -> str:
        """The search path of programs: our own Python's folder first."""
        return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    @property
    def environment(self) -> dict[str, str]:
        """All that a program sees of it."""
        return {
            "PATH": self.path,
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.home),
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_PAGER": "",
            **self.variables,
        }

    def run(self, *command: str) -> Ended:
        """Run a command to its end, whatever comes of it."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=self.home,
            env=self.environment,
        )
        return Ended(done.returncode, done.stdout, done.stderr)


def environment(login: Login) -> dict[str, str]:
    """The login in the variables that the AWS tools and SDKs read."""
    return {
        "AWS_ACCESS_KEY_ID": login.access_key_id,
        "AWS_SECRET_ACCESS_KEY": login.secret_access_key,
        "AWS_SESSION_TOKEN": login.session_token,
    }


def program(name: str, installation: str) -> str:
    """The path of a program; where it is missing the test is skipped, saying how to install it."""
    found = which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: {installation}")
    return found


def javascript() -> tuple[str, Path]:
    """Node, and the directory of the programs with their packages; where either is missing the test is skipped."""
    node, directory = (
        program("node", "install Node 20 or newer, then run `make clients`"),
        ROOT / "tests/clients/javascript",
    )
    if not (directory / "node_modules").is_dir():
        pytest.skip("the packages of the JavaScript client are not installed: run `make clients`")
    return node, directory
