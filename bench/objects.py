"""The cost of the object plane: small writes against the store itself, and reads against nginx."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench import nginx
from bench.measure import (
    CONNECTIONS,
    SECONDS,
    Goal,
    Load,
    Measured,
    Row,
    costing,
)
from bench.services import KEYS, Services, run_json, running
from tests.stores import versitygw
from tests.stores.store import Store, User, connect

NAMES = 50
BUCKET = "bench"


def small_writes(store: Store) -> Iterator[Row]:
    """PutObject of 4 KiB, all connections busy; and one after the other, for the latency that is added."""
    with running(store) as services:
        keys = (store.owner.access_key_id, store.owner.secret_access_key)
        _put(services.gateway, KEYS, "1", CONNECTIONS, seconds=2)
        _put(store.endpoint, keys, "-", CONNECTIONS, seconds=2)
        direct = _put(store.endpoint, keys, "-", CONNECTIONS)
        with costing(services.gateway_pid) as cost:
            fenced = _put(services.gateway, KEYS, "1", CONNECTIONS)
        goals = () if store.name == "moto" else (Goal(0.8),)
        yield Row(f"fenced PutObject of 4 KiB, {store.name}", "the store itself", fenced, direct, cost, goals=goals)
        direct = _put(store.endpoint, keys, "-", 1)
        with costing(services.gateway_pid) as cost:
            fenced = _put(services.gateway, KEYS, "1", 1)
        goals = (Goal(1.0, Measured.ADDED),) if store.name == "minio" else ()
        work = f"the same, one at a time, {store.name}"
        yield Row(work, "the store itself", fenced, direct, cost, goals=goals, added=True)


def small_reads(store: Store) -> Iterator[Row]:
    """GetObject of 4 KiB, through the gateway and through nginx."""
    with running(store) as services, nginx.running(store.endpoint) as proxy:
        store.connect().put_object(Bucket=BUCKET, Key="small", Body=bytes(4096))
        through_nginx, through_gateway = (
            presigned(origin, user, "get_object", "small") for origin, user in _ways(proxy, services, store)
        )
        _get(through_nginx, 2)
        _get(through_gateway, 2)
        peer = _get(through_nginx, SECONDS)
        with costing(services.gateway_pid) as cost:
            load = _get(through_gateway, SECONDS)
        yield Row(f"GetObject of 4 KiB, {store.name}", "nginx", load, peer, cost, goals=(Goal(0.8),))


def against_versitygw(store: Store) -> Iterator[Row]:
    """PutObject and GetObject of 4 KiB against another gateway. It checks and signs as ours, and fences nothing."""
    with running(store) as services, versitygw.in_front_of(store) as other:
        keys = (store.owner.access_key_id, store.owner.secret_access_key)
        _put(services.gateway, KEYS, "1", CONNECTIONS, seconds=2)
        _put(other, keys, "-", CONNECTIONS, seconds=2)
        peer = _put(other, keys, "-", CONNECTIONS)
        with costing(services.gateway_pid) as cost:
            load = _put(services.gateway, KEYS, "1", CONNECTIONS)
        yield Row(f"fenced PutObject of 4 KiB, {store.name}", "versitygw in front of it", load, peer, cost)
        store.connect().put_object(Bucket=BUCKET, Key="small", Body=bytes(4096))
        peer = _get(presigned(other, store.owner, "get_object", "small"), SECONDS)
        with costing(services.gateway_pid) as cost:
            load = _get(presigned(services.gateway, User("bench", *KEYS), "get_object", "small"), SECONDS)
        yield Row(f"GetObject of 4 KiB, {store.name}", "versitygw in front of it", load, peer, cost)


def _ways(proxy: str, services: Services, store: Store) -> list[tuple[str, User]]:
    return [(proxy, store.owner), (services.gateway, User("bench", *KEYS))]


def presigned(origin: str, user: User, action: str, key: str) -> str:
    """Return a URL. A URL that writes carries its token in the query, and the signature covers it."""
    client = connect(origin, user)
    if action == "put_object":
        client.meta.events.register(
            "before-sign.s3.PutObject", lambda request, **_: request.params.update({"fencing-token": "1"})
        )
    return client.generate_presigned_url(action, Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=3600)


def _put(endpoint: str, keys: tuple[str, str], token: str, connections: int, seconds: int = SECONDS) -> Load:
    arguments = (endpoint, *keys, connections, seconds, NAMES, token)
    seen = run_json("bench.put_objects", *map(str, arguments))
    return Load(seen["rate"], seen["p50"], seen["p99"], int(seen["errors"]))


def _get(url: str, seconds: int) -> Load:
    script = Path(__file__).with_name("get.lua")
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script), url]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Load.of_wrk(done.stdout)
