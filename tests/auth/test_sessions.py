"""Sessions of the page belong to one caller, end in time, and cannot be forged or changed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import callers

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEYS = {"ann": callers.session_key("ann's key"), "Jürgen.ü": callers.session_key("another key")}


def keys_of(caller: str) -> list[bytes]:
    return [KEYS[caller]] if caller in KEYS else []


def test_a_session_of_each_key_of_a_caller_is_valid() -> None:
    old, new = callers.session_key("the old key"), callers.session_key("the new key")
    for key in (old, new):
        session = callers.issue_session("ann", key, NOW)
        assert callers.caller_of(session, lambda _: [old, new], NOW) == "ann"


@pytest.mark.parametrize("caller", KEYS)
def test_a_session_is_its_callers_for_twelve_hours(caller: str) -> None:
    session = callers.issue_session(caller, KEYS[caller], NOW)
    assert session.isascii()
    assert session.isprintable()
    assert not set(session) & set(' ",;\\')
    for later in (timedelta(), timedelta(hours=11, minutes=59, seconds=59)):
        assert callers.caller_of(session, keys_of, NOW + later) == caller
    assert callers.caller_of(session, keys_of, NOW + timedelta(hours=12)) is None


def test_a_session_ends_with_its_key() -> None:
    session = callers.issue_session("ann", KEYS["ann"], NOW)
    assert callers.caller_of(session, lambda _: [callers.session_key("new key")], NOW) is None
    assert callers.caller_of(session, lambda _: [], NOW) is None


@given(st.data())
def test_a_session_with_one_character_changed_is_invalid(data: st.DataObject) -> None:
    session = callers.issue_session("ann", KEYS["ann"], NOW)
    at = data.draw(st.integers(0, len(session) - 1))
    other = data.draw(st.characters().filter(lambda one: one != session[at]))
    assert callers.caller_of(session[:at] + other + session[at + 1 :], keys_of, NOW) is None


@given(st.text())
def test_nothing_else_is_a_session(text: str) -> None:
    assert callers.caller_of(text, keys_of, NOW) is None
    assert callers.caller_of(f"ps1.{text}", keys_of, NOW) is None
    assert callers.caller_of(f"ps1.YW5u.{text}.x", keys_of, NOW) is None


def test_the_key_is_for_nothing_else() -> None:
    assert callers.session_key("ann's key") != b"ann's key"
    assert len(callers.session_key("")) == 32
