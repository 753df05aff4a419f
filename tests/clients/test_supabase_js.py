"""postgrest-js by itself and inside supabase-js, on Node: with one more header they write, until they are overtaken."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.commands import Ended, Shell, javascript
from tests.clients.gateway import NEWER, TOKEN, Lock
from tests.clients.unavailable import unavailable

KINDS = ("postgrest-js", "supabase-js")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(kind: str, deed: str, lock: Lock, home: Path, *, token: str = TOKEN, origin: str | None = None) -> Ended:
    """Do one of the deeds of tables.mjs."""
    node, directory = javascript()
    arguments = (kind, deed, origin or lock.gateway.origin, token, lock.name)
    return Shell(home, {}).run(node, str(directory / "tables.mjs"), *arguments)


def printed(ended: Ended) -> dict[str, Any]:
    assert ended.out, ended.error
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_what_tables_can_do(kind: str, lock: Lock, tmp_path: Path) -> None:
    ended = run(kind, "everything", lock, tmp_path)
    assert ended.status == 0, ended.error
    assert lock.rows() == [("dora", 7, None)]
    assert lock.rejections() == []


@pytest.mark.parametrize("deed", ["insertInto", "upsert", "update", "updateAndSelect", "delete", "perRequest"])
def test_after_a_takeover_every_write_is_refused(kind: str, deed: str, lock: Lock, tmp_path: Path) -> None:
    if deed != "insertInto":
        assert run(kind, "insertInto", lock, tmp_path).status == 0
    with lock.overtaken():
        ended = run(kind, deed, lock, tmp_path)
        assert ended.status == 1, ended.out
        seen = printed(ended)
        assert (seen["status"], seen["error"]["code"]) == (412, "token-stale")
        assert seen["error"]["message"] == f"The fencing token 33 of {lock.resource} has been overtaken by 34."
        assert "raised by successor" in seen["error"]["details"]
        assert "retrying cannot succeed" in seen["error"]["hint"]
        assert len(lock.rejections()) == len(seen["asking"]) == 1, "a refusal is final: nothing is tried again"
    assert run(kind, "upsert", lock, tmp_path, token=NEWER).status == 0
    assert lock.rows()[0][0] == "zoe"


def test_without_a_token(kind: str, lock: Lock, tmp_path: Path) -> None:
    seen = printed(run(kind, "withoutToken", lock, tmp_path))
    assert (seen["status"], seen["error"]["code"]) == (428, "token-required")


def test_no_write_is_tried_again_by_itself(kind: str, lock: Lock, tmp_path: Path) -> None:
    with unavailable() as origin:
        seen = printed(run(kind, "update", lock, tmp_path, origin=origin))
    assert (seen["status"], seen["asking"]) == (503, ["PATCH"])
