"""Tokens from Consul: a session holds a key, and the token is the Raft index at which the session acquired it.

The token is not ``LockIndex``, which Consul's documentation uses as the sequencer. ``LockIndex`` starts again at 1 when
the key is deleted, for example by a session whose behavior is ``delete``. A plain write of the key sets it to 0.
The Raft index is ``ModifyIndex`` in the answer of the transaction that takes the key. It belongs to the whole data
center and grows through both. It goes back only with the servers' data. See docs/sources.md.
"""

import asyncio
import base64
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from gateway.client.cancellation import GRACE, Remembered, whole
from gateway.client.errors import FencingError, LockLost, NotAcquired, Refused, Unavailable
from gateway.client.json_service import Answer, Asking
from gateway.client.source import Clock, Held, Mode, now

LONGEST_TTL: Final = 86400.0
LONGEST_LOOK: Final = 60.0
RIGHTS: Final = "key:write for the key and session:write for the agent's node"


@dataclass(frozen=True, slots=True)
class ConsulHandle:
    """The key, the session that has it, and the TTL in seconds that the session keeps for life."""

    key: str
    session: str
    ttl: float


@dataclass(slots=True)
class _Attempt:
    """One acquire under way. ``session`` is to be given back, ``""`` for none; alive until ``alive_until``.

    ``unsure``: it may have the key. ``index``: Consul's index of the last look. ``delayed``: the lock-delay keeps the
    key from all sessions.
    """

    key: str
    holder: str
    ttl: float
    give_up: float
    session: str = ""
    alive_until: float = 0.0
    unsure: bool = False
    index: str = ""
    delayed: bool = False


