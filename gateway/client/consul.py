"""Tokens from Consul: a session holds a key, and the token is the Raft index at which the session acquired it.

The token is not ``LockIndex``, which Consul's documentation uses as the sequencer. ``LockIndex`` starts again at 1 when
the key is deleted, for example by a session whose behavior is ``delete``. A plain write of the key sets it to 0.
The Raft index is ``ModifyIndex`` in the answer of the transaction that takes the key. It belongs to the whole data
center and grows through both. It goes back only with the servers' data. See docs/sources.md.
"""

import asyncio
import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from gateway.client.cancellation import whole
from gateway.client.errors import NotAcquired, Refused, Unavailable
from gateway.client.http import Answer, Asking
from gateway.client.source import Attempt, Clock, Held, LockService, now

LONGEST_TTL: Final = 86400.0
LONGEST_LOOK: Final = 60.0
RIGHTS: Final = "key:write for the key and session:write for the agent's node"


@dataclass(slots=True)
class ConsulHandle:
    """The key, the session that has it, and the TTL in seconds that the session keeps for life.

    ``session``: ``""`` for none; alive until ``alive_until``. ``unsure``: whether it may have the key.
    """

    key: str
    ttl: float = 0.0
    session: str = ""
    alive_until: float = 0.0
    unsure: bool = False


@dataclass(slots=True)
class _Waiting:
    """``index``: Consul's index of the last look, which saw the key ``owned`` or not.

    ``delayed``: the lock-delay keeps the key from all sessions.
    """

    index: str = ""
    owned: bool = False
    delayed: bool = False


