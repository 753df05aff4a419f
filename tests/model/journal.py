"""Runs the journal's protocol through rewinds, dead and surviving servers, crashes and late requests of a small scope.

The explored generators are those of production (``gateway.journal.protocol``). Their effects act on a database that can
be rewound to any state that it had committed. They also act on a journal, and on an object store with late requests. A
rewind starts another run. The server before it may go on, with the sessions that it has: a paused primary that wakes.

All is about one resource and one key. An object write stands for the whole object protocol, which ``explorer.py``
explores. Its request takes effect at any time, unless a settler has broken its condition, or its signature is dead. A
condition that was broken may hold again once a database has forgotten that its ETag is forbidden.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from gateway.fencing.token import Token
from gateway.journal import protocol, trust
from gateway.journal.contents import Contents, Entry, Flaw, Problem
from gateway.journal.evidence import Metadata, Witness
from gateway.journal.trust import Marker, Mode, Opened, Run, Server
from tests.model.explorer import ENDED, BrokenPromise, Numbered, Points, Script, search, with_item
from tests.model.memory import NOW

RESOURCE, BUCKET, KEY = "r", "bucket", "k"
INSTALLATION = UUID(int=1)
SECRET = "secret of the gateways"
WITNESS, FORGER = Witness([SECRET]), Witness(["another secret"])
FORGED = 9


@dataclass(frozen=True, slots=True)
class Write:
    """A write or barrier of a client with a token, through one of the gateways."""

    kind: str
    token: int
    gateway: int = 0


def row(token: int, gateway: int = 0) -> Write:
    return Write("row", token, gateway)


def barrier(token: int, gateway: int = 0) -> Write:
    return Write("barrier", token, gateway)


def put(token: int, gateway: int = 0) -> Write:
    return Write("object", token, gateway)


@dataclass(frozen=True, slots=True)
class Scope:
    """The explored scope: clients with their writes one after the other, gateways that open, and the number of events.

    ``rewinds``: the database goes on from an earlier committed state, in another run on another timeline.
    ``survivors``: the server before goes on, too. ``restarts``: it goes on from its last state, in another run.
    ``restores``: it goes on, on its timeline, from a state before an opening or a position that the journal knows.
    ``reverts``: a rewind within a run, in which all sessions end. ``openings`` of each opener. ``beats``: heartbeats of
    a gateway. ``forgeries``: metadata that no gateway wrote. ``from_flush``: the promise counts from the flush of the
    journal, and not from the answer.

    A process may stop at any step for ever, so crashes need no event of their own.
    """

    name: str
    clients: tuple[tuple[Write, ...], ...]
    mode: Mode = Mode.SYNC
    openers: int = 2
    openings: int = 1
    rewinds: int = 1
    survivors: bool = True
    restarts: int = 0
    restores: int = 0
    reverts: int = 0
    beats: int = 0
    forgeries: int = 0
    evidence: bool = False
    from_flush: bool = False


@dataclass(frozen=True, slots=True)
class Weakness:
    """The parts that are taken away from the protocol, to show that the explorer finds the fault."""

    write: Callable[[Mode], protocol.RaiseSteps[Any]] = protocol.claim
    send: Callable[..., protocol.RaiseSteps[bool]] = protocol.send
    open: Callable[..., protocol.OpenSteps[Any]] = protocol.open_database
    flush: Callable[..., protocol.FlushSteps[bool]] = protocol.flush
    checks_opened: bool = True
    waits: bool = True
    witness: Witness | None = WITNESS
    memory: Callable[..., Any] | None = trust.contradicts


SOUND = Weakness()


# Effects of the scripts beside those of the protocol.


@dataclass(frozen=True, slots=True)
class Connect:
    """Take a session of the gateway with a server that may be served. The answer is the number of the server."""

    gateway: int


@dataclass(frozen=True, slots=True)
class On:
    """An effect of the protocol in a session with this server."""

    server: int
    effect: Any
    write: Write | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Look at the key: the metadata of its object."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle what older holders have under way, as far as this database knows."""

    server: int
    token: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request of the object write."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Wait for the answer to the request, and forget the intent."""

    server: int


