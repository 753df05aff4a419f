"""Tokens from a single Redis: a counter beside the lock, which the script that takes the lock increments.

The lock is a key that expires by itself. Its value names its token and its hold. Redis promises nothing about the
counter when a replica takes over, or when the server loses unwritten data (docs/sources.md). The fence of the gateway
detects that.
"""

import math
import random
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from gateway.client.cancellation import whole
from gateway.client.errors import NotAcquired, Refused, Unavailable, needs
from gateway.client.source import Attempt, Clock, Held, LockService, now

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

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
    lock: str
    counter: str
    nonce: str


class RedisSource(LockService[_Keys]):
    """Locks in one Redis server (7.0 is tested), or in the primary of several.

    ``url``: ``redis://user:password@host:6379/0``, ``rediss://`` for TLS. ``options``: more arguments of
    ``redis.asyncio.Redis``, such as ``ssl_ca_certs``. ``prefix``: the beginning of keys and channels. The user needs
    ``~prefix* &prefix*`` and these commands: GET, SET, DEL, INCR, PEXPIRE, PTTL, EVAL, EVALSHA, SCRIPT LOAD, PUBLISH
    and SUBSCRIBE. ``timeout``: seconds for one request.

    Waiters are notified of a release, and retry when the lock would expire. The first one gets it.
    """

    service = "Redis"
    handles = _Keys

    def __init__(
        self, url: str, *, prefix: str = "fencing", timeout: float = 5.0, clock: Clock = now, **options: Any
    ) -> None:
        with needs("redis"):
            import redis.asyncio  # noqa: F401, PLC0415 - a missing extra is told when the source is made
        super().__init__(clock)
        self._url = url
        self._at = urlsplit(url).netloc.rpartition("@")[2]
        self._prefix = prefix
        self._timeout = timeout
        self._options = options
        self._redis: Redis | None = None

    async def _take(self, attempt: Attempt[_Keys]) -> Held | NotAcquired:
        name = self._name(attempt.resource)
        attempt.handle = keys = _Keys(f"{name}:lock", f"{name}:token", uuid.uuid4().hex)
        asked = self._clock()
        # Whole: the script of a request that was half sent might run after the one that gives the lock back.
        # Sent again after a lost answer, it gives the same token.
        arguments = (keys.nonce, attempt.holder, _milliseconds(attempt.ttl))
        answer = await whole(self._run(_ACQUIRE, [keys.lock, keys.counter], arguments))
        if answer[0] is not None:
            return attempt.held(int(answer[0]), asked + attempt.ttl)
        other = str(answer[1]).split(" ", 2)[-1]
        # A lock without an end was not made here: an operator's, perhaps.
        expires_in = answer[2] / 1000 if answer[2] >= 0 else None
        return NotAcquired(attempt.resource, holder=other, expires_in=expires_in)

    async def _pause(self, attempt: Attempt[_Keys], refused: NotAcquired, left: float) -> None:
        """Wait until the lock is released, or would expire. Subscribe at first, and let the caller look again."""
        if attempt.waiting is None:
            channel = f"{self._name(attempt.resource)}:lock"
            attempt.waiting = await attempt.opened.enter_async_context(self._told_of_releases(channel))
            return
        # Waiters that all wait for the same end do not come at the same moment.
        longest = (60.0 if refused.expires_in is None else refused.expires_in) + random.uniform(0.001, 0.02)  # noqa: S311
        with _translated(self._at):
            await attempt.waiting.get_message(ignore_subscribe_messages=True, timeout=max(min(longest, left), 0.001))

    async def _keep(self, held: Held, handle: _Keys, ttl: float) -> float | None:  # noqa: ARG002 - that of all sources
        return ttl if await self._run(_RENEW, [handle.lock], [handle.nonce, _milliseconds(ttl)]) else None

    async def _give_back(self, handle: _Keys) -> None:
        await self._run(_RELEASE, [handle.lock], [handle.nonce])

    async def holds(self, held: Held) -> bool:
        keys = self._handle(held)
        with _translated(self._at):
            value = await self._client().get(keys.lock)
        return value is not None and str(value).startswith(f"{held.value} {keys.nonce} ")

    async def aclose(self) -> None:
        if self._redis is not None:
            closing, self._redis = self._redis, None
            await closing.aclose()

    def _name(self, resource: str) -> str:
        # The braces keep both keys in one slot where the server is one of a cluster.
        return f"{self._prefix}:{{{quote(resource, safe='')}}}"

    @asynccontextmanager
    async def _told_of_releases(self, channel: str) -> "AsyncIterator[PubSub]":
        """Return a subscription that the server has confirmed: it misses no later release."""
        async with self._client().pubsub() as subscription:
            with _translated(self._at):
                await subscription.subscribe(channel)
                if await subscription.get_message(timeout=self._timeout) is None:
                    raise Unavailable("Redis did not confirm a subscription in time.")
            yield subscription

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
