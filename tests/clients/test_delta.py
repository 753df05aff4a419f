"""delta-rs: two compactors of one table, one of them a zombie."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.clients.conversation import Conversation
from tests.clients.formats import Dataset, Lake, program
from tests.clients.gateway import BUCKET, NEWER, REGION, TOKEN
from tests.clients.lossy import holding

pytestmark = pytest.mark.installed


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    with program("delta.py", tmp_path_factory.mktemp("delta")) as one:
        yield one


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    with program("delta.py", tmp_path_factory.mktemp("another")) as one:
        yield one


@pytest.fixture
def table(lake: Lake) -> Dataset:
    return lake.dataset()


def asked(table: Dataset, deed: str, token: str = TOKEN, number: int = 0, origin: str = "") -> dict[str, Any]:
    login = table.fenced(token)
    options = {
        "AWS_ENDPOINT_URL": origin or table.gateway.origin,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": login.access_key_id,
        "AWS_SECRET_ACCESS_KEY": login.secret_access_key,
        "AWS_SESSION_TOKEN": login.session_token,
    }
    return {"deed": deed, "table": f"s3://{BUCKET}/{table.prefix}", "options": options, "number": number}


def do(delta: Conversation, *what: Any, **more: Any) -> Any:
    """Return what the deed found. It has to succeed."""
    done = delta.ask(**asked(*what, **more))
    assert done["error"] == ""
    return done["found"]


def test_a_compactor(delta: Conversation, table: Dataset) -> None:
    for number in range(3):
        do(delta, table, "append", number=number)
    assert do(delta, table, "compact") == 3
    do(delta, table, "checkpoint")
    assert len(do(delta, table, "vacuum")) == 3
    found = do(delta, table, "read")
    assert (found["rows"], len(found["files"])) == ([0, 1, 2], 1)
    assert table.rejections() == []


def test_a_compactor_that_is_overtaken_before_its_commit(
    delta: Conversation, another: Conversation, table: Dataset
) -> None:
    """Its file is tlake, and its commit is under way. Its successor appends, which is no conflict for the format."""
    for number in range(3):
        do(delta, table, "append", number=number)
    before = table.files()
    log = f"PUT /{BUCKET}/{table.prefix}_delta_log/".encode()
    with holding(table.gateway.origin, log) as (origin, network), ThreadPoolExecutor() as threads:
        zombie = threads.submit(delta.ask, **asked(table, "compact", origin=origin))
        network.wait()
        (left,) = table.files() - before
        table.take_over()
        do(another, table, "append", NEWER, 3)
        written = do(another, table, "read", NEWER)
        network.release()
        assert "CommitFailed" in zombie.result()["error"]
    assert do(another, table, "read", NEWER) == written
    assert written["rows"] == [0, 1, 2, 3]
    refused = table.rejections()
    assert {(one["resource"], one["token"], one["fence"]) for one in refused} == {(table.resource, TOKEN, NEWER)}

    # The zombie's file is no part of the table. Its successor removes it with the other ones that are not.
    assert left not in written["files"]
    assert do(another, table, "compact", NEWER) == 4
    assert len(do(another, table, "vacuum", NEWER)) == 5
    found = do(another, table, "read", NEWER)
    assert found["rows"] == [0, 1, 2, 3]
    assert {name for name in table.files() if name.endswith(".parquet")} == set(found["files"])


@pytest.mark.parametrize("deed", ["append", "compact", "vacuum", "checkpoint"])
def test_after_a_takeover_every_write_is_refused(delta: Conversation, table: Dataset, deed: str) -> None:
    for number in range(2):
        do(delta, table, "append", number=number)
    do(delta, table, "compact")
    do(delta, table, "append", number=2)
    before = do(delta, table, "read"), table.files()
    zombie = asked(table, deed, number=9)
    table.take_over()
    assert delta.ask(**zombie)["error"] != ""
    assert (do(delta, table, "read", NEWER), table.files()) == before
    assert {one["reason"] for one in table.rejections()} == {"token-stale"}
