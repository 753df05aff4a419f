"""The gateway's own lease service as a source: complete tokens, a place in its queue, and nothing left behind.

Renewals of one client that are due at about the same time share one request, and none of them waits for it. Each lock
renews itself (keeper.py). The first one that is due also asks for the ones that are due soon. If that request fails or
is slow, each of them sends its own request, as a lone lock does.
"""

import asyncio
import contextlib
import logging
import math
import os
import re
from bisect import bisect_left, insort
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from secrets import token_hex
from typing import Any, Final

import httpx

from gateway.batching import shielded
from gateway.client.api import Api, Retries, meant, seconds
from gateway.client.cancellation import finish
from gateway.client.errors import LockLost, NotAcquired, Refused, Unavailable
from gateway.client.source import Clock, Held, Mode, now
from gateway.errors import LeaseLost, TokenMalformed
from gateway.fencing.token import Token

STRETCH = 20.0
"""Seconds that one request waits at most; proxies give up on one after 60 or less. The place in the queue stays."""

GIVING_BACK = 5.0
ARRIVING = 1.0
"""Seconds after which a request is taken to have reached the gateway, if it has not been answered by then."""

SHORTEST_TIMEOUT = 2.0
LONGEST_TIMEOUT = 60.0
"""Seconds for which an acquire is tried again while the gateway cannot be reached: it is being restarted, perhaps."""


@dataclass(slots=True)
class _Wanted:
    """One acquire. ``request`` is what the gateway knows it by, however often it is sent."""

    resource: str
    holder: str
    ttl: float
    mode: Mode
    request: str
    is_unclear: bool = False
    """Whether an attempt may have been granted, or has a place in the queue. Its later refusal does not change that."""


class Leases:
    """``Source`` over ``/v1/leases``."""

    def __init__(self, api: Api, clock: Clock = now) -> None:
        self._api = api
        self._clock = clock
        self._batches = RenewalBatches(api, clock)
        self._stretch = STRETCH

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        wanted = _Wanted(resource, holder, ttl, mode, token_hex(16))
        try:
            return await self._acquired(wanted, math.inf if wait is None else wait)
        except BaseException as error:
            if wanted.is_unclear:
                # A gateway that is away is away for both, and one error tells it.
                level = logging.DEBUG if isinstance(error, Unavailable) else logging.WARNING
                await finish(self._withdraw(wanted), GIVING_BACK, f"Withdrawing from {resource}", level)
            raise

    async def _acquired(self, wanted: _Wanted, wait: float) -> Held:
        loop = asyncio.get_running_loop()
        until, timeout = loop.time() + wait, min(max(wait, SHORTEST_TIMEOUT), LONGEST_TIMEOUT)
        retries = Retries(timeout)
        while True:
            stretch = min(self._stretch, max(until - loop.time(), 0.0))
            try:
                return await self._once(wanted, stretch)
            except NotAcquired as refused:
                if until <= loop.time() or _is_own(refused):
                    raise
                retries = Retries(timeout)
            except Unavailable as error:
                await retries.pause(error)
            except Refused as refused:
                # The operator lets requests wait for less, and says so.
                if "body.wait" not in refused.message or stretch < 1:
                    raise
                self._stretch = min(self._stretch, stretch / 2)
            except LockLost as lost:
                # Granted, but the answer took longer than the grant lasts. Asked again, it is a new one.
                if retries.are_over:
                    raise Unavailable(
                        "Answers take longer than the lease lasts.", advice="Ask for a longer ttl."
                    ) from lost

    async def _once(self, wanted: _Wanted, stretch: float) -> Held:
        asked, content = self._clock(), {"holder": wanted.holder, "ttl": wanted.ttl, "wait": stretch}
        content |= {"mode": wanted.mode, "request": wanted.request}
        was_unclear, wanted.is_unclear = wanted.is_unclear, True
        try:
            view = await self._posted(f"/v1/leases/{wanted.resource}", content, stretch)
        except Refused as refused:
            # Below 400, an answer that cannot be read has granted it, perhaps.
            wanted.is_unclear = was_unclear or refused.status < httpx.codes.BAD_REQUEST
            raise
        except NotAcquired as refused:
            wanted.is_unclear = was_unclear or stretch > 0
            if _is_own(refused):
                raise
            # Refused before the time was over: it does not queue us, and must not be hammered either.
            await asyncio.sleep(max(0.0, min(1.0, stretch, asked + stretch - self._clock())))
            raise NotAcquired(
                wanted.resource, holder=refused.holder, expires_in=refused.expires_in, code=refused.code,
                facts=refused.facts,
            ) from None  # fmt: skip
        held = _held(meant(view, wanted.resource), asked, wanted)
        # It may have been granted long after it was asked for, and counts from then on: a short request tells better.
        return await self._renew_alone(held, wanted.ttl) if self._clock() - asked > wanted.ttl / 5 else held

    async def _posted(self, path: str, content: dict[str, Any], stretch: float) -> Any:
        """Return the answer. If cancelled, let the request arrive before its withdrawal."""
        loop = asyncio.get_running_loop()
        sent, request = loop.time(), asyncio.ensure_future(self._api.ask("POST", path, content, longer=stretch))

        async def arrived() -> None:
            await asyncio.wait((request,), timeout=max(sent + ARRIVING - loop.time(), 0.0))
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

        try:
            return await shielded(request)
        except asyncio.CancelledError:
            await finish(arrived(), GIVING_BACK, f"Ending {path}")
            raise

    async def pause(self, seconds: float) -> None:
        """Wait until a renewal is due, or until it can go together with another one that is."""
        await self._batches.pause(seconds)

    async def renew(self, held: Held, ttl: float) -> Held:
        return await self._batches.renew(held, ttl) or await self._renew_alone(held, ttl)

    async def _renew_alone(self, held: Held, ttl: float) -> Held:
        asked = self._clock()
        # It is kept for as long as the lock is, which is nothing that happens in the trace in which it was acquired.
        view = _about(held, await self._api.ask("PUT", _path(held), {"ttl": ttl}, traced=False))
        token = _token(view)
        return replace(held, epoch=token.epoch, value=token.value, valid_until=asked + _lasting(view, ttl))

    async def release(self, held: Held) -> None:
        with contextlib.suppress(LockLost):
            await self._api.ask("DELETE", _path(held))

    async def holds(self, held: Held) -> bool:
        view = meant(await self._api.ask("GET", f"/v1/leases/{held.resource}"), held.resource)
        token = str(Token(held.epoch or 0, held.value))
        return any((one["holder"], one["token"]) == (held.holder, token) for one in view["holders"])

    async def aclose(self) -> None:
        """Nothing of its own: the session is the client's."""

    async def _withdraw(self, wanted: _Wanted) -> None:
        content = {"holder": wanted.holder, "request": wanted.request}
        await self._api.ask("POST", f"/v1/withdrawals/{wanted.resource}", content)