class ConsulSource:
    """Locks of one Consul data center, one key each.

    ``url`` is an agent's. ``token`` is the ACL's. ``datacenter``: the data center of the locks; the agent's own if
    None. Programs with agents in two data centers have two locks then. ``lock_delay``: seconds for which a lock stays
    closed after its session ended without a release. ``shortest_ttl``: ``session_ttl_min`` of the servers; a shorter
    ``ttl`` is raised to it. ``tls``: for ``https`` with other authorities than the system's. ``timeout``: seconds for
    one request.
    """

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
        headers = {} if token is None else {"X-Consul-Token": token}
        self._ask = Asking("Consul", url, timeout=timeout, tls=lambda: tls, headers=lambda: headers)
        self._where: Mapping[str, str] = {} if datacenter is None else {"dc": datacenter}
        self._prefix = prefix
        self._lock_delay = lock_delay
        self._shortest_ttl = shortest_ttl
        self._clock = clock
        # Sessions that could not be ended while Consul was unavailable: the next acquire of the holder uses them.
        self._left: Remembered[tuple[str, str], str] = Remembered()

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        """See ``Source.acquire``. Any of the waiters may be next."""
        if mode != "exclusive":
            raise ValueError("Consul has exclusive locks only.")
        give_up = math.inf if wait is None else self._clock() + wait
        ttl = min(max(ttl, self._shortest_ttl), LONGEST_TTL)
        attempt = _Attempt(self._prefix + key_of(resource), holder, ttl, give_up)
        try:
            value = await self._take(resource, attempt)
        except BaseException:
            await whole(self._give_back(attempt))
            raise
        handle = ConsulHandle(attempt.key, attempt.session, ttl)
        return Held(resource, holder, value, attempt.alive_until, handle=handle)

    async def renew(self, held: Held, ttl: float) -> Held:  # noqa: ARG002 - a session keeps its TTL
        """See ``Source.renew``. The TTL stays what it was when the lock was acquired: a session keeps its own."""
        handle = _handle(held)
        alive_until = await self._keep_alive(handle.session, handle.ttl)
        # A session outlives the release or the deletion of its key.
        if alive_until is None or not await self.holds(held):
            raise LockLost(f"The session that had {held.resource} has ended, or has lost the key.")
        return replace(held, valid_until=alive_until)

    async def release(self, held: Held) -> None:
        """See ``Source.release``. The key stays, for its next holder."""
        handle = _handle(held)
        await self._release(handle.key, handle.session)

    async def holds(self, held: Held) -> bool:
        """See ``Source.holds``. The read is ``consistent``: the leader makes sure that it still is one."""
        handle = _handle(held)
        answer = await self._ask("GET", _path(handle.key), params={**self._where, "consistent": ""})
        return self._owner(answer)[0] == handle.session

    async def aclose(self) -> None:
        await self._ask.aclose()

    async def _take(self, resource: str, attempt: _Attempt) -> int:
        """Try for the key until it is ours, or the time is over. The token."""
        attempt.session = self._left.take((attempt.key, attempt.holder)) or ""
        await self._stay_alive(attempt)
        while True:
            if not attempt.session:
                await whole(self._start(attempt))
            value = await self._lock(attempt)
            if value is not None:
                return value
            holder = await (self._sit_out(attempt) if attempt.delayed else self._until_free(attempt))
            if self._clock() >= attempt.give_up:
                raise NotAcquired(resource, holder=holder)
            await self._stay_alive(attempt)

    async def _start(self, attempt: _Attempt) -> None:
        """Make a session, without health checks: a failed one would end it before its TTL does."""
        body = {
            "Name": attempt.holder,
            "TTL": f"{attempt.ttl:.3f}s",
            "LockDelay": f"{self._lock_delay:.3f}s",
            "Behavior": "release",
            "NodeChecks": [],
        }
        started = self._clock()
        try:
            answer = await self._ask("PUT", "/v1/session/create", params=self._where, json=body)
        except Unavailable as error:
            if "Invalid Session TTL" in error.message:
                raise Refused(error.message, status=500, advice="Give shortest_ttl as session_ttl_min.") from error
            raise
        if answer.status != 200:
            raise self._ask.refused(answer, RIGHTS)
        attempt.session, attempt.alive_until = answer.body["ID"], started + attempt.ttl

    async def _lock(self, attempt: _Attempt) -> int | None:
        """Try once. A transaction, because its answer says at which index it has happened."""
        operation = {"Verb": "lock", "Key": attempt.key, "Value": _base64(attempt.holder), "Session": attempt.session}
        attempt.unsure = True
        # Cancelled on its way, it comes to nothing once its session has ended.
        answer = await self._ask("PUT", "/v1/txn", params=self._where, json=[{"KV": operation}])
        if answer.status == 200:
            return int(answer.body["Results"][0]["KV"]["ModifyIndex"])
        if answer.status != 409:
            raise self._ask.refused(answer, RIGHTS)
        said = str(answer.body["Errors"][0]["What"])
        if "ermission denied" in said:
            raise self._ask.refused(replace(answer, status=403, body=said), RIGHTS)
        if "invalid session" in said:
            raise Unavailable("Consul has ended the session before it had the key.")
        attempt.unsure, attempt.delayed = False, "lock delay" in said
        return None

    async def _until_free(self, attempt: _Attempt) -> str | None:
        """Wait until the key is free; return None then, or its holder at the end of the time."""
        while True:
            owner, holder = await self._look(attempt)
            if not owner:
                return None
            if self._clock() >= attempt.give_up:
                return holder
            await self._stay_alive(attempt)

    async def _look(self, attempt: _Attempt) -> tuple[str, str]:
        """Return the holder of the key: at once at first, later after a change of the key or some time."""
        longest = min(attempt.ttl / 3, LONGEST_LOOK, max(0.001, attempt.give_up - self._clock()))
        params, held_back = dict(self._where), 0.0
        if attempt.index:
            params |= {"index": attempt.index, "wait": f"{longest * 1000:.0f}ms"}
            held_back = longest
        answer = await self._ask("GET", _path(attempt.key), params=params, held_back=held_back)
        index = int(answer.headers.get("X-Consul-Index", "0"))
        # "Reset the index if it goes backwards" (Blocking Queries): start with one that is answered at once.
        attempt.index = str(index) if index >= int(attempt.index or 1) else ""
        return self._owner(answer)

    async def _sit_out(self, attempt: _Attempt) -> None:
        """Nothing tells when a lock-delay ends: look again now and then."""
        await asyncio.sleep(min(1.0, max(0.0, attempt.give_up - self._clock())))

    async def _stay_alive(self, attempt: _Attempt) -> None:
        """Keep the session of a waiting attempt; there is none any more where Consul has ended it."""
        if attempt.session:
            alive_until = await self._keep_alive(attempt.session, attempt.ttl)
            if alive_until is None:
                attempt.session = ""
            else:
                attempt.alive_until = alive_until

    async def _keep_alive(self, session: str, ttl: float) -> float | None:
        """Until when the session is alive now. None where it is not."""
        started = self._clock()
        answer = await self._ask("PUT", f"/v1/session/renew/{session}", params=self._where)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self._ask.refused(answer, RIGHTS)
        return started + ttl

    async def _release(self, key: str, session: str) -> None:
        """Release the key first: a session that ends with a key imposes its lock-delay."""
        await self._put(_path(key), release=session)
        await self._put(f"/v1/session/destroy/{session}")

    async def _put(self, path: str, **params: str) -> None:
        answer = await self._ask("PUT", path, params={**self._where, **params})
        if answer.status != 200:
            raise self._ask.refused(answer, RIGHTS)

    async def _give_back(self, attempt: _Attempt) -> None:
        if attempt.session:
            try:
                async with asyncio.timeout(GRACE):
                    if attempt.unsure:
                        await self._put(_path(attempt.key), release=attempt.session)
                    await self._put(f"/v1/session/destroy/{attempt.session}")
            except (FencingError, TimeoutError):
                self._left[attempt.key, attempt.holder] = attempt.session

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


def _handle(held: Held) -> ConsulHandle:
    if not isinstance(held.handle, ConsulHandle):
        raise TypeError("This lock was not acquired from Consul.")
    return held.handle
