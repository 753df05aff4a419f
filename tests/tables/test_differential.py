"""One history in three ways gives the same answers: as the gateway sends it, without batches, and the whole way.

Each account has writers of its own that send one request after the other, zombies among them; all accounts at once.
"""

import asyncio
import json
import random
import re
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.db.database import Database
from gateway.tables.execute import batches
from gateway.tables.execute.fast_path import Candidate, FastPath
from tests.callers import ANYBODY
from tests.tables.asking import rows
from tests.tiers import first

ACCOUNTS = 12


LENGTH = 14


HEADERS = (
    "content-range", "content-type", "fencing-token", "fencing-resource", "location", "preference-applied", "etag",
)  # fmt: skip


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.+]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request about one account. ``#`` stands for its id in target, headers, and the text of the body."""

    method: str
    target: str
    body: str | None
    headers: dict[str, str]


def history(seed: int) -> list[list[Asked]]:
    chance = random.Random(seed)
    return [[_asked(chance) for _ in range(LENGTH)] for _ in range(ACCOUNTS)]


def _asked(chance: random.Random) -> Asked:
    method = chance.choices(["PATCH", "GET", "POST", "PUT", "DELETE"], [10, 4, 3, 2, 1])[0]
    headers = {"fencing-token": str(chance.choice([4, 5, 5, 5, 5, 6, 7, "x"]))}
    if chance.random() < 0.2:
        headers["fencing-holder"] = chance.choice(["ann", "bob"])
    if chance.random() < 0.4:
        headers["fencing-resource"] = chance.choice(
            ["public.accounts/#"] * 6 + ["public.accounts/#/x", "other/#", "a b"]
        )
    if chance.random() < 0.1:
        headers["fencing-sequencer"] = chance.choice(
            ["public.accounts/#:exclusive:5:AA", "other/#:exclusive:5:AA", "x"]
        )
    if chance.random() < 0.4:
        headers["prefer"] = chance.choice([
            "return=representation", "return=headers-only", "count=exact", "resolution=merge-duplicates",
            "resolution=ignore-duplicates", "return=representation,resolution=merge-duplicates", "tx=commit",
        ])  # fmt: skip
    if chance.random() < 0.1:
        headers["accept"] = chance.choice(["application/vnd.pgrst.object+json", "text/csv"])
    if method == "POST":
        target = chance.choice(["/accounts", "/accounts", "/accounts?select=id,note", "/accounts?on_conflict=id"])
    else:
        target = "/accounts?id=eq.#" + chance.choice(["", "", "", "&balance=eq.1", "&select=note,id", "&note=is.null"])
    return Asked(method, target, None if method in ("GET", "DELETE") else _body(chance, method), headers)


def _body(chance: random.Random, method: str) -> str:
    columns: dict[str, Any] = {}
    if method != "PATCH" or chance.random() < 0.1:
        columns["id"] = chance.choice(["#", "#", "#", "#", "05#", None])
    columns["balance"] = chance.choice([1, 2, 3, 1.5, "7", None, "seven"])
    if chance.random() < 0.5:
        columns["note"] = chance.choice(["a", "b", None, 5, "\u2603 '\""])
    if chance.random() < 0.05:
        columns["missing"] = 1
    text = json.dumps(columns).replace('"#"', "#")
    return chance.choices([text, f"[{text}]", f"[{text},{text}]", text[:-1], ""], [20, 3, 1, 1, 1])[0]


async def _play(
    client: httpx.AsyncClient, tables: Database, plans: list[list[Asked]], offset: int
) -> dict[str, object]:
    """Return the answer to each request, and the rows that all requests leave."""

    async def account(number: int) -> list[object]:
        answers: list[object] = []
        for asked in plans[number]:
            content = None if asked.body is None else asked.body.replace("#", str(offset + number)).encode()
            headers = {name: value.replace("#", str(offset + number)) for name, value in asked.headers.items()}
            headers.setdefault("content-type", "application/json")
            target = asked.target.replace("#", str(offset + number))
            response = await client.request(asked.method, target, content=content, headers=headers)
            answers.append(_seen(response, offset))
        return answers

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(account(number)) for number in range(ACCOUNTS)]
    last = offset + ACCOUNTS
    left = await rows(
        tables, f"SELECT id - {offset}, balance, note FROM accounts WHERE id BETWEEN {offset} AND {last} ORDER BY id"
    )
    resources = f"SELECT 'public.accounts/' || id FROM generate_series({offset}, {last}) AS id"
    fences = await rows(
        tables, f"SELECT value, holder FROM fencing.fence WHERE resource IN ({resources}) ORDER BY resource"
    )
    refused = await rows(
        tables,
        "SELECT reason, value, holder, fence_value, fence_holder, method, payload_size FROM fencing.rejection "
        f"WHERE resource IN ({resources}) ORDER BY resource, at",
    )
    answers = {
        f"account {number}, request {place}: {asked}": answer
        for number, task in enumerate(running)
        for place, (asked, answer) in enumerate(zip(plans[number], task.result(), strict=True))
    }
    return {**answers, "rows": left, "fences": fences, "refused": refused}


def _differing(one: dict[str, object], other: dict[str, object]) -> dict[str, tuple[object, object]]:
    assert one.keys() == other.keys()
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def _seen(response: httpx.Response, offset: int) -> tuple[int, str, dict[str, str]]:
    """Return the parts that must not differ: all but ids, times, and the id of the account."""

    def alike(text: str) -> str:
        text = _MOMENT.sub("MOMENT", _UUID.sub("UUID", text))
        return re.sub(rf"{offset // 100}(\d\d)\b", r"#\1", text)

    headers = {name: alike(response.headers[name]) for name in HEADERS if name in response.headers}
    # A hash of a row with another id is another hash.
    return response.status_code, alike(response.text), {**headers, **({"etag": ""} if "etag" in headers else {})}


@pytest.mark.parametrize("seed", first(range(4), pytest.mark.nightly))
async def test_nobody_sees_which_way_a_request_has_gone(
    client: httpx.AsyncClient, tables: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    plans = history(seed)
    expected = await _play(client, tables, plans, 1100)
    with monkeypatch.context() as alone:
        alone.setattr(batches, "LARGEST", -1)
        assert _differing(expected, await _play(client, tables, plans, 1200)) == {}
    with monkeypatch.context() as whole:
        whole.setattr(FastPath, "candidate", lambda *_: Candidate(None, ANYBODY.name, ANYBODY.rights))
        assert _differing(expected, await _play(client, tables, plans, 1300)) == {}
    assert _differing(expected, await _play(client, tables, plans, 1400)) == {}, "with everything learnt"
