"""Token policies: which tokens are taken, and why a look without a lock is enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ResourceMalformed
from gateway.fencing.policy import (
    MAX_EPOCHS,
    MAX_JUMP,
    Policies,
    Policy,
    Reason,
    TokenFacts,
    TokenPolicy,
    is_plausible,
    judge,
    relax_to_order,
)
from gateway.fencing.token import MAX_EPOCH, MAX_VALUE, Token

ANY, ISSUED, SIGNED, LIVE = (Policy(tokens) for tokens in TokenPolicy)
FENCE = Token(2, 34)

# Close to where something changes, or anywhere.
values = st.sampled_from(
    [0, 1, 33, 34, 35, MAX_JUMP, MAX_JUMP + 1, MAX_JUMP + 34, MAX_JUMP + 35, MAX_VALUE]
) | st.integers(0, MAX_VALUE)
epochs = st.sampled_from([0, 1, 2, MAX_EPOCHS, MAX_EPOCHS + 1, MAX_EPOCHS + 2, MAX_EPOCH]) | st.integers(0, MAX_EPOCH)
tokens = st.builds(Token, epochs, values)
jumps = st.sampled_from([1, 1000, MAX_JUMP, MAX_VALUE])


@pytest.mark.parametrize(
    ("token", "fence", "plausible"),
    [
        (Token(0, MAX_JUMP), None, True),
        (Token(0, MAX_JUMP + 1), None, False),
        (Token(0, MAX_VALUE), None, False),
        (Token(MAX_EPOCHS, MAX_JUMP), None, True),
        (Token(MAX_EPOCHS + 1, 0), None, False),
        (Token(MAX_EPOCH, 1), None, False),
        (Token(2, 34 + MAX_JUMP), FENCE, True),
        (Token(2, 35 + MAX_JUMP), FENCE, False),
        (Token(3, MAX_JUMP), FENCE, True),
        (Token(3, MAX_JUMP + 1), FENCE, False),
        (Token(2 + MAX_EPOCHS, 0), FENCE, True),
        (Token(3 + MAX_EPOCHS, 0), FENCE, False),
        (Token(1, MAX_VALUE), FENCE, True),
        (FENCE, FENCE, True),
    ],
)
def test_how_far_a_token_may_be_ahead(token: Token, fence: Token | None, *, plausible: bool) -> None:
    assert is_plausible(token, fence, MAX_JUMP) is plausible


@given(tokens, tokens, tokens, jumps)
def test_what_is_plausible_once_stays_so(token: Token, one: Token, other: Token, jump: int) -> None:
    """The fence may have risen since it was looked at, and need not have been looked at at all."""
    earlier, later = sorted((one, other))
    if is_plausible(token, None, jump):
        assert is_plausible(token, earlier, jump)
    if is_plausible(token, earlier, jump):
        assert is_plausible(token, later, jump)


@given(tokens, tokens, jumps)
def test_what_is_not_higher_is_never_implausible(one: Token, other: Token, jump: int) -> None:
    lower, higher = sorted((one, other))
    assert is_plausible(lower, higher, jump)


@pytest.mark.parametrize(
    ("policy", "token", "standing", "reason"),
    [
        (ANY, Token(0, 5), TokenFacts(), None),
        (ANY, Token(0, MAX_VALUE), TokenFacts(), Reason.JUMP),
        (ANY, Token(0, MAX_VALUE), TokenFacts(FENCE), None),
        (ISSUED, Token(0, 5), TokenFacts(issued=True), None),
        (ISSUED, Token(0, 5), TokenFacts(), Reason.NOT_ISSUED),
        (ISSUED, Token(0, 5), TokenFacts(authentic=False), Reason.FORGED),
        (ISSUED, FENCE, TokenFacts(FENCE), None),
        (ISSUED, Token(3, 0), TokenFacts(Token(3, 0)), Reason.NOT_ISSUED),
        (ISSUED, Token(3, 0), TokenFacts(Token(3, 0), issued=True), Reason.NOT_ISSUED),
        (ISSUED, Token(3, 0), TokenFacts(Token(3, 1)), None),
        (ANY, Token(3, 0), TokenFacts(Token(3, 0)), None),
        (ISSUED, Token(2, 35), TokenFacts(FENCE), Reason.NOT_ISSUED),
        (SIGNED, Token(0, 5), TokenFacts(authentic=True), None),
        (SIGNED, Token(0, 5), TokenFacts(), Reason.NO_SEQUENCER),
        (SIGNED, Token(0, 5), TokenFacts(authentic=False, issued=True, held=True), Reason.FORGED),
        (SIGNED, FENCE, TokenFacts(FENCE), Reason.NO_SEQUENCER),
        (LIVE, FENCE, TokenFacts(FENCE, held=True), None),
        (LIVE, FENCE, TokenFacts(FENCE, issued=True), Reason.NOT_HELD),
        (LIVE, FENCE, TokenFacts(FENCE, authentic=False), Reason.FORGED),
        (LIVE, Token(2, 35), TokenFacts(FENCE, issued=True, authentic=True), Reason.NOT_HELD),
        *((policy, Token(2, 33), TokenFacts(FENCE), None) for policy in (ANY, ISSUED, SIGNED, LIVE)),
        (relax_to_order(LIVE), Token(2, 35), TokenFacts(FENCE), None),
        (relax_to_order(LIVE), Token(2, MAX_VALUE), TokenFacts(FENCE), Reason.JUMP),
    ],
)
def test_which_tokens_are_taken(policy: Policy, token: Token, standing: TokenFacts, reason: Reason | None) -> None:
    assert judge(policy, token, standing) is reason


def test_the_first_pattern_that_matches_holds() -> None:
    policies = Policies(ISSUED, [("job/7", ANY), ("job/*", SIGNED), ("job/**", LIVE)])
    assert [policies.of(name) for name in ("job/7", "job/8", "job/8/x", "job", "order/1")] == [
        ANY, SIGNED, LIVE, ISSUED, ISSUED,
    ]  # fmt: skip
    assert [policies.ask_every_time(name) for name in ("job/7", "job/8", "job/8/x", "job")] == [
        False, True, True, False,
    ]  # fmt: skip


def test_a_default_may_ask_every_time() -> None:
    assert Policies(SIGNED, [("job/*", ANY)]).ask_every_time("order/1")
    assert not Policies(SIGNED, [("job/*", ANY)]).ask_every_time("job/1")
    assert not Policies().ask_every_time("job/1")


def test_the_token_that_an_epoch_begins_with_is_looked_at_where_tokens_must_be_issued() -> None:
    asked = [
        Policies(policy).ask_about("job/1", Token(1, value)) for policy in (ANY, ISSUED, SIGNED) for value in (0, 1)
    ]
    assert asked == [False, False, True, False, True, True]


def test_a_delay_is_that_of_the_resource() -> None:
    policies = Policies(rules=[("job/*", Policy(lock_delay=2.5))])
    assert (policies.lock_delay("job/1"), policies.lock_delay("order/1")) == (2.5, 0.0)


@pytest.mark.parametrize("pattern", ["", "job/a*", "**/job", "job/**/x", "é", "a b"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(ResourceMalformed):
        Policies(rules=[(pattern, ANY)])
