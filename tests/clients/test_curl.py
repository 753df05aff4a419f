"""Tables by curl, and by the requests that clients send which are not tried here."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.commands import Ended, Shell, program
from tests.clients.gateway import API_KEY, NEWER, TOKEN, Lock

ROW = '{"id": %d, "owner": "dee", "balance": 1}'


def curl(home: Path, lock: Lock, path: str, *arguments: str, token: str | None = TOKEN) -> Ended:
    """Ends with 22 where the answer is an error, which is printed all the same."""
    shown = () if token is None else ("--header", f"Fencing-Token: {token}")
    return Shell(home, {}).run(
        program("curl", "apt-get install curl"), "--fail-with-body", "--silent", "--show-error",
        "--header", f"Authorization: Bearer {API_KEY}", *shown, *arguments, f"{lock.gateway.origin}/v1/tables/{path}",
    )  # fmt: skip


def as_json(text: str) -> tuple[str, ...]:
    return ("--header", "Content-Type: application/json", "--data", text)


def refused(ended: Ended) -> dict[str, Any]:
    assert ended.status == 22, ended.out
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_writes_and_reads(lock: Lock, tmp_path: Path) -> None:
    back = ("--header", "Prefer: return=representation")
    inserted = curl(tmp_path, lock, "accounts", *as_json(ROW % lock.number), *back)
    assert json.loads(inserted.out) == [{"id": lock.number, "owner": "dee", "balance": 1, "note": None}]
    one = f"accounts?id=eq.{lock.number}"
    updated = curl(tmp_path, lock, one, "--request", "PATCH", *as_json('{"note": "x"}'), "--include")
    assert updated.out.startswith("HTTP/1.1 204")
    assert f"fencing-resource: {lock.resource}" in updated.out
    assert json.loads(curl(tmp_path, lock, f"{one}&select=note", token=None).out) == [{"note": "x"}]
    assert curl(tmp_path, lock, one, "--request", "DELETE").status == 0
    assert lock.rows() == []


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
def test_after_a_takeover_every_write_is_refused(lock: Lock, tmp_path: Path, method: str) -> None:
    body = as_json(ROW % lock.number)
    assert curl(tmp_path, lock, "accounts", *body).status == 0
    path = "accounts" if method == "POST" else f"accounts?id=eq.{lock.number}"
    with lock.overtaken():
        stale = refused(curl(tmp_path, lock, path, "--request", method, *(() if method == "DELETE" else body)))
        assert stale["code"] == "token-stale"
        assert len(lock.rejections()) == 1
    assert curl(tmp_path, lock, f"accounts?id=eq.{lock.number}", "--request", "DELETE", token=NEWER).status == 0


def test_without_a_token(lock: Lock, tmp_path: Path) -> None:
    assert refused(curl(tmp_path, lock, "accounts", *as_json("{}"), token=None))["code"] == "token-required"


def test_a_key_that_is_repeated_in_the_query(lock: Lock, tmp_path: Path) -> None:
    """postgrest-csharp does that; it is no filter."""
    assert curl(tmp_path, lock, f"accounts?apikey={API_KEY}", *as_json(ROW % lock.number)).status == 0
    one = f"accounts?id=eq.{lock.number}&apikey={API_KEY}"
    assert len(json.loads(curl(tmp_path, lock, one).out)) == 1
    assert curl(tmp_path, lock, one, "--request", "DELETE").status == 0
    assert lock.rows() == []


def test_pages_in_the_header_range(lock: Lock, tmp_path: Path) -> None:
    """postgrest-csharp sends its pages so."""
    many = ", ".join(ROW % (lock.number + at) for at in range(3))
    assert curl(tmp_path, lock, "accounts", *as_json(f"[{many}]")).status == 0
    some = f"accounts?id=gte.{lock.number}&id=lt.{lock.number + 3}&order=id&select=id"
    page = curl(tmp_path, lock, some, "--header", "Range-Unit: items", "--header", "Range: 1-1", "--include")
    head, _, body = page.out.partition("\n\n")
    assert "content-range: 1-1/*" in head
    assert json.loads(body) == [{"id": lock.number + 1}]
