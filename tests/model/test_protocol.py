"""The promises hold in every interleaving of small scopes, and each weakened protocol breaks them.

The number of states of each exploration is printed at the end of the run (see conftest.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

import pytest

from gateway.fencing.intent import Announcement, Begun, Duplicates, Intent, MutationKind
from gateway.objects.protocol import effects, mutation, settling
from gateway.objects.protocol.effects import Steps
from gateway.objects.s3.answers import Applied, Found, WriteAnswer
from tests.model.explorer import (
    SOUND,
    BrokenPromise,
    Explorer,
    Scope,
    Weakness,
    amend,
    barrier,
    complete,
    delete,
    put,
    sweep,
)

Report = Callable[[str, int], None]

WEAK: dict[str, Any] = {"conditional_complete": False}
CALM: dict[str, Any] = {"crashes": 0, "losses": 0}
UNCONDITIONAL: dict[str, Any] = {"conditional_delete": False}
FORGETFUL: dict[str, Any] = {**UNCONDITIONAL, "tombstones": ("k",), "crashes": 0}
QUIET: dict[str, Any] = {"tombstones": ("k",), "crashes": 0}
REMEMBERED: dict[str, Any] = {"remembered": True, "crashes": 0}
KILLED: dict[str, Any] = {"losses": 0, "crashes": 2}
UNLUCKY: dict[str, Any] = {"losses": 2, "crashes": 0}
UNCHANGING: dict[str, Any] = {"bumps": False, "conditional_complete": False}

BASIC = (
    Scope("zombie's put, barrier and put", ((put(1, "Y"),), (barrier(2), put(2, "Z"))), (("k", "X"),), losses=2),
    Scope("zombie creates, barrier and put", ((put(1, "Y"),), (barrier(2), put(2, "Z"))), crashes=2),
    Scope("zombie creates, successor creates", ((put(1, "Y"),), (put(2, "Z"),)), crashes=2),
    Scope("the same bytes again", ((put(1, "X"),), (put(2, "X"), put(2, "Z"))), (("k", "X"),)),
    Scope("barrier, then the old bytes", ((put(1, "Y"),), (barrier(2), put(2, "Z"), put(2, "X"))), (("k", "X"),)),
    Scope("write, then restore the old bytes", ((put(1, "Y"),), (put(2, "Z"), put(2, "X"))), (("k", "X"),)),
    Scope("create against delete", ((put(1, "Y"),), (put(2, "Z"), delete(2)))),
    Scope("create against delete of nothing", ((put(1, "Y"),), (delete(2),))),
    Scope("create, delete, create", ((put(1, "Y"),), (put(2, "Y"), delete(2), put(2, "Y")))),
    Scope("a late delete", ((delete(1),), (put(2, "Z"), put(2, "X"))), (("k", "X"),)),
    Scope("two deletes", ((delete(1),), (delete(2),)), (("k", "X"),), losses=2),
    Scope("three tokens", ((put(1, "Y"),), (put(2, "Z"),), (put(3, "X"),)), (("k", "X"),), crashes=0),
    Scope("two puts and a barrier", ((put(1, "Y"),), (barrier(2),), (put(3, "X"),)), (("k", "X"),)),
    Scope("the same token tried again", ((put(1, "Y"), put(1, "Y")), (put(2, "Z"),)), (("k", "X"),)),
    Scope("two writers with one token", ((put(1, "Y"),), (put(1, "Z"),), (barrier(2),)), (("k", "X"),), **REMEMBERED),
    Scope("two keys of one resource", ((put(1, "Y", "a"),), (put(2, "Z", "b"),)), (("a", "X"), ("b", "X"))),
    Scope("zombie's upload", ((complete(1, "Y"),), (barrier(2), put(2, "Z"))), (("k", "X"),), losses=2),
    Scope("an upload against a put of the same bytes", ((complete(1, "X"),), (put(2, "Z"), complete(2, "X")))),
    Scope("zombie's upload, no condition", ((complete(1, "Y"),), (put(2, "Z"),)), (("k", "X"),), losses=2, **WEAK),
    Scope("two uploads, no condition", ((complete(1, "Y"),), (complete(2, "Z"), put(2, "X"))), (("k", "X"),), **WEAK),
    Scope("put against an upload, no condition", ((put(1, "Y"),), (complete(2, "Z"),)), (("k", "X"),), **WEAK),
    Scope("an upload older than the object", ((complete(1, "Y"),), (put(2, "Z"),)), (("k", "X"),), old_uploads=False),
    Scope(
        "one upload completed twice", ((complete(1, "Y", upload=1),), (complete(1, "Y", upload=1), put(2, "Z"))), **WEAK
    ),
    Scope(
        "the same, with conditions",
        ((complete(1, "Y", upload=1),), (complete(1, "Y", upload=1),), (barrier(2),)),
        **CALM,
    ),
    Scope("zombie amends", ((amend(1),), (barrier(2), put(2, "Z"))), (("k", "X"),), losses=2),
    Scope("an amendment against a put", ((put(1, "Y"),), (amend(2), put(2, "X"))), (("k", "X"),)),
    Scope("a sweep against a put", ((sweep(),), (put(1, "Y"),)), (("k", "T"),), tombstones=("k",)),
    Scope("a sweep, no condition", ((sweep(),), (put(1, "Y"), put(2, "Z"))), (("k", "T"),), losses=0, **FORGETFUL),
    Scope("delete and sweep, no condition", ((delete(1), sweep()), (put(2, "Z"),)), (("k", "X"),), **UNCONDITIONAL),
    Scope("a sweep against a barrier", ((sweep(),), (barrier(2), put(2, "Z"))), (("k", "T"),), **QUIET),
    Scope("a sweep against a delete", ((sweep(),), (delete(1), put(1, "Y"))), (("k", "T"),), **QUIET),
    Scope("a sweep against an upload", ((sweep(),), (complete(1, "Y"),)), (("k", "T"),), tombstones=("k",), **CALM),
    Scope("a sweep against an amendment", ((sweep(),), (amend(1), delete(2))), (("k", "T"),), **QUIET),
    Scope("an amendment against a delete", ((delete(1),), (amend(2),)), (("k", "X"),)),
    Scope("zombie amends, successor deletes", ((amend(1),), (delete(2), put(2, "X"))), (("k", "X"),)),
    Scope("two amendments", ((amend(1),), (amend(2),), (barrier(3),)), (("k", "X"),)),
    Scope("an amendment against an upload, no condition", ((complete(1, "Y"),), (amend(2),)), (("k", "X"),), **WEAK),
    Scope("an upload against a delete", ((complete(1, "Y"),), (delete(2), put(2, "X"))), (("k", "X"),)),
    Scope("the same, no condition", ((complete(1, "Y"),), (delete(2), put(2, "X"))), (("k", "X"),), **WEAK),
    Scope("a delete against uploads", ((delete(1),), (complete(2, "Z"), complete(2, "X"))), (("k", "X"),)),
    Scope("two barriers over a put", ((put(1, "Y"),), (barrier(2),), (barrier(3),)), (("k", "X"),), crashes=0),
    Scope("two barriers, no condition", ((complete(1, "Y"),), (barrier(2),), (barrier(3),)), (("k", "X"),), **WEAK),
    Scope("two deletes, no condition", ((delete(1),), (delete(2), put(2, "X"))), (("k", "X"),), **UNCONDITIONAL),
    Scope("completed by two holders", ((complete(1, "Y", upload=1), put(1, "Z")), (complete(2, "Y", upload=1),))),
    Scope("the same upload, no condition", ((complete(1, "Y", upload=1),), (complete(2, "Y", upload=1),)), **WEAK),
    Scope("two keys and a delete", ((put(1, "Y", "a"),), (delete(2, "b"), put(2, "X", "a"))), (("a", "X"), ("b", "X"))),
    Scope("the same bytes in parts, twice", ((complete(1, "X"), complete(1, "X")), (put(2, "Z"),)), **REMEMBERED),
    Scope("the same bytes in parts, barrier", ((complete(1, "X"), complete(1, "X")), (barrier(2),)), **REMEMBERED),
)

# The same bytes again and again, and a request gets lost each time.
LOST = (
    Scope("two holders lost, then a barrier", ((put(1, "Y"),), (put(2, "X"),), (barrier(3),)), (("k", "X"),), **KILLED),
    Scope("three holders of the same bytes", ((put(1, "Y"),), (put(2, "Y"),), (put(3, "Y"),)), (("k", "X"),), **KILLED),
    Scope("two holders lost, one deletes", ((put(1, "X"),), (delete(2),), (put(3, "X"),)), (("k", "X"),), **KILLED),
    Scope("put back, deleted, put", ((delete(1),), (put(2, "X"), delete(2)), (put(3, "X"),)), (("k", "X"),), losses=0),
    Scope("put back twice", ((put(1, "Y"),), (put(2, "X"), put(2, "Y")), (barrier(3),)), (("k", "X"),), losses=0),
    Scope("one holder's lost writes", ((put(1, "Y"), put(1, "Y"), put(1, "X"), delete(1)), (barrier(2),)), **UNLUCKY),
)

# A clock that moves on, and stores that give the same bytes no other ETag.
LATER = (
    Scope("no other ETag", ((put(1, "Y"),), (barrier(2), put(2, "X"))), (("k", "X"),), ticks=3, **UNCHANGING),
    Scope("no other ETag, a put", ((put(1, "Y"),), (put(2, "Z"), put(2, "X"))), (("k", "X"),), ticks=3, **UNCHANGING),
    Scope("no other ETag, a delete", ((put(1, "Y"),), (delete(2), put(2, "X"))), (("k", "X"),), ticks=2, **UNCHANGING),
    Scope("later, the same bytes", ((put(1, "Y"),), (put(2, "Z"), put(2, "X"))), (("k", "X"),), ticks=3, **CALM),
    Scope("later, a barrier", ((put(1, "Y"),), (barrier(2), put(2, "Z"), put(2, "X"))), (("k", "X"),), ticks=3, **CALM),
    Scope("later, two barriers", ((put(1, "Y"),), (barrier(2),), (put(3, "X"),)), (("k", "X"),), ticks=2, **CALM),
    Scope("later, created again", ((put(1, "Y"),), (put(2, "Z"), delete(2), put(2, "Y"))), ticks=3, losses=0),
    Scope("later, tags", ((amend(1),), (barrier(2), amend(2))), (("k", "X"),), ticks=3),
    Scope("later, an upload", ((complete(1, "Y"),), (barrier(2), put(2, "X"))), (("k", "X"),), ticks=3, **WEAK),
    Scope("later, a sweep", ((sweep(),), (put(1, "Y"), put(2, "Z"))), (("k", "T"),), ticks=3, **FORGETFUL),
)

# Markers of directories on MinIO: the same few bytes, and a store that takes them in one form only.
MARKER: dict[str, Any] = {"bumps": False, **UNCONDITIONAL}
MARKERS = (
    Scope("a marker, made again", ((put(1, "X"),), (put(2, "X"), put(2, "X"))), (("k", "X"),), **MARKER),
    Scope("a marker, made and removed", ((put(1, "X"), delete(1)), (put(2, "X"), delete(2))), **MARKER),
    Scope("a marker, removed and made", ((delete(1),), (delete(2), put(2, "X"))), (("k", "X"),), **MARKER),
    Scope("a marker and a barrier", ((put(1, "X"),), (barrier(2), put(2, "X"))), (("k", "X"),), ticks=2, **MARKER),
    Scope("a marker, lost twice", ((put(1, "X"), put(1, "X")), (delete(2),)), (("k", "X"),), losses=2, **MARKER),
)

SCOPES = (*BASIC, *LOST, *LATER, *MARKERS)

# Too many states where requests come twice: three clients, or a sweep that starts again and again.
LARGE = (
    "two writers with one token",
    "the same, with conditions",
    "a sweep, no condition",
    "a sweep against a barrier",
    "a sweep against a delete",
)
TWICE = [replace(scope, again=1, **CALM) for scope in (*BASIC, *LOST, *MARKERS) if scope.name not in LARGE]

# The cases that "tolerate" does not cover: a mutation without a condition, and bytes whose forms older holders have
# used up. A marker has one form.
UNCOVERED = (
    "three tokens",
    "zombie amends",
    "zombie amends, successor deletes",
    "two amendments",
    "delete and sweep, no condition",
    *(scope.name for scope in (*LOST, *MARKERS)),
)
# There a sweep brings absence back for which a failed write of the same holder may be waiting.
SWEPT = ("a sweep against a put", "a sweep against an upload")

# The documented cases of requests that arrive twice. They hold under both settings.
STORIES = (
    Scope("a copy of an overtaken put", ((put(1, "Y"),), (put(2, "X"),)), (("k", "X"),)),
    Scope("a copy of an overtaken delete", ((delete(1),), (put(2, "X"),)), (("k", "X"),)),
    Scope("a copy of an overtaken tombstone", ((delete(1),), (put(2, "X"),)), (("k", "X"),), **UNCONDITIONAL),
    Scope("a copy of a create, after a delete", ((put(1, "Y"),), (delete(2),))),
    Scope("a copy of a create, after a sweep", ((put(1, "Y"),), (delete(2), sweep()))),
    Scope("a copy of a create that has failed", ((put(1, "Y"),), (delete(2),)), (("k", "X"),)),
    Scope("a copy of the same bytes", ((put(1, "X"),), (barrier(2),)), (("k", "X"),)),
    Scope("a copy of an upload", ((complete(1, "Y"),), (put(2, "X"),)), (("k", "X"),)),
)


# Scopes with many states, or ways to a broken promise through many. Smaller ones show the same promises faster.
SLOW = {
    "three tokens", "two puts and a barrier", "two writers with one token", "two barriers over a put",
    "create, delete, create", "a copy of a create that has failed", "a copy of a create, after a delete",
    *(scope.name for scope in LOST),
    *(scope.name for scope in LATER if scope.name not in ("later, tags", "later, an upload")),
}  # fmt: skip
SLOWEST = {"no other ETag, a put", "no other ETag, a delete"}


def tiered(cases: Iterable[Scope | tuple[Any, ...]]) -> list[Any]:
    """Return pytest's parameters, with marks where the last one is a slow scope or the name of one."""
    made = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        name = getattr(values[-1], "name", values[-1])
        marks = [pytest.mark.nightly] if name in SLOWEST else [pytest.mark.thorough] if name in SLOW else []
        made.append(pytest.param(*values, id=": ".join((*values[:1], name)[-len(values) :]), marks=marks))
    return made


