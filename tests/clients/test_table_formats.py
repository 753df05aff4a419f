"""delta-rs and PyIceberg: two compactors of one table, one of them a zombie."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.clients.commands import Conversation, Shell, environment
from tests.clients.formats import Dataset, Lake, program, python
from tests.clients.gateway import BUCKET, NEWER, REGION, TOKEN
from tests.clients.lossy import holding
from tests.clients.test_page import SNIPPETS
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    with program("delta.py", tmp_path_factory.mktemp("delta")) as one:
        yield one


@pytest.fixture(scope="module")
def another_delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    with program("delta.py", tmp_path_factory.mktemp("another")) as one:
        yield one


@pytest.fixture
def delta_table(lake: Lake) -> Dataset:
    return lake.dataset()


def asked_of_delta(
    delta_table: Dataset, deed: str, token: str = TOKEN, number: int = 0, origin: str = ""
) -> dict[str, Any]:
    login = delta_table.fenced(token)
    options = {
        "AWS_ENDPOINT_URL": origin or delta_table.gateway.origin,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": login.access_key_id,
        "AWS_SECRET_ACCESS_KEY": login.secret_access_key,
        "AWS_SESSION_TOKEN": login.session_token,
    }
    return {"deed": deed, "table": f"s3://{BUCKET}/{delta_table.prefix}", "options": options, "number": number}


def do_delta(delta: Conversation, *what: Any, **more: Any) -> Any:
    """Return what the deed found. It has to succeed."""
    done = delta.ask(**asked_of_delta(*what, **more))
    assert done["error"] == ""
    return done["found"]


@pytest.mark.installed
def test_a_compactor_of_delta(delta: Conversation, delta_table: Dataset) -> None:
    for number in range(3):
        do_delta(delta, delta_table, "append", number=number)
    assert do_delta(delta, delta_table, "compact") == 3
    do_delta(delta, delta_table, "checkpoint")
    assert len(do_delta(delta, delta_table, "vacuum")) == 3
    found = do_delta(delta, delta_table, "read")
    assert (found["rows"], len(found["files"])) == ([0, 1, 2], 1)
    assert delta_table.rejections() == []


@pytest.mark.installed
def test_a_compactor_of_delta_that_is_overtaken_before_its_commit(
    delta: Conversation, another_delta: Conversation, delta_table: Dataset
) -> None:
    """Its file is tlake, and its commit is under way. Its successor appends, which is no conflict for the format."""
    for number in range(3):
        do_delta(delta, delta_table, "append", number=number)
    before = delta_table.files()
    log = f"PUT /{BUCKET}/{delta_table.prefix}_delta_log/".encode()
    with holding(delta_table.gateway.origin, log) as (origin, network), ThreadPoolExecutor() as threads:
        zombie = threads.submit(delta.ask, **asked_of_delta(delta_table, "compact", origin=origin))
        network.wait()
        (left,) = delta_table.files() - before
        delta_table.take_over()
        do_delta(another_delta, delta_table, "append", NEWER, 3)
        written = do_delta(another_delta, delta_table, "read", NEWER)
        network.release()
        assert "CommitFailed" in zombie.result()["error"]
    assert do_delta(another_delta, delta_table, "read", NEWER) == written
    assert written["rows"] == [0, 1, 2, 3]
    refused = delta_table.rejections()
    assert {(one["resource"], one["token"], one["fence"]) for one in refused} == {(delta_table.resource, TOKEN, NEWER)}

    # The zombie's file is no part of the table. Its successor removes it with the other ones that are not.
    assert left not in written["files"]
    assert do_delta(another_delta, delta_table, "compact", NEWER) == 4
    assert len(do_delta(another_delta, delta_table, "vacuum", NEWER)) == 5
    found = do_delta(another_delta, delta_table, "read", NEWER)
    assert found["rows"] == [0, 1, 2, 3]
    assert {name for name in delta_table.files() if name.endswith(".parquet")} == set(found["files"])


@pytest.mark.installed
@pytest.mark.parametrize("deed", ["append", "compact", "vacuum", "checkpoint"])
def test_after_a_takeover_every_write_of_delta_is_refused(delta: Conversation, delta_table: Dataset, deed: str) -> None:
    for number in range(2):
        do_delta(delta, delta_table, "append", number=number)
    do_delta(delta, delta_table, "compact")
    do_delta(delta, delta_table, "append", number=2)
    before = do_delta(delta, delta_table, "read"), delta_table.files()
    zombie = asked_of_delta(delta_table, deed, number=9)
    delta_table.take_over()
    assert delta.ask(**zombie)["error"] != ""
    assert (do_delta(delta, delta_table, "read", NEWER), delta_table.files()) == before
    assert {one["reason"] for one in delta_table.rejections()} == {"token-stale"}


# PyIceberg: two compactors of one table, one of them a zombie. The catalog is in PostgreSQL, with a guard.


def eventually(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.1)


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    with program("iceberg.py", tmp_path_factory.mktemp("iceberg")) as one:
        yield one


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    with program("iceberg.py", tmp_path_factory.mktemp("another")) as one:
        yield one


@pytest.fixture
def table(lake: Lake) -> Dataset:
    """A table whose fence has its first token, as a holder's barrier leaves it."""
    one = lake.dataset()
    one.raise_to(TOKEN, "compactor")
    return one


