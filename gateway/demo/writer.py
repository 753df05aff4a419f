"""A writer of the story, in a process of its own: a plain HTTP client and boto3, each with one more header.

``python -m gateway.demo.writer URL NAME`` takes one order a line from standard input and answers each with a line.
It is a diligent client: it raises the fence before it reads, and looks at its lease before it writes. The pause comes
after that look, which is why no client can do without the fence.
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import boto3
import httpx
from botocore.config import Config
from botocore.exceptions import ClientError

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


if __name__ == "__main__":
    main(*sys.argv[1:])
