"""The fence store and the object store in memory: small, immutable in effect, and as strict as the real ones.

``Fences`` stands for the SQL functions; ``test_fencing_model.py`` holds it against them. ``Objects`` stands for S3:
conditional, atomic, and with ETags that are a hash of the bytes and the form they were uploaded in.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from gateway.fencing.decision import Decision, Enforcement, Equal, Fence, Presented, decide
from gateway.fencing.intent import (
    ABSENCE,
    Announcement,
    Begun,
    ForbiddenETag,
    ForbiddenETags,
    Intent,
    KnownObject,
    MutationKind,
    Raised,
    Spent,
)
from gateway.fencing.token import Token
from gateway.objects.protocol.effects import UploadForm
from gateway.objects.s3.answers import Applied, Found, Missing, NotApplied

# The store's clock at the start. It stands still, unless a scope has ticks.
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TICK = timedelta(minutes=1)
"""A request that was signed at one tick can still take effect at the next one, and not at the one after that."""
HIGHEST = Token(2**31 - 1, 2**63 - 1)
"""The token of housekeeping: newer than every holder's, so that no barrier has to settle it."""
Key: TypeAlias = tuple[str, str, str]


@dataclass
class Fences:
    """The state and the rules of the SQL functions. ``now`` is the store's clock."""

    fences: dict[str, Fence] = field(default_factory=dict)
    intents: dict[Key, tuple[Intent, ...]] = field(default_factory=dict)
    forbidden: dict[Key, tuple[ForbiddenETag, ...]] = field(default_factory=dict)
    known: dict[Key, KnownObject] = field(default_factory=dict)
    settling: dict[Key, tuple[Intent, ...]] = field(default_factory=dict)
    spent: dict[Key, tuple[Spent, ...]] = field(default_factory=dict)
    now: datetime = NOW

    def claim(self, resource: str, presented: Presented, equal: Equal, caller: str) -> Decision:
        fence = self.fences.get(resource)
        decision = decide(fence, presented, equal)
        if decision is Decision.RAISED:
            self.fences[resource] = Fence(resource, presented.token, presented.holder, caller, NOW, presented.write_id)
        elif decision is Decision.HELD and equal is Equal.STRICT and fence and fence.write_id is None:
            self.fences[resource] = replace(fence, write_id=presented.write_id)
        return decision

    def begin(
        self,
        write: Announcement,
        looked: KnownObject | None = None,
        outcomes: tuple[str, ...] | None = None,
        over: tuple[Intent, ...] = (),
        *,
        calm: bool = False,
    ) -> Begun:
        decision, own = None, Token(0, 0)
        if write.presented is not None:
            presented = replace(write.presented, write_id=write.write_id)
            decision = self.claim(write.resource, presented, write.equal, write.caller)
            own = presented.token
        fence = self.fences.get(write.resource)
        if decision is None or not decision.passes:
            if write.mode is not Enforcement.OBSERVE:
                return Begun(decision, fence)
            own = fence.token if fence else Token(0, 0)
        key = (write.resource, write.bucket, write.key)
        here = self.intents.get(key, ())
        over = tuple(one for one in here if one in over and _gives_way(one, write, looked))
        lower = Token(0, 0) if write.housekeeping else own
        pending = tuple(one for one in self.pending(write.resource, lower, key) if one not in over)
        seen = looked or self.known.get(key, KnownObject(None))
        self._forget_forbidden(key)
        waited = self.forbidden.get(key, ())
        signed_at = None if pending or (calm and not Begun(None, None, waited=waited, key=seen).calm) else self.now
        if signed_at:
            token = HIGHEST if write.housekeeping else own
            intent = Intent(
                *key, write.write_id, token, seen.etag, signed_at, write.attempt, write.kind, write.upload_id, TICK
            )
            self.intents[key] = (*here, intent)
            for one in over:
                self._mark(key, one)
                if one.kind is MutationKind.CONDITIONAL:
                    self._forbid(key, one.expected, one.dead_at)
        spent = tuple(one for one in self._alive(key) if outcomes is None or one.etag in outcomes)
        waited = self.forbidden.get(key, ())
        over = over if signed_at else ()
        return Begun(decision, fence, pending, signed_at, waited, seen, spent=spent, over=over)

    def pending(self, resource: str, token: Token, key: Key | None = None) -> tuple[Intent, ...]:
        return tuple(
            intent
            for place, intents in sorted(self.intents.items())
            for intent in intents
            if place[0] == resource and (place == key or intent.token < token)
        )

    def raise_fence(self, resource: str, presented: Presented, caller: str) -> Raised:
        decision = self.claim(resource, presented, Equal.ACCEPT, caller)
        pending = self.pending(resource, presented.token) if decision.passes else ()
        return Raised(decision, self.fences[resource], pending)

    def finish(self, write: Announcement, etag: str | None, *, tombstone: bool, spent: tuple[str, ...] = ()) -> bool:
        key = (write.resource, write.bucket, write.key)
        held = self._held(write)
        settling = held in self.settling.get(key, ())
        self._spend(key, write, spent)
        self._forget(key, write)
        if held is None or settling:
            return False
        self.known[key] = KnownObject(etag, tombstone)
        return True

    def abandon(self, intent: Announcement | Intent, spent: tuple[str, ...] = ()) -> None:
        key = (intent.resource, intent.bucket, intent.key)
        self._spend(key, intent, spent)
        self._forget(key, intent)
        self.known.pop(key, None)

    def forbid(self, intent: Intent) -> ForbiddenETags:
        key = (intent.resource, intent.bucket, intent.key)
        if (held := self._held(intent)) is not None:
            self._mark(key, held)
        self._forbid(key, intent.expected, intent.dead_at)
        alive = (one for one in self.forbidden[key] if one.until >= self.now)
        etag = ABSENCE if intent.expected is None else intent.expected
        return ForbiddenETags(
            frozenset(one.etag for one in alive) | {etag}, frozenset(one.etag for one in self._alive(key))
        )

    def forbid_until_dead(self, key: Key, expected: str | None) -> datetime:
        """Forbid what an unannounced request is conditioned on, which is signed now; when that is."""
        self._forbid(key, expected, self.now + TICK)
        return self.now

    def is_pending(self, intent: Announcement | Intent) -> bool:
        return self._held(intent) is not None

    def _held(self, intent: Announcement | Intent) -> Intent | None:
        here = self.intents.get((intent.resource, intent.bucket, intent.key), ())
        found = [one for one in here if (one.write_id, one.attempt) == (intent.write_id, intent.attempt)]
        return found[0] if found else None

    def _mark(self, key: Key, intent: Intent) -> None:
        self.settling[key] = (*(one for one in self.settling.get(key, ()) if one != intent), intent)

    def _forbid(self, key: Key, expected: str | None, until: datetime) -> None:
        etag = ABSENCE if expected is None else expected
        held = {one.etag: one.until for one in self.forbidden.get(key, ())}
        held[etag] = max(until, held.get(etag, until))
        self.forbidden[key] = tuple(ForbiddenETag(*one) for one in sorted(held.items()))

    def _forget_forbidden(self, key: Key) -> None:
        if kept := tuple(one for one in self.forbidden.pop(key, ()) if one.until >= self.now):
            self.forbidden[key] = kept

    def _alive(self, key: Key) -> tuple[Spent, ...]:
        """Return what is spent, the longest spent first."""
        spent = (one for one in self.spent.get(key, ()) if one.until >= self.now)
        return tuple(sorted(spent, key=lambda one: (one.until, one.etag)))

    def _spend(self, key: Key, intent: Announcement | Intent, etags: tuple[str, ...]) -> None:
        """Remember the conditions of a mutation's requests. If another gateway has settled it, that one has done so."""
        ended = self._held(intent)
        if ended is None:
            return
        for etag in etags:
            held = {one.etag: one for one in self.spent.get(key, ())}
            before = held.get(etag, Spent(etag, ended.token, ended.dead_at))
            held[etag] = Spent(etag, min(ended.token, before.token), max(ended.dead_at, before.until))
            self.spent[key] = tuple(one for _, one in sorted(held.items()))

    def _forget(self, key: Key, intent: Announcement | Intent) -> None:
        ended = self._held(intent)
        for table in (self.intents, self.settling):
            if kept := tuple(one for one in table.pop(key, ()) if one != ended):
                table[key] = kept


