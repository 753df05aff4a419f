"""Run the object protocol with Postgres and S3: carry out each effect that it yields, and send it the answer."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import TypeVar, assert_never
from uuid import uuid4

from gateway.db import intents
from gateway.db.database import Database
from gateway.driver import drive
from gateway.errors import OutcomeUnknown, SqlError, Unavailable
from gateway.fencing.decision import Enforcement
from gateway.fencing.intent import LATE_AFTER, SIGNATURE_LIFETIME, Announcement, Begun, Duplicates, Intent, MutationKind
from gateway.fencing.record import SWEEPER
from gateway.objects.bypass import BypassCheck
from gateway.objects.key_rules import Resources
from gateway.objects.protocol.announcements import Announcements
from gateway.objects.protocol.bump import NO_FORM_LEFT, bump
from gateway.objects.protocol.effects import (
    Abandon,
    Amend,
    AwaitTurn,
    Begin,
    Bump,
    Complete,
    Delete,
    Effect,
    EffectAnswer,
    Entomb,
    Finish,
    Forbid,
    GiveUp,
    Look,
    Pause,
    Put,
    RaiseFence,
    Steps,
    UploadForm,
    tombstone_body,
)
from gateway.objects.s3.answers import Applied, NotSent, Unknown, WriteAnswer
from gateway.objects.s3.xml import Part
from gateway.objects.store.client import TextHeaders, path, place_of
from gateway.objects.store.operations import WITHOUT_ETAG, Upstream
from gateway.objects.store.probe import Profiles
from gateway.observe.events import IntentSettled, Observe, OutcomeLost, StepReached
from gateway.observe.stages import staged

Result = TypeVar("Result")

# Seconds between two checks whether another write of the same holder is over. Polling is cheaper here: a notification
# would take a lock that every commit of the database has to pass.
_POLL = 0.02
# Seconds between two attempts of a write that loses to writes of its holder through other gateways.
_LONGEST_PAUSE = 0.5
CONTENTION = 15.0
"""Seconds that a write goes on trying while it loses to writes of its holder through other gateways."""

_STEPS: dict[type, str] = {
    Begin: "begin",
    Put: "put",
    Complete: "complete",
    Amend: "amend",
    Delete: "delete",
    Entomb: "entomb",
    Bump: "bump",
    GiveUp: "give-up",
    Finish: "finish",
    Abandon: "abandon",
    Forbid: "forbid",
    RaiseFence: "raise",
}
# Effects that make nothing durable, but may take time.
_LOOKS: dict[type, str] = {Look: "head", AwaitTurn: "turn"}


@dataclass(frozen=True, slots=True)
class OperationPayload:
    """The body and headers that one operation sends to the store: a verified body, or the parts of an upload.

    The headers of a put have the gateway's own metadata, by which the protocol recognises its object.
    An amendment goes to the store as it is, with its ``method`` and its encoded ``query``.
    """

    body: bytes = b""
    headers: TextHeaders = ()
    parts: Sequence[Part] = ()
    method: str = ""
    query: str = ""


NO_PAYLOAD = OperationPayload()


class Runner:
    def __init__(
        self,
        database: Database,
        upstream: Upstream,
        profiles: Profiles,
        observe: Observe,
        pending_wait: float,
        resources: Resources | None = None,
        duplicates: Duplicates = Duplicates.TOLERATE,
        late_after: timedelta = LATE_AFTER,
    ) -> None:
        """``pending_wait``: seconds to wait for another write of the same holder. ``resources``: the rules of keys.

        ``late_after``: how long a request can take to have its effect once the store has begun with it.
        """
        self.duplicates, self._late_after, self._database = duplicates, late_after, database
        self._upstream, self._profiles = upstream, profiles
        self._observe, self._pending_wait = observe, pending_wait
        self._resources = resources or Resources()
        self._announcements = Announcements(database, self._resources)

    def now(self) -> datetime:
        """Return the store's clock, for telling callers how long to wait."""
        return self._upstream.now()

    async def run(self, steps: Steps[Result], payload: OperationPayload = NO_PAYLOAD) -> Result:
        """Drive one operation to its end. Raises ``OutcomeUnknown`` where Postgres failed after S3 was asked."""
        asked, began = False, monotonic()
        check = BypassCheck(self._database, self._upstream, self._observe, self._resources)

        async def perform(effect: Effect) -> EffectAnswer:
            nonlocal asked
            asked = asked or _is_the_write(effect)
            if isinstance(effect, Pause):
                with staged(self._observe, "objects", "turn"):
                    return await _paused(effect.number, began)
            answer = await self._stepped(effect, payload, check)
            await check.after(effect, answer)
            return answer

        try:
            return await drive(steps, perform)
        except (Unavailable, OutcomeUnknown, SqlError) as error:
            if asked:
                raise OutcomeUnknown("The database failed while the write was under way.") from error
            if isinstance(error, SqlError | Unavailable):
                raise
            raise Unavailable(error.message) from error

    async def _stepped(self, effect: Effect, payload: OperationPayload, check: BypassCheck) -> EffectAnswer:
        if isinstance(effect, Begin | Forbid):
            # Each change of an object comes after one of these. The key may be one from before a change of the rules.
            place = effect.write if isinstance(effect, Begin) else effect.intent
            self._resources.check_place(place.bucket, place.key)
        name = _STEPS.get(type(effect))
        if name is None:
            with staged(self._observe, "objects", _LOOKS[type(effect)]):
                return await self._perform(effect, payload, check)
        with staged(self._observe, "objects", name):
            self._observe(StepReached(f"objects.{name}.before"))
            answer = await self._perform(effect, payload, check)
            self._observe(StepReached(f"objects.{name}.after"))
        return answer

    async def _perform(  # noqa: C901, PLR0912 - one arm an effect
        self, effect: Effect, payload: OperationPayload, check: BypassCheck
    ) -> EffectAnswer:
        match effect:
            case Look("", _):
                return await self._upstream.ask_time()
            case Look(bucket, key):
                return await self._upstream.head(place_of(bucket, key))
            case Begin():
                return (await self._begin(effect)).under(self.duplicates)
            case Put():
                return await self._put(effect, payload)
            case Complete():
                return await self._complete(effect, payload)
            case Amend():
                return await self._amend(effect, payload)
            case GiveUp(intent):
                return await self._upstream.abandon_upload(place_of(intent.bucket, intent.key), intent.upload_id or "")
            case Delete(write, expected, signed_at):
                place = place_of(write.bucket, write.key)
                return await self._upstream.delete(place, payload.headers, expected=expected, signed_at=signed_at)
            case Entomb():
                return await self._entomb(effect)
            case Bump():
                return await self._bump(effect)
            case Finish():
                return await self._announcements.finish(replace(effect, certain=check.is_certain(effect)))
            case Abandon(intent, seen, spent):
                if isinstance(intent, Announcement):
                    await intents.abandon(self._database, intent, spent)
                else:
                    await intents.settle(self._database, intent, seen=seen, spent=spent)
                    self._observe(IntentSettled(intent.resource, intent.bucket, intent.key, str(intent.write_id)))
                return None
            case Forbid(intent):
                forbidden = await intents.forbid(self._database, intent, self._upstream.store_time)
                return forbidden.under(self.duplicates)
            case AwaitTurn(intent):
                return await self._await_turn(intent)
            case RaiseFence(resource, presented, caller):
                return await intents.raise_fence(self._database, resource, presented, caller)
            case Pause():
                raise AssertionError(effect)
            case _:
                assert_never(effect)

    async def _begin(self, effect: Begin) -> Begun:
        """Announce a write under the naming in force. Raise ``NamingChanged`` if the configured one is another."""
        write = effect.write
        asked = replace(
            effect,
            outcomes=None if self.duplicates is Duplicates.WAIT else effect.outcomes,
            store_time=self._upstream.store_time,
            signed_at=await self._upstream.time(),
            dead_after=self._dead_after(write.kind),
        )
        proven = write.mode is Enforcement.ENFORCE or write.caller == SWEEPER
        return await self._confirmed(write, await self._announcements.begin(asked, proven=proven))

    async def _confirmed(self, write: Announcement, begun: Begun) -> Begun:
        """Make sure that no other database was opened since, before the request is sent.

        Raise ``Unavailable`` if one was. Its openers do not know of this intent.
        """
        if begun.signed_at is None:
            return begun
        try:
            if await self._database.may_send(write.resource, begun.own, begun.signed_at, begun.term):
                return begun
        except Unavailable:
            await intents.abandon(self._database, write)
            raise
        await intents.abandon(self._database, write)
        raise Unavailable("The database was replaced by another server.")

    def _dead_after(self, kind: MutationKind) -> timedelta:
        """Return how long a request can take from its signature to its effect."""
        if kind is MutationKind.CONDITIONAL:
            return self._upstream.longest_put(self._late_after)
        return SIGNATURE_LIFETIME + self._late_after

    async def _forbid_longer(
        self, resource: str, bucket: str, key: str, expected: str | None, *, entombs: bool = False
    ) -> datetime:
        """Forbid the condition of a request that nothing announces. Return the time to sign it with."""
        signed_at = await self._upstream.time()
        until = signed_at + self._dead_after(MutationKind.CONDITIONAL)
        await intents.forbid_longer(self._database, resource, bucket, key, expected, until, entombs=entombs)
        return signed_at

    async def _put(self, effect: Put, payload: OperationPayload) -> WriteAnswer:
        write = effect.write
        send = self._upstream.put if effect.form is UploadForm.PLAIN else self._upstream.put_in_parts
        place = place_of(write.bucket, write.key)
        answer = await send(place, payload.body, payload.headers, expected=effect.expected, signed_at=effect.signed_at)
        return self._note_lost(write, answer)

    async def _complete(self, effect: Complete, payload: OperationPayload) -> WriteAnswer:
        write = effect.write
        answer = await self._upstream.complete_multipart(
            place_of(write.bucket, write.key),
            effect.upload_id,
            payload.parts,
            payload.headers,
            expected=effect.expected,
            conditional=write.kind is MutationKind.CONDITIONAL,
            signed_at=effect.signed_at,
        )
        return self._note_lost(write, answer)

    async def _amend(self, effect: Amend, payload: OperationPayload) -> WriteAnswer:
        write = effect.write
        assert payload.method, "an amendment has nothing else to send"
        answer, reply = await self._upstream.exchange(
            payload.method,
            path(place_of(write.bucket, write.key)),
            payload.query,
            payload.headers,
            payload.body,
            signed_at=effect.signed_at,
        )
        if isinstance(answer, Applied) and reply is not None:
            return Applied(None, reply.headers, reply.status)
        return self._note_lost(write, answer)

    def _note_lost(self, write: Announcement, answer: WriteAnswer) -> WriteAnswer:
        if isinstance(answer, Unknown) and answer != WITHOUT_ETAG:
            self._observe(OutcomeLost(write.resource, write.bucket, write.key, str(write.write_id)))
        return answer

    async def _entomb(self, effect: Entomb) -> WriteAnswer:
        owner = effect.owner
        if isinstance(owner, Intent):
            # This tombstone is in the way of the intent's write. Under its write-id it would pass for its success.
            token, write_id = str(owner.token), uuid4()
        else:
            token, write_id = str(owner.presented.token) if owner.presented else "", owner.write_id
        signed_at = effect.signed_at or await self._forbid_longer(
            owner.resource, owner.bucket, owner.key, effect.expected, entombs=True
        )
        place = place_of(owner.bucket, owner.key)
        own = self._upstream.own_metadata(place, owner.resource, token, str(write_id), tombstone=True)
        return await self._upstream.put(
            place, tombstone_body(uuid4()), own, expected=effect.expected, signed_at=signed_at
        )

    async def _bump(self, effect: Bump) -> WriteAnswer:
        profile = await self._profiles.of(effect.bucket)
        if not profile.at(effect.key).can_bump:
            return NotSent("the store takes no conditional upload of this key, so its object cannot be bumped")
        sign = partial(self._forbid_longer, effect.resource, effect.bucket, effect.key, effect.etag)
        place = place_of(effect.bucket, effect.key)
        answer = await bump(self._upstream, place, effect.etag, effect.forbidden | effect.spent, sign)
        if answer == NO_FORM_LEFT and effect.spent:
            return await bump(self._upstream, place, effect.etag, effect.forbidden, sign)
        return answer

    async def _await_turn(self, intent: Intent) -> bool:
        try:
            async with asyncio.timeout(self._pending_wait):
                # The other write may end in another process.
                while await intents.is_pending(self._database, intent):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            return False
        return True


async def _paused(number: int, began: float) -> bool:
    """Wait for a random time, which is longer on average for a higher number. Return False if there is none left.

    Two gateways whose writes take turns at equal intervals could keep a third one out.
    """
    if monotonic() - began > CONTENTION:
        return False
    longest = _LONGEST_PAUSE if number > 4 else _POLL * 2**number
    await asyncio.sleep(random.uniform(_POLL / 2, longest))  # noqa: S311 - for no secret
    return True


def _is_the_write(effect: Effect) -> bool:
    """Return whether S3 is asked for the caller's own mutation, and not for one that settles another holder's."""
    return isinstance(effect, Put | Complete | Amend | Delete) or (
        isinstance(effect, Entomb) and isinstance(effect.owner, Announcement)
    )
