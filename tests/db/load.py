"""Writers of rows, objects and locks that go on through a failover, and the answers that they got.

Each account and each object has one writer, which counts up. An account keeps each number, so a gap is a lost write.
Each writer also writes as a zombie, with a token that one of its barriers has overtaken.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import httpx
from botocore.exceptions import ClientError

from gateway.errors import DatabaseClosed, JournalUnusable, OutcomeUnknown, Unavailable
from tests.objects.clients import connect, in_thread
from tests.running import API_KEY

NOTHING_WRITTEN = {Unavailable.code, Unavailable.s3_code, DatabaseClosed.code, JournalUnusable.code}
UNKNOWN = {OutcomeUnknown.code, OutcomeUnknown.s3_code}

ACCOUNTS, KEYS, LOCKS = 6, 2, 2

Said: TypeAlias = tuple[int, str, bool]
"""Status, code, and whether the answer says when to retry."""


@dataclass
class Series:
    """The numbers of one writer, by the answer to each."""

    acknowledged: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    unwritten: list[int] = field(default_factory=list)

    def told(self, number: int, said: Said) -> None:
        status, code, _ = said
        answered = self.acknowledged if status < 300 else self.unknown if code in UNKNOWN else self.unwritten
        answered.append(number)

    def lost(self, found: Collection[int]) -> list[int]:
        """Return the acknowledged numbers that are not there."""
        return sorted(set(self.acknowledged) - set(found))

    def denied(self, found: Collection[int]) -> list[int]:
        """Return the numbers that are there, although their writer was told that nothing was written."""
        return sorted(set(found) - set(self.acknowledged) - set(self.unknown))


@dataclass
class Plane:
    """One kind of writers: what they were told, and how long none of them succeeded."""

    told: Counter[str] = field(default_factory=Counter)
    pauses: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _last: float = field(default_factory=time.monotonic)

    def hear(self, said: Said, about: str) -> None:
        status, code, retry = said
        if status < 300:
            now = time.monotonic()
            self.pauses.append(now - self._last)
            self._last = now
            return
        self.told[code] += 1
        if status != 503 or not (code in UNKNOWN or (code in NOTHING_WRITTEN and retry)):
            self.wrong.append(f"{about}: {said}")


class Load:
    """The writers. Zombies that were let through are in ``stale``."""

    def __init__(self, origins: list[str], keys: int = KEYS) -> None:
        """``origins``: gateways. ``keys``: how many objects are written."""
        self.accounts = {n: Series() for n in range(1, ACCOUNTS + 1)}
        self.objects = {n: Series() for n in range(1, keys + 1)}
        self.tables, self.store, self.locks = Plane(), Plane(), Plane()
        self.planes = {"tables": self.tables, "locks": self.locks} | ({"objects": self.store} if keys else {})
        self.stale: list[str] = []
        self.grants: dict[str, dict[str, set[str]]] = {f"lock/{n}": {} for n in range(1, LOCKS + 1)}
        self._origins = origins
        self._ends = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write until the block ends, and then until each writer has succeeded once more."""
        async with asyncio.TaskGroup() as group, asyncio.timeout(90):
            for n, series in self.accounts.items():
                group.create_task(self._write_rows(n, series))
            for n, series in self.objects.items():
                group.create_task(self._write_objects(n, series))
            for lock in self.grants:
                for holder in ("ann", "bob"):
                    group.create_task(self._take_turns(lock, holder))
            yield
            self._ends = True

    async def started(self) -> None:
        """Return once each plane has had its first successes, and measure from here on."""
        while not all(len(plane.pauses) > 10 for plane in self.planes.values()):
            await asyncio.sleep(0.1)
        self.restart_clocks()

    def restart_clocks(self) -> None:
        """Measure pauses from here on."""
        for plane in self.planes.values():
            plane.pauses.clear()
            plane.told.clear()

    def report(self, event: str) -> str:
        parts = [
            f"{name}: pause {max(plane.pauses, default=0.0):.1f} s, {dict(plane.told) or 'no errors'}"
            for name, plane in self.planes.items()
        ]
        return f"{event}: " + "; ".join(parts)

    async def _write_rows(self, account: int, series: Series) -> None:
        client = self._client(account)
        resource = f"account/{account}"

        async def write(number: int, token: int) -> Said:
            row = {"account": account, "number": number}
            return await _said(client.post("/v1/tables/entries", json=row, headers={"fencing-token": str(token)}))

        async def raise_fence(token: int) -> Said:
            return await _said(client.post(f"/v1/fences/{resource}/barrier", json={"token": str(token)}))

        async with client:
            await self._write(write, raise_fence, series, self.tables, resource)

    async def _write_objects(self, key: int, series: Series) -> None:
        client = self._client(key)
        resource = f"s3/bucket/key-{key}"

        async def write(number: int, token: int) -> Said:
            store = connect(self._origins[key % len(self._origins)], str(token))
            try:
                await in_thread(store.put_object, Bucket="bucket", Key=f"key-{key}", Body=str(number).encode())
            except ClientError as error:
                failed: Any = error.response
                answer = failed["ResponseMetadata"]
                return answer["HTTPStatusCode"], failed["Error"]["Code"], "retry-after" in answer["HTTPHeaders"]
            finally:
                store.close()
            return 200, "", False

        async def raise_fence(token: int) -> Said:
            return await _said(client.post(f"/v1/fences/{resource}/barrier", json={"token": str(token)}))

        async with client:
            await self._write(write, raise_fence, series, self.store, resource)

    async def _write(
        self,
        write: Callable[[int, int], Awaitable[Said]],
        raise_fence: Callable[[int], Awaitable[Said]],
        series: Series,
        plane: Plane,
        about: str,
    ) -> None:
        """Count up under a token, and go on to the next token by a barrier. Each barrier overtakes a zombie."""
        number, token, overtaken = 0, 1, 0
        ended = False
        while not ended:
            number += 1
            ends = self._ends
            said = await write(number, token)
            series.told(number, said)
            plane.hear(said, about)
            if said[0] >= 300:
                await asyncio.sleep(0.05)
                continue
            ended = ends
            if number % 5 == 0:
                said = await raise_fence(token + 1)
                plane.hear(said, f"barrier of {about}")
                if said[0] < 300:
                    overtaken, token = token, token + 1
                elif said[1] in UNKNOWN | NOTHING_WRITTEN:
                    token += 1  # it may have been raised
            if number % 3 == 0 and overtaken:
                zombie = await write(-number, overtaken)
                if zombie[0] < 300:
                    self.stale.append(f"{about}: {overtaken} below {token}")
                elif zombie[0] != 412:
                    plane.hear(zombie, f"zombie of {about}")

    async def _take_turns(self, lock: str, holder: str) -> None:
        """Acquire, renew and release a lock. A holder whose release was lost gets its lease again."""
        client = self._client(len(holder))
        async with client:
            ended = False
            while not ended:
                ends = self._ends
                try:
                    answer = await client.post(f"/v1/leases/{lock}", json={"holder": holder, "ttl": 2, "wait": 2})
                except httpx.TransportError as error:
                    self.locks.wrong.append(f"{lock}: {error!r}")
                    continue
                if answer.status_code == 409:  # the other one has it
                    ended = ends
                    continue
                self.locks.hear(_read(answer), f"acquire {lock}")
                if answer.status_code >= 300:
                    await asyncio.sleep(0.05)
                    continue
                lease = answer.json()
                self.grants[lock].setdefault(lease["token"], set()).add(holder)
                path = f"/v1/leases/{lock}/{lease['lease']}"
                for said in (
                    await _said(client.put(path, json={})),
                    await _said(client.delete(path)),
                ):
                    # The lease may have ended during the pause.
                    if said[0] not in (404, 409, 410, 412):
                        self.locks.hear(said, f"lease of {lock}")
                ended = ends
                await asyncio.sleep(0.02)

    def _client(self, number: int) -> httpx.AsyncClient:
        origin = self._origins[number % len(self._origins)]
        return httpx.AsyncClient(base_url=origin, headers={"apikey": API_KEY}, timeout=60)


async def _said(sending: Awaitable[httpx.Response]) -> Said:
    return _read(await sending)


def _read(answer: httpx.Response) -> Said:
    if answer.status_code < 300:
        return answer.status_code, "", False
    assert "json" in answer.headers["content-type"], answer.text
    code = answer.json().get("code", "")
    # Some reasons need an operator, so the answer has no time for a retry. The test's report names them.
    shown = f"{code}: {answer.text}" if code == JournalUnusable.code and "retry-after" not in answer.headers else code
    return answer.status_code, shown, "retry-after" in answer.headers
