"""Tokens that another gateway issues: it is asked, believed beyond doubt only, and done without where it may be."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import pytest_asyncio

from gateway import wiring
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import Unavailable
from gateway.fencing.sequencer import Sequencer, Signer
from gateway.token_admission import MAX_ANSWER, Issuer, IssuerVerdict
from tests.fencing.policy_gateway import FORGED, WAYS, Shown, World, opened, sequencer
from tests.running import API_KEY
from tests.tiers import first
from tests.waiting import PATIENCE

SHOWN = Sequencer.parse(sequencer("order/5", "34"))
TRUE = {"resource": "order/5", "mode": "exclusive", "token": "34", "authentic": True, "held": True}
SECRET = "the-key-of-the-issuer"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking(postgres_server: EmbeddedPostgres, world: World) -> AsyncIterator[World]:
    """A gateway with another database, which asks the one with the lease service."""
    rules = [{"match": "issued/**", "tokens": "issued"}, {"match": "live/**", "tokens": "live"}]
    leases = {"issuer": world.stage.origin, "issuer_api_key": API_KEY}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "Issuer", partial(Issuer, timeout=PATIENCE))
        async with opened(postgres_server, resources=rules, leases=leases) as one:
            yield one


class TestReachable:
    @pytest.mark.parametrize("way", first(["patch", "put", "pairs", "transaction", "barrier"]))
    async def test_held_and_not_held(self, world: World, asking: World, name: str, way: str) -> None:
        lease = await world.leased(f"live/{name}")
        shown = Shown(sequencer=lease["sequencer"])
        for _ in range(2):
            assert (await WAYS[way](asking, f"live/{name}", shown))[0] in (200, 204)
        await world.released(lease)
        assert (await WAYS[way](asking, f"live/{name}", shown))[0] == 403
        assert await asking.on_record(f"live/{name}") == [("token-implausible", lease["token"], True)]

    async def test_issued_once_is_issued_for_ever(self, world: World, asking: World, name: str) -> None:
        lease = await world.leased(f"issued/{name}")
        await world.released(lease)
        resource, patch = f"issued/{name}", WAYS["patch"]
        assert (await patch(asking, resource, Shown(lease["token"])))[0] == 403
        assert (await patch(asking, resource, Shown(lease["token"], lease["sequencer"])))[0] == 204
        assert (await patch(asking, resource, Shown(lease["token"])))[0] == 204, "the fence carries it"

    async def test_it_issues_none_itself(self, world: World, asking: World, name: str) -> None:
        wish = {"holder": "a", "barrier": True}
        refused = await asking.api.post(f"/v1/leases/live/{name}", json=wish)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert world.stage.origin in refused.json()["detail"]
        assert await asking.fence(f"live/{name}") is None

    async def test_what_the_issuer_has_not_signed(self, asking: World, name: str) -> None:
        stranger = Signer(["a stranger's".ljust(32)])
        for kind in ("issued", "live"):
            for token in (*FORGED, "1"):
                resource = f"{kind}/{name}"
                for shown in (Shown(token), Shown(token, sequencer(resource, token, signer=stranger))):
                    assert await WAYS["patch"](asking, resource, shown) == (403, "token-implausible")
            assert await asking.fence(f"{kind}/{name}") is None


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """A server that answers so; its origin."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def says(status: str, body: bytes, *headers: str, connection: str = "close") -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        head = "\r\n".join(
            (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", f"Connection: {connection}", *headers)
        )
        writer.write(head.encode() + b"\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    return answer


def told(**changes: object) -> bytes:
    return json.dumps(TRUE | changes).encode()


@asynccontextmanager
async def issuer_at(origin: str, timeout: float = PATIENCE) -> AsyncIterator[Issuer]:
    one = Issuer(origin, SECRET, timeout=timeout)
    try:
        yield one
    finally:
        await one.close()


@pytest.mark.parametrize(
    "answer",
    [
        *(says("200 OK", body) for body in (b"", b"{}", b"[]", b"null", b"{", b"\xff", b"[" * 50_000, b'"ok"')),
        *(says("200 OK", told(**{name: "other"})) for name in TRUE),
        *(says("200 OK", told(**{name: 1})) for name in ("authentic", "held")),
        *(says("200 OK", told(**{name: None})) for name in ("authentic", "held")),
        says("200 OK", told() + b" " * MAX_ANSWER),
        *(says(status, told()) for status in ("201 Created", "400 Bad", "401 No", "403 No", "500 Oops", "503 Later")),
    ],
)
async def test_an_unclear_answer_counts_as_none(answer: Answer) -> None:
    async with answering(answer) as origin, issuer_at(origin) as issuer:
        with pytest.raises(Unavailable) as caught:
            await issuer.check(SHOWN)
    error = caught.value
    assert not any(secret in error.message + error.advice for secret in (SECRET, SHOWN.signature))


async def test_an_issuer_whose_name_cannot_be_asked_for_gives_no_answer() -> None:
    """The configuration takes a name by the rules of 2003. The client has those of 2008."""
    async with issuer_at("http://☃.net") as issuer:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await issuer.check(SHOWN)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
async def test_a_redirect_is_not_followed(status: str) -> None:
    async def trap(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fell.set()
        writer.close()

    fell = asyncio.Event()
    async with answering(trap) as elsewhere:
        location = f"Location: {elsewhere}/v1/sequencers/check"
        async with answering(says(status, told(), location)) as origin, issuer_at(origin) as issuer:
            with pytest.raises(Unavailable):
                await issuer.check(SHOWN)
        assert not fell.is_set()


async def test_it_is_not_waited_for_long() -> None:
    async def drips(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.CancelledError):
            writer.close()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    for answer in (drips, hangs):
        async with answering(answer) as origin, issuer_at(origin, timeout=0.2) as issuer, asyncio.timeout(PATIENCE):
            with pytest.raises(Unavailable):
                await issuer.check(SHOWN)


async def test_a_connection_that_was_closed_meanwhile_is_no_obstacle() -> None:
    # It closes although it has not said so.
    async with answering(says("200 OK", told(), connection="keep-alive")) as origin, issuer_at(origin) as issuer:
        for _ in range(3):
            assert await issuer.check(SHOWN) == IssuerVerdict(authentic=True, held=True)


async def test_unreachable_it_is_refused_or_by_order(postgres_server: EmbeddedPostgres, name: str) -> None:
    rules = [
        {"match": "live/**", "tokens": "live"},
        {"match": "issued/**", "tokens": "issued", "unreachable": "order"},
        {"match": "watched/**", "tokens": "live"},
    ]
    leases = {"issuer": "http://127.0.0.1:9", "issuer_api_key": SECRET}
    async with opened(postgres_server, resources=rules, leases=leases) as world:
        refused, by_order = f"live/{name}", f"issued/{name}"
        proof = Shown(sequencer=sequencer(refused, "34"))
        assert await WAYS["patch"](world, refused, proof) == (503, "unavailable")
        assert await WAYS["put"](world, refused, proof) == (503, "ServiceUnavailable")
        assert await world.fence(refused) is None
        # A rule that observes lets the write pass, and its token raises nothing.
        observed = f"watched/{name}"
        unproven = {"Fencing-Sequencer": sequencer(observed, "34")}
        answer = await world.api.post("/v1/tables/watched", json={"name": name}, headers=unproven)
        assert (answer.status_code, answer.headers["fencing-would-refuse"]) == (201, "token-implausible"), answer.text
        assert (await WAYS["put"](world, observed, Shown(sequencer=sequencer(observed, "34"))))[0] == 200
        assert await world.fence(observed) is None
        assert (await WAYS["patch"](world, by_order, Shown(sequencer=sequencer(by_order, "34"))))[0] == 204
        stale, forged = (Shown(sequencer=sequencer(by_order, token)) for token in ("33", FORGED[0]))
        assert await WAYS["patch"](world, by_order, stale) == (412, "token-stale")
        assert await WAYS["patch"](world, by_order, forged) == (403, "token-implausible")
        assert not any(SECRET in repr(event) for event in world.stage.events)
