"""Airflow itself runs the DAG of docs/frameworks.md, and takes over from a paused task.

Airflow is 130 packages, some of other versions than ours. So it is no dependency of the tests. AIRFLOW is the path of
its program, in an environment of its own. That also has ``sqlalchemy``, ``psycopg[binary]``, ``httpx`` and ``anyio``.
"""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.client import Stale
from tests import ROOT
from tests.frameworks.stage import SNIPPETS, Shop, Stage

AIRFLOW = os.environ.get("AIRFLOW", "")

pytestmark = [
    pytest.mark.installed,
    pytest.mark.skipif(not AIRFLOW, reason="AIRFLOW does not name the program of an installed Airflow"),
]


@pytest.fixture
def home(stage: Stage, tmp_path: Path) -> Path:
    (tmp_path / "dags").mkdir()
    for name, code in {
        "dag": SNIPPETS["dag"],
        "shipping": stage.code("airflow"),
        "shop": "def print_label(_):\n    return 'kept'\n",
    }.items():
        (tmp_path / f"dags/{name}.py").write_text(code)
    return tmp_path


def airflow(home: Path, *command: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": f"{ROOT}:{home}/dags",
    }
    done = subprocess.run(
        [AIRFLOW, *command], env=environment, cwd=home, text=True, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def test_a_zombie(stage: Stage, shop: Shop, home: Path) -> None:
    number = stage.order()
    airflow(home, "db", "migrate")
    airflow(home, "dags", "reserialize")
    with stage.running("airflow", zombie=True) as zombie, ThreadPoolExecutor() as threads:
        late = threads.submit(zombie["ship"], number)
        shop.wait()
        said = airflow(home, "dags", "test", "shipping", "--conf", json.dumps({"order_id": number}))
        assert "state=success" in said
        assert stage.row(number) == ("sent", "kept")
        shop.resume.set()
        with pytest.raises(Stale, match="overtaken by 2"):
            late.result()
    assert stage.row(number) == ("sent", "kept")
