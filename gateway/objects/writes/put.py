"""PutObject: small bodies from memory, large ones in parts while they come in."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from gateway.db import uploads
from gateway.db.database import Database
from gateway.db.uploads import Place, Upload
from gateway.errors import GatewayError, OutcomeUnknown, SqlError, StoreError, Unavailable
from gateway.http.body import Memory
from gateway.objects.body.form import FormBody
from gateway.objects.body.intake import VerifiedBody, WriteBody
from gateway.objects.exchange import Exchange
from gateway.objects.protocol import generator
from gateway.objects.protocol.effects import Candidate, Deleted, Stored
from gateway.objects.run import bump
from gateway.objects.run.runner import OperationPayload, path_of
from gateway.objects.s3.answers import Applied, NotApplied, Rejected, Started
from gateway.objects.s3.bucket_profile import Profile
from gateway.objects.s3.conditions import WriteCondition
from gateway.objects.s3.documents import Part, etag_of_parts
from gateway.objects.store.client import TextHeaders
from gateway.objects.store.operations import Upstream
from gateway.objects.writes.fenced_write import FencedWrite, FencedWrites, refusal_of_store
from gateway.objects.writes.staging import Staged, part_size, stage, stage_unsized

_SMALL_PARTS = 64 * 1024 * 1024


class Puts:
    """Writes of whole bodies. ``threshold``: the largest body, in bytes, that is put from memory."""

    def __init__(
        self, database: Database, upstream: Upstream, writes: FencedWrites, memory: Memory, threshold: int
    ) -> None:
        self._database = database
        self._upstream = upstream
        self._writes = writes
        self._memory = memory
        self._threshold = threshold

    async def put(self, call: Exchange) -> None:
        """PutObject."""
        write = await self._writes.write(call, beginning=call.beginning)
        intake = call.intake()
        # Refused before the body where that spares somebody the body; else the write itself finds out.
        if call.body_is_held_back or intake.length > self._threshold:
            await self._writes.admit(write)
        stored = await self.store(write, intake, call.request.headers, call.request.condition)
        await call.answer.stored(stored.applied, write.target.resource, stored.fence)

    async def store(
        self, write: FencedWrite, intake: WriteBody, headers: TextHeaders, condition: WriteCondition | None = None
    ) -> Stored:
        """Take a body in and write it. ``headers`` are those of the object it will be."""
        profile = await self._writes.fit(write)
        if intake.length > self._threshold:
            return await self._in_parts(write, profile, intake, headers, condition)
        async with self._memory.reserved(intake.length):
            body = await intake.whole()
            return await self.at_once(write.keeping(intake.captured(body.content)), profile, body, headers, condition)

    async def store_form(self, write: FencedWrite, intake: FormBody, headers: TextHeaders) -> Stored:
        """Take the file of a form in and write it: only its end tells how long it is. ``headers`` are the object's."""
        profile = await self._writes.fit(write)
        most = intake.most
        if most <= self._threshold:
            async with self._memory.reserved(most):
                body = await intake.whole()
                return await self.at_once(write.keeping(intake.captured()), profile, body, headers)
        await self._writes.admit(write)
        # One part at a time is put together in memory, so it must not grow with the body.
        size = part_size(min(most, _SMALL_PARTS), write.write_id)
        async with self._memory.reserved(size):
            staged = await stage_unsized(
                self._upstream,
                (write.bucket, path_of(write.key)),
                intake.chunks(),
                size,
                [*headers, *write.marks()],
                self._database.now,
                register=_Register(self._database, write),
            )
        if isinstance(staged, Rejected):
            raise refusal_of_store(staged)
        write = write.with_payload(intake.proof.size, intake.proof.sha256).keeping(intake.captured())
        return await self.complete(write, profile, staged, None)

    async def at_once(
        self,
        write: FencedWrite,
        profile: Profile,
        body: VerifiedBody,
        headers: TextHeaders,
        condition: WriteCondition | None = None,
    ) -> Stored:
        """Write a body that is in memory."""
        write = write.with_payload(body.digests.size, body.digests.sha256)
        steps = generator.put(write.announcement(profile), _forms(profile, body), condition)
        payload = OperationPayload(body.content, [*headers, *body.digests.headers, *write.marks_of_call()])
        return stored(await self._writes.run(write, steps, payload))

    async def _in_parts(
        self,
        write: FencedWrite,
        profile: Profile,
        intake: WriteBody,
        headers: TextHeaders,
        condition: WriteCondition | None,
    ) -> Stored:
        register = _Register(self._database, write)
        staged = await stage(
            self._upstream,
            (write.bucket, path_of(write.key)),
            intake,
            [*headers, *write.marks()],
            self._database.now,
            write_id=write.write_id,
            register=register,
        )
        if isinstance(staged, Rejected):
            raise refusal_of_store(staged)
        write = write.with_payload(intake.length, intake.proof.sha256).keeping(intake.captured())
        return await self.complete(write, profile, staged, condition)

    async def staged_by(
        self, write: FencedWrite, headers: TextHeaders, parts_of: Callable[[str], Awaitable[tuple[Part, ...]]]
    ) -> Staged:
        """Stage an object whose parts come from elsewhere; ``parts_of`` gets the upload's id."""
        register, path = _Register(self._database, write), path_of(write.key)
        now = await self._database.now()
        started = await self._upstream.create_multipart(write.bucket, path, [*headers, *write.marks()], signed_at=now)
        if isinstance(started, Rejected):
            raise refusal_of_store(started)
        if not isinstance(started, Started):
            raise Unavailable(f"Nothing was written: {started.reason}.")
        done = False
        try:
            await register.opened(started.upload_id)
            parts = await parts_of(started.upload_id)
            done = True
        finally:
            if not done:
                await self._give_up(write, started.upload_id)
        return Staged(started.upload_id, parts, etag_of_parts(parts))

    async def still_staging(self, write: FencedWrite, upload_id: str) -> None:
        """Keep the sweeper away from an upload that takes long."""
        await _Register(self._database, write).touched(upload_id)

    async def complete(
        self, write: FencedWrite, profile: Profile, staged: Staged, condition: WriteCondition | None
    ) -> Stored:
        """Make what was staged the object; whatever else comes of it, nothing stays staged."""
        steps = generator.complete(
            write.announcement(),
            staged.upload_id,
            staged.etag,
            condition,
            conditional=profile.complete_conditions,
        )
        done = False
        try:
            result = stored(await self._writes.run(write, steps, OperationPayload(parts=staged.parts)))
            done = True
            return result
        except StoreError as error:
            if error.s3_code != generator.NO_SUCH_UPLOAD:
                raise
            raise Unavailable("Nothing was written: what was staged has been given up meanwhile.") from error
        finally:
            if done:
                # The sweeper finds what stays on the register. The write has taken effect.
                with suppress(Unavailable, OutcomeUnknown, SqlError):
                    await _Register(self._database, write).closed(staged.upload_id)
            else:
                await self._give_up(write, staged.upload_id)

    async def _give_up(self, write: FencedWrite, upload_id: str) -> None:
        """Abort an upload. It stays on the register, for the sweeper, where the store does not say that it did."""
        with suppress(GatewayError):
            answer = await self._upstream.abort_multipart(
                write.bucket, path_of(write.key), upload_id, signed_at=await self._database.now()
            )
            if isinstance(answer, Applied | NotApplied):
                await _Register(self._database, write).closed(upload_id)


