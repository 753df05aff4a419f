"""The promises P1–P5, each checked by its name on a story that is over."""

from __future__ import annotations

import hashlib

from tests.crash.deeds import put, upsert
from tests.crash.story import Acknowledged, Mutation, Story, Zombie


class Promises:
    """Raises AssertionError where one is broken. ``check`` also takes one more write of the new holder to the key."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._place = story.place

    def check(self) -> None:
        """All of them."""
        assert self._story.acknowledged, "nobody took over: there is nothing to promise"
        self.p1_only_the_new_holder_writes_from_its_first_acknowledgement_on()
        self.p2_nothing_takes_effect_after_the_last_acknowledgement()
        self.p3_answers_are_true()
        self.p4_no_older_intent_outlives_an_acknowledgement()
        self.p5_refusals_are_on_record()
        self.the_fence_stands()
        self.the_key_and_the_row_are_free()

    def p1_only_the_new_holder_writes_from_its_first_acknowledgement_on(self) -> None:
        """A write is applied only if its token is not lower than the fence at the moment it takes effect."""
        windows = [(one.before, one.after.sequence) for one in self._story.acknowledged]
        for mutation in self._story.mutations(after=windows[0][1]):
            inside = any(before < mutation.sequence <= after for before, after in windows)
            assert inside, f"P1: {mutation} was none of the new holder's, whose writes were in {windows}"

    def p2_nothing_takes_effect_after_the_last_acknowledgement(self) -> None:
        """Not from a paused or dead process, not from a late request: neither in the store nor in the database."""
        last = self._last
        assert self._story.mutations(after=last.after.sequence) == [], "P2: an older holder's mutation took effect"
        assert self._story.rows() == last.after.rows, "P2: an older holder's row was written"
        assert self._story.content() == self._story.left, "P2: readers see something else than what was acknowledged"
        if last.deed.body is not None:
            assert self._story.left == last.deed.body, "P2: what the new holder was told was stored is not there"

    def p3_answers_are_true(self) -> None:
        """A refusal: no effect, ever. A success: it took effect. Anything else is unknown, or no answer at all."""
        for zombie in self._story.zombies:
            answer, effective = zombie.answer, self._had_effect(zombie)
            if zombie.killed:
                assert answer is None, f"P3: {zombie.deed.name} was answered with {answer} by a dead process"
            elif answer is not None and answer.refused:
                assert not effective, f"P3: {zombie.deed.name} was refused ({answer}) and took effect"
            elif answer is not None and answer.succeeded:
                assert effective or not zombie.deed.shows, f"P3: {zombie.deed.name} succeeded without an effect"
            else:
                assert answer is not None, f"P3: {zombie.deed.name} got no answer from a living process"
                assert answer.unknown, f"P3: {zombie.deed.name} got {answer}, which says nothing"

    def p4_no_older_intent_outlives_an_acknowledgement(self) -> None:
        """An S3 mutation takes effect only while its intent is pending: so none is left that could."""
        for one in self._story.acknowledged:
            assert one.older == 0, f"P4: {one.older} older intents are pending when {one.deed.name} is acknowledged"

    def p5_refusals_are_on_record(self) -> None:
        """A stale write is recorded durably before its refusal is sent."""
        for zombie in self._story.zombies:
            if zombie.answer is not None and zombie.answer.refused_by_fence:
                rows = self.recorded(zombie.answer.request_id)
                wanted = (zombie.token, self._story.successor, "token-stale", True)
                assert set(rows) == {wanted}, f"P5: on record: {rows}"
                assert len(rows) <= zombie.deed.writes, f"P5: on record: {rows}"

    def recorded(self, request_id: str | None = None) -> list[tuple[object, ...]]:
        """Token, fence, reason and whether it was enforced, of the refusals (of one request) on record."""
        sql = """
            SELECT value, fence_value, reason, enforced FROM fencing.rejection
            WHERE resource = $1 AND ($2::text IS NULL OR request_id = $2)
        """
        return self._story.stage.postgres.rows(sql, self._place.resource, request_id)

    def the_fence_stands(self) -> None:
        sql = "SELECT epoch, value FROM fencing.fence WHERE resource = $1"
        fence = self._story.stage.postgres.rows(sql, self._place.resource)
        assert fence == [(0, self._story.successor)], f"the fence is {fence}"

    def the_key_and_the_row_are_free(self) -> None:
        """The new holder goes on working, and nothing is pending after it."""
        story, token = self._story, self._story.successor
        for deed in (put(b"one more"), upsert("one more")):
            answer = story.done(token, deed)
            assert answer.succeeded, f"the next {deed.name} failed: {answer} {answer.body!r}"
        assert story.content() == b"one more"
        assert (self._place.number, "one more") in [row[:2] for row in story.rows()]
        intents = "SELECT count(*) FROM fencing.intent WHERE resource = $1"
        assert story.stage.postgres.value(intents, self._place.resource) == 0, "an intent is left behind"

    @property
    def _last(self) -> Acknowledged:
        return self._story.acknowledged[-1]

    def _had_effect(self, zombie: Zombie) -> bool:
        """Whether its own write took effect while it was running; after that nothing may, which is P1 and P2."""
        assert zombie.down is not None
        if zombie.started.rows != zombie.down.rows:
            return True
        window = range(zombie.started.sequence + 1, zombie.down.sequence + 1)
        mutations = [one for one in self._story.mutations() if one.key == self._place.key]
        return any(one.sequence in window and _is_of(zombie, one) for one in mutations)


def _is_of(zombie: Zombie, mutation: Mutation) -> bool:
    """Whether a mutation is the zombie's write, and not a mutation by which it settled another holder's write."""
    deed = zombie.deed
    if deed.amends:
        return mutation.operation == "PutObjectTagging"
    if deed.body is None:
        return deed.deletes
    if deed.parts > 1:
        # No other write here has several parts. Their boundaries differ from write to write.
        return mutation.etag is not None and mutation.etag.endswith(f"-{deed.parts}")
    plain = hashlib.md5(deed.body)
    return mutation.etag in (plain.hexdigest(), f"{hashlib.md5(plain.digest()).hexdigest()}-1")
