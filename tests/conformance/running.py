"""The gateway in a thread of its own, in front of a store, for clients that block."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from gateway import serving
from gateway.app import build
from gateway.config import Config
from gateway.objects.s3 import xml
from gateway.objects.store import probe
from gateway.objects.store.bucket_profile import Profile
from gateway.objects.store.operations import Upstream
from tests.running import GRANTS, Events
from tests.stores.store import REGION, Store, User

PUBLIC = {"callers": ["anonymous"], "actions": ["read"], "buckets": ["*/public/**"]}
CALLER = User("caller", "AKIACALLERCALLER0000", "caller-secret-key-of-forty-characters000")


def configuration(
    dsn: str,
    store: Store,
    callers: tuple[User, ...] = (CALLER,),
    grants: Sequence[Mapping[str, Any]] = (*GRANTS, PUBLIC),
    mode: str = "enforce",
) -> Config:
    """A gateway in front of ``store``, with its rights. Callers may do all, and keys below ``public/`` are public."""
    keys = {"access_key_id": store.owner.access_key_id, "secret_access_key": store.owner.secret_access_key}
    return Config.model_validate(
        {
            "postgres": {"dsn": dsn},
            "s3": {"endpoint": store.endpoint, "region": REGION, "distrust": store.distrust, **keys},
            "fencing": {"mode": mode},
            "callers": [
                {
                    "name": caller.name,
                    "access_key_id": caller.access_key_id,
                    "secret_access_key": caller.secret_access_key,
                    "groups": ["admins"],
                }
                for caller in callers
            ],
            "grants": grants,
        }
    )


def _probing_once() -> AbstractContextManager[Any]:
    """Buckets without versions are all the same to one store, and there are hundreds: probe the first one only."""
    known: list[Profile] = []

    async def profile_of(upstream: Upstream, bucket: str) -> Profile:
        async with await upstream.send("GET", f"/{bucket}", "versioning=") as response:
            versions = xml.read_field(await response.read(), "VersioningConfiguration", "Status")
        if response.status != 200 or versions:
            return await examine(upstream, bucket)
        if not known:
            known.append(await examine(upstream, bucket))
        if not known[0].quoted_conditions:
            upstream.drop_quotes(bucket)
        return known[0]

    examine = probe.probe
    return patch.object(probe, "probe", profile_of)


@contextmanager
def gateway(
    dsn: str,
    store: Store,
    callers: tuple[User, ...] = (CALLER,),
    grants: Sequence[Mapping[str, Any]] = (*GRANTS, PUBLIC),
    mode: str = "enforce",
) -> Iterator[str]:
    """Serve until the end; its origin. Only one at a time."""
    with _probing_once():
        served = build(configuration(dsn, store, callers, grants, mode), Events())
        listener = serving.bind("127.0.0.1", 0)
        with serving.in_background(served, listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
