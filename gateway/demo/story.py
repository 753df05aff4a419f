"""The story of the paused writer, played with real processes: ``gateway demo --story``.

Two writers deposit money into account 1. Each reads the balance, then writes the row and a statement, an S3 object that
the same lock covers. The first writer is stopped between its look at its lease and its write. Nothing here is a
recorded text: an event that does not happen as told ends the story with ``Untold``.

A writer is a process of its own: a plain HTTP client and boto3, each with one more header. ``python -m
gateway.demo.story URL NAME`` takes one order a line from standard input and answers each with a line. It is a diligent
client: it raises the fence before it reads, and looks at its lease before it writes. The pause comes after that look,
which is why no client can do without the fence.

The lock service is a stand-in, a table of leases in this process: any service that hands out growing tokens will do.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import httpx
from botocore.config import Config
from botocore.exceptions import ClientError
from rich.console import Console

RESOURCE = "public.accounts/1"
STATEMENT = ("reports", "accounts/1/statement.txt")
KEY = "/".join(STATEMENT)


def tables(url: str, headers: Mapping[str, str] | None = None) -> httpx.Client:
    return httpx.Client(
        base_url=url, headers={"Authorization": "Bearer demo-key", **(headers or {})}, timeout=30, trust_env=False
    )


def objects(url: str, headers: Mapping[str, str] | None = None) -> Any:
    """Return an S3 client of the demo's gateway that sends these headers, signed like all others."""
    client: Any = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="demo",
        aws_secret_access_key="demo-secret",  # noqa: S106 - the demo's, printed by it
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, proxies={}),
    )

    def add_headers(request: Any, **_: object) -> None:
        for name, value in (headers or {}).items():
            request.headers[name] = value

    client.meta.events.register("before-sign.s3", add_headers)
    return client


class DepositWriter:
    """Deposits money into account 1 while its lease lasts."""

    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._presented: dict[str, str] = {"Fencing-Holder": name}
        self._tables = tables(url)
        self._objects = objects(url, self._presented)

    def take(self, token: str) -> None:
        """Hold the lock from here on. The barrier comes first: what is read after it stays true."""
        self._presented["Fencing-Token"] = token
        barrier = {"token": token, "holder": self._name}
        self._tables.post(f"/v1/fences/{RESOURCE}/barrier", json=barrier).raise_for_status()

    def deposit(self, deposit: int, ttl: float) -> None:
        """Read, look at the lease, which lasts ``ttl`` seconds, and write."""
        ends = time.monotonic() + ttl
        balance = self._tables.get("/v1/tables/accounts", params={"id": "eq.1"}).raise_for_status().json()[0]["balance"]
        _answer("about to write", balance=balance, lease_left=ends - time.monotonic())
        # This is where the process is stopped. When it goes on, it has looked at its lease already.
        sys.stdin.readline()
        _answer("written", row=self._write_row(balance + deposit), object=self._write_object(balance + deposit))

    def _write_row(self, balance: int) -> dict[str, Any]:
        change = {"balance": balance, "note": f"written by {self._name}"}
        answer = self._tables.patch("/v1/tables/accounts", params={"id": "eq.1"}, json=change, headers=self._presented)
        if answer.is_success:
            return {"status": answer.status_code}
        return {"status": answer.status_code, **answer.json()}

    def _write_object(self, balance: int) -> dict[str, Any]:
        body = f"balance {balance}, written by {self._name}".encode()
        try:
            answer = self._objects.put_object(Bucket=STATEMENT[0], Key=STATEMENT[1], Body=body)
        except ClientError as error:
            said: dict[str, Any] = dict(error.response["Error"])
            details = "; ".join(
                f"{name}: {said[name]}" for name in ("Fence", "RaisedBy", "RaisedAt", "Rejection") if name in said
            )
            return {
                "status": _status(error.response),
                "code": said["Code"],
                "message": said["Message"],
                "details": details,
            }
        return {"status": _status(answer)}


def main(url: str, name: str) -> None:
    """Take the lease, then deposit as told, until standard input ends."""
    writer = DepositWriter(url, name)
    _answer("waiting for the lock")
    writer.take(**json.loads(sys.stdin.readline()))
    _answer("holding the lock")
    while order := sys.stdin.readline():
        writer.deposit(**json.loads(order))


def _status(answer: Any) -> int:
    return int(answer["ResponseMetadata"]["HTTPStatusCode"])


def _answer(step: str, **told: Any) -> None:
    sys.stdout.write(json.dumps({"step": step, **told}) + "\n")
    sys.stdout.flush()