class ConsulSource(LockService[ConsulHandle]):
    """Locks of one Consul data center, one key each.

    ``url`` is an agent's. ``token`` is the ACL's. ``datacenter``: the data center of the locks; the agent's own if
    None. Programs with agents in two data centers have two locks then. ``lock_delay``: seconds for which a lock stays
    closed after its session ended without a release. ``shortest_ttl``: ``session_ttl_min`` of the servers; a shorter
    ``ttl`` is raised to it. ``tls``: for ``https`` with other authorities than the system's. ``timeout``: seconds for
    one request. Any of the waiters may be next. A session keeps its TTL for life.
    """

    service = "Consul"
    handles = ConsulHandle
    queues = True
    reuses = True

    def __init__(
        self,
        url: str = "http://127.0.0.1:8500",
        *,
        token: str | None = None,
        datacenter: str | None = None,
        prefix: str = "fencing/",
        lock_delay: float = 0.0,
        shortest_ttl: float = 10.0,
        tls: ssl.SSLContext | None = None,
        timeout: float = 5.0,
        clock: Clock = now,
    ) -> None:
        super().__init__(clock)
        headers = {} if token is None else {"X-Consul-Token": token}
        self._ask = Asking("Consul", url, timeout=timeout, tls=lambda: tls, headers=lambda: headers)
        self._where: Mapping[str, str] = {} if datacenter is None else {"dc": datacenter}
        self._prefix = prefix
        self._lock_delay = lock_delay
        self._shortest_ttl = shortest_ttl

    async def _take(self, attempt: Attempt[ConsulHandle]) -> Held | NotAcquired:
        handle = attempt.handle = attempt.handle or ConsulHandle(self._prefix + key_of(attempt.resource))
        waiting = attempt.waiting = attempt.waiting or _Waiting()
        if handle.session and not await self._keep_alive(handle):
            handle.session = ""
        if waiting.owned:
            return await self._look(attempt, handle, waiting)
        if not handle.session:
            handle.ttl = min(max(attempt.ttl, self._shortest_ttl), LONGEST_TTL)
            await whole(self._start(handle, attempt.holder))
        value = await self._lock(handle, attempt.holder, waiting)
        if value is not None:
            return attempt.held(value, handle.alive_until)
        return NotAcquired(attempt.resource) if waiting.delayed else await self._look(attempt, handle, waiting)

    async def _pause(self, attempt: Attempt[ConsulHandle], refused: NotAcquired, left: float) -> None:  # noqa: ARG002
        """Nothing tells when a lock-delay ends: look again now and then. Other looks wait by themselves."""
        if attempt.waiting.delayed:
            await asyncio.sleep(min(1.0, left))

    async def _keep(self, held: Held, handle: ConsulHandle, ttl: float) -> float | None:  # noqa: ARG002
        # A session outlives the release or the deletion of its key.
        return handle.ttl if await self._keep_alive(handle) and await self.holds(held) else None

    async def _give_back(self, handle: ConsulHandle) -> None:
        """Release the key first: a session that ends with a key imposes its lock-delay. The key stays."""
        if handle.unsure:
            await self._put(_path(handle.key), release=handle.session)
        if handle.session:
            await self._put(f"/v1/session/destroy/{handle.session}")

    async def holds(self, held: Held) -> bool:
        """See ``Source.holds``. The read is ``consistent``: the leader makes sure that it still is one."""
        handle = self._handle(held)
        answer = await self._ask("GET", _path(handle.key), params={**self._where, "consistent": ""})
        return self._owner(answer)[0] == handle.session

    async def aclose(self) -> None:
        await self._ask.aclose()

    async def _start(self, handle: ConsulHandle, holder: str) -> None:
        """Make a session, without health checks: a failed one would end it before its TTL does."""
        body = {
            "Name": holder,
            "TTL": f"{handle.ttl:.3f}s",
            "LockDelay": f"{self._lock_delay:.3f}s",
            "Behavior": "release",
            "NodeChecks": [],
        }
        started = self._clock()
        try:
            answer = await self._ask("PUT", "/v1/session/create", params=self._where, content=body)
        except Unavailable as error:
            if "Invalid Session TTL" in error.message:
                raise Refused(error.message, status=500, advice="Give shortest_ttl as session_ttl_min.") from error
            raise
        if answer.status != 200:
            raise self._ask.refused(answer, RIGHTS)
        handle.session, handle.alive_until = answer.body["ID"], started + handle.ttl

    async def _lock(self, handle: ConsulHandle, holder: str, waiting: _Waiting) -> int | None:
        """Try once. A transaction, because its answer says at which index it has happened."""
        operation = {"Verb": "lock", "Key": handle.key, "Value": _base64(holder), "Session": handle.session}
        handle.unsure = True
        # Cancelled on its way, it comes to nothing once its session has ended.
        answer = await self._ask("PUT", "/v1/txn", params=self._where, content=[{"KV": operation}])
        if answer.status == 200:
            return int(answer.body["Results"][0]["KV"]["ModifyIndex"])
        if answer.status != 409:
            raise self._ask.refused(answer, RIGHTS)
        said = str(answer.body["Errors"][0]["What"])
        if "ermission denied" in said:
            raise self._ask.refused(replace(answer, status=403, body=said), RIGHTS)
        if "invalid session" in said:
            raise Unavailable("Consul has ended the session before it had the key.")
        handle.unsure, waiting.delayed = False, "lock delay" in said
        return None

    async def _look(self, attempt: Attempt[ConsulHandle], handle: ConsulHandle, waiting: _Waiting) -> NotAcquired:
        """Look for the holder of the key: at once at first, later after a change of the key or some time."""
        longest = min(handle.ttl / 3, LONGEST_LOOK, max(0.001, attempt.give_up - self._clock()))
        params, held_back = dict(self._where), 0.0
        if waiting.index:
            params |= {"index": waiting.index, "wait": f"{longest * 1000:.0f}ms"}
            held_back = longest
        answer = await self._ask("GET", _path(handle.key), params=params, held_back=held_back)
        index = int(answer.headers.get("X-Consul-Index", "0"))
        # "Reset the index if it goes backwards" (Blocking Queries): start with one that is answered at once.
        waiting.index = str(index) if index >= int(waiting.index or 1) else ""
        owner, holder = self._owner(answer)
        waiting.owned = bool(owner)
        return NotAcquired(attempt.resource, holder=holder if owner else None)

    async def _keep_alive(self, handle: ConsulHandle) -> bool:
        """Renew the session; return whether it is alive."""
        started = self._clock()
        answer = await self._ask("PUT", f"/v1/session/renew/{handle.session}", params=self._where)
        if answer.status == 404:
            return False
        if answer.status != 200:
            raise self._ask.refused(answer, RIGHTS)
        handle.alive_until = started + handle.ttl
        return True

    async def _put(self, path: str, **params: str) -> None:
        answer = await self._ask("PUT", path, params={**self._where, **params})
        if answer.status != 200:
            raise self._ask.refused(answer, RIGHTS)

    def _owner(self, answer: Answer) -> tuple[str, str]:
        """Return the session that has the key, and the holder's name in it; ``""`` for none."""
        if answer.status == 404:
            return "", ""
        if answer.status != 200:
            raise self._ask.refused(answer, RIGHTS)
        entry = answer.body[0]
        return entry.get("Session", ""), base64.b64decode(entry["Value"] or "").decode(errors="replace")


def key_of(resource: str) -> str:
    """Return the key of a lock, below the prefix.

    Consul refuses keys that contain ``..`` or a space once percent-decoded, and redirects from empty segments and dots.
    So ``%`` becomes ``=``, and ``=`` goes before segments that are empty or dots: resource names have no ``=``.
    """
    segments = resource.replace("%", "=").split("/")
    return "/".join(f"={segment}" if segment in ("", ".", "..") else segment for segment in segments)


def _path(key: str) -> str:
    return f"/v1/kv/{quote(key)}"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
