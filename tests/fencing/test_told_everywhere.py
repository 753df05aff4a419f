"""Each place that tells of refusals has the same facts, whatever way the write of the zombie took."""

import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio
from botocore.exceptions import ClientError

from gateway.commands.console import entry_cells
from gateway.demo.embedded import EmbeddedPostgres
from tests.fencing.policy_gateway import ADMIN_KEY, WAYS, Shown, World, opened
from tests.record.receiver import SECRET, Receiver, receiving
from tests.tiers import first
from tests.waiting import PATIENCE

NOTHING = re.compile("(?i)no write was refused|held the newest token that")
OBSERVED = ("put", "put in parts", "copy", "delete", "tag", "metadata", "session", "form", "presigned")
"""Ways to a bucket whose rule observes."""
OFTEN = ("patch", "call a function", "transaction", "put", "form", "barrier")
EACH = [way if way in OFTEN else pytest.param(way, marks=pytest.mark.thorough) for way in WAYS]


@dataclass(frozen=True)
class Places:
    """A gateway, a receiver of its webhooks, and a client that is logged in to its page."""

    world: World
    receiver: Receiver
    page: httpx.AsyncClient

    async def refused(self) -> float:
        """Return the number of refused and passed writes that the metrics show."""
        text = (await self.world.admin.get("/v1/metrics")).text
        return sum(
            map(float, re.findall(r"^gateway_writes_(?:refused|observed)_total\{.*\} (\S+)$", text, re.MULTILINE))
        )

    async def sent(self, resource: str) -> dict[str, Any]:
        def of_it() -> list[dict[str, Any]]:
            return [
                one for one in self.receiver.entries() if one["resource"] == resource and one["kind"] == "rejection"
            ]

        await self.receiver.until(of_it)
        return of_it()[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def places(postgres_server: EmbeddedPostgres) -> AsyncIterator[Places]:
    async with receiving() as receiver:
        hook = {"name": "ops", "url": receiver.url, "secret": SECRET}
        async with opened(postgres_server, webhooks=[hook]) as world:
            origin = world.stage.origin
            async with httpx.AsyncClient(base_url=origin, headers={"origin": origin}, timeout=PATIENCE) as page:
                assert (await page.post("/ui/login", data={"api_key": ADMIN_KEY})).status_code == 303
                yield Places(world, receiver, page)


@pytest.mark.parametrize("way", EACH)
async def test_a_refusal(places: Places, name: str, way: str) -> None:
    await told(places, f"any/{name}", way, enforced=True)


@pytest.mark.parametrize("way", first(OBSERVED))
async def test_a_write_that_passes_because_its_rule_observes(places: Places, name: str, way: str) -> None:
    await told(places, f"watched/{name}", way, enforced=False)


@pytest.mark.parametrize("way", ["patch", "put"])
async def test_a_holder_whose_lease_has_run_out(places: Places, name: str, way: str) -> None:
    """The lock service gave both tokens, and knows both holders."""
    world, resource = places.world, f"any/leased-{name}"
    late = await world.leased(resource, "ann")
    await world.lapsed(late)
    newer = await world.leased(resource, "bob")
    await world.admin.post(f"/v1/fences/{resource}/barrier", json={"token": newer["token"], "holder": "bob"})
    one = await refused(places, resource, way, Shown(late["token"], late["sequencer"]))
    for place in await told_of(places, one, newer["token"], enforced=True):
        assert "ann" in place


async def told(places: Places, resource: str, way: str, *, enforced: bool) -> None:
    """Let bob overtake a writer, whose late write goes this way. Each place has the same five facts."""
    await places.world.admin.post(f"/v1/fences/{resource}/barrier", json={"token": "9", "holder": "bob"})
    one = await refused(places, resource, way, Shown("8"))
    assert one["token"] in ("8", "1")  # of an upload
    await told_of(places, one, "9", enforced=enforced)


async def refused(places: Places, resource: str, way: str, shown: Shown) -> dict[str, Any]:
    """Let a zombie write, and return the entry. The metrics count it."""
    world, before = places.world, await places.refused()
    with suppress(ClientError):  # an upload is refused before what the way is about
        await WAYS[way](world, resource, shown)
    assert await places.refused() > before
    found = (await world.admin.get("/v1/rejections", params={"resource": resource})).json()["rejections"]
    last: dict[str, Any] = found[-1]
    return last


async def told_of(places: Places, one: dict[str, Any], fence: str, *, enforced: bool) -> tuple[str, str]:
    """Compare what each place says of an entry. Return the page of its resource, and the report."""
    world, resource, token, at = places.world, one["resource"], one["token"], datetime.fromisoformat(one["at"])
    assert (one["reason"], one["caller"], one["fence"], one["raised_by"]) == ("token-stale", "writer", fence, "bob")
    assert one["enforced"] == enforced
    assert one["program"].partition("/")[0] in ("python-httpx", "Boto3")

    entry = (await world.admin.get(f"/v1/events/{one['id']}")).json()
    for told_by in (entry, await places.sent(resource)):
        facts = tuple(told_by[name] for name in ("token", "caller", "fence", "fence_holder", "at"))
        assert facts == (token, "writer", fence, "bob", one["at"])
    assert {token, "writer", fence, "bob", at.strftime("%Y-%m-%d %H:%M:%S")} <= set(entry_cells(entry))

    listed = (await world.admin.get("/v1/incidents", params={"resource": resource})).json()["incidents"]
    (incident,) = [one for one in listed if one["resource"] == resource]
    assert (incident["token"], incident["caller"], incident["fence"]) == (token, "writer", fence)
    assert (incident["overtaken_by"], incident["first"]) == ("bob", one["at"])
    assert (incident["refused"] > 0) == enforced

    page = (await places.page.get(f"/ui/resource?name={quote(resource, safe='')}")).text
    of_entry = (await places.page.get(f"/ui/rejections/{one['id']}")).text
    report = (await world.admin.get(f"/v1/reports/{resource}")).text
    for place in (page, report):
        for fact in ("writer", f"token {token}", "bob", f"token {fence}", at.strftime("%H:%M:%S")):
            assert fact in place, fact
        if enforced:
            assert not NOTHING.search(place)
    words = re.sub(r"<[^>]+>", "", of_entry)
    for fact in ("writer", f"token {token}", "bob", f"Then{fence}, raised by bob", at.strftime("%H:%M:%S")):
        assert fact in words, fact
    return page, report
