"""The record: refused writes, and whatever else has happened to fences, locks and what they protect."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from gateway.errors import (
    Denied,
    FenceRefusal,
    ResourceMalformed,
    ResourceMismatch,
    ResourceUnderivable,
    SideEffectRefused,
    TokenDuplicate,
    TokenImplausible,
    TokenMalformed,
    TokenRequired,
    TokenStale,
    TokenUsed,
)
from gateway.fencing.credential_redaction import redacted
from gateway.fencing.decision import Decision, Fence
from gateway.fencing.token import Token
from gateway.fencing.token_policy import ImplausibleToken, Reason

_TRACE = re.compile(r"[0-9a-f]{32}")

MAX_TARGET = 2048
"""Characters that are kept of a target."""
MAX_PROGRAM = 200
"""Characters that are kept of a program's name."""
ANONYMOUS = "anonymous"
"""The caller on record where a request shows no credentials."""
SWEEPER = "sweeper"
"""The caller on record where a gateway cleans up by itself."""
PROCESS = "gateway-process"
"""The caller on record of a reload that a signal or a changed file caused."""
ROLE = "role:"
"""How the caller on record begins where a session of the database came without the gateway. A role's name follows."""


def is_own_name(caller: str) -> bool:
    """Return whether the gateway itself writes this name down, or one that people take for the same."""
    seen = unicodedata.normalize("NFKC", caller).strip().casefold()
    return seen in (ANONYMOUS, PROCESS, SWEEPER) or seen.startswith(ROLE)


class Kind(StrEnum):
    REJECTION = "rejection"
    """A write was refused or, where its rule observes, passed and would have been."""
    RAISED = "raised"
    """A write of a newer holder has taken a resource over."""
    BARRIER = "barrier"
    """A newer holder has taken a resource over by a barrier, before it reads."""
    FENCE_RESTORED = "fence-restored"
    """The database had lost a raise, and the journal has restored it."""
    EPOCH = "epoch"
    """A fence, or the lock service, has begun a new epoch."""
    SETTLED = "settled"
    """An object write of an older holder that was under way is settled: if it has not taken effect, it never will."""
    LEASE_GRANTED = "lease-granted"
    LEASE_RELEASED = "lease-released"
    LEASE_EXPIRED = "lease-expired"
    LEASE_BROKEN = "lease-broken"
    GUARD_REFUSED = "guard-refused"
    """The guard of a table has refused writes of sessions that came without the gateway."""
    BYPASS = "bypass"
    """An object or a guarded row was changed without passing the gateway."""
    ADMINISTRATION = "administration"
    """A caller has changed a bucket or its settings, or taken out credentials."""
    RETENTION = "retention"
    """Days of the record have been dropped since they were older than it is to be kept."""
    ALARM_RAISED = "alarm-raised"
    """More writes were refused within a time than an alarm allows for."""
    ALARM_CLEARED = "alarm-cleared"
    """They have become few again."""
    ACKNOWLEDGED = "incident-acknowledged"
    """A caller has seen an incident, and has left a note."""


def kind_of(text: str) -> Kind | str:
    """Return the kind of an entry; the text itself if a newer gateway, on the same record, has put it there."""
    return Kind(text) if text in _ALL_KINDS else text


_ALL_KINDS = frozenset(kind.value for kind in Kind)


class EntryReason(StrEnum):
    """The reason of an entry: of a refusal, of a gateway or a guard; or of a change that bypassed the gateway."""

    TOKEN_STALE = TokenStale.code
    TOKEN_DUPLICATE = TokenDuplicate.code
    TOKEN_USED = TokenUsed.code
    TOKEN_IMPLAUSIBLE = TokenImplausible.code
    TOKEN_REQUIRED = TokenRequired.code
    RESOURCE_MISMATCH = ResourceMismatch.code
    SIDE_EFFECT_REFUSED = SideEffectRefused.code
    RESOURCE_UNDERIVABLE = ResourceUnderivable.code
    TOKEN_MALFORMED = TokenMalformed.code
    RESOURCE_MALFORMED = ResourceMalformed.code
    DENIED = Denied.code
    """The caller lacks a grant."""
    TOKEN_UNCLAIMED = "token-unclaimed"  # noqa: S105 - a reason, not a secret
    HOLDER_MALFORMED = "holder-malformed"
    ISOLATION = "isolation"
    WRITES_PENDING = "writes-pending"
    ROW_CHANGED = "row-changed"
    ROW_APPEARED = "row-appeared"
    ROW_VANISHED = "row-vanished"
    OBJECT_CHANGED = "object-changed"
    OBJECT_APPEARED = "object-appeared"
    OBJECT_VANISHED = "object-vanished"
    BUCKET_VANISHED = "bucket-vanished"
    GUARD_DISABLED = "guard-disabled"
    GUARD_REMOVED = "guard-removed"