TTL = 2.0
"""Seconds a lease lasts."""

STEP_TIMEOUT = 60.0
"""Seconds a writer may take for one step."""


class StoryFailed(Exception):
    """Something did not happen as the story tells it."""


@dataclass(slots=True)
class DemoLease:
    """The right to write, until it ends; ``token`` is higher than that of every lease before."""

    token: int
    ends: float

    @property
    def left(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()


@dataclass(slots=True)
class LockService:
    """A stand-in for a lock service: one lock, leases that run out, tokens that grow."""

    next_token: int
    lease: DemoLease | None = None

    def acquire(self) -> DemoLease | None:
        """Return a lease of ``TTL`` seconds; None while another holder has the lock."""
        if self.lease is not None and self.lease.left > 0:
            return None
        self.lease = DemoLease(self.next_token, time.monotonic() + TTL)
        self.next_token += 1
        return self.lease

    def renew(self, lease: DemoLease) -> None:
        """Let a lease last for another ``TTL`` seconds: no other holder has taken it over yet."""
        _expect(self.lease is lease, f"the holder of token {lease.token} still has the lock")
        lease.ends = time.monotonic() + TTL


class WriterProcess:
    """A writer process, told what to do and heard line by line."""

    def __init__(self, process: "subprocess.Popen[str]", name: str) -> None:
        self.name = name
        self._process = process

    def wait(self) -> None:
        """Wait until the process is up, so that its start costs no time of its lease."""
        self._hear("waiting for the lock")

    def take(self, lease: DemoLease) -> None:
        """Hand the lease over. The writer raises the fence before it reads anything."""
        self._tell(token=str(lease.token))
        self._hear("holding the lock")

    def begin(self, amount: int, lease: DemoLease) -> dict[str, Any]:
        """Let it read the balance and look at its lease; it is about to write when this returns."""
        self._tell(deposit=amount, ttl=lease.left)
        return self._hear("about to write")

    def write(self) -> dict[str, Any]:
        """Let it write, and hear what the gateway said."""
        self._tell()
        return self._hear("written")

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def _tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _hear(self, step: str) -> dict[str, Any]:
        # One answer for each order, so nothing ever waits in a buffer where select() cannot see it.
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], STEP_TIMEOUT)
        line = self._process.stdout.readline() if ready else ""
        answer: dict[str, Any] = json.loads(line) if line else {}
        if answer.get("step") != step:
            raise StoryFailed(f"{self.name} was to be {step!r}, but said {line.strip() or 'nothing'}")
        return answer


def play(url: str, first_token: int, console: Console) -> bool:
    """Tell the story against the gateway at ``url``; about 6 s. False where it did not go as told."""
    try:
        with _writer(url, "writer-a") as first, _writer(url, "writer-b") as second:
            first.wait()
            second.wait()
            _Story(url, LockService(first_token), first, second, console).tell()
    except (StoryFailed, httpx.HTTPError, OSError) as error:
        console.print(f"The story did not go as it must: {error}", style="bold red", markup=False)
        return False
    return True