def nothing_waits_for_the_clock(scope: Scope) -> bool:
    """Whether the store bumps objects and honours conditions, and nothing without one is under way."""
    calls = {call.kind for calls in scope.clients for call in calls}
    conditional = scope.conditional_complete and (scope.conditional_delete or "sweep" not in calls)
    return conditional and scope.bumps and "amend" not in calls


@pytest.mark.parametrize("scope", tiered(SCOPES))
def test_the_promises_hold(scope: Scope, report_states: Report) -> None:
    """L: no holder is ever told to wait for a dead one."""
    promises = "P2 P3 P4 L" if nothing_waits_for_the_clock(scope) else "P2 P3 P4"
    states = Explorer(scope, promises=promises).run()
    assert states > 500, "the scope explores next to nothing"
    report_states(scope.name, states)


@pytest.mark.parametrize("duplicates", Duplicates)
@pytest.mark.parametrize("scope", STORIES, ids=lambda scope: scope.name)
def test_a_request_that_comes_twice_takes_effect_once(
    scope: Scope, duplicates: Duplicates, report_states: Report
) -> None:
    """Under "tolerate" a copy may write its own bytes again where a takeover has used a form up."""
    promises = "P2 P3 P4" if duplicates is Duplicates.WAIT else "P2 P3"
    twice = replace(scope, again=2, losses=0, duplicates=duplicates)
    report_states(f"twice, {duplicates}: {scope.name}", Explorer(twice, promises=promises).run())


