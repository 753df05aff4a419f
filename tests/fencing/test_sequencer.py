"""Sequencers: what they look like, what proves them, and what the gateway says of them."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import SequencerMalformed
from gateway.fencing.lease import LockMode
from gateway.fencing.sequencer import MAX_CHARACTERS, Sequencer, Signer
from gateway.fencing.token import MAX_EPOCH, MAX_VALUE, Token
from tests.fencing.policy_gateway import WAYS, Shown, World

OLD, NEW = "o" * 32, "n" * 32
SIGNER = Signer([NEW, OLD])

names = st.text("abz09-._~!$&'()*+;:@/", min_size=1, max_size=40).filter(
    lambda name: not {".", ".."} & set(name.split("/"))
)
tokens = st.builds(Token, st.integers(0, MAX_EPOCH), st.integers(0, MAX_VALUE))


def signed(resource: str, mode: str = "exclusive", token: Token | None = None, signer: Signer = SIGNER) -> str:
    text = signer.sign(resource, mode, token or Token(0, 34))
    assert text is not None
    return text


@given(names, st.sampled_from(LockMode), tokens)
def test_what_is_signed_can_be_read_and_proven(resource: str, mode: LockMode, token: Token) -> None:
    text = signed(resource, mode, token)
    read = Sequencer.parse(text)
    assert (read.resource, read.mode, read.token, read.text) == (resource, mode, token, text)
    assert SIGNER.is_authentic(read)


def test_the_form_is_that_of_the_contract() -> None:
    resource, mode, token, signature = signed("order/5", token=Token(2, 34)).split(":")
    assert (resource, mode, token) == ("order/5", "exclusive", "2.34")
    assert len(base64.urlsafe_b64decode(signature + "=")) == 32
    assert Sequencer.parse(signed("a:shared:1:x")).resource == "a:shared:1:x", "it is read from the right"


def test_no_two_meanings_have_one_text() -> None:
    """A text moved from one part to another makes a different text."""
    genuine = Sequencer.parse(signed("a:exclusive:1", "shared", Token(0, 2)))
    forged = Sequencer("a", LockMode.EXCLUSIVE, Token(0, 1), genuine.signature)
    assert not SIGNER.is_authentic(forged)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("order/5", "order/6"),
        lambda text: text.replace("exclusive", "shared"),
        lambda text: text.replace(":34:", ":35:"),
        lambda text: text[:-1],
        lambda text: text + "=",
        lambda text: text[: text.rindex(":") + 1] + "A" * 43,
        lambda text: text[:-1] + chr(ord(text[-1]) ^ 1),
    ],
)
def test_whatever_is_changed_it_is_not_authentic(change: object) -> None:
    assert callable(change)
    assert not SIGNER.is_authentic(Sequencer.parse(change(signed("order/5"))))


def test_the_last_character_cannot_be_another_one_for_the_same_bytes() -> None:
    """base64 leaves two bits of it unused."""
    text = signed("order/5")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    others = [text[:-1] + letter for letter in alphabet if letter != text[-1]]
    assert not any(SIGNER.is_authentic(Sequencer.parse(other)) for other in others)


def test_the_first_key_signs_and_all_verify() -> None:
    before, after = Signer([OLD]), Signer([NEW])
    assert signed("r") == signed("r", signer=after) != signed("r", signer=before)
    assert SIGNER.is_authentic(Sequencer.parse(signed("r", signer=before)))
    assert not after.is_authentic(Sequencer.parse(signed("r", signer=before)))


def test_without_keys_nothing_is_signed_and_nothing_authentic() -> None:
    assert Signer().sign("r", "exclusive", Token(0, 1)) is None
    assert not Signer().is_authentic(Sequencer.parse(signed("r")))


def test_no_signature_in_what_is_printed() -> None:
    text = signed("r")
    read = Sequencer.parse(text)
    assert read.signature not in f"{read} {read!r}"


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":::", "34", "order/5:exclusive:34", "order/5:exclusive:34:", ":exclusive:34:AAAA"),
        *("order/5:write:34:AAAA", "order/5:EXCLUSIVE:34:AAAA", "order/5::34:AAAA", "order/5:exclusive::AAAA"),
        *("order/5:exclusive:034:AAAA", "order/5:exclusive:-1:AAAA", f"order/5:exclusive:{MAX_VALUE + 1}:AAAA"),
        *("órder/5:exclusive:34:AAAA", "order 5:exclusive:34:AAAA", "a,b:exclusive:34:AAAA", "a\0:exclusive:34:AAAA"),
        *("order/5:exclusive:34:é", "order/5:exclusive:٣٤:AAAA", "\ud800:exclusive:34:AAAA"),
        f"{'x' * 600}:exclusive:34:{'A' * 43}",
        "x" * 1024 * 1024,
    ],
)
def test_what_is_none_is_malformed_and_not_repeated(text: str) -> None:
    with pytest.raises(SequencerMalformed) as caught:
        Sequencer.parse(text)
    assert caught.value.advice
    assert "AAAA" not in caught.value.message
    assert len(caught.value.message) < 200


def test_the_longest_there_can_be() -> None:
    text = signed("x" * 512, "exclusive", Token(MAX_EPOCH, MAX_VALUE))
    assert len(text) == MAX_CHARACTERS
    assert SIGNER.is_authentic(Sequencer.parse(text))


# ``POST /v1/sequencers/check`` tells a server the state of a sequencer ----------------------------------------------


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
