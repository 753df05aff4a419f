"""``gateway serve`` with client certificates: foreign clients, and reloads with open connections."""

import asyncio
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from tests import ROOT
from tests.auth.test_client_certificates import ANN, BOB, READ, Party, Raw, patch
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import in_thread
from tests.postgres import as_gateway
from tests.processes import Running, free_port, started
from tests.waiting import PATIENCE

DOCUMENT = ROOT / "docs/identities.md"
CALLERS = """
[[callers]]
name = "ann"
certificates = ["{}"]
[[callers]]
name = "bob"
certificates = ["DNS:bob.shop.internal"]
[[callers]]
name = "writer"
api_key = "writer-api-key"
[[grants]]
callers = ["ann"]
actions = ["read", "write"]
everything = true
[[grants]]
callers = ["bob", "writer"]
actions = ["read"]
tables = ["*"]
[telemetry]
public_metrics = true
"""


class Served:
    """A running ``gateway serve``, and the file of its configuration."""

    def __init__(self, party: Party, dsn: str, file: Path) -> None:
        self.party, self._dsn, self.file, self.port = party, dsn, file, free_port()
        self.process: Running
        self.opened: list[Raw] = []

    @property
    def origin(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def write(self, ann: str = ANN, more: str = "", **server: str) -> None:
        lines = [f'{key} = "{value}"' for key, value in {**self.party.server, **server}.items()]
        self.file.write_text(
            "\n".join([f'[server]\nlisten = "127.0.0.1:{self.port}"', *lines])
            + f'\n[postgres]\ndsn = "{as_gateway(self._dsn)}"\n{more}{CALLERS.format(ann)}'
        )

    async def open(self, *certificates: Path | None) -> list[Raw]:
        opened = [await Raw.open(self.origin, self.party.authority.trusted(one)) for one in certificates]
        self.opened += opened
        return opened

    async def refuses(self, certificate: Path | None) -> bool:
        """Return whether no request gets through with this certificate."""
        try:
            [one] = await self.open(certificate)
            await one.ask(READ)
        except (OSError, asyncio.IncompleteReadError):
            return True
        return False

    async def reload(self) -> None:
        before = self.process.errors.read_text().count('"configuration reloaded"')
        self.process.process.send_signal(1)
        told = self.process.errors.read_text
        await asyncio.to_thread(
            self.process.wait_for,
            lambda: told().count('"configuration reloaded"') > before or "reload failed" in told(),
        )
        assert "reload failed" not in told(), told()


@pytest.fixture
def party(tmp_path: Path) -> Party:
    return Party(tmp_path)


@contextmanager
def served(party: Party, dsn: str, file: Path, **settings: str) -> Iterator[Served]:
    gateway = Served(party, dsn, file)
    gateway.write(**settings)
    with started("serve", "--config", str(file)) as process:
        gateway.process = process
        process.wait_for(lambda: '"listening"' in process.errors.read_text())
        yield gateway
        for one in gateway.opened:
            one.writer.close()
        assert process.stop() == 0
        assert "Traceback" not in process.said(), process.said()


class Handshake:
    """A handshake that goes on when the test says so."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        self._plain, self._incoming, self._outgoing = plain, ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    async def receive(self) -> None:
        self._plain.sendall(self._outgoing.read())
        self._incoming.write(await asyncio.to_thread(self._plain.recv, 65536))

    async def begin(self) -> None:
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()
        await self.receive()

    async def end(self) -> bytes:
        """Complete it, and ask for something. Return the first bytes of the answer; none at the end."""
        while not _is_complete(self.tls):
            await self.receive()
        self.tls.write(READ)
        while (said := _read(self.tls)) is None:
            await self.receive()
        return said


def _is_complete(tls: ssl.SSLObject) -> bool:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _read(tls: ssl.SSLObject) -> bytes | None:
    """Return the next bytes; none at the end, and None before they have come."""
    try:
        return tls.read()
    except ssl.SSLWantReadError:
        return None


@pytest.mark.thorough
async def test_a_removed_name_ends_at_once_and_new_authorities_reach_new_connections(
    tmp_path: Path, orders: str, party: Party
) -> None:
    """A handshake that a reload overtakes proves nothing, or a former client could keep a connection for later."""
    shown, by_other = party.issue("ann", ANN), party.issue("other", ANN, by=party.other)
    with (
        served(party, orders, tmp_path / "gateway.toml") as gateway,
        socket.create_connection(("127.0.0.1", gateway.port), PATIENCE) as plain,
    ):
        [ann] = await gateway.open(shown)
        for _ in range(4):
            assert await ann.statuses(patch(5), READ) == [204, 200]
        gateway.write("URI:spiffe://shop/other")
        await gateway.reload()
        assert await ann.statuses(patch(5), READ) == [401, 401]
        gateway.write()
        await gateway.reload()
        assert await ann.statuses(patch(5), READ) == [204, 200]
        overtaken = Handshake(plain, party.authority.trusted(shown))
        await overtaken.begin()
        # The former authority is no authority any more, and the connection that it has proven is over.
        party.file("authorities", party.other.certificate)
        await gateway.reload()
        assert await asyncio.wait_for(ann.reader.read(), PATIENCE) == b""
        assert await gateway.refuses(shown)
        assert await overtaken.end() == b""
        [other] = await gateway.open(by_other)
        assert await other.statuses(patch(5)) == [204]
        # A demand takes effect in the same way.
        gateway.write(client_certificates="demand")
        await gateway.reload()
        assert await asyncio.wait_for(other.reader.read(), PATIENCE) == b""
        assert await gateway.refuses(None)
        assert await (await gateway.open(by_other))[0].statuses(READ) == [200]
        log = gateway.process.errors.read_text()
        assert '"[server], authorities: the former one -> another one"' in log
        assert "spiffe://shop/ann" not in "".join(line for line in log.splitlines() if '"request"' in line)


@pytest.mark.thorough
async def test_boto3_and_curl_write_with_the_certificate_of_the_documentation(
    tmp_path: Path, orders: str, party: Party
) -> None:
    """A signed request to a bucket is its signer's; an unsigned one is the certificate's, or anonymous."""
    section = DOCUMENT.read_text().partition("## Client certificates")[2].partition("\n## ")[0]
    commands, _ = re.findall(r"```sh\n(.+?)```", section, re.DOTALL)
    made = await asyncio.to_thread(
        subprocess.run, ["bash", "-euc", commands], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert made.returncode == 0, made.stderr
    assert "URI:spiffe://shop/worker" in made.stdout
    files = str(tmp_path / "worker.crt"), str(tmp_path / "worker.key")
    trusted = str(party.file("trusted.pem", party.authority.certificate))
    authorities = party.file("both.pem", (tmp_path / "authority.crt").read_bytes() + party.authority.certificate)
    double = S3Double(buckets=["bucket"])
    async with serve(double) as endpoint:
        store = f'[s3]\nendpoint = "{endpoint}"\naccess_key_id = "AKIADOUBLE"\nsecret_access_key = "double-secret"\n'
        own = {"ann": "URI:spiffe://shop/worker", "more": store, "client_authorities": str(authorities)}
        with served(party, orders, tmp_path / "gateway.toml", **own) as gateway:
            url = f"{gateway.origin}/v1/tables/orders?id=eq.1"
            command = ["curl", "--silent", "--cacert", trusted, "--cert", files[0], "--key", files[1], url]
            answer = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE)
            assert answer.stdout == '[{"id":1,"state":"new"}]', answer

            def client(certificate: Any = None, **keys: Any) -> Any:
                settings = Config(client_cert=certificate, retries={"total_max_attempts": 1}, **keys.pop("signing", {}))
                return boto3.client(
                    "s3", endpoint_url=gateway.origin, region_name="us-east-1", verify=trusted, config=settings, **keys
                )

            unsigned = {"signing": {"signature_version": UNSIGNED}}
            worker = client(files, **unsigned)
            wanted = {"Bucket": "bucket", "Key": "a", "Body": b"content"}
            await in_thread(worker.put_object, **wanted, Metadata={"fencing-token": "5"})
            assert double.objects("bucket")["a"].content.body == b"content"
            read = await in_thread(worker.get_object, Bucket="bucket", Key="a")
            assert read["Body"].read() == b"content"
            for refused, code in (
                (client(str(party.issue("bob", BOB)), **unsigned), "AccessDenied"),
                (client(str(party.issue("eve", "CN:eve")), **unsigned), "AccessDenied"),
                (client(**unsigned), "AccessDenied"),
                (client(files, aws_access_key_id="AKIAWRONG", aws_secret_access_key="x" * 20), "InvalidAccessKeyId"),
                (worker, "StaleFencingToken"),
            ):
                with pytest.raises(ClientError) as failed:
                    await in_thread(refused.put_object, **{**wanted, "Body": b"x"}, Metadata={"fencing-token": "4"})
                assert failed.value.response["Error"]["Code"] == code, failed.value
            # A browser opens no bucket by a certificate, not even from the bucket's own page.
            context = ssl.create_default_context(cafile=trusted)
            context.load_cert_chain(*files)
            async with httpx.AsyncClient(verify=context, base_url=gateway.origin, timeout=PATIENCE) as browser:
                assert (await browser.get("/bucket/a")).status_code == 200
                for site in ("same-origin", "none", "same-site", "cross-site"):
                    assert (await browser.get("/bucket/a", headers={"Sec-Fetch-Site": site})).status_code == 403
                assert (await browser.get("/bucket/a", headers={"Origin": "https://a"})).status_code == 403
            assert double.objects("bucket")["a"].content.body == b"content"