@dataclass(frozen=True, slots=True)
class Lasts:
    """The promise counts from here: the client has its answer, or the journal was flushed."""

    write: Write


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat: the position of the database grows. The answer is the new one."""

    server: int


@dataclass(frozen=True, slots=True)
class NotePosition:
    """Append a segment with a position that the database has reached."""

    position: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A gateway has found that the server of this run must not be opened."""

    run: Run
    flaw: Flaw


# The world ------------------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """The committed state of a database. ``waits``: the term of the opening whose lost requests are waited for."""

    fence: int = 0
    opened: Opened = Opened()
    intents: frozenset[int] = frozenset()
    forbidden: frozenset[int] = frozenset()
    waits: int = 0


class Machine(NamedTuple):
    """A server: its run, its state, and whether its sessions live. ``session``: how often all of them have ended."""

    run: Run
    state: State
    lives: bool = True
    session: int = 0


class Request(NamedTuple):
    """The request of a client's object write. ``term``: the newest marker when its intent was committed."""

    phase: str = "none"
    token: int = 0
    broken: bool = False
    term: int = 0
    expected: int = 0
    looked: int = 0
    """The acknowledged token when the write looked at the key."""
    may_restore: frozenset[int] = frozenset()


class Entries(dict[str, Entry]):
    """Entries by resource that can be part of an answer."""

    def __hash__(self) -> int:  # type: ignore[override]  # nothing changes them
        return hash(tuple(self.values()))


class Journal(NamedTuple):
    token: int = 0
    objects: bool = False
    position: int = 0
    marker: Marker | None = None


class Shared(NamedTuple):
    """The state that belongs to no single process. ``line``: the states that the primary has committed."""

    machines: tuple[Machine, ...]
    line: tuple[State, ...]
    journal: Journal
    requests: tuple[Request, ...]
    appended: frozenset[int] = frozenset()
    begun: frozenset[int] = frozenset()
    """The epochs of the lease service that openings have begun."""
    dead: int = 0
    acknowledged: int = 0
    shown: int = 0
    version: int = 0
    metadata: Metadata = Metadata(BUCKET, KEY, None, None, None, None)
    memories: tuple[tuple[trust.OwnRaise, ...], ...] = ((), ())
    rewinds: int = 0
    restarts: int = 0
    restores: int = 0
    reverts: int = 0
    forgeries: int = 0

    @property
    def primary(self) -> Machine:
        return self.machines[-1]


class World(NamedTuple):
    actors: tuple[int, ...]
    shared: int


class SessionLost(Exception):
    """The server of the session is gone: the process gives up, and its client has no answer."""


Outcomes: TypeAlias = list[tuple[Any, Shared]]
STAYS = object()
"""In place of an answer: a part of the effect is done, and the process waits for the rest."""


