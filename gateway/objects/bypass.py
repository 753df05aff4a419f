"""Find writes that bypassed the gateway: during a write of the same key, and by a scan of the store's listings.

The check during a write decides nothing. While a write is announced and not being settled, nothing else that passes the
gateway can change its key. An object that is seen then, and is neither that write's nor the remembered one, came from
elsewhere.

A round of the scan is some pages of listings, bucket by bucket. The next round goes on where it ended, in whichever
gateway. The scan asks for a key itself only where the listing differs from what is remembered. That may be a write
under way, a listing that is behind, or a store whose listings have other ETags than its objects.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.background import at_a_time
from gateway.db import bypasses
from gateway.db.bypasses import FoundObject, RememberedObject, ScanPosition
from gateway.db.database import Database
from gateway.errors import GatewayError, Unavailable
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
from gateway.objects.s3 import listing_pages, xml
from gateway.objects.s3.answers import Found, HeadAnswer, Missing, Unknown, unquoted
from gateway.objects.s3.listing_pages import ListingEntry
from gateway.objects.store.client import path_of, place_of, query_of
from gateway.objects.store.operations import Upstream
from gateway.observe.events import BypassFound, Observe, SweepFailed


class BypassCheck:
    def __init__(self, database: Database, upstream: Upstream, observe: Observe, resources: Resources) -> None:
        self._database, self._upstream = database, upstream
        self._observe, self._resources = observe, resources
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
                    await self._record(write, await self._upstream.head(place_of(write.bucket, write.key)))
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
    target = f"/{bucket}/{path_of(key)}"
    return FoundObject(bucket, key, etag_of(state), rule_of(resources, bucket, key), target, details)


def etag_of(state: HeadAnswer) -> str | None:
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


PAGE = 1000
"""Keys that are compared at a time, and listed."""
MOST_PAGES = 10
"""Pages of a round, at the most."""
_AT_A_TIME = 8
_MAX_DOCUMENT = 16 * 1024 * 1024
# Sorts behind everything that a key is made of.
_LAST = "\U0010fffd"
_SPACE, _BEFORE_SURROGATES, _AFTER_SURROGATES = 0x20, 0xD7FF, 0xE000


@dataclass(frozen=True, slots=True)
class _Listed:
    """A page of the store's listing: its objects by their keys. ``last``: the key it ends with, None at the end."""

    objects: dict[str, ListingEntry]
    last: str | None


