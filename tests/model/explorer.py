"""Runs the object protocol through every interleaving, crash, lost answer and delay of a small scope.

The generators explored are the ones production drives (``gateway.objects.protocol``). Their effects are done on the
stores of ``memory.py``; mutations of S3 become requests in a network that delivers each of them at any later time or
never. After each step the promises are checked; the first broken one is raised with the steps that led there.
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from gateway.fencing.intent import Announcement, Forbidden, Intent, Kind, KnownObject
from gateway.fencing.rules import Presented
from gateway.fencing.token import Token
from gateway.objects import protocol
from gateway.objects.answers import Applied, NotApplied, NotSent, Unknown, WriteAnswer
from gateway.objects.effects import (
    Abandon,
    Amend,
    AwaitTurn,
    Barred,
    Begin,
    Bump,
    Candidate,
    Complete,
    ConditionFailed,
    Delete,
    Deleted,
    Entomb,
    Finish,
    Forbid,
    Form,
    GiveUp,
    Head,
    NotDone,
    Outcome,
    Put,
    RaiseFence,
    Refused,
    Stored,
    StoreRefused,
)
from tests.model.memory import Content, Fences, Objects, etag

BUCKET = "bucket"
NOBODY = Token(0, 0)
RESOURCE = "r"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client with a token: put, complete, amend, delete or barrier. ``data`` names the bytes."""

    kind: str
    token: int
    key: str = "k"
    data: str = ""
    upload: int | None = None


def put(token: int, data: str, key: str = "k") -> Operation:
    return Operation("put", token, key, data)


def complete(token: int, data: str, key: str = "k", upload: int | None = None) -> Operation:
    """``upload``: the number of an upload that others complete too; without, it is one of its own."""
    return Operation("complete", token, key, data, upload)


def amend(token: int, key: str = "k") -> Operation:
    return Operation("amend", token, key)


def delete(token: int, key: str = "k") -> Operation:
    return Operation("delete", token, key)


