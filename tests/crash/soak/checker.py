"""Check a history of operations: an independent judge, which knows nothing of the gateway but its promises.

It reads one file and imports nothing of this project. Each line is a JSON document; times are seconds of one clock.

``{"line": "mode", "mode": "sync", "late": 10}``
    What an acknowledged token survives: ``off`` nothing, ``async`` all but the last ``late`` seconds, ``sync`` all.
``{"line": "operation", "who": …, "tokens": {RESOURCE: [EPOCH, VALUE]}, "writes": [[PLACE, RESOURCE, CONTENT]], …}``
    With ``sent``, ``answered`` (null: no answer came), ``answer`` and ``request``. No two writes have the same content
    at a place, except copies of one request; null is a delete. Answers: ``done``; ``idle``, nothing to write;
    ``refused``; ``stale``, refused because of its token; ``not done``; ``unknown``; ``nothing``, no answer.
``{"line": "read", "place": …, "content": …, "sent": …, "answered": …, "who": …}``
``{"line": "lease", "deed": "acquire", "resource": …, "token": [EPOCH, VALUE], "lasts": SECONDS, "answer": …, …}``
    A lock of the lock service, with ``who``, ``sent`` and ``answered``. Other deeds: ``renew``, ``release``, ``break``.
    Another answer: ``lost``. Only ``linearizability`` judges it.
``{"line": "rewind", "storage": [PREFIX], "resources": [PREFIX], "since": …, "from": …, "until": …}``
    The storage of these places stopped at ``from``. It came back at ``until``, with all that was done before ``since``.
    It has the tokens of these resources. Without ``resources``, it has all.
``{"line": "outage", "resources": [PREFIX], "from": …, "until": …, "requests": N, "few": M}``
    Another database than that of these resources was down. At least N of their requests were sent and answered
    meanwhile, and at most M of those were not done or had an unknown outcome.
``{"line": "final", "at": …, "places": {PLACE: CONTENT}, "fences": {RESOURCE: [EPOCH, VALUE]}, "refusals": [REQUEST]}``
    The last line: the storage, the fences and the record at the end. A place that is not named has no content.

    python -m tests.crash.soak.checker FILE
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

Token: TypeAlias = tuple[int, int]
Content: TypeAlias = int | None

ACKNOWLEDGED = ("done", "idle")
WITHOUT_EFFECT = ("idle", "refused", "stale", "not done")
NEVER = float("inf")
NO_TOKEN: Token = (-1, 0)


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: its kind, and the evidence."""

    kind: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.evidence}"