def asked(
    lake: Lake, table: Dataset, deed: str, token: str = TOKEN, number: int = 0, files: Iterable[str] = ()
) -> dict[str, Any]:
    """Return what ``gateway run`` gives a program, and what the program knows itself."""
    variables = environment(table.fenced(token))
    variables["PGOPTIONS"] = f"-c fencing.resource={table.resource} -c fencing.token={token}"
    properties = {
        "uri": lake.catalog.replace("postgresql://", "postgresql+psycopg2://"),
        "warehouse": "s3://reports/lake",
        "s3.endpoint": lake.gateway.origin,
    }
    what = {"deed": deed, "table": f"shop.{table.name}", "number": number, "files": list(files)}
    return {**what, "environment": variables, "properties": properties}


def do(iceberg: Conversation, *what: Any, **more: Any) -> Any:
    """Return what the deed found. It has to succeed."""
    done = iceberg.ask(**asked(*what, **more))
    assert done["error"] == ""
    return done["found"]


@pytest.fixture
def filled(lake: Lake, iceberg: Conversation, table: Dataset) -> Dataset:
    do(iceberg, lake, table, "create")
    for number in range(3):
        do(iceberg, lake, table, "append", number=number)
    return table


@pytest.mark.installed
def test_a_compactor(lake: Lake, iceberg: Conversation, filled: Dataset) -> None:
    do(iceberg, lake, filled, "compact")
    found = do(iceberg, lake, filled, "read")
    assert (found["rows"], len(found["parts"])) == ([0, 1, 2], 1)
    assert found["metadata"].startswith(f"s3://reports/{filled.prefix}metadata/")
    assert filled.rejections() == []


@pytest.mark.installed
@pytest.mark.parametrize("successor", ["has taken over", "has committed"])
def test_a_compactor_that_is_overtaken_before_its_commit(
    lake: Lake, iceberg: Conversation, another: Conversation, filled: Dataset, successor: str
) -> None:
    """All of its files are tlake. The row of the catalog is refused, even before its successor has changed it."""
    refusals = lake.refusals()
    assert iceberg.ask(**asked(lake, filled, "compact, but stop before the row")) == "written"
    with iceberg.paused():
        filled.take_over()
        if successor == "has committed":
            do(another, lake, filled, "append", token=NEWER, number=3)
        written = do(another, lake, filled, "read", token=NEWER)
    refused = iceberg.ask(go="on")["error"]
    assert "has been overtaken by 34, raised by successor" in refused
    assert f'"resource": "{filled.resource}"' in refused
    assert do(another, lake, filled, "read", token=NEWER) == written
    eventually(lambda: lake.refusals() == refusals + 1)

    # The zombie's files are no part of the table. Its successor removes them.
    orphans = filled.files() - set(written["used"])
    assert len(orphans) > 2
    do(another, lake, filled, "remove", token=NEWER, files=orphans)
    assert filled.files() == set(written["used"])
    do(another, lake, filled, "compact", token=NEWER)
    found = do(another, lake, filled, "read", token=NEWER)
    assert (found["rows"], len(found["parts"])) == (written["rows"], 1)


@pytest.mark.installed
def test_the_snippet_of_the_page(lake: Lake, table: Dataset, tmp_path: Path) -> None:
    _, code = SNIPPETS["iceberg"]
    for shown, here in (
        ("clicks", table.name),
        ("http://127.0.0.1:8080", lake.gateway.origin),
        ("//app@localhost/shop", lake.catalog.removeprefix("postgresql:")),
    ):
        assert shown in code
        code = code.replace(shown, here)
    shell = Shell(tmp_path, {**environment(table.fenced()), "PYTHONPATH": ""})
    done = shell.run(python(), "-c", code)
    assert done.status == 0, done.error
    table.take_over()
    refused = shell.run(python(), "-c", code)
    assert (refused.status != 0, "overtaken" in refused.error) == (True, True)


@pytest.mark.installed
def test_after_a_takeover_every_write_is_refused(lake: Lake, iceberg: Conversation, filled: Dataset) -> None:
    zombies = [asked(lake, filled, deed, number=9) for deed in ("append", "compact")]
    before = do(iceberg, lake, filled, "read"), filled.files()
    filled.take_over()
    for zombie in zombies:
        assert re.match("OSError: .*overtaken", iceberg.ask(**zombie)["error"], re.DOTALL)
    assert (do(iceberg, lake, filled, "read", token=NEWER), filled.files()) == before
    refused = filled.rejections()
    assert {(one["resource"], one["token"], one["fence"]) for one in refused} == {(filled.resource, TOKEN, NEWER)}
