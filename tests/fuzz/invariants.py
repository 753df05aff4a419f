"""The invariants, which hold for any bytes. ``Judge`` compares requests with answers and effects, and finds faults."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.crash.history import Change, Commit
from tests.fuzz import reading
from tests.fuzz.deeds import ACCOUNTS, FIRST_MARK, HELD, NEWEST, STALE_ACCOUNT, Deed, Effect
from tests.fuzz.grammar import Conversation, End
from tests.fuzz.reading import Answer, Message

_MARK = re.compile(r"(?<!\d)\d{8,12}(?!\d)")
_SIGNATURE = re.compile(r"Signature=[0-9a-f]{64}", re.IGNORECASE)
_SANE = re.compile("[!-~]{1,128}")
"""The names that a request may give itself, for the log."""
_OPEN = re.compile(r"/v1/(health|ready|openapi\.json|docs)|/ui/(login|static/.*)")
"""Paths that answer a caller without credentials."""
_UNSENT = "nothing is served but what was sent"
_BEFORE_ROUTING = frozenset((400, 408, 431))
"""Statuses of answers that the server gives by itself, to a head that it cannot read."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken invariant. ``conversation`` is the name of the one that shows it, if one does."""

    invariant: str
    what: str
    conversation: str | None = None

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}" + (f" (conversation {self.conversation})" if self.conversation else "")


@dataclass(slots=True)
class Played:
    """A conversation and what came back. ``closed``: by the gateway; ``late``: it did not end in time."""

    conversation: Conversation
    received: bytes
    closed: bool
    late: bool


@dataclass(slots=True)
class Evidence:
    """The traces that a round has left, beside its answers."""

    lines: list[str] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    mutations: list[dict[str, Any]] = field(default_factory=list)


