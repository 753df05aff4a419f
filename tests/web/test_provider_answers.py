"""People log in at an issuer: the way there and back over HTTP, with a provider that can lie, hang and be gone."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import pytest
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from gateway.auth import issuers, provider_logins
from gateway.config import Config
from gateway.observe.events import RequestAnswered, ServiceUnreachable
from tests import running
from tests.identity_provider import AUDIENCE, CLIENT, CLIENT_SECRET, Hanging, LoginProvider, claims, rsa_key, token
from tests.postgres import Server, fresh
from tests.running import Events
from tests.waiting import PATIENCE
from tests.web.stage import CALLERS, SECRET, put_on_record
from tests.web.test_login import ELSEWHERE

KEY, OTHER_KEY = rsa_key("one"), rsa_key("one")
PUBLIC = "http://localhost:8080"
SIGNING = ["the first signing key of gateways", "an older signing key of gateways"]
GRANTS = [
    *running.GRANTS,
    {"callers": ["id:ann"], "actions": ["audit"], "everything": True},
    {"callers": ["group:id:on-call"], "actions": ["audit"], "everything": True},
]


@pytest.fixture(scope="module")
def dsn(postgres_server: Server) -> Iterator[str]:
    """One database for all: no test changes what another one sees."""
    with fresh(postgres_server) as one:
        yield one


@pytest.fixture
async def provider() -> AsyncIterator[LoginProvider]:
    async with LoginProvider(KEY).running() as one:
        yield one


def configuration(dsn: str, provider: LoginProvider, login: dict[str, Any] | None = None, **issuer: Any) -> Config:
    section = {"name": "id", "issuer": provider.issuer, "audiences": [AUDIENCE], "keys": provider.url, **issuer}
    return running.config(
        dsn,
        callers=CALLERS,
        server={"public_address": PUBLIC},
        identity={"signing_keys": SIGNING},
        issuers=[{**section, "login": provider.login(**(login or {}))}],
        grants=GRANTS,
    )


class Browser:
    """Goes where it is sent, and keeps cookies. The public address is that of ``gateway``, whichever that is now."""

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        self.client = httpx.AsyncClient(timeout=PATIENCE, trust_env=False)

    async def get(self, address: str, **headers: str) -> httpx.Response:
        here = f"{self.gateway}{address.removeprefix(PUBLIC)}" if address.startswith((PUBLIC, "/")) else address
        return await self.client.get(here, headers={name.replace("_", "-"): value for name, value in headers.items()})

    async def begin(self, following: str = "") -> str:
        """Follow the button to the provider and let it log in. Return the address of the way back."""
        page = await self.get(f"/ui/login?{urlencode({'next': following})}")
        link = page.text.partition('class="button primary" href="')[2].partition('"')[0]
        assert link.startswith(f"{PUBLIC}/ui/login/id"), page.text
        there = await self.get(link)
        assert there.status_code == 303, there.text
        back = await self.get(there.headers["location"])
        return back.headers["location"]

    async def log_in(self, following: str = "") -> httpx.Response:
        """Return the last answer of a login."""
        return await self.get(await self.begin(following))

    @property
    def session(self) -> str | None:
        return self.client.cookies.get("gateway_session")


@asynccontextmanager
async def browsing(config: Config, observe: Events | None = None) -> AsyncIterator[Browser]:
    async with running.running(config, observe) as gateway:
        browser = Browser(gateway)
        async with browser.client:
            yield browser


async def test_a_person_logs_in_and_lands_on_the_page_that_was_asked_for(dsn: str, provider: LoginProvider) -> None:
    await put_on_record(dsn)
    events = Events()
    async with browsing(configuration(dsn, provider), events) as browser:
        asked = await browser.get("/ui/rejections?reason=token-stale")
        assert asked.headers["location"] == "/ui/login?next=%2Fui%2Frejections%3Freason%3Dtoken-stale"
        arrived = await browser.log_in("/ui/rejections?reason=token-stale")
        # The session is Strict, so the browser goes on from a page of the gateway.
        assert (arrived.status_code, 'content="0;url=/ui/rejections?reason=token-stale"' in arrived.text) == (200, True)
        session, gone = arrived.headers.get_list("set-cookie")
        for attribute in ("httponly", "samesite=strict", "path=/ui/", "max-age=43200"):
            assert attribute in session.lower()
        assert gone.startswith('gateway_login=""')
        shown = await browser.get("/ui/rejections?reason=token-stale")
        assert (SECRET in shown.text, "id:ann" in shown.text) == (True, True)
        cookies = dict(browser.client.cookies)
        await browser.client.post(f"{browser.gateway}/ui/logout", headers={"Origin": browser.gateway})
        assert (await browser.get("/ui/rejections")).status_code == 303
    (asked_for,) = provider.asked_to_log_in
    assert asked_for.pop("tenant") == "1"
    assert asked_for.pop("redirect_uri") == f"{PUBLIC}/ui/login/id/callback"
    assert [len(asked_for.pop(name)) for name in ("state", "nonce", "code_challenge")] == [43, 43, 43]
    kinds = {"response_type": "code", "code_challenge_method": "S256"}
    assert asked_for == {"client_id": CLIENT, "scope": "openid", **kinds}
    # No token, code or secret is in a cookie, in an event, and so in no log.
    told = repr(list(events)) + json.dumps(cookies) + base64.b64decode(session.split(".")[1] + "==").decode()
    (form,) = provider.redeemed
    assert "client_id" not in form, "the client proves itself by its secret"
    for secret in (*provider.tokens[0].split("."), "opaque", form["code"], form["code_verifier"], CLIENT_SECRET):
        assert secret not in told
    (callback,) = [one for one in events if isinstance(one, RequestAnswered) and one.path.endswith("/callback")]
    assert callback.caller == "id:ann"


async def test_a_person_without_the_grant_is_told_so_and_sees_nothing(dsn: str, provider: LoginProvider) -> None:
    await put_on_record(dsn)
    provider.subject = "eve"
    async with browsing(configuration(dsn, provider)) as browser:
        refused = await browser.log_in("/ui/rejections")
        assert (refused.status_code, browser.session) == (403, None)
        assert "The caller id:eve may not read the record. It lacks the grant audit." in refused.text
        assert (await browser.get("/ui/rejections")).status_code == 303


async def test_groups_of_the_token_hold_for_the_session_and_no_others_are_kept(
    dsn: str, provider: LoginProvider
) -> None:
    provider.subject = "bob"
    provider.more = {"groups": ["on-call", *(f"another-group-{number}" for number in range(600))]}
    async with browsing(configuration(dsn, provider, groups_claim=["groups"])) as browser:
        await browser.log_in()
        assert (await browser.get("/ui/")).status_code == 200
        assert browser.session is not None
        assert len(browser.session) < 300


async def test_a_login_begins_at_one_gateway_and_ends_at_another(dsn: str, provider: LoginProvider) -> None:
    config = configuration(dsn, provider)
    rotated = config.model_copy(
        update={"identity": type(config.identity)(signing_keys=("a newer signing key of all gateways", SIGNING[0]))}
    )
    async with browsing(config) as browser, running.running(rotated) as second:
        back = await browser.begin()
        first, browser.gateway = browser.gateway, second
        assert (await browser.get(back)).status_code == 200
        assert (await browser.get("/ui/")).status_code == 200
        browser.gateway = first  # which does not know the newer key yet
        assert (await browser.get("/ui/")).status_code == 303


async def test_a_public_client_has_no_secret_to_prove_itself(dsn: str, provider: LoginProvider) -> None:
    provider.secret = None
    async with browsing(configuration(dsn, provider)) as browser:
        assert (await browser.log_in()).status_code == 200
    assert "client_id" in provider.redeemed[0]


REFUSALS = {
    "denied consent": ({"error": "access_denied"}, "has not logged you in: access_denied."),
    "with markup": (
        {"error": "access_denied", "error_description": "<script>alert(1)</script>\u202e"},
        "access_denied (&lt;script&gt;alert(1)&lt;/script&gt;\\u202e).",
    ),
    "without an end": ({"error": "x" * 5000}, f"{'x' * 200}…"),
    "of another issuer": ({"code": "x", "iss": "https://other.example"}, "of another issuer"),
    "without a code": ({"code": ""}, "has no code"),
}


async def test_an_answer_without_a_login_is_shown_and_logs_nobody_in(
    dsn: str, provider: LoginProvider, subtests: pytest.Subtests
) -> None:
    async with browsing(configuration(dsn, provider)) as browser:
        for name, (answer, said) in REFUSALS.items():
            with subtests.test(name):
                back = urlsplit(await browser.begin("/ui/events"))
                given = {"state": parse_qs(back.query)["state"][0], **answer}
                refused = await browser.get(f"{back.path}?{urlencode(given)}")
                assert refused.status_code in (400, 401, 403)
                assert said in refused.text
                assert browser.session is None
                assert "gateway_login" not in browser.client.cookies  # this attempt is over
                assert "next=%2Fui%2Fevents" in refused.text
                assert given["state"] not in refused.text
    assert not provider.redeemed


async def test_only_the_browser_that_began_a_login_ends_it(dsn: str, provider: LoginProvider) -> None:
    async with browsing(configuration(dsn, provider)) as browser, browsing(configuration(dsn, provider)) as victim:
        back = await browser.begin()
        answer = dict(parse_qsl(urlsplit(back).query))
        path = urlsplit(back).path
        forged = {
            "a forged state": {**answer, "state": "x" * 43},
            "a state that is no text": {**answer, "state": "\udcff\u202e"},
            "no state": {"code": answer["code"]},
            "an error without a state": {"error": "x", "error_description": "Call 555-1234"},
        }
        for name, given in forged.items():
            query = urlencode(given, errors="surrogateescape")
            refused = await browser.get(f"{path}?{query}", sec_fetch_site="cross-site")
            assert (refused.status_code, browser.session) == (400, None), name
            assert "555-1234" not in refused.text
        twice = await browser.get(f"{back}&state={answer['state']}")
        assert twice.status_code == 400
        # A link to the attacker's own login: the victim has no cookie for it, or that of a login of its own.
        assert (await victim.get(back)).status_code == 400
        await victim.begin()
        assert (await victim.get(back)).status_code == 400
        assert victim.session is None
        assert not provider.redeemed
        # None of this has disturbed the login that was under way.
        assert (await browser.get(back)).status_code == 200


async def test_a_code_is_good_for_one_login(dsn: str, provider: LoginProvider) -> None:
    async with browsing(configuration(dsn, provider)) as browser:
        back = await browser.begin()
        kept = browser.client.cookies["gateway_login"]
        assert (await browser.get(back)).status_code == 200
        assert (await browser.get(back)).status_code == 400  # the cookie is gone
        again = await browser.get(back, cookie=f"gateway_login={kept}")
        assert (again.status_code, "invalid_grant" in again.text) == (401, True)
        assert "set-cookie" not in again.headers or "gateway_session" not in again.headers["set-cookie"]


BAD: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], str] | None, str]] = {
    "of another login": ({"nonce": "another"}, None, "its claim nonce"),
    "without a nonce": ({"nonce": None}, None, "its claim nonce"),
    "with a nonce that is no text": ({"nonce": ["x"]}, None, "its claim nonce"),
    "for another client": ({"aud": "another"}, None, "its claim aud"),
    "for the API": ({"aud": AUDIENCE}, None, "its claim aud"),
    "for several, of which none is named": ({"aud": [CLIENT, AUDIENCE]}, None, "its claim azp"),
    "issued to another client": ({"aud": [CLIENT, "x"], "azp": "x"}, None, "its claim azp"),
    "signed by another key": ({}, lambda content: token(OTHER_KEY, content), "No key of the issuer"),
    "too large": ({"more": "x" * 40_000}, None, "more than 32768 bytes"),
}


async def test_no_other_token_logs_anybody_in(dsn: str, provider: LoginProvider, subtests: pytest.Subtests) -> None:
    good = provider.make
    async with browsing(configuration(dsn, provider)) as browser:
        for name, (more, make, said) in BAD.items():
            provider.more, provider.make = more, make or good
            with subtests.test(name):
                refused = await browser.log_in("/ui/events")
                assert (refused.status_code, browser.session) == (401, None), refused.text
                assert said in refused.text
        provider.more, provider.make = {"aud": [CLIENT, "x"], "azp": CLIENT}, good
        assert (await browser.log_in()).status_code == 200


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b" " * 65536
        await asyncio.sleep(0)


async def hanging() -> AsyncIterator[bytes]:
    await asyncio.sleep(PATIENCE)
    yield b""


WRONG: dict[str, tuple[Callable[[], Response], int]] = {
    "an error": (lambda: Response("<b>down</b>", 500), 503),
    "a redirect": (lambda: RedirectResponse("http://localhost:1/token", 307), 503),
    "no JSON": (lambda: Response("<b>hello</b>"), 503),
    "no object": (lambda: JSONResponse(["id_token"]), 503),
    "too much of it": (lambda: StreamingResponse(endless()), 503),
    "none in time": (lambda: StreamingResponse(hanging()), 503),
    "no ID token": (lambda: JSONResponse({"access_token": "x"}), 401),
    "an ID token that is no text": (lambda: JSONResponse({"id_token": {"sub": "ann"}}), 401),
    "a wrong secret": (lambda: JSONResponse({"error": "invalid_client<b>"}, 401), 401),
}


async def test_a_provider_that_answers_wrongly_logs_nobody_in(
    dsn: str, provider: LoginProvider, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    events = Events()
    async with browsing(configuration(dsn, provider), events) as browser:
        for name, (answer, status) in WRONG.items():
            provider.token_answer = answer()
            # Only of one answer the gateway tires. For all others a busy machine gets the time it needs.
            monkeypatch.setattr(provider_logins, "TIMEOUT", 0.5 if name == "none in time" else PATIENCE)
            with subtests.test(name):
                refused = await browser.log_in()
                assert (refused.status_code, browser.session) == (status, None), refused.text
                assert "<b>" not in refused.text
        provider.token_answer = None
        assert (await browser.log_in()).status_code == 200
    told = [event.error for event in events if isinstance(event, ServiceUnreachable)]
    assert len(told) == 7
    for reason in ("answers with 500", "answers with 307", "is too long", "not answer within 0.5 seconds"):
        assert any(reason in one for one in told), told
    assert not any(form["code"] in str(told) for form in provider.redeemed)


async def test_a_provider_that_publishes_wrong_addresses_begins_no_login(
    dsn: str, provider: LoginProvider, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(issuers, "PAUSE", 0.0)
    wrong = (
        {"issuer": "https://other.example"},
        {"authorization_endpoint": "http://other.example/"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"token_endpoint": None},
        {"token_endpoint": "http://other.example/token"},
    )
    async with browsing(configuration(dsn, provider)) as browser:
        for provider.published in wrong:
            with subtests.test(str(provider.published)):
                refused = await browser.get("/ui/login/id")
                assert (refused.status_code, "cannot confirm the login" in refused.text) == (503, True)
        provider.published = {}
        assert (await browser.log_in()).status_code == 200


async def test_a_provider_that_hangs_delays_no_login_at_another(
    dsn: str, provider: LoginProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers begin any number of logins there. They share one question, and its failure for a while."""
    monkeypatch.setattr(provider_logins, "TIMEOUT", 2 * PATIENCE)
    events = Events()
    async with LoginProvider(KEY).running() as down:
        config = configuration(dsn, provider)
        other = config.issuers[0].model_copy(update={"name": "down", "issuer": down.issuer, "keys": down.url})
        both = config.model_copy(update={"issuers": (*config.issuers, other)})
        down.published_answer, down.token_answer = discovery, redemption = Hanging(500), Hanging(500)

        async def answers(browser: Browser, address: str, hanging: Hanging, asked: Callable[[], bool]) -> set[int]:
            """Ask 20 times, log in elsewhere meanwhile, and return the answers and that of a later request."""
            strangers = [asyncio.create_task(browser.get(address)) for _ in range(20)]
            async with asyncio.timeout(PATIENCE):
                while not asked():
                    await asyncio.sleep(0.01)
                assert (await browser.log_in()).status_code == 200
            assert not any(one.done() for one in strangers)
            hanging.may.set()
            return {one.status_code for one in await asyncio.gather(*strangers, browser.get("/ui/login/down"))}

        async with browsing(both, events) as browser:
            assert await answers(browser, "/ui/login/down", discovery, lambda: down.discovered > 0) == {503}
            assert down.discovered == 1
            assert [one.error for one in events if isinstance(one, ServiceUnreachable)] == ["down: it answers with 500"]
            monkeypatch.setattr(issuers, "PAUSE", 0.0)
            down.published_answer = None
            there = await browser.get("/ui/login/down")
            back = (await browser.get(there.headers["location"])).headers["location"]
            assert await answers(browser, back, redemption, lambda: len(down.redeemed) >= 8) == {503, 303}


