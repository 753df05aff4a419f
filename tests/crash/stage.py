"""One case as it happens: writers that become zombies, the holder that takes over, and the promises P1–P5 about both.

The cases share the store, the database, a healthy gateway, and gateways to be disturbed.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, TypeAlias

import asyncpg

from tests.crash.clients import BUCKET, Answer, Client
from tests.crash.kinds import Deed, Kind, Place, Stop, Takeover, put, upsert
from tests.crash.processes import Gateway, Victims
from tests.doubles.s3 import DoubleProcess
from tests.doubles.s3.process import RemoteRule

# The rows at one moment: id, content and last writing transaction of each.
Rows: TypeAlias = tuple[tuple[Any, ...], ...]

IN_TRANSACTION = ("tables.claim.after", "tables.write.after")
"""The steps at which a transaction of the gateway is open."""

_PATIENCE = 60.0
_NEVER = 10**12


class Postgres:
    """One session of plain asyncpg, asked without being async oneself."""

    def __init__(self, dsn: str) -> None:
        # With a factory of its own the runner leaves the thread's event loop alone.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._connection: asyncpg.Connection = self._runner.run(asyncpg.connect(dsn))

    def rows(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._runner.run(self._connection.fetch(sql, *arguments))]

    def value(self, sql: str, *arguments: object) -> Any:
        return self._runner.run(self._connection.fetchval(sql, *arguments))

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


class Stage:
    """The parts that all cases share."""

    def __init__(
        self,
        double: DoubleProcess,
        postgres: Postgres,
        healthy: Gateway,
        victims: Victims,
        sleepers: Victims,
    ) -> None:
        """``sleepers``: the victims that are to be paused inside a transaction, which the database then ends soon."""
        self.double, self.postgres, self.healthy = double, postgres, healthy
        self.victims, self.sleepers = victims, sleepers
        self.clients = ThreadPoolExecutor(max_workers=8)
        self._numbers = count(1)

    @contextmanager
    def story(self) -> Iterator[Story]:
        """A case at a place of its own."""
        story = Story(self, Place(next(self._numbers)))
        sound = False
        try:
            yield story
            sound = True
        finally:
            story.end(sound=sound)

    def stopped(self, stop: Stop, how: str, takeover: Takeover) -> Zombie:
        """A whole case: the writer goes down at a step, the next token takes over, and whatever can come back does."""
        with self.story() as story:
            zombie = story.stopped(stop, how)
            story.taken_over(stop.kind.token + 1, *takeover(stop.kind.before))
            said = story.resumed()
            assert set(said) <= {404, 409, 412}, f"a late request was answered with {said}"
            story.check()
        return zombie

    def close(self) -> None:
        self.clients.shutdown()
        for gateways in (self.victims, self.sleepers):
            gateways.close()

    @contextmanager
    def behaving(self, **traits: tuple[Any, Any]) -> Iterator[None]:
        """The store behaves otherwise for a while: each trait with its value now, and the one afterwards.

        No gateway is being made meanwhile, which would find another store than the rest.
        """
        for gateways in (self.victims, self.sleepers):
            gateways.settle()
        self.double.behave(**{name: now for name, (now, _) in traits.items()})
        try:
            yield
        finally:
            self.double.behave(**{name: usual for name, (_, usual) in traits.items()})

    @contextmanager
    def later(self, passed: timedelta) -> Iterator[None]:
        """So much time has passed by the store's clock, and by no other. Afterwards all gateways learn it anew."""
        try:
            with self.behaving(clock_offset=(passed.total_seconds(), 0.0)):
                yield
        finally:
            for gateway in (self.healthy, *self.victims.awake(), *self.sleepers.awake()):
                Client(gateway.port, 0).read("nothing")


@dataclass(frozen=True, slots=True)
class View:
    """The state at one moment: the double's sequence number, and the rows."""

    sequence: int
    rows: Rows


