"""SQL reads names and tokens exactly as Python does."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.db.database import OWNERSHIP, Database
from gateway.errors import ResourceMalformed, TokenMalformed
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token

PIECES = st.sampled_from(
    ["a", "Z", "0", "/", "%", "%2F", "%2f", "%41", "%7E", "%C3%A4", "=", ",", "ä", " ", "~", "$", "\n"]
)
names = st.lists(PIECES, max_size=8).map("".join) | st.integers(0, 255).map(lambda byte: f"%{byte:02X}")
tokens = st.lists(
    st.sampled_from(["0", "1", "9", ".", "-", " ", "٣", "\n", "2147483647", "2147483648"]), max_size=5
).map("".join)
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(name=names)
@example(name="a" * 512)
@example(name="a" * 513)
async def test_sql_and_python_know_the_same_names(database: Database, name: str) -> None:
    row = await database.fetchrow("SELECT fencing.canonical_v1($1) AS canonical", name)
    assert row is not None
    try:
        expected = canonical(name) == name
    except ResourceMalformed:
        expected = False
    assert row["canonical"] is expected


async def test_no_resource_has_the_name_of_the_fence_of_ownership(database: Database) -> None:
    """A raise of that fence would keep all gateways out (decision 103)."""
    with pytest.raises(ResourceMalformed):
        canonical(OWNERSHIP)
    row = await database.fetchrow("SELECT fencing.canonical_v1($1) AS canonical", OWNERSHIP)
    assert row is not None
    assert row["canonical"] is False


@SETTINGS
@given(text=tokens)
@example(text="9223372036854775807")
@example(text="9223372036854775808")
@example(text="2147483647.9223372036854775807")
@example(text="9999999999.1")
async def test_sql_and_python_read_the_same_tokens(database: Database, text: str) -> None:
    row = await database.fetchrow("SELECT epoch, value FROM fencing.read_token_v1($1)", text)
    assert row is not None
    try:
        token = Token.parse(text)
    except TokenMalformed:
        assert (row["epoch"], row["value"]) == (None, None)
    else:
        assert (row["epoch"], row["value"]) == (token.epoch, token.value)