@pytest.mark.parametrize("scope", tiered(TWICE))
def test_no_copy_takes_effect_where_writes_wait(scope: Scope, report_states: Report) -> None:
    waiting = replace(scope, duplicates=Duplicates.WAIT)
    report_states(f"twice, wait: {scope.name}", Explorer(waiting).run())


@pytest.mark.parametrize("scope", tiered(scope for scope in TWICE if scope.name not in UNCOVERED))
def test_no_copy_undoes_a_newer_holders_write_by_default(scope: Scope, report_states: Report) -> None:
    promises = "P2" if scope.name in SWEPT else "P2 P3"
    report_states(f"twice, tolerate: {scope.name}", Explorer(scope, promises=promises).run())


@pytest.mark.parametrize(
    ("scope", "promise"),
    [
        (Scope("two contents in turn", ((put(1, "Y"), put(1, "X"), put(1, "Y"), put(1, "X")),), (("k", "X"),)), "P4"),
        (Scope("deleted by the holder who made it", ((put(1, "Y"), delete(1)), (barrier(2),))), "P2"),
        (Scope("no condition", ((amend(1),), (barrier(2),)), (("k", "X"),)), "P2"),
        (Scope("a marker, put again", ((put(1, "X"),), (put(2, "X"),)), (("k", "X"),), **MARKER), "P2"),
        (Scope("a marker, put back", ((delete(1),), (put(2, "X"),)), (("k", "X"),), **MARKER), "P2"),
    ],
    ids=lambda value: value.name if isinstance(value, Scope) else value,
)
def test_waiting_covers_what_is_tolerated_by_default(scope: Scope, promise: str, report_states: Report) -> None:
    """These are the limits of "tolerate", as the documentation states them."""
    twice = replace(scope, again=1, remembered=True, **CALM)
    with pytest.raises(BrokenPromise, match=f"^{promise}"):
        Explorer(twice, promises=promise).run()
    states = Explorer(replace(twice, duplicates=Duplicates.WAIT)).run()
    report_states(f"twice, wait: {scope.name}", states)


