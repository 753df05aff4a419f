"""Sessions of the page, and cookies of logins at issuers, end in time and cannot be forged or changed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway import wiring
from gateway.auth import login_cookies
from gateway.auth.issuers import Issuers
from gateway.auth.login_cookies import LARGEST, LONGEST_ATTEMPT, Attempt, Session, Terms
from gateway.config import Config
from gateway.errors import Forbidden
from gateway.observe.events import ignore

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TERMS = Terms("id", "https://id.example", "page")
KEYS = ["a signing key of thirty-two bytes", "an older key of thirty-two bytes."]
ANN = Session("id:Änn", ("id:on-call",), NOW)


def attempt(cookie: str, now: datetime = NOW, terms: Terms = TERMS) -> Attempt | None:
    return login_cookies.resume(cookie, terms, now, KEYS)


def begun(following: str = "/ui/events", key: str = KEYS[0]) -> tuple[Attempt, str]:
    return login_cookies.begin(TERMS, following, "unique", NOW, key)


@pytest.mark.parametrize("key", KEYS)
def test_an_attempt_is_good_for_ten_minutes_and_its_values_are_its_own_and_not_in_its_cookie(key: str) -> None:
    expected, cookie = begun(key=key)
    assert attempt(cookie) == expected
    assert attempt(cookie, NOW + LONGEST_ATTEMPT - timedelta(seconds=1)) == expected
    assert attempt(cookie, NOW + LONGEST_ATTEMPT) is None
    assert not set(cookie) & set(' ",;\\')
    assert len({expected.state, expected.nonce, expected.verifier}) == 3
    other, _ = login_cookies.begin(TERMS, "/ui/events", "another", NOW, KEYS[0])
    assert not {*expected[1:]} & {*other[1:]}
    assert not any(value in cookie for value in expected[1:])


def assert_invalid(cookie: str) -> None:
    assert attempt(cookie) is None
    assert login_cookies.session_of(cookie, TERMS, KEYS) is None
    assert login_cookies.caller_of(cookie, keys_of, NOW) is None


@given(st.data())
def test_a_cookie_with_one_character_changed_is_invalid(data: st.DataObject) -> None:
    by_key = login_cookies.issue_session("ann", SESSION_KEYS["ann"], NOW)
    for cookie in (begun()[1], login_cookies.issue(ANN, TERMS, KEYS[0]), by_key):
        at = data.draw(st.integers(0, len(cookie) - 1))
        other = data.draw(st.characters())
        assume(other != cookie[at])
        assert_invalid(cookie[:at] + other + cookie[at + 1 :])


@given(st.text())
def test_nothing_else_is_a_cookie(text: str) -> None:
    for cookie in (text, *(f"{kind}{text}" for kind in ("la1.", "ls1.", "ls1.e30.", "ps1.", "ps1.YW5u."))):
        assert_invalid(cookie)
        assert_invalid(f"{cookie}.x")
        login_cookies.alleged_issuer(cookie)


def test_cookies_are_of_one_kind_one_issuer_and_one_client() -> None:
    _, cookie = begun()
    session = login_cookies.issue(ANN, TERMS, KEYS[0])
    assert login_cookies.session_of(cookie, TERMS, KEYS) is None
    assert attempt(session) is None
    for other in (TERMS._replace(name="x"), TERMS._replace(issuer="x"), TERMS._replace(client_id="x")):
        assert attempt(cookie, terms=other) is None
        assert login_cookies.session_of(session, other, KEYS) is None
    assert login_cookies.session_of(session, TERMS, KEYS) == ANN
    assert login_cookies.session_of(session, TERMS, KEYS[1:]) is None


def test_a_long_way_back_is_left_out_and_too_many_groups_are_refused() -> None:
    expected, cookie = begun("/ui/" + "x" * 3000)
    assert (expected.following, len(cookie) < LARGEST) == ("", True)
    with pytest.raises(Forbidden):
        login_cookies.issue(ANN._replace(groups=tuple(f"id:group-{number}" for number in range(300))), TERMS, KEYS[0])


def config(**changed: Any) -> Config:
    login = {
        "client_id": "page",
        **changed.pop("login", {}),
    }
    issuer = {
        "name": "id",
        "issuer": TERMS.issuer,
        "keys": "keys.json",
        "login": login,
        **changed.pop("issuer", {}),
    }
    grant = {"callers": ["group:id:on-call"], "actions": ["audit"], "everything": True}
    return Config.model_validate(
        {
            "postgres": {"dsn": "postgresql://nowhere"},
            "server": {"public_address": "https://gateway.example"},
            "identity": {"signing_keys": KEYS[:1]},
            "issuers": [issuer],
            "grants": [grant],
            **changed,
        }
    )


def audits(config: Config, cookie: str, now: datetime = NOW) -> bool | None:
    """Whether a session is that of a caller that sees the page; None if it is of no caller."""
    issuers = Issuers(config.issuers, lambda: now, ignore)
    callers = wiring.callers(config.default, issuers, lambda: now)
    viewer = wiring.logins(config.default, issuers, callers, ignore).viewer(cookie, now)
    return None if viewer is None else viewer.audits


def test_a_session_ends_with_what_it_rests_on() -> None:
    good = login_cookies.issue(ANN, TERMS, KEYS[0])
    assert audits(config(), good) is True
    assert audits(config(), good, NOW + timedelta(hours=12, seconds=-1)) is True
    assert audits(config(), good, NOW + timedelta(hours=12)) is None
    assert audits(config(login={"session": 60}), good, NOW + timedelta(seconds=59)) is True
    assert audits(config(login={"session": 60}), good, NOW + timedelta(seconds=60)) is None
    assert audits(config(identity={"signing_keys": [KEYS[1], KEYS[0]]}), good) is True
    assert audits(config(identity={"signing_keys": [KEYS[1]]}), good) is None
    assert audits(config(login={"client_id": "x"}), good) is None
    assert audits(config(issuer={"issuer": "https://x"}), good) is None
    assert audits(config(issuer={"login": None, "audiences": ["api"]}), good) is None
    assert audits(config(issuers=[], grants=[]), good) is None
    assert audits(config(grants=[{"callers": ["id:x"], "actions": ["audit"], "everything": True}]), good) is False


SESSION_KEYS = {"ann": login_cookies.session_key("ann's key"), "Jürgen.ü": login_cookies.session_key("another key")}


def keys_of(caller: str) -> list[bytes]:
    return [SESSION_KEYS[caller]] if caller in SESSION_KEYS else []


@pytest.mark.parametrize("caller", SESSION_KEYS)
def test_a_session_is_its_callers_for_twelve_hours(caller: str) -> None:
    session = login_cookies.issue_session(caller, SESSION_KEYS[caller], NOW)
    assert session.isascii()
    assert session.isprintable()
    assert not set(session) & set(' ",;\\')
    for later in (timedelta(), timedelta(hours=11, minutes=59, seconds=59)):
        assert login_cookies.caller_of(session, keys_of, NOW + later) == caller
    assert login_cookies.caller_of(session, keys_of, NOW + timedelta(hours=12)) is None


def test_a_session_ends_with_its_key() -> None:
    old, new = login_cookies.session_key("the old key"), login_cookies.session_key("the new key")
    for key in (old, new):
        session = login_cookies.issue_session("ann", key, NOW)
        assert login_cookies.caller_of(session, lambda _: [old, new], NOW) == "ann"
        for left in ([login_cookies.session_key("another key")], []):
            assert login_cookies.caller_of(session, lambda _, left=left: left, NOW) is None  # type: ignore[misc]