def _held(view: Any, asked: float, wanted: _Wanted) -> Held:
    token, lease, sequencer = _token(view), view.get("lease"), view.get("sequencer")
    if not isinstance(lease, str) or not _LEASE.fullmatch(lease):
        raise _unreadable(wanted.resource)
    if sequencer is not None and not (isinstance(sequencer, str) and _SEQUENCER.fullmatch(sequencer)):
        raise _unreadable(wanted.resource)
    return Held(
        resource=wanted.resource,
        holder=wanted.holder,
        value=token.value,
        epoch=token.epoch,
        valid_until=asked + _lasting(view, wanted.ttl),
        handle=lease,
        sequencer=sequencer,
        mode=wanted.mode,
    )


# Both become a part of later requests, a path and a header.
_LEASE = re.compile(r"[0-9A-Za-z-]{1,64}")
_SEQUENCER = re.compile(r"[!-~]{1,1024}")


def _token(view: dict[str, Any]) -> Token:
    """Return the token of an answer. A number is no token, because many readers of JSON round the large ones."""
    text = view.get("token")
    try:
        return Token.parse(text if isinstance(text, str) else "")
    except TokenMalformed:
        raise _unreadable(str(view.get("resource"))) from None


def _lasting(view: dict[str, Any], ttl: float) -> float:
    """Return for how many seconds an answer lets the lease last: never for longer than it was asked for."""
    lasting = seconds(view.get("expires_in"))
    if lasting is None:
        raise _unreadable(str(view.get("resource")))
    return min(lasting, ttl)


def _about(held: Held, view: Any) -> dict[str, Any]:
    if isinstance(view, dict) and (view.get("resource"), view.get("lease")) == (held.resource, held.handle):
        return view
    raise _unreadable(held.resource)


def _unreadable(resource: str) -> Refused:
    return Refused(
        f"The answer about the lease of {resource} cannot be read.",
        status=200,
        advice="A proxy on the way may change answers, or the server is not a fencing gateway.",
    )


def _is_own(refused: NotAcquired) -> bool:
    """Whether what is in the way is this very holder's, which shares the lock: to wait would be to wait for ever."""
    return refused.facts.get("own") is True


def _path(held: Held) -> str:
    return f"/v1/leases/{held.resource}/{held.handle}"


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
        answer = await shielded(batch.answer)
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
    """Return until when a hold is valid; None where it is lost. Raise ``Refused`` where the answer does not say it."""
    view = _about(held, renewed)
    return None if view.get("expires_in", 0) is None else asked + _lasting(view, ttl)


def _end(pause: "asyncio.Future[None]") -> None:
    if not pause.done():
        pause.set_result(None)
