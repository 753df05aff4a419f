"""The gateway reads a writer's statements about its lock once, or refuses them."""

import pytest

from gateway.errors import GatewayError, RequestMalformed, ResourceMalformed, SequencerMalformed, TokenMalformed
from gateway.fencing.headers import HOLDER_PATTERN, MAX_PAIRS, FencingHeaders, is_holder, read
from gateway.fencing.token import Token
from tests import ROOT


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], FencingHeaders()),
        ([(b"fencing-token", b"33")], FencingHeaders(Token(0, 33))),
        ([(b"Fencing-Token", b"2.33")], FencingHeaders(Token(2, 33))),
        ([(b"x-fencing-token", b"33")], FencingHeaders(Token(0, 33))),
        ([(b"fencing-resource", b"order/5")], FencingHeaders(resource="order/5")),
        ([(b"fencing-token", b"1"), (b"fencing-holder", b"host 7")], FencingHeaders(Token(0, 1), None, "host 7")),
    ],
)
def test_reads(headers: list[tuple[bytes, bytes]], expected: FencingHeaders) -> None:
    assert read(headers) == expected


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ([(b"fencing-token", b"33"), (b"fencing-token", b"33")], TokenMalformed),
        ([(b"fencing-token", b"33"), (b"x-fencing-token", b"33")], TokenMalformed),
        ([(b"fencing-token", b"33"), (b"fencing_token", b"34")], TokenMalformed),
        ([(b"fencing-token", b"33, 34")], TokenMalformed),
        ([(b"fencing-token", b"order/5=34")], TokenMalformed),
        ([(b"fencing-token", "٣".encode())], TokenMalformed),
        ([(b"fencing-token", b"")], TokenMalformed),
        ([(b"fencing-resource", b"a"), (b"fencing-resource", b"b")], ResourceMalformed),
        ([(b"fencing-resource", b"a b")], ResourceMalformed),
        ([(b"fencing-resource", b"")], ResourceMalformed),
        ([(b"fencing-resource", b"x" * 513)], ResourceMalformed),
        ([(b"fencing-holder", b"")], RequestMalformed),
        ([(b"fencing-holder", b"x" * 201)], RequestMalformed),
        ([(b"fencing-holder", b"a\x1b[31m")], RequestMalformed),
        ([(b"fencing-holder", b"a"), (b"fencing-holder", b"b")], RequestMalformed),
    ],
)
def test_refuses(headers: list[tuple[bytes, bytes]], error: type[GatewayError]) -> None:
    with pytest.raises(error) as caught:
        read(headers)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"order/5=34", (("order/5", Token(0, 34)),)),
        (b"order/5=34, stock/9=2.12", (("order/5", Token(0, 34)), ("stock/9", Token(2, 12)))),
        (b"b=1 ,\ta=1", (("b", Token(0, 1)), ("a", Token(0, 1)))),
        (b"a%2Cb%3Dc=1", (("a%2Cb%3Dc", Token(0, 1)),)),
        (",".join(f"r/{number}=1" for number in range(MAX_PAIRS)).encode(), None),
    ],
)
@pytest.mark.parametrize("name", [b"fencing-token", b"x-fencing-token"])
def test_reads_pairs(name: bytes, text: bytes, expected: tuple[tuple[str, Token], ...] | None) -> None:
    shown = read([(name, text), (b"fencing-holder", b"ann")], pairs=True)
    assert (shown.token, shown.resource, shown.holder) == (None, None, "ann")
    assert len(shown.pairs) == MAX_PAIRS if expected is None else shown.pairs == expected


def test_one_token_stays_one_token() -> None:
    assert read([(b"fencing-token", b"33")], pairs=True) == FencingHeaders(Token(0, 33))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"order/5=", TokenMalformed),
        (b"=34", ResourceMalformed),
        (b"=", ResourceMalformed),
        (b"order/5=34,", TokenMalformed),
        (b",order/5=34", TokenMalformed),
        (b"order/5=34,,stock/9=1", TokenMalformed),
        (b"34, order/5=34", TokenMalformed),
        (b"order/5=34, 34", TokenMalformed),
        (b"order/5=34=35", TokenMalformed),
        (b"order/5=034", TokenMalformed),
        (b"order/5 =34", ResourceMalformed),
        (b"order/5= 34", TokenMalformed),
        (b"order/5=34; stock/9=1", TokenMalformed),
        (b"order/5=34, order/5=34", TokenMalformed),
        (b"order/5=34, order%2F5=34, a b=1", ResourceMalformed),
        ("caf\xe9=1".encode("latin-1"), ResourceMalformed),
        (b"a=1," * MAX_PAIRS + b"b=1", TokenMalformed),
        (b"x" * 513 + b"=1", ResourceMalformed),
    ],
)
def test_refuses_pairs(text: bytes, error: type[GatewayError]) -> None:
    with pytest.raises(error) as caught:
        read([(b"fencing-token", text)], pairs=True)
    assert caught.value.status == 400


