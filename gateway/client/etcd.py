"""Tokens from etcd: the CreateRevision of the holder's own key in the queue of the lock.

The queue is that of etcd's own ``concurrency.Mutex``. Each holder puts a key, bound to its own lease, below the lock's
prefix. The key with the lowest CreateRevision has the lock, and each waiter watches the key before its own. A later key
has a higher CreateRevision, so each owner's is higher than all earlier owners'. The revision in the header of an answer
is another, higher number; the two must never be mixed (docs/sources.md).
"""

import asyncio
import base64
import json
import math
import secrets
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import anyio
import httpx

from gateway.client.cancellation import cancellable
from gateway.client.errors import FencingError, LockLost, NotAcquired, Refused, Unavailable
from gateway.client.source import Clock, Held, Mode, now

_NO_SUCH_PAGE: Final = "404 page not found"
_BUSY: Final = frozenset({408, 429})


class EtcdApi:
    """A cluster, asked through the first of its members that takes a connection."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float,
    ) -> None:
        self._endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._credentials = None if username is None else {"name": username, "password": password or ""}
        self._tls = tls
        self._timeout = timeout
        self._http: httpx.AsyncClient | None = None
        self._token: str | None = None

    async def call(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """``POST /v3/{method}``; the answer. Raises ``Unavailable``, or ``Refused`` with the status of HTTP."""
        response = await self._authenticated(method, body, stream=False)
        return _read(response.text)

    async def until_deleted(self, key: bytes, after: int) -> None:
        """Return when ``key`` is deleted after this revision, or when so old a revision is not kept any more.

        Raises ``Unavailable`` where the watch ends by itself.
        """
        create = {"key": encoded(key), "start_revision": str(after + 1), "filters": ["NOPUT"]}
        response = await self._authenticated("watch", {"create_request": create}, stream=True)
        try:
            async for line in response.aiter_lines():
                message = _read(line)
                if "result" not in message:
                    raise Unavailable(f"etcd ended the watch: {_message(message)}.")
                result = message["result"]
                if result.get("events") or "compact_revision" in result:
                    return
                if result.get("canceled"):
                    raise Refused(f"etcd refused the watch: {result.get('cancel_reason', 'no reason')}.", status=403)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        finally:
            await response.aclose()
        raise Unavailable("etcd ended the watch.")

    async def aclose(self) -> None:
        if self._http is not None:
            http, self._http, self._token = self._http, None, None
            await http.aclose()

    async def _authenticated(self, method: str, body: Mapping[str, Any], *, stream: bool) -> httpx.Response:
        known = self._token
        if known is None and self._credentials:
            known = await self._authenticate()
        response = await self._sent(method, body, known, stream=stream)
        if response.status_code == 401 and self._credentials:
            # Simple tokens live in the memory of one member, and for five minutes: they are lost without any fault.
            await response.aclose()
            response = await self._sent(method, body, await self._authenticate(), stream=stream)
        if response.is_success:
            return response
        raise await _refusal(response)

    async def _authenticate(self) -> str:
        assert self._credentials is not None
        response = await self._sent("auth/authenticate", self._credentials, None, stream=False)
        if not response.is_success:
            raise await _refusal(response, "Name a user of etcd and its password.")
        self._token = str(_read(response.text).get("token"))
        return self._token

    async def _sent(self, method: str, body: Mapping[str, Any], token: str | None, *, stream: bool) -> httpx.Response:
        """Return the answer of the first endpoint that takes a connection. A request is never sent to two of them."""
        if self._http is None:
            unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._http = httpx.AsyncClient(verify=self._tls or True, timeout=self._timeout, limits=unlimited)
        # Watches are silent for as long as nothing happens.
        timeout = httpx.Timeout(self._timeout, read=None if stream else self._timeout)
        headers = {} if token is None else {"Authorization": token}
        failed: httpx.TransportError | None = None
        for endpoint in tuple(self._endpoints):
            request = self._http.build_request(
                "POST", f"{endpoint}/v3/{method}", json=dict(body), headers=headers, timeout=timeout
            )
            try:
                return await cancellable(partial(self._http.send, request, stream=stream))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failed = error
                # The next request begins with another one.
                self._endpoints.append(self._endpoints.pop(0))
            except httpx.TransportError as error:
                raise self._unreachable(error) from error
        assert failed is not None
        raise self._unreachable(failed) from failed

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        at = ", ".join(self._endpoints)
        return Unavailable(f"etcd at {at} cannot be reached: {error or type(error).__name__}.")


def encoded(data: bytes) -> str:
    """Bytes as etcd's JSON has them."""
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes:
    return base64.b64decode(text)


