"""Runs the object protocol through every interleaving, crash, lost answer and delay of a small scope.

The explored generators are those of production (``gateway.objects.protocol.mutation``). Their effects act on the
stores of ``memory.py``. A mutation of S3 becomes a request in a network, which delivers it at any later time or never.
After each step the explorer checks the promises. It raises the first broken one with the steps that led there.

A world is a tuple of numbers. Each number stands for one value: the local state of a client, a request on its way, or
the shared state. So worlds are quickly hashed and compared. The explorer works out a step's effect on these parts once,
since it is the same in every world that has them. The explorers of other protocols share ``search`` and ``Points``.
"""

import gc
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from types import GeneratorType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast
from uuid import UUID

from gateway.fencing.decision import Enforcement, Presented
from gateway.fencing.intent import Announcement, Begun, Duplicates, ForbiddenETags, Intent, KnownObject, MutationKind
from gateway.fencing.token import Token
from gateway.objects.protocol import effects, mutation
from gateway.objects.protocol.effects import UploadForm
from gateway.objects.s3.answers import EXPIRED, Applied, NotApplied, NotSent, Unknown, WriteAnswer
from tests.model.memory import HIGHEST, NOW, TICK, Content, Fences, Objects, etag

Script: TypeAlias = Generator[Any, Any, None]
Node = TypeVar("Node", bound=Hashable)
Label = TypeVar("Label")
Value = TypeVar("Value", bound=Hashable)


class BrokenPromise(AssertionError):
    """A promise does not hold. The message has the shortest way there that was found, a line for each step.

    ``way``: the worlds on it, each with the step that was taken there.
    """

    way: tuple[tuple[Any, Any], ...] = ()


def search(
    start: Node,
    successors: Callable[[Node], Iterable[tuple[Label, Node]]],
    limit: int = 3_000_000,
    told: Callable[[Node, Label], str] = lambda _, label: str(label),
) -> dict[Node, tuple[Node, Label] | None]:
    """Visit every world, breadth first, and return each with the step that led there.

    Raises ``BrokenPromise``, or AssertionError where there are too many.
    """
    before: dict[Node, tuple[Node, Label] | None] = {start: None}
    queue = deque([start])
    with _nothing_is_garbage():
        while queue:
            world = queue.popleft()
            try:
                for label, after in successors(world):
                    if after not in before:
                        before[after] = world, label
                        queue.append(after)
            except BrokenPromise as broken:
                way = []
                while (step := before[world]) is not None:
                    world = step[0]
                    way.append(step)
                found = BrokenPromise("\n".join((str(broken), *(told(*step) for step in reversed(way)))))
                found.way = (*reversed(way), *broken.way)
                raise found from None
            assert len(before) <= limit, f"more than {limit} states"
    return before


@contextmanager
def _nothing_is_garbage() -> Iterator[None]:
    """Worlds are kept, and without cycles: to look through all of them again and again for garbage finds none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Numbered(Generic[Value]):
    """Gives values numbers; equal values get equal ones."""

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}
        self._values: list[Value] = []

    def number(self, value: Value) -> int:
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def __getitem__(self, number: int) -> Value:
        return self._values[number]


@dataclass(slots=True)
class Point:
    """A local state of a process: what it asks for next, and one history of answers that leads there."""

    actor: int
    history: tuple[Any, ...]
    effect: Any
    following: dict[Any, int] = field(default_factory=dict)


ENDED = -1
"""The local state of a process that is done or dead."""


class Points:
    """The local states of processes as numbers. Each process is a generator; equal states get equal numbers."""

    def __init__(self, scripts: Sequence[Callable[[], Script]]) -> None:
        self._scripts = scripts
        self._points: list[Point] = []
        self._interned: dict[Hashable, int] = {}

    def __getitem__(self, number: int) -> Point:
        return self._points[number]

    def start(self, actor: int) -> int:
        return self._intern(actor, ())

    def advance(self, number: int, answer: Any) -> int:
        """The state that a process is in which got this answer in the state of that number."""
        point = self._points[number]
        if answer not in point.following:
            point.following[answer] = self._intern(point.actor, (*point.history, answer))
        return point.following[answer]

    def _intern(self, actor: int, history: tuple[Any, ...]) -> int:
        script = self._scripts[actor]()
        effect = next(script)
        try:
            for answer in history:
                effect = script.send(answer)
        except StopIteration:
            return ENDED
        state = (actor, effect, _frames(script))
        number = self._interned.setdefault(state, len(self._points))
        if number == len(self._points):
            self._points.append(Point(actor, history, effect))
        return number


def _frames(script: Any) -> Hashable:
    """Return a generator's position and its variables there, with those of the generators that it drives.

    Equal frames go on equally.
    """
    found = []
    current: Any = script
    while current is not None and current.gi_frame is not None:
        frame = current.gi_frame
        known = tuple(
            (name, _hashable(value))
            for name, value in sorted(frame.f_locals.items())
            if name != "self" and (isinstance(value, GeneratorType) or not callable(value))
        )
        found.append((frame.f_code.co_qualname, frame.f_lasti, known))
        current = current.gi_yieldfrom
    return tuple(found)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, GeneratorType):
        return _frames(value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return cast("Hashable", value)


# The object protocol --------------------------------------------------------------------------------------------------

BUCKET = "bucket"
NOBODY = Token(0, 0)
RESOURCE = "r"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client with a token: put, complete, amend, delete or barrier; or of the sweeper, which has none.
    ``data`` names the bytes.
    """

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


