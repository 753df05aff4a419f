"""A person logs in at a real OpenID provider, in Chromium. The provider is of another site than the gateway."""

import json
import selectors
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests import running
from tests.processes import free_port
from tests.waiting import PATIENCE
from tests.web.stage import CALLERS, SECRET, Stage, put_on_record, staged
from tests.web.watching import Watch

DIRECTORY = Path(__file__).parent / "provider"
CLIENT, CLIENT_SECRET = "gateway-page", "the secret of the gateway at its provider"


@dataclass(frozen=True)
class Provider:
    issuer: str
    process: "subprocess.Popen[bytes]"

    @property
    def host(self) -> str:
        return self.issuer.removeprefix("http://")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def provider(port: int) -> Iterator[Provider]:
    node = which("node")
    if node is None or not (DIRECTORY / "node_modules").is_dir():
        pytest.skip("the OpenID provider is not installed: run `make tests/web/provider/node_modules`")
    back = f"http://127.0.0.1:{port}/ui/login/id/callback"
    client = {"client_id": CLIENT, "client_secret": CLIENT_SECRET, "redirect_uri": back}
    command = [node, str(DIRECTORY / "server.mjs"), json.dumps(client)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE), "the provider does not start"
        try:
            yield Provider(process.stdout.readline().decode().strip(), process)
        finally:
            process.kill()


@pytest.fixture
def stage(dsn: str, port: int, provider: Provider) -> Iterator[Stage]:
    """A gateway at which people of one issuer log in."""
    login = {
        "client_id": CLIENT,
        "client_secret": CLIENT_SECRET,
    }
    issuer = {"keys": f"{provider.issuer}/jwks", "groups_claim": ["groups"]}
    sections: dict[str, Any] = {
        "callers": CALLERS,
        "server": {"public_address": f"http://127.0.0.1:{port}"},
        "identity": {"signing_keys": ["the signing key of all gateways here"]},
        "issuers": [
            {"name": "id", "issuer": provider.issuer, "login": login, **issuer},
        ],
        "grants": [*running.GRANTS, {"callers": ["group:id:on-call"], "actions": ["audit"], "everything": True}],
    }
    with staged(running.config(dsn, **sections), port) as one:
        one.run(put_on_record(dsn))
        yield one


def log_in(page: Page, name: str) -> None:
    """Press the button, log in at the provider and consent."""
    page.get_by_role("link", name="Log in with id").click()
    page.get_by_placeholder("Enter any login").fill(name)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def test_a_person_logs_in_sees_the_record_and_logs_out(
    visiting: Callable[..., tuple[Page, Watch]], stage: Stage, provider: Provider
) -> None:
    page, watch = visiting("/ui/rejections?reason=token-stale", logged_in=False)
    watch.others = (provider.host,)
    expect(page).to_have_title("Log in – Fencing gateway")
    log_in(page, "ann")
    expect(page).to_have_url(f"{stage.origin}/ui/rejections?reason=token-stale")
    expect(page.get_by_text(SECRET).first).to_be_visible()
    expect(page.get_by_text("id:ann")).to_be_visible()
    cookies = {cookie.get("name"): cookie for cookie in page.context.cookies(f"{stage.origin}/ui/login/id/callback")}
    assert set(cookies) == {"gateway_session"}
    assert (cookies["gateway_session"]["sameSite"], cookies["gateway_session"]["httpOnly"]) == ("Strict", True)
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_title("Log in – Fencing gateway")
    page.goto("/ui/")
    expect(page).to_have_title("Log in – Fencing gateway")
    # The provider still knows the person: the next login asks for nothing.
    page.get_by_role("link", name="Log in with id").click()
    expect(page).to_have_url(f"{stage.origin}/ui/")
    expect(page.get_by_text("id:ann")).to_be_visible()
