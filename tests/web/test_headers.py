"""The headers of every answer under ``/ui/``, cached static files, and vendored files."""

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import ROOT
from tests.web.page_gateway import log_in, serving

WEB = ROOT / "gateway/web"
VENDOR = WEB / "static/vendor"


@pytest.mark.parametrize("path", ["/ui/", "/ui/login", "/ui/rejections", "/ui/rejections?before=x", "/ui/nothing"])
async def test_pages_load_nothing_foreign_and_are_never_cached(dsn: str, path: str) -> None:
    async with serving(dsn) as client:
        await log_in(client)
        answer = await client.get(path)
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "x-request-id" in answer.headers


async def test_files_are_kept_for_as_long_as_they_stay_the_same(dsn: str) -> None:
    async with serving(dsn) as client:
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    ["../app.py", "..%2f..%2fapp.py", "%2e%2e/door.py", "vendor", "", "style.css/", "vendor/VENDORED", "//etc/passwd"],
)
async def test_no_other_file_is_served(dsn: str, path: str) -> None:
    async with serving(dsn) as client:
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


def test_templates_need_nothing_inline() -> None:
    """The policy would stop it, and it would be missing."""
    for template in (WEB / "templates").glob("*.html"):
        if template.name == "report.html":  # no page, but a file to be taken away: it has all it needs in itself
            continue
        text = template.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), template
        assert not re.search(r"<style|\sstyle=|\son\w+=|hx-on|javascript:", text), template
        assert not re.search(r"https?://(?!www\.w3\.org)", text), template


def test_the_wheel_has_templates_and_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    for path in (*WEB.glob("templates/*"), *WEB.glob("static/**/*")):
        if path.is_file():
            assert str(path.relative_to(ROOT)) in packed
