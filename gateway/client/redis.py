"""Tokens from a single Redis: a counter beside the lock, which the script that takes the lock increments.

The lock is a key that expires by itself. Its value names its token and its hold. Redis promises nothing about the
counter when a replica takes over, or when the server loses unwritten data (docs/sources.md). The fence of the gateway
detects that.
"""

import math
import random
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import anyio

from gateway.client.cancellation import whole
from gateway.client.errors import FencingError, LockLost, NotAcquired, Refused, Unavailable, needs
from gateway.client.source import Clock, Held, Mode, now

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

# Seconds that giving back may take after a cancelled or failed acquire. The key expires by itself otherwise.
_GRACE: Final = 2.0

# The value of the lock is "token nonce holder". GET after INCR: numbers become doubles in Lua, exact up to 2^53 only.
# INCR before SET: a counter at its end, or one that is no number, fails the script before there is a lock.
_ACQUIRE: Final = """
local value = redis.call('GET', KEYS[1])
if value then
    if string.match(value, '^%d+ (%S+)') == ARGV[1] then
        return {string.match(value, '^%d+')}
    end
    return {false, value, redis.call('PTTL', KEYS[1])}
end
redis.call('INCR', KEYS[2])
local token = redis.call('GET', KEYS[2])
redis.call('SET', KEYS[1], token .. ' ' .. ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
return {token}
"""
_RENEW: Final = """
local value = redis.call('GET', KEYS[1])
if value and string.match(value, '^%d+ (%S+)') == ARGV[1] then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""
_RELEASE: Final = """
local value = redis.call('GET', KEYS[1])
if value and string.match(value, '^%d+ (%S+)') == ARGV[1] then
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', KEYS[1], '')
end
return 0
"""


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of one lock, and the nonce of one hold."""

    lock: str
    counter: str
    nonce: str