def settle_without_bump(intent: Intent) -> Steps[None]:
    yield effects.Forbid(intent)
    yield effects.Look(intent.bucket, intent.key)
    yield effects.Abandon(intent)


def settle_by_forgetting(intent: Intent) -> Steps[effects.Unsettled | None]:
    """Settle as if the request always had a condition that fails by now."""
    if intent.kind is MutationKind.CONDITIONAL:
        return (yield from settling._settle_conditional(intent))
    yield effects.Abandon(intent)
    return None


def settle_without_waiting(intent: Intent) -> Steps[None]:
    """Settle as if each bump of the only form changed the ETag."""
    forbidden = yield effects.Forbid(intent)
    found = yield effects.Look(intent.bucket, intent.key)
    yield settling._displace(intent, found, forbidden)
    yield effects.Abandon(intent)


def always_plain(candidates: tuple[effects.Candidate, ...], begun: Begun) -> effects.UploadForm:
    return effects.UploadForm.PLAIN


def recognise_by_write_id_alone(write: Announcement, begun: Begun, *, tombstone: bool) -> Steps[Any]:
    state = yield effects.Look(write.bucket, write.key)
    if isinstance(state, Found) and state.write_id == str(write.write_id):
        return (yield from mutation._finish(write, begun, Applied(state.etag), tombstone=state.tombstone))
    return None


