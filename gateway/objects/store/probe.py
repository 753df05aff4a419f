"""Find out what a bucket does with conditions and keys, before the first fenced write to it. Writes to its own keys.

The probe tries conditions one by one and concurrently. A store that checks first and writes later honours every
condition as long as requests come one at a time. A success proves little, so races are run several times; one failure
is enough. ``bucket_profile.py`` draws the conclusions, and ``objects/fenced_write.py`` refuses writes by them.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

from gateway.errors import GatewayError, StoreError, Unavailable
from gateway.objects.s3 import listing_pages
from gateway.objects.s3.answers import (
    Applied,
    Found,
    Missing,
    NotApplied,
    NotSent,
    Rejected,
    Unknown,
    Uploaded,
    WriteAnswer,
)
from gateway.objects.s3.request import own_metadata
from gateway.objects.s3.xml import Part
from gateway.objects.store.bucket_profile import (
    COMPLETE_CONDITIONS,
    DELETE_CONDITION,
    KEYS,
    PUT_CONDITIONS,
    SPELLINGS,
    Contender,
    Etags,
    Observation,
    Probe,
    Profile,
    conclude,
    is_inconclusive,
    judge_race,
    judge_reading,
    judge_spelling,
    judge_state,
    judge_trial,
    lost_race,
    mistakable,
)
from gateway.objects.store.client import path_of, query_of
from gateway.objects.store.operations import WITHOUT_ETAG, Upstream

PREFIX = ".fencing-gateway/probe/"

# Some stores accept one write a second for each key, and refuse others: R2 does.
_ATTEMPTS = 3
_PAUSE = 1.1
_CLEARING = 10.0
_MAX_LISTING = 4 * 1024 * 1024
_READ_ADVICE = "The gateway needs s3:GetObject and, to be told of absence, s3:ListBucket."


@dataclass(frozen=True, slots=True)
class ScratchUpload:
    """A multipart upload of one part that only has to be completed."""

    key: str
    upload_id: str
    part: str
    write_id: str


class ScratchKeys:
    def __init__(self, upstream: Upstream, bucket: str) -> None:
        self._upstream = upstream
        self._bucket = bucket
        self._prefix = f"{PREFIX}{uuid4().hex}/"
        self._written: set[str] = set()
        self._open: set[tuple[str, str]] = set()

    def drop_quotes(self) -> None:
        """Send If-Match to this bucket without quotation marks from now on."""
        self._upstream.drop_quotes(self._bucket)

    async def put(self, name: str, body: bytes, *, expected: str | None) -> Contender:
        """Send a conditional PutObject. Raises ``Unavailable`` where the outcome is not known, ``StoreError`` where the
        gateway may not write to the bucket, or there is none.
        """
        written = await _with_retries(partial(self.contend, name, body, expected=expected))
        if isinstance(written.answer, Rejected) and written.answer.status in (401, 403, 404):
            raise StoreError(written.answer.code, written.answer.status, written.answer.message)
        return written

    async def contend(self, name: str, body: bytes, *, expected: str | None) -> Contender:
        """Send a conditional PutObject in a race; its answer may be anything."""
        return await self._put(self._key(name), body, expected)

    async def occupy(self, template: str, folder: str) -> Contender:
        """Put an empty object where there is none; the answer may be anything.

        ``template`` is the key, with ``{}`` for the folder. The key may be outside of ``PREFIX`` by a slash in front.
        """
        return await self._put(path_of(template.format(f"{self._prefix}{folder}/")), b"", None)

    async def start(self, name: str, body: bytes) -> ScratchUpload | Rejected:
        """Open an upload and store its part. Raises ``Unavailable``."""
        key, write_id = self._key(name), uuid4().hex
        started = await self._upstream.create_multipart((self._bucket, key), _metadata(write_id))
        if isinstance(started, NotSent | Unknown):
            raise _inconclusive(started.reason)
        if isinstance(started, Rejected):
            return started
        self._open.add((key, started.upload_id))
        part = await self._upstream.upload_part((self._bucket, key), started.upload_id, 1, body)
        if isinstance(part, NotSent | Unknown):
            raise _inconclusive(part.reason)
        return ScratchUpload(key, started.upload_id, part.etag, write_id) if isinstance(part, Uploaded) else part

    async def complete(self, upload: ScratchUpload, *, expected: str | None) -> Contender:
        """Send a conditional CompleteMultipartUpload. Raises ``Unavailable``."""
        return await _with_retries(partial(self.contend_upload, upload, expected=expected))

    async def contend_upload(self, upload: ScratchUpload, *, expected: str | None) -> Contender:
        """Send a conditional CompleteMultipartUpload in a race; its answer may be anything."""
        self._written.add(upload.key)
        place, parts = (self._bucket, upload.key), [Part(1, upload.part)]
        answer = await self._upstream.complete_multipart(
            place, upload.upload_id, parts, expected=expected, signed_at=await self._upstream.time()
        )
        if answer == WITHOUT_ETAG:
            state = await self._upstream.head(place)
            if isinstance(state, Found) and state.write_id == upload.write_id:
                answer = Applied(state.etag)
        if isinstance(answer, Applied):
            self._open.discard((upload.key, upload.upload_id))
        return Contender(upload.write_id, answer)

    async def delete(self, name: str, *, expected: str) -> WriteAnswer:
        """Send a conditional DeleteObject. Raises ``Unavailable``."""
        return conclusive((await self.contend_delete(name, expected=expected)).answer)

    async def contend_delete(self, name: str, *, expected: str) -> Contender:
        signed_at = await self._upstream.time()
        answer = await self._upstream.delete((self._bucket, self._key(name)), expected=expected, signed_at=signed_at)
        return Contender(None, answer)

    async def head(self, name: str) -> Found | Missing:
        """Return the object at the key. Raises ``Unavailable`` where the store does not say."""
        state = await self._upstream.head((self._bucket, self._key(name)))
        if isinstance(state, Unknown):
            raise _inconclusive(state.reason, _READ_ADVICE)
        return state

    async def remove(self, name: str) -> bool:
        """Delete without a condition, as only a probe may. Return False where the store does not do it."""
        return await self._remove(self._key(name))

    async def clear(self) -> None:
        """Remove all that the probe has written. A key that the store keeps does no harm under ``PREFIX``."""
        try:
            async with asyncio.timeout(_CLEARING), asyncio.TaskGroup() as group:
                for key, upload_id in self._open:
                    group.create_task(self._upstream.abort_multipart((self._bucket, key), upload_id))
                for key in self._written:
                    group.create_task(self._remove(key))
            await self._clear_versions()
        except (TimeoutError, GatewayError):
            return

    async def _clear_versions(self) -> None:
        """Remove the versions: in a versioned bucket all of them are still there, below a delete marker each."""
        for prefix in (self._prefix, f"/{self._prefix}"):
            query = query_of({"versions": "", "prefix": prefix})
            async with await self._upstream.send("GET", f"/{self._bucket}", query) as response:
                page = listing_pages.read(await response.read(_MAX_LISTING))
            async with asyncio.TaskGroup() as group:
                for entry in () if page is None else page.entries:
                    if version_id := entry.text("VersionId"):
                        group.create_task(self._remove(path_of(entry.name), query_of({"versionId": version_id})))

    async def _put(self, key: str, body: bytes, expected: str | None) -> Contender:
        write_id = uuid4().hex
        self._written.add(key)
        answer = await self._upstream.put(
            (self._bucket, key), body, _metadata(write_id), expected=expected, signed_at=await self._upstream.time()
        )
        return Contender(write_id, answer)

    async def _remove(self, key: str, query: str = "") -> bool:
        try:
            response = await self._upstream.send("DELETE", f"/{self._bucket}/{key}", query)
            async with response:
                await response.read()
        except GatewayError:
            return False
        return response.status in (200, 204)

    def _key(self, name: str) -> str:
        return path_of(self._prefix + name)


def conclusive(answer: WriteAnswer) -> WriteAnswer:
    """Return the answer, if it tells the outcome of the write. Raises ``Unavailable``: such a probe proves nothing."""
    if isinstance(answer, Unknown | NotSent):
        raise _inconclusive(answer.reason)
    return answer


async def _with_retries(send: Callable[[], Awaitable[Contender]]) -> Contender:
    """Send a write again if the store refuses it because of the writes just before."""
    for _ in range(_ATTEMPTS):
        written = await send()
        conclusive(written.answer)
        if not (isinstance(written.answer, Rejected) and written.answer.status == 429):
            break
        await asyncio.sleep(_PAUSE)
    return written


def _inconclusive(reason: str, advice: str = "") -> Unavailable:
    return Unavailable(
        f"The bucket could not be probed: {reason}.", advice=f"Nothing was written. Try again later. {advice}".strip()
    )


def _metadata(write_id: str) -> Sequence[tuple[str, str]]:
    return own_metadata("fencing-gateway/probe", "0", write_id)


__all__ = ["PREFIX", "Profiles", "probe"]

# Two rounds: the first opens the connections, the second finds them open and hits the store at one moment.
_ROUNDS = 2
_WRITERS = 12
_UPLOADS = 3
_DELETES = 3
_TIME_LIMIT = 60.0

# Half of the writers in a race send this much. A store that checks before the body arrives fails then: the small bodies
# are through while the large ones, checked long ago, are still arriving.
_LARGE = 256 * 1024
_BODY = b"the same bytes, several times\n"
_WRONG = "00000000000000000000000000000000"

Racer: TypeAlias = Callable[[], Coroutine[Any, Any, Contender]]


async def probe(upstream: Upstream, bucket: str) -> Profile:
    """Try the bucket out, which takes about 180 small requests, and remove everything again.

    Raises ``StoreError`` where the store does not let the gateway write there (NoSuchBucket, AccessDenied). Raises
    ``Unavailable`` where it does not answer clearly: nothing is known then, and the probe has to be tried again.
    """
    scratch = ScratchKeys(upstream, bucket)
    try:
        async with asyncio.timeout(_TIME_LIMIT):
            return await _Examination(scratch).run()
    except TimeoutError as error:
        raise Unavailable("The bucket could not be probed in time.") from error
    finally:
        await scratch.clear()


class Profiles:
    """The profiles of the buckets written to, each probed once in the life of the process."""

    def __init__(self, upstream: Upstream, distrust: Collection[str] = ()) -> None:
        """``distrust``: conditions not to rely on, whatever the probe saw of them; ``complete``, ``delete``."""
        self._distrust = distrust
        self._upstream = upstream
        self._known: dict[str, Profile] = {}
        self._under_way: dict[str, asyncio.Future[GatewayError | None]] = {}

    async def of(self, bucket: str) -> Profile:
        """Return the bucket's profile. Probe it first, or wait for a probe under way. An inconclusive result is not
        kept.

        Raises what ``probe`` raises.
        """
        while (known := self._known.get(bucket)) is None:
            under_way = self._under_way.get(bucket)
            if under_way is None:
                return await self._find_out(bucket)
            failure = await asyncio.shield(under_way)
            if failure is not None:
                raise failure
        return known

    async def confuses(self, bucket: str, key: str) -> bool:
        """Return whether the store may take a key for another one. Raises what ``probe`` raises.

        Most keys have a spelling that no store mistakes. No probe is needed for these.
        """
        return mistakable(key, KEYS) is not None and mistakable(key, (await self.of(bucket)).confused) is not None

    def forget(self, bucket: str) -> None:
        """Probe the bucket again before the next write: it may do something else from now on."""
        self._known.pop(bucket, None)

    @property
    def known(self) -> Mapping[str, Profile]:
        return dict(self._known)

    async def _find_out(self, bucket: str) -> Profile:
        under_way: asyncio.Future[GatewayError | None] = asyncio.get_running_loop().create_future()
        self._under_way[bucket] = under_way
        failure: GatewayError | None = None
        try:
            found = await probe(self._upstream, bucket)
            self._known[bucket] = found.without(self._distrust)
            return self._known[bucket]
        except GatewayError as error:
            failure = error
            raise
        finally:
            # None without a profile: the request that probed was cancelled, and a waiting one takes over.
            del self._under_way[bucket]
            under_way.set_result(failure)


class _Examination:
    def __init__(self, scratch: ScratchKeys) -> None:
        self._scratch = scratch
        self._seen: list[Observation] = []
        self._plain: list[str] = []
        self._multipart: list[str] = []

    async def run(self) -> Profile:
        """Run all probes, except those that cannot pass any more."""
        await self._try_puts()
        await self._try_absence()
        if self._passing(PUT_CONDITIONS):
            await self._race_puts()
        if self._passing(PUT_CONDITIONS):
            await self._try_completions()
            await self._try_deletes()
            await self._try_spellings()
            await self._try_markers()
        return conclude(self._seen, self._etags())

    async def _try_puts(self) -> None:
        name = "put"
        first = await self._put(Probe.PUT_IF_NONE_MATCH, name, None, "If-None-Match: *")
        _check_admission(first.answer)
        if first.etag is None:
            return
        await self._put(Probe.PUT_IF_NONE_MATCH, name, None, "If-None-Match: * on an object", holds=False)
        second = await self._rewrite(name, first.etag)
        if second.etag is None:
            return
        state = await self._scratch.head(name)
        self._seen.append(judge_reading(state, second.etag, second.write_id))
        await self._put(Probe.PUT_IF_MATCH, name, _WRONG, "If-Match with another ETag", holds=False)
        self._seen.append(judge_state(Probe.PUT_IF_MATCH, await self._scratch.head(name), second.write_id))

    async def _rewrite(self, name: str, etag: str) -> Contender:
        """Write with If-Match in quotation marks as of RFC 9110, or without, as some releases of Ceph need it."""
        written = await self._scratch.put(name, _BODY, expected=etag)
        quoted = not isinstance(written.answer, NotApplied)
        if not quoted:
            self._scratch.drop_quotes()
            written = await self._scratch.put(name, _BODY, expected=etag)
        refused = None if quoted else "If-Match in quotation marks is refused with 412 although it holds"
        self._seen.append(Observation(Probe.QUOTED_CONDITIONS, refused))
        self._note(Probe.PUT_IF_MATCH, written, "If-Match", holds=True)
        return written

    async def _try_absence(self) -> None:
        """Try absence before an object was there, and after it was deleted: versioned buckets differ."""
        name = "absent"
        await self._put(Probe.PUT_IF_MATCH, name, _WRONG, "If-Match without an object", holds=False)
        self._seen.append(judge_state(Probe.PUT_IF_MATCH, await self._scratch.head(name), None))
        created = await self._scratch.put(name, _BODY, expected=None)
        if created.etag is not None and await self._scratch.remove(name):
            await self._put(Probe.PUT_IF_MATCH, name, created.etag, "If-Match on a deleted object", holds=False)
            await self._put(Probe.PUT_IF_NONE_MATCH, name, None, "If-None-Match: * on a deleted object")

    async def _race_puts(self) -> None:
        for turn in range(_ROUNDS):
            name = f"race-{turn}"
            await self._race(Probe.PUT_RACE_IF_NONE_MATCH, name, None, self._writers(name, None, _WRITERS))
            etag = await self._etag(name)
            await self._race(Probe.PUT_RACE_IF_MATCH, name, etag, self._writers(name, etag, _WRITERS))

    async def _try_completions(self) -> None:
        name = "upload"
        created = await self._complete(Probe.COMPLETE_IF_NONE_MATCH, name, None, "If-None-Match: *")
        if created is None or created.etag is None:
            return
        self._multipart.append(created.etag)
        state = await self._scratch.head(name)
        self._seen.append(judge_reading(state, created.etag, created.write_id))
        await self._complete(Probe.COMPLETE_IF_NONE_MATCH, name, None, "If-None-Match: * on an object", holds=False)
        standing = created
        if self._passing(frozenset({Probe.COMPLETE_IF_NONE_MATCH})):
            standing = await self._complete(Probe.COMPLETE_IF_MATCH, name, created.etag, "If-Match") or created
        await self._complete(Probe.COMPLETE_IF_MATCH, name, _WRONG, "If-Match with another ETag", holds=False)
        if self._passing(COMPLETE_CONDITIONS):
            state = await self._scratch.head(name)
            self._seen.append(judge_state(Probe.COMPLETE_IF_MATCH, state, standing.write_id))
        if self._passing(COMPLETE_CONDITIONS):
            await self._race_completions(name)

    async def _race_completions(self, name: str) -> None:
        etag = await self._etag(name)
        uploads = [await self._scratch.start(name, _unique()) for _ in range(_UPLOADS)]
        contend = partial(self._scratch.contend_upload, expected=etag)
        entries: list[Racer] = [partial(contend, each) for each in uploads if isinstance(each, ScratchUpload)]
        await self._race(Probe.COMPLETE_RACE, name, etag, [*entries, *self._writers(name, etag, _UPLOADS)])

    async def _try_deletes(self) -> None:
        name = "delete"
        written = await self._scratch.put(name, _BODY, expected=None)
        if written.etag is None:
            return
        self._plain.append(written.etag)
        answer = await self._scratch.delete(name, expected=_WRONG)
        self._seen.append(judge_trial(Probe.DELETE_IF_MATCH, "If-Match with another ETag", answer, holds=False))
        if not self._passing(DELETE_CONDITION):
            return
        self._seen.append(judge_state(Probe.DELETE_IF_MATCH, await self._scratch.head(name), written.write_id))
        for _ in range(_ROUNDS):
            await self._race_deletes(name, await self._etag(name))
        answer = await self._scratch.delete(name, expected=await self._etag(name))
        self._seen.append(judge_trial(Probe.DELETE_IF_MATCH, "If-Match", answer, holds=True))
        self._seen.append(judge_state(Probe.DELETE_IF_MATCH, await self._scratch.head(name), None))

    async def _race_deletes(self, name: str, etag: str) -> None:
        entries: list[Racer] = []
        for _ in range(_DELETES):
            entries.append(partial(self._scratch.contend_delete, name, expected=etag))
            entries.append(partial(self._scratch.contend, name, _unique(), expected=etag))
        await self._race(Probe.DELETE_RACE, name, etag, entries)

    async def _try_spellings(self) -> None:
        """Try spellings, and again where an answer is open: a moment of trouble must not pass for a confusion."""
        first, open_ended = await self._try_folder("first")
        self._seen += (await self._try_folder("second"))[0] if open_ended else first

    async def _try_markers(self) -> None:
        """Try conditions at keys that end in a slash, which some stores keep as directories. Then try uploads there."""
        kept, name = Probe.KEYS_TRAILING_SLASH, "marker/"
        if not self._passing(frozenset({kept})):
            return
        first = await self._scratch.put(name, b"", expected=None)
        self._seen.append(judge_trial(kept, "If-None-Match: *", first.answer, holds=True))
        if first.etag is None:
            return
        for expected, condition in ((None, "If-None-Match: * on an object"), (_WRONG, "If-Match with another ETag")):
            refused = await self._scratch.put(name, b"", expected=expected)
            self._seen.append(judge_trial(kept, condition, refused.answer, holds=False))
        if self._passing(DELETE_CONDITION):
            answer = await self._scratch.delete(name, expected=_WRONG)
            self._seen.append(judge_trial(kept, "If-Match of a delete", answer, holds=False))
        self._seen.append(judge_state(kept, await self._scratch.head(name), first.write_id))
        tombstone = await self._scratch.put(name, _BODY, expected=first.etag)
        self._seen.append(judge_trial(kept, "If-Match", tombstone.answer, holds=True))
        self._seen.append(judge_state(kept, await self._scratch.head(name), tombstone.write_id))
        if self._passing(frozenset({kept})):
            await self._race(kept, name, tombstone.etag, self._writers(name, tombstone.etag, _WRITERS))
            await self._try_marker_uploads("uploaded/")

    async def _try_marker_uploads(self, name: str) -> None:
        kind = Probe.UPLOADS_TRAILING_SLASH
        created = await self._complete(kind, name, None, "If-None-Match: *")
        if created is None or created.etag is None:
            return
        state = await self._scratch.head(name)
        if not isinstance(state, Found) or state.write_id != created.write_id:
            # It may have become the object without the slash.
            self._seen.append(Observation(Probe.KEYS_TRAILING_SLASH, "an upload of such a key is not there afterwards"))
        if self._passing(COMPLETE_CONDITIONS):
            await self._complete(kind, name, None, "If-None-Match: * on an object", holds=False)
            await self._complete(kind, name, _WRONG, "If-Match with another ETag", holds=False)

    async def _try_folder(self, folder: str) -> tuple[list[Observation], bool]:
        """Write keys in each spelling. Return the observations, and whether an answer says nothing about them.

        Raises ``Unavailable`` where the store does not take writes at present.
        """
        await self._scratch.put(f"{folder}/control", _BODY, expected=None)
        plain = await self._occupied((each.plain for each in SPELLINGS.values()), folder)
        others = await self._occupied((other for each in SPELLINGS.values() for other in each.others), folder)
        undisturbed = {key for key in plain if await self._is_still_there(key.format(f"{folder}/"), plain[key])}
        seen: list[Observation] = []
        for kind, each in SPELLINGS.items():
            answers = {other: others[other].answer for other in each.others}
            standing = plain[each.plain].answer
            seen += judge_spelling(kind, each.plain, standing, answers, undisturbed=each.plain in undisturbed)
        answered = [each.answer for each in (*plain.values(), *others.values())]
        return seen, any(is_inconclusive(each) for each in answered)

    async def _is_still_there(self, name: str, put: Contender) -> bool:
        if not isinstance(put.answer, Applied):
            return False
        after = await self._scratch.head(name)
        return isinstance(after, Found) and after.write_id == put.write_id

    async def _occupied(self, templates: Iterable[str], folder: str) -> dict[str, Contender]:
        async with asyncio.TaskGroup() as group:
            tasks = {each: group.create_task(self._scratch.occupy(each, folder)) for each in dict.fromkeys(templates)}
        return {each: task.result() for each, task in tasks.items()}

    async def _put(
        self, kind: Probe, name: str, expected: str | None, condition: str, *, holds: bool = True
    ) -> Contender:
        written = await self._scratch.put(name, _BODY, expected=expected)
        self._note(kind, written, condition, holds=holds)
        return written

    def _note(self, kind: Probe, written: Contender, condition: str, *, holds: bool) -> None:
        self._seen.append(judge_trial(kind, condition, written.answer, holds=holds))
        if written.etag is not None:
            self._plain.append(written.etag)

    async def _complete(
        self, kind: Probe, name: str, expected: str | None, condition: str, *, holds: bool = True
    ) -> Contender | None:
        upload = await self._scratch.start(name, _BODY)
        if isinstance(upload, Rejected):
            self._seen.append(judge_trial(kind, "A multipart upload", upload, holds=holds))
            return None
        written = await self._scratch.complete(upload, expected=expected)
        self._seen.append(judge_trial(kind, condition, written.answer, holds=holds))
        return written

    async def _race(self, kind: Probe, name: str, before: str | None, entries: Sequence[Racer]) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(entry()) for entry in entries]
        contenders = [task.result() for task in tasks]
        for contender in contenders:
            if not lost_race(contender.answer):
                conclusive(contender.answer)
        self._seen.append(judge_race(kind, before, contenders, await self._scratch.head(name)))

    def _writers(self, name: str, expected: str | None, count: int) -> list[Racer]:
        """Return writers of different bytes on one condition, with the large bodies first."""
        bodies = [_unique().ljust(_LARGE if 2 * number < count else 0) for number in range(count)]
        return [partial(self._scratch.contend, name, body, expected=expected) for body in bodies]

    async def _etag(self, name: str) -> str:
        """Return the ETag that stands at the key. If no contender has won, put an object there."""
        state = await self._scratch.head(name)
        if isinstance(state, Found):
            return state.etag
        written = await self._scratch.put(name, _BODY, expected=None)
        return written.etag or _WRONG

    def _passing(self, kinds: frozenset[Probe]) -> bool:
        """Return whether no observation speaks against these probes yet."""
        return not any(each.probe in kinds and each.complaint is not None for each in self._seen)

    def _etags(self) -> Etags:
        md5 = hashlib.md5(_BODY, usedforsecurity=False)
        of_parts = hashlib.md5(md5.digest(), usedforsecurity=False).hexdigest()
        return Etags(self._plain, md5.hexdigest(), self._multipart, f"{of_parts}-1")


def _check_admission(answer: WriteAnswer) -> None:
    """Raise the refusal of the first write, unless it is 501: that is how a store says that it knows no conditions."""
    if isinstance(answer, Rejected) and answer.status != 501:
        raise StoreError(answer.code, answer.status, answer.message)


def _unique() -> bytes:
    """Return bytes of a contender's own. With the same bytes it would leave the ETag of the next one's condition."""
    return f"{uuid4()}\n".encode()
