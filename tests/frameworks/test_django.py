"""Django's ORM writes under the lock of its thread or task, inside and outside of transactions, and passes none on."""

import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import django
import psycopg
import pytest
from django.conf import settings
from django.db import DatabaseError, IntegrityError, connection, connections, models, transaction

from gateway.client import LockLost, Stale, blocking
from tests.frameworks.stage import SNIPPETS, Shop, Stage, module


def database(stage: Stage) -> dict[str, Any]:
    known = psycopg.conninfo.conninfo_to_dict(stage.app)
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": known["dbname"], "USER": known["user"],
        "HOST": known["host"], "PORT": known.get("port", ""), "CONN_MAX_AGE": None,
    }  # fmt: skip


@pytest.fixture(scope="module")
def project(stage: Stage) -> Iterator[ModuleType]:
    """The module ``shop.models`` of a project with the settings of the page. A process has one project."""
    if not settings.configured:
        names: dict[str, Any] = {}
        exec(SNIPPETS["settings"], names)
        settings.configure(
            DATABASES={"default": database(stage)}, **{key: names[key] for key in names if key.isupper()}
        )
        handlers = list(logging.getLogger().handlers)
        django.setup()
        logging.getLogger().handlers[:] = handlers
        attributes = {
            "__module__": "shop.models",
            "id": models.BigIntegerField(primary_key=True),
            "state": models.TextField(null=True),
            "label": models.TextField(null=True),
            "Meta": type("Meta", (), {"app_label": "shop", "db_table": "orders", "managed": False}),
        }
        sys.modules["shop.models"] = module("shop.models", Order=type("Order", (models.Model,), attributes))
    connections.settings["default"].update(database(stage))
    connection.settings_dict.update(database(stage))
    yield sys.modules["shop.models"]
    connection.close()


@pytest.fixture
def order(project: ModuleType) -> Any:
    return project.Order.objects


@pytest.fixture
def client(stage: Stage) -> Iterator[blocking.FencedClient]:
    with stage.gateway.blocking() as made:
        yield made


def in_a_thread(function: Any, *arguments: Any) -> Any:
    """Call it in a thread, whose connections are its own."""
    try:
        return function(*arguments)
    finally:
        connections.close_all()


def test_a_zombie(stage: Stage, shop: Shop, order: Any) -> None:
    number = stage.order()
    with (
        stage.running("django", zombie=True) as zombie,
        stage.running("django") as successor,
        ThreadPoolExecutor() as threads,
    ):
        late = threads.submit(in_a_thread, zombie["ship"], number)
        shop.wait()
        assert stage.row(number) == ("packed", None)
        successor["ship"](number)
        shop.resume.set()
        with pytest.raises(Stale, match="overtaken by 2") as refused:
            late.result()
        assert (refused.value.resource, refused.value.token) == (f"order/{number}", "1")
    assert stage.row(number) == ("sent", "kept")


@pytest.mark.parametrize("around", [nullcontext, transaction.atomic], ids=["autocommit", "atomic"])
def test_a_persistent_connection_carries_nothing_over(
    stage: Stage, order: Any, client: blocking.FencedClient, around: Any
) -> None:
    number, other = stage.order(), stage.order()
    with pytest.raises(DatabaseError, match="holds no fencing token"), around():
        order.filter(pk=number).update(state="early")
    with client.lock(f"order/{number}"):
        with around():
            assert order.filter(pk=number).update(state="sent") == 1
        with pytest.raises(DatabaseError, match="does not hold"), around():
            order.filter(pk=other).update(state="sent")
    process = connection.connection.info.backend_pid
    with pytest.raises(DatabaseError, match="holds no fencing token"), around():
        order.filter(pk=number).update(state="late")
    assert connection.connection.info.backend_pid == process
    assert (stage.row(number), stage.row(other)) == (("sent", None), ("new", None))


def test_each_kind_of_write(stage: Stage, order: Any, client: blocking.FencedClient) -> None:
    number = stage.order() + 100_000
    with client.lock(f"order/{number}"):
        made = order.create(pk=number, state="made")
        made.state = "saved"
        made.save()
        order.bulk_update([order.model(pk=number, state="bulk")], ["state"])
        with connection.cursor() as cursor:
            cursor.execute("/* a note */ WITH n AS (SELECT 1) UPDATE orders SET label = 'raw' WHERE id = %s", [number])
            cursor.executemany("UPDATE orders SET label = label || %s WHERE id = %s", [("1", number), ("2", number)])
        assert stage.row(number) == ("bulk", "raw12")
        made.delete()
    assert not order.filter(pk=number).exists()


def test_a_lock_inside_of_a_transaction_and_savepoints(stage: Stage, order: Any, client: blocking.FencedClient) -> None:
    number = stage.order()
    with transaction.atomic():  # as ATOMIC_REQUESTS does
        assert order.get(pk=number).state == "new"
        with client.lock(f"order/{number}"):
            with pytest.raises(IntegrityError), transaction.atomic():
                order.create(pk=number)
            order.filter(pk=number).update(state="sent")
    assert stage.row(number) == ("sent", None)


def test_an_error_in_a_transaction_stays_the_error(stage: Stage, order: Any, client: blocking.FencedClient) -> None:
    number = stage.order()
    with client.lock(f"order/{number}"), transaction.atomic():
        with pytest.raises(IntegrityError):
            order.create(pk=number)
        with pytest.raises(transaction.TransactionManagementError):
            order.filter(pk=number).update(state="sent")
        transaction.set_rollback(True)
    assert stage.row(number) == ("new", None)


def test_under_a_lost_lock_nothing_is_sent(stage: Stage, order: Any, client: blocking.FencedClient) -> None:
    number = stage.order()
    with client.lock(f"order/{number}", on_loss="tell") as lock:
        lock.overtaken(Stale("A newer one.", facts={"resource": f"order/{number}"}))
        with pytest.raises(LockLost):
            order.filter(pk=number).update(state="sent")
        assert order.get(pk=number).state == "new"


async def test_asynchronous_views(stage: Stage, order: Any) -> None:
    number = stage.order()
    async with stage.gateway.client() as client:
        async with client.lock(f"order/{number}"):
            assert await order.filter(pk=number).aupdate(state="sent") == 1
        with pytest.raises(DatabaseError, match="holds no fencing token"):
            await order.filter(pk=number).aupdate(state="late")
    assert stage.row(number) == ("sent", None)


def test_a_block_of_the_program_around_a_new_connection_keeps_its_wrapper(
    stage: Stage, order: Any, client: blocking.FencedClient
) -> None:
    """Django removes the last wrapper at the end of such a block, whichever it is."""
    number, seen = stage.order(), []

    def note(execute: Any, sql: str, *arguments: Any) -> Any:
        seen.append(sql)
        return execute(sql, *arguments)

    def ship() -> None:
        with connection.execute_wrapper(note), client.lock(f"order/{number}"):
            order.filter(pk=number).update(state="packed")
        with client.lock(f"order/{number}"):
            order.filter(pk=number).update(state="sent")

    with ThreadPoolExecutor() as threads:
        threads.submit(in_a_thread, ship).result()
    assert any(sql.startswith("UPDATE") for sql in seen)
    assert stage.row(number) == ("sent", None)