@dataclass(frozen=True, slots=True)
class Weakened:
    """The protocol without one of its parts, and a scope in which that breaks a promise.

    ``instead``: what stands for a rule of production, as an object, the name of its attribute, and the other value.
    """

    without: str
    scope: str
    weakness: Weakness = SOUND
    promise: str = "P2"
    instead: tuple[Any, str, object] | None = None

    def explorer(self, monkeypatch: pytest.MonkeyPatch) -> Explorer:
        if self.instead is not None:
            monkeypatch.setattr(*self.instead)
        twice = [replace(one, again=1, **CALM) for one in STORIES]
        (explored,) = (one for one in (*SCOPES, *twice) if one.name == self.scope)
        return Explorer(explored, self.weakness, promises=self.promise)

    def shortest_way(self, monkeypatch: pytest.MonkeyPatch) -> tuple[Explorer, BrokenPromise]:
        """Return the way to the broken promise. An AssertionError where it is not broken."""
        explorer = self.explorer(monkeypatch)
        with pytest.raises(BrokenPromise, match=f"^{self.promise}") as broken:
            explorer.run()
        return explorer, broken.value


def sweep_by_the_first_look(write: Announcement, *, conditional_delete: bool) -> Steps[Any]:
    """Sweep as if the delete always had a condition: by the look before the intent was pending."""

    def mutate(write: Announcement, begun: Begun, signed_at: datetime) -> Steps[Any]:
        if not begun.key.tombstone:
            yield effects.Finish(write, begun.key.etag, tombstone=False)
            return effects.Deleted(begun.decision, begun.fence)
        answer = cast(WriteAnswer, (yield effects.Amend(write, signed_at)))
        return (yield from mutation._conclude(write, begun, answer))

    return (yield from mutation._fenced(mutation._without_condition(write), None, mutate, look=True))


def best_though_it_is_there(candidates: tuple[effects.Candidate, ...], begun: Begun) -> effects.UploadForm | None:
    return mutation.choose(candidates, begun.forbidden | {spent.etag for spent in begun.spent})


def settle_by(rule: object) -> tuple[Any, str, object]:
    return mutation, "settle", rule