@dataclass(frozen=True, slots=True)
class CapturedPayload:
    """A captured payload: its beginning, without the values of redacted columns.

    ``truncated``: the body had more. ``redacted``: values were removed. ``left_out`` says why nothing is kept at all,
    None if something is.
    """

    media_type: str
    body: bytes = b""
    truncated: bool = False
    redacted: bool = False
    left_out: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write as it arrived: who sent it, and at what it was aimed.

    ``token`` and ``holder`` are what the writer presented; ``caller`` is who it proved to be; ``client`` its network
    address. ``target`` is the path and query of the request; credentials in it are not kept, nor is what is beyond
    ``MAX_TARGET``. ``payload_size`` is in bytes. The payload's size and SHA-256 (hex) are None where the write was
    refused before its body was read. ``plane`` is ``tables``, ``objects`` or ``api``; ``rule`` the table or the pattern
    of keys whose rule it came under. ``program`` is the name that the program gives itself; credentials in it are not
    kept. ``key`` is the key of an object that the body of the request names, and not its target. ``captured`` is
    None where nothing is to be kept of payloads, or there was none.
    """

    token: Token | None
    holder: str | None
    caller: str
    method: str
    target: str
    client: str | None
    request_id: str
    payload_size: int | None = None
    payload_sha256: str | None = None
    plane: str | None = None
    rule: str | None = None
    captured: CapturedPayload | None = None
    program: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        """Make certain that no plane puts a credential on record."""
        if self.key is not None:
            object.__setattr__(self, "key", storable(redacted(self.key)))
        object.__setattr__(self, "target", redacted(self.target[:MAX_TARGET])[:MAX_TARGET])
        if self.program is not None:
            object.__setattr__(self, "program", shown_program(self.program))


def shown_program(name: str) -> str:
    """Return the name that a program gives itself, without credentials. It does not change what it has returned."""
    return redacted(name[:MAX_PROGRAM])[:MAX_PROGRAM]


@dataclass(frozen=True, slots=True)
class MissingGrant:
    """The grant that a denied request lacks: an action, and the place or resource it is ``on``, as people write it."""

    action: str
    on: str

    def __post_init__(self) -> None:
        """Let the database store the name. A caller chooses names of keys."""
        object.__setattr__(self, "on", storable(self.on))


def storable(text: str) -> str:
    """Return the beginning of a text without the characters that the database cannot store."""
    return text[:MAX_TARGET].encode(errors="replace").decode().replace("\0", "\ufffd")


def missing_grant(details: Mapping[str, object] | None) -> MissingGrant | None:
    """Return the missing grant in the details of an entry. None for entries of other kinds, and those from before."""
    missing = (details or {}).get("missing")
    return MissingGrant(str(missing.get("action")), str(missing.get("on"))) if isinstance(missing, Mapping) else None


def program(details: Mapping[str, object] | None) -> str | None:
    """Return the program that wrote: as a request named itself, or a session of the database its application."""
    session = (details or {}).get("session")
    found = session.get("application_name") if isinstance(session, Mapping) else (details or {}).get("program")
    return found if isinstance(found, str) and found else None


def statement(details: Mapping[str, object] | None) -> str | None:
    """Return the first words of the statement that a guard judged. None for other entries, and those from before."""
    found = (details or {}).get("statement")
    return found if isinstance(found, str) and found else None


def also_denied(details: Mapping[str, object] | None) -> int:
    """Return how many denials without an entry the entry with these details stands for, besides its own."""
    count = (details or {}).get("also_denied")
    return count if isinstance(count, int) else 0


def object_key(details: Mapping[str, object] | None) -> str | None:
    """Return the key of a refused write whose request names it in the body: DeleteObjects, and forms."""
    found = (details or {}).get("key")
    return found if isinstance(found, str) else None


def trace_id(details: Mapping[str, object] | None) -> str | None:
    """Return the trace of a refused request, in 32 hex digits; None if it had none."""
    found = (details or {}).get("trace_id")
    return found if isinstance(found, str) and _TRACE.fullmatch(found) else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal to be recorded, for one resource of a write. ``enforced`` False: the write passes all the same.

    ``missing`` is set for denials alone. ``also_denied``: the number of denials without an entry that
    this one stands for, too.
    """

    resource: str
    reason: str
    attempt: Attempt
    fence: Fence | None
    enforced: bool = True
    missing: MissingGrant | None = None
    also_denied: int = 0


