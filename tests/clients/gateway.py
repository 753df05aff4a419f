"""A gateway in a process of its own, in front of a real store: what clients see, and what tests look at."""

import asyncio
import hashlib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import boto3
import httpx
import trustme
from botocore.config import Config
from mypy_boto3_s3 import S3Client

from tests.guard.stage import session
from tests.processes import free_port, started
from tests.waiting import PATIENCE

REGION = "us-east-1"
BUCKET = "reports"
ACCESS_KEY, SECRET_KEY, API_KEY = "demo", "demo-secret", "demo-key"
TOKEN, NEWER = "33", "34"
"""The token of the client under test, and that of its successor."""

# Names, keys and the rule are those of `gateway demo`: what the page of clients shows can be pasted there.
CONFIGURATION = """
[server]
listen = "127.0.0.1:{port}"
rest_v1 = true
{tls}

[postgres]
dsn = "{dsn}"

[s3]
endpoint = "{endpoint}"
access_key_id = "embedded"
secret_access_key = "embedded"

[[callers]]
name = "demo"
access_key_id = "demo"
secret_access_key = "demo-secret"
api_key = "demo-key"

[[grants]]
callers = ["*"]
actions = ["read", "write", "call", "lock", "barrier", "credentials"]
everything = true

[[objects]]
match = "reports/accounts/{{id}}/**"
resource = "public.accounts/{{id}}"
"""


@dataclass(frozen=True, slots=True)
class Login:
    """The three values that every S3 client takes."""

    access_key_id: str
    secret_access_key: str
    session_token: str


@dataclass(frozen=True, slots=True)
class Gateway:
    """``origin`` is the gateway's. Past it go ``store``, a client of the store, and ``dsn``, the database's address.

    ``authority``: the certificate that clients have to trust, where the gateway speaks TLS.
    """

    origin: str
    store: S3Client
    dsn: str
    authority: Path | None = None

    def lock(self) -> "Lock":
        """Return a lock that no other test uses. Its name is a number, so that there can be a row of it."""
        return Lock(self, str(10**12 + uuid4().int % 10**12))

    def api(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        return httpx.Client(base_url=self.origin, headers=headers, timeout=PATIENCE, verify=_trust(self.authority))

    def connect(self, login: Login, **settings: Any) -> S3Client:
        """boto3, with its own defaults: it retries, sends checksums, and waits for 100 Continue."""
        return connect(self.origin, login, self.authority, **settings)


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock, and what it covers: all objects below ``prefix``, and the row ``number`` of ``accounts``."""

    gateway: Gateway
    name: str

    @property
    def resource(self) -> str:
        return f"public.accounts/{self.name}"

    @property
    def prefix(self) -> str:
        return f"accounts/{self.name}/"

    @property
    def number(self) -> int:
        return int(self.name)

    def key(self, name: str) -> str:
        return self.prefix + name

    def session(self, token: str = TOKEN) -> Login:
        """The caller's own keys, with the token where the session token goes."""
        return Login(ACCESS_KEY, SECRET_KEY, f"fencing-token={token}")

    def fenced(self, token: str = TOKEN) -> Login:
        """Fenced credentials for this lock."""
        with self.gateway.api() as api:
            answer = api.post("/v1/credentials", json={"resource": self.resource, "token": token})
        assert answer.status_code == 201, answer.text
        given = answer.json()
        return Login(given["access_key_id"], given["secret_access_key"], given["session_token"])

    def take_over(self) -> None:
        """Raise the fence, as a newer holder does before it reads."""
        self.raise_to(NEWER, "successor")

    def raise_to(self, token: str, holder: str) -> None:
        with self.gateway.api() as api:
            answer = api.post(f"/v1/fences/{self.resource}/barrier", json={"token": token, "holder": holder})
        assert answer.status_code == 200, answer.text

    def rejections(self) -> list[dict[str, Any]]:
        with self.gateway.api() as api:
            found: list[dict[str, Any]] = api.get("/v1/rejections", params={"resource": self.resource}).json()[
                "rejections"
            ]
        return found

    def body(self, name: str) -> bytes | None:
        """Return the content in the store itself. A tombstone is none."""
        try:
            found = self.gateway.store.get_object(Bucket=BUCKET, Key=self.key(name))
        except self.gateway.store.exceptions.NoSuchKey:
            return None
        return None if "fencing-tombstone" in found["Metadata"] else found["Body"].read()

    def objects(self) -> dict[str, str]:
        """Names, without the prefix, and the SHA-256 of what is in the store itself."""
        pages = self.gateway.store.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.prefix)
        names = [one["Key"].removeprefix(self.prefix) for page in pages for one in page.get("Contents", ())]
        bodies = {name: self.body(name) for name in names}
        return {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items() if body is not None}

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the columns in the table itself: owner, balance, note."""
        query = "SELECT owner, balance, note FROM accounts WHERE id = $1"
        return [tuple(row) for row in asyncio.run(_fetch(self.gateway.dsn, query, self.number))]

    def seed(self, **bodies: bytes) -> None:
        """Objects that the client under test has written while it still held the lock."""
        client = self.gateway.connect(self.session())
        for name, body in bodies.items():
            client.put_object(Bucket=BUCKET, Key=self.key(name), Body=body)
        client.close()

    @contextmanager
    def overtaken(self, refusals: int = 1) -> Iterator[None]:
        """Give the lock to another holder. The block's writes must change nothing, and be on record so many times."""
        before = self.objects(), self.rows()
        self.take_over()
        assert self.rejections() == []
        yield
        assert (self.objects(), self.rows()) == before
        records = self.rejections()
        assert len(records) >= refusals
        for record in records:
            assert (record["token"], record["fence"], record["reason"]) == (TOKEN, NEWER, "token-stale")
            assert (record["caller"], record["raised_by"]) == ("demo", "successor")