def _gives_way(intent: Intent, write: Announcement, looked: KnownObject | None) -> bool:
    """Whether a write settles an older one of its key by itself."""
    if intent.kind is MutationKind.UPLOAD:
        return intent.upload_id == write.upload_id
    return intent.kind is MutationKind.CONDITIONAL and looked is not None and looked.etag == intent.expected


@dataclass(frozen=True, slots=True)
class Content:
    """An object: its bytes (by name), the form they were uploaded in, and whose write put them there."""

    data: str
    form: UploadForm
    write_id: str
    tombstone: bool = False

    @property
    def etag(self) -> str:
        return f"{self.data}/{self.form}"


def etag(data: str, form: UploadForm) -> str:
    """The ETag these bytes have in this form."""
    return Content(data, form, "").etag


@dataclass
class Objects:
    """The state and the rules of S3. ``conditional`` False makes it a store that ignores conditions."""

    objects: dict[str, Content] = field(default_factory=dict)
    conditional: bool = True
    now: datetime = NOW

    def head(self, key: str) -> Found | Missing:
        content = self.objects.get(key)
        if content is None:
            return Missing(self.now)
        return Found(content.etag, content.write_id, content.tombstone, date=self.now)

    def put(self, key: str, content: Content, expected: str | None) -> Applied | NotApplied:
        if not self._holds(key, expected):
            return NotApplied(412, "PreconditionFailed")
        self.objects[key] = content
        return Applied(content.etag)

    def complete(self, key: str, content: Content) -> Applied:
        """Without a condition."""
        self.objects[key] = content
        return Applied(content.etag)

    def amend(self, key: str) -> Applied | NotApplied:
        return Applied(None) if key in self.objects else NotApplied(404, "NoSuchKey")

    def remove(self, key: str) -> Applied:
        """Delete without a condition."""
        self.objects.pop(key, None)
        return Applied(None)

    def delete(self, key: str, expected: str) -> Applied | NotApplied:
        if not self._holds(key, expected):
            return NotApplied(412, "PreconditionFailed")
        self.objects.pop(key, None)
        return Applied(None)

    def _holds(self, key: str, expected: str | None) -> bool:
        content = self.objects.get(key)
        return not self.conditional or (content.etag if content else None) == expected
