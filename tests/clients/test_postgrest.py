"""Tables by the PyPI client ``postgrest``, sync and async, and by curl: with one more header they write."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import httpx
import pytest
from postgrest import APIError, APIResponse, AsyncPostgrestClient, SyncPostgrestClient
from postgrest.types import CountMethod, ReturnMethod

from tests.clients.commands import Ended, Shell, program
from tests.clients.gateway import API_KEY, NEWER, TOKEN, Lock
from tests.clients.lossy import unavailable
from tests.tiers import first
from tests.waiting import PATIENCE

Deed: TypeAlias = Callable[[Any], Any]
"""A function that builds a query on ``client.from_("accounts")``, up to but without ``execute``."""

KNOWN = {"Authorization": f"Bearer {API_KEY}"}
HELD = {**KNOWN, "Fencing-Token": TOKEN}


class Accounts:
    """One client, sync or async, of the table ``accounts``; both are built and asked in the same words."""

    def __init__(self, kind: str, address: str, headers: Mapping[str, str], **more: Any) -> None:
        self._runner = asyncio.Runner()
        self._asynchronous = kind == "async"
        build: Any = AsyncPostgrestClient if self._asynchronous else SyncPostgrestClient
        self.client = build(address, headers=dict(headers), **more)

    def close(self) -> None:
        self._finished(self.client.aclose())
        self._runner.close()

    def do(self, deed: Deed) -> APIResponse:
        return cast("APIResponse", self._finished(deed(self.client.from_("accounts")).execute()))

    def data(self, deed: Deed) -> Any:
        """Return the answer's data, of any type."""
        return self.do(deed).data

    def rows(self, deed: Deed) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self.data(deed))

    def _finished(self, answer: Any) -> Any:
        async def wait() -> Any:
            return await answer

        return self._runner.run(wait()) if asyncio.iscoroutine(answer) else answer


@pytest.fixture(params=first(["sync", "async"]))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def connected(kind: str, origin: str, headers: Mapping[str, str] = HELD, **more: Any) -> Iterator[Accounts]:
    opened = Accounts(kind, f"{origin}/v1/tables", headers, **more)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def accounts(kind: str, lock: Lock) -> Iterator[Accounts]:
    """A client that shows its token with every request."""
    with connected(kind, lock.gateway.origin) as opened:
        yield opened


def account(lock: Lock, **more: Any) -> dict[str, Any]:
    return {"id": lock.number, "owner": "dee", "balance": 1, **more}


def refusal(accounts: Accounts, deed: Deed) -> APIError:
    with pytest.raises(APIError) as caught:
        accounts.do(deed)
    return caught.value


def test_writes(accounts: Accounts, lock: Lock) -> None:
    """Arrays are sent with ``columns``, quoted and in any order; DELETE is sent with a body."""
    number, other = lock.number, lock.number + 1
    inserted = accounts.rows(lambda t: t.insert([account(lock), account(lock, id=other)]))
    assert [one["id"] for one in inserted] == [number, other]
    assert accounts.rows(lambda t: t.upsert({"id": number, "owner": "dora", "balance": 2}))[0]["owner"] == "dora"
    assert accounts.rows(lambda t: t.upsert(account(lock), ignore_duplicates=True)) == []
    filled = accounts.rows(lambda t: t.insert([{"id": other + 1, "owner": "x", "balance": 0}], default_to_null=False))
    assert filled[0]["note"] is None
    updated = accounts.do(lambda t: t.update({"note": "n"}, count=CountMethod.exact).in_("id", [number, other]))
    assert updated.count == len(updated.data) == 2
    assert accounts.rows(lambda t: t.update({"note": "m"}, returning=ReturnMethod.minimal).eq("id", number)) == []
    deleted = accounts.rows(lambda t: t.delete().in_("id", [other, other + 1]))
    assert sorted(one["id"] for one in deleted) == [other, other + 1], "in any order: none was asked for"
    assert lock.rows() == [("dora", 2, "m")]


