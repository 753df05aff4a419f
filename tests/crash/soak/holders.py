"""The holders of a soak with losses. They take locks from each other, go on as zombies, and note what they did."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import IO, Any, TypeAlias

import asyncpg
import httpx

from tests.crash.clients import BUCKET, code_of, signed
from tests.crash.soak.stage import BODIES, change_of_row
from tests.running import API_KEY

MARK = "x-amz-meta-soak"
PATIENCE = 10.0
_MOST_UNANSWERED = 0.05
_DOUBLED = 0.02
"""The part of the requests that arrive twice, as from a client or a proxy that repeats them."""
_LATE = 2.0
"""Half of those arrive at the same time, the others up to so many seconds later. Their sender may be overtaken then."""
_LOCKS = 3
_TTL = 2.0

_STALE = frozenset({"StaleFencingToken", "token-stale"})
_UNKNOWN = frozenset({"FencingOutcomeUnknown", "outcome-unknown"})
_NOT_DONE = frozenset(
    {"ServiceUnavailable", "unavailable", "database-closed", "journal-unusable", "SlowDown", "store-unfit"}
)

Token: TypeAlias = tuple[int, int]
Write: TypeAlias = tuple[str, str, int | None]


class Ground:
    """All that holders write to in one database: rows in a schema, keys in a bucket, and the resources of both.

    ``name``: that of the database, its schema and its bucket. The only database has none.
    """

    def __init__(self, name: str = "") -> None:
        self.name, self.schema, self.bucket = name, name or "public", name or BUCKET
        self.area = f"{name}/" if name else ""
        self.kind = f"{name or 'job'}/"
        self.jobs = [f"{self.kind}{number}" for number in range(1, 9)]
        # After a rewind, objects come only once lost requests are dead. The other resources have rows only.
        self.keys = {f"jobs/{number_of(job)}/{key}": job for job in self.jobs[:4] for key in ("a", "b", "c")}
        self.rows = {row: self.jobs[row % len(self.jobs)] for row in range(1, 25)}
        self.profile = {"content-profile": name} if name else {}


def number_of(job: str) -> int:
    """Return the number in the name of a resource."""
    return int(job.rpartition("/")[2])


@dataclass(slots=True)
class Notes:
    """The file of operations. It is read at the end."""

    file: IO[str]
    operations: int = 0
    marks: int = 0
    newest: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    """Answers by the kind of their resources."""
    locks: dict[str, str] = field(default_factory=dict)
    """The newest token of each lock that the lock service has given to a holder."""

    def note(self, line: str, **particulars: Any) -> None:
        self.file.write(json.dumps({"line": line, **particulars}, separators=(",", ":")) + "\n")

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def next(self, job: str) -> int:
        """The lock service: each caller becomes the new holder, without any regard to the one before."""
        self.newest[job] += 1
        return self.newest[job]


def _said(answer: httpx.Response, code: str | None) -> str:
    """The statement of an answer about its writes, in the words of the checker."""
    status, body = answer.status_code, answer.content
    if answer.is_success:
        nothing = body == b"[]" or (b'"results"' in body and not any(one["body"] for one in answer.json()["results"]))
        return "idle" if nothing else "done"
    if code in _STALE:
        return "stale"
    if 400 <= status < 500:
        return "refused"
    if status == 503 and code in _UNKNOWN:
        return "unknown"
    if status in (501, 503) and code in _NOT_DONE:
        return "not done"
    raise AssertionError(f"an answer that says nothing: {status} {body!r}")


class Holder:
    """One that believes to hold locks. It writes with their tokens, also after others have taken over."""

    def __init__(self, notes: Notes, port: int, seed: int, name: str, grounds: Sequence[Ground]) -> None:
        self._notes, self._name, self._grounds = notes, name, grounds
        self._at = grounds[0]
        self._random = Random(f"{seed}/{name}")
        # One connection for each request under way, kept while it is good.
        self._origin = f"http://127.0.0.1:{port}"
        two = httpx.Limits(max_connections=2)
        self._client = httpx.AsyncClient(base_url=self._origin, limits=two, timeout=PATIENCE, verify=False)
        self._held: dict[str, int] = {}
        self._leases: dict[str, tuple[str, str]] = {}
        self._kinds: dict[Callable[[], Any], int] = {
            self._update: 40,
            self._insert: 16,
            self._transaction: 8,
            self._put: 10,
            self._delete: 3,
            self._get: 8,
            self._barrier: 5,
            self._lock: 8,
        }

    async def work(self, enough: Callable[[], bool]) -> None:
        kinds, weights = list(self._kinds), list(self._kinds.values())
        while not enough():
            (act,) = self._random.choices(kinds, weights)
            self._at = self._random.choice(self._grounds)
            await act()
        await self.close()

    async def conclude(self, ground: Ground, job: str, body: bytes | None) -> bool:
        """Take a resource over at the end, and write a row and its objects again; whether all was acknowledged.

        ``body``: None for any one.
        """
        self._at = ground
        self._held[job] = self._notes.next(job)
        if not (await self._barrier(job) and await self._insert(job)):
            return False
        return all([await self._put(key, body) for key, its in ground.keys.items() if its == job])

    async def close(self) -> None:
        await self._client.aclose()

    # Their writes and reads

    async def _update(self) -> None:
        row = self._random.choice(list(self._at.rows))
        job, mark = self._at.rows[row], self._notes.mark()
        target = f"/v1/tables/entries?id=eq.{row}&job=eq.{number_of(job)}"
        change = (f"{self._at.area}rows/{row}", job, mark)
        await self._table("PATCH", target, {"mark": mark}, {job: self._token(job)}, [change])

    async def _insert(self, job: str | None = None) -> bool:
        job, mark = job or self._random.choice(self._at.jobs), self._notes.mark()
        row = {"id": mark, "job": number_of(job)}
        change = (f"{self._at.area}notes/{mark}", job, mark)
        return await self._table("POST", "/v1/tables/notes", row, {job: self._token(job)}, [change])

    async def _transaction(self) -> None:
        """A row of each of two resources, each under its token, or neither."""
        ground = self._at
        one, other = self._random.sample(list(ground.rows), 2)
        if ground.rows[one] == ground.rows[other]:
            return
        writes, tokens = [], {}
        changes: list[Write] = []
        for row in (one, other):
            job, mark = ground.rows[row], self._notes.mark()
            tokens[job] = self._token(job)
            changes.append((f"{ground.area}rows/{row}", job, mark))
            writes.append({**change_of_row(row, job, mark, tokens[job]), "schema": ground.schema})
        await self._table("POST", "/v1/transaction", {"writes": writes}, tokens, changes)

    async def _put(self, key: str | None = None, body: bytes | None = None) -> bool:
        key = key or self._random.choice(list(self._at.keys))
        job, mark = self._at.keys[key], self._notes.mark()
        if body is None:
            body = self._random.choice(BODIES) if self._random.random() < 0.2 else self._random.randbytes(20)
        return await self._object("PUT", key, job, body, mark, {MARK: str(mark)})

    async def _delete(self) -> None:
        key = self._random.choice(list(self._at.keys))
        await self._object("DELETE", key, self._at.keys[key], b"", None, {})

    async def _get(self) -> None:
        key = self._random.choice(list(self._at.keys))
        sent = time.monotonic()
        target = f"/{self._at.bucket}/{key}"
        try:
            answer = await self._client.get(target, headers=signed("GET", self._origin + target, b"", {}))
        except httpx.TransportError:
            return
        if answer.status_code in (200, 404):
            content = int(answer.headers[MARK]) if answer.is_success else None
            seen = {"content": content, "sent": sent, "answered": time.monotonic(), "who": self._name}
            self._notes.note("read", place=f"{self._at.area}objects/{key}", **seen)

    async def _barrier(self, job: str | None = None) -> bool:
        job = job or self._random.choice(self._at.jobs)
        token = self._token(job)
        return await self._table("POST", f"/v1/fences/{job}/barrier", {"token": str(token)}, {job: token}, [])

    async def _lock(self) -> None:
        """Acquire a lock of the lock service; or renew, release or break one."""
        lock = f"{self._at.kind}lock/{self._random.randrange(_LOCKS)}"
        lease, token = self._leases.get(lock, ("", ""))
        deed = self._random.choices(("renew", "release", "break"), (12, 5, 1))[0] if lease else "acquire"
        if deed == "break":
            token = self._notes.locks[lock]
        wish = {"holder": f"{self._name} {self._notes.mark()}", "ttl": _TTL, "wait": self._random.choice((0.0, 0.5))}
        method, target, document = {
            "acquire": ("POST", f"/v1/leases/{lock}", wish),
            "renew": ("PUT", f"/v1/leases/{lock}/{lease}", {}),
            "release": ("DELETE", f"/v1/leases/{lock}/{lease}", None),
            "break": ("POST", f"/v1/breaks/{lock}", {"expected": token, "reason": "soak"}),
        }[deed]
        body = b"" if document is None else json.dumps(document).encode()
        headers = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
        answer, sent, answered = await self._sent(method, target, headers, body)
        said, lasts = "nothing", 0.0
        if answer is not None:
            said = "lost" if answer.status_code == 410 else _said(answer, code_of(answer.content))
            if said == "done" and deed in ("acquire", "renew"):
                given = answer.json()
                token, lasts = given["token"], given["expires_in"]
                self._leases[lock] = given["lease"], token
                self._notes.locks[lock] = token
            elif said in ("done", "lost") and deed != "break":
                self._leases.pop(lock, None)
        epoch, _, value = token.rpartition(".")
        told = {"deed": deed, "resource": lock, "token": [int(epoch or 0), int(value or 0)], "lasts": lasts}
        self._notes.note("lease", who=self._name, **told, answer=said, sent=sent, answered=answered)
        self._notes.counted[f"{deed}: {said}"] += 1

    # Requests

    async def _table(
        self, method: str, target: str, document: Any, tokens: dict[str, int], writes: list[Write]
    ) -> bool:
        headers = {
            "authorization": f"Bearer {API_KEY}",
            "content-type": "application/json",
            "prefer": "return=representation",
            **self._at.profile,
        }
        if len(tokens) == 1:
            headers["fencing-token"] = str(*tokens.values())
        return await self._do(method, target, headers, json.dumps(document).encode(), tokens, writes)

    async def _object(
        self, method: str, key: str, job: str, body: bytes, mark: int | None, named: dict[str, str]
    ) -> bool:
        token = self._token(job)
        target = f"/{self._at.bucket}/{key}"
        headers = signed(method, self._origin + target, body, {**named, "fencing-token": str(token)})
        writes: list[Write] = [(f"{self._at.area}objects/{key}", job, mark)]
        return await self._do(method, target, headers, body, {job: token}, writes)

    async def _do(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
        tokens: dict[str, int],
        writes: list[Write],
    ) -> bool:
        """Send it once or twice, and write down what became of it; whether it was acknowledged."""
        times = 2 if self._random.random() < _DOUBLED else 1
        later = self._random.choice((0.0, self._random.random() * _LATE))
        sent = (self._sent(method, target, headers, body, number * later) for number in range(times))
        found = await asyncio.gather(*sent)
        answers = [self._noted(f"{method} {target}", tokens, writes, *one) for one in found]
        said = answers[-1]
        if said == "stale" and self._random.random() < 0.8:
            for job in tokens:
                self._held.pop(job, None)
        if said in ("not done", "nothing", "unknown"):
            await asyncio.sleep(self._random.random() * 0.1)
        return said in ("done", "idle")

    async def _sent(
        self, method: str, target: str, headers: dict[str, str], body: bytes, later: float = 0.0
    ) -> tuple[httpx.Response | None, float, float | None]:
        """Return the answer, if one came, and when the request was sent and answered."""
        if later:
            await asyncio.sleep(later)
        patience = 0.3 if self._random.random() < _MOST_UNANSWERED else PATIENCE
        sent = time.monotonic()
        with suppress(httpx.TransportError):
            answer = await self._client.request(method, target, headers=headers, content=body, timeout=patience)
            return answer, sent, time.monotonic()
        return None, sent, None

    def _noted(
        self,
        what: str,
        tokens: dict[str, int],
        writes: list[Write],
        answer: httpx.Response | None,
        sent: float,
        answered: float | None,
    ) -> str:
        """Write an operation down; what its answer says."""
        notes, code = self._notes, None
        said, request = "nothing", None
        if answer is not None:
            code = code_of(answer.content) if answer.is_error else None
            said, request = _said(answer, code), answer.headers.get("x-request-id")
        notes.operations += 1
        notes.answered[self._at.kind] += said != "nothing"
        if code is not None:
            notes.counted[f"code {code}"] += 1
        notes.note(
            "operation",
            who=self._name,
            what=what,
            tokens={job: [0, token] for job, token in tokens.items()},
            writes=writes,
            sent=sent,
            answered=answered,
            answer=said,
            code=code,
            request=request,
        )
        return said

    def _token(self, job: str) -> int:
        if job not in self._held or self._random.random() < 0.01:
            self._held[job] = self._notes.next(job)
        return self._held[job]


async def look_at_rows(notes: Notes, ground: Ground, dsn: Callable[[], str], enough: Callable[[], bool]) -> None:
    """Read the rows again and again, past all gateways."""
    session: asyncpg.Connection | None = None
    while not enough():
        await asyncio.sleep(0.1)
        try:
            if session is None:
                session = await asyncpg.connect(dsn(), timeout=2, command_timeout=5)
            sent = time.monotonic()
            rows = await session.fetch(f"SELECT id, mark FROM {ground.schema}.entries")
            answered = time.monotonic()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            if session is not None:
                session.terminate()
            session = None
            continue
        for row in rows:
            seen = {"content": row["mark"], "sent": sent, "answered": answered, "who": "rows"}
            notes.note("read", place=f"{ground.area}rows/{row['id']}", **seen)
    if session is not None:
        session.terminate()