@dataclass(frozen=True, slots=True)
class Rejection:
    """One row of the record. ``enforced`` is False where a rule in observe mode let the write pass."""

    id: UUID
    at: datetime
    resource: str
    reason: str
    enforced: bool
    attempt: Attempt
    fence: Fence | None
    missing: MissingGrant | None = None


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event to be recorded that is not a refusal. The fields are those of an ``Entry``."""

    kind: Kind
    plane: str | None = None
    rule: str | None = None
    resource: str | None = None
    reason: str | None = None
    token: Token | None = None
    holder: str | None = None
    caller: str | None = None
    request_id: str | None = None
    fence: Fence | None = None
    details: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the record, sealed: it has a position, and a hash over itself and the hash before (hex).

    ``token`` and ``holder`` are those of who acted: the refused writer, the holder that took over. ``fence`` is what it
    met: what refused it, whom it took over from; None where there was none. ``details`` depend on the kind, which is
    a ``str`` if only newer gateways know it.
    """

    position: int
    hash: str
    id: UUID
    at: datetime
    kind: Kind | str
    plane: str | None
    rule: str | None
    resource: str | None
    reason: str | None
    enforced: bool | None
    token: Token | None
    holder: str | None
    caller: str | None
    method: str | None
    target: str | None
    client: str | None
    request_id: str | None
    payload_size: int | None
    payload_sha256: str | None
    fence: Fence | None
    details: Mapping[str, object] | None


def facts(entry: Entry) -> dict[str, Any]:
    """Return an entry as each place tells it: its tokens in their wire form, and its fence in four fields."""
    fence = entry.fence
    return {
        **{name: getattr(entry, name) for name in Entry.__slots__},
        "token": None if entry.token is None else str(entry.token),
        "fence": None if fence is None else str(fence.token),
        "fence_holder": None if fence is None else fence.holder,
        "fence_caller": None if fence is None else fence.caller,
        "fence_raised_at": None if fence is None else fence.raised_at,
    }


FILTERS: Mapping[str, str] = {
    "kind": "Only entries of this kind; of several kinds, one suffices.",
    "resource": "Only entries about this resource.",
    "prefix": "Only resources whose names begin with this.",
    "holder": "Only entries of this holder.",
    "caller": "Only entries of this caller.",
    "reason": "Only writes refused for this reason, e.g. token-stale.",
    "plane": "Only entries of tables, objects or api.",
    "rule": "Only writes under the rule of this table, or this pattern of keys.",
    "token": "Only entries with this token.",
    "enforced": "Only refused writes, or only writes that a rule in observe mode let pass.",
    "since": "Only from this time on, e.g. 2026-03-01T04:05:00Z.",
    "until": "Only before this time.",
}
"""The filters of lists of the record: names in requests and commands. ``gateway.api.record_views`` reads them."""


EQUAL = ("resource", "holder", "caller", "reason", "plane", "rule")
"""The filters that hold if an entry has the same value in its field of the same name."""


