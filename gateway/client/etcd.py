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

import httpx

from gateway.client.cancellation import cancellable
from gateway.client.errors import FencingError, NotAcquired, Refused, Unavailable
from gateway.client.source import Attempt, Clock, Held, LockService, now

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
