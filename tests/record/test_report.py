"""The incident report: one file with all details, for auditors only, over HTTP and from the terminal."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli import application
from gateway.errors import GatewayError
from tests.running import config, running
from tests.waiting import PATIENCE

AUDITOR, WRITER = "auditor-api-key", "writer-api-key"
CALLERS = [{"name": "auditor", "api_key": AUDITOR, "groups": ["auditors"]}, {"name": "writer", "api_key": WRITER}]
RESOURCE = "jobs/%3Cnight%3E/..~/1"
LATE, NEXT = "<script>late</script>", "next & newest"


@pytest.fixture
async def origin(dsn: str) -> AsyncIterator[str]:
    """A gateway where a holder was overtaken, and came twice more."""
    async with running(config(dsn, callers=CALLERS)) as at:
        async with client(at, WRITER) as writer:
            for token, holder, status in ((33, LATE, 200), (34, NEXT, 200), (33, LATE, 412), (33, LATE, 412)):
                answer = await writer.post(
                    f"/v1/fences/{RESOURCE}/barrier", json={"token": str(token), "holder": holder}
                )
                assert answer.status_code == status, answer.text
        yield at


def client(origin: str, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=origin, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE)


def text(report: str) -> str:
    """Return the text of a report, without its markup."""
    body = re.sub(r"<style>.*?</style>|<[^>]*>", " ", report, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(body))


async def test_it_has_everything_and_needs_nothing(origin: str) -> None:
    async with client(origin, AUDITOR) as auditor:
        answer = await auditor.get(f"/v1/reports/{RESOURCE}")
        head = (await auditor.get("/v1/record/head")).json()
        refused = (await auditor.get("/v1/rejections", params={"resource": RESOURCE})).json()["rejections"]
    report, said = answer.text, text(answer.text)
    assert answer.status_code == 200, report
    assert f"{LATE} (token 33) was overtaken by {NEXT} (token 34)" in said
    assert "tried 2 more writes" in said
    assert "All 2 of these writes were refused before they took effect." in said
    assert "Taken over by a barrier" in said
    assert f"ended at position {head['position']}" in said
    assert head["hash"] in said
    assert len(refused) == 2
    assert len(re.findall(r"refused token-stale", said)) == 2
    assert report.startswith("<!doctype html>")
    for forbidden in ("<script", "<link", "<img", "href=", "src=", "url(", "@import", " style=", "javascript:"):
        assert forbidden not in report, forbidden
    assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    assert re.fullmatch(r'attachment; filename="[A-Za-z0-9._-]+\.html"', answer.headers["content-disposition"])


async def test_it_is_about_the_span_that_is_asked_for(origin: str) -> None:
    async with client(origin, AUDITOR) as auditor:
        before = {"since": "2020-01-01T00:00:00Z", "until": "2020-01-02T00:00:00Z"}
        answer = await auditor.get(f"/v1/reports/{RESOURCE}", params=before)
        assert "No write was refused here in this time." in text(answer.text)
        wrong = {"since": "2020-01-02T00:00:00Z", "until": "2020-01-01T00:00:00Z"}
        answer = await auditor.get(f"/v1/reports/{RESOURCE}", params=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "request-malformed")
        answer = await auditor.get("/v1/reports/nobody-knows")
        assert "No write was refused here in this time." in text(answer.text)


async def test_only_who_may_audit_gets_one(origin: str) -> None:
    async with client(origin, WRITER) as writer:
        answer = await writer.get(f"/v1/reports/{RESOURCE}")
        assert answer.status_code == 403
        assert LATE not in answer.text
    async with httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as stranger:
        assert (await stranger.get(f"/v1/reports/{RESOURCE}")).status_code == 401


async def test_the_command_writes_it_to_a_file(origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_API_KEY", AUDITOR)
    output = tmp_path / "incident.html"

    def command(*arguments: str) -> str:
        invoked = CliRunner().invoke(
            application, ["audit", "report", "--url", origin, "--output", str(output), *arguments]
        )
        if invoked.exception is not None and not isinstance(invoked.exception, SystemExit):
            raise invoked.exception
        return invoked.output

    assert f"{output}: written" in await asyncio.to_thread(command, "--resource", RESOURCE)
    assert "tried 2 more writes" in text(output.read_text())
    await asyncio.to_thread(command, "--resource", RESOURCE, "--until", "2020-01-01T00:00")
    assert "No write was refused here in this time." in text(output.read_text())
    for wrong in (["--resource", RESOURCE, "--since", "yesterday"], ["--resource", "not canonical"]):
        with pytest.raises(GatewayError):
            await asyncio.to_thread(command, *wrong)
    output = tmp_path / "no/such/folder.html"
    with pytest.raises(GatewayError, match="cannot be written"):
        await asyncio.to_thread(command, "--resource", RESOURCE)