def barrier(token: int) -> Operation:
    return Operation("barrier", token)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is explored: clients, each with its calls one after the other, and how much may go wrong.

    ``conditional_complete`` False: the store ignores the condition of a completion. ``old_uploads`` False: it refuses
    the upload where an object stands at the key, as if that were newer. ``remembered``: the gateway knows the objects.
    """

    name: str
    clients: tuple[tuple[Operation, ...], ...]
    objects: tuple[tuple[str, str], ...] = ()
    crashes: int = 1
    losses: int = 1
    conditional_complete: bool = True
    old_uploads: bool = True
    remembered: bool = False


@dataclass(frozen=True, slots=True)
class Weakness:
    """What is taken away from the protocol, to show that the explorer sees what it is for."""

    conditions: bool = True
    intents: bool = True
    forbidding: bool = True
    attempts: bool = True
    marking: bool = True
    settlers_id: bool = True
    whole_resource: bool = True


SOUND = Weakness()


class BrokenPromise(AssertionError):
    """A promise of the protocol does not hold. The message is the shortest way there that was found."""


@dataclass(frozen=True, slots=True)
class Done:
    """Not an effect of the protocol: a client has got its answer."""

    operation: Operation
    write_id: UUID
    mark: UUID
    outcome: Outcome


Local: TypeAlias = Any
Script: TypeAlias = Generator[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Request:
    """A mutation on its way to the store. ``content`` is what it will put there; ``client`` waits for its answer."""

    client: int
    effect: Put | Complete | Amend | Delete | Entomb | Bump
    content: Content | None
    awaited: bool = True


@dataclass(frozen=True, slots=True)
class World:
    """Everything there is, as one hashable value. ``clients`` holds the numbers of interned local states."""

    clients: tuple[int, ...]
    fences: Hashable
    objects: tuple[tuple[str, Content], ...]
    network: tuple[Request, ...]
    uploads: frozenset[str]
    crashes: int
    losses: int
    acknowledged: Token = NOBODY
    applied: tuple[tuple[str, Token], ...] = ()
    written: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    reverted: frozenset[str] = frozenset()


@dataclass(slots=True)
class Point:
    """A local state of a client: what it asks for next, and one history of answers that leads there."""

    client: int
    history: tuple[Any, ...]
    effect: Any
    following: dict[Any, int] = field(default_factory=dict)


CRASHED = -1


class Explorer:
    """Breadth first, so that the counterexample is a shortest one."""

    def __init__(
        self, scope: Scope, weakness: Weakness = SOUND, *, promises: str = "P2 P3 P4", limit: int = 400_000
    ) -> None:
        self._scope = scope
        self._promises = frozenset(promises.split())
        self._weakness = weakness
        self._limit = limit
        self._points: list[Point] = []
        self._interned: dict[Hashable, int] = {}

    def run(self) -> int:
        """The number of states seen. Raises ``BrokenPromise``, or AssertionError where the scope is too large."""
        start = self._start()
        before: dict[World, tuple[World, str] | None] = {start: None}
        queue = deque([start])
        while queue:
            world = queue.popleft()
            for label, step in self._steps(world):
                try:
                    after = step()
                except BrokenPromise as broken:
                    raise BrokenPromise(f"{broken}\n{self._story(before, world, label)}") from None
                if after not in before:
                    before[after] = (world, label)
                    queue.append(after)
            assert len(before) <= self._limit, f"{self._scope.name}: more than {self._limit} states"
        return len(before)

    def _start(self) -> World:
        contents = tuple((key, Content(data, Form.PLAIN, "before")) for key, data in self._scope.objects)
        clients = tuple(self._intern(client, ()) for client in range(len(self._scope.clients)))
        uploads = frozenset(
            str(_mark(client, index, operation))
            for client, operations in enumerate(self._scope.clients)
            for index, operation in enumerate(operations)
            if operation.kind == "complete"
        )
        known = {(RESOURCE, BUCKET, key): KnownObject(content.etag) for key, content in contents}
        fences = Fences(known=known if self._scope.remembered else {})
        return World(clients, _freeze(fences), contents, (), uploads, self._scope.crashes, self._scope.losses)

    # Local states -----------------------------------------------------------------------------------------------

    def _intern(self, client: int, history: tuple[Any, ...]) -> int:
        """The number of the state a client is in after these answers; equal states get equal numbers."""
        script = _script(client, self._scope.clients[client], conditional=self._scope.conditional_complete)
        effect = next(script)
        try:
            for answer in history:
                effect = script.send(answer)
        except StopIteration:
            effect = None
        state = (client, effect, tuple(_frames(script)))
        number = self._interned.setdefault(state, len(self._points))
        if number == len(self._points):
            self._points.append(Point(client, history, effect))
        return number

    def _advance(self, world: World, client: int, answer: Any, **changes: Any) -> World:
        point = self._points[world.clients[client]]
        if answer not in point.following:
            point.following[answer] = self._intern(client, (*point.history, answer))
        clients = (*world.clients[:client], point.following[answer], *world.clients[client + 1 :])
        return replace(world, clients=clients, **changes)

    # Steps ------------------------------------------------------------------------------------------------------

    def _steps(self, world: World) -> Iterator[tuple[str, Callable[[], World]]]:
        for client, number in enumerate(world.clients):
            if number == CRASHED or self._points[number].effect is None:
                continue
            effect = self._points[number].effect
            waiting = any(request.client == client and request.awaited for request in world.network)
            if not waiting:
                yield f"{client}: {_label(effect)}", partial(self._do, world, client, effect)
            elif world.losses:
                yield f"{client}: no answer to {_label(effect)}", partial(self._time_out, world, client)
            if world.crashes:
                yield f"{client}: crash", partial(self._crash, world, client)
        for index, request in enumerate(world.network):
            yield f"store: {request.client}'s {_label(request.effect)}", partial(self._deliver, world, index)

    def _do(self, world: World, client: int, effect: Any) -> World:
        if isinstance(effect, Put | Complete | Amend | Delete | Entomb | Bump):
            return self._send(world, client, effect)
        if isinstance(effect, Done):
            return self._advance(self._acknowledge(world, effect), client, None)
        if isinstance(effect, Head):
            return self._advance(world, client, self._objects(world).head(effect.key))
        if isinstance(effect, GiveUp):
            assert effect.intent.upload_id is not None
            return self._advance(world, client, answer=True, uploads=world.uploads - {effect.intent.upload_id})
        fences = _thaw(world.fences)
        answer = self._ask(fences, effect)
        return self._advance(world, client, answer, fences=_freeze(fences))

    def _ask(self, fences: Fences, effect: Any) -> Any:
        match effect:
            case Begin(write, looked):
                return self._begin(fences, write, looked)
            case Finish(write, tag, tombstone):
                return fences.finish(write, tag, tombstone=tombstone) or not self._weakness.intents
            case Abandon(intent):
                return self._abandon(fences, intent)
            case Forbid(intent):
                return self._forbid(fences, intent)
            case AwaitTurn(intent):
                return not fences.is_pending(intent)
            case RaiseFence(resource, presented, caller):
                return fences.raise_fence(resource, presented, caller)
        raise AssertionError(effect)

    def _abandon(self, fences: Fences, intent: Announcement | Intent) -> None:
        held = fences.intents.get((intent.resource, intent.bucket, intent.key))
        if not self._weakness.attempts and held and held.write_id == intent.write_id:
            intent = held
        fences.abandon(intent)

    def _forbid(self, fences: Fences, intent: Intent) -> Forbidden:
        forbidden = fences.forbid(intent)
        if not self._weakness.marking:
            fences.settling.clear()
        if not self._weakness.forbidding:
            fences.forbidden.clear()
            return replace(forbidden, etags=frozenset())
        return forbidden

    def _begin(self, fences: Fences, write: Announcement, looked: KnownObject | None) -> Any:
        begun = fences.begin(write, looked)
        if not self._weakness.intents:
            fences.intents.clear()
        if not self._weakness.whole_resource and any(intent.key != write.key for intent in begun.pending):
            others = {place: i for place, i in fences.intents.items() if i.key != write.key}
            for place in others:
                del fences.intents[place]
            begun = fences.begin(write, looked)
            fences.intents.update(others)
        return begun

    def _send(self, world: World, client: int, effect: Put | Complete | Amend | Delete | Entomb | Bump) -> World:
        content: Content | None = None
        match effect:
            case Complete(write):
                content = Content(self._operation(write).data, Form.MULTIPART, str(write.mark))
            case Put(write, form):
                operation = self._operation(write)
                content = Content(operation.data, form, str(write.write_id))
            case Entomb(owner):
                content = _tombstone(owner, own_id=self._weakness.settlers_id)
            case Bump(_, key, tag, forbidden):
                found = dict(world.objects).get(key)
                if found is None or found.etag != tag:
                    return self._advance(world, client, NotSent("the object has changed"))
                forms = tuple(Candidate(form, etag(found.data, form)) for form in Form)
                other = protocol.choose(forms, forbidden | {tag})
                if other is None:
                    return self._advance(world, client, NotSent("no form is left"))
                content = replace(found, form=other)
        return replace(world, network=_network((*world.network, Request(client, effect, content))))

    def _deliver(self, world: World, index: int) -> World:
        request = world.network[index]
        rest = world.network[:index] + world.network[index + 1 :]
        objects = self._objects(world)
        uploads = world.uploads
        effect = request.effect
        answer: WriteAnswer
        match effect:
            case Complete(write, upload_id, expected):
                assert request.content is not None
                answer = self._completed(objects, write, request.content, expected, is_there=upload_id in uploads)
                uploads -= {upload_id} if isinstance(answer, Applied) else set()
            case Amend(write):
                answer = objects.amend(write.key)
            case Put() | Entomb():
                key = effect.write.key if isinstance(effect, Put) else effect.owner.key
                assert request.content is not None
                answer = objects.put(key, request.content, effect.expected)
            case Delete(write, expected):
                answer = objects.delete(write.key, expected)
            case Bump(_, key, tag):
                assert request.content is not None
                before = objects.objects.get(key)
                answer = objects.put(key, request.content, tag)
                if isinstance(answer, Applied) and before and before.write_id != request.content.write_id:
                    world = self._check_reverted(world, before.write_id)
        after = replace(world, network=rest, objects=tuple(sorted(objects.objects.items())), uploads=uploads)
        if isinstance(answer, Applied):
            after = self._check_applied(after, request)
        return self._advance(after, request.client, answer) if request.awaited else after

    def _completed(
        self,
        objects: Objects,
        write: Announcement,
        content: Content,
        expected: str | None,
        *,
        is_there: bool,
    ) -> WriteAnswer:
        if not is_there:
            return NotApplied(404, protocol.NO_SUCH_UPLOAD)
        if write.kind is Kind.UPLOAD:
            return objects.complete(write.key, content)
        if not self._scope.old_uploads and write.key in objects.objects:
            return NotApplied(409, "ConditionalRequestConflict")
        return objects.put(write.key, content, expected)

    def _time_out(self, world: World, client: int) -> World:
        return self._advance(
            world, client, Unknown("timeout"), network=_ignored(world, client), losses=world.losses - 1
        )

    def _crash(self, world: World, client: int) -> World:
        clients = (*world.clients[:client], CRASHED, *world.clients[client + 1 :])
        return replace(world, clients=clients, network=_ignored(world, client), crashes=world.crashes - 1)

    # Promises ---------------------------------------------------------------------------------------------------

    def _check_applied(self, world: World, request: Request) -> World:
        """P2, P4 and the second half of P3, at the moment a mutation takes effect."""
        match request.effect:
            case Put(write) | Complete(write) | Amend(write) | Delete(write) | Entomb(Announcement() as write):
                pass
            case _:
                return world
        assert write.presented is not None
        token, name = write.presented.token, str(write.write_id)
        self._hold(
            "P2", token >= world.acknowledged, f"{token} took effect after {world.acknowledged} was acknowledged"
        )
        self._hold("P2", token >= dict(world.applied).get(write.key, token), f"{token} replaced a newer holder's write")
        self._hold("P3", name not in world.refused, "a refused write took effect")
        self._hold("P4", _thaw(world.fences).is_pending(write), "a mutation took effect without an intent")
        applied = {**dict(world.applied), write.key: token}
        return replace(
            world, applied=tuple(sorted(applied.items())), written=world.written | {name, str(write.mark or name)}
        )

    def _check_reverted(self, world: World, name: str) -> World:
        """A bump has put back what was there before a write of the same bytes: its metadata are lost."""
        self._hold("P3", name not in world.stored, "a bump undid the metadata of an acknowledged write")
        return replace(world, reverted=world.reverted | {name})

    def _acknowledge(self, world: World, done: Done) -> World:
        """P3 at the moment of the answer, and what P2 holds the others to from here on."""
        name, mark = str(done.write_id), str(done.mark)
        match done.outcome:
            case Stored() | Deleted() | Barred():
                kind = done.operation.kind
                answers = {Stored: ("put", "complete", "amend"), Deleted: ("delete",), Barred: ("barrier",)}
                outcome = type(done.outcome)
                self._hold("P3", kind in answers[outcome], f"a {kind} is answered {outcome.__name__}")
                applied = not isinstance(done.outcome, Stored) or mark in world.written
                self._hold("P3", applied, "a write was acknowledged that has not taken effect")
                if isinstance(done.outcome, Stored):
                    self._hold("P3", mark not in world.reverted, "a write was acknowledged that a bump had undone")
                    world = replace(world, stored=world.stored | {mark})
                return replace(world, acknowledged=max(world.acknowledged, Token(0, done.operation.token)))
            case Refused() | ConditionFailed() | StoreRefused() | NotDone():
                self._hold("P3", name not in world.written, "a write was refused that has taken effect")
                return replace(world, refused=world.refused | {name})
        return world

    def _hold(self, promise: str, holds: bool, otherwise: str) -> None:  # noqa: FBT001 - it is the subject
        if not holds and promise in self._promises:
            raise BrokenPromise(f"{promise}: {otherwise}")

    def _objects(self, world: World) -> Objects:
        return Objects(dict(world.objects), self._weakness.conditions)

    def _operation(self, write: Announcement) -> Operation:
        client, index = divmod(write.write_id.int, 100)
        return self._scope.clients[client][index]

    def _story(self, before: dict[World, tuple[World, str] | None], world: World, last: str) -> str:
        labels = [last]
        while (step := before[world]) is not None:
            world, label = step
            labels.append(label)
        return "\n".join(reversed(labels))


def _write_id(client: int, index: int) -> UUID:
    return UUID(int=client * 100 + index)


def _mark(client: int, index: int, operation: Operation) -> UUID:
    """What stands in the metadata of the object: of those that complete one upload, the same."""
    return _write_id(client, index) if operation.upload is None else UUID(int=10_000 + operation.upload)


def _script(client: int, operations: tuple[Operation, ...], *, conditional: bool) -> Script:
    """A client: its calls one after the other, each driving the protocol."""
    for index, operation in enumerate(operations):
        write_id = _write_id(client, index)
        presented = Presented(Token(0, operation.token))
        write = Announcement(RESOURCE, BUCKET, operation.key, write_id, presented, "explorer")
        outcome: Outcome
        if operation.kind == "put":
            forms = tuple(Candidate(form, etag(operation.data, form)) for form in Form)
            outcome = yield from protocol.put(write, forms)
        elif operation.kind == "complete":
            of_parts = etag(operation.data, Form.MULTIPART)
            mark = _mark(client, index, operation)
            steps = protocol.complete(replace(write, mark=mark), str(mark), of_parts, conditional=conditional)
            outcome = yield from steps
        elif operation.kind == "amend":
            outcome = yield from protocol.amend(write)
        elif operation.kind == "delete":
            outcome = yield from protocol.delete(write)
        else:
            outcome = yield from protocol.barrier(RESOURCE, presented, "explorer")
        yield Done(operation, write_id, _mark(client, index, operation), outcome)


def _frames(script: Script) -> Iterator[Hashable]:
    """Where a generator stands, and what it knows there: equal frames go on equally."""
    current: Any = script
    while current is not None and current.gi_frame is not None:
        frame = current.gi_frame
        known = tuple(
            (name, value) for name, value in sorted(frame.f_locals.items()) if not callable(value) and name != "script"
        )
        yield (
            frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name,
            frame.f_lasti,
            known,
        )
        current = current.gi_yieldfrom


def _tombstone(owner: Announcement | Intent, *, own_id: bool) -> Content:
    """A tombstone with bytes of its own. One that settles an intent is the settler's write, not the settled one's."""
    settles = own_id and isinstance(owner, Intent)
    name = f"settler of {owner.write_id}" if settles else str(owner.write_id)
    return Content(f"tombstone by {name}", Form.PLAIN, name, tombstone=True)


def _label(effect: Any) -> str:
    """An effect in a few words, for the story of a counterexample."""
    if isinstance(effect, Done):
        return f"{effect.operation.kind} is answered {type(effect.outcome).__name__}"
    subject = next((getattr(effect, name) for name in ("write", "intent", "owner") if hasattr(effect, name)), effect)
    particulars = [f"{name}={getattr(effect, name)}" for name in ("expected", "etag", "form") if hasattr(effect, name)]
    key, attempt = getattr(subject, "key", ""), getattr(subject, "attempt", "")
    return " ".join([type(effect).__name__, key, f"#{attempt}", *particulars])


def _freeze(fences: Fences) -> Hashable:
    return tuple(
        tuple(sorted(part.items(), key=lambda item: item[0]))
        for part in (fences.fences, fences.intents, fences.forbidden, fences.known, fences.settling)
    )


def _thaw(frozen: Any) -> Fences:
    return Fences(*(dict(part) for part in frozen))


def _network(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    return tuple(sorted(requests, key=repr))


def _ignored(world: World, client: int) -> tuple[Request, ...]:
    """The requests of a client that no longer waits: they are still on their way."""
    return _network(tuple(replace(r, awaited=False) if r.client == client else r for r in world.network))