async def test_known_addresses_outlast_a_renewal_that_fails_or_hangs(
    dsn: str, provider: LoginProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browsing(configuration(dsn, provider)) as browser:
        await browser.log_in()
        monkeypatch.setattr(provider_logins, "_KEPT", 0.0)
        monkeypatch.setattr(issuers, "PAUSE", 0.0)
        provider.published_answer, before = Response("down", 500), provider.discovered
        assert (await browser.log_in()).status_code == 200
        assert provider.discovered > before
        provider.published_answer, before = Hanging(500), provider.discovered
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(browser.get("/ui/login/id"))
            async with asyncio.timeout(PATIENCE):
                while provider.discovered == before:
                    await asyncio.sleep(0.01)
            assert (await browser.log_in()).status_code == 200
            assert not waiting.done()
            provider.published_answer.may.set()
            assert (await waiting).status_code == 303


async def test_the_token_of_a_login_is_no_token_of_the_api(dsn: str, provider: LoginProvider) -> None:
    for audiences in ([AUDIENCE], []):
        async with browsing(configuration(dsn, provider, audiences=audiences)) as browser:

            async def status(aud: Any, browser: Browser = browser) -> int:
                header = f"Bearer {token(KEY, claims(aud=aud, iss=provider.issuer))}"
                return (await browser.get("/v1/rejections", authorization=header)).status_code

            await browser.log_in()
            sent = await browser.get("/v1/rejections", authorization=f"Bearer {provider.tokens[-1]}")
            assert sent.status_code == 401
            assert await status([CLIENT, AUDIENCE]) == 401
            assert await status(AUDIENCE) == (200 if audiences else 401)
            # Nor is the session a credential of the API.
            assert (await browser.get("/v1/rejections", cookie=f"gateway_session={browser.session}")).status_code == 401


async def test_a_login_leads_to_pages_of_the_gateway_alone(dsn: str, provider: LoginProvider) -> None:
    async with browsing(configuration(dsn, provider)) as browser:
        for wanted in ELSEWHERE:
            assert 'content="0;url=/ui/"' in (await browser.log_in(wanted)).text, wanted
            browser.client.cookies.clear()
        # Nor does the address itself, without the login page before it.
        there = await browser.get(f"/ui/login/id?{urlencode({'next': '//evil.example'})}")
        back = await browser.get((await browser.get(there.headers["location"])).headers["location"])
        assert 'content="0;url=/ui/"' in back.text
        long = await browser.log_in(f"/ui/events?prefix={'x' * 3000}")
        assert 'content="0;url=/ui/"' in long.text


async def test_no_other_site_begins_a_login(dsn: str, provider: LoginProvider) -> None:
    async with browsing(configuration(dsn, provider)) as browser:
        for site in ("cross-site", "same-site"):
            sent = await browser.get("/ui/login/id?next=/ui/events", sec_fetch_site=site)
            assert sent.headers["location"] == "/ui/login?next=%2Fui%2Fevents"
            assert "set-cookie" not in sent.headers
        assert (await browser.get("/ui/login/other")).headers["location"].startswith("/ui/login?next=")
        assert (await browser.get("/ui/login/other/callback?code=1")).status_code == 303
        posted = await browser.client.post(f"{browser.gateway}/ui/login/id", headers={"Origin": browser.gateway})
        assert posted.status_code == 405


async def test_behind_https_no_cookie_is_sent_in_the_clear(dsn: str, provider: LoginProvider) -> None:
    config = configuration(dsn, provider)
    secure = config.server.model_copy(update={"public_address": "https://gateway.example"})
    async with browsing(config.model_copy(update={"server": secure})) as browser:
        there = await browser.get("/ui/login/id")
        begun = there.headers["set-cookie"]
        for attribute in ("httponly", "samesite=lax", "path=/ui/login/id", "max-age=600", "secure"):
            assert attribute in begun.lower()
        back = await browser.get(there.headers["location"])
        address = back.headers["location"].removeprefix("https://gateway.example")
        arrived = await browser.get(address, cookie=begun.partition(";")[0])
        assert arrived.status_code == 200
        assert all("; secure" in cookie.lower() for cookie in arrived.headers.get_list("set-cookie"))
