"""The policy of the page: headers of every answer, cached and vendored files, and objects that a browser shows."""

import hashlib
import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests import ROOT, running
from tests.doubles.s3.process import DoubleProcess
from tests.objects.clients import connect
from tests.objects.object_gateway import WRITER
from tests.web.stage import CALLERS, Stage, log_in, staged
from tests.web.watching import Watch

WEB = ROOT / "gateway/web"
VENDOR = WEB / "static/vendor"


POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "content-type": "text/html; charset=utf-8",
}


async def test_pages_load_nothing_foreign_and_are_never_cached(client: httpx.AsyncClient) -> None:
    await log_in(client)
    for path in ("/ui/", "/ui/login", "/ui/rejections", "/ui/rejections?before=x", "/ui/nothing"):
        answer = await client.get(path)
        assert {name: answer.headers.get(name) for name in POLICY} == POLICY, path
        assert "x-request-id" in answer.headers


async def test_files_are_kept_for_as_long_as_they_stay_the_same(client: httpx.AsyncClient) -> None:
    page = (await client.get("/ui/login")).text
    addresses = re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', page)
    assert len(addresses) >= 4
    for address in addresses:
        answer = await client.get(address)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await client.get(address, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        old = await client.get(address.partition("?")[0] + "?v=old")
        assert old.headers["cache-control"] == "no-cache"


FILES = (
    "../app.py",
    "..%2f..%2fapp.py",
    "%2e%2e/door.py",
    "vendor",
    "",
    "style.css/",
    "vendor/VENDORED",
    "//etc/passwd",
)


async def test_no_other_file_is_served(client: httpx.AsyncClient) -> None:
    for path in FILES:
        answer = await client.get(f"/ui/static/{path}")
        assert answer.status_code in (303, 404)
        assert b"import" not in answer.content


def test_what_is_vendored_is_what_its_makers_published() -> None:
    listed = {}
    for line in (VENDOR / "VENDORED").read_text().splitlines():
        if not line.startswith("#"):
            file, _, _, licence, digest = line.split()
            listed[file] = digest
            assert licence in ("0BSD", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Apache-2.0")
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del found["VENDORED"]
    assert found == listed


SCRIPT = """<!doctype html><title>report</title><link rel="icon" href="data:,"><p>A report.</p><script>
document.title = "running";
fetch("/ui/rejections").then(answer => answer.text()).then(
  text => { document.title = text.includes("Log out") ? "taken" : "shut out" }, () => { document.title = "refused" });
</script>"""
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'


@pytest.fixture
def store() -> Iterator[DoubleProcess]:
    with DoubleProcess.start(buckets=["reports"]) as process:
        yield process


@pytest.fixture
def stage(dsn: str, store: DoubleProcess) -> Iterator[Stage]:
    with staged(running.config(dsn, store.endpoint, callers=[CALLERS[0], WRITER])) as one:
        yield one


def address(stage: Stage, content: str = SCRIPT, content_type: str = "text/html") -> str:
    """Return a URL that shows an object of the writer's to any client that has it."""
    s3 = connect(stage.origin, "33")
    s3.put_object(Bucket="reports", Key="monthly", Body=content.encode(), ContentType=content_type)
    link: str = s3.generate_presigned_url("get_object", Params={"Bucket": "reports", "Key": "monthly"})
    return link


def test_a_script_in_an_object_does_not_reach_the_record(
    visiting: Callable[..., tuple[Page, Watch]], stage: Stage
) -> None:
    page, watch = visiting("/ui/rejections")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()
    watch.expected.append("Blocked script execution")
    page.goto(address(stage))
    page.wait_for_load_state("networkidle")
    expect(page).to_have_title("report")


def test_a_picture_is_shown(visiting: Callable[..., tuple[Page, Watch]], stage: Stage) -> None:
    """The browser shows it by itself, not only as a part of another site's page."""
    page, _ = visiting("/ui/login", logged_in=False)
    page.goto(address(stage, PICTURE, "image/svg+xml"))
    assert page.evaluate("document.documentElement.localName") == "svg"
