"""The writers of a soak: they take locks from each other, and go on as zombies when others have taken over.

One run has writers and trouble side by side, then a last holder, then the check of all that has happened.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, TypeAlias

from gateway.fencing.intent import DEAD_AFTER
from tests.crash.clients import Answer, Client
from tests.crash.history import MARK, REMOVAL, Attempt, Broken, Deed, Said, Seen, Span, Token
from tests.crash.soak.stage import (
    BODIES,
    JOBS,
    KEYS,
    ROWS,
    WRITERS,
    Soak,
    Trouble,
    change_of_row,
    side_by_side,
    staged,
)

_MOST_PATIENCE = 20.0
_UNKNOWN = frozenset({"FencingOutcomeUnknown", "outcome-unknown"})
_NOTHING_WRITTEN = frozenset({"ServiceUnavailable", "unavailable"})
_AT_THE_END = 60.0
_UNTIL_LATE = 0.7
"""The share of a run that is over when it gets late, see ``Soak.late``."""

Answering: TypeAlias = Callable[[Client], Answer]
Sent: TypeAlias = tuple[Deed, str, str, Any, dict[str, str], dict[str, bytes]]
"""A write under a key: its resource, table, body, headers, and what it was answered, once it was."""


def play(seed: int, seconds: float) -> Counter[str]:
    """Run one soak, and return how often each action and outcome occurred. Raises ``Broken``."""
    with staged(seed) as soak:

        def pass_time() -> None:
            if not soak.over.wait(seconds * _UNTIL_LATE):
                soak.late.set()
                soak.over.wait(seconds * (1 - _UNTIL_LATE))

        works = [Trouble(soak).work, *(Writer(soak, number).work for number in range(WRITERS))]
        side_by_side(soak.over, works, pass_time)
        Writer(soak, WRITERS).conclude()
        mutations, committed = soak.effects()
    history = soak.history
    history.check(mutations, committed)
    counted = {"deeds": len(history.deeds), "looks": len(history.looks), "mutations": len(mutations)}
    return soak.counted + Counter(counted | {"commits": len(committed)})


class Writer:
    """Works on, whatever happens: takes locks from others, and writes with what it believes to hold."""

    def __init__(self, soak: Soak, number: int) -> None:
        self._soak, self._random = soak, Random(f"{soak.seed}/writer {number}")
        self._held: dict[str, Token] = {}
        self._told = ""
        self._retried: list[Sent] = []

    def work(self) -> None:
        kinds: dict[Callable[[], object], int] = {
            self._put: 10,
            self._copy: 2,
            self._delete: 3,
            self._open_upload: 2,
            self._complete: 3,
            self._look: 4,
            self._barrier: 2,
            self._epoch: 1,
            self._upsert: 3,
            self._update: 8,
            self._move: 2,
            self._delete_row: 2,
            self._transaction: 2,
            self._call: 2,
            self._insert_once: 2,
            self._again: 2,
        }
        late: dict[Callable[[], object], int] = {self._tag: 2, self._remove_version: 2}
        while not self._soak.over.is_set():
            choice = kinds | late if self._soak.late.is_set() else kinds
            (act,) = self._random.choices(list(choice), list(choice.values()))
            act()
            if self._random.random() < 0.3:
                time.sleep(self._random.random() * 0.05)

    def conclude(self) -> None:
        """A last holder takes every resource over, and finds everything free and in its place."""
        soak = self._soak
        # No request is under way any more, but the gateway cannot know. The store's clock settles the remaining ones.
        dead_after = DEAD_AFTER.total_seconds() + 1
        soak.double.behave(clock_offset=dead_after, check_signatures=False)
        for job in JOBS:
            self._insist(partial(self._learn, job))
            self._held[job] = soak.issuer.next(job)
            self._insist(partial(self._barrier, job))
        soak.double.behave(clock_offset=0.0, check_signatures=True)
        for key in KEYS:
            self._insist(partial(self._put, key))
            self._look(key)
        for row in ROWS:
            self._insist(partial(self._upsert, row))

    def _insist(self, act: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _AT_THE_END
        while not act():
            if time.monotonic() > deadline:
                raise Broken(f"the last holder cannot write: {self._soak.history.deeds[-1]}; {self._told}")
            time.sleep(0.1)

    # Objects

    def _put(self, key: str | None = None) -> bool:
        key = key or self._key()
        body = self._body()

        def perform(client: Client, mark: int) -> Answer:
            answer = client.put(key, body, **_marked(mark))
            if version := answer.headers.get("x-amz-version-id"):
                self._soak.versions.append((key, version))
            return answer

        return self._do("put", key, KEYS[key], perform)

    def _copy(self) -> None:
        source, key = self._key(), self._key()

        def perform(client: Client, mark: int) -> Answer:
            return client.copy(source, key, {"x-amz-metadata-directive": "REPLACE", **_marked(mark)})

        self._do("copy", key, KEYS[key], perform)

    def _delete(self) -> None:
        key = self._key()
        self._do("delete", key, KEYS[key], lambda client, _: client.delete(key), leaves=False)

    def _open_upload(self) -> None:
        """Open an upload, which another writer may complete, perhaps with a later token."""
        key, body = self._key(), self._body() or b"empty"
        deed = Deed("completion", next(self._soak.marks), key)
        with suppress(OSError, AssertionError):
            client = self._client(_text(self._token(KEYS[key])))
            upload = client.open_upload(key, body, _marked(deed.mark))
            self._soak.history.deeds.append(deed)
            self._soak.uploads.append((key, upload, body, deed))

    def _complete(self) -> None:
        if self._soak.uploads:
            key, upload, body, deed = self._random.choice(self._soak.uploads[-4:])
            self._try(deed, (KEYS[key],), lambda client: client.complete(key, upload, body))

    def _tag(self) -> None:
        key = self._key()
        self._do("tags", key, KEYS[key], lambda client, mark: client.tag(key, str(mark), MARK))

    def _remove_version(self) -> None:
        if self._soak.versions:
            key, version = self._random.choice(self._soak.versions[-8:])
            self._do(REMOVAL, key, KEYS[key], lambda client, _: client.delete_version(key, version), leaves=False)

    def _look(self, key: str | None = None) -> None:
        key = key or self._key()
        sent, before = time.monotonic(), self._soak.sequence()
        try:
            answer = self._client("0").read(key)
        except OSError:
            return
        if answer.status in (200, 404):
            mark = int(answer.headers[f"x-amz-meta-{MARK}"]) if answer.succeeded else None
            span = Span(sent, time.monotonic(), before, self._soak.sequence())
            self._soak.history.looks.append(Seen(key, mark, span))

    # Resources

    def _barrier(self, job: str | None = None) -> bool:
        job = job or self._random.choice(JOBS)
        return self._do("barrier", job, job, lambda client, _: client.barrier(job), leaves=False)

    def _epoch(self) -> None:
        """An administrator finds that the issuer has lost count, and starts anew. The issuer learns of it."""
        job = self._random.choice(JOBS)
        if self._random.random() < 0.7:
            return
        with suppress(OSError):
            fence = self._client("0").fence(job)
            if not fence.succeeded or (expected := fence.json["token"]) is None:
                return
            begun = (_token(expected)[0] + 1, 0)
            deed = Deed("epoch", 0, job)
            self._soak.history.deeds.append(deed)
            self._attempt(deed, {job: begun}, lambda client: client.epoch(job, expected))
        self._learn(job)

    def _learn(self, job: str) -> bool:
        """Tell the issuer the epoch of the fence; whether it could be read. The answer to a new epoch may get lost."""
        with suppress(OSError):
            fence = self._client("0").fence(job)
            if fence.succeeded and fence.json["token"] is not None:
                self._soak.issuer.learn(job, _token(fence.json["token"])[0])
            return fence.succeeded
        return False

    # Rows

    def _upsert(self, row: int | None = None) -> bool:
        row, job = row or self._row(), self._random.choice(JOBS)
        prefer = "return=representation,resolution=merge-duplicates"
        return self._row_deed(row, (job,), "POST", "entries", lambda mark: _entry(row, job, mark), prefer=prefer)

    def _update(self) -> None:
        row, job = self._row(), self._random.choice(JOBS)
        self._row_deed(row, (job,), "PATCH", f"entries?id=eq.{row}&job=eq.{job[4:]}", lambda mark: {"mark": mark})

    def _move(self) -> None:
        """From one resource to the other: both tokens count."""
        row, (job, other) = self._row(), self._random.sample(JOBS, 2)
        target = f"entries?id=eq.{row}&job=eq.{job[4:]}"
        self._row_deed(row, (job, other), "PATCH", target, lambda mark: {"job": int(other[4:]), "mark": mark})

    def _delete_row(self) -> None:
        row, job = self._row(), self._random.choice(JOBS)
        target = f"entries?id=eq.{row}&job=eq.{job[4:]}"
        self._row_deed(row, (job,), "DELETE", target, lambda _: None, kind="row delete", leaves=False)

    def _call(self) -> None:
        row, job = self._row(), self._random.choice(JOBS)

        def perform(client: Client, mark: int) -> Answer:
            return client.table("POST", "rpc/write_entry", _entry(row, job, mark), **{"Fencing-Resource": job})

        self._do("call", f"row {row}", job, perform)

    def _transaction(self) -> None:
        """A row of each resource, each under its token, or neither."""
        rows = self._random.sample(ROWS, 2)
        jobs = JOBS if self._random.random() < 0.5 else JOBS[::-1]

        def perform(client: Client, mark: int) -> Answer:
            tokens = dict(pair.split("=") for pair in str(client.token).split(", "))
            writes = [change_of_row(row, job, mark, tokens[job]) for row, job in zip(rows, jobs, strict=True)]
            return client.transaction(writes, **{"Fencing-Token": "0"})

        self._do("transaction", f"row {rows[0]}", jobs, perform)

    def _insert_once(self) -> None:
        """Under a key, so that it may be sent again."""
        row, job = self._row(), self._random.choice(JOBS)
        deed = Deed("insert once", next(self._soak.marks), f"row {row}")
        self._soak.history.deeds.append(deed)
        prefer = "return=representation,resolution=merge-duplicates"
        headers = {"Prefer": prefer, "Idempotency-Key": f"soak-{deed.mark}"}
        again: Sent = (deed, job, "entries", _entry(row, job, deed.mark), headers, {})
        self._retried.append(again)
        self._send(*again)

    def _again(self) -> None:
        if self._retried:
            self._send(*self._random.choice(self._retried[-3:]))

    def _send(
        self, deed: Deed, job: str, target: str, body: Any, headers: dict[str, str], answered: dict[str, bytes]
    ) -> None:
        def perform(client: Client) -> Answer:
            answer = client.table("POST", target, body, **headers)
            if answer.succeeded and answered.setdefault("body", answer.body) != answer.body:
                raise Broken(f"P3: two answers to one key: {answered['body']!r} and {answer.body!r}")
            return answer

        self._try(deed, (job,), perform)

    def _row_deed(
        self,
        row: int,
        jobs: tuple[str, ...],
        method: str,
        target: str,
        body: Callable[[int], Any],
        *,
        kind: str = "row",
        leaves: bool = True,
        prefer: str = "return=representation",
    ) -> bool:
        return self._do(
            kind,
            f"row {row}",
            jobs,
            lambda client, mark: client.table(method, target, body(mark), Prefer=prefer),
            leaves=leaves,
        )

    # All of them

    def _do(
        self,
        kind: str,
        place: str,
        jobs: str | tuple[str, ...],
        perform: Callable[[Client, int], Answer],
        *,
        leaves: bool = True,
    ) -> bool:
        deed = Deed(kind, next(self._soak.marks) if leaves else 0, place)
        self._soak.history.deeds.append(deed)
        return self._try(deed, (jobs,) if isinstance(jobs, str) else jobs, lambda client: perform(client, deed.mark))

    def _try(self, deed: Deed, jobs: tuple[str, ...], perform: Answering) -> bool:
        return self._attempt(deed, {job: self._token(job) for job in jobs}, perform)

    def _attempt(self, deed: Deed, tokens: dict[str, Token], perform: Answering) -> bool:
        """Whether it was acknowledged."""
        shown = ", ".join(f"{job}={_text(token)}" for job, token in tokens.items())
        client = self._client(shown if len(tokens) > 1 else _text(*tokens.values()))
        # It may take effect from here on, whatever becomes of us.
        sent, before = time.monotonic(), self._soak.sequence()
        pending = Attempt(tokens, Said.NOTHING, Span(sent, float("inf"), before, 2**60))
        deed.attempts.append(pending)
        try:
            answer = perform(client)
            self._told = f"{answer} {answer.body!r}"
            said = _said(answer)
        except OSError as error:
            said, self._told = Said.NOTHING, repr(error)
        answered = time.monotonic()
        span = Span(sent, answered, before, self._soak.sequence())
        deed.attempts[deed.attempts.index(pending)] = Attempt(tokens, said, span)
        self._soak.counted[f"{deed.kind}: {said}"] += 1
        if said is Said.REFUSED and self._random.random() < 0.7:
            for job in tokens:
                self._held.pop(job, None)
        return said in (Said.DONE, Said.IDLE)

    def _token(self, job: str) -> Token:
        if job not in self._held or self._random.random() < 0.03:
            self._held[job] = self._soak.issuer.next(job)
        return self._held[job]

    def _client(self, token: str) -> Client:
        patience = 1.0 if self._random.random() < 0.1 else _MOST_PATIENCE
        return Client(self._random.choice(self._soak.gateways).port, token, patience)

    def _body(self) -> bytes:
        """Of small bytes there are two forms only: where both are forbidden for a day, a key can be settled no more."""
        return self._random.choice(BODIES) if self._random.random() < 0.4 else self._random.randbytes(20)

    def _key(self) -> str:
        return self._random.choice(list(KEYS))

    def _row(self) -> int:
        return self._random.choice(ROWS)


def _said(answer: Answer) -> Said:
    if answer.replayed:
        return Said.REPLAYED
    if answer.succeeded:
        idle = answer.body == b"[]" or (
            b'"results"' in answer.body and not any(one["body"] for one in answer.json["results"])
        )
        return Said.IDLE if idle else Said.DONE
    if answer.refused:
        return Said.REFUSED
    if answer.code in _NOTHING_WRITTEN:
        return Said.NOT_DONE
    if answer.code in _UNKNOWN:
        return Said.UNKNOWN
    raise Broken(f"P3: an answer that says nothing: {answer} {answer.body!r}")


def _marked(mark: int) -> dict[str, str]:
    return {f"x-amz-meta-{MARK}": str(mark)}


def _entry(row: int, job: str, mark: int) -> dict[str, int]:
    return {"id": row, "job": int(job[4:]), "mark": mark}


def _text(token: Token) -> str:
    epoch, value = token
    return f"{epoch}.{value}" if epoch else str(value)


def _token(text: str) -> Token:
    epoch, _, value = text.rpartition(".")
    return int(epoch or 0), int(value)