class Explorer:
    """Tries all that may happen in a scope."""

    def __init__(self, scope: Scope, weakness: Weakness = SOUND, *, limit: int = 3_000_000) -> None:
        self._scope, self._weakness, self._limit = scope, weakness, limit
        self._shared: Numbered[Shared] = Numbered()
        self._scripts: list[Callable[[], Script]] = [
            *(self._client_script(number, writes) for number, writes in enumerate(scope.clients)),
            *(self._opener_script for _ in range(scope.openers)),
            *(self._beating_script for _ in range(1 if scope.beats else 0)),
        ]
        self._points = Points(self._scripts)
        self._moves = cache(self._steps)
        self._events = cache(lambda shared: list(self._happenings(self._shared[shared])))

    def run(self) -> int:
        """The number of states seen. Raises ``BrokenPromise``, or AssertionError where the scope is too large."""
        scope = self._scope
        run = Run("1", 1, NOW)
        state = State(opened=Opened(INSTALLATION, run, 1, scope.mode))
        marker = None if scope.mode is Mode.OFF else Marker(INSTALLATION, 1, 0, run, NOW)
        requests = tuple(Request() for _ in scope.clients)
        start = Shared((Machine(run, state),), (state,), Journal(marker=marker), requests)
        budget = {name: getattr(scope, name) for name in ("rewinds", "restarts", "restores", "reverts", "forgeries")}
        actors = tuple(map(self._points.start, range(len(self._scripts))))
        world = World(actors, self._shared.number(start._replace(**budget)))
        return len(search(world, self._successors, self._limit))

    def _successors(self, world: World) -> Iterator[tuple[str, World]]:
        for index, number in enumerate(world.actors):
            if number != ENDED:
                for label, following, shared in self._moves(number, world.shared):
                    yield label, World(with_item(world.actors, index, following), shared)
        for label, shared in self._events(world.shared):
            yield label, world._replace(shared=shared)

    # The scripts of the processes ---------------------------------------------------------------------------------

    def _client_script(self, number: int, writes: tuple[Write, ...]) -> Callable[[], Script]:
        def script() -> Script:
            for write in writes:
                yield from self._write(number, write)

        return script

    def _write(self, number: int, write: Write) -> Script:
        mode, weak = self._scope.mode, self._weakness
        if self._scope.evidence:
            found = yield Look()
            proven = weak.witness.find(found) if weak.witness else None
            if proven is not None and proven > Token(0, write.token):
                server = yield Connect(write.gateway)
                yield from _on(server, weak.write(mode), Write("evidence", proven.value, write.gateway))
        server = yield Connect(write.gateway)
        done = yield from _on(server, weak.write(mode), write)
        if not isinstance(done, protocol.Committed) or done.outcome == "refused":
            return
        yield Settle(server, write.token)
        if write.kind == "object" and not (yield from self._send(server, write, done.term)):
            return
        if mode is Mode.ASYNC and self._scope.from_flush:
            yield from self._flush(server, write, done.term)
        else:
            yield Lasts(write)

    def _send(self, server: int, write: Write, term: int) -> Generator[Any, Any, bool]:
        entry = Entry(RESOURCE, Token(0, write.token), NOW)
        if not (yield from _on(server, self._weakness.send(self._scope.mode, entry, term, announced=None), write)):
            return False
        yield Send()
        return bool((yield Finish(server)))

    def _flush(self, server: int, write: Write, term: int) -> Script:
        """The gateway flushes the raise. If an opening has not read it, the database is opened once more."""
        entries = (Entry(RESOURCE, Token(0, write.token), NOW),)
        if (yield from _on(server, self._weakness.flush(self._scope.mode, entries, term), None)):
            again = _flaw((yield from _on(None, self._weakness.open(self._scope.mode, again=True), None)))
            if again is not None:
                return
        yield Lasts(write)

    def _opener_script(self) -> Script:
        # Two that open again and again could go on for ever: each makes a marker before the other is done.
        for _ in range(self._scope.openings):
            yield "rests"
            asked: list[Run] = []
            flaw = _flaw((yield from _on(None, self._weakness.open(self._scope.mode), None, asked)))
            if flaw is not None:
                yield Refused(asked[-1], flaw)

    def _beating_script(self) -> Script:
        for _ in range(self._scope.beats):
            server = yield Connect(0)
            yield NotePosition((yield Beat(server)))

    # Steps --------------------------------------------------------------------------------------------------------

    def _steps(self, number: int, before: int) -> list[tuple[str, int, int]]:
        """Return what the process may do next in this state, with its next local state and the next shared one."""
        point, shared = self._points[number], self._shared[before]
        label = f"{point.actor}: {_label(point.effect)}"
        steps = []
        try:
            outcomes = self._perform(point.actor, point.effect, shared)
        except SessionLost:
            return [(f"{label}: its server is gone", ENDED, before)]
        for answer, after in outcomes:
            following = number if answer is STAYS else self._points.advance(number, answer)
            steps.append((label, following, self._shared.number(after)))
        return steps

    def _perform(self, actor: int, effect: Any, shared: Shared) -> Outcomes:  # noqa: C901 - one arm an effect
        match effect:
            case "rests":
                return [(None, shared)] if self._must_open(shared) else []
            case Connect(gateway):
                return self._connect(gateway, shared)
            case Look():
                return [
                    (shared.metadata, _requested(shared, actor, looked=shared.acknowledged, expected=shared.version))
                ]
            case On(server, inner, write):
                return self._in_session(actor, server, inner, write, shared)
            case Settle(server, token):
                return self._settle(server, token, None, shared) or [(None, shared)]
            case Send():
                return [(None, _requested(shared, actor, phase="sent"))]
            case Finish(server):
                return self._finish(actor, server, shared)
            case Lasts(write):
                return [(None, shared._replace(acknowledged=max(shared.acknowledged, write.token)))]
            case Refused(run, flaw):
                if run == shared.primary.run and flaw.problem is not Problem.BUSY:
                    raise BrokenPromise(f"the server that is in use was refused: {flaw}")
                return [(None, shared)]
            case Beat(server):
                state = _machine(shared, server).state
                opened = replace(state.opened, position=state.opened.position + 1)
                return [(opened.position, _committed(shared, server, state._replace(opened=opened)))]
            case NotePosition(position):
                journal = shared.journal._replace(position=max(position, shared.journal.position))
                return [(None, shared._replace(journal=journal))]
        raise AssertionError(effect)

    def _must_open(self, shared: Shared) -> bool:
        """Whether a gateway would open the primary: it refuses to serve, or another opening of it was given up."""
        machine, marker = shared.primary, shared.journal.marker
        server = Server(machine.run, machine.state.opened, NOW)
        return not trust.may_serve(server, self._scope.mode) or (
            self._scope.mode is not Mode.OFF and marker is not None and marker.term > server.opened.term
        )

    def _connect(self, gateway: int, shared: Shared) -> Outcomes:
        outcomes: Outcomes = []
        for number, machine in enumerate(shared.machines):
            server = Server(machine.run, machine.state.opened, NOW)
            if not machine.lives or not (trust.may_serve(server, self._scope.mode) or not self._weakness.checks_opened):
                continue
            fences = {RESOURCE: Token(0, machine.state.fence)}
            if self._weakness.memory is None or not self._weakness.memory(shared.memories[gateway], fences):
                outcomes.append((_handle(number, machine), shared))
        return outcomes

    def _in_session(  # noqa: C901 - one arm an effect
        self, actor: int, server: int, effect: Any, write: Write | None, shared: Shared
    ) -> Outcomes:
        match effect:
            case protocol.Commit(secured, looked):
                assert write is not None
                return self._commit(actor, server, write, secured, looked, shared)
            case protocol.Append(entries):
                return self._append(actor, entries, shared)
            case protocol.Remember():
                return [(None, shared)]
            case protocol.ReadMarker():
                return [(shared.journal.marker, shared)]
            case protocol.AskServer():
                machines = shared.machines if self._scope.survivors else shared.machines[-1:]
                return [(Server(one.run, one.state.opened, NOW), shared) for one in machines if one.lives]
            case protocol.CreateMarker(marker):
                newest = shared.journal.marker
                if marker.term != (newest.term if newest else 0) + 1:
                    return [(False, shared)]
                return [(True, shared._replace(journal=shared.journal._replace(marker=marker)))]
            case protocol.ReadJournal():
                return [(_contents(shared.journal), shared)]
            case protocol.FindLower(run, entries):
                return [(self._lower(shared, run, entries), shared)]
            case protocol.OpenDatabase():
                return self._open(shared, effect)
            case protocol.Begin():
                return [(None, shared)]
        raise AssertionError(effect)

    def _commit(
        self, actor: int, server: int, write: Write, secured: tuple[Entry, ...], looked: int, shared: Shared
    ) -> Outcomes:
        machine = _machine(shared, server)
        state, mode = machine.state, self._scope.mode
        opened = state.opened
        served = trust.may_serve(Server(machine.run, opened, NOW), mode) or not self._weakness.checks_opened
        if not served or opened.term < looked:
            return [(protocol.Behind(), shared)]
        if state.waits > shared.dead and self._weakness.waits:
            return []
        if write.kind == "object" and (settled := self._settle(server, write.token, actor, shared)):
            return settled
        if write.token < state.fence:
            return [(protocol.Committed(opened.term, outcome="refused"), shared)]
        entry = Entry(RESOURCE, Token(0, write.token), NOW, NOW if write.kind == "object" else None)
        raised = (entry,) if write.token > state.fence else ()
        if mode is Mode.SYNC and raised and not any(one.token == entry.token for one in secured):
            return [(protocol.Unsecured(raised), shared)]
        after = state._replace(fence=write.token)
        if write.kind == "object":
            after = after._replace(intents=after.intents | {actor})
            shared = self._announced(actor, write, state, shared)
        elif write.kind == "row" and _is_primary(shared, server) and write.token < shared.acknowledged:
            raise BrokenPromise(f"a row was written with {write.token} after {shared.acknowledged} was acknowledged")
        shared = self._shown(_committed(shared, server, after), write)
        memories = shared.memories
        if self._scope.reverts or mode is Mode.OFF:
            own = trust.remember_own(memories[write.gateway], [trust.OwnRaise(entry, write.token, write.token)])
            memories = (*memories[: write.gateway], own, *memories[write.gateway + 1 :])
        return [(protocol.Committed(opened.term, raised), shared._replace(memories=memories))]

    def _shown(self, shared: Shared, write: Write) -> Shared:
        """A fence that metadata raise is one that a holder has shown."""
        if not self._scope.forgeries:
            return shared
        if write.kind == "evidence" and write.token > shared.shown:
            raise BrokenPromise(f"metadata raised the fence to {write.token}, which no holder has shown")
        return shared._replace(shown=max(shared.shown, write.token))

    def _announced(self, actor: int, write: Write, state: State, shared: Shared) -> Shared:
        marker = shared.journal.marker
        return _requested(
            shared,
            actor,
            phase="announced",
            token=write.token,
            term=marker.term if marker else 0,
            may_restore=_forgotten(shared, state),
        )

    def _append(self, actor: int, entries: tuple[Entry, ...], shared: Shared) -> Outcomes:
        """Two requests to the journal: the segment, and then the marker."""
        journal = shared.journal
        if entries and actor not in shared.appended:
            token = max(journal.token, *(entry.token.value for entry in entries))
            objects = journal.objects or any(entry.objects is not None for entry in entries)
            journal = journal._replace(token=token, objects=objects)
            return [(STAYS, shared._replace(journal=journal, appended=shared.appended | {actor}))]
        return [(journal.marker, shared._replace(appended=shared.appended - {actor}))]

    def _lower(self, shared: Shared, run: Run, entries: tuple[Entry, ...]) -> tuple[protocol.Loss, ...]:
        fence = shared.machines[_server_of(shared, run)].state.fence
        return tuple(protocol.Loss(entry, str(fence)) for entry in entries if entry.token.value > fence)

    def _open(self, shared: Shared, effect: protocol.OpenDatabase) -> Outcomes:
        server = _server_of(shared, effect.run)
        machine = shared.machines[server]
        state = machine.state
        if state.opened.term >= effect.opened.term:
            return [(False, shared)]
        waits = effect.waits is None or RESOURCE in effect.waits
        fence = max([state.fence, *(loss.entry.token.value for loss in effect.losses)])
        state = state._replace(fence=fence, opened=effect.opened, waits=effect.opened.term if waits else state.waits)
        if not effect.continues:
            shared = _epoch_begun(shared, effect.opened.epoch)
        return [(True, _committed(shared, _handle(server, machine), state))]

    def _settle(self, server: int, token: int, own: int | None, shared: Shared) -> Outcomes:
        """Settle one of the pending intents: those with lower tokens, and for an object write those at its key."""
        state = _machine(shared, server).state
        for intent in sorted(state.intents):
            request = shared.requests[intent]
            if intent == own or (own is None and request.token >= token):
                continue
            after = state._replace(intents=state.intents - {intent}, forbidden=state.forbidden | {intent})
            if request.phase != "applied":
                shared = _requested(shared, intent, broken=True)
            shared = _committed(shared, server, after)
            return [(STAYS, one) for one in _restored(shared, _forgotten(shared, after))]
        return []

    def _finish(self, actor: int, server: int, shared: Shared) -> Outcomes:
        request = shared.requests[actor]
        if request.phase == "sent":
            return []
        machine = _machine(shared, server)
        state = machine.state
        if request.phase != "applied" or actor not in state.intents:
            return [(request.phase == "applied", shared)]
        return [(True, _committed(shared, server, state._replace(intents=state.intents - {actor})))]

    # Events -------------------------------------------------------------------------------------------------------

    def _happenings(self, shared: Shared) -> Iterator[tuple[str, int]]:
        for happening in (self._rewound(shared), self._late(shared), self._forged(shared)):
            for label, after in happening:
                yield label, self._shared.number(after)

    def _rewound(self, shared: Shared) -> Iterator[tuple[str, Shared]]:
        timeline, started = shared.primary.run.timeline, NOW + timedelta(seconds=len(shared.machines))
        same, next_one = Run("1", timeline, started), Run("1", timeline + 1, started)
        for index, state in enumerate(shared.line):
            if shared.rewinds:
                after = self._continued(shared, next_one, index)
                yield f"rewind to state {index}", after._replace(rewinds=shared.rewinds - 1)
            if shared.restarts and state is shared.line[-1]:
                after = self._continued(shared, same, index, dies=True)
                yield "restart", after._replace(restarts=shared.restarts - 1)
            if shared.restores and self._tells(state, shared):
                after = self._continued(shared, same, index, dies=True)
                yield f"restore of state {index}", after._replace(restores=shared.restores - 1)
            if shared.reverts:
                yield f"revert to state {index}", self._reverted(shared, index, state)

    def _tells(self, state: State, shared: Shared) -> bool:
        """Whether the journal knows of something that this state does not have: a position, or an opening."""
        before = state.opened.term < shared.primary.state.opened.term
        return before or state.opened.position < shared.journal.position

    def _late(self, shared: Shared) -> Iterator[tuple[str, Shared]]:
        for actor, request in enumerate(shared.requests):
            if request.phase == "sent":
                yield from self._deliver(actor, request, shared)
        marker = shared.journal.marker
        waits = any(machine.state.waits > shared.dead for machine in shared.machines)
        if waits and marker is not None and marker.term > shared.dead:
            yield "signatures expire", shared._replace(dead=marker.term)

    def _forged(self, shared: Shared) -> Iterator[tuple[str, Shared]]:
        if shared.forgeries:
            signature = FORGER.sign(BUCKET, KEY, RESOURCE, str(FORGED), "forged")
            forged = Metadata(BUCKET, KEY, RESOURCE, str(FORGED), "forged", signature)
            yield "metadata are forged", shared._replace(metadata=forged, forgeries=shared.forgeries - 1)

    def _continued(self, shared: Shared, run: Run, index: int, *, dies: bool = False) -> Shared:
        state = shared.line[index]
        before = shared.machines[-1]
        dies = dies or not self._scope.survivors
        machines = (*shared.machines[:-1], before._replace(lives=False, state=State()) if dies else before)
        return shared._replace(machines=(*machines, Machine(run, state)), line=shared.line[: index + 1])

    def _reverted(self, shared: Shared, index: int, state: State) -> Shared:
        primary = shared.primary
        after = primary._replace(state=state, session=primary.session + 1)
        return shared._replace(
            machines=(*shared.machines[:-1], after), line=shared.line[: index + 1], reverts=shared.reverts - 1
        )

    def _deliver(self, actor: int, request: Request, shared: Shared) -> Iterator[tuple[str, Shared]]:
        label = f"the store gets the request of {actor}"
        if request.broken or request.term < shared.dead or request.expected != self._version(request, shared):
            yield f"{label}, which has no effect", _requested(shared, actor, phase="over")
            return
        if self._scope.evidence:
            promised, since = request.looked, "its look at the key"
        else:
            promised, since = shared.acknowledged, "that"
        # Metadata that another client has overwritten prove nothing any more.
        if request.token < promised and not self._scope.forgeries:
            raise BrokenPromise(f"{label} with {request.token}, and {promised} was acknowledged before {since}")
        shared = _requested(shared, actor, phase="applied")
        if self._scope.evidence:
            write_id = str(actor)
            signature = WITNESS.sign(BUCKET, KEY, RESOURCE, str(request.token), write_id)
            metadata = Metadata(BUCKET, KEY, RESOURCE, str(request.token), write_id, signature)
            shared = shared._replace(version=actor + 1, metadata=metadata)
        for after in _restored(shared, request.may_restore):
            yield label, after

    def _version(self, request: Request, shared: Shared) -> int:
        return shared.version if self._scope.evidence else request.expected