def _read(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise Unavailable(f"The server there is not etcd: {text[:80]!r}.") from error
    if not isinstance(answer, dict):
        raise Unavailable(f"The server there is not etcd: {text[:80]!r}.")
    return answer


async def _refusal(response: httpx.Response, advice: str | None = None) -> FencingError:
    text = (await response.aread()).decode(errors="replace").strip()
    await response.aclose()
    if text == _NO_SUCH_PAGE:
        return Refused(
            "This etcd does not serve its API as JSON.",
            status=404,
            advice="Set enable-grpc-gateway: true; etcd 3.4 has it off where it is started with a configuration file.",
        )
    try:
        said = _message(json.loads(text))
    except ValueError:
        said = text[:200]
    if response.status_code >= 500 or response.status_code in _BUSY:
        return Unavailable(f"etcd cannot work just now: {said}.")
    return Refused(f"etcd refused the request: {said}.", status=response.status_code, advice=advice)


def _message(answer: Mapping[str, Any]) -> str:
    error = answer.get("error")
    return str(answer.get("message") or (error.get("message") if isinstance(error, dict) else error) or "no reason")


# Seconds that giving back may take after a cancelled or failed acquire. The lease ends by itself otherwise.
_GRACE: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Place:
    """A key in the queue. ``ttl`` is what the server made of the one it was asked for, in seconds."""

    lease: int
    key: bytes
    ttl: int


class EtcdSource:
    """Locks in etcd 3.4 or newer, through its JSON gateway.

    ``endpoints``: one or several of ``http://host:2379``. ``prefix``: the beginning of all keys. ``username`` and
    ``password``: of a user of etcd, whose role reads and writes below the prefix. ``tls``: for ``https`` endpoints,
    with a client certificate if the server wants one. etcd's gateway does not make a user of the certificate's common
    name. ``timeout``: seconds for one request.

    etcd counts leases in whole seconds, and has a shortest one (2 s by default): a ``ttl`` is rounded up.
    """

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
        given = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        self._api = EtcdApi(given, username=username, password=password, tls=tls, timeout=timeout)
        self._prefix = prefix
        self._clock = clock

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        """Get the lock. Each call is a hold of its own, also for the same ``holder``."""
        if mode != "exclusive":
            raise ValueError("etcd has exclusive locks only.")
        before = self._clock()
        give_up = None if wait is None else before + wait
        queue = self._queue(resource)
        if wait == 0 and (first := await self._first(queue)) is not None:
            raise NotAcquired(resource, holder=first)
        # The lease is ours by a number that we choose: also one whose grant we never hear of can be revoked.
        lease = secrets.randbits(62) + 1
        try:
            granted = await self._api.call("lease/grant", {"ID": str(lease), "TTL": str(max(1, math.ceil(ttl)))})
            place = _Place(lease, queue + b"%x" % lease, int(granted["TTL"]))
            if wait == 0:
                revision = await self._alone(place, queue, resource, holder)
            else:
                revision = await self._enqueued(place, holder)
                before = await self._turn(place, queue, revision, resource, before, give_up)
        except BaseException:
            with anyio.move_on_after(_GRACE, shield=True), suppress(FencingError):
                await self._revoke(lease)
            raise
        return Held(resource, holder, revision, before + place.ttl, handle=place)

    async def renew(self, held: Held, ttl: float) -> Held:  # noqa: ARG002 - the signature is that of all sources
        """Keep the lease alive for the time it was granted for; etcd does not change that afterwards."""
        place = _place(held)
        before = self._clock()
        # A lease may outlive its key, which an operator may have deleted to break the lock.
        if not await self._kept_alive(place) or not await self.holds(held):
            raise LockLost(f"etcd does not have the lock {held.resource} for this holder any more.")
        return Held(held.resource, held.holder, held.value, before + place.ttl, handle=place)

    async def release(self, held: Held) -> None:
        await self._revoke(_place(held).lease)

    async def holds(self, held: Held) -> bool:
        answer = await self._api.call("kv/txn", {"compare": [_created(_place(held).key, held.value)]})
        return bool(answer.get("succeeded"))

    async def aclose(self) -> None:
        await self._api.aclose()

    def _queue(self, resource: str) -> bytes:
        """Return the beginning of this lock's keys. Its name has no slash, so no queue is inside another one."""
        return f"{self._prefix}/{quote(resource, safe='')}/".encode()

    async def _first(self, queue: bytes) -> str | None:
        """Return the holder that is first in the queue."""
        answer = await self._api.call("kv/range", _whole(queue) | _BY_AGE | {"limit": "1"})
        return _holder(answer)

    async def _alone(self, place: _Place, queue: bytes, resource: str, holder: str) -> int:
        """Become the first of an empty queue in one step: a queue joined and left again would be in others' way."""
        empty = _whole(queue) | {"target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        looked = {"request_range": _whole(queue) | _BY_AGE | {"limit": "1"}}
        answer = await self._api.call(
            "kv/txn", {"compare": [empty], "success": [_put(place, holder)], "failure": [looked]}
        )
        if not answer.get("succeeded"):
            raise NotAcquired(resource, holder=_holder(answer["responses"][0]["response_range"]))
        return _revision(answer)

    async def _enqueued(self, place: _Place, holder: str) -> int:
        """Return the CreateRevision of our key: the revision of the transaction that put it."""
        return _revision(await self._api.call("kv/txn", {"success": [_put(place, holder)]}))

    async def _turn(
        self, place: _Place, queue: bytes, revision: int, resource: str, before: float, give_up: float | None
    ) -> float:
        """Wait until our key is the first one; since when the lease is valid, by the clock."""
        while True:
            predecessor, seen = await self._predecessor(place, queue, revision)
            if predecessor is None:
                return before
            if give_up is not None and self._clock() >= give_up:
                raise NotAcquired(resource, holder=await self._first(queue))
            timeout = place.ttl / 3 if give_up is None else min(place.ttl / 3, give_up - self._clock())
            with suppress(TimeoutError):
                async with asyncio.timeout(max(timeout, 0)):
                    await self._api.until_deleted(predecessor, seen)
            before = self._clock()
            if not await self._kept_alive(place):
                raise Unavailable(f"The lease of the place in the queue of {resource} ended while it was waiting.")

    async def _predecessor(self, place: _Place, queue: bytes, revision: int) -> tuple[bytes | None, int]:
        """Return the key before ours, and the revision of the look.

        The same step looks at our own key: without its lease, it is not first in the queue but out of it.
        """
        earlier = _whole(queue) | {
            "max_create_revision": str(revision - 1),
            "sort_order": "DESCEND",
            "sort_target": "CREATE",
            "limit": "1",
            "keys_only": True,
        }
        answer = await self._api.call(
            "kv/txn", {"compare": [_created(place.key, revision)], "success": [{"request_range": earlier}]}
        )
        if not answer.get("succeeded"):
            raise Unavailable("The lease of the place in the queue ended while it was waiting.")
        keys = answer["responses"][0]["response_range"].get("kvs", [])
        return (decoded(keys[0]["key"]) if keys else None), _revision(answer)

    async def _kept_alive(self, place: _Place) -> bool:
        answer = await self._api.call("lease/keepalive", {"ID": str(place.lease)})
        if "result" not in answer:
            raise Unavailable(f"etcd did not keep the lease alive: {answer}.")
        return int(answer["result"].get("TTL", 0)) > 0

    async def _revoke(self, lease: int) -> None:
        try:
            await self._api.call("lease/revoke", {"ID": str(lease)})
        except Refused as error:
            if error.status != 404:
                raise


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


def _place(held: Held) -> _Place:
    if not isinstance(held.handle, _Place):
        raise TypeError(f"The hold of {held.resource} is not one of etcd.")
    return held.handle