async def _fetch(dsn: str, query: str, *arguments: object) -> list[asyncpg.Record]:
    async with session(dsn) as owner:
        return await owner.fetch(query, *arguments)


@cache
def _trust(authority: Path | None) -> ssl.SSLContext:
    """Whom requests of ours trust. To read that takes longer than most of them do."""
    return ssl.create_default_context(cafile=authority)


def send(method: str, url: str, **more: Any) -> httpx.Response:
    """Send a request as a person with a URL does, without a client library."""
    return httpx.request(method, url, timeout=PATIENCE, verify=_trust(None), **more)


@cache
def _session() -> boto3.Session:
    """One session, because reading the service model is what makes a client slow to build."""
    return boto3.Session(region_name=REGION)


def connect(origin: str, login: Login, authority: Path | None = None, **settings: Any) -> S3Client:
    """A boto3 client of whatever answers at ``origin``."""
    return _session().client(
        "s3",
        endpoint_url=origin,
        aws_access_key_id=login.access_key_id,
        aws_secret_access_key=login.secret_access_key,
        aws_session_token=login.session_token,
        verify=str(authority) if authority else None,
        config=Config(signature_version="s3v4").merge(Config(**settings)),
    )


@contextmanager
def serving(
    dsn: str, endpoint: str, directory: Path, authority: trustme.CA | None = None, rules: str = ""
) -> Iterator[Gateway]:
    """Run ``gateway serve`` on a free port, in front of the store at ``endpoint``; stopped on exit.

    ``authority``: who vouches for it, which makes it speak TLS. ``rules``: what its configuration has beside ours.
    """
    port = free_port()
    trusted = None if authority is None else directory / "authority.pem"
    tls = "" if authority is None or trusted is None else _certified(authority, trusted)
    path = directory / "gateway.toml"
    path.write_text(CONFIGURATION.format(port=port, dsn=dsn, endpoint=endpoint, tls=tls) + rules)
    store = connect(endpoint, Login("embedded", "embedded", ""))
    store.create_bucket(Bucket=BUCKET)
    with started("serve", "--config", str(path)) as process:
        process.wait_for(lambda: "listening" in process.errors.read_text())
        yield Gateway(f"{'https' if tls else 'http'}://127.0.0.1:{port}", store, dsn, trusted)
        assert process.stop() == 0
        assert "Traceback" not in process.said(), process.said()
    store.close()


def _certified(authority: trustme.CA, trusted: Path) -> str:
    """Write the certificates; the lines of the configuration that name those of the gateway."""
    authority.cert_pem.write_to_path(str(trusted))
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = trusted.with_name("tls.crt"), trusted.with_name("tls.key")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    return f'tls_certificate = "{certificate}"\ntls_key = "{key}"'
