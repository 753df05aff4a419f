"""Check the writers' requests and answers against the effects in the store and the database, in their order.

The writers know each write, its tokens, and the time of its answer. The store's log and the database's write-ahead log
are the truth about effects. The check believes no record of the gateway but its fences, and looks those up in the same
write-ahead log. PostgreSQL's own plugin ``pgoutput`` (protocol 1) sends it, in messages that this module reads:
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Token: TypeAlias = tuple[int, int]
"""Epoch and value."""
NO_TOKEN: Token = (0, 0)

MARK = "soak"
"""The metadata of an object, its tag, and the column of a row, that say which write has put it there."""

REMOVAL = "version removal"
"""The kind of a deed that removes one version of an object."""


class Said(StrEnum):
    """The statement of an answer about its write."""

    DONE = "done"
    IDLE = "idle"
    """Done, and there was nothing to do: no row matched."""
    REPLAYED = "replayed"
    """The answer to what was done before under the same key. It writes nothing, and raises the fence all the same."""
    REFUSED = "refused"
    """4xx: it never takes effect."""
    NOT_DONE = "not done"
    """503, with the promise that nothing was written."""
    UNKNOWN = "unknown"
    """503: it may have taken effect, but will not after the next acknowledged write."""
    NOTHING = "nothing"
    """No answer came."""


ACKNOWLEDGED = frozenset({Said.DONE, Said.IDLE, Said.REPLAYED})
"""After which no lower token may write."""

NEVER = frozenset({Said.IDLE, Said.REPLAYED, Said.REFUSED, Said.NOT_DONE})
"""The answers to a request that takes no effect itself."""


@dataclass(frozen=True, slots=True)
class Span:
    """From when it was sent to when it was answered: seconds, and sequence numbers of the store."""

    sent: float
    answered: float
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request: what it showed for which resource, and what came of it."""

    tokens: Mapping[str, Token]
    said: Said
    span: Span


@dataclass(slots=True)
class Deed:
    """Something a writer wanted done, by one request, or by several with one idempotency key or for one upload.

    ``mark``: what it leaves, 0 where it removes or only shows a token. ``place``: the key or the row.
    """

    kind: str
    mark: int
    place: str
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def never(self) -> bool:
        return all(one.said in NEVER for one in self.attempts)

    @property
    def done(self) -> bool:
        return any(one.said in (Said.DONE, Said.REPLAYED) for one in self.attempts)

    def token(self, resource: str) -> Token | None:
        """The highest that was shown for it by a request that may have taken effect; None: none was."""
        shown = [one.tokens[resource] for one in self.attempts if resource in one.tokens and one.said not in NEVER]
        return max(shown, default=None)

    def possible(self, resource: str, at: int) -> list[Token]:
        """The tokens of those requests that may be the one which took effect in mutation ``at``."""
        return [
            one.tokens[resource]
            for one in self.attempts
            if one.said not in NEVER and one.span.before < at and (one.said is not Said.DONE or at <= one.span.after)
        ]

    @property
    def spans(self) -> list[Span]:
        return [one.span for one in self.attempts if one.said is Said.DONE]


@dataclass(frozen=True, slots=True)
class Seen:
    """A reader's view of a key: the mark of its content, None for no object."""

    key: str
    mark: int | None
    span: Span


class Broken(AssertionError):
    """A promise does not hold."""


class History:
    """All deeds of one run, and all looks. ``resource_of``: of each key."""

    def __init__(self, resource_of: Mapping[str, str]) -> None:
        self.deeds: list[Deed] = []
        self.looks: list[Seen] = []
        self._resource_of = resource_of

    def check(self, mutations: Iterable[Mapping[str, Any]], commits: Iterable[Commit]) -> None:
        """Raises ``Broken``."""
        marked = {deed.mark: deed for deed in self.deeds if deed.mark}
        objects, rows = _Objects(self, marked, self._resource_of), _Rows(self, marked)
        for mutation in mutations:
            objects.apply(mutation)
        for number, commit in enumerate(commits):
            rows.apply(number, commit)
        objects.finish(self.looks)
        rows.finish()

    def acknowledged(self, resource: str) -> list[tuple[int, Token]]:
        """After which sequence number of the store no lower token may write, with that token; both grow."""
        raised = sorted(
            (one.span.after, one.tokens[resource])
            for deed in self.deeds
            for one in deed.attempts
            if resource in one.tokens and one.said in ACKNOWLEDGED
        )
        highest, grown = NO_TOKEN, []
        for after, token in raised:
            if token > highest:
                highest = token
                grown.append((after, token))
        return grown


