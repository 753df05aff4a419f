"""docs/frameworks.md: each snippet, run twice. The first machine is paused, the second one takes over and writes."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from celery.bootsteps import RUN
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging, task_failure, task_success
from sqlalchemy.exc import DBAPIError

from gateway.client import Stale
from tests import ROOT
from tests.frameworks.stage import PAGE, SNIPPETS, Shop, Stage
from tests.waiting import PATIENCE

FIRST = """
from alembic import op
revision, down_revision = "one", None

def upgrade():
    op.execute("CREATE TABLE parcels (id bigint PRIMARY KEY)")
"""
# The pause is outside of a transaction: otherwise the successor would wait for its end.
SECOND = """
from alembic import op
from shop import print_label
revision, down_revision = "two", "one"

def upgrade():
    with op.get_context().autocommit_block():
        op.execute("CREATE INDEX CONCURRENTLY IF NOT EXISTS parcels_of ON parcels (id)")
        name = print_label(0)
    op.execute(f"ALTER TABLE parcels ADD COLUMN {name} text")
"""


def test_every_snippet_is_run() -> None:
    assert list(SNIPPETS) == ["sqlalchemy", "asyncio", "settings", "django", "alembic", "celery", "dag"]
    assert len(re.findall(r"^```python$", PAGE.read_text(), re.MULTILINE)) == len(SNIPPETS)


def test_a_zombie(stage: Stage, shop: Shop) -> None:
    number = stage.order()
    with (
        stage.running("sqlalchemy", zombie=True) as zombie,
        stage.running("sqlalchemy") as successor,
        ThreadPoolExecutor() as threads,
    ):
        late = threads.submit(zombie["ship"], number)
        shop.wait()
        assert stage.row(number) == ("packed", None)
        successor["ship"](number)
        shop.resume.set()
        with pytest.raises(Stale, match=r"overtaken by 2, raised by .+@.+:\d+-") as refused:
            late.result()
        assert (refused.value.resource, refused.value.token, refused.value.fence) == (f"order/{number}", "1", "2")
    assert stage.row(number) == ("sent", "kept")


async def test_a_zombie_with_asyncio(stage: Stage, shop: Shop) -> None:
    number = stage.order()
    async with AsyncExitStack() as left:
        zombie, successor = (left.enter_context(stage.running("asyncio", zombie=zombie)) for zombie in (True, False))
        for one in (zombie, successor):
            left.push_async_callback(one["client"].aclose)
            left.push_async_callback(one["engine"].dispose)
        late = asyncio.ensure_future(zombie["ship"](number))
        await asyncio.to_thread(shop.wait)
        assert stage.row(number) == ("packed", None)
        await successor["ship"](number)
        shop.resume.set()
        with pytest.raises(Stale, match="overtaken by 2") as refused:
            await late
        assert "DETAIL" not in refused.value.message
    assert stage.row(number) == ("sent", "kept")


def keep_logging(**_: Any) -> None:
    """Be there. Celery would otherwise set the level of all loggers, also for later tests in this process."""


setup_logging.connect(keep_logging)


@contextmanager
def worker(app: Any) -> Iterator[None]:
    # Brokers of this kind are one for all workers of a process.
    app.conf.update(broker_url="memory://", broker_transport_options={"polling_interval": 0.01})
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE) as one:
        yield
        # Asked by a message, it does not wait two seconds for the next one. A message may be missed.
        while one.blueprint.state == RUN:
            app.control.shutdown(destination=[one.hostname])
            time.sleep(0.05)


def test_a_task_that_is_delivered_again(stage: Stage, shop: Shop) -> None:
    number = stage.order()
    failed: list[BaseException] = []
    succeeded: list[str] = []

    def note_failure(*, exception: BaseException, **_: Any) -> None:
        failed.append(exception)

    def note_success(*, sender: Any, **_: Any) -> None:
        succeeded.append(sender.request.id)
        shop.resume.set()

    task_failure.connect(note_failure)
    task_success.connect(note_success)
    with (
        stage.running("celery", zombie=True) as zombie,
        stage.running("celery") as successor,
        worker(zombie["app"]),
    ):
        late = zombie["ship"].delay(number)
        shop.wait()
        assert stage.row(number) == ("packed", None)
        with worker(successor["app"]):
            # A broker does this if it has not heard of the first worker for too long.
            successor["ship"].apply_async((number,), task_id=late.id)
            assert shop.resume.wait(PATIENCE)
    assert succeeded == [late.id]
    [refusal] = failed
    assert isinstance(refusal, Stale)
    assert (refusal.resource, refusal.token, refusal.fence) == (f"order/{number}", "1", "2")
    assert stage.row(number) == ("sent", "kept")


def project(stage: Stage, folder: Path, *, zombie: bool = False) -> Config:
    versions = folder / "versions"
    versions.mkdir(parents=True)
    (folder / "env.py").write_text(stage.code("alembic", zombie=zombie))
    (versions / "one.py").write_text(FIRST)
    (versions / "two.py").write_text(SECOND)
    (folder / "shop.py").write_text("def print_label(_):\n    return 'kept'\n")
    (folder / "alembic.ini").write_text(f"[alembic]\nscript_location = {folder}\n")
    return Config(folder / "alembic.ini")


def upgrade(folder: Path) -> "subprocess.CompletedProcess[str]":
    """As a deployment does. A process of its own, because Alembic has one migration in each process."""
    return subprocess.run(
        [sys.executable, "-m", "alembic", "upgrade", "head"], cwd=folder, text=True, capture_output=True,
        env={"PYTHONPATH": f"{ROOT}:{folder}"}, timeout=PATIENCE, check=False,
    )  # fmt: skip


def columns(stage: Stage) -> list[str]:
    sql = "SELECT attname FROM pg_attribute WHERE attrelid = 'parcels'::regclass AND attnum > 0 ORDER BY attnum"
    return [name for (name,) in stage.execute(sql)]


def test_a_deployment_that_was_paused(stage: Stage, shop: Shop, tmp_path: Path) -> None:
    zombie = project(stage, tmp_path / "zombie", zombie=True)
    project(stage, tmp_path / "successor")
    with ThreadPoolExecutor() as threads:
        late = threads.submit(command.upgrade, zombie, "head")
        shop.wait()
        assert columns(stage) == ["id"]
        done = upgrade(tmp_path / "successor")
        assert done.returncode == 0, done.stderr
        shop.resume.set()
        with pytest.raises(Stale, match="token 1 of migrations has been overtaken by 2"):
            late.result()
    assert columns(stage) == ["id", "kept"]
    assert stage.execute("SELECT version_num FROM alembic_version") == [("two",)]

    # A deployment without the lock is refused by the guard of the version, and its DDL goes with it.
    (tmp_path / "successor/versions/three.py").write_text(
        FIRST.replace('"one", None', '"three", "two"').replace("parcels", "boxes")
    )
    env = tmp_path / "successor/env.py"
    env.write_text(env.read_text().replace('client.lock("migrations"), ', ""))
    with pytest.raises(DBAPIError, match="touches migrations and holds no fencing token"):
        command.upgrade(Config(tmp_path / "successor/alembic.ini"), "head")
    assert stage.execute("SELECT to_regclass('boxes')") == [(None,)]
    assert stage.execute("SELECT version_num FROM alembic_version") == [("two",)]
