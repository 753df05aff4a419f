"""An object that a browser shows lies on the origin of the page: a script in it must not reach the record."""

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from playwright.sync_api import Page, expect

from tests import running
from tests.doubles.s3.process import DoubleProcess
from tests.waiting import PATIENCE
from tests.web.stage import CALLERS, WRITER_KEY, Stage
from tests.web.watching import Watch

SCRIPT = """<!doctype html><title>report</title><link rel="icon" href="data:,"><p>A report.</p><script>
document.title = "running";
fetch("/ui/rejections").then(answer => answer.text()).then(
  text => { document.title = text.includes("Log out") ? "taken" : "shut out" }, () => { document.title = "refused" });
</script>"""
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
KEYS = {"access_key_id": running.ACCESS_KEY, "secret_access_key": running.SECRET_KEY}


@pytest.fixture
def store() -> Iterator[DoubleProcess]:
    with DoubleProcess.start(buckets=["reports"]) as process:
        yield process


@pytest.fixture
def sections(store: DoubleProcess) -> dict[str, Any]:
    s3 = {
        "endpoint": store.endpoint,
        "access_key_id": "AKIADOUBLE",
        "secret_access_key": "double-secret",
        "timeout": PATIENCE,
    }
    return {"s3": s3, "callers": [CALLERS[0], {"name": "writer", "api_key": WRITER_KEY, **KEYS}]}


def address(stage: Stage, content: str = SCRIPT, content_type: str = "text/html") -> str:
    """Return a URL that shows an object of the writer's to any client that has it."""
    s3 = boto3.client(
        "s3",
        endpoint_url=stage.origin,
        region_name="us-east-1",
        aws_access_key_id=running.ACCESS_KEY,
        aws_secret_access_key=running.SECRET_KEY,
        aws_session_token="fencing-token=33",
        config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
    )
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