@dataclass(slots=True)
class Zombie:
    """A writer whose request is stopped on its way. ``down`` is what stood there then."""

    token: int
    deed: Deed
    gateway: Gateway
    started: View
    pending: Future[Answer | None]
    down: View | None = None
    killed: bool = False
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Something the new holder did, acknowledged. ``older``: intents of lower tokens pending at that moment."""

    deed: Deed
    before: int
    after: View
    older: int


class Story:
    """Records one case. ``check`` raises AssertionError where a promise is broken in it."""

    def __init__(self, stage: Stage, place: Place) -> None:
        self.stage, self.place = stage, place
        self.zombies: list[Zombie] = []
        self.acknowledged: list[Acknowledged] = []
        self.successor = 0
        self.left: bytes | None = None  # the object as readers saw it once the new holder was done
        self._victims: list[tuple[Victims, Gateway]] = []
        self._rules: list[RemoteRule] = []
        self._opening = self._sequence()

    # Before

    def done(self, token: int, deed: Deed) -> Answer:
        """Something that happens in good order, before anything goes wrong."""
        return deed.perform(Client(self.stage.healthy.port, token), self.place)

    # The zombies

    def stopped(self, stop: Stop, how: str) -> Zombie:
        """A writer of this kind goes down there, after all that comes before its write."""
        stop.kind.prepare(self)
        return self.stopped_at(stop.kind.token, stop.kind.deed, stop.step, stop.nth, how)

    def stopped_at(self, token: int, deed: Deed, step: str, nth: int, how: str) -> Zombie:
        """A victim does the deed and goes down at a step."""
        sleeps = how == "stop" and step in IN_TRANSACTION
        victim = self._victim(self.stage.sleepers if sleeps else self.stage.victims)
        victim.trap(step, nth, how)
        zombie = self._begin(token, deed, victim)
        # A killed process hangs up a moment before it is seen to be dead.
        victim.wait_down(how, lambda: zombie.pending.done() and zombie.pending.result() is not None)
        if deed.writes > 1:
            self._store_is_done()
        zombie.killed = how == "kill"
        return self._is_down(zombie)

    def in_flight(self, token: int, deed: Deed, *, at: str = "before", how: str | None = None, **match: Any) -> Zombie:
        """A gateway does the deed and its request to the store is held there, evaluated already (at "after") or not.

        The gateway then goes down by ``how``; None: it is the healthy one, which only waits.
        """
        gateway = self.stage.healthy if how is None else self._untrapped()
        rule = self.stage.double.rule("hold", at=at, key=self.place.key, **match)
        self._rules.append(rule)
        zombie = self._begin(token, deed, gateway)
        rule.wait_arrived()
        if how is not None:
            gateway.kill() if how == "kill" else gateway.stop()
            zombie.killed = how == "kill"
        return self._is_down(zombie)

    def unharmed(self, kind: Kind) -> list[str]:
        """A victim writes and nothing happens to it; the steps it passed."""
        victim = self._untrapped()
        zombie = self._begin(kind.token, kind.deed, victim)
        zombie.answer = zombie.pending.result(_PATIENCE)
        self._is_down(zombie)
        return victim.steps()

    # The new holder

    def taken_over(self, token: int, *deeds: Deed) -> None:
        """The new holder, through the healthy gateway. Everything it does must be acknowledged."""
        self.successor = token
        for deed in deeds:
            before = self._sequence()
            answer = self.done(token, deed)
            assert answer.succeeded, f"the new holder's {deed.name} failed: {answer} {answer.body!r}"
            self.acknowledged.append(self.acknowledge(deed, before))
        self.left = self.content()

    def acknowledge(self, deed: Deed, before: int) -> Acknowledged:
        """Note the state at the acknowledgement of a deed of the new holder that began after ``before``."""
        older = "SELECT count(*) FROM fencing.intent WHERE resource = $1 AND value < $2"
        pending: int = self.stage.postgres.value(older, self.place.resource, self.successor)
        return Acknowledged(deed, before, self.view(), pending)

    def resumed(self) -> list[int | None]:
        """Resume every stopped gateway, release every held request, and wait for all of them to end.

        Returns the store's answers to the requests that had been held.
        """
        for zombie in reversed(self.zombies):
            if not zombie.killed and zombie.gateway is not self.stage.healthy:
                zombie.gateway.resume()
        said: list[int | None] = []
        for rule in self._rules:
            rule.release()
            said += rule.wait_finished()["statuses"]
        for zombie in self.zombies:
            zombie.answer = zombie.pending.result(_PATIENCE)
        return said

    def not_overtaken_yet(self) -> None:
        """Accept all effects up to now: no newer holder has been acknowledged, so each writer had the right to them."""
        assert not self.acknowledged
        for zombie in self.zombies:
            zombie.down = self.view()

    def end(self, *, sound: bool) -> None:
        """Leave nothing behind, whatever happened."""
        for rule in self._rules:
            rule.remove()
        for victims, victim in self._victims:
            victims.give_back(victim, sound=sound)

    # The state of the place

    def view(self) -> View:
        return View(self._sequence(), self.rows())

    def rows(self) -> Rows:
        sql = "SELECT id, note, xmin::text FROM accounts WHERE id IN ($1::bigint, -$1::bigint) ORDER BY id"
        return tuple(self.stage.postgres.rows(sql, self.place.number))

    def content(self) -> bytes | None:
        """The object as readers see it."""
        return Client(self.stage.healthy.port, self.successor).get(self.place.key)

    def mutations(self, after: int | None = None) -> list[dict[str, Any]]:
        """Return the mutations that took effect on the keys, in all of the story or after a sequence number."""
        log = self.stage.double.log(self._opening if after is None else after)["mutations"]
        return [one for one in log if one["bucket"] == BUCKET and one["key"] in self.place.keys]

    def recorded(self, request_id: str | None = None) -> list[tuple[object, ...]]:
        """Token, fence, reason and whether it was enforced, of the refusals (of one request) on record."""
        sql = """
            SELECT value, fence_value, reason, enforced FROM fencing.rejection
            WHERE resource = $1 AND ($2::text IS NULL OR request_id = $2)
        """
        return self.stage.postgres.rows(sql, self.place.resource, request_id)

    def _sequence(self) -> int:
        """The number of the store's last step; without the mutations before it, which are many."""
        return int(self.stage.double.log(after=_NEVER)["sequence"])

    def _store_is_done(self) -> None:
        """Return once the store has answered what a gateway had sent for any of the keys before it went down."""
        deadline, quiet = time.monotonic() + _PATIENCE, 0
        # By the last look, the store has accepted, read and begun each request that its socket had at the first look.
        # Each of these steps is one turn of the store's loop, and a look takes at least one turn.
        while quiet < 5:
            assert time.monotonic() < deadline, "the store has not answered"
            requests = [one for one in self.stage.double.requests(self._opening) if one["key"] in self.place.keys]
            quiet = 0 if any(one["status"] is None for one in requests) else quiet + 1

    def _victim(self, victims: Victims) -> Gateway:
        """It may have counted the steps of other stories, until its trap is set."""
        victim = victims.take()
        self._victims.append((victims, victim))
        return victim

    def _untrapped(self) -> Gateway:
        victim = self._victim(self.stage.victims)
        victim.count()
        return victim

    def _begin(self, token: int, deed: Deed, gateway: Gateway) -> Zombie:
        started = self.view()
        pending = self.stage.clients.submit(_attempt, deed, Client(gateway.port, token), self.place)
        return Zombie(token, deed, gateway, started, pending)

    def _is_down(self, zombie: Zombie) -> Zombie:
        zombie.down = self.view()
        self.zombies.append(zombie)
        return zombie

    # The promises

    def check(self) -> None:
        """All of them. It also takes one more write of the new holder to the key."""
        assert self.acknowledged, "nobody took over: there is nothing to promise"
        self.p1_only_the_new_holder_writes_from_its_first_acknowledgement_on()
        self.p2_nothing_takes_effect_after_the_last_acknowledgement()
        self.p3_answers_are_true()
        self.p4_no_older_intent_outlives_an_acknowledgement()
        self.p5_refusals_are_on_record()
        self.the_fence_stands()
        self.the_key_and_the_row_are_free()

    def p1_only_the_new_holder_writes_from_its_first_acknowledgement_on(self) -> None:
        """A write is applied only if its token is not lower than the fence at the moment it takes effect."""
        windows = [(one.before, one.after.sequence) for one in self.acknowledged]
        for mutation in self.mutations(after=windows[0][1]):
            inside = any(before < mutation["sequence"] <= after for before, after in windows)
            assert inside, f"P1: {mutation} was none of the new holder's, whose writes were in {windows}"

    def p2_nothing_takes_effect_after_the_last_acknowledgement(self) -> None:
        """Not from a paused or dead process, not from a late request: neither in the store nor in the database."""
        last = self.acknowledged[-1]
        assert self.mutations(after=last.after.sequence) == [], "P2: an older holder's mutation took effect"
        assert self.rows() == last.after.rows, "P2: an older holder's row was written"
        assert self.content() == self.left, "P2: readers see something else than what was acknowledged"
        if last.deed.body is not None:
            assert self.left == last.deed.body, "P2: what the new holder was told was stored is not there"

    def p3_answers_are_true(self) -> None:
        """A refusal: no effect, ever. A success: it took effect. Anything else is unknown, or no answer at all."""
        for zombie in self.zombies:
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
        for one in self.acknowledged:
            assert one.older == 0, f"P4: {one.older} older intents are pending when {one.deed.name} is acknowledged"

    def p5_refusals_are_on_record(self) -> None:
        """A stale write is recorded durably before its refusal is sent."""
        for zombie in self.zombies:
            if zombie.answer is not None and zombie.answer.refused_by_fence:
                rows = self.recorded(zombie.answer.request_id)
                assert set(rows) == {(zombie.token, self.successor, "token-stale", True)}, f"P5: on record: {rows}"
                assert len(rows) <= zombie.deed.writes, f"P5: on record: {rows}"

    def the_fence_stands(self) -> None:
        fence = self.stage.postgres.rows(
            "SELECT epoch, value FROM fencing.fence WHERE resource = $1", self.place.resource
        )
        assert fence == [(0, self.successor)], f"the fence is {fence}"

    def the_key_and_the_row_are_free(self) -> None:
        """The new holder goes on working, and nothing is pending after it."""
        for deed in (put(b"one more"), upsert("one more")):
            answer = self.done(self.successor, deed)
            assert answer.succeeded, f"the next {deed.name} failed: {answer} {answer.body!r}"
        assert self.content() == b"one more"
        assert (self.place.number, "one more") in [row[:2] for row in self.rows()]
        intents = "SELECT count(*) FROM fencing.intent WHERE resource = $1"
        assert self.stage.postgres.value(intents, self.place.resource) == 0, "an intent is left behind"

    def _had_effect(self, zombie: Zombie) -> bool:
        """Whether its own write took effect while it was running; after that nothing may, which is P1 and P2."""
        assert zombie.down is not None
        if zombie.started.rows != zombie.down.rows:
            return True
        window = range(zombie.started.sequence + 1, zombie.down.sequence + 1)
        mutations = [one for one in self.mutations() if one["key"] == self.place.key and one["sequence"] in window]
        return any(_is_of(zombie.deed, one["operation"], one["etag"]) for one in mutations)


def _is_of(deed: Deed, operation: str, etag: str | None) -> bool:
    """Whether a mutation is this write, and not a mutation by which it settled another holder's write."""
    if deed.amends:
        return operation == "PutObjectTagging"
    if deed.body is None:
        return deed.deletes
    if deed.parts > 1:
        # No other write here has several parts. Their boundaries differ from write to write.
        return etag is not None and etag.endswith(f"-{deed.parts}")
    plain = hashlib.md5(deed.body)
    return etag in (plain.hexdigest(), f"{hashlib.md5(plain.digest()).hexdigest()}-1")


def _attempt(deed: Deed, client: Client, place: Place) -> Answer | None:
    """None where no answer came."""
    try:
        return deed.perform(client, place)
    except OSError:
        return None