class BypassScan:
    def __init__(
        self, database: Database, upstream: Upstream, resources: Resources, observe: Observe, page: int = PAGE
    ) -> None:
        self._database, self._upstream, self._resources = database, upstream, resources
        self._observe, self._page = observe, page

    async def round(self, pages: int = MOST_PAGES) -> int:
        """Compare up to so many pages, and return how many bypasses that has found. Raises ``GatewayError``.

        A bucket that cannot be listed is an event. The scan goes on with the next one.
        """
        started, found = await self._database.now(), 0
        await bypasses.enlist_buckets(self._database)
        while pages > 0 and (beat := await bypasses.take_bucket(self._database, started)) is not None:
            bucket = beat.bucket
            try:
                while pages > 0 and beat is not None:
                    pages -= 1
                    findings, beat = await self._scan_page(beat)
                    found += findings
            except GatewayError as error:
                self._observe(SweepFailed(bucket, error.message))
        return found

    async def _scan_page(self, beat: ScanPosition) -> tuple[int, ScanPosition | None]:
        """Compare one page. Return its number of bypasses, and where to go on; None at the bucket's end."""
        rows = await bypasses.read_remembered(self._database, beat, self._page)
        listed = await self._listed(beat, rows) if rows else _Listed({}, None)
        ends = [rows[-1].key] if len(rows) == self._page else []
        if listed is None:
            if await self._bucket_vanished(beat.bucket, rows):
                return 1, None
        elif listed.last is not None:
            ends.append(listed.last)
        end = min(ends, default=None)
        scanned = [row for row in rows if end is None or row.key <= end]
        found = 0 if listed is None else await self._compared(beat.bucket, scanned, listed)
        await bypasses.save_position(self._database, beat, end or "")
        return found, None if end is None else ScanPosition(beat.bucket, end)

    async def _bucket_vanished(self, bucket: str, rows: Sequence[RememberedObject]) -> bool:
        """Record that a bucket is gone, if one of these rows shows that it was not deleted through the gateway."""
        target = f"/{bucket}"
        count = await bypasses.record_vanished_bucket(self._database, bucket, target, rows)
        if count:
            self._observe(BypassFound("objects", "bucket-vanished", None, target, "sweep", count))
            return True
        stands = [row for row in rows if row.witnessed and row.etag is not None and not row.tombstone]
        await bypasses.forget_objects(self._database, bucket, [row for row in rows if row not in stands])
        return False

    async def _compared(self, bucket: str, rows: Sequence[RememberedObject], listed: _Listed) -> int:
        fits = {row.key for row in rows if row.etag == _etag(listed.objects.get(row.key))}
        outdated = [row for row in rows if self._resource(bucket, row.key) != row.resource]
        await bypasses.forget_objects(self._database, bucket, outdated)
        suspects = [row for row in rows if row.witnessed and row.key not in fits and row not in outdated]

        async def examine(row: RememberedObject) -> bool:
            return await self._examine(bucket, row, listed.objects.get(row.key))

        return sum(await at_a_time(_AT_A_TIME, examine, suspects))

    async def _examine(self, bucket: str, row: RememberedObject, entry: ListingEntry | None) -> bool:
        """Ask for the key itself, and record what is there if it still differs from what is remembered."""
        state = await self._upstream.head(place_of(bucket, row.key))
        if isinstance(state, Unknown) or etag_of(state) == row.etag or (isinstance(state, Found) and state.tombstone):
            return False
        owner = _owner(entry)
        seen = evidence(self._resources, bucket, row.key, state, found_by="sweep", owner=owner)
        reason = await bypasses.record_by_sweep(self._database, row, seen)
        if reason is not None:
            self._observe(BypassFound("objects", reason, row.resource, seen.target, "sweep"))
        return reason is not None

    async def _listed(self, beat: ScanPosition, rows: Sequence[RememberedObject]) -> _Listed | None:
        """Return the page of the store that begins with the first of these keys; None where there is no such bucket."""
        after = max(beat.after, _just_before(rows[0].key))
        query = query_of(
            {
                "list-type": "2",
                "encoding-type": "url",
                "fetch-owner": "true",
                "max-keys": self._page,
                "start-after": after or None,
            }
        )
        async with await self._upstream.send("GET", f"/{beat.bucket}", query) as response:
            document = await response.read(_MAX_DOCUMENT)
        if response.status == 404:
            error = xml.read_error(document)
            if error is not None and error.code == "NoSuchBucket":
                return None
        page = await asyncio.to_thread(listing_pages.read, document) if response.status == 200 else None
        if page is None:
            raise Unavailable(f"The store answered with {response.status} when asked for a listing of {beat.bucket}.")
        objects = {entry.name: entry for entry in page.entries if entry.kind == listing_pages.CONTENTS}
        last = max(objects, default=None) if page.is_truncated else None
        if page.is_truncated and (last is None or last <= after):
            raise Unavailable(f"The store's listing of {beat.bucket} does not go on.")
        return _Listed(objects, last)

    def _resource(self, bucket: str, key: str) -> str | None:
        try:
            return self._resources.target(bucket, key).resource
        except GatewayError:
            return None


def _etag(entry: ListingEntry | None) -> str | None:
    return None if entry is None else unquoted(entry.text("ETag").strip())


def _owner(entry: ListingEntry | None) -> str | None:
    if entry is None:
        return None
    names = {xml.local(field): field.text for child in entry.element if xml.local(child) == "Owner" for field in child}
    return names.get("DisplayName") or names.get("ID")


def _just_before(key: str) -> str:
    """Return a key that sorts right before another, for a listing that begins with it; empty if there is none."""
    head, last = key[:-1], ord(key[-1])
    if last <= _SPACE:
        return head
    return f"{head}{chr(_BEFORE_SURROGATES if last == _AFTER_SURROGATES else last - 1)}{_LAST}"