def sweep(key: str = "k") -> Operation:
    return Operation("sweep", 0, key)


@dataclass(frozen=True, slots=True)
class Scope:
    """The explored scope: clients, each with its calls one after the other, and the number of faults.

    ``again``: how many requests the network delivers a second time. ``duplicates``: the setting of that name.
    ``ticks``: how often the store's clock moves on, and lets signatures expire.

    ``conditional_complete`` False: the store ignores the condition of a completion. ``old_uploads`` False: it refuses
    an upload at a key with an object, as if that were newer. ``conditional_delete`` False: it ignores the
    condition of a delete. ``bumps`` False: it gives the same bytes no other ETag. ``remembered``: the gateway knows the
    objects. ``tombstones``: keys that begin with one.
    """

    name: str
    clients: tuple[tuple[Operation, ...], ...]
    objects: tuple[tuple[str, str], ...] = ()
    crashes: int = 1
    losses: int = 1
    conditional_complete: bool = True
    old_uploads: bool = True
    conditional_delete: bool = True
    bumps: bool = True
    remembered: bool = False
    tombstones: tuple[str, ...] = ()
    again: int = 0
    ticks: int = 0
    duplicates: Duplicates = Duplicates.TOLERATE


@dataclass(frozen=True, slots=True)
class Weakness:
    """The parts that are taken away from the protocol, to show that the explorer finds the fault."""

    conditions: bool = True
    intents: bool = True
    forbidding: bool = True
    attempts: bool = True
    marking: bool = True
    settlers_id: bool = True
    whole_resource: bool = True
    remembering: bool = True
    remembering_failures: bool = True
    forbidding_over: bool = True
    matching_over: bool = True
    minding_sweeps: bool = True
    waiting_for_what_has_begun: bool = True
    signed_when_announced: bool = True
    forbidding_for_bumps: bool = True


SOUND = Weakness()


@dataclass(frozen=True, slots=True)
class Done:
    """Not an effect of the protocol: a client has got its answer."""

    operation: Operation
    write_id: UUID
    mark: UUID
    outcome: effects.WriteOutcome


Mutation: TypeAlias = effects.Put | effects.Complete | effects.Amend | effects.Delete | effects.Entomb | effects.Bump


@dataclass(frozen=True, slots=True)
class Request:
    """A mutation on its way to the store. ``content`` is what it will put there; ``client`` waits for its answer."""

    client: int
    effect: Mutation
    content: Content | None
    signed_at: datetime
    awaited: bool = True


@dataclass(frozen=True, slots=True)
class Shared:
    """The state that belongs to no single client: the stores, and all effects and answers so far."""

    fences: Hashable
    objects: tuple[tuple[str, Content], ...]
    uploads: frozenset[str]
    now: datetime = NOW
    acknowledged: Token = NOBODY
    applied: tuple[tuple[str, Token], ...] = ()
    written: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    reverted: frozenset[str] = frozenset()


