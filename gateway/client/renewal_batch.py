"""Renewals of one client that are due at about the same time share one request, and none of them waits for it.

Each lock renews itself (renewal.py). The first one that is due also asks for the ones that are due soon. If that
request fails or is slow, each of them sends its own request, as a lone lock does.
"""

import asyncio
import os
from bisect import bisect_left, insort
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from gateway.client.api import Api, seconds
from gateway.client.errors import LockLost
from gateway.client.source import Clock, Held
from gateway.errors import LeaseLost

MOST: Final = 100
"""Leases in one request. A whole one takes the gateway some milliseconds; more of them would save next to nothing."""

SOON: Final = 0.25
"""The part of its pause, the last one, in which a renewal may be taken along by another's request."""

ANSWER_TIMEOUT: Final = 0.1
"""The part of the shortest of its leases within which a request for many has to be answered."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Renewals in one request: until when each hold is valid by its answer, None where it is lost.

    The answer is None as a whole where there is none to be had.
    """

    wanted: list[tuple[Held, float]]
    answer: "asyncio.Future[list[float | None] | None]"


class RenewalBatches:
    """The renewals of one client: its locks are in one event loop, behind one gateway, under one API key."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._process = os.getpid()
        self._numbers = count()
        self._pausing: list[tuple[float, int, asyncio.Future[None]]] = []
        self._open: _Batch | None = None

    async def pause(self, seconds: float) -> None:
        """Sleep until a renewal is due; less where it is due soon, and a request leaves that can take it along."""
        self._start_anew_if_forked()
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        entry = (loop.time() + (1 - SOON) * seconds, next(self._numbers), over)
        insort(self._pausing, entry)
        timer = loop.call_later(seconds, _end, over)
        try:
            await over
        finally:
            timer.cancel()
            place = bisect_left(self._pausing, entry)
            if self._pausing[place : place + 1] == [entry]:
                del self._pausing[place]

    async def renew(self, held: Held, ttl: float) -> Held | None:
        """Return the hold, renewed together with others; None if it has to send its own request.

        Raise ``LockLost``.
        """
        self._start_anew_if_forked()
        if held.valid_until - self._clock() < ttl / 2:
            return None  # something has gone wrong already, and what is left is for its own requests
        batch = self._open = self._open or _Batch([], asyncio.get_running_loop().create_future())
        place = len(batch.wanted)
        batch.wanted.append((held, ttl))
        if place == MOST - 1:
            self._open = None
        if place == 0:
            await self._go(batch)
        # A renewal that is cancelled here, because its lock is released, must not cancel the others.
        answer = await asyncio.shield(batch.answer)
        if answer is None:
            return None
        valid_until = answer[place]
        if valid_until is None:
            raise LockLost(f"The lease of {held.resource} has lapsed, or was broken.", code=LeaseLost.code)
        return replace(held, valid_until=valid_until)

    async def _go(self, batch: _Batch) -> None:
        """Ask for all members of the batch, as its first. After this, none of them waits any longer."""
        try:
            self._call()
            await asyncio.sleep(0)  # the woken renewals join meanwhile
            self._leave(batch)
            if len(batch.wanted) > 1:
                # Each of them still has its own request, which shows what is wrong, if it is.
                with suppress(Exception):
                    batch.answer.set_result(await self._renewed(batch.wanted))
        finally:
            # Also where the first is cancelled.
            self._leave(batch)
            if not batch.answer.done():
                batch.answer.set_result(None)

    async def _renewed(self, wanted: list[tuple[Held, float]]) -> list[float | None]:
        leases = [{"resource": held.resource, "lease": held.handle, "ttl": ttl} for held, ttl in wanted]
        asked = self._clock()
        async with asyncio.timeout(ANSWER_TIMEOUT * min(ttl for _, ttl in wanted)):
            view = await self._api.ask("PUT", "/v1/leases", {"leases": leases}, traced=False)
        return [_until(asked, held, ttl, renewed) for (held, ttl), renewed in zip(wanted, view["leases"], strict=True)]

    def _call(self) -> None:
        """End the pauses of those that are due soon, as many as have room."""
        soon = bisect_left(self._pausing, (asyncio.get_running_loop().time(),))
        called = self._pausing[: min(soon, MOST - 1)]
        del self._pausing[: len(called)]
        for _, _, over in called:
            _end(over)

    def _leave(self, batch: _Batch) -> None:
        if self._open is batch:
            self._open = None

    def _start_anew_if_forked(self) -> None:
        """Start anew in a fork: it copies the parent's locks, and a request that only the parent sends."""
        if self._process != os.getpid():
            self._process, self._pausing, self._open = os.getpid(), [], None


def _until(asked: float, held: Held, ttl: float, renewed: Any) -> float | None:
    """Return until when a hold is valid; None where it is lost. Raise ValueError where the answer does not say it."""
    if (renewed["resource"], renewed["lease"]) != (held.resource, held.handle):
        raise ValueError("The answer is about another lease.")
    if renewed["expires_in"] is None:
        return None
    lasting = seconds(renewed["expires_in"])
    if lasting is None:
        raise ValueError("The answer does not say for how long the lease lasts.")
    return asked + min(lasting, ttl)


def _end(pause: "asyncio.Future[None]") -> None:
    if not pause.done():
        pause.set_result(None)