@dataclass(frozen=True, slots=True)
class Filters:
    """All that are given must hold; None, or no kinds at all, means any.

    ``prefix`` is how the name of the resource begins, character by character. ``since`` and ``until`` are aware, and
    about when it happened: from ``since`` on, before ``until``. ``shown_to`` is the caller who asks where that one is
    shown its own entries only (``gateway.auth.principal``): it holds beside ``caller``.
    """

    kinds: tuple[Kind, ...] = ()
    resource: str | None = None
    prefix: str | None = None
    holder: str | None = None
    caller: str | None = None
    reason: str | None = None
    plane: str | None = None
    rule: str | None = None
    enforced: bool | None = None
    token: Token | None = None
    since: datetime | None = None
    until: datetime | None = None
    shown_to: str | None = None

    def admit(self, entry: Entry) -> bool:
        asked = [(getattr(self, name), getattr(entry, name)) for name in (*EQUAL, "enforced", "token")]
        asked.append((self.shown_to, entry.caller))
        return (
            (not self.kinds or entry.kind in self.kinds)
            and all(wanted is None or wanted == found for wanted, found in asked)
            and (self.prefix is None or (entry.resource is not None and entry.resource.startswith(self.prefix)))
            and (self.since is None or self.since <= entry.at)
            and (self.until is None or entry.at < self.until)
        )


_KINDS: dict[str, tuple[type[FenceRefusal], str]] = {
    Decision.STALE.value: (TokenStale, "The fencing token {token} of {resource} has been overtaken by {fence}."),
    Decision.DUPLICATE.value: (
        TokenDuplicate,
        "Another holder, {raised_by}, uses the fencing token {token} of {resource}.",
    ),
    Decision.USED.value: (TokenUsed, "The fencing token {token} of {resource} has already written."),
}


def refusal_error(rejection: Rejection) -> FenceRefusal:
    """Return the error for a recorded refusal. Its facts: resource, token, fence, raised_by, raised_at, rejection."""
    kind, sentence = _KINDS[rejection.reason]
    fence = rejection.fence
    assert fence is not None
    facts = {
        "resource": rejection.resource,
        "token": str(rejection.attempt.token),
        "fence": str(fence.token),
        "raised_by": fence.raised_by,
        "raised_at": fence.raised_at.isoformat(),
        "rejection": str(rejection.id),
    }
    return kind(sentence.format_map(facts), facts=facts)


_NOT_TAKEN: dict[Reason, tuple[str, str]] = {
    Reason.JUMP: (
        "is farther from {fence} than any counter can have come",
        (
            "Send the token your lock service gave you. If it really counts so far, ask the operator to raise "
            "max_jump; if its counter was reset, to start a new epoch: POST /v1/fences/{resource}/epoch."
        ),
    ),
    Reason.NOT_ISSUED: (
        "was never issued by the lease service",
        "Acquire the lock with POST /v1/leases/{resource}, and write with the token it gives you.",
    ),
    Reason.NO_SEQUENCER: (
        "comes without its proof",
        "Send the sequencer that the lease service gave you with the token, in the header Fencing-Sequencer.",
    ),
    Reason.FORGED: (
        "comes with a sequencer that nobody here has signed",
        (
            "Send the sequencer exactly as the lease service gave it. If you do, ask the operator whether all gateways "
            "have the same signing_keys."
        ),
    ),
    Reason.UNCHECKED: (
        "cannot be checked",
        "Send the request again once the issuer of the tokens answers.",
    ),
    Reason.NOT_HELD: (
        "belongs to no lease that lasts",
        "Stop writing: the lease has lapsed, or was released or broken. Acquire the lock again to get a newer token.",
    ),
}


def implausible_error(implausible: ImplausibleToken, rejection: Rejection) -> TokenImplausible:
    """Return the error for a recorded token that its policy refuses. Its facts: resource, token, fence (None if it was
    not needed), policy, reason, rejection.
    """
    sentence, advice = _NOT_TAKEN[implausible.reason]
    fence = str(implausible.fence.token) if implausible.fence else None
    said = sentence.format(fence=f"its fence {fence}" if fence else "0")
    facts = {
        "resource": implausible.resource,
        "token": str(implausible.token),
        "fence": fence,
        "policy": implausible.policy.value,
        "reason": implausible.reason.value,
        "rejection": str(rejection.id),
    }
    return TokenImplausible(
        f"The fencing token {implausible.token} of {implausible.resource} {said}.",
        advice=advice.format(resource=implausible.resource),
        facts=facts,
    )
