"""Two releases of the gateway, each installed in a folder of its own: the one of this tree, and one that follows it.

The next one is this tree with another version and one more migration. Its gateways raise fences by a function that this
release does not have.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.db import migrations
from tests import ROOT
from tests.processes import COMMAND, PATIENCE, Running, started

NEXT_REVISION = f"r{int(migrations.newest()[1:]) + 1}"

NEXT_SCRIPT = """
CREATE TABLE fencing.raised (resource text COLLATE "C" PRIMARY KEY, barriers bigint NOT NULL);
ALTER TABLE fencing.lock ADD COLUMN barriers bigint NOT NULL DEFAULT 0;
CREATE FUNCTION fencing.raise_v2(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text,
    OUT decision text, OUT fence fencing.fence, OUT pending fencing.intent[]
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    done record;
BEGIN
    done := fencing.raise_v1(p_resource, p_epoch, p_value, p_holder, p_caller);
    decision := done.decision;
    fence := done.fence;
    pending := done.pending;
    INSERT INTO fencing.raised AS r (resource, barriers) VALUES (p_resource, 1)
    ON CONFLICT (resource) DO UPDATE SET barriers = r.barriers + 1;
    UPDATE fencing.lock SET barriers = barriers + 1 WHERE resource = p_resource;
END
$function$;
"""
"""A migration as CONTRIBUTING.md allows it: a column with a default, a table, and a function of another version."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release in a folder, from which Python imports it before any other."""

    folder: Path

    def start(self, *arguments: str) -> AbstractContextManager[Running]:
        """Start the command ``gateway`` of this release."""
        return started(*arguments, cwd=self.folder, more=self._environment())

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run the command to its end."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env={**os.environ, **self._environment(), **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def _environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self.folder)}


def this_release(folder: Path) -> Release:
    """Build a wheel of this tree, and install it in a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "wheel")]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE, check=True)
    (wheel,) = (folder / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "this")
    return Release(folder / "this")


def next_release(before: Release, folder: Path, script: str = NEXT_SCRIPT) -> Release:
    """Install the release that follows, whose migration is ``script``."""
    shutil.copytree(before.folder, folder)
    (metadata,) = folder.glob("*.dist-info/METADATA")
    metadata.write_text(re.sub(r"^Version: .*$", "Version: 99.0.0", metadata.read_text(), count=1, flags=re.MULTILINE))
    (folder / f"gateway/migrations/{NEXT_REVISION}_next.sql").write_text(script)
    fences = folder / "gateway/db/queries/fences.sql"
    if "raise_v2" in script:
        fences.write_text(fences.read_text().replace("fencing.raise_v1(", "fencing.raise_v2("))
    rights = folder / "gateway/db/rights.py"
    rights.write_text(
        rights.read_text().replace('    "lock":', '    "raised": ("SELECT", "INSERT", "UPDATE"),\n    "lock":', 1)
    )
    return Release(folder)


def write_toml(path: Path, sections: Mapping[str, Any]) -> str:
    """Write a configuration, and return its path. Lists of sections become arrays of tables."""
    path.write_text("".join(_lines(sections)))
    return str(path)


def _lines(sections: Mapping[str, Any]) -> Iterator[str]:
    for name, section in sections.items():
        several = isinstance(section, list)
        for one in section if several else [section]:
            yield f"[[{name}]]\n" if several else f"[{name}]\n"
            yield from (f"{key} = {json.dumps(value)}\n" for key, value in one.items())
