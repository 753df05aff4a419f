"""The gateway in a thread of its own, in front of a store, for clients that block."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from gateway.config import Config
from gateway.demo.embedded import EmbeddedPostgres
from gateway.objects.probe import probe
from gateway.objects.probe.bucket_profile import Profile
from gateway.objects.s3 import xml
from gateway.objects.store.operations import Upstream
from tests.postgres import fresh_database
from tests.running import GRANTS, running
from tests.stores.store import REGION, Store, User

PUBLIC = {"callers": ["anonymous"], "actions": ["read"], "buckets": ["*/public/**"]}
CALLER = User("caller", "AKIACALLERCALLER0000", "caller-secret-key-of-forty-characters000")


def configuration(
    dsn: str,
    store: Store,
    callers: tuple[User, ...] = (CALLER,),
    grants: Sequence[Mapping[str, Any]] = (*GRANTS, PUBLIC),
) -> Config:
    """A gateway in front of ``store``, with its rights. Callers may do all, and keys below ``public/`` are public."""
    keys = {"access_key_id": store.owner.access_key_id, "secret_access_key": store.owner.secret_access_key}
    return Config.model_validate(
        {
            "postgres": {"dsn": dsn},
            "s3": {"endpoint": store.endpoint, "region": REGION, "timeout": 30, **keys},
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
    postgres: EmbeddedPostgres,
    store: Store,
    callers: tuple[User, ...] = (CALLER,),
    grants: Sequence[Mapping[str, Any]] = (*GRANTS, PUBLIC),
) -> Iterator[str]:
    """Serve until the end; its origin. Only one at a time."""
    started: Future[str] = Future()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            try:
                dsn = await stack.enter_async_context(fresh_database(postgres))
                origin = await stack.enter_async_context(running(configuration(dsn, store, callers, grants)))
            except BaseException as error:
                started.set_exception(error)
                raise
            started.set_result(origin)
            await over.wait()

    thread = threading.Thread(target=_run, args=(loop, serve), daemon=True)
    with _probing_once():
        thread.start()
        try:
            yield started.result(60)
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join(30)
            assert not thread.is_alive(), "the gateway does not stop"


def _run(loop: asyncio.AbstractEventLoop, serve: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(serve())
