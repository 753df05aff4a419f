"""Callers with client certificates, on every plane: nothing of one connection is ever used for another caller."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import part
from gateway.client import FencedClient, Unavailable, blocking
from gateway.http.middleware import Middleware
from gateway.observe.events import RequestAnswered
from tests.certificate_authority import SERVER, Authority
from tests.running import API_KEY, Events, config, running
from tests.waiting import PATIENCE

ANN, BOB = "URI:spiffe://shop/ann", "DNS:bob.shop.internal"
CALLERS = [
    {"name": "ann", "certificates": [ANN, "CN:ann the first"]},
    {"name": "bob", "certificates": [BOB]},
    {"name": "writer", "api_key": API_KEY, "certificates": ["CN:writer"]},
]
ALL = {"tables": ["*"], "resources": ["**"]}
GRANTS = [
    {"callers": ["*"], "actions": ["read", "write", "lock"], **ALL},
    {"callers": ["ann"], "actions": ["audit"], "everything": True},
]
OPEN = {"callers": ["anonymous"], "actions": ["read"], "tables": ["*"]}


class Party:
    """The files of a gateway and its clients. ``authority`` signs clients, and also the gateway itself."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.authority, self.other = Authority("shop"), Authority("shop")
        self.server = {
            "tls_certificate": str(self.issue("server", "DNS:localhost", "IP:127.0.0.1", purposes=(SERVER,))),
            "client_authorities": str(self.file("authorities", self.authority.certificate)),
        }

    def file(self, name: str, content: bytes) -> Path:
        path = self._directory / name
        path.write_bytes(content)
        return path

    def issue(self, file: str, *names: str, by: Authority | None = None, **more: Any) -> Path:
        return (by or self.authority).issue(self._directory / f"{file}.pem", *names, **more)

    def client(self, origin: str, certificate: Path | None = None, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=origin, verify=self.authority.trusted(certificate), headers=headers, timeout=PATIENCE
        )

    def config(self, dsn: str, **more: Any) -> Any:
        server = {**self.server, **more.pop("server", {})}
        return config(dsn, server=server, **{"callers": CALLERS, "grants": GRANTS, **more})


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Party:
    return Party(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def origin(orders: str, party: Party) -> AsyncIterator[str]:
    async with running(party.config(orders)) as origin:
        yield origin


async def put(client: httpx.AsyncClient, token: int = 5, **headers: str) -> httpx.Response:
    return await client.patch(
        "/v1/tables/orders?id=eq.1", json={"state": "paid"}, headers={"Fencing-Token": f"{token}", **headers}
    )


async def test_a_certificate_is_a_caller_on_tables_the_api_and_the_page(orders: str, party: Party) -> None:
    events = Events()
    async with (
        running(party.config(orders), events) as origin,
        party.client(origin, party.issue("ann", ANN)) as ann,
        party.client(origin, party.issue("also", "CN:ann the first", "email:x@y.z")) as also,
        party.client(origin, party.issue("bob", BOB, "CN:somebody")) as bob,
    ):
        for _ in range(4):  # planned, by a recipe, and without a task
            assert (await put(ann)).status_code == 204
        lease = await ann.post("/v1/leases/job/1", json={"holder": "a", "ttl": 60})
        assert lease.status_code == 201, lease.text
        path = f"/v1/leases/job/1/{lease.json()['lease']}"
        assert (await bob.delete(path)).status_code != 204  # the lease is of another caller
        assert (await also.delete(path)).status_code == 204
        assert (await put(bob, 4)).status_code == 412
        [entry] = (await ann.get("/v1/rejections")).json()["rejections"]
        assert entry["caller"] == "bob"
        page = await ann.get("/ui/")
        assert (page.status_code, "ann" in page.text) == (200, True)
        assert (await bob.get("/ui/")).status_code == 403
    callers = {event.caller for event in events if isinstance(event, RequestAnswered)}
    assert {"ann", "bob"} <= callers <= {"ann", "bob", None}
    assert "spiffe" not in json.dumps(entry) + repr(list(events))


async def test_a_certificate_of_nobody_is_like_none(orders: str, party: Party) -> None:
    strange = party.issue("strange", "URI:spiffe://shop/ann/", "DNS:ann.shop.internal", "CN:Ann the first")
    async with running(party.config(orders)) as origin, party.client(origin, strange) as client:
        answer = await client.get("/v1/tables/orders")
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        told = answer.text
        assert all(part in told for part in ("is not that of any caller", "URI:spiffe://shop/ann/", "certificates"))
        assert (await client.get("/v1/leases/job/1")).status_code == 401
        assert (await client.get("/ui/")).status_code == 303
    settings = party.config(orders, grants=[*GRANTS, OPEN])
    async with running(settings) as origin, party.client(origin, strange) as client:
        assert (await client.get("/v1/tables/orders")).status_code == 200
        assert (await put(client)).status_code == 401


async def test_credentials_in_the_request_count_first(origin: str, party: Party) -> None:
    ann = party.issue("ann", ANN)
    async with party.client(origin, ann, Authorization=f"Bearer {API_KEY}") as client:
        assert (await client.get("/v1/rejections")).json()["rejections"] == []
        for _ in range(4):
            assert (await put(client)).status_code == 204
        assert (await put(client, 4)).status_code == 412
    async with party.client(origin, ann) as client:
        [entry] = (await client.get("/v1/rejections")).json()["rejections"]
        assert entry["caller"] == "writer"
    for wrong in ({"Authorization": "Bearer wrong"}, {"apikey": "wrong"}, {"Authorization": "Basic YTpi"}):
        async with party.client(origin, ann, **wrong) as client:
            assert [(await put(client)).status_code for _ in range(3)] == [401] * 3
            assert (await client.get("/v1/fences/job/1")).status_code == 401


async def test_a_certificate_that_cannot_be_verified_fails_the_handshake(origin: str, party: Party) -> None:
    intermediate, foreign = Authority("middle", party.authority), Authority("middle", party.other)
    chain = intermediate.certificate
    alone = party.issue("alone", ANN, by=party.other, chain=party.other.certificate)
    below = party.issue("in chain", ANN, by=intermediate, chain=chain)
    for right in (party.issue("good", ANN), party.issue("unlimited", ANN, purposes=()), below):
        async with party.client(origin, right) as client:
            assert (await client.get("/v1/tables/orders")).status_code == 200
    for wrong in (
        party.issue("foreign", ANN, by=party.other),
        alone,
        party.issue("of foreign", ANN, by=foreign, chain=foreign.certificate + chain),
        party.issue("old", ANN, until=datetime.now(UTC) - timedelta(seconds=5)),
        party.issue("early", ANN, until=datetime.now(UTC) + timedelta(days=20)),
        party.issue("of a server", ANN, purposes=(SERVER,)),
        party.issue("without chain", ANN, by=intermediate),
    ):
        async with party.client(origin, wrong) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/v1/health")


async def test_the_client_library_shows_its_certificate(orders: str, party: Party) -> None:
    grants = [{"callers": ["ann"], "actions": ["write", "lock", "barrier"], **ALL}]
    settings = party.config(orders, server={"client_certificates": "demand"}, grants=grants)
    authority = str(party.file("library", party.authority.certificate))
    certificate = str(party.issue("ann", ANN))

    def in_a_thread(origin: str) -> int:
        with (
            blocking.FencedClient(origin, authority=authority, certificate=certificate) as client,
            client.lock("public.orders/1") as lock,
        ):
            return lock.http.patch("/v1/tables/orders?id=eq.1", json={"state": "sent"}).status_code

    async with running(settings) as origin:
        async with (
            FencedClient(origin, authority=authority, certificate=certificate) as client,
            client.lock("public.orders/1") as lock,
        ):
            written = await lock.http.patch("/v1/tables/orders?id=eq.1", json={"state": "paid"})
            assert written.status_code == 204
        assert await asyncio.to_thread(in_a_thread, origin) == 204
        async with FencedClient(origin, authority=authority) as client:
            with pytest.raises(Unavailable):
                await client.lock("public.orders/1", wait=0).__aenter__()


async def test_an_intermediate_authority_is_trusted_alone(orders: str, party: Party) -> None:
    """Then certificates of the authority above it prove nothing."""
    above = Authority("above")
    middle = Authority("middle", above)
    authorities = party.file("middle.pem", middle.certificate)
    async with running(party.config(orders, server={"client_authorities": str(authorities)})) as origin:
        async with party.client(origin, party.issue("below", ANN, by=middle)) as client:
            assert (await client.get("/v1/tables/orders")).status_code == 200
        async with party.client(origin, party.issue("beside", ANN, by=above)) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/v1/tables/orders")


async def test_no_header_is_taken_for_a_certificate(origin: str, party: Party) -> None:
    pem = party.issue("ann", ANN).read_text().replace("\n", "%0A")
    async with party.client(origin) as client:
        for name in ("X-Forwarded-Client-Cert", "X-SSL-Client-Cert", "Ssl-Client-Subject-Dn"):
            for value in (pem, f"By={ANN};{ANN}", "CN=ann the first"):
                assert (await put(client, 5, **{name: value})).status_code == 401


async def test_no_session_of_tls_goes_on_in_another_connection(origin: str, party: Party) -> None:
    """So each connection is held against the authorities of its time. TLS 1.2 would remember sessions."""
    context, port = party.authority.trusted(party.issue("ann", ANN)), int(origin.rpartition(":")[2])
    sessions: list[ssl.SSLSession | None] = []

    def connect() -> bool:
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE)
        before = sessions[-1] if sessions else None
        with context.wrap_socket(plain, server_hostname="127.0.0.1", session=before) as connection:
            connection.sendall(b"GET /v1/tables/orders HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
            while connection.recv(4096):
                pass
            sessions.append(connection.session)
            return bool(connection.session_reused)

    assert [await asyncio.to_thread(connect) for _ in range(3)] == [False] * 3
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        await asyncio.to_thread(connect)


class Raw:
    """A connection on which each byte is the test's own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, origin: str, context: ssl.SSLContext) -> "Raw":
        port = int(origin.rpartition(":")[2])
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

    async def ask(self, *requests: bytes) -> list[tuple[int, bytes]]:
        """Send requests at once. Return status and body of each answer."""
        self.writer.write(b"".join(requests))
        return [await self._answer() for _ in requests]

    async def statuses(self, *requests: bytes) -> list[int]:
        return [status for status, _ in await self.ask(*requests)]

    async def _answer(self) -> tuple[int, bytes]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await self.reader.readexactly(int(lengths[0])) if lengths else b""
        return int(head.split()[1]), body


def patch(token: int, *headers: str) -> bytes:
    body = '{"state": "x"}'
    lines = ["PATCH /v1/tables/orders?id=eq.1 HTTP/1.1", "Host: gateway", f"Fencing-Token: {token}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", body]).encode()


READ = b"GET /v1/tables/orders?id=eq.1 HTTP/1.1\r\nHost: gateway\r\n\r\n"


def lock(name: str) -> bytes:
    body = '{"holder": "ann"}'
    return f"POST /v1/leases/{name} HTTP/1.1\r\nHost: gateway\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request of a known head was begun without a task."""
    begun: list[bool] = []
    begin = Middleware.begin

    def counted(*arguments: Any) -> bool:
        begun.append(begin(*arguments))
        return begun[-1]

    monkeypatch.setattr(Middleware, "begin", counted)
    return begun


TURNS = 10
STALE = 5
TOGETHER = 5
SEVERAL = (patch(5), READ, patch(5))
REFUSED = {"writer": 403, "nobody": 401, "none": 401}


@pytest.mark.thorough
async def test_the_same_bytes_on_another_connection_are_another_callers(
    orders: str, party: Party, direct: list[bool]
) -> None:
    """Connections take turns on the path without tasks, whatever each of them has taught the gateway."""
    events = Events()
    grants = [
        {"callers": ["ann", "bob"], "actions": ["read", "write"], **ALL},
        {"callers": ["ann"], "actions": ["audit"], "everything": True},
    ]
    shown = {
        "ann": party.issue("ann", ANN),
        "bob": party.issue("bob", BOB),
        "writer": party.issue("writer", "CN:writer"),
        "nobody": party.issue("nobody", "CN:nobody"),
        "none": None,
        "ann again": party.issue("ann again", ANN),
    }
    async with running(party.config(orders, grants=grants), events) as origin:
        parties = {name: await Raw.open(origin, party.authority.trusted(path)) for name, path in shown.items()}
        for turn in range(TURNS):
            for name, one in parties.items():
                refused = REFUSED.get(name)
                assert await one.statuses(patch(5)) == [refused or 204], name
                assert await one.statuses(READ) == [refused or 200], name
                if turn % STALE == 0:
                    assert await one.statuses(patch(4)) == [refused or 412], name
        for _ in range(TOGETHER):  # all at once, and several in one packet
            answers = await asyncio.gather(*(one.statuses(*SEVERAL) for one in parties.values()))
            for name, given in zip(parties, answers, strict=True):
                refused = REFUSED.get(name)
                assert given == [refused or 204, refused or 200, refused or 204], name
        # A certificate that the gateway has never seen, after all these.
        parties["late"] = await Raw.open(origin, party.authority.trusted(party.issue("late", "CN:late")))
        assert [await parties["late"].statuses(patch(5)) for _ in range(4)] == [[401]] * 4
        async with party.client(origin, shown["ann"]) as client:
            stale = (await client.get("/v1/rejections?limit=100&reason=token-stale")).json()["rejections"]
        for one in parties.values():
            one.writer.close()
    on_record = [entry["caller"] for entry in stale]
    stale_turns = TURNS // STALE
    assert (on_record.count("ann"), on_record.count("bob")) == (2 * stale_turns, stale_turns)
    assert len(on_record) == 3 * stale_turns
    answered = [event for event in events if isinstance(event, RequestAnswered) and event.area == "tables"]
    by_status = {status: {event.caller for event in answered if event.status == status} for status in (401, 403)}
    assert by_status == {401: {None}, 403: {"writer"}}
    each = TURNS * 2 + stale_turns + TOGETHER * len(SEVERAL)
    counts = [sum(event.caller == name for event in answered) for name in ("ann", "bob", "writer")]
    assert counts == [2 * each, each, each]
    # Or this test would show nothing.
    assert sum(direct) > 50


async def test_bytes_cannot_pass_for_a_certificate(orders: str, party: Party) -> None:
    """A client knows the certificates of others, which are public."""
    path = party.issue("ann", ANN)
    async with running(party.config(orders)) as origin:
        ann = await Raw.open(origin, party.authority.trusted(path))
        assert await ann.statuses(*[READ] * 4) == [200] * 4
        der = ssl.PEM_cert_to_DER_cert(
            "-----BEGIN CERTIFICATE-----" + path.read_text().split("-----BEGIN CERTIFICATE-----")[1]
        )
        seal = b"\0" + sha256(der).digest()
        end = b"\r\n\r\n"
        for forged in (seal + READ, *(READ[:-4] + before + seal + end for before in (b"", b"\r\n", b"\r\nX: "))):
            eve = await Raw.open(origin, party.authority.trusted())
            eve.writer.write(forged)
            answer = await asyncio.wait_for(eve.reader.read(), PATIENCE)
            assert b" 200 " not in answer
            eve.writer.close()
        ann.writer.close()


async def test_a_certificate_that_expires_proves_nothing_more(
    orders: str, party: Party, monkeypatch: pytest.MonkeyPatch, direct: list[bool]
) -> None:
    """Also not on a connection that was opened before, and not where anonymous callers may do the same."""
    until = datetime.now(UTC) + timedelta(hours=1)
    soon = party.issue("soon", ANN, until=until)
    past: list[datetime] = []  # the gateway's clock, once it has passed the end
    monkeypatch.setattr(part, "clock", lambda: past[0] if past else datetime.now(UTC))
    settings = party.config(orders, grants=[*GRANTS, {**OPEN, "actions": ["read", "write"], "resources": ["**"]}])
    async with running(settings) as origin:
        ann = await Raw.open(origin, party.authority.trusted(soon))
        assert await ann.statuses(*[patch(5)] * 4) == [204] * 4
        assert [await ann.statuses(lock(f"job/{number}")) for number in range(4)] == [[201]] * 4
        assert direct[-2:] == [True, True]
        past.append(until)
        assert await ann.statuses(lock("job/4")) == [401]
        answer = (await ann.ask(patch(5)))[0]
        assert (answer[0], b"has expired" in answer[1]) == (401, True)
        assert await ann.statuses(READ, patch(5, f"Authorization: Bearer {API_KEY}")) == [401, 204]
        ann.writer.close()


FOREIGN: Sequence[dict[str, str]] = (
    {"Origin": "https://other.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "https://other.example"},
    {"Origin": "null"},
)


async def test_pages_of_other_origins_get_nothing_from_a_browsers_certificate(orders: str, party: Party) -> None:
    """A browser shows it with each request, whichever page sends that."""
    for origins in ([], ["*", "https://other.example"]):
        settings = party.config(orders, server={"cors_origins": origins})
        async with running(settings) as origin, party.client(origin, party.issue("ann", ANN)) as browser:
            assert (await put(browser)).status_code == 204
            for headers in FOREIGN:
                for _ in range(4):
                    assert (await put(browser, 5, **headers)).status_code in (401, 403)
                    assert (await browser.get("/v1/tables/orders", headers=headers)).status_code == 401
                assert (await browser.get("/v1/rejections", headers=headers)).status_code == 401
                assert (await browser.get("/ui/", headers=headers)).status_code == 303
                assert (await browser.post("/v1/leases/job/1", headers=headers)).status_code == 403
            # A link on another site leads to a page that repeats the request, as with a session.
            link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
            arrived = await browser.get("/ui/", headers=link)
            assert (arrived.status_code, "ann" in arrived.text) == (200, False)
            own = {"Sec-Fetch-Site": "same-origin"}
            assert (await browser.get("/ui/", headers=own)).status_code == 200
            assert (await browser.post("/ui/theme", headers=own, data={"theme": "dark"})).status_code == 303
            assert (await browser.post("/ui/theme", data={"theme": "dark"})).status_code == 403


async def test_a_session_of_the_page_counts_before_the_certificate(orders: str, party: Party) -> None:
    grants = [*GRANTS, {"callers": ["writer"], "actions": ["audit"], "everything": True}]
    own, settings = {"Sec-Fetch-Site": "same-origin"}, party.config(orders, grants=grants)
    async with running(settings) as origin, party.client(origin, party.issue("ann", ANN), **own) as browser:
        assert "writer" not in (await browser.get("/ui/")).text
        assert (await browser.post("/ui/login", data={"api_key": API_KEY})).status_code == 303
        assert "writer" in (await browser.get("/ui/")).text
        assert (await browser.post("/ui/logout")).status_code == 303
        assert "writer" not in (await browser.get("/ui/")).text
        browser.cookies.set("gateway_session", "forged")
        assert "writer" not in (await browser.get("/ui/")).text