class World(NamedTuple):
    """The whole state, as numbers: of the clients' local states, of the requests (sorted), and of the shared state.

    The last fields say how many crashes, losses, second deliveries and ticks of the clock may still come.
    """

    clients: tuple[int, ...]
    network: tuple[int, ...]
    shared: int
    crashes: int
    losses: int
    again: int
    ticks: int


# A method of the explorer, and the client or the request of the network that it is about.
Happening: TypeAlias = Callable[[World, int], World]
Step: TypeAlias = tuple[Happening, int]

_TIMEOUT = Unknown("timeout")


class Explorer:
    """Tries all that may happen in a scope."""

    def __init__(
        self, scope: Scope, weakness: Weakness = SOUND, *, promises: str = "P2 P3 P4", limit: int = 400_000
    ) -> None:
        self._scope = scope
        self._promises = frozenset(promises.split())
        self._weakness = weakness
        self._limit = limit
        self._points = Points([partial(_script, client, scope) for client in range(len(scope.clients))])
        self._shared: Numbered[Shared] = Numbered()
        self._requests: Numbered[Request] = Numbered()
        # The answers of these depend on the numbers in their arguments and on nothing else.
        # A store that applies a request later than ``late_after`` says is a store whose requests outlive their intents.
        self._lifetime = TICK if weakness.waiting_for_what_has_begun else 2 * TICK
        self._performed = cache(self._perform)
        self._delivered = cache(self._take_effect)
        self._waiting = cache(self._who_waits)
        self._unawaited = cache(self._await_no_longer)
        self._ticked = cache(self._one_tick_later)
        self._copied = cache(self._copy)

    def run(self) -> int:
        """The number of states seen. Raises ``BrokenPromise``, or AssertionError where the scope is too large."""
        return len(search(self._start(), self._successors, self._limit, self._label))

    def _successors(self, world: World) -> Iterator[tuple[Step, World]]:
        for happening, subject in self._happenings(world):
            try:
                yield (happening, subject), happening(world, subject)
            except BrokenPromise as broken:
                found = BrokenPromise(f"{broken}\nin the end {self._label(world, (happening, subject))}")
                found.way = ((world, (happening, subject)),)
                raise found from None

    def _start(self) -> World:
        contents = tuple(
            (key, Content(data, UploadForm.PLAIN, "before", tombstone=key in self._scope.tombstones))
            for key, data in self._scope.objects
        )
        clients = tuple(map(self._points.start, range(len(self._scope.clients))))
        uploads = frozenset(
            str(_mark(client, index, operation))
            for client, operations in enumerate(self._scope.clients)
            for index, operation in enumerate(operations)
            if operation.kind in ("complete", "put", "delete")
        )
        known = {(RESOURCE, BUCKET, key): KnownObject(content.etag) for key, content in contents}
        fences = Fences(known=known if self._scope.remembered else {})
        shared = self._shared.number(Shared(_freeze(fences), contents, uploads))
        scope = self._scope
        return World(clients, (), shared, scope.crashes, scope.losses, scope.again, scope.ticks)

    # Steps ------------------------------------------------------------------------------------------------------

    def _happenings(self, world: World) -> Iterator[tuple[Happening, int]]:
        """Yield the events that may happen next, each with its client or request."""
        waiting = self._waiting(world.network)
        for client, number in enumerate(world.clients):
            if number == ENDED:
                continue
            if client not in waiting:
                yield self._do, client
            elif world.losses:
                yield self._time_out, client
            if world.crashes:
                yield self._crash, client
        for index in range(len(world.network)):
            yield self._deliver, index
            if world.again:
                yield self._deliver_a_copy, index
        if world.ticks:
            yield self._tick, 0

    def _do(self, world: World, client: int) -> World:
        clients, network, shared, *budget = world
        request, number, shared = self._performed(clients[client], shared)
        if request is not None:
            return World(clients, tuple(sorted((*network, request))), shared, *budget)
        return World(with_item(clients, client, number), network, shared, *budget)

    def _deliver(self, world: World, index: int) -> World:
        clients, network, shared, *budget = world
        request, rest = network[index], network[:index] + network[index + 1 :]
        client = self._requests[request].client
        number, shared = self._delivered(request, shared, clients[client])
        return World(with_item(clients, client, number), rest, shared, *budget)

    def _deliver_a_copy(self, world: World, index: int) -> World:
        """Deliver a request that stays on its way. The store's answer to the later delivery reaches no client."""
        copy = self._copied(world.network[index])
        clients, network, shared, crashes, losses, again, ticks = self._deliver(world, index)
        return World(clients, tuple(sorted((*network, copy))), shared, crashes, losses, again - 1, ticks)

    def _time_out(self, world: World, client: int) -> World:
        clients, network, shared, crashes, losses, again, ticks = world
        number = self._points.advance(clients[client], _TIMEOUT)
        unawaited = self._unawaited(network, client)
        return World(with_item(clients, client, number), unawaited, shared, crashes, losses - 1, again, ticks)

    def _tick(self, world: World, _: int) -> World:
        """Let the store's clock move on."""
        clients, network, shared, crashes, losses, again, ticks = world
        return World(clients, network, self._ticked(shared), crashes, losses, again, ticks - 1)

    def _crash(self, world: World, client: int) -> World:
        clients, network, shared, crashes, losses, again, ticks = world
        unawaited = self._unawaited(network, client)
        return World(with_item(clients, client, ENDED), unawaited, shared, crashes - 1, losses, again, ticks)

    def _one_tick_later(self, shared: int) -> int:
        before = self._shared[shared]
        return self._shared.number(replace(before, now=before.now + TICK))

    def _copy(self, request: int) -> int:
        return self._requests.number(replace(self._requests[request], awaited=False))

    def _who_waits(self, network: tuple[int, ...]) -> frozenset[int]:
        requests = (self._requests[number] for number in network)
        return frozenset(request.client for request in requests if request.awaited)

    def _await_no_longer(self, network: tuple[int, ...], client: int) -> tuple[int, ...]:
        """The client no longer waits for an answer. Its requests are still on their way."""
        requests = (self._requests[number] for number in network)
        unawaited = (replace(one, awaited=False) if one.client == client else one for one in requests)
        return tuple(sorted(map(self._requests.number, unawaited)))

    # The requests of a client -------------------------------------------------------------------------------------

    def _perform(self, number: int, shared: int) -> tuple[int | None, int, int]:
        """Take a client's next step in this state.

        Returns the numbers of the request that it sends, of its new state, and of the new shared state. The first is
        None if it has its answer at once.
        """
        point, before = self._points[number], self._shared[shared]
        if isinstance(point.effect, Mutation):
            request, after = self._request(point.actor, point.effect, before)
            if isinstance(request, Request):
                return self._requests.number(request), number, self._shared.number(after)
            return None, self._points.advance(number, request), shared
        answer, after = self._answer(point.effect, before)
        return None, self._points.advance(number, answer), self._shared.number(after)

    def _answer(self, effect: Any, shared: Shared) -> tuple[Any, Shared]:
        if isinstance(effect, Done):
            return None, self._acknowledge(shared, effect)
        if isinstance(effect, effects.Look):
            return self._objects(shared).head(effect.key), shared
        if isinstance(effect, effects.Pause):
            return False, shared  # a later attempt is like an earlier one
        if isinstance(effect, effects.GiveUp):
            assert effect.intent.upload_id is not None
            return True, replace(shared, uploads=shared.uploads - {effect.intent.upload_id})
        fences = _thaw(shared)
        answer = self._ask(fences, effect)
        return answer, replace(shared, fences=_freeze(fences))

    def _ask(self, fences: Fences, effect: Any) -> Any:
        match effect:
            case effects.Begin(write, _, outcomes):
                waits = self._scope.duplicates is Duplicates.WAIT
                begun = self._begin(fences, replace(effect, outcomes=None if waits else outcomes))
                return begun.under(self._scope.duplicates)
            case effects.Finish(write, tag, tombstone, spent):
                spent = spent if self._weakness.remembering else ()
                return fences.finish(write, tag, tombstone=tombstone, spent=spent) or not self._weakness.intents
            case effects.Abandon(intent, _, spent):
                remembering = self._weakness.remembering and self._weakness.remembering_failures
                return self._abandon(fences, intent, spent if remembering else ())
            case effects.Forbid(intent):
                return self._forbid(fences, intent).under(self._scope.duplicates)
            case effects.AwaitTurn(intent):
                return not fences.is_pending(intent)
            case effects.RaiseFence(resource, presented, caller):
                return fences.raise_fence(resource, presented, caller)
        raise AssertionError(effect)

    def _abandon(self, fences: Fences, intent: Announcement | Intent, spent: tuple[str, ...]) -> None:
        if not self._weakness.attempts:
            held = fences.intents.get((intent.resource, intent.bucket, intent.key), ())
            intent = next((one for one in held if one.write_id == intent.write_id), intent)
        fences.abandon(intent, spent)

    def _forbid(self, fences: Fences, intent: Intent) -> ForbiddenETags:
        forbidden = fences.forbid(intent)
        if not self._weakness.marking:
            fences.settling.clear()
        if not self._weakness.forbidding:
            fences.forbidden.clear()
            return replace(forbidden, etags=frozenset())
        return forbidden

    def _begin(self, fences: Fences, effect: effects.Begin) -> Begun:
        weakness, write, before = self._weakness, effect.write, dict(fences.forbidden)
        if not weakness.minding_sweeps:
            _forget_intents(fences, lambda intent: intent.token == HIGHEST)
        if weakness.matching_over:
            begun = fences.begin(write, effect.looked, effect.outcomes, effect.over, calm=effect.calm)
        else:
            begun = _begin_over_anything(fences, effect)
        if begun.over and not weakness.marking:
            fences.settling.clear()
        if begun.over and not (weakness.forbidding and weakness.forbidding_over):
            fences.forbidden = before
            begun = replace(begun, waited=before.get((write.resource, write.bucket, write.key), ()))
        if not weakness.intents:
            fences.intents.clear()
        if not weakness.whole_resource and any(intent.key != write.key for intent in begun.pending):
            others = {place: held for place, held in fences.intents.items() if place[2] != write.key}
            for place in others:
                del fences.intents[place]
            begun = fences.begin(write, effect.looked, effect.outcomes, effect.over, calm=effect.calm)
            fences.intents.update(others)
        return begun

    def _request(self, client: int, effect: Mutation, shared: Shared) -> tuple[Request | NotSent, Shared]:
        content: Content | None = None
        signed_at = getattr(effect, "signed_at", None) if self._weakness.signed_when_announced else shared.now
        match effect:
            case effects.Complete(write):
                operation = self._operation(write)
                if operation.kind == "delete":
                    content = replace(_tombstone(write, own_id=True), form=UploadForm.MULTIPART)
                else:
                    content = Content(operation.data, UploadForm.MULTIPART, str(write.mark or write.write_id))
            case effects.Put(write, form):
                operation = self._operation(write)
                content = Content(operation.data, form, str(write.write_id))
            case effects.Entomb(owner):
                content = _tombstone(owner, own_id=self._weakness.settlers_id)
                if isinstance(owner, Intent):
                    place = (owner.resource, owner.bucket, owner.key)
                    shared, signed_at = self._forbid_until_dead(shared, place, effect.expected)
            case effects.Bump() if not self._scope.bumps:
                return NotSent("the store cannot bump"), shared
            case effects.Bump(resource, bucket, key, tag, forbidden, spent):
                found = dict(shared.objects).get(key)
                if found is None or found.etag != tag:
                    return NotSent("the object has changed"), shared
                forms = tuple(effects.Candidate(form, etag(found.data, form)) for form in UploadForm)
                other = mutation.choose(forms, forbidden | spent | {tag}) or mutation.choose(forms, forbidden | {tag})
                if other is None:
                    return NotSent("no form is left"), shared
                content = replace(found, form=other)
                shared, signed_at = self._forbid_until_dead(shared, (resource, bucket, key), tag)
        assert signed_at is not None
        return Request(client, effect, content, signed_at), shared

    def _forbid_until_dead(
        self, shared: Shared, place: tuple[str, str, str], expected: str | None
    ) -> tuple[Shared, datetime]:
        """Forbid the condition of a request that nothing announces, and sign it."""
        if not self._weakness.forbidding_for_bumps:
            return shared, shared.now
        fences = _thaw(shared)
        signed_at = fences.forbid_until_dead(place, expected)
        if not self._weakness.forbidding:
            fences.forbidden.clear()
        return replace(shared, fences=_freeze(fences)), signed_at

    # The requests at the store ----------------------------------------------------------------------------------

    def _take_effect(self, number: int, before: int, client: int) -> tuple[int, int]:
        """The numbers of the client's state and of what is shared once the request of this number has arrived."""
        request, shared = self._requests[number], self._shared[before]
        objects = self._objects(shared)
        uploads = shared.uploads
        effect = request.effect
        answer: WriteAnswer
        match effect:
            case _ if shared.now > request.signed_at + self._lifetime:
                answer = NotApplied(403, EXPIRED)
            case effects.Complete(write, upload_id, expected):
                assert request.content is not None
                answer = self._completed(objects, write, request.content, expected, is_there=upload_id in uploads)
                uploads -= {upload_id} if isinstance(answer, Applied) else set()
            case effects.Amend(write) if self._operation(write).kind == "sweep":
                self._check_swept(shared, write.key)
                answer = objects.remove(write.key)
            case effects.Amend(write):
                answer = objects.amend(write.key)
            case effects.Put() | effects.Entomb():
                key = effect.write.key if isinstance(effect, effects.Put) else effect.owner.key
                assert request.content is not None
                answer = objects.put(key, request.content, effect.expected)
            case effects.Delete(write, expected):
                answer = objects.delete(write.key, expected)
            case effects.Bump(_, _, key, tag):
                assert request.content is not None
                there = objects.objects.get(key)
                answer = objects.put(key, request.content, tag)
                if isinstance(answer, Applied) and there and there.write_id != request.content.write_id:
                    shared = self._check_reverted(shared, there.write_id)
        shared = replace(shared, objects=tuple(sorted(objects.objects.items())), uploads=uploads)
        if isinstance(answer, Applied):
            shared = self._check_applied(shared, request)
        return self._points.advance(client, answer) if request.awaited else client, self._shared.number(shared)

    def _check_swept(self, shared: Shared, key: str) -> None:
        """P3 again: a sweep removes no object whose write has been acknowledged."""
        there = dict(shared.objects).get(key)
        self._hold("P3", there is None or there.tombstone, "a sweep removed what had been written")

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
            return NotApplied(404, mutation.NO_SUCH_UPLOAD)
        if write.kind is MutationKind.UPLOAD:
            return objects.complete(write.key, content)
        if not self._scope.old_uploads and write.key in objects.objects:
            return NotApplied(409, "ConditionalRequestConflict")
        return objects.put(write.key, content, expected)

    # Promises ---------------------------------------------------------------------------------------------------

    def _check_applied(self, shared: Shared, request: Request) -> Shared:
        """P2, P4 and the second half of P3, at the moment a mutation takes effect."""
        match request.effect:
            case (
                effects.Put(write)
                | effects.Complete(write)
                | effects.Amend(write)
                | effects.Delete(write)
                | effects.Entomb(Announcement() as write)
            ):
                pass
            case _:
                return shared
        if write.presented is None:
            self._hold("P4", _thaw(shared).is_pending(write), "a sweep took effect without an intent")
            return shared
        token, name = write.presented.token, str(write.write_id)
        self._hold(
            "P2", token >= shared.acknowledged, f"{token} took effect after {shared.acknowledged} was acknowledged"
        )
        self._hold(
            "P2", token >= dict(shared.applied).get(write.key, token), f"{token} replaced a newer holder's write"
        )
        self._hold("P3", name not in shared.refused, "a refused write took effect")
        self._hold("P4", _thaw(shared).is_pending(write), "a mutation took effect without an intent")
        applied = {**dict(shared.applied), write.key: token}
        return replace(
            shared, applied=tuple(sorted(applied.items())), written=shared.written | {name, str(write.mark or name)}
        )

    def _check_reverted(self, shared: Shared, name: str) -> Shared:
        """A bump has put back what was there before a write of the same bytes: its metadata are lost."""
        self._hold("P3", name not in shared.stored, "a bump undid the metadata of an acknowledged write")
        return replace(shared, reverted=shared.reverted | {name})

    def _acknowledge(self, shared: Shared, done: Done) -> Shared:
        """P3 at the moment of the answer, and what P2 holds the others to from here on."""
        name, mark = str(done.write_id), str(done.mark)
        match done.outcome:
            case effects.Stored() | effects.Deleted() | effects.Barred():
                kind = done.operation.kind
                if kind == "sweep":
                    return shared
                answers = {
                    effects.Stored: ("put", "complete", "amend"),
                    effects.Deleted: ("delete",),
                    effects.Barred: ("barrier",),
                }
                outcome = type(done.outcome)
                self._hold("P3", kind in answers[outcome], f"a {kind} is answered {outcome.__name__}")
                applied = not isinstance(done.outcome, effects.Stored) or mark in shared.written
                self._hold("P3", applied, "a write was acknowledged that has not taken effect")
                if isinstance(done.outcome, effects.Stored):
                    self._hold("P3", mark not in shared.reverted, "a write was acknowledged that a bump had undone")
                    shared = replace(shared, stored=shared.stored | {mark})
                return replace(shared, acknowledged=max(shared.acknowledged, Token(0, done.operation.token)))
            case effects.FenceRefused() | effects.ConditionFailed() | effects.StoreRefused() | effects.NotDone():
                obstacle = (
                    done.outcome.obstacle if isinstance(done.outcome, effects.NotDone) else effects.Obstacle.PASSING
                )
                # The parts of a client's upload have one form.
                single = done.operation.kind == "complete" and obstacle is effects.Obstacle.FORBIDDEN
                self._hold("L", obstacle is effects.Obstacle.PASSING or single, "only time helps a holder")
                self._hold("P3", name not in shared.written, "a write was refused that has taken effect")
                return replace(shared, refused=shared.refused | {name})
        return shared

    def _hold(self, promise: str, holds: bool, otherwise: str) -> None:  # noqa: FBT001 - it is the subject
        if not holds and promise in self._promises:
            raise BrokenPromise(f"{promise}: {otherwise}")

    def _objects(self, shared: Shared) -> Objects:
        return Objects(dict(shared.objects), self._weakness.conditions, shared.now)

    def _operation(self, write: Announcement) -> Operation:
        client, index = divmod(write.write_id.int, 100)
        return self._scope.clients[client][index]

    def _label(self, world: World, step: Step) -> str:
        happening, subject = step
        if happening == self._deliver:
            request = self._requests[world.network[subject]]
            return f"store: {request.client}'s {_label(request.effect)}"
        if happening == self._crash:
            return f"{subject}: crash"
        if happening == self._tick:
            return "the clock moves on"
        if happening == self._deliver_a_copy:
            return f"store: a copy of {self._label(world, (self._deliver, subject))}"
        effect = _label(self._points[world.clients[subject]].effect)
        return f"{subject}: {effect}" if happening == self._do else f"{subject}: no answer to {effect}"