class Judge:
    """Keeps what was sent in a whole run: what takes effect late is judged by it too."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = list(secrets)
        self._effects: dict[int, tuple[Deed, Effect]] = {}
        self._whole: set[str] = set()
        self._begun: set[str] = set()
        self._names: dict[str, str] = {}
        self._seen: set[int] = set()
        self.counted: Counter[str] = Counter()

    def sending(self, conversation: Conversation) -> None:
        """Take down what a conversation may change, before any of it is sent."""
        for deed in conversation.deeds.values():
            self._names[deed.id] = conversation.name
            if deed.effect is not None:
                self._effects[deed.effect.mark] = deed, deed.effect
        for message in conversation.messages():
            name = message.header("x-request-id") or ""
            if message.begun:
                self._begun.add(name)
            if message.whole:
                self._whole.add(name)

    def round(self, played: list[Played], evidence: Evidence) -> list[Fault]:
        """Return the faults of a round."""
        served = _Served()
        faults = list(served.read(evidence.lines, self._secrets))
        for one in played:
            faults += self._of_conversation(one, served)
        faults += self._of_effects(evidence)
        faults += self._of_successes(played)
        return [
            fault if fault.conversation else replace(fault, conversation=self._blamed(fault.what)) for fault in faults
        ]

    def of_record(self, record: str) -> list[Fault]:
        """Return the secrets that stand in the record of a run."""
        return [Fault("no secret on record", what) for what in _told(record, self._secrets)]

    # Answers

    def _of_conversation(self, one: Played, served: _Served) -> Iterable[Fault]:
        name, (messages, got) = one.conversation.name, _exchanged(one)
        of_messages = _served_what_was_sent(one, messages, served)
        for fault in (*_pairs(one, messages, got, served), *_all_answered(one, messages, got), *of_messages):
            yield replace(fault, conversation=name)
        for message, answer in zip(messages, got, strict=False):
            self.counted[f"{answer.status}"] += 1
            deed = one.conversation.deeds.get(message.header("x-request-id") or "")
            if not (deed is not None and deed.known) and answer.succeeded and not _is_open(message):
                what = f"{answer.status} to {message.method} {message.target[:200]}"
                yield Fault("no success without a caller", what, name)
        for answer in got:
            if answer.status >= 500 and answer.status not in (501, 503):
                yield Fault("no 5xx but 503", f"{answer.status} {answer.body[:300]!r}", name)
            if answer.status == 501 and b"<Code>NotImplemented</Code>" not in answer.body and answer.body:
                yield Fault("no 5xx but 503", f"501 {answer.body[:300]!r}", name)

    # Effects

    def _of_effects(self, evidence: Evidence) -> Iterable[Fault]:
        for commit in evidence.commits:
            rows: Counter[int] = Counter()
            for change in commit.changes:
                for mark, fault in self._of_change(change):
                    if mark is not None:
                        rows[mark] += change.table.endswith(("entries", "accounts"))
                    if fault is not None:
                        yield fault
            for mark, count in rows.items():
                deed, effect = self._effects.get(mark, (None, None))
                if effect is not None and count > effect.rows:
                    yield Fault("no write without its claim", f"{count} rows by {_short(deed)}")
        for mutation in evidence.mutations:
            key = str(mutation["key"])
            if key == "seed" or key.startswith("fz/"):
                yield from self._of_mark(_mark(key), "object", key, f"{mutation['operation']} {key}")

    def _of_change(self, change: Change) -> Iterable[tuple[int | None, Fault | None]]:
        row = change.new or {}
        what = f"{change.table} {change.old} → {change.new}"
        if change.table == "fencing.fence":
            yield None, self._of_fence(str(row.get("resource")), str(row.get("value")), what)
            return
        if change.table == "fencing.lease":
            resource = str(row.get("resource"))
            if change.new is not None and resource.startswith("fz/"):
                yield from ((None, fault) for fault in self._of_mark(_mark(resource), "lease", resource, what))
            return
        if change.new is None:
            yield None, Fault("no write without its claim", f"deleted: {what}")
            return
        text = row.get("mark")
        mark = int(text) if text else None
        self._seen.add(mark or 0)
        faults = list(self._of_mark(mark, change.table, None, what))
        yield mark, faults[0] if faults else None

    def _of_fence(self, resource: str, value: str, what: str) -> Fault | None:
        if resource in {f"account/{number}" for number in ACCOUNTS} and value == str(HELD):
            return None
        if resource == f"account/{STALE_ACCOUNT}" and value == str(NEWEST):
            return None
        mark = _mark(resource)
        deed, effect = self._effects.get(mark or 0, (None, None))
        self._seen.add(mark or 0)
        if deed is None or effect is None:
            return Fault("no fence without its claim", f"{what} by nobody")
        came, named = self._came(deed, effect), resource in (f"s3/bucket/{effect.name}", effect.name)
        if not (effect.allowed and came):
            # A write that fails after its claim may have raised its own fence.
            its_own = deed.known and came and named
            return None if its_own else Fault("no fence without its claim", f"{what} by {_short(deed)}")
        if not named or (effect.token is not None and value != str(effect.token)):
            return Fault("no fence but the one named", f"{what} by {_short(deed)}, which named {effect.name}")
        return None

    def _of_mark(self, mark: int | None, place: str, name: str | None, what: str) -> Iterable[Fault]:
        """Return the fault where the request with this mark may not have had such an effect."""
        deed, effect = self._effects.get(mark or 0, (None, None))
        self._seen.add(mark or 0)
        if deed is None or effect is None:
            yield Fault("no write without its claim", f"nobody's: {what}")
        elif not effect.allowed:
            yield Fault("no write without its claim", f"{what} by {_short(deed)}")
        elif not self._came(deed, effect):
            yield Fault("no write of a request that did not arrive whole", f"{what} by {_short(deed)}")
        elif effect.place != place or (name is not None and effect.name != name):
            yield Fault("no write elsewhere", f"{what} by {_short(deed)}, which named {effect.place} {effect.name}")

    def _came(self, deed: Deed, effect: Effect) -> bool:
        """Tell whether enough of it was sent for an effect."""
        return deed.id in (self._begun if effect.bodiless else self._whole)

    def _of_successes(self, played: list[Played]) -> Iterable[Fault]:
        """Return acknowledged writes that have not taken effect."""
        for one in played:
            for message, answer in zip(*_exchanged(one), strict=False):
                deed = one.conversation.deeds.get(message.header("x-request-id") or "")
                effect = deed.effect if deed is not None and message.whole and answer.succeeded else None
                if effect is not None and effect.certain:
                    self.counted["writes acknowledged"] += 1
                    if effect.mark not in self._seen:
                        what = f"{answer.status} to {_short(deed)}"
                        yield Fault("no acknowledgement without an effect", what, one.conversation.name)

    def _blamed(self, what: str) -> str | None:
        """Return the conversation that a fault names by a mark or a request id."""
        ids = re.findall(r"fz-\d+-\w+", what)
        found = [self._names[one] for one in ids if one in self._names]
        marks = [int(one) for one in _MARK.findall(what) if int(one) >= FIRST_MARK]
        found += [self._names[self._effects[one][0].id] for one in marks if one in self._effects]
        return found[0] if found else None


class _Served:
    """The requests that the gateways say they have served."""

    def __init__(self) -> None:
        self.by_theirs: dict[str, list[dict[str, Any]]] = {}
        self.by_own: dict[str, dict[str, Any]] = {}

    def read(self, lines: list[str], secrets: list[str]) -> Iterable[Fault]:
        for text in _joined(lines):
            yield from (Fault("no secret in the log", f"{what} in {text[:300]}") for what in _told(text, secrets))
            try:
                line = json.loads(text)
            except ValueError:
                if not text.startswith("WARNING:"):
                    yield Fault("no error in the log", text[-2000:])
                continue
            if line.get("level") in ("error", "critical") or "exception" in line:
                yield Fault("no error in the log", f"{_name_of(line)} {text[:3000]}")
            if line.get("event") != "request":
                continue
            theirs = line.get("client_request_id") or ""
            self.by_theirs.setdefault(theirs, []).append(line)
            self.by_own[line["request_id"]] = line
            if theirs.endswith("-trailer"):
                yield Fault("no trailer is a header", f"X-Request-Id {theirs} came as a trailer")
            status = line.get("status") or 0
            if status >= 500 and status not in (501, 503):
                yield Fault("no 5xx but 503", f"{status} to {theirs} {line['method']} {line['path'][:300]}")


def _exchanged(one: Played) -> tuple[list[Message], list[Answer]]:
    """Return the requests of a conversation, and the answers to them."""
    messages = one.conversation.messages()
    return messages, reading.answers(one.received, [message.method for message in messages])


def _pairs(one: Played, messages: list[Message], got: list[Answer], served: _Served) -> Iterable[Fault]:
    """Return answers that are none, or do not belong to the request in their place."""
    for number, answer in enumerate(got):
        if answer.fault is not None:
            yield Fault("every answer is HTTP", f"{answer.fault} in answer {number}: {one.received[-300:]!r}")
            return
        message = messages[number] if number < len(messages) else None
        own = answer.header("x-request-id")
        if own is None:
            # A fault of a message may show behind its answer, which may be early.
            readable = message is not None and all(one.whole and not one.doubtful for one in messages[: number + 1])
            if answer.status not in _BEFORE_ROUTING or number < len(got) - 1 or readable:
                what = f"answer {number} is nobody's: {answer.status} {answer.body[:200]!r}"
                yield Fault("answers pair with requests", what)
            continue
        if message is None:
            yield Fault("answers pair with requests", f"{len(got)} answers to {len(messages)} requests")
            return
        if (line := served.by_own.get(own)) is not None:
            theirs = _name(message)
            given = line.get("client_request_id")
            if given != theirs and not str(given).endswith("-trailer"):
                yield Fault("answers pair with requests", f"answer {number} is to {given}, not to {theirs}")
        if not answer.complete and one.closed and _is_heard_out(one, messages):
            yield Fault("every answer is HTTP", f"answer {number} is cut off: {one.received[-200:]!r}")


def _all_answered(one: Played, messages: list[Message], got: list[Answer]) -> Iterable[Fault]:
    """Return a fault where a client that did nothing wrong, and reads, is not answered."""
    if not _is_heard_out(one, messages) or any(not message.whole or message.doubtful for message in messages):
        return
    closing = bool(got) and "close" in (got[-1].header("connection") or "")
    if (len(got) < len(messages) and not closing) or (got and not got[-1].complete):
        what = f"{len(got)} answers to {len(messages)} requests; late: {one.late}, closed: {one.closed}"
        yield Fault("every request is answered", what)


def _name(message: Message) -> str | None:
    """Return the name that a request gives itself, if the gateway logs such names."""
    name = message.header("x-request-id")
    return name if name is not None and _SANE.fullmatch(name) else None


def _is_heard_out(one: Played, messages: list[Message]) -> bool:
    """Tell whether the client reads to the end. A server that closes with bytes unread may lose its own answers."""
    return one.conversation.end is End.READ and bool(messages) and messages[-1].end == len(one.conversation.sent)


def _served_what_was_sent(one: Played, messages: list[Message], served: _Served) -> Iterable[Fault]:
    """Return requests that were served and not sent, or served in another order."""
    sent = [_name(message) or "" for message in messages]
    ids = dict.fromkeys([*one.conversation.deeds, *sent])
    handled = [theirs for theirs in ids for _ in served.by_theirs.get(theirs, ()) if theirs]
    for theirs in handled:
        if theirs not in sent:
            yield Fault(_UNSENT, f"{theirs} was served, which is no request on its connection")
        elif handled.count(theirs) > sent.count(theirs):
            yield Fault(_UNSENT, f"{theirs} was served {handled.count(theirs)} times")
        else:
            message, line = messages[sent.index(theirs)], served.by_theirs[theirs][0]
            path = _path(message)
            if line["method"] != message.method or (line["path"] != path and line["plane"] != "leases"):
                was = f"{theirs} was {message.method} {path}, served as {line['method']} {line['path']}"
                yield Fault(_UNSENT, was)
    skipped = [theirs for theirs in sent[: len(handled)] if theirs and theirs not in handled]
    if skipped:
        yield Fault(_UNSENT, f"{skipped} left out, and later ones served")


def _joined(lines: Iterable[str]) -> list[str]:
    """Return the lines, with each traceback as one."""
    joined: list[str] = []
    for line in lines:
        if joined and line[:1] not in ("{", "W", "E", "I"):
            joined[-1] += f"\n{line}"
        else:
            joined.append(line)
    return joined


def _told(text: str, secrets: list[str]) -> Iterable[str]:
    for secret in secrets:
        if secret in text:
            yield f"the secret {secret[:4]}…"
    if found := _SIGNATURE.search(text):
        yield f"the signature {found[0][:24]}…"


def _path(message: Message) -> str:
    return unquote(urlsplit(message.target).path if "://" in message.target else re.split("[?#]", message.target)[0])


def _is_open(message: Message) -> bool:
    return message.method == "OPTIONS" or _OPEN.fullmatch(_path(message)) is not None


def _mark(text: str) -> int | None:
    found = [int(one) for one in _MARK.findall(text) if int(one) >= FIRST_MARK]
    return found[0] if found else None


def _name_of(line: dict[str, Any]) -> str:
    return " ".join(str(line[name]) for name in ("event", "method", "path") if name in line)


def _short(deed: Deed | None) -> str:
    return "nobody" if deed is None else f"{deed.id} {deed.method} {deed.target[:200]} {deed.headers}"[:900]
