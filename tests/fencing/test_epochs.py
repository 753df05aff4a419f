"""A new epoch frees a resource that a forged token has locked."""

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from typer.testing import CliRunner, Result

from gateway.api import fences
from gateway.api.routes import Call
from gateway.api.services import Services
from gateway.cli import application
from gateway.db import intents
from gateway.db.database import Database
from gateway.errors import GatewayError
from gateway.fencing.decision import Decision, Fence, Presented
from gateway.fencing.token import MAX_EPOCH, MAX_VALUE
from gateway.observe.events import IntentSettled
from tests.callers import known
from tests.fencing.policy_gateway import ADMIN_KEY, WAYS, Shown, World, client
from tests.objects.clients import in_thread, outcome
from tests.running import API_KEY
from tests.tiers import first

PATCH, PUT = WAYS["patch"], WAYS["put"]


async def bump(world: World, resource: str, expected: str | None, **more: Any) -> httpx.Response:
    body = {"expected": expected, "reason": "the issuer was restored", **more}
    return await world.admin.post(f"/v1/fences/{resource}/epoch", json=body)


async def raised(world: World, resource: str, token: str) -> None:
    assert (await WAYS["barrier"](world, resource, Shown(token)))[0] == 200


async def events(world: World, resource: str) -> list[tuple[Any, ...]]:
    rows = await world.database.fetch(
        "SELECT kind, caller, holder, epoch, value, details FROM fencing.event "
        "WHERE resource = $1 AND kind <> 'lease-granted' ORDER BY at",
        resource,
    )
    return [(*tuple(row)[:5], json.loads(row["details"])) for row in rows]


async def test_the_fence_goes_to_the_next_epoch_and_old_tokens_are_stale(world: World, name: str) -> None:
    resource = f"any/{name}"
    await raised(world, resource, "900")
    answer = await bump(world, resource, "900")
    assert (answer.status_code, answer.json()["token"], answer.json()["caller"]) == (200, "1.0", "admin")
    assert await PATCH(world, resource, Shown("901")) == (412, "token-stale")
    assert await PUT(world, resource, Shown("901")) == (412, "StaleFencingToken")
    assert (await PATCH(world, resource, Shown("1.34")))[0] == 204
    told = {"reason": "the issuer was restored", "before": {"epoch": 0, "value": 900}, "leases_ended": 0}
    assert await events(world, resource) == [("epoch", "admin", None, 1, 0, told)]