@dataclass(slots=True)
class Verdict:
    """The violations that were found, and how much was looked at."""

    violations: list[Violation] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Rewind:
    """A loss of all that the storage did since a time, or of some of it."""

    storage: tuple[str, ...]
    resources: tuple[str, ...]
    since: float
    begun: float
    ended: float

    def may_have_taken(self, one: Operation) -> bool:
        return one.sent <= self.begun and one.answered >= self.since and one.is_about(self.resources)


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a database was down that these resources do not need."""

    resources: tuple[str, ...]
    begun: float
    ended: float
    requests: int
    few: int


@dataclass(slots=True)
class Operation:
    """One request. ``hi``: after this time it cannot take effect any more; ``lo``: before this one it cannot."""

    said: Mapping[str, Any]
    tokens: Mapping[str, Token]
    answer: str
    sent: float
    answered: float
    lo: float = 0.0
    hi: float = NEVER

    def is_about(self, resources: tuple[str, ...]) -> bool:
        return any(resource.startswith(resources) for resource in self.tokens)


@dataclass(slots=True)
class _Raises:
    """The acknowledged raises of one resource that end at one time: never, or with a rewind."""

    until: float
    answered: list[float]
    tokens: list[Token]

    @classmethod
    def of(cls, until: float, raises: Iterable[tuple[Token, float]]) -> _Raises:
        """Keep for each token the earliest acknowledgement of it or a higher one."""
        by_token = sorted(raises)
        earliest = list(accumulate((at for _, at in reversed(by_token)), min))
        return cls(until, earliest[::-1], [token for token, _ in by_token])

    def above(self, token: Token) -> float:
        """Return when a higher token than this one was first acknowledged."""
        at = bisect_left(self.tokens, (token[0], token[1] + 1))
        return self.answered[at] if at < len(self.answered) else NEVER


@dataclass(slots=True)
class _Done:
    """The acknowledged writes of one place that no rewind took, by the time of their answers."""

    answered: list[float]
    latest_sent: list[float]
    highest: list[Token]


class Checker:
    """Judges one history."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._mode, self._late = "sync", 0.0
        self._operations: list[Operation] = []
        self._reads: list[tuple[str, Content, float, float]] = []
        self._rewinds: list[Rewind] = []
        self._outages: list[Outage] = []
        self._final: Mapping[str, Any] | None = None
        for line in lines:
            self._take(json.loads(line))
        self._rewinds.sort(key=lambda one: one.begun)
        self._raises: dict[str, list[_Raises]] = {}
        self._resource: dict[str, str] = {}
        self._writers: dict[str, dict[Content, list[Operation]]] = defaultdict(lambda: defaultdict(list))
        self._done: dict[tuple[str, float], _Done] = {}
        self._verdict = Verdict()

    def _take(self, said: Mapping[str, Any]) -> None:
        match said["line"]:
            case "mode":
                self._mode, self._late = said["mode"], said["late"]
            case "operation":
                tokens = {name: (int(token[0]), int(token[1])) for name, token in said["tokens"].items()}
                answered = NEVER if said["answered"] is None else said["answered"]
                self._operations.append(Operation(said, tokens, said["answer"], said["sent"], answered))
            case "read":
                self._reads.append((said["place"], said["content"], said["sent"], said["answered"]))
            case "rewind":
                lost = tuple(said["storage"]), tuple(said.get("resources", [""]))
                self._rewinds.append(Rewind(*lost, said["since"], said["from"], said["until"]))
            case "outage":
                bound = said["requests"], said["few"]
                self._outages.append(Outage(tuple(said["resources"]), said["from"], said["until"], *bound))
            case "final":
                self._final = said

    def check(self) -> Verdict:
        """Return the verdict. A history without its final state is not complete, which is a violation."""
        self._verdict.figures.update(f"answers: {one.answer}" for one in self._operations)
        self._verdict.figures["operations"] = len(self._operations)
        self._verdict.figures["rewinds"] = len(self._rewinds)
        if self._final is None:
            self._violated("incomplete", "the history has no final state")
            return self._verdict
        self._collect_raises()
        for one in self._operations:
            self._bound(one)
        for place, content, sent, answered in self._reads:
            self._read(place, content, sent, answered)
        self._verdict.figures["reads"] = len(self._reads)
        at = self._final["at"]
        for place in list(self._writers):
            self._read(place, self._final["places"].get(place), at, at)
        for place in self._final["places"].keys() - self._writers.keys():
            self._violated("phantom", f"{place} has a content at the end, and no operation wrote there")
        self._check_fences(at)
        self._check_record()
        for outage in self._outages:
            self._check_outage(outage)
        return self._verdict

    def _violated(self, kind: str, evidence: str) -> None:
        self._verdict.figures[f"violations: {kind}"] += 1
        self._verdict.violations.append(Violation(kind, evidence))

    # Tokens

    def _collect_raises(self) -> None:
        """Sort the acknowledged tokens by the time until which the mode keeps them."""
        raised: dict[str, dict[float, list[tuple[Token, float]]]] = defaultdict(lambda: defaultdict(list))
        for one in self._operations:
            if one.answer in ACKNOWLEDGED:
                until = self._kept_until(one)
                if one.answered < until:
                    for resource, token in one.tokens.items():
                        raised[resource][until].append((token, one.answered))
        self._raises = {
            resource: [_Raises.of(until, raises) for until, raises in sorted(by_until.items(), reverse=True)]
            for resource, by_until in raised.items()
        }

    def _kept_until(self, one: Operation) -> float:
        """Return the start of the first rewind that may take this raise away, as the mode says."""
        for rewind in self._rewinds:
            late = {"off": NEVER, "async": self._late, "sync": -NEVER}[self._mode]
            if rewind.may_have_taken(one) and one.answered >= rewind.begun - late:
                return rewind.begun
        return NEVER

    def _bound(self, one: Operation) -> None:
        """Find out between which times the operation may have taken effect, and note what it wrote."""
        one.lo, one.hi = one.sent, one.answered if one.answer == "done" else NEVER
        overtaken = NEVER
        for resource, token in one.tokens.items():
            for raises in self._raises.get(resource, ()):
                at = raises.above(token)
                if at < one.sent < raises.until:
                    overtaken = min(overtaken, at)
                    one.lo = max(one.lo, raises.until)
                elif one.lo <= at < one.hi <= raises.until:
                    one.hi = at
        if overtaken < NEVER and one.answer in ACKNOWLEDGED and one.lo > one.answered:
            self._violated("token went back", f"a higher token was acknowledged at {overtaken}; {one.said}")
        for place, resource, content in one.said["writes"]:
            self._resource[place] = resource
            self._writers[place][content].append(one)

    def _check_fences(self, at: float) -> None:
        assert self._final is not None
        fences = {resource: (token[0], token[1]) for resource, token in self._final["fences"].items()}
        for resource, all_raises in self._raises.items():
            highest = max((max(one.tokens) for one in all_raises if one.until > at), default=NO_TOKEN)
            fence = fences.get(resource, NO_TOKEN)
            if fence < highest:
                self._violated("token went back", f"the fence of {resource} is {fence}, acknowledged was {highest}")

    # Effects

    def _read(self, place: str, content: Content, sent: float, answered: float) -> None:
        rewinds = [one for one in self._rewinds if place.startswith(one.storage)]
        if any(one.begun <= answered and sent <= one.ended for one in rewinds):
            self._verdict.figures["reads during a rewind, not judged"] += 1
            return
        writers = [one for one in self._writers[place][content] if one.sent <= answered]
        able = [one for one in writers if one.answer not in WITHOUT_EFFECT]
        in_time = [one for one in able if one.lo <= min(one.hi, answered)]
        seen = f"{content} was read at {place} between {sent} and {answered}"
        done = self._done_before(place, rewinds, answered)
        number = bisect_left(done.answered, sent)
        if not number:
            if content is None or in_time:
                return
        elif any(
            one.hi >= done.latest_sent[number - 1] and one.tokens[self._resource[place]] >= done.highest[number - 1]
            for one in in_time
        ):
            return
        if in_time or content is None:
            newer = f"a write sent at {done.latest_sent[number - 1]}, or one with {done.highest[number - 1]}, was done"
            certain = content is None or all(one.hi < done.latest_sent[number - 1] for one in in_time)
            kind = "acknowledged write lost" if certain else "stale write took effect"
            self._violated(kind, f"{seen}; {newer}; written by {[one.said for one in in_time]}")
        elif able:
            self._violated("stale write took effect", f"{seen}; it was overtaken: {[one.said for one in able]}")
        elif writers:
            self._violated("refused write took effect", f"{seen}; {[one.said for one in writers]}")
        else:
            self._violated("phantom", f"{seen}, and no operation had written it")

    def _done_before(self, place: str, rewinds: list[Rewind], at: float) -> _Done:
        """Return the acknowledged writes of a place that no rewind of its storage can have taken by then.

        A rewind of the database takes the tokens of objects, too, and leaves their contents.
        """
        past = [one for one in rewinds if one.begun <= at]
        about = self._resource.get(place, "")
        with_token = (one for one in self._rewinds if one.begun <= at and about.startswith(one.resources))
        after = max((one.begun for one in with_token), default=0.0)
        if (place, after) not in self._done:
            kept = sorted(
                (
                    one
                    for writers in self._writers[place].values()
                    for one in writers
                    if one.answer == "done" and not any(each.may_have_taken(one) for each in past)
                ),
                key=lambda one: one.answered,
            )
            self._done[place, after] = _Done(
                [one.answered for one in kept],
                list(accumulate((one.sent for one in kept), max)),
                list(accumulate((self._ranked(one, about, after) for one in kept), max)),
            )
        return self._done[place, after]

    def _ranked(self, one: Operation, resource: str, after: float) -> Token:
        """Return the token of a write, if the mode still keeps it after the last rewind."""
        return one.tokens[resource] if self._kept_until(one) > after else NO_TOKEN

    # The record

    def _check_record(self) -> None:
        assert self._final is not None
        recorded = set(self._final["refusals"])
        for one in self._operations:
            if one.answer != "stale" or one.said["request"] in recorded:
                continue
            if any(each.may_have_taken(one) for each in self._rewinds):
                self._verdict.figures["refusals that a rewind took from the record"] += 1
            else:
                self._violated("refusal not on record", str(one.said))

    # Other databases

    def _check_outage(self, outage: Outage) -> None:
        meant = [
            one
            for one in self._operations
            if outage.begun <= one.sent
            and one.answered <= outage.ended
            and all(resource.startswith(outage.resources) for resource in one.tokens)
        ]
        failed = [one for one in meant if one.answer in ("not done", "unknown")]
        self._verdict.figures["requests while another database was down"] += len(meant)
        self._verdict.figures["of these, not done or unknown"] += len(failed)
        if len(meant) < outage.requests or len(failed) > outage.few:
            told = f"{len(meant)} answers, {outage.requests} wanted, failed: {[one.said for one in failed]}"
            self._violated("an outage took others with it", f"of {outage.resources} from {outage.begun}: {told}")


def main() -> None:
    """Judge the file that is named, and exit with 1 where a promise was broken."""
    with Path(sys.argv[1]).open() as lines:
        verdict = Checker(lines).check()
    for name, number in sorted(verdict.figures.items()):
        print(f"  {name}: {number}")
    for violation in verdict.violations[:20]:
        print(violation)
    sys.exit(1 if verdict.violations else 0)


if __name__ == "__main__":
    main()
