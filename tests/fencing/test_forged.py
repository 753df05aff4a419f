"""A forged token is refused on every write path, under every policy, and locks out no holder."""

import pytest

from gateway.fencing.sequencer import Signer
from tests.fencing.policy_gateway import FORGED, Shown, World, sequencer
from tests.fencing.write_paths import WAYS, Way
from tests.tiers import first

pytestmark = pytest.mark.asyncio(loop_scope="module")

STRANGER = Signer(["somebody else's key".ljust(32)])
REFUSED = {(403, "token-implausible"), (403, "ImplausibleFencingToken")}
DONE = (200, 201, 204)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("policy", first(["signed", "any", "issued", "live"]))
async def test_forgeries_are_refused_and_honest_tokens_go_on(world: World, name: str, policy: str, way: Way) -> None:
    """With what the lease service gives, before a forgery and after it: where the fence carries the token already."""
    resource = f"{policy}/{name}"
    proof = None if policy in ("any", "issued") else sequencer(resource, FORGED[0], signer=STRANGER)
    forgeries = [Shown(FORGED[0], proof), Shown(FORGED[1])]
    assert await way(world, resource, forgeries[0]) in REFUSED
    assert await world.fence(resource) is None
    assert (await world.row(resource), world.stage.body(f"{resource}/file")) in UNTOUCHED
    lease = await world.leased(resource, "uploader")
    honest = Shown(lease["token"], lease["sequencer"] if policy == "signed" else None)
    assert (await way(world, resource, honest))[0] in DONE
    before = await world.fence(resource)
    assert await way(world, resource, forgeries[1]) in REFUSED
    assert (await way(world, resource, honest))[0] in DONE
    assert await world.fence(resource) == before
    assert await world.on_record(resource) == [("token-implausible", one.token, True) for one in forgeries]


UNTOUCHED = {(row, body) for row in (None, "before") for body in (None, b"before")}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_sequencer_says_all_that_is_needed(world: World, name: str, way: Way) -> None:
    lease = await world.leased(f"signed/{name}", "uploader")
    assert (await way(world, f"signed/{name}", Shown(sequencer=lease["sequencer"])))[0] in DONE
