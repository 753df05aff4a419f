"""Tokens from etcd: the CreateRevision of the holder's own key in the queue of the lock.

The queue is that of etcd's own ``concurrency.Mutex``. Each holder puts a key, bound to its own lease, below the lock's
prefix. The key with the lowest CreateRevision has the lock, and each waiter watches the key before its own. A later key
has a higher CreateRevision, so each owner's is higher than all earlier owners'. The revision in the header of an answer
is another, higher number; the two must never be mixed (docs/sources.md).
"""

import asyncio
import base64
import math
import secrets
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from gateway.client.errors import NotAcquired, Refused, Unavailable
from gateway.client.http import Answer, Asking, read
from gateway.client.source import Attempt, Clock, Held, LockService, now

RIGHTS: Final = "a user of etcd with its password, and a role that reads and writes below the prefix"
_NO_SUCH_PAGE: Final = "404 page not found"


class EtcdApi:
    """The JSON gateway of a cluster, in the name of a user if it has users."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float,
    ) -> None:
        self._ask = Asking("etcd", *endpoints, timeout=timeout, tls=lambda: tls, headers=self._authorization)
        self._credentials = None if username is None else {"name": username, "password": password or ""}
        self._token: str | None = None

    async def call(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """``POST /v3/{method}``; the answer. Raises ``Unavailable``, or ``Refused`` with the status of HTTP."""
        return _document(await self._authenticated(method, body))

    async def until_deleted(self, key: bytes, after: int) -> None:
        """Return when ``key`` is deleted after this revision, or when so old a revision is not kept any more.

        Raises ``Unavailable`` where the watch ends by itself.
        """
        create = {"key": encoded(key), "start_revision": str(after + 1), "filters": ["NOPUT"]}
        response = (await self._authenticated("watch", {"create_request": create}, stream=True)).body
        try:
            with self._ask.reaching():
                async for line in response.aiter_lines():
                    message = Answer(response.status_code, response.headers, read(line))
                    result = _document(message).get("result")
                    if result is None:
                        raise Unavailable(f"etcd ended the watch: {message.said}.")
                    if result.get("events") or "compact_revision" in result:
                        return
                    if result.get("canceled"):
                        why = result.get("cancel_reason", "no reason")
                        raise Refused(f"etcd refused the watch: {why}.", status=403)
        finally:
            await response.aclose()
        raise Unavailable("etcd ended the watch.")

    async def aclose(self) -> None:
        self._token = None
        await self._ask.aclose()

    async def _authenticated(self, method: str, body: Mapping[str, Any], *, stream: bool = False) -> Answer:
        if self._token is None and self._credentials:
            await self._authenticate()
        answer = await self._ask("POST", f"/v3/{method}", content=body, stream=stream)
        if answer.status == 401 and self._credentials:
            # Simple tokens live in the memory of one member, and for five minutes: they are lost without any fault.
            await self._authenticate()
            answer = await self._ask("POST", f"/v3/{method}", content=body, stream=stream)
        return self._checked(answer)

    async def _authenticate(self) -> None:
        self._token = None
        answer = self._checked(await self._ask("POST", "/v3/auth/authenticate", content=self._credentials))
        self._token = str(_document(answer).get("token"))

    def _authorization(self) -> Mapping[str, str]:
        return {} if self._token is None else {"Authorization": self._token}

    def _checked(self, answer: Answer) -> Answer:
        if answer.said == _NO_SUCH_PAGE:
            raise Refused(
                "This etcd does not serve its API as JSON.",
                status=404,
                advice="Set enable-grpc-gateway: true; etcd 3.4 has it off if it is started with a configuration file.",
            )
        if answer.status != 200:
            raise self._ask.refused(answer, RIGHTS)
        return answer


def encoded(data: bytes) -> str:
    """Bytes as etcd's JSON has them."""
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes:
    return base64.b64decode(text)


def _document(answer: Answer) -> dict[str, Any]:
    if not isinstance(answer.body, dict):
        raise Unavailable(f"The server there is not etcd: {str(answer.body)[:80]!r}.")
    return answer.body


@dataclass(slots=True)
class _Place:
    """A key in the queue. ``ttl`` is what the server made of the one it was asked for, in seconds.

    ``revision``: the CreateRevision of the key. ``before``: the key before it, and the revision of that look.
    """

    lease: int
    key: bytes
    ttl: int = 0
    revision: int = 0
    before: tuple[bytes, int] | None = None


