"""postgrest-js by itself and inside supabase-js, on Node: with one more header they write, until they are overtaken."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.commands import Shell
from tests.clients.gateway import NEWER, Lock
from tests.clients.node import Tables, tables
from tests.clients.unavailable import unavailable

pytestmark = pytest.mark.installed

KINDS = ("postgrest-js", "supabase-js")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    with tables(Shell(tmp_path_factory.mktemp("node"), {})) as one:
        yield one


def succeeded(seen: dict[str, Any]) -> bool:
    return seen["error"] is None and seen["status"] < 300


def test_what_tables_can_do(node: Tables, kind: str, lock: Lock) -> None:
    assert "error" not in node.do(kind, "everything", lock)  # it asks for many things, and looks at each answer itself
    assert lock.rows() == [("dora", 7, None)]
    assert lock.rejections() == []


@pytest.mark.parametrize("deed", ["insertInto", "upsert", "update", "updateAndSelect", "delete", "perRequest"])
def test_after_a_takeover_every_write_is_refused(node: Tables, kind: str, deed: str, lock: Lock) -> None:
    if deed != "insertInto":
        assert succeeded(node.do(kind, "insertInto", lock))
    with lock.overtaken():
        seen = node.do(kind, deed, lock)
        assert (seen["status"], seen["error"]["code"]) == (412, "token-stale")
        assert seen["error"]["message"] == f"The fencing token 33 of {lock.resource} has been overtaken by 34."
        assert "raised by successor" in seen["error"]["details"]
        assert "retrying cannot succeed" in seen["error"]["hint"]
        assert len(lock.rejections()) == len(seen["asking"]) == 1, "a refusal is final: nothing is tried again"
    assert succeeded(node.do(kind, "upsert", lock, token=NEWER))
    assert lock.rows()[0][0] == "zoe"


def test_without_a_token(node: Tables, kind: str, lock: Lock) -> None:
    seen = node.do(kind, "withoutToken", lock)
    assert (seen["status"], seen["error"]["code"]) == (428, "token-required")


def test_no_write_is_tried_again_by_itself(node: Tables, kind: str, lock: Lock) -> None:
    with unavailable() as origin:
        seen = node.do(kind, "update", lock, origin=origin)
    assert (seen["status"], seen["asking"]) == (503, ["PATCH"])
