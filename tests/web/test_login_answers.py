"""Only callers that may audit see pages, and other viewers learn nothing."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from gateway.api.authorisation import Authorisation
from gateway.api.incidents import Acknowledging
from gateway.auth import callers
from gateway.auth.callers import Callers
from gateway.config.access import CallerKeys
from gateway.db.database import Database
from gateway.http.body import BodyReader, Memory
from gateway.observe.events import ignore
from gateway.record.denials import Denials
from gateway.record.following import Follower
from gateway.web import build
from gateway.web.places import Place
from gateway.web.rendering import Site
from tests import running
from tests.web.page_gateway import CALLERS, KEYS, SECRET, log_in, no_logins, origin, put_on_record, serving

PAGES = ["/ui/", "/ui/rejections", "/ui/events", "/ui/observe", "/ui/no-such-page"]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("path", PAGES)
async def test_strangers_are_sent_to_the_login_and_see_nothing(dsn: str, path: str) -> None:
    await put_on_record(dsn)
    async with serving(dsn) as client:
        answer = await client.get(f"{path}?prefix=public")
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/ui/login?{httpx.QueryParams(next=f'{path}?prefix=public')}"
        assert SECRET not in answer.text
        part = await client.get(path, headers={"HX-Request": "true", "HX-Current-URL": f"{client.base_url}{path}"})
        assert part.status_code == 401
        assert part.headers["hx-redirect"].startswith("/ui/login?next=%2Fui%2F")
        assert not part.content


@pytest.mark.parametrize("caller", ["auditor", "admin"])
async def test_an_auditor_logs_in_and_out(dsn: str, caller: str) -> None:
    await put_on_record(dsn)
    async with serving(dsn) as client:
        answer = await log_in(client, caller, next="/ui/rejections")
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/rejections")
        cookie = answer.headers["set-cookie"].lower()
        for attribute in ("httponly", "samesite=strict", "path=/ui/", "max-age=43200"):
            assert attribute in cookie
        assert "secure" not in cookie
        assert KEYS[caller] not in cookie
        assert SECRET in (await client.get("/ui/rejections")).text
        assert (await client.get("/ui/no-such-page")).status_code == 404
        await client.post("/ui/logout", headers=origin(client))
        assert (await client.get("/ui/rejections")).status_code == 303


async def test_a_writer_is_not_let_in(dsn: str) -> None:
    await put_on_record(dsn)
    async with serving(dsn) as client:
        answer = await log_in(client, "writer")
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
        assert "may not read the record" in answer.text
        # Nor with a session of its own making, which it can sign.
        forged = callers.issue_session("writer", callers.session_key(KEYS["writer"]), datetime.now(UTC))
        for path in PAGES:
            shown = await client.get(path, headers={"Cookie": f"gateway_session={forged}"})
            assert shown.status_code == 403
            assert SECRET not in shown.text


async def test_a_wrong_key_reveals_nothing(dsn: str) -> None:
    async with serving(dsn) as client:
        for key in ("", "wrong", "\x00", "é", KEYS["auditor"] + "x"):
            answer = await client.post("/ui/login", data={"api_key": key}, headers=origin(client))
            assert answer.status_code == 401
            assert "This is not an API key" in answer.text
            assert "set-cookie" not in answer.headers


async def test_a_changed_session_is_invalid(dsn: str) -> None:
    good = callers.issue_session("auditor", callers.session_key(KEYS["auditor"]), datetime.now(UTC))
    version, caller, expires, proof = good.split(".")
    admin = callers.issue_session("admin", callers.session_key("guessed"), datetime.now(UTC))
    touched = [
        f"{version}.{caller}.{int(expires) + 1}.{proof}",
        f"{version}.{admin.split('.')[1]}.{expires}.{proof}",
        f"{version}.{caller}.{expires}.{proof[:-1]}",
        f"{version}.{caller}.{expires}.",
        f"ps2.{caller}.{expires}.{proof}",
        f"{version}.!.{expires}.{proof}",
        f"{version}.{caller}.{expires}é.{proof}".encode().decode("latin-1"),
        admin,
        "",
        "...",
    ]
    async with serving(dsn) as client:
        assert (await client.get("/ui/", headers={"Cookie": f"gateway_session={good}"})).status_code == 200
        for session in touched:
            header = {b"Cookie": f"gateway_session={session}".encode("latin-1", "replace")}
            assert (await client.get("/ui/", headers=header)).status_code == 303, session


async def test_a_session_ends_after_twelve_hours_and_with_its_key(dsn: str, database: Database) -> None:
    config = running.config(dsn, callers=CALLERS)
    now = NOW

    async def health() -> dict[str, str]:
        return {"postgres": "ok"}

    async def journal() -> None:
        return None

    async def nowhere(*_: object) -> None:
        raise AssertionError("nothing is forwarded here")

    def page(callers: list[dict[str, object]]) -> httpx.AsyncClient:
        keys = Callers([CallerKeys.model_validate(caller) for caller in callers], running.GRANT_RULES)
        acknowledging = Acknowledging(database, Authorisation(Denials(database, ignore)))
        follower = Follower(database, ignore, None)
        place = Place(None, database, follower, config, health, journal, dict, nowhere, acknowledging)
        app = build(Site(place), keys, no_logins(keys), lambda: now, BodyReader(Memory(1_000_000)))
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")

    async with page(CALLERS) as client:
        await log_in(client)
        now = NOW + timedelta(hours=11, minutes=59)
        assert (await client.get("/ui/observe")).status_code == 200
        changed = page([{**CALLERS[0], "api_key": "another-api-key"}, *CALLERS[1:]])
        revoked = page([{**CALLERS[0], "groups": []}, *CALLERS[1:]])
        gone = page(CALLERS[1:])
        for other, status in ((changed, 303), (revoked, 403), (gone, 303)):
            other.cookies = client.cookies
            async with other:
                assert (await other.get("/ui/observe")).status_code == status
        now = NOW + timedelta(hours=12)
        assert (await client.get("/ui/observe")).status_code == 303


async def test_forms_of_other_sites_are_refused(dsn: str) -> None:
    async with serving(dsn) as client:
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": f"{client.base_url}".rstrip("/") + ".evil.example"},
        ):
            for path in ("/ui/login", "/ui/logout", "/ui/theme"):
                answer = await client.post(path, data={"api_key": KEYS["auditor"]}, headers=headers)
                assert answer.status_code == 403
                assert "set-cookie" not in answer.headers
        same = await client.post(
            "/ui/login", data={"api_key": KEYS["auditor"]}, headers={"Sec-Fetch-Site": "same-origin"}
        )
        assert same.status_code == 303


@pytest.mark.thorough
@pytest.mark.parametrize(
    "following",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/v1/fences",
        "javascript:alert(1)",
        "/ui/\r\nX: 1",
        "",
    ],
)
async def test_a_login_leads_to_pages_of_ours_only(dsn: str, following: str) -> None:
    async with serving(dsn) as client:
        answer = await log_in(client, next=following)
        assert answer.headers["location"] == "/ui/"


async def test_behind_https_the_session_is_never_sent_in_the_clear(dsn: str) -> None:
    async with serving(dsn) as client:
        host = client.base_url.netloc.decode()
        answer = await client.post(
            "/ui/login", data={"api_key": KEYS["auditor"]}, headers={"Origin": f"https://{host}"}
        )
        assert "secure" in answer.headers["set-cookie"].lower()


async def test_a_link_on_another_site_arrives_with_the_session(dsn: str) -> None:
    async with serving(dsn) as client:
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        arrival = await client.get("/ui/rejections?holder=%22%3E%3Cscript%3E", headers=link)
        assert arrival.status_code == 200
        assert 'content="0;url=/ui/rejections?holder=%22%3E%3Cscript%3E"' in arrival.text
        # The browser repeats the request from the gateway's page. A viewer without a session goes to the login.
        again = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
        assert (await client.get("/ui/rejections", headers=again)).status_code == 303


@pytest.mark.thorough
async def test_anonymous_callers_need_no_login(dsn: str) -> None:
    await put_on_record(dsn)
    async with serving(dsn, grants=running.OPEN) as client:
        assert SECRET in (await client.get("/ui/rejections")).text


async def test_a_grant_for_anonymous_callers_that_shows_no_record_leads_to_the_login(dsn: str) -> None:
    public = {"callers": ["anonymous"], "actions": ["read"], "buckets": ["site/public/**"]}
    async with serving(dsn, grants=[*running.GRANTS, public]) as client:
        answer = await client.get("/ui/rejections")
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login?next=%2Fui%2Frejections")
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert "0;url=/ui/rejections" in (await client.get("/ui/rejections", headers=link)).text


async def test_a_session_is_for_pages_alone(dsn: str) -> None:
    async with serving(dsn) as client:
        await log_in(client)
        client.cookies.set("gateway_session", client.cookies["gateway_session"], path="/")
        assert (await client.get("/v1/rejections")).status_code == 401


async def test_a_form_too_large_is_not_read(dsn: str) -> None:
    async with serving(dsn) as client:
        for body in (b"api_key=" + b"x" * 20_000, b"&".join(b"a=1" for _ in range(100)), b"api_key=\xff"):
            headers = {**origin(client), "Content-Type": "application/x-www-form-urlencoded"}
            answer = await client.post("/ui/login", content=body, headers=headers)
            assert answer.status_code == 400
            assert "The form" in answer.text