def test_pairs_name_their_resources_themselves() -> None:
    with pytest.raises(ResourceMalformed, match="themselves"):
        read([(b"fencing-token", b"a=1"), (b"fencing-resource", b"a")], pairs=True)


ONE, OTHER = "order/5:exclusive:34:c2lnbmF0dXJl", "stock/9:shared:2.12:c2lnbmF0dXJl"
FIVE, NINE = ("order/5", Token(0, 34)), ("stock/9", Token(2, 12))


@pytest.mark.parametrize(
    ("said", "token", "resource", "pairs"),
    [
        ({}, Token(0, 34), "order/5", ()),
        ({"fencing-resource": "order/5"}, Token(0, 34), "order/5", ()),
        ({"fencing-token": "34"}, Token(0, 34), None, ()),
        ({"fencing-token": "34", "fencing-resource": "order/6"}, Token(0, 34), "order/6", ()),
        ({"fencing_token": "34", "fencing-resource": "order/5"}, Token(0, 34), "order/5", ()),
        ({"fencing-token": "order/5=34"}, None, None, (FIVE,)),
        ({"fencing-token": "order/5=34, stock/9=2.12"}, None, None, (FIVE, NINE)),
    ],
)
@pytest.mark.parametrize("name", ["Fencing-Sequencer", "fencing_sequencer"])
def test_a_sequencer_names_its_resource_and_its_token(
    name: str, said: dict[str, str], token: Token | None, resource: str | None, pairs: tuple[tuple[str, Token], ...]
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in {**said, name: ONE}.items()]
    found = read(raw, pairs=True)
    assert (found.token, found.resource, found.pairs) == (token, resource, pairs)
    assert [one.text for one in found.sequencers] == [ONE]


@pytest.mark.parametrize("said", [{}, {"fencing-token": "order/5=34, stock/9=2.12"}])
def test_several_are_pairs(said: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in {**said, "fencing-sequencer": f"{ONE}, {OTHER}"}.items()]
    found = read(raw, pairs=True)
    assert (found.token, found.resource, found.pairs) == (None, None, (FIVE, NINE))
    assert [one.text for one in found.sequencers] == [ONE, OTHER]


@pytest.mark.parametrize(
    ("said", "sequencer", "pairs", "error"),
    [
        ({"fencing-token": "35"}, ONE, False, TokenMalformed),
        ({"fencing-token": "1.34"}, ONE, False, TokenMalformed),
        ({"fencing-token": "order/5=35"}, ONE, True, TokenMalformed),
        ({"fencing-token": "order/6=34"}, ONE, True, TokenMalformed),
        ({"fencing-token": "34"}, f"{ONE}, {OTHER}", True, TokenMalformed),
        ({"fencing-resource": "order/6"}, ONE, False, ResourceMalformed),
        ({"fencing-resource": "order/5"}, f"{ONE}, {OTHER}", True, ResourceMalformed),
        ({}, f"{ONE}, {OTHER}", False, TokenMalformed),
        ({}, f"{ONE},{ONE}", True, SequencerMalformed),
        ({}, ",".join(f"r/{n}:shared:1:AA" for n in range(MAX_PAIRS + 1)), True, SequencerMalformed),
        ({}, "", True, SequencerMalformed),
        ({}, f"{ONE},", True, SequencerMalformed),
        ({}, "x" * 1024 * 1024, True, SequencerMalformed),
        ({}, "é" * 100, True, SequencerMalformed),
        ({"fencing_sequencer": ONE}, ONE, True, SequencerMalformed),
    ],
)
def test_sequencers_that_contradict_or_cannot_be_read(
    said: dict[str, str], sequencer: str, error: type[GatewayError], *, pairs: bool
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in (*said.items(), ("fencing-sequencer", sequencer))]
    with pytest.raises(error) as caught:
        read(raw, pairs=pairs)
    assert caught.value.status == 400
    assert "c2lnbmF0dXJl" not in caught.value.message + caught.value.advice


def test_the_gateway_and_the_guard_take_the_same_names_of_holders() -> None:
    guard = (ROOT / "gateway/db/schema/guard.sql").read_text()
    assert f"""hold.holder COLLATE "C" !~ '^{HOLDER_PATTERN}$'""" in guard


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a", True), ("host 7", True), ("x" * 200, True), ("x" * 201, False), ("", False), (" a", False), ("a ", False)],
)
def test_a_holder_has_a_short_printable_name(name: str, expected: bool) -> None:  # noqa: FBT001
    assert is_holder(name) is expected
