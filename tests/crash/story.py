"""One case as it happens: writers that become zombies, the holder that takes over, and what was seen on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.crash.clients import BUCKET, Answer, Client
from tests.crash.processes import Gateway, Victims
from tests.doubles.s3.process import RemoteRule

if TYPE_CHECKING:
    from tests.crash.stage import Stage

# The rows at one moment: id, content and last writing transaction of each.
Rows: TypeAlias = tuple[tuple[Any, ...], ...]

IN_TRANSACTION = ("tables.claim.after", "tables.write.after")
"""The steps at which a transaction of the gateway is open."""

_PATIENCE = 60.0
_NEVER = 10**12


@dataclass(frozen=True, slots=True)
class Place:
    """A row and a key of one resource, used by no other test. ``-number`` is another row, to write two at once.

    ``uploads`` are the ids of the uploads opened for the key, the last one last.
    """

    number: int
    uploads: list[str] = field(default_factory=list, compare=False)

    @property
    def key(self) -> str:
        return f"accounts/{self.number}/photo"

    @property
    def second_key(self) -> str:
        return f"accounts/{self.number}/album"

    @property
    def resource(self) -> str:
        return f"public.accounts/{self.number}"


@dataclass(frozen=True, slots=True)
class Deed:
    """Something a client does. ``body`` is what it puts, None where it puts nothing.

    ``parts``: in how many parts, where it goes in parts. ``writes``: how many keys it writes, all of them at once.
    ``amends``: it changes the object's tags.
    ``shows`` False: where it succeeds, nothing of it is to be seen in the store or in the table.
    """

    name: str
    perform: Callable[[Client, Place], Answer] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    parts: int = 1
    writes: int = 1
    deletes: bool = False
    amends: bool = False
    shows: bool = True


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mutation of one of the place's keys, from the double's log."""

    sequence: int
    key: str
    operation: str
    etag: str | None


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
    """Records one case. The promises are checked on it afterwards."""

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

    def unharmed(self, token: int, deed: Deed) -> list[str]:
        """A victim does the deed and nothing happens to it; the steps it passed."""
        victim = self._untrapped()
        zombie = self._begin(token, deed, victim)
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

    def mutations(self, after: int | None = None) -> list[Mutation]:
        """Return the mutations that took effect on the keys, in all of the story or after a sequence number."""
        log = self.stage.double.log(self._opening if after is None else after)["mutations"]
        return [
            Mutation(one["sequence"], one["key"], one["operation"], one["etag"])
            for one in log
            if one["bucket"] == BUCKET and one["key"] in (self.place.key, self.place.second_key)
        ]

    def _sequence(self) -> int:
        """The number of the store's last step; without the mutations before it, which are many."""
        return int(self.stage.double.log(after=_NEVER)["sequence"])

    def _store_is_done(self) -> None:
        """Return once the store has answered what a gateway had sent for any of the keys before it went down."""
        keys = (self.place.key, self.place.second_key)
        deadline, quiet = time.monotonic() + _PATIENCE, 0
        # By the last look, the store has accepted, read and begun each request that its socket had at the first look.
        # Each of these steps is one turn of the store's loop, and a look takes at least one turn.
        while quiet < 5:
            assert time.monotonic() < deadline, "the store has not answered"
            requests = [one for one in self.stage.double.requests(self._opening) if one["key"] in keys]
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


def _attempt(deed: Deed, client: Client, place: Place) -> Answer | None:
    """None where no answer came."""
    try:
        return deed.perform(client, place)
    except OSError:
        return None
