"""Tokens from Kubernetes, against a real API server where there is one, and against what one has answered before."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from aiohttp import web

from gateway.client.errors import FencingError, LockLost, NotAcquired, Refused, Unavailable
from gateway.client.kubernetes import KubernetesSource, name_of
from gateway.client.source import now
from tests.sources.conftest import addresses
from tests.sources.exchanges import MODES, Cast, Fault, acquire, assert_held_by, assert_overtaken, cast_of
from tests.sources.go_servers import KubernetesServer, version

RECORDED = Path(__file__).parent / "recorded/kubernetes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"

# The odd parts of resource names. Many differ only in characters that a name of Kubernetes cannot have.
ODD = ["a", "A", "a/b", "a-b", "a.b", "a_b", "a//b", "/a", "a/", ".", "..", "-a", "a-", "%2F", "(a)!$&'*+;:@~-_."]
ODD += ["x" * 63, "x" * 64, "x" * 512, "x" * 511 + "/", "order-5.0123456789abcdef0123456789abcdef01234567"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    with addresses(lambda _, directory: KubernetesServer(directory), tmp_path_factory) as address:
        yield address


@pytest.fixture(params=MODES)
async def cast(request: pytest.FixtureRequest) -> AsyncIterator[Cast]:
    async with cast_of(request, RECORDED, lambda: version("kube-apiserver")) as actors:
        yield actors


def fast() -> float:
    """Return a fast clock for tasks that wait for the end of a term: no other task reads it."""
    return now() * 5


async def a_source(cast: Cast, name: str, **given: Any) -> KubernetesSource:
    """A source that looks every 20 ms."""
    settings = {"token": "administrator-token", "poll": 0.02, **given}
    return await cast.source(lambda url: KubernetesSource(url=url, **settings), name)


async def an_operator(cast: Cast) -> httpx.AsyncClient:
    return await cast.operator(Authorization="Bearer administrator-token")


def lease_of(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}


async def test_tokens_grow_from_holder_to_holder(cast: Cast) -> None:
    one, other = await a_source(cast, "one", clock=lambda: 100.0), await a_source(cast, "other")
    operator = await an_operator(cast)
    held = await acquire(one, "order-1", "one", ttl=60)
    assert (held.value, held.valid_until) == (1, 160.0)
    assert await one.holds(held)
    lease = (await operator.get(f"{LEASES}/order-1")).json()
    assert lease["metadata"]["annotations"] == {"fencing-gateway/resource": "order-1"}
    assert lease["spec"]["leaseDurationSeconds"] == 60
    refused = await assert_held_by("one", other, "order-1")
    assert refused.expires_in == pytest.approx(60, abs=5)
    renewed = await one.renew(held, 30.5)
    assert (renewed.value, renewed.valid_until) == (1, 131.0)
    await one.release(renewed)
    assert not await one.holds(renewed)
    taken = await acquire(other, "order-1", "other")
    assert taken.value == 2
    await one.release(renewed)
    assert await other.holds(taken)
    await other.release(taken)


async def test_the_same_holder_gets_another_token(cast: Cast) -> None:
    """client-go's elector would keep ``leaseTransitions``: it was the holder, and is the holder."""
    source = await a_source(cast, "one", clock=fast)
    first = await acquire(source, "order-2", "one", ttl=1)
    second = await acquire(source, "order-2", "one", ttl=1, wait=None)
    assert second.value == first.value + 1
    assert not await source.holds(first)
    with pytest.raises(LockLost):
        await source.renew(first, 1)
    await source.release(second)