def test_filters_and_pages(accounts: Accounts, lock: Lock) -> None:
    number = lock.number
    notes = ["first, one", None, 'a "third" (one)']
    sent = [account(lock, id=number + at, note=note) for at, note in enumerate(notes)]
    accounts.do(lambda t: t.insert(sent))

    def found(narrow: Deed) -> list[int]:
        rows = accounts.rows(lambda t: narrow(t.select("id").gte("id", number).lt("id", number + 3)).order("id"))
        return [row["id"] - number for row in rows]

    assert found(lambda q: q.eq("note", "first, one")) == [0]
    assert found(lambda q: q.neq("id", number)) == [1, 2]
    assert found(lambda q: q.is_("note", "null")) == [1]
    assert found(lambda q: q.not_.is_("note", "null")) == [0, 2]
    assert found(lambda q: q.like("note", "%third%")) == [2]
    assert found(lambda q: q.ilike_any_of("note", "*FIRST*,*third*")) == [0, 2]
    assert found(lambda q: q.in_("note", ["first, one", 'a "third" (one)'])) == [0, 2]
    assert found(lambda q: q.or_(f"id.eq.{number},note.is.null")) == [0, 1]
    assert found(lambda q: q.match({"id": number, "owner": "dee"})) == [0]
    assert found(lambda q: q.range(1, 1)) == [1]
    assert found(lambda q: q.limit(1).offset(2)) == [2]
    last = accounts.rows(lambda t: t.select("id, name:owner").in_("id", [number, number + 1]).order("id", desc=True))
    assert last == [{"id": number + 1, "name": "dee"}, {"id": number, "name": "dee"}]


def test_forms_of_an_answer(accounts: Accounts, lock: Lock) -> None:
    accounts.do(lambda t: t.insert(account(lock)))
    number = lock.number
    assert accounts.data(lambda t: t.select("owner").eq("id", number).single()) == {"owner": "dee"}
    assert accounts.do(lambda t: t.select("owner").eq("id", number + 1).maybe_single()) is None
    assert accounts.data(lambda t: t.select("owner,balance").eq("id", number).csv()) == "owner,balance\ndee,1"
    assert accounts.rows(lambda t: t.select("*").eq("id", number).strip_nulls()) == [account(lock)]
    counted = accounts.do(lambda t: t.select("*", count=CountMethod.exact, head=True).eq("id", number))
    assert counted.count == 1
    nobody = refusal(accounts, lambda t: t.select("owner").eq("id", number + 1).single())
    assert (nobody.code, nobody.details) == ("PGRST116", "The result contains 0 rows")


def test_at_most_so_many(accounts: Accounts, lock: Lock) -> None:
    """``max_affected`` sends ``handling=strict``, which refuses every preference that is not known."""
    accounts.do(lambda t: t.insert([account(lock), account(lock, id=lock.number + 1)]))
    both = [lock.number, lock.number + 1]
    assert len(accounts.rows(lambda t: t.update({"note": "x"}).in_("id", both).max_affected(2))) == 2
    assert refusal(accounts, lambda t: t.update({"note": "y"}).in_("id", both).max_affected(1)).code == "PGRST124"
    assert lock.rows() == [("dee", 1, "x")]


DEEDS: dict[str, Callable[[Lock], Deed]] = {
    "insert": lambda lock: lambda t: t.insert(account(lock)),
    "upsert": lambda lock: lambda t: t.upsert(account(lock, owner="zoe")),
    "update": lambda lock: lambda t: t.update({"owner": "zoe"}).eq("id", lock.number),
    "update and select": lambda lock: lambda t: t.update({"owner": "zoe"}).eq("id", lock.number).select("id").single(),
    "delete": lambda lock: lambda t: t.delete().eq("id", lock.number),
    "several": lambda lock: lambda t: t.delete().in_("id", [lock.number, lock.number + 1]),
}


@pytest.mark.parametrize("name", DEEDS)
def test_after_a_takeover_every_write_is_refused(accounts: Accounts, lock: Lock, kind: str, name: str) -> None:
    """The client shows its users nothing but the four keys: all there is to know must be in them."""
    if name != "insert":
        accounts.do(lambda t: t.insert(account(lock)))
    with lock.overtaken():
        refused = refusal(accounts, DEEDS[name](lock))
        assert refused.code == "token-stale"
        assert refused.message == f"The fencing token 33 of {lock.resource} has been overtaken by 34."
        assert f"Resource {lock.resource}" in str(refused.details)
        assert "raised by successor" in str(refused.details)
        assert "retrying cannot succeed" in str(refused.hint)
        assert sorted(refused.json()) == ["code", "details", "hint", "message"]
        assert all(isinstance(value, str) for value in refused.json().values())
        assert len(lock.rejections()) == 1, "a refusal is final: nothing is tried again"
    with connected(kind, lock.gateway.origin, {**KNOWN, "Fencing-Token": NEWER}) as successor:
        successor.do(lambda t: t.upsert(account(lock, owner="zoe")))
    assert lock.rows()[0][0] == "zoe"