WEAKENED = (
    # The stores owe these.
    Weakened("conditions on the writes", "zombie's put, barrier and put", Weakness(conditions=False)),
    Weakened("intents", "zombie's put, barrier and put", Weakness(intents=False)),
    Weakened("settling the whole resource", "two keys of one resource", Weakness(whole_resource=False)),
    Weakened("forbidden ETags", "barrier, then the old bytes", Weakness(forbidding=False)),
    Weakened("forbidding what a write settles", "create against delete", Weakness(forbidding_over=False)),
    Weakened("looking at what a write settles", "an upload against a delete", Weakness(matching_over=False)),
    Weakened("minding sweeps", "later, a sweep", Weakness(minding_sweeps=False)),
    Weakened("waiting for what has begun", "no other ETag", Weakness(waiting_for_what_has_begun=False)),
    Weakened("waiting before bytes return", "later, a barrier", Weakness(waiting_for_what_has_begun=False)),
    Weakened("signing when announced", "no other ETag", Weakness(signed_when_announced=False)),
    Weakened("attempt numbers", "two writers with one token", Weakness(attempts=False)),
    Weakened("forbidding the only form", "a marker, made again", Weakness(forbidding_over=False)),
    Weakened("remembering conditions", "a copy of an overtaken put", Weakness(remembering=False)),
    Weakened("remembering a delete's", "a copy of an overtaken delete", Weakness(remembering=False)),
    Weakened("remembering a tombstone's", "a copy of an overtaken tombstone", Weakness(remembering=False)),
    Weakened("remembering absence", "a copy of a create, after a delete", Weakness(remembering=False)),
    Weakened("remembering failures", "a copy of a create that has failed", Weakness(remembering_failures=False)),
    # False successes. An acknowledged write of the same bytes can lose its metadata to a bump.
    Weakened("forbidding for bumps", "later, two barriers", Weakness(forbidding_for_bumps=False), "P3"),
    Weakened("marking what is being settled", "the same bytes in parts, barrier", Weakness(marking=False), "P3"),
    # A settler's tombstone is never taken for the settled write. Two guards see to that; without both, a put is
    # answered as a delete.
    Weakened("a settler's own write-id", "zombie creates, barrier and put", Weakness(settlers_id=False), "P3",
             (mutation, "_recognise", recognise_by_write_id_alone)),
    # Settling owes these.
    Weakened("the bump", "zombie's put, barrier and put", instead=settle_by(settle_without_bump)),
    Weakened("giving the upload up", "zombie's upload, no condition", instead=settle_by(settle_by_forgetting)),
    Weakened("giving an old upload up", "an upload older than the object", instead=settle_by(settle_by_forgetting)),
    Weakened("waiting for an amendment", "zombie amends", instead=settle_by(settle_by_forgetting)),
    # A delete of nothing settles a lost request only if it changes the key.
    Weakened("a tombstone", "create against delete of nothing",
             instead=(mutation, "_is_idle", lambda begun: begun.key.visible is None)),
    Weakened("a second look", "a sweep, no condition", promise="P3",
             instead=(mutation, "sweep", sweep_by_the_first_look)),
    Weakened("refusing the only form", "a marker, made again", instead=(mutation, "_best", always_plain)),
    Weakened("waiting where nothing is bumped", "a marker and a barrier", instead=settle_by(settle_without_waiting)),
    # Copies need these.
    Weakened("another ETag than the condition's", "a copy of the same bytes",
             instead=(mutation, "_best", best_though_it_is_there)),
    Weakened("a tombstone for absence", "a copy of a create, after a delete",
             instead=(Begun, "overtakes_absence", False)),
)  # fmt: skip


def tiered_weakened() -> list[Any]:
    return [
        pytest.param(one, id=f"{one.without}: {one.scope}", marks=[pytest.mark.thorough] if one.scope in SLOW else [])
        for one in WEAKENED
    ]


@pytest.mark.parametrize("weakened", tiered_weakened())
def test_the_explorer_sees_that_each_part_is_needed(
    weakened: Weakened, monkeypatch: pytest.MonkeyPatch, report_states: Report
) -> None:
    _, broken = weakened.shortest_way(monkeypatch)
    report_states(f"without {weakened.without}: {weakened.scope}", str(broken).count("\n"))


def test_without_one_guard_a_settlers_tombstone_is_not_taken_for_the_settled_write() -> None:
    (explored,) = (one for one in SCOPES if one.name == "zombie creates, barrier and put")
    Explorer(explored, Weakness(settlers_id=False)).run()
