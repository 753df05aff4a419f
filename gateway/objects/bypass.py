"""Notice, during a write, that its key is not as the last write through the gateway has left it.

The check decides nothing. While a write is announced and not being settled, nothing else that passes the gateway can
change its key. An object that is seen then, and is neither that write's nor the remembered one, came from elsewhere.
"""

from datetime import datetime
from urllib.parse import quote

from gateway.db import bypasses
from gateway.db.bypasses import FoundObject
from gateway.db.database import Database
from gateway.errors import GatewayError
from gateway.fencing.intent import Announcement, Begun
from gateway.objects.key_rules import Resources
from gateway.objects.protocol.effects import (
    Amend,
    Begin,
    Complete,
    Delete,
    Effect,
    EffectAnswer,
    Entomb,
    Finish,
    Look,
    Put,
)
from gateway.objects.s3.answers import Found, HeadAnswer, Missing, Unknown
from gateway.objects.store.operations import Upstream
from gateway.observe.events import BypassFound, Observe, SweepFailed


class BypassCheck:
    """Watches one operation of the protocol."""

    def __init__(self, database: Database, upstream: Upstream, observe: Observe, resources: Resources) -> None:
        self._database = database
        self._upstream = upstream
        self._observe = observe
        self._resources = resources
        self._write: Announcement | None = None
        self._begun = Begun(None, None)
        self._sent = False
        self._may_have_removed = False

    async def after(self, effect: Effect, answer: EffectAnswer) -> None:
        """Note an effect and its answer. Never raises ``GatewayError``: the write goes on in any case."""
        match effect:
            case Begin(write) if isinstance(answer, Begun):
                self._begun, self._sent, self._may_have_removed = answer, False, False
                self._write = write if answer.signed_at is not None else None
                if self._write is not None and answer.differs:
                    await self._record(write, await self._upstream.head(write.bucket, quote(write.key, safe="/")))
            case Delete() | Amend():
                self._sent = self._sent or isinstance(effect, Delete)
                self._may_have_removed = isinstance(answer, Unknown)
            case Put() | Complete() | Entomb():
                self._sent = True
            case Look(bucket, key) if self._write and (bucket, key) == (self._write.bucket, self._write.key):
                await self._record(self._write, answer)
            case _:
                pass

    def is_certain(self, finish: Finish) -> bool:
        """Return whether the ETag is the outcome of the write, and not what was seen before its announcement."""
        return self._sent or finish.etag != self._begun.key.etag

    async def _record(self, write: Announcement, state: EffectAnswer) -> None:
        if not isinstance(state, HeadAnswer) or isinstance(state, Unknown) or _is_of(write, state):
            return
        if isinstance(state, Missing) and self._may_have_removed:
            return  # a missing object does not tell who has deleted it
        if etag_of(state) == self._begun.key.etag and not self._begun.differs:
            return
        seen = evidence(self._resources, write.bucket, write.key, state, found_by="write")
        try:
            reason = await bypasses.record_by_write(self._database, write, seen)
        except GatewayError as error:
            self._observe(SweepFailed(f"{write.bucket}/{write.key}", error.message))
            return
        if reason is not None:
            self._observe(BypassFound("objects", reason, write.resource, seen.target, "write"))


def evidence(
    resources: Resources, bucket: str, key: str, state: HeadAnswer, *, found_by: str, owner: str | None = None
) -> FoundObject:
    """Return what goes on record of the object at a key."""
    details: dict[str, object] = {
        "bucket": bucket,
        "key": key,
        "found_by": found_by,
        "found": etag_of(state),
        "owner": owner,
    }
    if isinstance(state, Found):
        details |= {
            "size": state.size,
            "last_modified": _isoformat(state.last_modified),
            # This proves nothing: a copy takes the metadata with it.
            "written_as": None if state.write_id is None else f"{state.resource}={state.token}",
        }
    target = f"/{bucket}/{quote(key, safe='/')}"
    return FoundObject(bucket, key, etag_of(state), rule_of(resources, bucket, key), target, details)


def etag_of(state: HeadAnswer) -> str | None:
    """Return the ETag of the object at a key; None for no object."""
    return state.etag if isinstance(state, Found) else None


def rule_of(resources: Resources, bucket: str, key: str) -> str | None:
    """Return the rule of a key; None where its name is too long for any resource."""
    try:
        return resources.of_any(bucket, key).rule
    except GatewayError:
        return None


def _is_of(write: Announcement, state: HeadAnswer) -> bool:
    """Return whether it is the write's own object, or a tombstone: every tombstone is the gateway's."""
    return isinstance(state, Found) and (state.tombstone or state.write_id == str(write.mark or write.write_id))


def _isoformat(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
