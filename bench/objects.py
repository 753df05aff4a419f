"""The cost of the object plane: small writes against the store itself, and reads against nginx."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import nginx, s3proxy
from bench.measure import CONNECTIONS, TURN, Goal, Load, Measured, Row, in_turns
from bench.services import KEYS, Services, run_json, running
from bench.table_loads import Measure, finished, watched
from tests.stores import versitygw
from tests.stores.store import Store, User, connect

NAMES = 50
BUCKET = "bench"


def small_writes(store: Store) -> Iterator[Row]:
    """PutObject of 4 KiB, all connections busy; and one after the other, for the latency that is added."""
    with running(store) as services:
        keys = (store.owner.access_key_id, store.owner.secret_access_key)
        goals = () if store.name == "moto" else (Goal(0.8),)
        own, peer = _put(services.gateway, KEYS, "1"), _put(store.endpoint, keys, "-")
        yield _compared(services, f"fenced PutObject of 4 KiB, {store.name}", "the store itself", own, peer, *goals)
        goals = (Goal(2.0, Measured.ADDED),) if store.name == "minio" else ()
        own, peer = _put(services.gateway, KEYS, "1", 1), _put(store.endpoint, keys, "-", 1)
        work = f"fenced PutObject of 4 KiB, {store.name}, one at a time"
        yield replace(_compared(services, work, "the store itself", own, peer, *goals), added=True)


def small_reads(store: Store) -> Iterator[Row]:
    """GetObject of 4 KiB, through the gateway and through nginx."""
    with running(store) as services, nginx.running(store.endpoint) as proxy:
        store.connect().put_object(Bucket=BUCKET, Key="small", Body=bytes(4096))
        own, peer = _get(services.gateway, User("bench", *KEYS)), _get(proxy, store.owner)
        yield _compared(services, f"GetObject of 4 KiB, {store.name}", "nginx", own, peer, Goal(0.8))


def against_proxies(store: Store) -> Iterator[Row]:
    """PutObject and GetObject of 4 KiB against other gateways. They check and sign as ours, and fence nothing."""
    keys = (store.owner.access_key_id, store.owner.secret_access_key)
    for proxy in (versitygw, s3proxy):
        with running(store) as services, proxy.in_front_of(store) as other:
            against = f"{proxy.__name__.rpartition('.')[2]} in front of it"
            own, peer = _put(services.gateway, KEYS, "1"), _put(other, keys, "-")
            yield _compared(services, f"fenced PutObject of 4 KiB, {store.name}", against, own, peer, Goal(1.5))
            store.connect().put_object(Bucket=BUCKET, Key="small", Body=bytes(4096))
            own, peer = _get(services.gateway, User("bench", *KEYS)), _get(other, store.owner)
            yield _compared(services, f"GetObject of 4 KiB, {store.name}", against, own, peer, Goal(1.3))


def _compared(services: Services, work: str, against: str, own: Measure, peer: Measure, *goals: Goal) -> Row:
    load, (other,), cost = in_turns(services.gateway_pid, watched(services.gateway_pid, services, own), peer)
    return Row(work, against, load, other, cost, goals=goals)


def presigned(origin: str, user: User, action: str, key: str) -> str:
    """Return a URL. A URL that writes carries its token in the query, and the signature covers it."""
    client = connect(origin, user)
    if action == "put_object":
        client.meta.events.register(
            "before-sign.s3.PutObject", lambda request, **_: request.params.update({"fencing-token": "1"})
        )
    return client.generate_presigned_url(action, Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=3600)


def _put(endpoint: str, keys: tuple[str, str], token: str, connections: int = CONNECTIONS) -> Measure:
    arguments = (endpoint, *keys, connections, TURN, NAMES, token)
    return lambda: Load.of(run_json("bench.put_objects", *map(str, arguments)))


def _get(origin: str, user: User) -> Measure:
    script = Path(__file__).with_name("get.lua")
    url = presigned(origin, user, "get_object", "small")
    return partial(finished, ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{TURN}s", "-s", str(script), url])