async def test_a_lease_of_other_programs_is_taken_when_it_stands_still(cast: Cast) -> None:
    at = 0.0
    source, operator = await a_source(cast, "one", clock=lambda: at), await an_operator(cast)
    # The times are past by any clock: only the time for which the lease is seen unchanged counts.
    spec = {
        "holderIdentity": "their-pod",
        "leaseDurationSeconds": 1,
        "acquireTime": "2001-01-01T00:00:00.000000Z",
        "renewTime": "2001-01-01T00:00:00.000000Z",
        "leaseTransitions": 41,
    }
    lease = (await operator.post(LEASES, json=lease_of("order-3", spec))).json()
    with pytest.raises(NotAcquired) as refused:
        await acquire(source, "order-3", "one")
    assert (refused.value.holder, refused.value.expires_in) == ("their-pod", 1.0)
    lease["spec"]["renewTime"] = "2001-01-01T00:00:01.000000Z"
    await operator.put(f"{LEASES}/order-3", json=lease)
    # Seen for the first time now, and still the same later on.
    for at, left in ((0.9, 1.0), (1.8, 0.1)):  # noqa: B007 - the source's clock
        with pytest.raises(NotAcquired) as refused:
            await acquire(source, "order-3", "one")
        assert refused.value.expires_in == pytest.approx(left)
    at = 1.9
    held = await acquire(source, "order-3", "one")
    assert held.value == 42
    await source.release(held)


async def test_a_paused_holder_is_overtaken_and_finds_out(cast: Cast) -> None:
    paused, other = await a_source(cast, "paused"), await a_source(cast, "other", clock=fast)
    held = await acquire(paused, "order-4", "paused", ttl=1)
    taken = await acquire(other, "order-4", "other", ttl=60, wait=None)
    assert taken.value == held.value + 1
    await assert_overtaken(paused, held, other, taken)
    await other.release(taken)


@pytest.mark.parametrize("step", ["POST", "PUT"])
async def test_of_two_at_once_one_has_it(cast: Cast, step: str) -> None:
    one, other = await a_source(cast, "one"), await a_source(cast, "other")
    lane, resource = await cast.lane("one"), f"order-6-{step.lower()}"
    if step == "PUT":
        await other.release(await acquire(other, resource, "before"))
    lane.closed_to = step
    lane.gate.clear()
    taking = asyncio.create_task(acquire(one, resource, "one", ttl=60))
    await cast.stage.until_sent("one", step)
    taken = await acquire(other, resource, "other", ttl=60)
    lane.gate.set()
    with pytest.raises(NotAcquired) as refused:
        await taking
    assert refused.value.holder == "other"
    assert await other.holds(taken)
    await other.release(taken)


async def test_who_writes_something_else_into_the_lease_is_not_in_the_way(cast: Cast) -> None:
    source, operator = await a_source(cast, "one"), await an_operator(cast)
    lane = await cast.lane("one")
    held = await acquire(source, "order-7", "one", ttl=60)
    lane.closed_to = "PUT"
    lane.gate.clear()
    renewing = asyncio.create_task(source.renew(held, 60))
    await cast.stage.until_sent("one", "PUT")
    lease = (await operator.get(f"{LEASES}/order-7")).json()
    lease["metadata"]["labels"] = {"team": "billing"}
    await operator.put(f"{LEASES}/order-7", json=lease)
    lane.gate.set()
    await source.release(await renewing)
    assert (await operator.get(f"{LEASES}/order-7")).json()["metadata"]["labels"] == {"team": "billing"}


async def test_a_deleted_lease_counts_from_the_beginning(cast: Cast) -> None:
    """Said as it is: it is the fence that notices, and an epoch that helps."""
    source, operator = await a_source(cast, "one"), await an_operator(cast)
    for _ in range(2):
        await source.release(await acquire(source, "order-8", "one"))
    held = await acquire(source, "order-8", "one")
    assert held.value == 3
    await operator.delete(f"{LEASES}/order-8")
    assert not await source.holds(held)
    with pytest.raises(LockLost):
        await source.renew(held, 10)
    await source.release(held)
    lower = await acquire(source, "order-8", "one")
    assert lower.value == 1
    await source.release(lower)