@dataclass(slots=True)
class _Version:
    """One version of a key, the only one in a store that keeps none. ``mark`` None: to readers, nothing is there."""

    id: str | None
    mark: int | None
    tags: Mapping[str, str]


class _Objects:
    """The keys, one mutation after the other."""

    def __init__(self, history: History, marked: Mapping[int, Deed], resource_of: Mapping[str, str]) -> None:
        self._marked, self._resource_of = marked, resource_of
        self._floors = {name: history.acknowledged(name) for name in set(resource_of.values())}
        self._by_place: dict[str, list[Deed]] = defaultdict(list)
        for deed in history.deeds:
            self._by_place[deed.place].append(deed)
        # The mark that readers see at each key from each sequence number on.
        self._states: dict[str, list[tuple[int, int | None]]] = {key: [(0, None)] for key in resource_of}
        self._versions: dict[str, list[_Version]] = {key: [] for key in resource_of}  # the newest first
        self._highest: dict[str, Token] = defaultdict(lambda: NO_TOKEN)
        self._appeared: dict[int, int] = {}

    def apply(self, mutation: Mapping[str, Any]) -> None:
        key, at = mutation["key"], mutation["sequence"]
        if key not in self._states:
            return
        floor = self._floor(self._resource_of[key], at)
        versions, tags = self._versions[key], mutation["tags"]
        version = next((one for one in versions if one.id is not None and one.id == mutation["version_id"]), None)
        if mutation["operation"] == "PutObjectTagging":
            self._written(key, at, int(tags[MARK]), floor)
            (version or versions[0]).tags = tags
        elif version is not None:
            self._removed(key, at, floor, REMOVAL)
            versions.remove(version)
            self._states[key].append((at, versions[0].mark if versions else None))
        else:
            self._replaced(mutation, floor)

    def _replaced(self, mutation: Mapping[str, Any], floor: Token) -> None:
        key, at, tags = mutation["key"], mutation["sequence"], mutation["tags"]
        metadata, versions = mutation["metadata"], self._versions[key]
        gone = mutation["etag"] is None or "fencing-tombstone" in metadata
        mark = None if gone else int(metadata[MARK])
        before = versions[0] if versions else _Version(None, None, {})
        kept = versions if mutation["version_id"] is not None else []
        self._versions[key] = [_Version(mutation["version_id"], mark, tags), *kept]
        if mark is None and before.mark is not None:
            self._removed(key, at, floor, "delete")
        elif mark != before.mark:
            assert mark is not None
            self._written(key, at, mark, floor)
        elif mark is not None and tags != before.tags:
            raise Broken(f"P3: settled by mutation {at}, {key} has the tags {tags}, and had {before.tags}")
        if mark != before.mark:  # else rewritten to settle something, or a tombstone in place of nothing
            self._states[key].append((at, mark))

    def _written(self, key: str, at: int, mark: int, floor: Token) -> None:
        deed = self._marked[mark]
        said = f"{deed.kind} {mark} at {key}, mutation {at}"
        if mark in self._appeared:
            raise Broken(f"P3: {said} took effect twice, first at {self._appeared[mark]}: {deed}")
        tokens = deed.possible(self._resource_of[key], at)
        if not tokens:
            raise Broken(f"P3: {said} took effect, which no answer to it allows: {deed}")
        if max(tokens) < floor:
            raise Broken(f"P2: {said} with {max(tokens)} took effect after {floor} was acknowledged: {deed}")
        if max(tokens) < self._highest[key]:
            raise Broken(f"P2: {said} with {max(tokens)} replaced what {self._highest[key]} had written: {deed}")
        self._appeared[mark] = at
        self._highest[key] = max(self._highest[key], min(tokens))
        self._settled_in_time(deed, key, at)

    def _settled_in_time(self, deed: Deed, key: str, at: int) -> None:
        """An outcome that was said to be unknown is no longer so once the next write is acknowledged."""
        if any(one.said not in (Said.UNKNOWN, *NEVER) for one in deed.attempts):
            return
        last = max(one.span.answered for one in deed.attempts)
        for other in self._by_place[key]:
            for span in other.spans:
                if other is not deed and span.sent > last and span.after < at:
                    raise Broken(f"P3: {deed} took effect at {at}, after the acknowledgement of {other}")

    def _removed(self, key: str, at: int, floor: Token, kind: str) -> None:
        resource = self._resource_of[key]
        for deed in self._by_place[key]:
            if deed.kind == kind and any(token >= floor for token in deed.possible(resource, at)):
                return
        raise Broken(f"P2: {key} was removed by mutation {at}, and nobody who holds {floor} has asked for that {kind}")

    def _floor(self, resource: str, at: int) -> Token:
        floors = self._floors[resource]
        number = bisect_left(floors, (at, NO_TOKEN))
        return floors[number - 1][1] if number else NO_TOKEN

    def finish(self, looks: Iterable[Seen]) -> None:
        for deeds in self._by_place.values():
            for deed in deeds:
                if deed.place in self._states and deed.done:
                    self._took_effect(deed)
        for look in looks:
            if look.mark not in self.seen(look.key, look.span.before, look.span.after):
                raise Broken(f"P3: {look} is not what was there: {self._states[look.key]}")

    def _took_effect(self, deed: Deed) -> None:
        for span in deed.spans:
            if deed.kind == "delete":
                there = None in self.seen(deed.place, span.before, span.after)
            elif deed.kind == REMOVAL:
                there = True  # of a version that is gone already, nothing is left to be seen
            elif deed.kind == "completion":  # asked for once more, it is told of what it did before
                there = self._appeared.get(deed.mark, span.after + 1) <= span.after
            else:
                there = span.before < self._appeared.get(deed.mark, 0) <= span.after
            if not there:
                raise Broken(f"P3: acknowledged, without an effect: {deed}; {self._states[deed.place]}")

    def seen(self, key: str, before: int, after: int) -> set[int | None]:
        """Return the marks that a reader may have seen at a key between two sequence numbers."""
        states = self._states[key]
        first = max(number for number, (at, _) in enumerate(states) if at <= before)
        return {mark for at, mark in states[first:] if at <= after}