def _write_id(client: int, index: int) -> UUID:
    return UUID(int=client * 100 + index)


def _mark(client: int, index: int, operation: Operation) -> UUID:
    """Return the mark in the metadata of the object: the same for all calls that complete one upload."""
    return _write_id(client, index) if operation.upload is None else UUID(int=10_000 + operation.upload)


def _script(client: int, scope: Scope) -> Script:
    """A client: its calls one after the other, each driving the protocol."""
    for index, operation in enumerate(scope.clients[client]):
        write_id = _write_id(client, index)
        presented = Presented(Token(0, operation.token))
        write = Announcement(RESOURCE, BUCKET, operation.key, write_id, presented, "explorer")
        outcome: effects.WriteOutcome
        if operation.kind == "put":
            forms = tuple(effects.Candidate(form, etag(operation.data, form)) for form in UploadForm)
            outcome = yield from mutation.put(write, forms if scope.bumps else forms[:1])
            if isinstance(outcome, effects.InParts):
                of_parts = etag(operation.data, UploadForm.MULTIPART)
                again = replace(write, attempt=outcome.attempt)
                outcome = yield from mutation.complete(again, str(write_id), of_parts, conditional=False)
        elif operation.kind == "complete":
            of_parts = etag(operation.data, UploadForm.MULTIPART)
            mark = _mark(client, index, operation)
            outcome = yield from mutation.complete(
                replace(write, mark=mark), str(mark), of_parts, conditional=scope.conditional_complete
            )
        elif operation.kind == "amend":
            outcome = yield from mutation.amend(write, bumps=scope.bumps)
        elif operation.kind == "delete":
            outcome = yield from mutation.delete(
                write, conditional_delete=scope.conditional_delete, in_parts=scope.bumps
            )
            if isinstance(outcome, effects.InParts):
                again = replace(write, attempt=outcome.attempt, entombs=True, removes=True)
                outcome = yield from mutation.complete(again, str(write_id), None, conditional=False, tombstone=True)
        elif operation.kind == "sweep":
            anybody = replace(write, presented=None, mode=Enforcement.OBSERVE)
            outcome = yield from mutation.sweep(anybody, conditional_delete=scope.conditional_delete)
        else:
            outcome = yield from mutation.barrier(RESOURCE, presented, "explorer")
        yield Done(operation, write_id, _mark(client, index, operation), outcome)


