"""docs/clients.md: every snippet that it says is run works while the token holds, and is refused after a takeover."""

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config
from gateway.demo import demonstration as demo
from tests import ROOT
from tests.clients import formats
from tests.clients.commands import Ended, Forks, Shell, forks, javascript, program
from tests.clients.gateway import CONFIGURATION, Lock
from tests.clients.sdks import java_command

pytestmark = pytest.mark.thorough

PAGE = ROOT / "docs/clients.md"
SNIPPETS = {
    name: (language, code)
    for name, language, code in re.findall(
        r"^<!-- run: (\S+) -->\n```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
}
LIBRARIES = ("boto3", "httpx", "minio", "postgrest", "pyarrow.parquet", "s3fs")
ELSEWHERE = {"iceberg"}
"""Snippets that need another gateway: ``test_table_formats.py`` runs them."""
WITHOUT_AN_OBJECT = {"fenced-credentials"}
OF_TABLES = {"postgrest", "postgrest-hook", "postgrest-js", "supabase-js", "curl-tables"}


def test_every_snippet_of_code_is_run() -> None:
    blocks = re.findall(r"^```(\w+)$", PAGE.read_text(), re.MULTILINE)
    assert len(blocks) == len(SNIPPETS) + blocks.count("properties") + blocks.count("toml")
    assert len(SNIPPETS) == 20


DEV, TABLES, JAVASCRIPT = (
    "requirements/dev.txt",
    "requirements/tables.txt",
    "tests/clients/javascript/package.json",
)
PINS = {
    "AWS CLI": (DEV, "awscli=="),
    "boto3": (DEV, "boto3=="),
    "s3fs (fsspec)": (DEV, "s3fs=="),
    "smart_open": (TABLES, "smart-open=="),
    "minio-py": (DEV, "minio=="),
    "obstore": (TABLES, "obstore=="),
    "Polars": (TABLES, "polars=="),
    "PyArrow": (DEV, "pyarrow=="),
    "PyIceberg": (TABLES, "pyiceberg=="),
    "delta-rs": (TABLES, "deltalake=="),
    "s3cmd": (TABLES, "s3cmd=="),
    "AWS SDK for Go": ("clients/go/integration/go.mod", r"\sgithub.com/aws/aws-sdk-go-v2/service/s3 v"),
    "AWS SDK for Java": ("tests/clients/jvm/pom.xml", " *<sdk>"),
    "AWS SDK for JavaScript": (JAVASCRIPT, ' *"@aws-sdk/client-s3": "'),
    "Hadoop S3A": ("tests/clients/jvm/pom.xml", " *<hadoop>"),
}
"""The file that pins each client of the tests, and what stands before the version."""


def test_the_table_has_the_versions_that_the_tests_run() -> None:
    table = PAGE.read_text().partition("## Clients that were tried")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines() if line.startswith("| ")]
    tested = {client: version for client, version, run in rows[1:] if run.startswith("tests") and client != "rclone"}
    assert tested == {
        client: re.findall(f"^{before}([0-9.]+)", (ROOT / file).read_text(), re.MULTILINE)[0]
        for client, (file, before) in PINS.items()
    }


def test_what_the_page_shows_can_be_pasted_where_the_demo_runs() -> None:
    ours = tomllib.loads(CONFIGURATION.format(port=8080, dsn="postgresql://", endpoint="http://store", tls=""))
    shown = demo.configuration("postgresql://", "http://store")
    assert set(Config.model_validate(ours).objects) <= set(shown.objects)
    for mine, theirs in zip(Config.model_validate(ours).callers, shown.callers, strict=True):
        assert mine.model_dump(exclude={"admin"}) == theirs.model_dump(exclude={"admin"})


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A home with what the page takes for granted: the command ``gateway`` on the path, and ``~/.aws``."""
    (tmp_path / ".aws").mkdir()
    command = tmp_path / "gateway"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
    command.chmod(0o755)
    return Shell(tmp_path, {"PATH": f"{tmp_path}:{Shell(tmp_path, {}).path}"})


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Python, with the libraries that the page imports."""
    with forks(tmp_path_factory.mktemp("python"), *LIBRARIES) as one:
        yield one


def in_shell(_: Forks, shell: Shell, code: str) -> Ended:
    return shell.run("bash", "-euo", "pipefail", "-c", code)


def in_python(pythons: Forks, shell: Shell, code: str) -> Ended:
    return pythons.run_code(shell, code)


def in_node(_: Forks, shell: Shell, code: str) -> Ended:
    node, directory = javascript()
    packages = shell.home / "node_modules"
    if not packages.exists():
        packages.symlink_to(directory / "node_modules")
    (shell.home / "snippet.mjs").write_text(code)
    return shell.run(node, "snippet.mjs")


def in_java(_: Forks, shell: Shell, code: str) -> Ended:
    source = shell.home / "Put.java"
    source.write_text(code)
    return shell.run(*java_command(source))


def in_python_with_formats(_: Forks, shell: Shell, code: str) -> Ended:
    return shell.run(formats.python(), "-c", code)


LANGUAGES: dict[str, Callable[[Forks, Shell, str], Ended]] = {
    "sh": in_shell,
    "python": in_python,
    "js": in_node,
    "java": in_java,
}


def snippets() -> Iterator[Any]:
    """Yield the names of all snippets. Some need a program that may be missing."""
    for name, (language, _) in SNIPPETS.items():
        installed = name in ("rclone", "delta") or language in ("js", "java")
        if name not in ELSEWHERE:
            yield pytest.param(name, marks=[pytest.mark.installed] if installed else [])


@pytest.mark.parametrize("name", list(snippets()))
def test_a_snippet(name: str, lock: Lock, shell: Shell, pythons: Forks) -> None:
    if name == "rclone":
        program("rclone", "run `make clients`, or apt-get install rclone")
    language, code = SNIPPETS[name]
    run = in_python_with_formats if name == "delta" else LANGUAGES[language]
    for shown, here in (
        ("42", lock.name) if name in OF_TABLES else ("accounts/42", f"accounts/{lock.name}"),
        ("127.0.0.1:8080", lock.gateway.origin.removeprefix("http://")),  # last: it may have a 42 in its port
    ):
        assert shown in code
        code = code.replace(shown, here)
    done = run(pythons, shell, code)
    assert done.status == 0, done.error
    # A version of a Delta table is a data file and a file of the log.
    objects = {"delta": 2, **dict.fromkeys(WITHOUT_AN_OBJECT | OF_TABLES, 0)}
    assert len(lock.objects()) == objects.get(name, 1)
    assert lock.rows() == ([("dora", 120, None)] if name in OF_TABLES else [])
    with lock.overtaken():
        refused = run(pythons, shell, code)
    assert refused.status != 0
    assert re.search("StaleFencingToken|overtaken|412", refused.out + refused.error), refused.error
