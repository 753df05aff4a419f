"""Each snippet of docs/frameworks.md, where there is only what its section names, in the newest versions of the index.

These versions change without us, so no change waits for this test. The pinned versions are in the other modules.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests import ROOT
from tests.frameworks.stage import Stage, named
from tests.frameworks.test_recipes import project
from tests.running import API_KEY
from tests.waiting import PATIENCE

pytestmark = pytest.mark.nightly

UNREACHABLE = ("Connection to", "NewConnectionError", "Temporary failure in name resolution", "ProxyError")

# A newer holder comes between the two writes, if the test says so.
SHOP = """
import os
import httpx

def print_label(_):
    if resource := os.environ.get("OVERTAKEN"):
        headers = {{"Authorization": "Bearer {key}"}}
        query = {{"resource": resource}}
        barrier = httpx.post("{origin}/v1/fence/barrier", params=query, json={{"token": "1000"}}, headers=headers)
        barrier.raise_for_status()
    return "kept"
"""

MODELS = """
from django.db import models

class Order(models.Model):
    id = models.BigIntegerField(primary_key=True)
    state = models.TextField(null=True)
    label = models.TextField(null=True)

    class Meta:
        app_label, db_table, managed = "shop", "orders", False
"""

DJANGO = """
import django, psycopg
from django.conf import settings as configured
import settings

known = psycopg.conninfo.conninfo_to_dict({app!r})
database = {{"NAME": known["dbname"], "USER": known["user"], "HOST": known["host"], "PORT": known.get("port", "")}}
database["ENGINE"] = "django.db.backends.postgresql"
configured.configure(INSTALLED_APPS=settings.INSTALLED_APPS, DATABASES={{"default": database}})
django.setup()
from snippet import ship
ship({number})
"""

CALLS = {
    "sqlalchemy": "from snippet import ship; ship({number})",
    "asyncio": "import asyncio; from snippet import ship; asyncio.run(ship({number}))",
    "django": DJANGO,
    "celery": "from snippet import ship; ship.apply(({number},), throw=True)",
}


def installed(folder: Path, snippet: str) -> Path:
    """Return the Python of an environment with the gateway as a clone has it, and with what the section names."""
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", ROOT, *named(snippet)]
    got = subprocess.run(command, capture_output=True, text=True, check=False)
    if any(one in got.stderr for one in UNREACHABLE):
        pytest.skip("the index of packages cannot be reached")
    assert got.returncode == 0, got.stderr
    return python


def run(python: Path, folder: Path, *arguments: str, overtaken: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "OVERTAKEN": overtaken}
    return subprocess.run(
        [python, *arguments], cwd=folder, env=environment, text=True, capture_output=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_program(stage: Stage, tmp_path: Path, name: str) -> None:
    python = installed(tmp_path / "environment", "settings" if name == "django" else name)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").write_text(SHOP.format(key=API_KEY, origin=stage.gateway.origin))
    (tmp_path / "shop/models.py").write_text(MODELS)
    (tmp_path / "settings.py").write_text(stage.code("settings"))
    (tmp_path / "snippet.py").write_text(stage.code(name))
    zombie, holder = stage.order(), stage.order()
    late, done = (
        run(python, tmp_path, "-c", CALLS[name].format(app=stage.app, number=number), overtaken=overtaken)
        for number, overtaken in ((zombie, f"order/{zombie}"), (holder, ""))
    )
    assert done.returncode == 0, done.stderr
    assert stage.row(holder) == ("sent", "kept")
    assert late.returncode != 0
    assert "Stale" in late.stderr, late.stderr
    assert stage.row(zombie) == ("packed", None)


def test_a_deployment(stage: Stage, tmp_path: Path) -> None:
    python = installed(tmp_path / "environment", "alembic")
    folder = tmp_path / "project"
    project(stage, folder)
    (folder / "shop.py").write_text(SHOP.format(key=API_KEY, origin=stage.gateway.origin))
    late, done = (
        run(python, folder, "-m", "alembic", "upgrade", "head", overtaken=overtaken) for overtaken in ("migrations", "")
    )
    assert "Stale" in late.stderr, late.stderr
    assert done.returncode == 0, done.stderr
    assert stage.execute("SELECT version_num FROM alembic_version") == [("two",)]
