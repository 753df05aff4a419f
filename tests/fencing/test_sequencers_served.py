"""``POST /v1/sequencers/check`` tells a server the state of a sequencer."""

from typing import Any

import httpx
import pytest

from gateway.fencing.sequencer import Signer
from tests.fencing.policy_gateway import KEYS, Shown, World, sequencer
from tests.fencing.write_paths import WAYS
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def check(world: World, text: object) -> dict[str, Any]:
    answer = await world.api.post("/v1/sequencers/check", json={"sequencer": text})
    document: dict[str, Any] = answer.json()
    return document


async def test_the_state_of_a_sequencer_through_its_life(world: World, name: str) -> None:
    resource = f"any/{name}"
    lease = await world.leased(resource)

    async def told() -> tuple[object, ...]:
        said = await check(world, lease["sequencer"])
        assert (said["resource"], said["mode"], said["token"]) == (resource, "exclusive", lease["token"])
        return said["authentic"], said["held"], said["fence"], said["overtaken"]

    assert await told() == (True, True, None, False)
    assert (await WAYS["patch"](world, resource, Shown(lease["token"])))[0] == 204
    assert await told() == (True, True, lease["token"], False)
    await world.released(lease)
    assert await told() == (True, False, lease["token"], False)
    assert (await WAYS["patch"](world, resource, Shown("34")))[0] == 204
    assert await told() == (True, False, "34", True)


async def test_only_signed_sequencers_are_authentic(world: World, name: str) -> None:
    resource = f"any/{name}"
    token = (await world.leased(resource))["token"]
    for text, authentic, held in (
        (sequencer(resource, token), True, True),
        (sequencer(resource, token, signer=Signer(KEYS[1:])), True, True),
        (sequencer(resource, token, "shared"), True, False),
        (sequencer(resource, "9"), True, False),
        (sequencer(resource, token, signer=Signer(["x" * 32])), False, True),
        (sequencer(resource, token)[:-1], False, True),
    ):
        said = await check(world, text)
        assert (said["authentic"], said["held"]) == (authentic, held), text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *(("", "sequencer-malformed"), ("34", "sequencer-malformed"), ("a:exclusive:34:", "sequencer-malformed")),
        *(("a:held:34:AAAA", "sequencer-malformed"), ("é:shared:34:AAAA", "sequencer-malformed")),
        *(("a\0:shared:34:AAAA", "sequencer-malformed"), ("x" * 5000, "request-malformed")),
        *((None, "request-malformed"), (34, "request-malformed")),
    ],
)
async def test_an_unreadable_sequencer_is_refused(world: World, text: object, code: str) -> None:
    assert (await check(world, text))["code"] == code


async def test_only_callers_may_check_a_sequencer(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.stage.origin, timeout=PATIENCE) as nobody:
        answer = await nobody.post("/v1/sequencers/check", json={"sequencer": sequencer("a", "1")})
    assert answer.status_code == 401