async def test_the_number_ends(cast: Cast) -> None:
    source, operator = await a_source(cast, "one"), await an_operator(cast)
    await operator.post(LEASES, json=lease_of("order-9", {"leaseTransitions": 2**31 - 2}))
    held = await acquire(source, "order-9", "one")
    assert held.value == 2**31 - 1
    await source.release(held)
    with pytest.raises(FencingError, match="epoch"):
        await acquire(source, "order-9", "one")


async def test_what_is_not_allowed_is_said_clearly(cast: Cast) -> None:
    for token, status, said in (
        ("nobody-token", 403, 'User "nobody" cannot get resource "leases".*create and update'),
        ("no-such-token", 401, "Unauthorized"),
    ):
        source = await a_source(cast, token, token=token)
        with pytest.raises(Refused, match=said) as refused:
            await acquire(source, "order-10", "one")
        assert refused.value.status == status
    nowhere = await a_source(cast, "nowhere", namespace="nowhere")
    with pytest.raises(Refused, match='namespaces "nowhere" not found'):
        await acquire(nowhere, "order-10", "one")


async def test_an_acquire_cancelled_on_its_way_is_given_back(cast: Cast) -> None:
    source, operator = await a_source(cast, "one"), await an_operator(cast)
    lane = await cast.lane("one")
    lane.closed_to = "POST"
    lane.gate.clear()
    taking = asyncio.create_task(acquire(source, "order-12", "cancelled"))
    await cast.stage.until_sent("one", "POST")
    taking.cancel()
    await asyncio.sleep(0)
    # More than once, as some frameworks do it.
    taking.cancel()
    await asyncio.sleep(0.02)
    lane.gate.set()
    await cast.stage.until_arrived("one")
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert not (await operator.get(f"{LEASES}/order-12")).json()["spec"].get("holderIdentity")


async def test_a_lock_whose_answer_was_lost_is_found_again(cast: Cast) -> None:
    source, other = await a_source(cast, "one"), await a_source(cast, "other")
    lane = await cast.lane("one")
    first = await acquire(source, "order-13", "one", ttl=60)
    await source.release(first)
    # The PUT is carried out, and nothing after it gets through.
    lane.faults = [Fault("PUT", lose=True, times=1), Fault("GET", lose=False, times=1, after=1)]
    with pytest.raises(Unavailable):
        await acquire(source, "order-13", "one", ttl=60)
    await assert_held_by("one", other, "order-13")
    held = await acquire(source, "order-13", "one", ttl=60)
    assert held.value == first.value + 1
    assert await source.holds(held)
    await source.release(held)


async def test_a_pod_goes_by_its_service_account(tmp_path: Path) -> None:
    """The token is replaced while the source is in use, as the kubelet does it; the account says which server it is."""
    seen: list[tuple[str, str]] = []

    async def server(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((request.path, request.headers.get("Authorization", "")))
        return web.json_response({"kind": "Status", "message": "not today"}, status=403)

    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    runner = web.ServerRunner(web.Server(server))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "namespace").write_text("billing")
    source = KubernetesSource(url=f"https://localhost:{port}", account=tmp_path)
    for token in ("first", "second"):
        (tmp_path / "token").write_text(f"{token}\n")
        with pytest.raises(Refused, match="not today"):
            await acquire(source, "order-15", "one")
    await source.aclose()
    await runner.cleanup()
    path = LEASES.replace("default", "billing") + "/order-15"
    assert list(dict.fromkeys(seen)) == [(path, "Bearer first"), (path, "Bearer second")]


async def test_outside_of_a_pod_it_is_said_what_is_missing(tmp_path: Path) -> None:
    source = KubernetesSource(account=tmp_path)
    with pytest.raises(FencingError, match="give url and token"):
        await acquire(source, "order-16", "one")


def test_names_are_what_kubernetes_takes_and_never_the_same() -> None:
    names = [name_of(resource) for resource in ODD]
    assert len(set(names)) == len(ODD)
    label = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
    for name in names:
        assert re.fullmatch(rf"{label}(\.{label})*", name)
        assert len(name) <= 253
    assert name_of("order-5") == "order-5"
    assert name_of("order/5").startswith("order-5.")