@contextmanager
def _writer(url: str, name: str) -> Iterator[WriterProcess]:
    process = subprocess.Popen(  # noqa: S603 - our own interpreter, module and address
        [sys.executable, "-m", "gateway.demo.story", url, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield WriterProcess(process, name)
        finally:
            process.kill()


class _Story:
    def __init__(
        self, url: str, locks: LockService, first: WriterProcess, second: WriterProcess, console: Console
    ) -> None:
        self._url = url
        self._locks = locks
        self._first = first
        self._second = second
        self._console = console

    def tell(self) -> None:
        self._heading("The paused writer")
        self._line(f"One lock, {RESOURCE}, covers a table row and the S3 object {KEY}. Leases last {TTL:.0f} s.")
        stale = self._first_writes_and_stops()
        fresh = self._second_takes_over(stale)
        self._first_wakes_up(stale, fresh)
        self._what_is_left(fresh)
        self._what_is_on_record(stale, fresh)

    def _first_writes_and_stops(self) -> DemoLease:
        lease = self._acquire(self._first)
        self._first.take(lease)
        self._line(f"{self._first.name} gets the lock with token {lease.token}.")
        self._deposit(self._first, 10, lease)
        self._locks.renew(lease)
        about = self._first.begin(10, lease)
        _expect(about["lease_left"] > 0, f"{self._first.name} still holds its lease before it is stopped")
        self._line(
            f"{self._first.name} reads {about['balance']}, sees {about['lease_left']:.1f} s left on its lease, "
            "and is about to write …"
        )
        self._first.stop()
        self._line("… when its process is stopped (SIGSTOP): a long pause, as a garbage collector or a host can make.")
        return lease

    def _second_takes_over(self, stale: DemoLease) -> DemoLease:
        _expect(self._locks.acquire() is None, "the lock is still held")
        self._line(f"{self._second.name} asks for the lock and has to wait.")
        time.sleep(max(0.0, stale.left))
        lease = self._acquire(self._second)
        self._second.take(lease)
        self._line(
            f"The lease runs out. {self._second.name} gets the lock with token {lease.token} and raises the fence."
        )
        self._deposit(self._second, 500, lease)
        return lease

    def _first_wakes_up(self, stale: DemoLease, fresh: DemoLease) -> None:
        self._first.resume()
        self._line(
            f"{self._first.name} is resumed (SIGCONT). It knows nothing of all this and writes what it was about to."
        )
        answers = self._first.write()
        for target in ("row", "object"):
            answer = answers[target]
            _expect(answer["status"] == 412, f"the {target} is refused with 412, not {answer}")
            self._line(f"  {target}: 412 {answer['code']}", style="bold red")
            self._line(f"    {answer['message']}")
            self._line(f"    {answer['details']}")
            for told in (stale.token, fresh.token, self._second.name):
                _expect(
                    str(told) in f"{answer['message']} {answer['details']}", f"the refusal of the {target} names {told}"
                )

    def _what_is_left(self, fresh: DemoLease) -> None:
        with tables(self._url) as client:
            row = client.get("/v1/tables/accounts", params={"id": "eq.1"}).raise_for_status().json()[0]
            fence = client.get(f"/v1/fences/{RESOURCE}").raise_for_status().json()
        found = objects(self._url).get_object(Bucket=STATEMENT[0], Key=STATEMENT[1])["Body"].read().decode()
        self._heading("What is there now")
        self._line(f"row:    balance {row['balance']}, {row['note']}")
        self._line(f"object: {found}")
        self._line(f"fence:  {fence['token']}, raised by {fence['raised_by']} at {fence['raised_at']}")
        _expect(row["note"] == f"written by {self._second.name}", "the row is the second writer's")
        _expect(found == f"balance {row['balance']}, written by {self._second.name}", "so is the object")
        _expect(fence["token"] == str(fresh.token), "the fence is the second writer's token")

    def _what_is_on_record(self, stale: DemoLease, fresh: DemoLease) -> None:
        with tables(self._url) as client:
            answer = client.get("/v1/rejections", params={"resource": RESOURCE, "limit": 2}).raise_for_status()
        records = answer.json()["rejections"]
        self._heading("On record (GET /v1/rejections)")
        for record in records:
            _expect(
                (record["token"], record["fence"], record["holder"], record["raised_by"], record["reason"])
                == (str(stale.token), str(fresh.token), self._first.name, self._second.name, "token-stale"),
                f"the record tells what happened, not {record}",
            )
            self._line(f"{record['at']}  {record['holder']}  {record['method']} {record['target']}")
            self._line(
                f"    token {record['token']} refused: {record['raised_by']} had taken over with {record['fence']} "
                f"at {record['raised_at']}; {_payload(record)}, rejection {record['id']}"
            )
        _expect([record["method"] for record in records] == ["PUT", "PATCH"], "both refusals are on record")
        self._console.print(
            "\nThe zombie was refused on both planes; nothing it wrote took effect.", style="bold green"
        )

    def _acquire(self, writer: WriterProcess) -> DemoLease:
        lease = self._locks.acquire()
        if lease is None:
            raise StoryFailed(f"{writer.name} did not get the lock")
        return lease

    def _deposit(self, writer: WriterProcess, amount: int, lease: DemoLease) -> None:
        before = writer.begin(amount, lease)["balance"]
        answers = writer.write()
        for target in ("row", "object"):
            _expect(answers[target]["status"] in (200, 204), f"{writer.name} writes the {target}: {answers[target]}")
        self._line(f"{writer.name} deposits {amount}: balance {before} -> {before + amount}, row and object written.")

    def _heading(self, text: str) -> None:
        self._console.print(f"\n{text}", style="bold")

    def _line(self, text: str, style: str | None = None) -> None:
        self._console.print(f"  {text}", style=style, markup=False)


def _payload(record: dict[str, Any]) -> str:
    return "refused before its body was read" if record["payload_size"] is None else f"{record['payload_size']} bytes"


def _expect(happened: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not happened:
        raise StoryFailed(f"expected that {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