class _Rows:
    """The rows, one transaction after the other."""

    def __init__(self, history: History, marked: Mapping[int, Deed]) -> None:
        self._marked, self._deeds = marked, history.deeds
        self._fences: dict[str, Token] = defaultdict(lambda: NO_TOKEN)
        self._committed: dict[int, int] = {}
        self._rows: dict[str, list[Deed]] = defaultdict(list)

    def apply(self, number: int, commit: Commit) -> None:
        for change in commit.changes:
            if change.table == "fencing.fence" and change.new is not None:
                token = int(change.new["epoch"] or 0), int(change.new["value"] or 0)
                name = str(change.new["resource"])
                if token < self._fences[name]:
                    raise Broken(f"P1: the fence of {name} went from {self._fences[name]} to {token}")
                self._fences[name] = token
        for change in commit.changes:
            if change.table == "public.entries":
                self._changed(number, change)

    def _changed(self, number: int, change: Change) -> None:
        resources = {f"job/{row['job']}" for row in (change.old, change.new) if row is not None}
        if change.new is None:
            assert change.old is not None
            place = f"row {change.old['id']}"
            removers = [deed for deed in self._deeds if deed.kind == "row delete" and deed.place == place]
            if not any(self._may(deed, resources) for deed in removers):
                raise Broken(f"P1: {change} in commit {number}, and nobody who held {self._fences} had asked for it")
            return
        deed = self._marked[int(change.new["mark"] or 0)]
        if deed.never:
            raise Broken(f"P3: refused, and committed as {number}: {deed}; {change}")
        if not self._may(deed, resources):
            fences = {name: self._fences[name] for name in resources}
            raise Broken(f"P1: committed as {number} under the fences {fences}: {deed}; {change}")
        if self._committed.setdefault(deed.mark, number) != number:
            raise Broken(f"P3: committed twice, as {self._committed[deed.mark]} and {number}: {deed}")
        self._rows[str(change.new["id"])].append(deed)

    def _may(self, deed: Deed, resources: set[str]) -> bool:
        return all((token := deed.token(name)) is not None and token >= self._fences[name] for name in resources)

    def finish(self) -> None:
        for deed in self._deeds:
            if deed.place.startswith("row ") and deed.mark and deed.done and deed.mark not in self._committed:
                raise Broken(f"P3: acknowledged, and not committed: {deed}")
            for one in deed.attempts:
                for name, token in one.tokens.items():
                    if one.said in (Said.DONE, Said.REPLAYED) and token > self._fences[name]:
                        raise Broken(f"P1: {deed} was acknowledged, and the fence of {name} is {self._fences[name]}")
        for row, deeds in self._rows.items():
            self._in_order(row, deeds)

    def _in_order(self, row: str, deeds: list[Deed]) -> None:
        """Check that a write acknowledged, or answered as unknown, before another was sent is committed before it."""
        latest_sent = 0.0
        for deed in deeds:
            ended = max(one.span.answered for one in deed.attempts)
            told = all(one.said in (Said.DONE, Said.UNKNOWN, *NEVER) for one in deed.attempts)
            if told and ended < latest_sent:
                raise Broken(f"P3: on row {row}, an acknowledged write that was sent later took effect before {deed}")
            if deed.done:
                latest_sent = max(latest_sent, min(one.span.sent for one in deed.attempts))


