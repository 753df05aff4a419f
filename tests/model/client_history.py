"""A way through the explorer as its clients see it: their calls, their answers, and what they read.

It has the format that ``tests/crash/soak/checker.py`` describes, so that any judge of histories can judge the explorer.
A step is a second. Contents are the marks that stand in the metadata of objects, and tags are a place of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any
from uuid import UUID

from gateway.fencing.decision import Decision
from gateway.objects.protocol import effects
from tests.model.explorer import RESOURCE, Done, Explorer, Operation, Request, Shared, Step, World, _mark, _thaw

Line = dict[str, Any]
_BEFORE = -1
_PATIENCE = 300


def random_way(explorer: Explorer, random: Random) -> list[tuple[World, Step]]:
    """Go on until nothing can happen any more."""
    way: list[tuple[World, Step]] = []
    world = explorer._start()
    while len(way) < _PATIENCE and (possible := list(explorer._successors(world))):
        step, after = random.choice(possible)
        way.append((world, step))
        world = after
    return way


def client_history(explorer: Explorer, way: Sequence[tuple[World, Step]], *, reading: bool = True) -> Iterator[Line]:
    """Yield the lines. ``reading``: one more client reads all keys after each step, and not only at the end."""
    explorer._promises = frozenset()  # The last step may break one.
    yield {"line": "mode", "mode": "sync", "late": 0}
    current = [0] * len(explorer._scope.clients)
    sent: dict[tuple[int, int], float] = {}
    world = explorer._start()
    keys = {operation.key for operations in explorer._scope.clients for operation in operations}
    places = [place for key in sorted(keys) for place in (_place(key), _tags(key))]
    contents = _contents(explorer, world, None, dict.fromkeys(places))
    before = [[place, RESOURCE, content] for place, content in contents.items() if content is not None]
    yield _line("before", Operation("put", 0), before, "done", _BEFORE, 0)
    for number, (here, (happening, subject)) in enumerate(way, 1):
        world = happening(here, subject)
        request = None
        if happening in (explorer._deliver, explorer._deliver_a_copy):
            request = explorer._requests[here.network[subject]]
        elif happening == explorer._do:
            call = subject, current[subject]
            sent.setdefault(call, number - 0.2)
            effect = explorer._points[here.clients[subject]].effect
            if isinstance(effect, Done):
                current[subject] += 1
                yield from _call(explorer, call, _said(effect.outcome), sent.pop(call), number + 0.2)
        contents = _contents(explorer, world, (request, explorer._shared[here.shared]), contents)
        if reading:
            for place, content in contents.items():
                yield {"line": "read", "place": place, "content": content, "sent": number + 0.5,
                       "answered": number + 0.5, "who": "reader"}  # fmt: skip
    for call, since in sent.items():
        yield from _call(explorer, call, "nothing", since, None)
    fences = {name: [one.token.epoch, one.token.value] for name, one in _thaw(_shared(explorer, world)).fences.items()}
    present = {place: content for place, content in contents.items() if content is not None}
    yield {"line": "final", "at": len(way) + 1, "places": present, "fences": fences, "refusals": []}


def _shared(explorer: Explorer, world: World) -> Shared:
    return explorer._shared[world.shared]


def _call(explorer: Explorer, call: tuple[int, int], said: str, sent: float, answered: float | None) -> Iterator[Line]:
    client, index = call
    operation = explorer._scope.clients[client][index]
    if operation.kind == "sweep":
        return
    name = _content(_mark(client, index, operation))
    place, tags = _place(operation.key), _tags(operation.key)
    left: dict[str, dict[str, int | None]] = {
        "barrier": {},
        "amend": {tags: name},
        "delete": {place: None, tags: None},
        "put": {place: name, tags: None},
        "complete": {place: name, tags: None},
    }
    writes = [[where, RESOURCE, content] for where, content in left[operation.kind].items()]
    yield _line(f"client {client}", operation, writes, said, sent, answered)


def _line(
    who: str, operation: Operation, writes: list[list[Any]], said: str, sent: float, answered: float | None
) -> Line:
    tokens = {RESOURCE: [0, operation.token]}
    return {"line": "operation", "who": who, "tokens": tokens, "writes": writes, "answer": said, "sent": sent,
            "answered": answered, "request": None}  # fmt: skip


def _said(outcome: effects.WriteOutcome) -> str:
    match outcome:
        case effects.Stored() | effects.Deleted() | effects.Barred():
            return "done"
        case effects.FenceRefused(Decision.STALE):
            return "stale"
        case effects.NotDone():
            return "not done"
        case effects.FenceRefused() | effects.ConditionFailed() | effects.StoreRefused():
            return "refused"
    return "unknown"


def _contents(
    explorer: Explorer, world: World, arrived: tuple[Request | None, Shared] | None, before: dict[str, int | None]
) -> dict[str, int | None]:
    """Return what each place has after a step. Tags go with their object, and a bump keeps them."""
    after = dict.fromkeys(before)
    for key, content in _shared(explorer, world).objects:
        place, tags = _place(key), _tags(key)
        after[place] = None if content.tombstone else _content(content.write_id)
        after[tags] = before.get(tags) if before.get(place) == after[place] else None
        request, shared = arrived or (None, None)
        if request and shared and isinstance(request.effect, effects.Amend) and request.effect.write.key == key:
            operation = explorer._operation(request.effect.write)
            alive = shared.now <= request.signed_at + explorer._lifetime
            if operation.kind == "amend" and alive:
                after[tags] = _content(request.effect.write.write_id)
    return after


def _place(key: str) -> str:
    return f"objects/{key}"


def _tags(key: str) -> str:
    return f"objects/{key} tags"


def _content(name: UUID | str) -> int:
    return 0 if name == "before" else UUID(str(name)).int + 1