def _tombstone(owner: Announcement | Intent, *, own_id: bool) -> Content:
    """A tombstone with bytes of its own. One that settles an intent is the settler's write, not the settled one's."""
    settles = own_id and isinstance(owner, Intent)
    name = f"settler of {owner.write_id}" if settles else str(owner.write_id)
    return Content(f"tombstone by {name}", UploadForm.PLAIN, name, tombstone=True)


def _label(effect: Any) -> str:
    """An effect in a few words, for the story of a counterexample."""
    if isinstance(effect, Done):
        return f"{effect.operation.kind} is answered {type(effect.outcome).__name__}"
    subject = next((getattr(effect, name) for name in ("write", "intent", "owner") if hasattr(effect, name)), effect)
    particulars = [f"{name}={getattr(effect, name)}" for name in ("expected", "etag", "form") if hasattr(effect, name)]
    key, attempt = getattr(subject, "key", ""), getattr(subject, "attempt", "")
    return " ".join([type(effect).__name__, key, f"#{attempt}", *particulars])


def _forget_intents(fences: Fences, which: Callable[[Intent], bool]) -> None:
    kept = {place: tuple(one for one in held if not which(one)) for place, held in fences.intents.items()}
    fences.intents = {place: held for place, held in kept.items() if held}


def _begin_over_anything(fences: Fences, effect: effects.Begin) -> Begun:
    """Begin as if each intent that is to be settled by the write waited for the object that was seen."""
    seen = effect.looked
    matching = tuple(replace(one, expected=seen.etag) if seen else one for one in effect.over)
    place = (effect.write.resource, effect.write.bucket, effect.write.key)
    held = fences.intents.get(place, ())
    swapped = dict(zip(effect.over, matching, strict=True))
    if held:
        fences.intents[place] = tuple(swapped.get(one, one) for one in held)
    begun = fences.begin(effect.write, effect.looked, effect.outcomes, matching, calm=effect.calm)
    back = {new: one for one, new in swapped.items()}
    if place in fences.intents:
        fences.intents[place] = tuple(back.get(one, one) for one in fences.intents[place])
    return replace(begun, over=tuple(back.get(one, one) for one in begun.over))


def _freeze(fences: Fences) -> Hashable:
    return tuple(
        tuple(sorted(part.items(), key=lambda item: item[0]))
        for part in (fences.fences, fences.intents, fences.forbidden, fences.known, fences.settling, fences.spent)
    )


def _thaw(shared: Shared) -> Fences:
    frozen: Any = shared.fences
    fences, intents, forbidden, known, settling, spent = (dict(part) for part in frozen)
    return Fences(fences, intents, forbidden, known, settling, spent, shared.now)


def with_item(items: tuple[Value, ...], index: int, item: Value) -> tuple[Value, ...]:
    return (*items[:index], item, *items[index + 1 :])