# ----------------------------------------------------------------------------------------------------------------------


def _on(
    server: int | None, steps: Generator[Any, Any, Any], write: Write | None, asked: list[Run] | None = None
) -> Generator[Any, Any, Any]:
    """Drive the protocol in a session. ``asked`` gets the runs of the servers that answer."""
    answer: Any = None
    try:
        while True:
            answer = yield On(-1 if server is None else server, steps.send(answer), write)
            if asked is not None and isinstance(answer, Server):
                asked[:] = [answer.run]
    except StopIteration as end:
        return end.value


def _flaw(outcome: Any) -> Flaw | None:
    return outcome if isinstance(outcome, Flaw) else None


def _handle(number: int, machine: Machine) -> int:
    """Return the number of a session with a server: another one after all sessions have ended."""
    return number * 10 + machine.session


def _machine(shared: Shared, handle: int) -> Machine:
    machine = shared.machines[handle // 10]
    if not machine.lives or machine.session != handle % 10:
        raise SessionLost
    return machine


def _server_of(shared: Shared, run: Run) -> int:
    (server,) = (number for number, one in enumerate(shared.machines) if one.run == run)
    if not shared.machines[server].lives:
        raise SessionLost
    return server


def _is_primary(shared: Shared, handle: int) -> bool:
    return handle // 10 == len(shared.machines) - 1


def _committed(shared: Shared, handle: int, state: State) -> Shared:
    """Commit a state. The primary's can be rewound to from now on."""
    number = handle // 10
    machines = with_item(shared.machines, number, shared.machines[number]._replace(state=state))
    line = (*shared.line, state) if number == len(shared.machines) - 1 and state != shared.line[-1] else shared.line
    return shared._replace(machines=machines, line=line)


def _requested(shared: Shared, actor: int, **changes: Any) -> Shared:
    return shared._replace(requests=with_item(shared.requests, actor, shared.requests[actor]._replace(**changes)))


def _epoch_begun(shared: Shared, epoch: int) -> Shared:
    """Tokens of an epoch are issued from the first one on, by every run that begins it."""
    if epoch in shared.begun:
        raise BrokenPromise(f"two runs have begun epoch {epoch} of the lease service")
    return shared._replace(begun=shared.begun | {epoch})


def _forgotten(shared: Shared, state: State) -> frozenset[int]:
    """Return the requests with broken conditions that a database with this state does not know of."""
    broken = {number for number, request in enumerate(shared.requests) if request.broken}
    return frozenset(broken - state.forbidden)


def _restored(shared: Shared, requests: Iterable[int]) -> Iterator[Shared]:
    """Yield the states after a write that may bring back the ETags which these requests are waiting for."""
    yield shared
    back = [number for number in requests if shared.requests[number].broken]
    if back:
        for number in back:
            shared = _requested(shared, number, broken=False)
        yield shared


def _contents(journal: Journal) -> Contents:
    entries = Entries()
    if journal.token:
        entries[RESOURCE] = Entry(RESOURCE, Token(0, journal.token), NOW, NOW if journal.objects else None)
    elif journal.objects:
        entries[RESOURCE] = Entry(RESOURCE, Token(0, 0), NOW, NOW)
    return Contents(position=journal.position, entries=entries, segments=1 if entries or journal.position else 0)


def _label(effect: Any) -> str:
    if isinstance(effect, On):
        session = "" if effect.server < 0 else f" on server {effect.server // 10}"
        of = f"{effect.write.kind} {effect.write.token}: " if effect.write else ""
        return f"{of}{type(effect.effect).__name__}{session}"
    return str(effect)