# The transactions that a database has committed, in the order of their commits --------------------------------------

PUBLICATION = SLOT = "soak"
CHANGES = f"SELECT data FROM pg_logical_slot_get_binary_changes('{SLOT}', NULL, NULL, 'proto_version', '1', 'publication_names', '{PUBLICATION}')"  # noqa: E501 - one statement

Row: TypeAlias = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Change:
    """A row that was inserted (``old`` None), changed, or deleted (``new`` None)."""

    table: str
    old: Row | None
    new: Row | None


@dataclass(slots=True)
class Commit:
    """One transaction: what it changed in the published tables, in order."""

    changes: list[Change] = field(default_factory=list)


def commits(messages: Iterable[bytes]) -> Iterator[Commit]:
    """The transactions that the messages tell of. Old rows of a table show with REPLICA IDENTITY FULL."""
    tables: dict[int, tuple[str, list[str]]] = {}
    commit = Commit()
    for message in messages:
        reader = _Reader(message[1:])
        match chr(message[0]):
            case "B":
                commit = Commit()
            case "C":
                if commit.changes:
                    yield commit
            case "R":
                number = reader.number("I")
                schema, name = reader.text(), reader.text()
                reader.number("B")
                tables[number] = f"{schema}.{name}", [reader.column() for _ in range(reader.number("H"))]
            case "I" | "U" | "D":
                name, columns = tables[reader.number("I")]
                rows = {}
                while (kind := reader.kind()) is not None:
                    rows["new" if kind == "N" else "old"] = dict(zip(columns, reader.values(), strict=True))
                commit.changes.append(Change(name, rows.get("old"), rows.get("new")))


class _Reader:
    """Goes through one message."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return int(value)

    def text(self) -> str:
        end = self._data.index(0, self._at)
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    def column(self) -> str:
        self.number("B")
        name = self.text()
        self.number("I")
        self.number("i")
        return name

    def kind(self) -> str | None:
        """N, O or K before the next row; None at the end."""
        return chr(self.number("B")) if self._at < len(self._data) else None

    def values(self) -> Iterator[str | None]:
        for _ in range(self.number("H")):
            if chr(self.number("B")) == "t":
                length = self.number("I")
                yield self._data[self._at : self._at + length].decode()
                self._at += length
            else:
                yield None