class EtcdSource(LockService[_Place]):
    """Locks in etcd 3.4 or newer, through its JSON gateway.

    ``endpoints``: one or several of ``http://host:2379``. ``prefix``: the beginning of all keys. ``username`` and
    ``password``: of a user of etcd, whose role reads and writes below the prefix. ``tls``: for ``https`` endpoints,
    with a client certificate if the server wants one. etcd's gateway does not make a user of the certificate's common
    name. ``timeout``: seconds for one request.

    etcd counts leases in whole seconds, and has a shortest one (2 s by default): a ``ttl`` is rounded up.
    """

    service = "etcd"
    handles = _Place
    queues = True

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        prefix: str = "fencing",
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 5.0,
        clock: Clock = now,
    ) -> None:
        super().__init__(clock)
        given = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        self._api = EtcdApi(given, username=username, password=password, tls=tls, timeout=timeout)
        self._prefix = prefix

    async def _take(self, attempt: Attempt[_Place]) -> Held | NotAcquired:
        """Join the queue at first, later wait for the key before ours; then look whether ours is the first."""
        queue, asked = self._queue(attempt.resource), self._clock()
        place = attempt.handle
        if place is None:
            at_once = attempt.give_up <= asked
            if at_once and (first := await self._first(queue)) is not None:
                return NotAcquired(attempt.resource, holder=first)
            # The lease is ours by a number that we choose: also one whose grant we never hear of can be revoked.
            lease = secrets.randbits(62) + 1
            attempt.handle = place = _Place(lease, queue + b"%x" % lease)
            ttl = str(max(1, math.ceil(attempt.ttl)))
            place.ttl = int((await self._api.call("lease/grant", {"ID": str(lease), "TTL": ttl}))["TTL"])
            if at_once:
                return await self._alone(attempt, place, queue, asked)
            # The CreateRevision of our key is the revision of the transaction that puts it.
            place.revision = _revision(await self._api.call("kv/txn", {"success": [_put(place, attempt.holder)]}))
        elif place.before is not None:
            timeout = min(place.ttl / 3, attempt.give_up - self._clock())
            with suppress(TimeoutError):
                async with asyncio.timeout(max(timeout, 0)):
                    await self._api.until_deleted(*place.before)
            asked = self._clock()
            if not await self._kept_alive(place):
                raise _ended()
        place.before = await self._predecessor(place, queue)
        if place.before is None:
            return attempt.held(place.revision, asked + place.ttl)
        over = self._clock() >= attempt.give_up
        return NotAcquired(attempt.resource, holder=await self._first(queue) if over else None)

    async def _keep(self, held: Held, handle: _Place, ttl: float) -> float | None:  # noqa: ARG002 - etcd keeps its own
        # A lease may outlive its key, which an operator may have deleted to break the lock.
        return handle.ttl if await self._kept_alive(handle) and await self.holds(held) else None

    async def _give_back(self, handle: _Place) -> None:
        try:
            await self._api.call("lease/revoke", {"ID": str(handle.lease)})
        except Refused as error:
            if error.status != 404:
                raise

    async def holds(self, held: Held) -> bool:
        answer = await self._api.call("kv/txn", {"compare": [_created(self._handle(held).key, held.value)]})
        return bool(answer.get("succeeded"))

    async def aclose(self) -> None:
        await self._api.aclose()

    def _queue(self, resource: str) -> bytes:
        """Return the beginning of this lock's keys. Its name has no slash, so no queue is inside another one."""
        return f"{self._prefix}/{quote(resource, safe='')}/".encode()

    async def _first(self, queue: bytes) -> str | None:
        answer = await self._api.call("kv/range", _whole(queue) | _BY_AGE | {"limit": "1"})
        return _holder(answer)

    async def _alone(self, attempt: Attempt[_Place], place: _Place, queue: bytes, asked: float) -> Held | NotAcquired:
        """Become the first of an empty queue in one step: a queue joined and left again would be in others' way."""
        empty = _whole(queue) | {"target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        looked = {"request_range": _whole(queue) | _BY_AGE | {"limit": "1"}}
        answer = await self._api.call(
            "kv/txn", {"compare": [empty], "success": [_put(place, attempt.holder)], "failure": [looked]}
        )
        if not answer.get("succeeded"):
            return NotAcquired(attempt.resource, holder=_holder(answer["responses"][0]["response_range"]))
        return attempt.held(_revision(answer), asked + place.ttl)

    async def _predecessor(self, place: _Place, queue: bytes) -> tuple[bytes, int] | None:
        """Return the key before ours, and the revision of the look. None where ours is the first.

        The same step looks at our own key: without its lease, it is not first in the queue but out of it.
        """
        earlier = _whole(queue) | {
            "max_create_revision": str(place.revision - 1),
            "sort_order": "DESCEND",
            "sort_target": "CREATE",
            "limit": "1",
            "keys_only": True,
        }
        answer = await self._api.call(
            "kv/txn", {"compare": [_created(place.key, place.revision)], "success": [{"request_range": earlier}]}
        )
        if not answer.get("succeeded"):
            raise _ended()
        keys = answer["responses"][0]["response_range"].get("kvs", [])
        return (decoded(keys[0]["key"]), _revision(answer)) if keys else None

    async def _kept_alive(self, place: _Place) -> bool:
        answer = await self._api.call("lease/keepalive", {"ID": str(place.lease)})
        if "result" not in answer:
            raise Unavailable(f"etcd did not keep the lease alive: {answer}.")
        return int(answer["result"].get("TTL", 0)) > 0


_BY_AGE: Final = {"sort_order": "ASCEND", "sort_target": "CREATE"}


def _whole(queue: bytes) -> dict[str, Any]:
    """All keys that begin with ``queue``, which ends with a slash."""
    return {"key": encoded(queue), "range_end": encoded(queue[:-1] + b"0")}


def _created(key: bytes, revision: int) -> dict[str, Any]:
    return {"key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def _put(place: _Place, holder: str) -> dict[str, Any]:
    return {"request_put": {"key": encoded(place.key), "value": encoded(holder.encode()), "lease": str(place.lease)}}


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _holder(answer: Mapping[str, Any]) -> str | None:
    keys = answer.get("kvs", [])
    return decoded(keys[0].get("value", "")).decode(errors="replace") if keys else None


def _ended() -> Unavailable:
    return Unavailable("The lease of the place in the queue ended while it was waiting.")