async def test_it_is_a_compare_and_set(world: World, name: str) -> None:
    resource = f"any/{name}"
    answer = await bump(world, resource, "900")
    assert (answer.status_code, answer.json()["code"], answer.json()["fence"]) == (409, "expected-mismatch", None)
    await raised(world, resource, "900")
    for expected in ("899", "901", "1.0", "1.900"):
        answer = await bump(world, resource, expected)
        assert (answer.status_code, answer.json()["code"], answer.json()["fence"]) == (409, "expected-mismatch", "900")
    answers = await asyncio.gather(*(bump(world, resource, "900") for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
    assert await world.fence(resource) == "1.0"
    assert len(await events(world, resource)) == 1


WRONG: list[dict[str, Any]] = [
    *({"expected": "900"}, {"reason": "x"}, {"expected": "900", "reason": ""}, {"expected": "900", "reason": " "}),
    *({"expected": 900, "reason": "x"}, {"expected": None, "reason": "x"}, {"expected": "900", "reason": "\0"}),
    *({"expected": "900", "reason": "x" * 1001}, {"expected": "900", "reason": "x", "epoch": 7}),
    {"expected": "0900", "reason": "x"},
]


async def test_an_invalid_request_starts_no_epoch(world: World, name: str) -> None:
    await raised(world, f"any/{name}", "900")
    for body in WRONG:
        answer = await world.admin.post(f"/v1/fences/any/{name}/epoch", json=body)
        code = "token-malformed" if body.get("expected") == "0900" else "request-malformed"
        assert (answer.status_code, answer.json()["code"]) == (400, code), body
    assert await world.fence(f"any/{name}") == "900"


async def test_a_fence_that_was_bricked_before_there_were_policies(world: World, name: str) -> None:
    await world.database.execute(
        "INSERT INTO fencing.fence (resource, epoch, value) VALUES ($1, 0, $2)", f"issued/{name}", MAX_VALUE
    )
    answer = await world.api.post(f"/v1/leases/issued/{name}", json={"holder": "ann"})
    assert (answer.status_code, answer.json()["code"]) == (409, "tokens-exhausted")
    assert (await bump(world, f"issued/{name}", str(MAX_VALUE))).json()["token"] == "1.0"
    lease = await world.leased(f"issued/{name}")
    assert lease["token"] == "1.1"
    assert (await PATCH(world, f"issued/{name}", Shown(lease["token"])))[0] == 204


async def test_there_is_a_last_epoch(world: World, name: str) -> None:
    await world.database.execute(
        "INSERT INTO fencing.fence (resource, epoch, value) VALUES ($1, $2, 1)", f"any/{name}", MAX_EPOCH
    )
    answer = await bump(world, f"any/{name}", f"{MAX_EPOCH}.1")
    assert (answer.status_code, answer.json()["code"]) == (409, "tokens-exhausted")
    assert await world.fence(f"any/{name}") == f"{MAX_EPOCH}.1"


@pytest.mark.parametrize("after", ["the epoch", "the next lease"])
@pytest.mark.parametrize("way", first(WAYS))
async def test_the_first_token_of_an_epoch_is_never_issued(world: World, name: str, way: str, after: str) -> None:
    """The fence carries it, but no holder does. That stays so once the lease service has issued the next one."""
    resource = f"issued/{name}"
    lease = await world.leased(resource)
    for _ in range(2):  # the second one teaches the hot path this form of a write
        assert (await PATCH(world, resource, Shown(lease["token"])))[0] == 204
    assert (await bump(world, resource, lease["token"])).json()["token"] == "1.0"
    if after == "the next lease":
        assert (await world.leased(resource, "uploader"))["token"] == "1.1"
    status, code = await WAYS[way](world, resource, Shown("1.0"))
    assert (status, code) in ((403, "token-implausible"), (403, "ImplausibleFencingToken"))
    assert await world.fence(resource) == "1.0"
    assert (await world.on_record(resource))[-1] == ("token-implausible", "1.0", True)


async def test_leases_end_and_the_lease_service_goes_on_above(world: World, name: str) -> None:
    resource = f"live/{name}"
    lease = await world.leased(resource, "ann")
    assert (await PATCH(world, resource, Shown(lease["token"])))[0] == 204
    waiting = asyncio.ensure_future(
        world.api.post(f"/v1/leases/{resource}", json={"holder": "bob", "wait": 10, "ttl": 30})
    )
    while not await world.database.fetchval("SELECT count(*) FROM fencing.waiter WHERE resource = $1", resource):
        await asyncio.sleep(0.01)
    assert (await bump(world, resource, lease["token"])).status_code == 200
    assert not await world.database.fetchval("SELECT count(*) FROM fencing.waiter WHERE resource = $1", resource)
    granted = (await waiting).json()
    assert granted["token"] == "1.1"
    renewed = await world.api.put(f"/v1/leases/{resource}/{lease['lease']}", json={})
    assert (renewed.status_code, renewed.json()["code"]) == (410, "lease-lost")
    assert await PATCH(world, resource, Shown(lease["token"])) == (412, "token-stale")
    assert (await PATCH(world, resource, Shown(granted["token"])))[0] == 204
    epoch, broken = await events(world, resource)
    assert broken[:5] == ("lease-broken", "admin", "ann", 0, int(lease["token"]))
    assert (epoch[0], epoch[5]["leases_ended"]) == ("epoch", 1)


async def test_a_lease_of_a_newer_epoch_stays(world: World, name: str) -> None:
    resource = f"any/{name}"
    await raised(world, resource, "3.1")
    lease = await world.leased(resource)
    assert lease["token"] == "3.2"
    await world.database.execute("UPDATE fencing.lease SET epoch = 5 WHERE resource = $1", resource)
    assert (await bump(world, resource, "3.1")).json()["token"] == "4.0"
    assert await world.database.fetchval("SELECT count(*) FROM fencing.lease WHERE resource = $1", resource) == 1


async def test_what_is_under_way_is_settled_before_the_answer(world: World, name: str) -> None:
    """A put of the former epoch is on its way to the store. It takes no effect."""
    resource, key = f"any/{name}", f"any/{name}/file"
    s3 = client(world, Shown("900"))
    assert await outcome(s3.put_object, Key=key, Body=b"before") == (200, "")
    held = world.stage.double.hold(operation="PutObject", key=key)
    zombie = asyncio.ensure_future(outcome(s3.put_object, Key=key, Body=b"late"))
    await held.arrived.wait()
    assert (await bump(world, resource, "900")).status_code == 200
    pending = "SELECT count(*) FROM fencing.intent WHERE resource = $1"
    assert await world.database.fetchval(pending, resource) == 0
    assert any(isinstance(one, IntentSettled) and one.resource == resource for one in world.stage.events)
    held.release()
    assert await zombie == (412, "StaleFencingToken")
    assert world.stage.body(key) == b"before"


async def test_a_holder_of_the_new_epoch_was_quicker(world: World, name: str) -> None:
    """A holder of the new epoch raises the fence before the administrator's barrier, and may still be settling.

    The answer waits for a barrier all the same.
    """
    resource, shown = f"any/{name}", list[str]()
    await raised(world, resource, "900")

    async def barrier(resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]:
        shown.append(str(presented.token))
        if len(shown) == 1:
            await raised(world, resource, "1.5")
        done = await intents.raise_fence(database, resource, presented, caller)
        return done.decision, done.fence

    database = Database(world.stage.dsn)
    services = SimpleNamespace(database=database, barrier=barrier, keys=None)
    call = Call(Request({"type": "http", "state": {"viewer": known("admin")}}), cast("Services", services))
    await fences.start_epoch(call, resource, fences.EpochRequest(expected="900", reason="the issuer was restored"))
    await database.close()
    assert shown == ["1.0", "1.5"]


async def command(*arguments: str) -> Result:
    """Run a command in this process, which is quicker. Its errors are raised."""
    done = await in_thread(lambda: CliRunner().invoke(application, list(arguments)))
    if isinstance(done.exception, GatewayError):
        raise done.exception
    return done


class TestCommand:
    async def test_one_fence_gets_a_new_epoch(self, world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GATEWAY_API_KEY", ADMIN_KEY)
        resource = f"any/{name}:%20.."
        await world.database.execute("INSERT INTO fencing.fence (resource, epoch, value) VALUES ($1, 0, 900)", resource)
        wanted = ("epoch", resource, "--url", world.stage.origin, "--expected", "900", "--reason", "etcd was restored")
        done = await command(*wanted)
        assert (done.exit_code, done.stdout, done.stderr) == (0, f"{resource}: 900 -> 1.0\n", "")
        with pytest.raises(GatewayError, match=f"The fence of {re.escape(resource)} carries 1.0, not 900.") as caught:
            await command(*wanted)
        assert "Nothing was changed" in caught.value.advice
        assert (await events(world, resource))[0][5]["reason"] == "etcd was restored"

    async def test_all_under_a_prefix(self, world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GATEWAY_API_KEY", ADMIN_KEY)
        for number, epoch in (("1", 0), ("2", MAX_EPOCH), ("3", 4)):
            await world.database.execute(
                "INSERT INTO fencing.fence (resource, epoch, value) VALUES ($1, $2, 7)", f"any/{name}/{number}", epoch
            )
        await raised(world, f"any/{name}-other", "7")
        wanted = ("epoch", "--url", world.stage.origin, "--prefix", f"any/{name}/", "--reason", "x")
        done = await command(*wanted)
        assert done.stdout == f"any/{name}/1: 7 -> 1.0\nany/{name}/3: 4.7 -> 5.0\n"
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert f"any/{name}/2: The fence of" in done.stderr
        assert await world.fence(f"any/{name}-other") == "7"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ("--reason x --prefix=", "name a RESOURCE and the --expected token"),
            ("any/x --expected 1 --prefix a --reason x", "name a RESOURCE and the --expected token"),
            ("any/x --expected 1 --reason x", "writer lacks the grant epoch for resource any/x."),
            ("--prefix any/ --reason x --api-key-file /nowhere", "/nowhere"),
        ],
    )
    async def test_what_it_does_not_do(
        self, world: World, monkeypatch: pytest.MonkeyPatch, arguments: str, said: str
    ) -> None:
        monkeypatch.setenv("GATEWAY_API_KEY", API_KEY)
        with pytest.raises(GatewayError, match=said) as caught:
            await command("epoch", "--url", world.stage.origin, *arguments.split())
        assert API_KEY not in str(caught.value)
