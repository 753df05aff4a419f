"""The fence store and the object store in memory: small, immutable in effect, and as strict as the real ones.

``Fences`` stands for the SQL functions; ``test_fencing_model.py`` holds it against them. ``Objects`` stands for S3:
conditional, atomic, and with ETags that are a hash of the bytes and the form they were uploaded in.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeAlias

from gateway.fencing.decision import Decision, Enforcement, Equal, Fence, Presented, decide
from gateway.fencing.intent import ABSENCE, Announcement, Begun, ForbiddenETags, Intent, KnownObject, Raised, Spent
from gateway.fencing.token import Token
from gateway.objects.protocol.effects import UploadForm
from gateway.objects.s3.answers import Applied, Found, Missing, NotApplied

# Time decides nothing in the protocol, so it stands still here.
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Key: TypeAlias = tuple[str, str, str]


@dataclass
class Fences:
    """The state and the rules of the SQL functions."""

    fences: dict[str, Fence] = field(default_factory=dict)
    intents: dict[Key, Intent] = field(default_factory=dict)
    forbidden: dict[Key, frozenset[str]] = field(default_factory=dict)
    known: dict[Key, KnownObject] = field(default_factory=dict)
    settling: dict[Key, bool] = field(default_factory=dict)
    spent: dict[Key, tuple[Spent, ...]] = field(default_factory=dict)

    def claim(self, resource: str, presented: Presented, equal: Equal, caller: str) -> Decision:
        fence = self.fences.get(resource)
        decision = decide(fence, presented, equal)
        if decision is Decision.RAISED:
            self.fences[resource] = Fence(resource, presented.token, presented.holder, caller, NOW, presented.write_id)
        elif decision is Decision.HELD and equal is Equal.STRICT and fence and fence.write_id is None:
            self.fences[resource] = replace(fence, write_id=presented.write_id)
        return decision

    def begin(
        self, write: Announcement, looked: KnownObject | None = None, outcomes: tuple[str, ...] | None = None
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
        pending = self.pending(write.resource, own, key)
        forbidden = self.forbidden.get(key, frozenset())
        spent = tuple(one for one in self.spent.get(key, ()) if outcomes is None or one.etag in outcomes)
        if pending:
            return Begun(decision, fence, pending, None, forbidden, spent=spent)
        seen = looked or self.known.get(key, KnownObject(None))
        self.intents[key] = Intent(
            *key, write.write_id, own, seen.etag, NOW, write.attempt, write.kind, write.upload_id, write.dead_after
        )
        return Begun(decision, fence, (), NOW, forbidden, seen, spent=spent)

    def pending(self, resource: str, token: Token, key: Key | None = None) -> tuple[Intent, ...]:
        return tuple(
            intent
            for place, intent in sorted(self.intents.items())
            if place[0] == resource and (place == key or intent.token < token)
        )

    def raise_fence(self, resource: str, presented: Presented, caller: str) -> Raised:
        decision = self.claim(resource, presented, Equal.ACCEPT, caller)
        pending = self.pending(resource, presented.token) if decision.passes else ()
        return Raised(decision, self.fences[resource], pending)

    def finish(self, write: Announcement, etag: str | None, *, tombstone: bool, spent: tuple[str, ...] = ()) -> bool:
        key = (write.resource, write.bucket, write.key)
        settling = key in self.settling
        self._spend(key, write, spent)
        if not self._forget(key, write) or settling:
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
        etag = ABSENCE if intent.expected is None else intent.expected
        self.forbidden[key] = self.forbidden.get(key, frozenset()) | {etag}
        if self.is_pending(intent):
            self.settling[key] = True
        return ForbiddenETags(NOW, self.forbidden[key], frozenset(one.etag for one in self.spent.get(key, ())))

    def is_pending(self, intent: Announcement | Intent) -> bool:
        held = self.intents.get((intent.resource, intent.bucket, intent.key))
        return held is not None and (held.write_id, held.attempt) == (intent.write_id, intent.attempt)

    def _spend(self, key: Key, intent: Announcement | Intent, etags: tuple[str, ...]) -> None:
        """Remember the conditions of a mutation's requests. If another gateway has settled it, that one has done so."""
        if not self.is_pending(intent):
            return
        for etag in etags:
            held = {one.etag: one.token for one in self.spent.get(key, ())}
            held[etag] = min(self.intents[key].token, held.get(etag, self.intents[key].token))
            # Time stands still, so none of them has been spent for longest.
            self.spent[key] = tuple(Spent(*one) for one in sorted(held.items()))

    def _forget(self, key: Key, intent: Announcement | Intent) -> bool:
        if not self.is_pending(intent):
            return False
        del self.intents[key]
        self.settling.pop(key, None)
        return True


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

    def head(self, key: str) -> Found | Missing:
        content = self.objects.get(key)
        if content is None:
            return Missing()
        return Found(content.etag, content.write_id, content.tombstone)

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
