"""Each snippet of docs/frameworks.md, where there is only what its section names, in the newest versions of the index.

These versions change without us, so no change waits for this test. The pinned versions are in the other modules.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests import ROOT
from tests.frameworks.stage import SNIPPETS, Stage, named
from tests.frameworks.test_recipes import project
from tests.running import API_KEY

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


@pytest.fixture
def python(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the Python of an environment with the gateway as a clone has it, and with what the section names."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    got = subprocess.run(
        [*pip, "install", "--quiet", str(ROOT), *named(request.param)], capture_output=True, text=True, check=False
    )
    if any(one in got.stderr for one in UNREACHABLE):
        pytest.skip("the index of packages cannot be reached")
    assert got.returncode == 0, got.stderr
    return python


def run(python: Path, folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), **variables}
    return subprocess.run(
        [python, *arguments], cwd=folder, env=environment, text=True, capture_output=True, timeout=240, check=False
    )


@pytest.mark.parametrize(("name", "python"), [(name, name) for name in CALLS], indirect=["python"])
def test_a_program(stage: Stage, tmp_path: Path, name: str, python: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").write_text(SHOP.format(key=API_KEY, origin=stage.gateway.origin))
    (tmp_path / "shop/models.py").write_text(MODELS)
    (tmp_path / "settings.py").write_text(stage.code("settings"))
    (tmp_path / "snippet.py").write_text(stage.code(name))
    zombie, holder = stage.order(), stage.order()
    late, done = (
        run(python, tmp_path, "-c", CALLS[name].format(app=stage.app, number=number), OVERTAKEN=overtaken)
        for number, overtaken in ((zombie, f"order/{zombie}"), (holder, ""))
    )
    assert done.returncode == 0, done.stderr
    assert stage.row(holder) == ("sent", "kept")
    assert late.returncode != 0
    assert "Stale" in late.stderr, late.stderr
    assert stage.row(zombie) == ("packed", None)


@pytest.mark.parametrize("python", ["alembic"], indirect=True)
def test_a_deployment(stage: Stage, tmp_path: Path, python: Path) -> None:
    folder = tmp_path / "project"
    project(stage, folder)
    (folder / "shop.py").write_text(SHOP.format(key=API_KEY, origin=stage.gateway.origin))
    late, done = (
        run(python, folder, "-m", "alembic", "upgrade", "head", OVERTAKEN=overtaken) for overtaken in ("migrations", "")
    )
    assert "Stale" in late.stderr, late.stderr
    assert done.returncode == 0, done.stderr
    assert stage.execute("SELECT version_num FROM alembic_version") == [("two",)]


@pytest.mark.parametrize("python", ["dag"], indirect=True)
def test_a_dag(stage: Stage, tmp_path: Path, python: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "dag.py").write_text(SNIPPETS["dag"])
    (dags / "shipping.py").write_text(stage.code("sqlalchemy"))
    (dags / "shop.py").write_text(SHOP.format(key=API_KEY, origin=stage.gateway.origin))
    settings = {"HOME": str(tmp_path), "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    for command in (("db", "migrate"), ("dags", "reserialize")):
        ready = run(python, dags, "-m", "airflow", *command, **settings)
        assert ready.returncode == 0, ready.stdout[-4000:] + ready.stderr[-4000:]
    number = stage.order()
    test = ("-m", "airflow", "dags", "test", "shipping", "--conf", json.dumps({"order_id": number}))
    done = run(python, dags, *test, **settings)
    assert "state=success" in done.stdout + done.stderr
    assert stage.row(number) == ("sent", "kept")