def test_the_token_of_one_request(kind: str, lock: Lock) -> None:
    """It stays with that request: the next one of the same client has none."""

    def shown(query: Any) -> Any:
        query.request.headers["Fencing-Token"] = TOKEN
        return query

    with connected(kind, lock.gateway.origin, KNOWN) as accounts:
        accounts.do(lambda t: shown(t.insert(account(lock))))
        assert refusal(accounts, lambda t: t.update({"note": "x"}).eq("id", lock.number)).code == "token-required"
        with lock.overtaken():
            stale = refusal(accounts, lambda t: shown(t.update({"note": "x"}).eq("id", lock.number)))
        assert stale.code == "token-stale"


def hooked(kind: str, address: str, hook: Callable[[httpx.Request], None]) -> Any:
    """A session that calls the hook with each request."""

    async def later(request: httpx.Request) -> None:
        hook(request)

    if kind == "async":
        return httpx.AsyncClient(event_hooks={"request": [later]}, base_url=address, timeout=PATIENCE)
    return httpx.Client(event_hooks={"request": [hook]}, base_url=address, timeout=PATIENCE)


def test_the_token_of_a_hook(kind: str, lock: Lock) -> None:
    """A library that renews the lease sets the token in a hook: each request carries the token held by then."""
    held = [TOKEN]

    def show(request: httpx.Request) -> None:
        request.headers["Fencing-Token"] = held[-1]

    session = hooked(kind, f"{lock.gateway.origin}/v1/tables", show)
    with connected(kind, lock.gateway.origin, KNOWN, http_client=session) as accounts:
        accounts.do(lambda t: t.insert(account(lock)))
        with lock.overtaken():
            assert refusal(accounts, lambda t: t.delete().eq("id", lock.number)).code == "token-stale"
        held.append(NEWER)
        accounts.do(lambda t: t.update({"owner": "zoe"}).eq("id", lock.number))
    assert lock.rows() == [("zoe", 1, None)]


def test_a_preference_of_the_client_replaces_those_of_its_requests(kind: str, lock: Lock) -> None:
    with connected(kind, lock.gateway.origin, {**HELD, "Prefer": "return=minimal"}) as accounts:
        assert accounts.rows(lambda t: t.insert(account(lock))) == []
    assert lock.rows() == [("dee", 1, None)]


def test_the_schema_is_named_in_every_request(kind: str, lock: Lock) -> None:
    with connected(kind, lock.gateway.origin, HELD, schema="nowhere") as accounts:
        for deed in (lambda t: t.select("id"), lambda t: t.insert(account(lock))):
            assert refusal(accounts, deed).code == "PGRST106"


def test_the_code_of_an_error_without_a_body(accounts: Accounts) -> None:
    """The answer to HEAD has none: the client reads it from Proxy-Status."""
    assert refusal(accounts, lambda t: t.select("nothing", head=True)).code == "42703"


def test_no_write_is_tried_again_by_itself(kind: str) -> None:
    asked: list[str] = []

    with unavailable() as origin:
        session = hooked(kind, origin, lambda request: asked.append(request.method))
        with connected(kind, origin, HELD, http_client=session) as accounts:
            for deed in (
                lambda t: t.insert({"id": 1}),
                lambda t: t.update({"id": 1}).eq("id", 1),
                lambda t: t.delete().eq("id", 1),
            ):
                assert refusal(accounts, deed).code == "unavailable"
    assert asked == ["POST", "PATCH", "DELETE"]


# Tables by curl, and by the requests that clients send which are not tried here.


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


def test_a_key_that_is_repeated_in_the_query(lock: Lock, tmp_path: Path) -> None:
    """postgrest-csharp does that; it is no filter."""
    assert curl(tmp_path, lock, f"accounts?apikey={API_KEY}", *as_json(ROW % lock.number)).status == 0
    one = f"accounts?id=eq.{lock.number}&apikey={API_KEY}"
    assert len(json.loads(curl(tmp_path, lock, one).out)) == 1
    assert curl(tmp_path, lock, one, "--request", "DELETE").status == 0
    assert lock.rows() == []