class RedisSource:
    """Locks in one Redis server (7.0 is tested), or in the primary of several.

    ``url``: ``redis://user:password@host:6379/0``, ``rediss://`` for TLS. ``options``: more arguments of
    ``redis.asyncio.Redis``, such as ``ssl_ca_certs``. ``prefix``: the beginning of keys and channels. The user needs
    ``~prefix* &prefix*`` and these commands: GET, SET, DEL, INCR, PEXPIRE, PTTL, EVAL, EVALSHA, SCRIPT LOAD, PUBLISH
    and SUBSCRIBE. ``timeout``: seconds for one request.

    Waiters are notified of a release, and retry when the lock would expire. The first one gets it.
    """

    def __init__(
        self, url: str, *, prefix: str = "fencing", timeout: float = 5.0, clock: Clock = now, **options: Any
    ) -> None:
        with needs("redis"):
            import redis.asyncio  # noqa: F401, PLC0415 - a missing extra is told when the source is made
        self._url = url
        self._at = urlsplit(url).netloc.rpartition("@")[2]
        self._prefix = prefix
        self._timeout = timeout
        self._clock = clock
        self._options = options
        self._redis: Redis | None = None

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        """Get the lock. Each call is a hold of its own, also for the same ``holder``."""
        if mode != "exclusive":
            raise ValueError("A Redis lock is exclusive.")
        give_up = None if wait is None else self._clock() + wait
        # The braces keep both keys in one slot where the server is one of a cluster.
        name = f"{self._prefix}:{{{quote(resource, safe='')}}}"
        keys = _Keys(f"{name}:lock", f"{name}:token", uuid.uuid4().hex)
        try:
            # Whole: the script of a request that was half sent might run after the one that gives the lock back.
            held = await whole(self._attempt(resource, keys, holder, ttl))
            if isinstance(held, Held):
                return held
            if wait == 0:
                raise held
            async with self._told_of_releases(keys.lock) as channel:
                while True:
                    held = await whole(self._attempt(resource, keys, holder, ttl))
                    if isinstance(held, Held):
                        return held
                    if give_up is not None and self._clock() >= give_up:
                        raise held
                    await self._pause(channel, held.expires_in, give_up)
        except NotAcquired:
            raise
        except BaseException:
            with anyio.move_on_after(_GRACE, shield=True), suppress(FencingError):
                await self._given_back(keys)
            raise

    async def renew(self, held: Held, ttl: float) -> Held:
        keys = _keys(held)
        before = self._clock()
        if not await self._run(_RENEW, [keys.lock], [keys.nonce, _milliseconds(ttl)]):
            raise LockLost(f"Redis does not have the lock {held.resource} for this holder any more.")
        return Held(held.resource, held.holder, held.value, before + ttl, handle=keys)

    async def release(self, held: Held) -> None:
        await self._given_back(_keys(held))

    async def holds(self, held: Held) -> bool:
        keys = _keys(held)
        with _translated(self._at):
            value = await self._client().get(keys.lock)
        return value is not None and str(value).startswith(f"{held.value} {keys.nonce} ")

    async def aclose(self) -> None:
        if self._redis is not None:
            closing, self._redis = self._redis, None
            await closing.aclose()

    async def _attempt(self, resource: str, keys: _Keys, holder: str, ttl: float) -> Held | NotAcquired:
        """One run of the script. Sent again after a lost answer, it gives the same token."""
        before = self._clock()
        answer = await self._run(_ACQUIRE, [keys.lock, keys.counter], [keys.nonce, holder, _milliseconds(ttl)])
        if answer[0] is not None:
            return Held(resource, holder, int(answer[0]), before + ttl, handle=keys)
        other = str(answer[1]).split(" ", 2)[-1]
        # A lock without an end was not made here: an operator's, perhaps.
        return NotAcquired(resource, holder=other, expires_in=answer[2] / 1000 if answer[2] >= 0 else None)

    async def _pause(self, channel: "PubSub", expires_in: float | None, give_up: float | None) -> None:
        """Until the lock is released, or would expire, or there is no time left."""
        # Waiters that all wait for the same end do not come at the same moment.
        longest = (60.0 if expires_in is None else expires_in) + random.uniform(0.001, 0.02)  # noqa: S311
        left = longest if give_up is None else min(longest, give_up - self._clock())
        with _translated(self._at):
            await channel.get_message(ignore_subscribe_messages=True, timeout=max(left, 0.001))

    @asynccontextmanager
    async def _told_of_releases(self, channel: str) -> "AsyncIterator[PubSub]":
        """Return a subscription that the server has confirmed: it misses no later release."""
        async with self._client().pubsub() as subscription:
            with _translated(self._at):
                await subscription.subscribe(channel)
                if await subscription.get_message(timeout=self._timeout) is None:
                    raise Unavailable("Redis did not confirm a subscription in time.")
            yield subscription

    async def _given_back(self, keys: _Keys) -> None:
        await self._run(_RELEASE, [keys.lock], [keys.nonce])

    async def _run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        client = self._client()
        with _translated(self._at):
            return await client.register_script(script)(keys=list(keys), args=list(arguments))

    def _client(self) -> "Redis":
        if self._redis is None:
            from redis.asyncio import Redis  # noqa: PLC0415 - see the constructor
            from redis.asyncio.retry import Retry  # noqa: PLC0415
            from redis.backoff import ExponentialBackoff  # noqa: PLC0415

            given: dict[str, Any] = {
                "decode_responses": True,
                "socket_timeout": self._timeout,
                "socket_connect_timeout": self._timeout,
                # Each script may be sent twice: what it has done once it finds done.
                "retry": Retry(ExponentialBackoff(cap=0.2, base=0.02), 2),
            }
            self._redis = Redis.from_url(self._url, **given | self._options)
        return self._redis


def _milliseconds(ttl: float) -> int:
    return max(1, math.ceil(ttl * 1000))


@contextmanager
def _translated(at: str) -> Iterator[None]:
    """Translate the library's errors to ours. Its authentication errors are connection errors, so they come first."""
    from redis import exceptions  # noqa: PLC0415 - see the constructor

    try:
        yield
    except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
        raise Refused(f"Redis does not let this user in: {error}", status=401) from error
    except exceptions.NoPermissionError as error:
        raise Refused(f"Redis does not allow this user that: {error}", status=403) from error
    except (
        exceptions.ConnectionError,
        exceptions.TimeoutError,
        exceptions.ReadOnlyError,
        exceptions.TryAgainError,
        exceptions.OutOfMemoryError,
    ) as error:
        raise Unavailable(f"Redis at {at} cannot be reached or cannot work just now: {error}") from error
    except exceptions.RedisError as error:
        raise Refused(f"Redis refused the request: {error}", status=400) from error


def _keys(held: Held) -> _Keys:
    if not isinstance(held.handle, _Keys):
        raise TypeError(f"The hold of {held.resource} is not one of Redis.")
    return held.handle
