"""The holders of a soak with losses. They take locks from each other, go on as zombies, and note what they did."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import IO, Any, TypeAlias

import asyncpg

from tests.crash.clients import BUCKET
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY

BODIES = (b"", b"one", b"two", b"three" * 1000, b"large" * 20_000)
"""Bytes that come back again and again, with their ETags. The last ones are staged as parts."""

MARK = "x-amz-meta-soak"
PATIENCE = 10.0
_MOST_UNANSWERED = 0.05

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

    def note(self, line: str, **particulars: Any) -> None:
        self.file.write(json.dumps({"line": line, **particulars}, separators=(",", ":")) + "\n")

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def next(self, job: str) -> int:
        """The lock service: each caller becomes the new holder, without any regard to the one before."""
        self.newest[job] += 1
        return self.newest[job]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    code: str | None
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> str:
        if 200 <= self.status < 300:
            empty = self.body == b"[]" or (
                b'"results"' in self.body and not any(one["body"] for one in json.loads(self.body)["results"])
            )
            return "idle" if empty else "done"
        if self.code in _STALE:
            return "stale"
        if 400 <= self.status < 500:
            return "refused"
        if self.status == 503 and self.code in _UNKNOWN:
            return "unknown"
        if self.status in (501, 503) and self.code in _NOT_DONE:
            return "not done"
        raise AssertionError(f"an answer that says nothing: {self}")


class Client:
    """One connection at a time, kept while it is good. Each request is sent once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> Answer:
        """Raises OSError where no answer comes."""
        try:
            return await self._exchange(method, target, headers, body)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self.close()
            raise OSError(str(error)) from error

    async def _exchange(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        lines = [f"{method} {target} HTTP/1.1", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        named = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        status = int(head[0].split()[1])
        content = b"" if method == "HEAD" else await self._body(reader, named)
        if named.get("connection") == "close":
            self.close()
        return Answer(status, _code(status, content), named, content)

    async def _body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(headers.get("content-length", "0")))
        content = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            content += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return content

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class Holder:
    """One that believes to hold locks. It writes with their tokens, also after others have taken over."""

    def __init__(self, notes: Notes, port: int, seed: int, name: str, grounds: Sequence[Ground]) -> None:
        self._notes, self._name, self._grounds = notes, name, grounds
        self._at = grounds[0]
        self._random = Random(f"{seed}/{name}")
        self._client = Client(port)
        self._host = f"127.0.0.1:{port}"
        self._held: dict[str, int] = {}
        self._kinds: dict[Callable[[], Any], int] = {
            self._update: 40,
            self._insert: 16,
            self._transaction: 8,
            self._put: 10,
            self._delete: 3,
            self._get: 8,
            self._barrier: 5,
        }

    async def work(self, enough: Callable[[], bool]) -> None:
        kinds, weights = list(self._kinds), list(self._kinds.values())
        while not enough():
            (act,) = self._random.choices(kinds, weights)
            self._at = self._random.choice(self._grounds)
            await act()
        self.close()

    async def conclude(self, ground: Ground, job: str) -> bool:
        """Take a resource over at the end; whether that was acknowledged."""
        self._at = ground
        self._held[job] = self._notes.next(job)
        return await self._barrier(job)

    def close(self) -> None:
        self._client.close()

    # Their writes and reads

    async def _update(self) -> None:
        row = self._random.choice(list(self._at.rows))
        job, mark = self._at.rows[row], self._notes.mark()
        target = f"/v1/tables/entries?id=eq.{row}&job=eq.{number_of(job)}"
        change = (f"{self._at.area}rows/{row}", job, mark)
        await self._table("PATCH", target, {"mark": mark}, {job: self._token(job)}, [change])

    async def _insert(self) -> None:
        job, mark = self._random.choice(self._at.jobs), self._notes.mark()
        row = {"id": mark, "job": number_of(job)}
        change = (f"{self._at.area}notes/{mark}", job, mark)
        await self._table("POST", "/v1/tables/notes", row, {job: self._token(job)}, [change])

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
            writes.append(
                {
                    "method": "PATCH",
                    "table": "entries",
                    "schema": ground.schema,
                    "query": f"id=eq.{row}&job=eq.{number_of(job)}",
                    "body": {"mark": mark},
                    "token": str(tokens[job]),
                    "prefer": "return=representation",
                }
            )
        await self._table("POST", "/v1/transaction", {"writes": writes}, tokens, changes)

    async def _put(self) -> None:
        key = self._random.choice(list(self._at.keys))
        job, mark = self._at.keys[key], self._notes.mark()
        body = self._random.choice(BODIES) if self._random.random() < 0.2 else self._random.randbytes(20)
        await self._object("PUT", key, job, body, mark, {MARK: str(mark)})

    async def _delete(self) -> None:
        key = self._random.choice(list(self._at.keys))
        await self._object("DELETE", key, self._at.keys[key], b"", None, {})

    async def _get(self) -> None:
        key = self._random.choice(list(self._at.keys))
        sent = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._client.send("GET", f"/{self._at.bucket}/{key}", self._signed("GET", key, b"", {}))
        except OSError:
            self._client.close()
            return
        if answer.status in (200, 404):
            content = int(answer.headers[MARK]) if answer.status == 200 else None
            seen = {"content": content, "sent": sent, "answered": time.monotonic(), "who": self._name}
            self._notes.note("read", place=f"{self._at.area}objects/{key}", **seen)

    async def _barrier(self, job: str | None = None) -> bool:
        job = job or self._random.choice(self._at.jobs)
        token = self._token(job)
        return await self._table("POST", f"/v1/fences/{job}/barrier", {"token": str(token)}, {job: token}, [])

    # Requests

    async def _table(
        self, method: str, target: str, document: Any, tokens: dict[str, int], writes: list[Write]
    ) -> bool:
        headers = {
            "host": self._host,
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
    ) -> None:
        token = self._token(job)
        headers = self._signed(method, key, body, {**named, "fencing-token": str(token)})
        writes: list[Write] = [(f"{self._at.area}objects/{key}", job, mark)]
        await self._do(method, f"/{self._at.bucket}/{key}", headers, body, {job: token}, writes)

    async def _do(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
        tokens: dict[str, int],
        writes: list[Write],
    ) -> bool:
        """Send it once, and write down what became of it; whether it was acknowledged."""
        notes, answered, request = self._notes, None, None
        patience = 0.3 if self._random.random() < _MOST_UNANSWERED else PATIENCE
        sent = time.monotonic()
        try:
            async with asyncio.timeout(patience):
                answer = await self._client.send(method, target, headers, body)
            answered, said, request = time.monotonic(), answer.said, answer.headers.get("x-request-id")
            code = answer.code
        except OSError:
            self._client.close()
            said, code = "nothing", None
        notes.operations += 1
        notes.answered[self._at.kind] += said != "nothing"
        if code is not None:
            notes.counted[f"code {code}"] += 1
        notes.note(
            "operation",
            who=self._name,
            what=f"{method} {target}",
            tokens={job: [0, token] for job, token in tokens.items()},
            writes=writes,
            sent=sent,
            answered=answered,
            answer=said,
            code=code,
            request=request,
        )
        if said == "stale" and self._random.random() < 0.8:
            for job in tokens:
                self._held.pop(job, None)
        if said in ("not done", "nothing", "unknown"):
            await asyncio.sleep(self._random.random() * 0.1)
        return said in ("done", "idle")

    def _token(self, job: str) -> int:
        if job not in self._held or self._random.random() < 0.01:
            self._held[job] = self._notes.next(job)
        return self._held[job]

    def _signed(self, method: str, key: str, body: bytes, headers: dict[str, str]) -> dict[str, str]:
        """Sign a request as AWS defines it, in version 4."""
        now, digest = datetime.now(UTC), hashlib.sha256(body).hexdigest()
        at, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        named = dict(sorted({**headers, "host": self._host, "x-amz-content-sha256": digest, "x-amz-date": at}.items()))
        names, scope = ";".join(named), f"{day}/us-east-1/s3/aws4_request"
        lines = "".join(f"{name}:{value}\n" for name, value in named.items())
        canonical = f"{method}\n/{self._at.bucket}/{key}\n\n{lines}\n{names}\n{digest}"
        key_of_day = f"AWS4{SECRET_KEY}".encode()
        for part in scope.split("/"):
            key_of_day = hmac.digest(key_of_day, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(key_of_day, text.encode(), "sha256").hex()
        credential = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}"
        return {**named, "authorization": f"{credential}, SignedHeaders={names}, Signature={signature}"}


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
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            if session is not None:
                session.terminate()
            session = None
            continue
        for row in rows:
            seen = {"content": row["mark"], "sent": sent, "answered": answered, "who": "rows"}
            notes.note("read", place=f"{ground.area}rows/{row['id']}", **seen)
    if session is not None:
        session.terminate()


def _code(status: int, content: bytes) -> str | None:
    """The code of an S3 error document, or of a problem document."""
    if status < 400:
        return None
    if found := re.search(rb"<Error>.*?<Code>([^<]+)</Code>", content, re.DOTALL):
        return found[1].decode()
    try:
        document = json.loads(content or b"null")
    except ValueError:
        return None
    return document.get("code") if isinstance(document, dict) else None