@dataclass(frozen=True, slots=True)
class _Register:
    """Notes the uploads of one write, so that the sweeper finds those that a lost gateway leaves behind."""

    database: Database
    write: FencedWrite

    async def opened(self, upload_id: str) -> None:
        presented, attempt = self.write.presented, self.write.attempt
        token = presented.token if presented else None
        upload = Upload(self._place(upload_id), self.write.write_id, token, attempt.holder, attempt.caller, staged=True)
        await uploads.opened(self.database, upload)

    async def touched(self, upload_id: str) -> None:
        await uploads.touched(self.database, self._place(upload_id))

    async def closed(self, upload_id: str) -> None:
        await uploads.closed(self.database, self._place(upload_id))

    def _place(self, upload_id: str) -> Place:
        return Place(self.write.target.resource, self.write.bucket, self.write.key, upload_id)


def stored(done: Stored | Deleted) -> Stored:
    """What a put, a copy, a completion, an amendment has come to."""
    assert isinstance(done, Stored)
    return done


def _forms(profile: Profile, body: VerifiedBody) -> tuple[Candidate, ...]:
    """The forms this body can be sent in to this store, with the ETags they have where ETags are hashes.

    Where the probe has seen unique ones, an object's may be a hash all the same: it can be encrypted otherwise than its
    bucket is by default, and that default may have changed since.
    """
    forms = bump.candidates(body.digests.md5)
    return forms if profile.can_bump else forms[:1]
